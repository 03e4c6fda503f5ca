//! The picture of the parts in ARCHITECTURE.md is the truth: it names exactly the dependencies that each
//! crate declares, each of them is really imported, and imports only go downwards.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The picture: parts from top to bottom, with what each imports.
fn picture() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let block = text.split("```parts\n").nth(1).expect("a ```parts block").split("```").next().unwrap();
    block
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            (words.next().expect("a part on each line"), words.collect())
        })
        .collect()
}

/// Our own crates among a manifest's dependencies.
fn declared(part: &str, parts: &BTreeSet<String>) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates").join(part).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    manifest["dependencies"].as_table().unwrap().keys().filter(|k| parts.contains(*k)).cloned().collect()
}

fn sources(dir: &Path, into: &mut String) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn the_picture_shows_the_real_dependencies() {
    let picture = picture();
    let parts: BTreeSet<String> = picture.iter().map(|(part, _)| part.clone()).collect();
    let real: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .flatten()
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    assert_eq!(parts, real, "parts in the picture and crates on disk");
    for (part, imports) in &picture {
        assert_eq!(imports, &declared(part, &parts), "{part}: picture and Cargo.toml");
    }
}

#[test]
fn every_dependency_is_imported() {
    let picture = picture();
    for (part, imports) in &picture {
        let mut text = String::new();
        sources(&root().join("crates").join(part).join("src"), &mut text);
        for import in imports {
            assert!(text.contains(&format!("{import}::")), "{part} declares {import} and never names it");
        }
    }
}

#[test]
fn imports_only_go_downwards() {
    let picture = picture();
    let place: BTreeMap<&str, usize> =
        picture.iter().enumerate().map(|(i, (part, _))| (part.as_str(), i)).collect();
    for (part, imports) in &picture {
        for import in imports {
            assert!(
                place[part.as_str()] < place[import.as_str()],
                "{part} imports {import}, which is not below it"
            );
        }
    }
}

#[test]
fn the_first_documents_are_short_and_name_files_that_are_there() {
    for (name, bytes) in [("ARCHITECTURE.md", 10_240), ("README.md", 8_192), ("CONTRIBUTING.md", 10_240)] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        assert!(text.len() <= bytes, "{name} has {} bytes, at most {bytes}", text.len());
        let plain = |path: &&str| path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        let named = text.split('`').skip(1).step_by(2).filter(plain);
        for path in named.filter(|path| path.starts_with("crates/") || path.starts_with("docs/")) {
            assert!(root().join(path).exists(), "{name} names {path}");
        }
    }
}
