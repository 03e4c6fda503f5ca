//! Entries of directories: (directory, hash of the name, discriminator) to (name, inode).
//!
//! The cookie of an entry is its key, so it never changes while the entry exists, and a listing goes on
//! after any cookie, whether or not that entry is still there.

use std::ops::ControlFlow;

use base::{FsId, InodeNo};
use libc::{EINVAL, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR};
use wire::mgr::{DirEntry, FileKind, NAME_LEN_MAX};

use super::{Editor, FsContext, Op, errno, hash::COOKIE_MIN, inode};
use crate::{
    keys::{self, EntryRecord, Inode, entry_key, last_u64},
    store::{Read, open_record},
};

/// Most entries of one listing.
pub const LIST_MAX: u32 = 4096;

/// Checks a name. "." and ".." are names here; who must not see them refuses them.
pub fn check_name(name: &[u8]) -> Op<()> {
    match name {
        [] => errno(ENOENT),
        _ if name.len() > NAME_LEN_MAX => errno(ENAMETOOLONG),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => errno(EINVAL),
        _ => Ok(()),
    }
}

/// Whether it is "." or "..".
pub fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// The directory `ino`; ENOTDIR if it is something else.
pub fn get_dir(from: &dyn Read, fs: &FsContext, ino: InodeNo) -> Op<Inode> {
    let dir = inode::get(from, fs.fs, ino)?;
    if dir.kind == FileKind::Directory { Ok(dir) } else { errno(ENOTDIR) }
}

/// An entry by name, with its cookie.
pub fn find(from: &dyn Read, fs: &FsContext, dir: InodeNo, name: &[u8]) -> Op<Option<(u64, EntryRecord)>> {
    check_name(name)?;
    let first = fs.hash.first_cookie(name);
    let mut found = Ok(None);
    let (start, end) = (entry_key(fs.fs, dir, first), entry_key(fs.fs, dir, first + COOKIE_MIN));
    from.scan(&start, &end, &mut |key, value| {
        match open_record::<EntryRecord>(key, value) {
            Ok(entry) if entry.name != name => return ControlFlow::Continue(()),
            Ok(entry) => found = Ok(Some((last_u64(key), entry))),
            Err(error) => found = Err(error),
        }
        ControlFlow::Break(())
    })?;
    Ok(found?)
}

/// Whether there is any entry.
pub fn is_empty(from: &dyn Read, fs: FsId, dir: InodeNo) -> Op<bool> {
    let mut empty = true;
    let (start, end) = (entry_key(fs, dir, 0), entry_key(fs, dir, u64::MAX));
    from.scan(&start, &end, &mut |_, _| {
        empty = false;
        ControlFlow::Break(())
    })?;
    Ok(empty)
}

/// Entries after `cookie`, with attributes if `plus`; whether the listing ends with them.
pub fn list(
    from: &dyn Read,
    fs: &FsContext,
    dir: InodeNo,
    cookie: u64,
    limit: u32,
    plus: bool,
) -> Op<(Vec<DirEntry>, bool)> {
    let limit = limit.clamp(1, LIST_MAX) as usize;
    let mut entries = Vec::new();
    let (mut end, mut bad) = (true, None);
    let (start, stop) = (entry_key(fs.fs, dir, cookie.saturating_add(1)), entry_key(fs.fs, dir, u64::MAX));
    from.scan(&start, &stop, &mut |key, value| {
        if entries.len() == limit {
            end = false;
            return ControlFlow::Break(());
        }
        match open_record::<EntryRecord>(key, value) {
            Ok(EntryRecord { name, ino, kind }) => {
                entries.push(DirEntry { name, ino, kind, cookie: last_u64(key), attr: None });
                ControlFlow::Continue(())
            }
            Err(error) => {
                bad = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = bad {
        return Err(error.into());
    }
    if plus {
        for entry in &mut entries {
            let inode = inode::get(from, fs.fs, entry.ino)?;
            entry.attr = Some(inode::attr(entry.ino, &inode));
        }
    }
    Ok((entries, end))
}

impl Editor<'_, '_> {
    /// Adds an entry that does not exist. The directory's record is the caller's business.
    pub(super) fn insert_entry(&mut self, dir: InodeNo, name: &[u8], ino: InodeNo, kind: FileKind) -> Op<()> {
        let first = self.fs.hash.first_cookie(name);
        let mut free = first;
        let (start, end) =
            (entry_key(self.fs.fs, dir, first), entry_key(self.fs.fs, dir, first + COOKIE_MIN));
        self.txn.scan(&start, &end, &mut |key, _| {
            if last_u64(key) != free {
                return ControlFlow::Break(());
            }
            free += 1;
            ControlFlow::Continue(())
        })?;
        if free >= first + COOKIE_MIN {
            return errno(ENOSPC); // 128 names with one 56-bit hash under a secret key
        }
        debug_assert!(self.is_entry(dir, free) != Some(true), "the cookie of an entry is its own");
        let entry = EntryRecord { name: name.to_vec(), ino, kind };
        keys::write(self.txn, entry_key(self.fs.fs, dir, free), &entry);
        Ok(())
    }

    /// Whether there is an entry; `None` where that cannot be read.
    fn is_entry(&self, dir: InodeNo, cookie: u64) -> Option<bool> {
        self.txn.get(&entry_key(self.fs.fs, dir, cookie)).ok().map(|entry| entry.is_some())
    }

    /// Points an existing entry elsewhere; its cookie stays.
    pub(super) fn replace_entry(&mut self, dir: InodeNo, cookie: u64, entry: &EntryRecord) {
        debug_assert!(
            keys::read::<EntryRecord>(self.txn, &entry_key(self.fs.fs, dir, cookie))
                .ok()
                .is_none_or(|old| old.is_some_and(|old| old.name == entry.name)),
            "an entry keeps its name and its cookie"
        );
        keys::write(self.txn, entry_key(self.fs.fs, dir, cookie), entry);
    }

    /// Removes an entry.
    pub(super) fn remove_entry(&mut self, dir: InodeNo, cookie: u64) {
        debug_assert!(self.is_entry(dir, cookie) != Some(false), "an entry that was found is there");
        self.txn.delete(entry_key(self.fs.fs, dir, cookie));
    }
}
