//! Single stories of the namespace, and the stage that the random ones (`model`) play on too.

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockIndex, FsId, Grant, InodeNo, PoolId, SessionId, Version};
use libc::*;
use wire::{
    credentials::Who,
    mgr::{Attr, Change, Extent, FileKind, MgrError, MgrReply, MgrRequest, OpId, Timestamp},
};

use super::*;
use crate::{
    keys::{self, SessionRecord},
    store::{Txn, memory},
};

pub const FS: FsId = FsId(3);
pub const BLOCK: u64 = 1 << 20;
pub const NOW: Timestamp = Timestamp { secs: 1000, nanos: 7 };

/// The namespace on a map in memory, with one session.
pub struct Stage {
    pub map: BTreeMap<Vec<u8>, Vec<u8>>,
    pub fs: FsContext,
    pub session: SessionId,
    pub seq: u64,
}

impl Stage {
    /// With a hash of so many bits.
    pub fn new(hash_bits: u32) -> Stage {
        let hash = DirHash::narrow([1, 2], hash_bits);
        let fs = FsContext { fs: FS, hash, full: false };
        let mut stage = Stage { map: BTreeMap::new(), fs, session: SessionId(0), seq: 0 };
        stage.txn(|txn| {
            let (root, counts) = new_root(PoolId(1), BLOCK as u32, NOW);
            keys::write(txn, keys::inode_key(FS, InodeNo::ROOT), &root);
            keys::write(txn, keys::fs_key(FS), &counts);
        });
        stage.begin_session(5);
        stage
    }

    pub fn begin_session(&mut self, id: u64) {
        self.session = SessionId(id);
        let record = SessionRecord { fs: FS, grant: Grant(id), ..SessionRecord::default() };
        self.txn(|txn| keys::write(txn, keys::session_key(SessionId(id)), &record));
    }

    pub fn txn<T>(&mut self, work: impl FnOnce(&mut Txn<'_>) -> T) -> T {
        let mut txn = Txn::new(&self.map);
        let result = work(&mut txn);
        txn.keep();
        let changes = txn.into_changes();
        memory::apply(&mut self.map, changes);
        result
    }

    pub fn repeat(&mut self, op: OpId, change: Change) -> Result<MgrReply, MgrError> {
        let (fs, session) = (self.fs, self.session);
        self.txn(|txn| mutate(txn, |id| (id == FS).then_some(fs), session, op, change, &[], &Who::Root))
            .unwrap()
    }

    pub fn change(&mut self, change: Change) -> Result<MgrReply, MgrError> {
        self.seq += 1;
        self.repeat(OpId { slot: 0, seq: self.seq }, change)
    }

    pub fn ask(&self, request: MgrRequest) -> Result<MgrReply, i32> {
        query(&self.map, &self.fs, &request).map_err(|fault| match fault {
            Fault::Errno(errno) => errno,
            other => panic!("{other}"),
        })
    }

    pub fn attr(&self, ino: InodeNo) -> Option<Attr> {
        match self.ask(MgrRequest::GetAttr { ino }) {
            Ok(MgrReply::Attr(attr)) => Some(*attr),
            Err(ENOENT) => None,
            other => panic!("{other:?}"),
        }
    }

    pub fn list(&self, ino: InodeNo, step: u32) -> Vec<(Vec<u8>, InodeNo)> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let request = MgrRequest::ReadDir { ino, cookie, limit: step, plus: true };
            let Ok(MgrReply::Entries { entries, end, .. }) = self.ask(request) else { panic!() };
            for entry in entries {
                assert!(entry.cookie > cookie);
                cookie = entry.cookie;
                assert_eq!(entry.attr.unwrap().ino, entry.ino);
                names.push((entry.name, entry.ino));
            }
            if end {
                return names;
            }
        }
    }

    pub fn extents(&self, ino: InodeNo) -> BTreeSet<u64> {
        let (mut blocks, mut from) = (BTreeSet::new(), 0);
        loop {
            let request = MgrRequest::Extents { ino, from: BlockIndex(from), limit: 2 };
            let Ok(MgrReply::Extents { extents, more }) = self.ask(request) else { panic!() };
            for extent in extents {
                assert!(extent.count > 0 && extent.first.0 + extent.count > from);
                assert!(!blocks.contains(&extent.first.0.wrapping_sub(1)), "runs that touch are merged");
                blocks.extend(extent.first.0..extent.first.0 + extent.count);
                from = extent.first.0 + extent.count;
            }
            if !more {
                return blocks;
            }
        }
    }

    pub fn deletes(&self) -> Vec<keys::DeleteRecord> {
        let mut records = Vec::new();
        crate::store::Read::scan(&self.map, b"q", b"r", &mut |key, value| {
            records.push(crate::store::open_record(key, value).unwrap());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        records
    }
}

pub fn create(parent: InodeNo, name: &str, kind: FileKind) -> Change {
    Change::Create {
        parent,
        name: name.into(),
        kind,
        mode: 0o644,
        uid: 10,
        gid: 20,
        rdev: 0,
        target: if kind == FileKind::Symlink { b"t".to_vec() } else { vec![] },
        now: NOW,
        existing_ok: false,
    }
}

pub fn made(reply: Result<MgrReply, MgrError>) -> InodeNo {
    match reply {
        Ok(MgrReply::Created { attr, new: true }) => attr.ino,
        other => panic!("{other:?}"),
    }
}

pub fn unlink(parent: InodeNo, name: &str, directory: bool, open: bool) -> Change {
    let highest = Version::ZERO;
    Change::Unlink { parent, name: name.into(), directory, open, highest, expect: None, now: NOW }
}

pub fn rename(from: (InodeNo, &str), to: (InodeNo, &str)) -> Change {
    Change::Rename {
        parent: from.0,
        name: from.1.into(),
        new_parent: to.0,
        new_name: to.1.into(),
        no_replace: false,
        exchange: false,
        open: false,
        highest: Version::ZERO,
        expect: None,
        now: NOW,
    }
}

pub fn write_blocks(ino: InodeNo, size: u64, first: u64, count: u64) -> Change {
    let allocated = vec![Extent { first: BlockIndex(first), count }];
    written(ino, size, allocated, None)
}

fn write_inline(ino: InodeNo, size: u64, content: &[u8]) -> Change {
    let inline = Some(content.to_vec());
    written(ino, size, vec![], inline)
}

fn written(ino: InodeNo, size: u64, allocated: Vec<Extent>, inline: Option<Vec<u8>>) -> Change {
    let (mtime, ctime) = (NOW, NOW);
    let (mode, uid, gid, atime, shared) = Default::default();
    Change::CommitWrite { ino, size, allocated, inline, mtime, ctime, mode, uid, gid, atime, shared }
}

pub fn truncate(ino: InodeNo, size: u64) -> Change {
    Change::SetAttr {
        ino,
        mode: None,
        uid: None,
        gid: None,
        size: Some(size),
        atime: None,
        mtime: None,
        ctime: NOW,
        highest: Version { grant: Grant(5), seq: 9 },
    }
}

#[test]
fn small_files_live_in_the_inode_until_they_get_blocks() {
    let mut stage = Stage::new(56);
    let ino = made(stage.change(create(InodeNo::ROOT, "f", FileKind::File)));
    assert!(stage.attr(ino).unwrap().inline);
    stage.change(write_inline(ino, 5, b"hello")).unwrap();
    assert_eq!(stage.ask(MgrRequest::ReadInline { ino }), Ok(MgrReply::Bytes(b"hello".to_vec())));
    assert_eq!(stage.attr(ino).unwrap().stored, 5);
    // Longer than its content: zeros. Shorter and longer again: zeros, not the old bytes.
    stage.change(truncate(ino, 3)).unwrap();
    stage.change(truncate(ino, 100)).unwrap();
    assert_eq!(stage.ask(MgrRequest::ReadInline { ino }), Ok(MgrReply::Bytes(b"hel".to_vec())));
    assert_eq!(stage.attr(ino).unwrap().size, 100);
    assert_eq!(stage.change(write_inline(ino, 2, b"abc")), Err(MgrError::Errno(EINVAL)));
    stage.change(write_blocks(ino, 2 * BLOCK, 0, 2)).unwrap();
    assert!(!stage.attr(ino).unwrap().inline);
    assert_eq!(stage.ask(MgrRequest::ReadInline { ino }), Ok(MgrReply::Bytes(vec![])));
    assert_eq!(stage.change(write_inline(ino, 3, b"abc")), Err(MgrError::Errno(EINVAL)));
    stage.change(truncate(ino, 0)).unwrap();
    stage.change(write_inline(ino, 3, b"abc")).unwrap();
    assert!(stage.attr(ino).unwrap().inline);
}

#[test]
fn deletes_name_the_highest_version_and_only_what_has_blocks_is_deleted() {
    let mut stage = Stage::new(56);
    let ino = made(stage.change(create(InodeNo::ROOT, "f", FileKind::File)));
    stage.change(write_inline(ino, 5, b"hello")).unwrap();
    stage.change(unlink(InodeNo::ROOT, "f", false, false)).unwrap();
    assert!(stage.deletes().is_empty(), "an inline file costs no delete");

    let ino = made(stage.change(create(InodeNo::ROOT, "g", FileKind::File)));
    stage.change(write_blocks(ino, 9 * BLOCK, 0, 9)).unwrap();
    stage.change(truncate(ino, 4 * BLOCK + 1)).unwrap();
    stage.change(unlink(InodeNo::ROOT, "g", false, true)).unwrap();
    assert_eq!(stage.deletes().len(), 1, "it is still open");
    stage.change(Change::Forget { ino, highest: Version::ZERO }).unwrap();
    let deletes: Vec<_> = stage.deletes().into_iter().map(|d| (d.strips, d.blocks)).collect();
    assert_eq!((deletes[0].0.first, deletes[0].0.last), (BlockIndex(5), BlockIndex(u64::MAX - 1)));
    assert_eq!(deletes[0].0.highest, Version { grant: Grant(5), seq: 9 });
    assert_eq!((deletes[1].0.first, deletes[1].0.highest), (BlockIndex(0), Version::MAX));
    assert_eq!(deletes[1].1, 5);
}

#[test]
fn a_change_meant_for_another_inode_is_refused() {
    let mut stage = Stage::new(57);
    let ino = made(stage.change(create(InodeNo::ROOT, "f", FileKind::File)));
    let expecting = |mut change: Change, inode: InodeNo| {
        if let Change::Unlink { expect, .. } = &mut change {
            *expect = Some(inode);
        }
        change
    };
    let gone = unlink(InodeNo::ROOT, "f", false, false);
    let stale = Err(MgrError::Errno(libc::ESTALE));
    assert_eq!(stage.change(expecting(gone.clone(), InodeNo(ino.0 + 1))), stale);
    assert_eq!(stage.change(expecting(gone.clone(), InodeNo(0))), stale);
    stage.change(expecting(gone.clone(), ino)).unwrap();
    assert_eq!(stage.change(expecting(gone.clone(), ino)), stale, "the name leads nowhere now");
    assert_eq!(stage.change(expecting(gone, InodeNo(0))), Err(MgrError::Errno(libc::ENOENT)));
    let other = made(stage.change(create(InodeNo::ROOT, "g", FileKind::File)));
    let mut change = rename((InodeNo::ROOT, "g"), (InodeNo::ROOT, "h"));
    let set = |change: &mut Change, pair| {
        if let Change::Rename { expect, .. } = change {
            *expect = Some(pair);
        }
    };
    set(&mut change, (other, other));
    assert_eq!(stage.change(change.clone()), stale);
    set(&mut change, (other, InodeNo(0)));
    stage.change(change).unwrap();
}

#[test]
fn modes_and_groups_follow_the_rules() {
    let mut stage = Stage::new(56);
    let dir = made(stage.change(create(InodeNo::ROOT, "d", FileKind::Directory)));
    let set_mode = |ino, mode: Option<u16>, uid| Change::SetAttr {
        ino,
        mode,
        uid,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        ctime: NOW,
        highest: Version::ZERO,
    };
    let mut change = set_mode(dir, Some(0o2775), None);
    if let Change::SetAttr { gid, .. } = &mut change {
        *gid = Some(77);
    }
    stage.change(change).unwrap();
    let file = made(stage.change(create(dir, "f", FileKind::File)));
    let sub = made(stage.change(create(dir, "s", FileKind::Directory)));
    assert_eq!((stage.attr(file).unwrap().gid, stage.attr(file).unwrap().mode), (77, 0o644));
    assert_eq!((stage.attr(sub).unwrap().gid, stage.attr(sub).unwrap().mode), (77, 0o2644));
    stage.change(set_mode(file, Some(0o6755), None)).unwrap();
    stage.change(set_mode(file, None, Some(5))).unwrap();
    assert_eq!(stage.attr(file).unwrap().mode, 0o755, "chown takes setuid and setgid");
    stage.change(set_mode(file, Some(0o2644), None)).unwrap();
    stage.change(set_mode(file, None, Some(6))).unwrap();
    assert_eq!(stage.attr(file).unwrap().mode, 0o2644, "without group execute it is a lock mark");
    stage.change(set_mode(sub, None, Some(6))).unwrap();
    assert_eq!(stage.attr(sub).unwrap().mode, 0o2644, "directories keep it");
}

#[test]
fn names_and_attributes_have_limits() {
    let mut stage = Stage::new(56);
    let root = InodeNo::ROOT;
    let long = "n".repeat(256);
    let errno = |result: Result<MgrReply, MgrError>| match result {
        Err(MgrError::Errno(errno)) => errno,
        other => panic!("{other:?}"),
    };
    assert_eq!(errno(stage.change(create(root, &long, FileKind::File))), ENAMETOOLONG);
    made(stage.change(create(root, &long[..255], FileKind::File)));
    assert_eq!(errno(stage.change(create(root, "a/b", FileKind::File))), EINVAL);
    assert_eq!(errno(stage.change(create(root, "", FileKind::File))), ENOENT);
    assert_eq!(errno(stage.change(create(root, "..", FileKind::File))), EEXIST);
    assert_eq!(errno(stage.change(unlink(root, ".", true, false))), EINVAL);
    assert_eq!(errno(stage.change(unlink(root, "..", true, false))), ENOTEMPTY);
    let ino = made(stage.change(create(root, "f", FileKind::File)));
    assert_eq!(errno(stage.change(truncate(ino, u64::MAX))), EFBIG);
    let mut set = |name: &str, len: usize, create, replace| {
        let (name, value) = (name.as_bytes().to_vec(), vec![1; len]);
        stage.change(Change::SetXattr { ino, name, value, create, replace, now: NOW })
    };
    assert_eq!(errno(set("user.a", 65537, false, false)), E2BIG);
    assert_eq!(errno(set(&format!("user.{long}"), 1, false, false)), ERANGE);
    assert_eq!(errno(set("system.posix_acl_access", 1, false, false)), EOPNOTSUPP);
    assert_eq!(errno(set("user.", 1, false, false)), EOPNOTSUPP);
    assert_eq!(errno(set("user.a", 1, false, true)), ENODATA);
    set("user.a", 0, true, false).unwrap();
    assert_eq!(errno(set("user.a", 1, true, false)), EEXIST);
    let full = (0..20).find_map(|n| set(&format!("user.big{n}"), 65536, true, false).err());
    assert_eq!(full, Some(MgrError::Errno(ENOSPC)));
    let names = (0..).find_map(|n| set(&format!("security.{n:0>200}"), 0, true, false).err());
    assert_eq!(names, Some(MgrError::Errno(ENOSPC)));
}

#[test]
fn a_damaged_record_hurts_only_who_needs_it() {
    let mut stage = Stage::new(56);
    let bad = made(stage.change(create(InodeNo::ROOT, "bad", FileKind::File)));
    let good = made(stage.change(create(InodeNo::ROOT, "good", FileKind::File)));
    stage.map.get_mut(&keys::inode_key(FS, bad)).unwrap()[3] ^= 1;
    assert!(matches!(
        query(&stage.map, &stage.fs, &MgrRequest::GetAttr { ino: bad }),
        Err(Fault::Record(record)) if record.to_string().contains("inode record i:")
    ));
    assert!(stage.attr(good).is_some());
    assert_eq!(stage.change(unlink(InodeNo::ROOT, "bad", false, false)), Err(MgrError::Errno(EIO)));
    stage.change(unlink(InodeNo::ROOT, "good", false, false)).unwrap();
}

#[test]
fn a_dead_session_changes_nothing() {
    let mut stage = Stage::new(56);
    stage.session = SessionId(99);
    let change = create(InodeNo::ROOT, "f", FileKind::File);
    assert_eq!(stage.change(change), Err(MgrError::NoSession));
    assert!(stage.list(InodeNo::ROOT, 10).is_empty());
}

/// A listing that goes on while others come and go shows every entry that stays, once.
fn listing_under_change(entries: u32) {
    let mut stage = Stage::new(56);
    let dir = made(stage.change(create(InodeNo::ROOT, "d", FileKind::Directory)));
    for n in 0..entries {
        made(stage.change(create(dir, &format!("stays{n}"), FileKind::File)));
        if n % 4 == 0 {
            made(stage.change(create(dir, &format!("goes{n}"), FileKind::File)));
        }
    }
    let (mut seen, mut cookie, mut round) = (BTreeSet::new(), 0, 0u32);
    loop {
        let request = MgrRequest::ReadDir { ino: dir, cookie, limit: 1000, plus: false };
        let Ok(MgrReply::Entries { entries: listed, end, .. }) = stage.ask(request) else { panic!() };
        for entry in &listed {
            cookie = entry.cookie;
            if entry.name.starts_with(b"stays") {
                assert!(seen.insert(entry.name.clone()), "listed twice");
            }
        }
        // The entry that the listing stands on goes too.
        if let Some(at) = listed.last().filter(|entry| entry.name.starts_with(b"goes")) {
            let name = String::from_utf8(at.name.clone()).unwrap();
            stage.change(unlink(dir, &name, false, false)).unwrap();
        }
        made(stage.change(create(dir, &format!("new{round}"), FileKind::File)));
        round += 1;
        if end {
            break;
        }
    }
    assert_eq!(seen.len(), entries as usize);
}

#[test]
fn listing_of_20_000_entries_under_change() {
    listing_under_change(20_000);
}

#[test]
#[ignore = "takes long: run with --ignored"]
fn listing_of_1_000_000_entries_under_change() {
    listing_under_change(1_000_000);
}

fn made_as(ino: u64, parent: InodeNo, name: &[u8], kind: FileKind) -> Change {
    let (ino, name, target, now) = (InodeNo(ino), name.to_vec(), Vec::new(), NOW);
    Change::CreateAs { ino, parent, name, kind, mode: 0o755, uid: 1, gid: 2, rdev: 0, target, now }
}

/// A session uses each number that it was granted once, whatever happens in between; and nobody else does.
#[test]
fn numbers_that_were_granted_are_used_once() {
    let mut stage = Stage::new(56);
    let refused = |outcome| assert_eq!(outcome, Err(MgrError::Errno(EINVAL)));
    refused(stage.change(made_as(2, InodeNo::ROOT, b"none granted", FileKind::File)));
    for count in [0, wire::mgr::NUMBERS_MAX + 1] {
        refused(stage.change(Change::Numbers { count }));
    }
    let granted = stage.change(Change::Numbers { count: 4 });
    assert_eq!(granted, Ok(MgrReply::Numbers { first: InodeNo(2), count: 4 }));
    let made = stage.change(made_as(3, InodeNo::ROOT, b"d", FileKind::Directory)).unwrap();
    let MgrReply::Created { attr, new: true } = &made else { panic!("{made:?}") };
    assert_eq!((attr.ino, stage.attr(InodeNo(3)).as_ref()), (InodeNo(3), Some(&**attr)));
    // Said again, under a number of its own too, it is what was made.
    let again = OpId { slot: 0, seq: stage.seq };
    assert_eq!(stage.repeat(again, made_as(3, InodeNo::ROOT, b"d", FileKind::Directory)), Ok(made.clone()));
    assert_eq!(stage.change(made_as(3, InodeNo::ROOT, b"d", FileKind::Directory)), Ok(made));
    let other = stage.change(made_as(4, InodeNo::ROOT, b"d", FileKind::File));
    assert_eq!(other, Err(MgrError::Errno(EEXIST)));
    // Neither it nor what is below, also when it is gone.
    refused(stage.change(made_as(2, InodeNo(3), b"f", FileKind::File)));
    refused(stage.change(made_as(3, InodeNo(3), b"f", FileKind::File)));
    refused(stage.change(made_as(6, InodeNo(3), b"f", FileKind::File)));
    assert!(stage.change(made_as(4, InodeNo(3), b"f", FileKind::File)).is_ok());
    let unlink = Change::Unlink {
        parent: InodeNo(3),
        name: b"f".to_vec(),
        directory: false,
        open: false,
        highest: Version::default(),
        expect: None,
        now: NOW,
    };
    stage.change(unlink).unwrap();
    refused(stage.change(made_as(4, InodeNo(3), b"f", FileKind::File)));
    // Numbers that the manager gives by itself are others.
    let (parent, name, kind, target) = (InodeNo::ROOT, b"own".to_vec(), FileKind::File, Vec::new());
    let (mode, uid, gid, rdev, now, existing_ok) = (0o644, 0, 0, 0, NOW, false);
    let own = Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now, existing_ok };
    let Ok(MgrReply::Created { attr, .. }) = stage.change(own) else { panic!() };
    assert_eq!(attr.ino, InodeNo(6));
    // Another session has none of them, and the next grant ends the first.
    let (first, seq) = (stage.session, stage.seq);
    stage.begin_session(6);
    refused(stage.change(made_as(5, InodeNo(3), b"f", FileKind::File)));
    (stage.session, stage.seq) = (first, seq);
    let granted = stage.change(Change::Numbers { count: 1 });
    assert_eq!(granted, Ok(MgrReply::Numbers { first: InodeNo(7), count: 1 }));
    refused(stage.change(made_as(5, InodeNo(3), b"f", FileKind::File)));
    assert!(stage.change(made_as(7, InodeNo(3), b"f", FileKind::File)).is_ok());
    stage.txn(|txn| end_session(txn, first)).unwrap();
    assert!(!stage.map.contains_key(&keys::numbers_key(first)));
}

/// What was said of content before a name was moved does not take its change time back, when it comes after that.
#[test]
fn the_time_of_a_change_does_not_go_back() {
    let mut stage = Stage::new(57);
    let made = stage.change(create(InodeNo::ROOT, "a", FileKind::File)).unwrap();
    let MgrReply::Created { attr, .. } = made else { panic!("{made:?}") };
    let later = Timestamp { secs: NOW.secs + 1, ..NOW };
    let mut moved = rename((InodeNo::ROOT, "a"), (InodeNo::ROOT, "b"));
    if let Change::Rename { now, .. } = &mut moved {
        *now = later;
    }
    stage.change(moved).unwrap();
    stage.change(written(attr.ino, 3, Vec::new(), Some(b"abc".to_vec()))).unwrap();
    let attr = stage.attr(attr.ino).unwrap();
    assert_eq!((attr.size, attr.mtime, attr.ctime), (3, NOW, later));
}
