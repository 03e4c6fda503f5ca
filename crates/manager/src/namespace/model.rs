//! Random operations against a simple model, with replays and a session's death at the end.

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockIndex, Grant, InodeNo, Version};
use libc::*;
use proptest::prelude::*;
use wire::mgr::{Change, Extent, FileKind, MgrError, MgrReply, MgrRequest, OpId};

use super::{
    collect_orphans, end_session,
    tests::{BLOCK, FS, NOW, Stage, create, made, rename, truncate, unlink, write_blocks},
    unnamed_tests::{linked, unnamed},
};
use crate::keys;

/// What the model knows of an inode.
#[derive(Clone, Debug)]
struct Node {
    kind: FileKind,
    nlink: u32,
    parent: InodeNo,
    children: BTreeMap<Vec<u8>, InodeNo>,
    size: u64,
    blocks: BTreeSet<u64>,
    open: bool,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize, usize, FileKind),
    CreateUnnamed(usize),
    Link(usize, usize, usize, bool),
    Unlink(usize, usize, bool, bool),
    Rename { from: (usize, usize), to: (usize, usize), flags: u8, open: bool },
    Truncate(usize, u64),
    Write(usize, u64, u64),
    Punch(usize, u64, u64),
    SetXattr(usize, usize, u8),
    RemoveXattr(usize, usize),
    Forget(usize),
    Repeat,
}

fn steps() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(FileKind::File), Just(FileKind::Directory), Just(FileKind::Symlink)];
    let (dir, name, ino) = (0..64usize, 0..5usize, 0..64usize);
    prop_oneof![
        6 => (dir.clone(), name.clone(), kind).prop_map(|(d, n, k)| Step::Create(d, n, k)),
        2 => dir.clone().prop_map(Step::CreateUnnamed),
        3 => (ino.clone(), dir.clone(), name.clone(), any::<bool>())
            .prop_map(|(i, d, n, unnamed)| Step::Link(i, d, n, unnamed)),
        3 => (dir.clone(), name.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(d, n, dir, open)| Step::Unlink(d, n, dir, open)),
        6 => (dir.clone(), name.clone(), dir, name.clone(), 0..4u8, any::<bool>())
            .prop_map(|(a, b, c, d, flags, open)| Step::Rename { from: (a, b), to: (c, d), flags, open }),
        2 => (ino.clone(), 0..12 * BLOCK).prop_map(|(i, size)| Step::Truncate(i, size)),
        4 => (ino.clone(), 0..10u64, 1..4u64).prop_map(|(i, first, n)| Step::Write(i, first, n)),
        2 => (ino.clone(), 0..10u64, 1..6u64).prop_map(|(i, first, n)| Step::Punch(i, first, n)),
        2 => (ino.clone(), name.clone(), any::<u8>()).prop_map(|(i, n, v)| Step::SetXattr(i, n, v)),
        1 => (ino.clone(), name).prop_map(|(i, n)| Step::RemoveXattr(i, n)),
        2 => ino.prop_map(Step::Forget),
        1 => Just(Step::Repeat),
    ]
}

const NAMES: [&str; 5] = ["a", "bb", "ccc", "dddd", "e"];

/// The model: what should come of each change.
struct Model {
    nodes: BTreeMap<InodeNo, Node>,
    /// Every inode there ever was, in order.
    known: Vec<InodeNo>,
}

type Expect = Result<(), i32>;

impl Model {
    fn new() -> Model {
        let root = Node { parent: InodeNo::ROOT, ..Model::node(FileKind::Directory) };
        Model { nodes: [(InodeNo::ROOT, root)].into(), known: vec![InodeNo::ROOT] }
    }
    fn node(kind: FileKind) -> Node {
        Node {
            kind,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            parent: InodeNo(0),
            children: BTreeMap::new(),
            size: u64::from(kind == FileKind::Symlink),
            blocks: BTreeSet::new(),
            open: false,
            xattrs: BTreeMap::new(),
        }
    }
    fn pick(&self, n: usize) -> InodeNo {
        self.known[n % self.known.len()]
    }
    fn is_dir(&self, ino: InodeNo) -> bool {
        self.nodes[&ino].kind == FileKind::Directory
    }
    fn dir(&self, ino: InodeNo, linked: bool) -> Result<&Node, i32> {
        let node = self.nodes.get(&ino).ok_or(ENOENT)?;
        match node.kind {
            FileKind::Directory if linked && node.nlink == 0 => Err(ENOENT),
            FileKind::Directory => Ok(node),
            _ => Err(ENOTDIR),
        }
    }
    fn file(&mut self, ino: InodeNo) -> Result<&mut Node, i32> {
        let node = self.nodes.get_mut(&ino).ok_or(ENOENT)?;
        match node.kind {
            FileKind::File => Ok(node),
            FileKind::Directory => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }
    fn at(&mut self, ino: InodeNo) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }
    fn above(&self, ancestor: InodeNo, mut at: InodeNo) -> bool {
        while at != ancestor {
            if at == InodeNo::ROOT {
                return false;
            }
            at = self.nodes[&at].parent;
        }
        true
    }
    fn drop_link(&mut self, ino: InodeNo, open: bool) {
        let node = self.at(ino);
        node.nlink = if node.kind == FileKind::Directory { 0 } else { node.nlink - 1 };
        if node.nlink == 0 {
            node.open = open;
            if !open {
                self.nodes.remove(&ino);
            }
        }
    }
    fn link(&mut self, ino: InodeNo, dir: InodeNo, name: &str, unnamed: bool) -> Expect {
        self.dir(dir, true)?;
        let node = self.nodes.get(&ino).ok_or(ENOENT)?.clone();
        if self.nodes[&dir].children.contains_key(name.as_bytes()) {
            return Err(EEXIST);
        }
        match node.kind {
            FileKind::Directory => return Err(EPERM),
            // The session says which it made without a name; the model's holds all that have none.
            _ if node.nlink == 0 && !unnamed => return Err(ENOENT),
            _ => {}
        }
        self.at(ino).nlink += 1;
        self.at(dir).children.insert(name.into(), ino);
        Ok(())
    }
    fn unlink(&mut self, dir: InodeNo, name: &str, directory: bool, open: bool) -> Expect {
        let ino = *self.dir(dir, false)?.children.get(name.as_bytes()).ok_or(ENOENT)?;
        match (self.is_dir(ino), directory) {
            (true, false) => return Err(EISDIR),
            (false, true) => return Err(ENOTDIR),
            (true, true) if !self.nodes[&ino].children.is_empty() => return Err(ENOTEMPTY),
            _ => {}
        }
        self.at(dir).children.remove(name.as_bytes());
        self.at(dir).nlink -= u32::from(directory);
        self.drop_link(ino, open);
        Ok(())
    }
    fn rename(&mut self, from: (InodeNo, &str), to: (InodeNo, &str), flags: u8, open: bool) -> Expect {
        let (no_replace, exchange) = (flags & 1 != 0, flags & 2 != 0);
        if no_replace && exchange {
            return Err(EINVAL);
        }
        self.dir(from.0, false)?;
        self.dir(to.0, true)?;
        let source = *self.nodes[&from.0].children.get(from.1.as_bytes()).ok_or(ENOENT)?;
        let target = self.nodes[&to.0].children.get(to.1.as_bytes()).copied();
        if exchange {
            let target = target.ok_or(ENOENT)?;
            if source == target {
                return Ok(());
            }
            let loops = |moved, dir| from.0 != to.0 && self.is_dir(moved) && self.above(moved, dir);
            if loops(source, to.0) || loops(target, from.0) {
                return Err(EINVAL);
            }
            for (place, ino, other) in [(from, target, source), (to, source, target)] {
                self.at(place.0).children.insert(place.1.into(), ino);
                self.at(ino).parent = place.0;
                self.at(place.0).nlink += u32::from(self.is_dir(ino));
                self.at(place.0).nlink -= u32::from(self.is_dir(other));
            }
            return Ok(());
        }
        if self.is_dir(source) && from.0 != to.0 && self.above(source, to.0) {
            return Err(EINVAL);
        }
        if let Some(target) = target {
            if no_replace {
                return Err(EEXIST);
            }
            if target == source {
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                (true, true) if !self.nodes[&target].children.is_empty() => return Err(ENOTEMPTY),
                _ => {}
            }
        }
        let links = u32::from(self.is_dir(source));
        self.at(from.0).children.remove(from.1.as_bytes());
        self.at(from.0).nlink -= links;
        self.at(to.0).children.insert(to.1.into(), source);
        self.at(to.0).nlink += links;
        self.at(source).parent = to.0;
        if let Some(target) = target {
            self.at(to.0).nlink -= u32::from(self.is_dir(target));
            self.drop_link(target, open);
        }
        Ok(())
    }
}

fn run_step(
    stage: &mut Stage,
    model: &mut Model,
    step: Step,
    last: &mut Option<(OpId, Change, Result<MgrReply, MgrError>)>,
) {
    let xattr = |n: usize| format!("user.{}", NAMES[n % NAMES.len()]).into_bytes();
    let version = Version { grant: Grant(5), seq: 1 };
    let (change, expected) = match step {
        Step::Repeat => {
            if let Some((op, change, outcome)) = last.clone() {
                assert_eq!(stage.repeat(op, change.clone()), outcome, "a repetition has the first outcome");
                if op.seq > 1 {
                    let late = OpId { seq: op.seq - 1, ..op };
                    assert_eq!(stage.repeat(late, change), Err(MgrError::Superseded));
                }
            }
            return;
        }
        Step::Create(d, n, kind) => {
            let (dir, name) = (model.pick(d), NAMES[n]);
            let expected = match model.dir(dir, true) {
                Err(errno) => Err(errno),
                Ok(node) if node.children.contains_key(name.as_bytes()) => Err(EEXIST),
                Ok(_) => Ok(()),
            };
            let outcome = stage.change(create(dir, name, kind));
            if expected.is_ok() {
                let ino = made(outcome.clone());
                assert!(!model.known.contains(&ino), "numbers are never used again");
                model.known.push(ino);
                model.nodes.insert(ino, Node { parent: dir, ..Model::node(kind) });
                model.at(dir).children.insert(name.into(), ino);
                model.at(dir).nlink += u32::from(kind == FileKind::Directory);
            } else {
                assert_eq!(outcome.clone().err(), expected.err().map(MgrError::Errno));
            }
            let op = OpId { slot: 0, seq: stage.seq };
            *last = Some((op, create(dir, name, kind), outcome));
            return;
        }
        Step::CreateUnnamed(d) => {
            let dir = model.pick(d);
            let outcome = stage.change(unnamed(dir));
            match model.dir(dir, true) {
                Ok(_) => {
                    let ino = made(outcome.clone());
                    assert!(!model.known.contains(&ino), "numbers are never used again");
                    model.known.push(ino);
                    let node = Node { nlink: 0, open: true, parent: dir, ..Model::node(FileKind::File) };
                    model.nodes.insert(ino, node);
                }
                Err(errno) => assert_eq!(outcome.clone().err(), Some(MgrError::Errno(errno))),
            }
            *last = Some((OpId { slot: 0, seq: stage.seq }, unnamed(dir), outcome));
            return;
        }
        Step::Link(i, d, n, unnamed) => {
            let (ino, parent) = (model.pick(i), model.pick(d));
            let name = NAMES[n];
            (linked(ino, parent, name, unnamed), model.link(ino, parent, name, unnamed))
        }
        Step::Unlink(d, n, directory, open) => {
            let dir = model.pick(d);
            (unlink(dir, NAMES[n], directory, open), model.unlink(dir, NAMES[n], directory, open))
        }
        Step::Rename { from, to, flags, open: keep } => {
            let from = (model.pick(from.0), NAMES[from.1]);
            let to = (model.pick(to.0), NAMES[to.1]);
            let mut change = rename(from, to);
            if let Change::Rename { no_replace, exchange, open, .. } = &mut change {
                (*no_replace, *exchange, *open) = (flags & 1 != 0, flags & 2 != 0, keep);
            }
            (change, model.rename(from, to, flags, keep))
        }
        Step::Truncate(i, size) => {
            let ino = model.pick(i);
            let expected = model.file(ino).map(|node| {
                if size < node.size {
                    node.blocks.retain(|&block| block < size.div_ceil(BLOCK));
                }
                node.size = size;
            });
            (truncate(ino, size), expected)
        }
        Step::Write(i, first, count) => {
            let ino = model.pick(i);
            let mut size = (first + count) * BLOCK - 100;
            let expected = model.file(ino).map(|node| {
                size = size.max(node.size);
                node.size = size;
                node.blocks.extend(first..first + count);
            });
            (write_blocks(ino, size, first, count), expected)
        }
        Step::Punch(i, first, count) => {
            let ino = model.pick(i);
            let expected = model.file(ino).map(|node| {
                node.blocks.retain(|block| !(first..first + count).contains(block));
            });
            let blocks = Extent { first: BlockIndex(first), count };
            (Change::Deallocate { ino, blocks, highest: version, now: NOW }, expected)
        }
        Step::SetXattr(i, n, value) => {
            let (ino, name) = (model.pick(i), xattr(n));
            let value = vec![value; usize::from(value)];
            let expected = model.nodes.get_mut(&ino).ok_or(ENOENT).map(|node| {
                node.xattrs.insert(name.clone(), value.clone());
            });
            (Change::SetXattr { ino, name, value, create: false, replace: false, now: NOW }, expected)
        }
        Step::RemoveXattr(i, n) => {
            let (ino, name) = (model.pick(i), xattr(n));
            let node = model.nodes.get_mut(&ino).ok_or(ENOENT);
            let expected = node.and_then(|node| node.xattrs.remove(&name).map(drop).ok_or(ENODATA));
            (Change::RemoveXattr { ino, name, now: NOW }, expected)
        }
        Step::Forget(i) => {
            let ino = model.pick(i);
            if model.nodes.get(&ino).is_some_and(|node| node.nlink == 0) {
                model.nodes.remove(&ino);
            }
            (Change::Forget { ino, highest: Version::ZERO }, Ok(()))
        }
    };
    let outcome = stage.change(change.clone());
    assert_eq!(
        outcome.as_ref().map(drop),
        expected.map_err(MgrError::Errno).as_ref().map(drop),
        "{change:?}"
    );
    *last = Some((OpId { slot: 0, seq: stage.seq }, change, outcome));
}

fn compare(stage: &Stage, model: &Model) {
    for &ino in &model.known {
        let (attr, node) = (stage.attr(ino), model.nodes.get(&ino));
        assert_eq!(attr.is_some(), node.is_some(), "{ino}");
        let (Some(attr), Some(node)) = (attr, node) else { continue };
        assert_eq!((attr.kind, attr.nlink), (node.kind, node.nlink), "{ino}");
        let names = match stage.ask(MgrRequest::ListXattr { ino }) {
            Ok(MgrReply::Names(names)) => names,
            other => panic!("{other:?}"),
        };
        assert_eq!(names, node.xattrs.keys().cloned().collect::<Vec<_>>());
        for (name, value) in &node.xattrs {
            let request = MgrRequest::GetXattr { ino, name: name.clone() };
            assert_eq!(stage.ask(request), Ok(MgrReply::Bytes(value.clone())));
        }
        if node.kind == FileKind::Directory {
            let listed: BTreeMap<Vec<u8>, InodeNo> = stage.list(ino, 2).into_iter().collect();
            assert_eq!(listed, node.children);
        } else {
            assert_eq!(attr.size, node.size);
            assert_eq!(stage.extents(ino), node.blocks);
            let blocks = node
                .blocks
                .iter()
                .map(|block| if *block == attr.size / BLOCK { attr.size % BLOCK } else { BLOCK });
            if node.kind == FileKind::File {
                assert_eq!(attr.stored, blocks.sum::<u64>());
                assert_eq!(attr.inline, node.blocks.is_empty());
            }
        }
    }
    let record: keys::FsRecord = keys::read(&stage.map, &keys::fs_key(FS)).unwrap().unwrap();
    assert_eq!(record.inodes, model.nodes.len() as u64);
    let orphans = model.nodes.values().filter(|node| node.nlink == 0).count();
    assert_eq!(stage.map.keys().filter(|key| key[0] == b'o').count(), orphans);
    for key in stage.map.keys().filter(|key| b"idxeb".contains(&key[0])) {
        let ino = InodeNo(u64::from_be_bytes(*key[5..13].first_chunk().unwrap()));
        assert!(model.nodes.contains_key(&ino), "left behind: {:?}", char::from(key[0]));
    }
    let queue: keys::DeleteQueueRecord =
        keys::read(&stage.map, &keys::delete_queue_key()).unwrap().unwrap_or_default();
    assert_eq!(queue.entries, stage.deletes().len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_namespace_does_what_the_model_says(steps in proptest::collection::vec(steps(), 1..120), bits in 0..3u32) {
        let (mut stage, mut model, mut last) = (Stage::new(bits), Model::new(), None);
        for step in steps {
            run_step(&mut stage, &mut model, step, &mut last);
        }
        compare(&stage, &model);
        // The session dies: what it held open goes, once it is fenced.
        let (session, fs) = (stage.session, stage.fs);
        stage.txn(|txn| end_session(txn, session)).unwrap();
        let mut from = Vec::new();
        while let Some(next) = stage.txn(|txn| collect_orphans(txn, |_| Some(fs), &from, 3)).unwrap() {
            from = next;
        }
        model.nodes.retain(|_, node| node.nlink > 0);
        prop_assert_eq!(stage.map.keys().filter(|key| key[0] == b'r').count(), 0);
        compare(&stage, &model);
    }
}
