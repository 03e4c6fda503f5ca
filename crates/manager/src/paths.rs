//! Paths of inodes, for people: names lead from directories to inodes only, so all of them are looked at.

use std::{collections::HashMap, ops::ControlFlow};

use base::{FsId, InodeNo};
use wire::{lock::LockReport, mgr::FileKind};

use crate::{
    keys::{EntryRecord, Key, ReadError, last_u64},
    store::{Read, open_record, prefix_end},
};

/// Deepest directory that a path is made for.
const DEPTH_MAX: usize = 256;

/// Fills in a path of the file of each lock.
pub fn name_locks(
    from: &dyn Read,
    fs: FsId,
    mut locks: Vec<LockReport>,
) -> Result<Vec<LockReport>, ReadError> {
    let paths = paths(from, fs, locks.iter().map(|lock| lock.ino))?;
    locks.iter_mut().for_each(|lock| lock.path = paths.get(&lock.ino).cloned().unwrap_or_default());
    Ok(locks)
}

/// A path of each inode below the file system's root; empty if it has no name any more.
pub fn paths(
    from: &dyn Read,
    fs: FsId,
    inos: impl Iterator<Item = InodeNo>,
) -> Result<HashMap<InodeNo, Vec<u8>>, ReadError> {
    let mut names: HashMap<InodeNo, (InodeNo, Vec<u8>)> = inos.map(|ino| (ino, Default::default())).collect();
    let wanted: Vec<InodeNo> = names.keys().copied().collect();
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    // Directories are few beside files: all of them, and the files in question.
    let all = Key::new(b'd').u32(fs.0).done();
    from.scan(&all, &prefix_end(&all), &mut |key, value| {
        if let Ok(entry) = open_record::<EntryRecord>(key, value) {
            let directory = InodeNo(key.get(5..13).map(last_u64).unwrap_or_default());
            if entry.kind == FileKind::Directory || names.contains_key(&entry.ino) {
                names.insert(entry.ino, (directory, entry.name));
            }
        }
        ControlFlow::Continue(())
    })?;
    let path = |ino| {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while let Some((directory, part)) = names.get(&at).filter(|(_, part)| !part.is_empty())
            && parts.len() < DEPTH_MAX
        {
            parts.push(part);
            at = *directory;
        }
        parts.reverse();
        (ino, parts.join(&b'/'))
    };
    Ok(wanted.into_iter().map(path).collect())
}
