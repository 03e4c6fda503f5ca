//! Files made without a name: what becomes of them with one, and without.

use base::{InodeNo, Version};
use libc::{EEXIST, ENOENT, EPERM};
use wire::mgr::{Attr, Change, FileKind, MgrError, MgrReply, OpId};

use super::{
    collect_orphans, drop_orphan, end_session,
    tests::{BLOCK, FS, NOW, Stage, create, made, unlink, write_blocks},
};

const ROOT: InodeNo = InodeNo::ROOT;

pub fn unnamed(parent: InodeNo) -> Change {
    Change::CreateUnnamed { parent, mode: 0o640, uid: 10, gid: 20, now: NOW }
}

pub fn linked(ino: InodeNo, parent: InodeNo, name: &str, unnamed: bool) -> Change {
    let (name, now) = (name.into(), NOW);
    if unnamed {
        Change::LinkUnnamed { ino, parent, name, now }
    } else {
        Change::Link { ino, parent, name, now }
    }
}

fn attr_of(reply: Result<MgrReply, MgrError>) -> Attr {
    match reply {
        Ok(MgrReply::Attr(attr) | MgrReply::Created { attr, new: true }) => *attr,
        other => panic!("{other:?}"),
    }
}

fn refused(reply: Result<MgrReply, MgrError>, errno: i32) {
    assert_eq!(reply, Err(MgrError::Errno(errno)));
}

fn orphans(stage: &Stage) -> usize {
    stage.map.keys().filter(|key| key[0] == b'o').count()
}

/// Each change is done once, however often it comes.
fn twice(stage: &mut Stage, change: Change) -> Attr {
    let first = stage.change(change.clone());
    let op = OpId { slot: 0, seq: stage.seq };
    assert_eq!(stage.repeat(op, change), first);
    attr_of(first)
}

#[test]
fn a_file_without_a_name_is_its_sessions_until_it_has_one() {
    let mut stage = Stage::new(56);
    let before = stage.attr(ROOT).unwrap();
    let attr = twice(&mut stage, unnamed(ROOT));
    let ino = attr.ino;
    assert_eq!((attr.kind, attr.nlink, attr.size, attr.inline), (FileKind::File, 0, 0, true));
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.pool), (0o640, 10, 20, before.pool));
    assert_eq!((orphans(&stage), stage.attr(ROOT), stage.list(ROOT, 9)), (1, Some(before), vec![]));
    stage.change(write_blocks(ino, 2 * BLOCK, 0, 2)).unwrap();
    // Not by what any file gets a name by, not by another session, not in place of a name, nor of what was removed.
    refused(stage.change(linked(ino, ROOT, "f", false)), ENOENT);
    let (own, seq) = (stage.session, stage.seq);
    stage.begin_session(6);
    refused(stage.change(linked(ino, ROOT, "f", true)), ENOENT);
    (stage.session, stage.seq) = (own, seq);
    let dir = made(stage.change(create(ROOT, "d", FileKind::Directory)));
    refused(stage.change(linked(ino, ROOT, "d", true)), EEXIST);
    refused(stage.change(linked(dir, ROOT, "e", true)), EPERM);
    stage.change(unlink(ROOT, "d", true, true)).unwrap();
    refused(stage.change(linked(ino, dir, "f", true)), ENOENT);
    refused(stage.change(unnamed(dir)), ENOENT);
    stage.change(Change::Forget { ino: dir, highest: Version::ZERO }).unwrap();
    // With its first name it is a file as any.
    let attr = twice(&mut stage, linked(ino, ROOT, "f", true));
    assert_eq!((attr.nlink, attr.size, orphans(&stage)), (1, 2 * BLOCK, 0));
    assert_eq!(stage.list(ROOT, 9), [(b"f".to_vec(), ino)]);
    stage.change(Change::Forget { ino, highest: Version::ZERO }).unwrap();
    assert_eq!(attr_of(stage.change(linked(ino, ROOT, "g", true))).nlink, 2);
    stage.txn(|txn| end_session(txn, own)).unwrap();
    let fs = stage.fs;
    assert_eq!(stage.txn(|txn| collect_orphans(txn, |_| Some(fs), &[], 9)).unwrap(), None);
    assert_eq!((stage.attr(ino).map(|attr| attr.nlink), stage.deletes().len()), (Some(2), 0));
}

/// By whatever it ends: the session says so, gives its token up, or ends.
#[test]
fn without_one_it_goes_with_what_was_written_to_it() {
    for end in 0..3 {
        let mut stage = Stage::new(56);
        let ino = made(stage.change(unnamed(ROOT)));
        stage.change(write_blocks(ino, 2 * BLOCK, 0, 2)).unwrap();
        let (own, fs) = (stage.session, stage.fs);
        match end {
            0 => drop(stage.change(Change::Forget { ino, highest: Version::ZERO }).unwrap()),
            1 => stage.txn(|txn| drop_orphan(txn, |_| Some(fs), own, FS, ino)).unwrap(),
            _ => {
                stage.txn(|txn| end_session(txn, own)).unwrap();
                assert_eq!(stage.txn(|txn| collect_orphans(txn, |_| Some(fs), &[], 9)).unwrap(), None);
            }
        }
        assert_eq!((stage.attr(ino), orphans(&stage)), (None, 0), "{end}");
        let extents = stage.map.keys().filter(|key| key[0] == b'e').count();
        assert_eq!((extents, stage.deletes().len()), (0, 1), "{end}");
    }
}

#[test]
fn a_full_store_has_no_room_for_one_nor_for_its_name() {
    let mut stage = Stage::new(56);
    let ino = made(stage.change(unnamed(ROOT)));
    stage.fs.full = true;
    refused(stage.change(unnamed(ROOT)), libc::ENOSPC);
    refused(stage.change(linked(ino, ROOT, "f", true)), libc::ENOSPC);
    stage.fs.full = false;
    assert_eq!(attr_of(stage.change(linked(ino, ROOT, "f", true))).nlink, 1);
}
