//! `docs/tunables.md` is what the table makes, and no row claims an effect it does not have.
//! After a change of the table: `ROPEWALK_UPDATE_DOCS=1 cargo test -p ropewalk-base --test tunables_doc`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base::tunables::{ROWS, Row, markdown};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn document_is_current() {
    let path = workspace().join("docs/tunables.md");
    if std::env::var_os("ROPEWALK_UPDATE_DOCS").is_some() {
        fs::create_dir_all(workspace().join("docs")).unwrap();
        fs::write(&path, markdown()).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/tunables.md is not what the table makes; write it anew: \
         ROPEWALK_UPDATE_DOCS=1 cargo test -p ropewalk-base --test tunables_doc"
    );
    let rows = written.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, ROWS.len());
    assert!(
        written.lines().filter(|line| line.starts_with("| `")).all(|line| line.matches(" | ").count() == 6)
    );
}

#[test]
fn every_row_is_read_by_another_crate() {
    let mut sources = String::new();
    for krate in fs::read_dir(workspace().join("crates")).unwrap() {
        let krate = krate.unwrap().path();
        if krate.file_name().is_some_and(|name| name != "base") {
            gather(&krate.join("src"), &mut sources).unwrap();
        }
    }
    for row in ROWS {
        // A master knob acts through what follows from it.
        let follows = |r: &Row| r.derived.is_some_and(|d| d.starts_with(row.name));
        assert!(
            sources.contains(&format!(".{}()", row.getter)) || ROWS.iter().any(follows),
            "{} stands in the table, but no other crate calls {}()",
            row.name,
            row.getter
        );
    }
}

fn gather(dir: &Path, sources: &mut String) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, sources)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            sources.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}
