//! `docs/statistics.md` is what the table makes, and every family of the table is counted by some crate.
//! After a change of the table: `ROPEWALK_UPDATE_DOCS=1 cargo test -p ropewalk-base --test statistics_doc`.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{collections::BTreeSet, fs, path::Path};

use base::stats::{STATISTICS, markdown};

#[test]
fn document_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/statistics.md");
    if std::env::var_os("ROPEWALK_UPDATE_DOCS").is_some() {
        fs::write(&path, markdown()).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/statistics.md is not what the table makes; write it anew: \
         ROPEWALK_UPDATE_DOCS=1 cargo test -p ropewalk-base --test statistics_doc"
    );
    let rows = written.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, STATISTICS.len());
}

#[test]
fn names_are_one_each() {
    let mut seen = BTreeSet::new();
    for statistic in STATISTICS {
        assert!(seen.insert(statistic.name), "{} twice", statistic.name);
        assert!(statistic.family.is_empty() || seen.insert(statistic.family), "{} twice", statistic.family);
    }
}

#[test]
fn every_family_is_counted_somewhere() {
    let mut sources = String::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for krate in fs::read_dir(crates).unwrap() {
        gather(&krate.unwrap().path().join("src"), &mut sources);
    }
    for statistic in STATISTICS {
        let quoted = format!("\"{}\"", statistic.family);
        let rolled_up = !matches!(statistic.source, base::stats::Source::Family);
        // In the table itself it stands once.
        let used = sources.matches(&quoted).count() > 1;
        assert!(rolled_up || used, "{} stands in the table, but nothing counts it", statistic.family);
    }
}

fn gather(dir: &Path, sources: &mut String) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(&path, sources);
        } else if path.extension().is_some_and(|e| e == "rs") {
            sources.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}
