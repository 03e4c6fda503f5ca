//! What a removed file system leaves in the store goes a few inodes at a time, and with it, through the delete
//! queue, its strips. Nothing but the store says how far it is.

use std::ops::ControlFlow;

use base::{FsId, Grant, InodeNo, SessionId, Version};
use wire::{credentials::Who, mgr::FileKind};

use super::{Actor, DirHash, Editor, FsContext, Op};
use crate::{
    keys::{self, Inode, Key, RemovedFsRecord, last_u64},
    store::{Read, Txn, open_record, prefix_end},
};

/// Removes about `limit` records of removed file systems; whether there may be more.
pub fn empty_removed(txn: &mut Txn<'_>, hash: DirHash, limit: usize) -> Op<bool> {
    let Some(fs) = next(txn)? else { return Ok(false) };
    let inodes = first(txn, &Key::new(b'i').u32(fs.0).done(), limit)?;
    if !inodes.is_empty() {
        let actor = Actor { session: SessionId(0), who: &Who::Root, grant: Grant(0), openers: &[] };
        let mut editor = Editor { txn, fs: FsContext { fs, hash, full: false }, actor };
        for key in inodes {
            let (ino, value) = (InodeNo(last_u64(&key)), editor.txn.get(&key)?.unwrap_or_default());
            match open_record::<Inode>(&key, &value) {
                Ok(inode) => {
                    // A session that ended uncleanly may have written blocks of any file.
                    let seq = u64::from(inode.kind == FileKind::File);
                    editor.remove_inode(ino, &inode, Version { grant: Grant(0), seq })?;
                }
                Err(error) => {
                    tracing::error!(%error, %ino, "a damaged inode of a removed file system goes; its strips stay");
                    editor.txn.delete(key);
                }
            }
        }
        return Ok(true);
    }
    // Entries, and what hung on damaged inodes.
    for letter in *b"dbxe" {
        let keys = first(txn, &Key::new(letter).u32(fs.0).done(), limit)?;
        if !keys.is_empty() {
            keys.into_iter().for_each(|key| txn.delete(key));
            return Ok(true);
        }
    }
    let of_fs = |key: &&Vec<u8>| key.get(9..13) == Some(&fs.0.to_be_bytes()[..]);
    let orphans = first(txn, b"o", usize::MAX)?;
    orphans.iter().filter(of_fs).for_each(|key| txn.delete(key.clone()));
    txn.delete(keys::fs_key(fs));
    txn.delete(keys::ending_key(fs));
    keys::write(txn, keys::removed_fs_key(fs), &RemovedFsRecord { emptied: true });
    Ok(true)
}

/// A removed file system of which something is left.
fn next(from: &dyn Read) -> Op<Option<FsId>> {
    let (mut found, mut bad) = (None, None);
    from.scan(b"z", &prefix_end(b"z"), &mut |key, value| match open_record::<RemovedFsRecord>(key, value) {
        Ok(record) if record.emptied => ControlFlow::Continue(()),
        Ok(_) => {
            found = key.last_chunk::<4>().copied().map(|id| FsId(u32::from_be_bytes(id)));
            ControlFlow::Break(())
        }
        Err(error) => {
            bad = Some(error);
            ControlFlow::Continue(())
        }
    })?;
    match (found, bad) {
        (None, Some(error)) => Err(error.into()),
        (found, _) => Ok(found),
    }
}

/// The first `limit` keys that begin so.
fn first(from: &dyn Read, prefix: &[u8], limit: usize) -> Op<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    from.scan(prefix, &prefix_end(prefix), &mut |key, _| {
        keys.push(key.to_vec());
        if keys.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(keys)
}
