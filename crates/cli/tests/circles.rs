//! Modules that import each other in a circle can only be understood together. The circles that stand today are written down in
//! `circles/known.txt`; a new one fails, and so does one that has become smaller and is still written down as it was.
//!
//! A module is a file; a child that imports from its parent is in a circle with it if the parent imports from the child. The
//! crate's root belongs to none: it only says what there is. Tests do not count.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

#[path = "circles/source.rs"]
mod source;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use source::{Source, Word};

/// `a::b` as its parts; the root is empty.
type Module = Vec<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files of a crate, by module.
fn files(dir: &Path, module: &Module, into: &mut BTreeMap<Module, Source>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, mut child) = (entry.path(), module.clone());
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            child.push(name);
            files(&path, &child, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            if !["lib", "main", "mod"].contains(&name.as_str()) {
                child.push(name);
            }
            into.insert(child, Source::read(&fs::read_to_string(&path).unwrap()));
        }
    }
}

struct Crate {
    files: BTreeMap<Module, Source>,
    /// What each module names by `use`: alias and path from the root.
    names: BTreeMap<Module, BTreeMap<String, Module>>,
}

impl Crate {
    fn read(dir: &Path) -> Crate {
        let mut files = BTreeMap::new();
        self::files(dir, &Module::new(), &mut files);
        let tests: Vec<Module> = files
            .iter()
            .flat_map(|(module, source)| source.tests.iter().map(|test| child(module, test)))
            .collect();
        files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        let mut all = Crate { files, names: BTreeMap::new() };
        for (module, source) in &all.files {
            let mut names = BTreeMap::new();
            for (path, alias) in &source.uses {
                if let Some(path) = all.absolute(module, path) {
                    names.insert(alias.clone(), path);
                }
            }
            all.names.insert(module.clone(), names);
        }
        all
    }

    /// A path of this crate as seen from the root; `None` for those of others.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let (mut base, mut rest) = match path.first()?.as_str() {
            "crate" => (Module::new(), &path[1..]),
            "self" => (module.clone(), &path[1..]),
            "super" => (module.clone(), path),
            first if self.files.contains_key(&child(module, first)) => (module.clone(), path),
            _ => return None,
        };
        while rest.first().is_some_and(|part| part == "super") {
            base.pop();
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// The module in which what a path names stands, by way of what others export again.
    fn home(&self, path: &Module) -> Module {
        let mut path = path.clone();
        for _ in 0..8 {
            let len = (0..=path.len()).rev().find(|&len| self.files.contains_key(&path[..len])).unwrap_or(0);
            let (module, rest) = path.split_at(len);
            let next = rest.first().and_then(|name| self.names.get(module)?.get(name));
            match next {
                Some(next) if *next != path => path = [next.as_slice(), &rest[1..]].concat(),
                _ => return module.to_vec(),
            }
        }
        path
    }

    /// What each module imports.
    fn imports(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let of = |(module, source): (&Module, &Source)| {
            let homes = source.paths.iter().filter_map(|path| self.absolute(module, path));
            let homes = homes.map(|path| self.home(&path));
            let homes =
                homes.filter(|home| home != module && !home.is_empty() && self.files.contains_key(home));
            (module.clone(), homes.collect())
        };
        self.files.iter().filter(|(module, _)| !module.is_empty()).map(of).collect()
    }
}

fn child(module: &[String], name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// All that a module reaches by imports; itself, if it is in a circle.
fn reach<'a>(imports: &'a BTreeMap<Module, BTreeSet<Module>>, from: &'a Module) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(imports[module].iter().filter(|&import| seen.insert(import)));
    }
    seen
}

/// Sets of modules that can all reach each other.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|m| (m, reach(imports, m))).collect();
    let mut found: Vec<BTreeSet<Module>> = Vec::new();
    for (module, from_here) in &reached {
        if from_here.contains(module) && !found.iter().any(|circle| circle.contains(*module)) {
            let both = from_here.iter().filter(|other| reached[**other].contains(module));
            found.push(both.map(|other| (*other).clone()).collect());
        }
    }
    found
}

/// One circle a line: the crate, its modules.
fn drawn() -> Vec<(String, BTreeSet<String>)> {
    let mut lines = Vec::new();
    let mut crates: Vec<PathBuf> =
        fs::read_dir(root().join("crates")).unwrap().map(|e| e.unwrap().path()).collect();
    crates.sort();
    for dir in crates {
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        for circle in circles(&Crate::read(&dir.join("src")).imports()) {
            lines.push((name.clone(), circle.iter().map(|module| module.join("::")).collect()));
        }
    }
    lines
}

fn text(circles: &[(String, BTreeSet<String>)]) -> String {
    let line = |(name, modules): &(String, BTreeSet<String>)| {
        format!("{name}: {}\n", modules.iter().map(String::as_str).collect::<Vec<_>>().join(" "))
    };
    circles.iter().map(line).collect()
}

#[test]
fn no_circle_of_modules_is_new() {
    let known = fs::read_to_string(root().join("crates/cli/tests/circles/known.txt")).unwrap();
    let known: Vec<(String, BTreeSet<String>)> = known
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, modules)| (name.to_owned(), modules.split(' ').map(str::to_owned).collect()))
        .collect();
    let drawn = drawn();
    for (name, circle) in &drawn {
        let allowed = known.iter().any(|(of, modules)| of == name && circle.is_subset(modules));
        assert!(
            allowed,
            "a new circle, or one that grew, in {name}: {circle:?}; all there are:\n{}",
            text(&drawn)
        );
    }
    assert!(drawn == known, "circles have become smaller: known.txt should hold only\n{}", text(&drawn));
}

/// The drawing sees what it should: what is a circle, by whatever way, and what is none.
#[test]
fn circles_are_seen() {
    let read = |files: &[(&str, &str)]| {
        let module =
            |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let files =
            files.iter().map(|(name, text)| (module(name), text.to_string())).collect::<Vec<(Module, _)>>();
        let dir = tempfile::tempdir().unwrap();
        for (module, text) in &files {
            let path = match module.is_empty() {
                true => dir.path().join("lib.rs"),
                false => dir.path().join(module.join("/")).with_extension("rs"),
            };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        circles(&Crate::read(dir.path()).imports()).len()
    };
    assert_eq!(
        read(&[("", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "use crate::a::{self, A};")]),
        1
    );
    assert_eq!(
        read(&[("", "pub use b::B;"), ("a", "use crate::{B, x};"), ("b", "fn f() { crate::a::g() }")]),
        1
    );
    assert_eq!(
        read(&[
            ("", "pub use b::B;"),
            ("a", "use crate::B;"),
            ("b", "// crate::a\nconst C: &str = \"crate::a\";")
        ]),
        0
    );
    assert_eq!(read(&[("", ""), ("a", "mod b; fn f() { b::g() }"), ("a::b", "use super::f;")]), 1);
    assert_eq!(read(&[("", ""), ("a", "mod b;"), ("a::b", "use super::f;")]), 0);
    assert_eq!(
        read(&[
            ("", ""),
            ("a", "#[cfg(test)] mod t;\nuse b::B; mod b;"),
            ("a::t", "use super::*; use crate::c::C;"),
            ("a::b", "#[cfg(test)]\nmod tests { use super::super::f; }"),
            ("c", "use crate::a::t;")
        ]),
        0
    );
    assert!(Word::words("'a' 'b \"c\\\"d\" r#\"e\"f\"# g /* h */ i::j").len() > 3);
}
