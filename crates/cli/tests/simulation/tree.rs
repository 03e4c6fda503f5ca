//! What stands in a program's own directory by what it did: things, and what a client must say of them.

use std::collections::BTreeMap;

use base::InodeNo;
use wire::mgr::{Attr, FileKind, Timestamp};

use super::world;

const S_ISGID: u16 = 0o2000;
/// Who makes all of it.
pub const UID: u32 = 3;
/// The modes of files and, if nobody changes them, of directories; of symbolic links.
pub const MODE: u16 = 0o755;
const LINK_MODE: u16 = 0o777;
/// What a directory shows as its size, and what a file has that was written to.
const DIRECTORY_SIZE: u64 = 4096;
const WRITTEN: u64 = 8;

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Thing {
    Directory {
        mode: u16,
    },
    /// What it may hold: the last is what was written, those before as long as nothing has settled that.
    File {
        may: Vec<u64>,
    },
    Link {
        target: String,
    },
}

impl Thing {
    pub fn is_directory(&self) -> bool {
        matches!(self, Thing::Directory { .. })
    }

    /// Whether it may be found as `seen`.
    fn may_be(&self, seen: &Thing) -> bool {
        match (self, seen) {
            (Thing::File { may }, Thing::File { may: seen }) => may.contains(&seen[0]),
            (made, seen) => made == seen,
        }
    }
}

/// A path below a program's own directory: `a`, or `d1/a`. Empty: that directory.
pub type Path = String;
pub type Tree = BTreeMap<Path, Entry>;

/// Between which moments of the simulated clock something was done.
#[derive(Clone, Copy, Debug)]
pub struct When {
    from: u64,
    to: u64,
}

impl When {
    /// It is done now, and nobody knows when it ends.
    pub fn begins() -> When {
        When { from: world::now(), to: u64::MAX }
    }

    /// It was answered.
    pub fn end(&mut self) {
        self.to = self.to.min(world::now());
    }

    fn has(self, time: Timestamp) -> bool {
        let at = time.secs as u64 * 1_000_000_000 + u64::from(time.nanos);
        (self.from..=self.to).contains(&at)
    }
}

/// A thing, and what else is known of it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub thing: Thing,
    /// 0: it was not answered yet.
    pub ino: InodeNo,
    /// Its extended attribute.
    pub value: Option<u64>,
    gid: u32,
    changed: When,
    changed_inode: When,
}

/// What a client found at a path.
#[derive(Debug)]
pub struct Found {
    pub thing: Thing,
    pub attr: Attr,
    pub value: Option<u64>,
}

/// A change of one program.
#[derive(Clone, Debug)]
pub enum Act {
    Make(Path, Thing),
    Write(Path, u64),
    Remove(Path),
    Move(Path, Path),
    /// Another name for a file.
    Link(Path, Path),
    Mode(Path, u16),
    Value(Path, u64),
    /// Its content is stored.
    Settle(Path),
}

/// The same, as it was done.
#[derive(Clone, Debug)]
pub struct Step {
    pub act: Act,
    pub when: When,
    /// What it made.
    pub ino: InodeNo,
}

/// The directory of a path, and its last name.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

pub fn inside(dir: &str, path: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

/// A group, another for each name.
pub fn group(name: &str) -> u32 {
    name.bytes().map(u32::from).sum()
}

/// A program's own directory, just made under this name.
pub fn top(name: &str, ino: InodeNo, made: When) -> Tree {
    let thing = Thing::Directory { mode: MODE };
    let entry = Entry { thing, ino, value: None, gid: group(name), changed: made, changed_inode: made };
    Tree::from([(Path::new(), entry)])
}

/// The mode of a directory that is made there.
pub fn mode_in(tree: &Tree, dir: &str) -> u16 {
    match tree[dir].thing {
        Thing::Directory { mode } => MODE | mode & S_ISGID,
        _ => MODE,
    }
}

/// Changes what a path leads to, under all its names.
fn change(tree: &mut Tree, path: &str, change: impl Fn(&mut Entry)) {
    let Some(ino) = tree.get(path).map(|entry| entry.ino) else { return };
    let same = |at: &str, entry: &Entry| at == path || ino.0 > 0 && entry.ino == ino;
    tree.iter_mut().filter(|(at, entry)| same(at, entry)).for_each(|(_, entry)| change(entry));
}

/// Takes a name away; what it led to, if it was the last one.
fn lose(tree: &mut Tree, path: &str, when: When) -> Option<Entry> {
    change(tree, path, |entry| entry.changed_inode = when);
    let lost = tree.remove(path)?;
    (!tree.values().any(|entry| entry.ino == lost.ino)).then_some(lost)
}

/// Does it; what lost its last name by it.
pub fn apply(tree: &mut Tree, step: &Step) -> Option<Entry> {
    let when = step.when;
    let names_changed = |tree: &mut Tree, path: &str| {
        if let Some(dir) = tree.get_mut(split(path).0) {
            (dir.changed, dir.changed_inode) = (when, when);
        }
    };
    match step.act.clone() {
        Act::Make(path, thing) => {
            let (above, name) = split(&path);
            let above = tree.get(above);
            let set_gid = |dir: &&Entry| matches!(dir.thing, Thing::Directory { mode } if mode & S_ISGID > 0);
            let gid = above.filter(set_gid).map_or_else(|| group(name), |dir| dir.gid);
            names_changed(tree, &path);
            let ino = step.ino;
            tree.insert(path, Entry { thing, ino, value: None, gid, changed: when, changed_inode: when });
        }
        Act::Remove(path) => {
            names_changed(tree, &path);
            return lose(tree, &path, when);
        }
        Act::Move(from, to) => {
            // The content of what replaces another comes before it.
            if tree.contains_key(&to) {
                settle(tree, &from);
            }
            names_changed(tree, &from);
            names_changed(tree, &to);
            change(tree, &from, |entry| entry.changed_inode = when);
            let replaced = lose(tree, &to, when);
            let moved: Vec<Path> =
                tree.keys().filter(|path| **path == from || inside(&from, path)).cloned().collect();
            for path in moved {
                let entry = tree.remove(&path).expect("it is there");
                tree.insert(format!("{to}{}", &path[from.len()..]), entry);
            }
            return replaced;
        }
        Act::Settle(path) => settle(tree, &path),
        Act::Link(path, to) => {
            names_changed(tree, &to);
            change(tree, &path, |entry| entry.changed_inode = when);
            let linked = tree.get(&path).cloned();
            tree.extend(linked.map(|entry| (to, entry)));
        }
        Act::Write(path, value) => change(tree, &path, |entry| {
            (entry.changed, entry.changed_inode) = (when, when);
            if let Thing::File { may } = &mut entry.thing {
                may.push(value);
            }
        }),
        Act::Mode(path, mode) => change(tree, &path, |entry| {
            entry.changed_inode = when;
            entry.thing = Thing::Directory { mode };
        }),
        Act::Value(path, value) => change(tree, &path, |entry| {
            (entry.changed_inode, entry.value) = (when, Some(value));
        }),
    }
    None
}

fn settle(tree: &mut Tree, path: &str) {
    change(tree, path, |entry| {
        if let Thing::File { may } = &mut entry.thing {
            may.drain(..may.len() - 1);
        }
    });
}

/// The last step was answered; it made `ino`, if it made anything.
pub fn answered(tree: &mut Tree, step: &mut Step, ino: InodeNo) {
    step.when.end();
    if let Act::Make(path, _) = &step.act {
        step.ino = ino;
        tree.entry(path.clone()).and_modify(|made| made.ino = ino);
    }
    for entry in tree.values_mut() {
        entry.changed.end();
        entry.changed_inode.end();
    }
}

/// What is said of the attributes and is not so; `own`: by the client that did all of this, which has also what it wrote.
pub fn wrong(tree: &Tree, path: &str, attr: &Attr, own: bool) -> Option<String> {
    let entry = &tree[path];
    let directories = tree
        .iter()
        .filter(|(below, entry)| !below.is_empty() && split(below).0 == path && entry.thing.is_directory());
    let (kind, mode, nlink, size) = match &entry.thing {
        Thing::Directory { mode } => {
            (FileKind::Directory, *mode, 2 + directories.count() as u32, Some(DIRECTORY_SIZE))
        }
        Thing::Link { target } => (FileKind::Symlink, LINK_MODE, 1, Some(target.len() as u64)),
        Thing::File { may } => {
            let written = may.last() != Some(&0);
            let names = tree.values().filter(|other| entry.ino.0 > 0 && other.ino == entry.ino).count();
            (FileKind::File, MODE, names.max(1) as u32, own.then_some(if written { WRITTEN } else { 0 }))
        }
    };
    // A file's times come later than its names.
    let times = own || kind != FileKind::File;
    let ino = if entry.ino.0 == 0 { attr.ino } else { entry.ino };
    let wanted = Attr {
        ino,
        kind,
        mode,
        uid: UID,
        gid: entry.gid,
        nlink,
        size: size.unwrap_or(attr.size),
        ..attr.clone()
    };
    let fits =
        wanted == *attr && (!times || entry.changed.has(attr.mtime) && entry.changed_inode.has(attr.ctime));
    (!fits).then(|| format!("{path:?} is said to be {attr:?}, and is {entry:?} with {nlink} links"))
}

/// Whether what was found is what a tree says.
pub fn fits(tree: &Tree, found: &BTreeMap<Path, Found>) -> bool {
    let same = |((path, entry), (at, seen)): ((&Path, &Entry), (&Path, &Found))| {
        path == at
            && entry.thing.may_be(&seen.thing)
            && seen.value == entry.value
            && wrong(tree, path, &seen.attr, false).is_none()
    };
    tree.len() == found.len() && tree.iter().zip(found).all(same)
}
