//! Paths of inodes, for people: names lead from directories to inodes only, so all of them are looked at.

use std::{collections::HashMap, ops::ControlFlow};

use base::{FsId, InodeNo};
use wire::{lock::LockReport, mgr::FileKind};

use crate::{
    keys::{EntryRecord, Key, ReadError, last_u64},
    last_names,
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
    Ok(Names::of(from, fs, inos)?.paths(&|_| None))
}

/// The same, and of those that have no name any more their last path, as far as it is remembered, with `/` before it.
pub fn last_paths(
    from: &dyn Read,
    fs: FsId,
    inos: impl Iterator<Item = InodeNo>,
) -> Result<HashMap<InodeNo, Vec<u8>>, ReadError> {
    Ok(Names::of(from, fs, inos)?.paths(&|ino| last_names::of(fs, ino)))
}

/// The names of all directories, and of the inodes in question.
struct Names {
    names: HashMap<InodeNo, (InodeNo, Vec<u8>)>,
    wanted: Vec<InodeNo>,
}

impl Names {
    fn of(from: &dyn Read, fs: FsId, inos: impl Iterator<Item = InodeNo>) -> Result<Names, ReadError> {
        let mut names: HashMap<InodeNo, (InodeNo, Vec<u8>)> =
            inos.map(|ino| (ino, Default::default())).collect();
        let wanted: Vec<InodeNo> = names.keys().copied().collect();
        if wanted.is_empty() {
            return Ok(Names { names, wanted });
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
        Ok(Names { names, wanted })
    }

    /// `former`: directory and name of what has no name any more.
    fn paths(self, former: &dyn Fn(InodeNo) -> Option<(InodeNo, Vec<u8>)>) -> HashMap<InodeNo, Vec<u8>> {
        let named = |ino: &InodeNo| self.names.get(ino).filter(|(_, name)| !name.is_empty()).cloned();
        let path = |ino: &InodeNo| {
            let (mut parts, mut gone, mut at) = (Vec::new(), false, *ino);
            while at != InodeNo::ROOT
                && parts.len() < DEPTH_MAX
                && let Some((directory, part)) = named(&at).or_else(|| {
                    let last = former(at);
                    gone |= last.is_some();
                    last
                })
            {
                parts.push(part);
                at = directory;
            }
            if gone {
                parts.push(Vec::new());
            }
            parts.reverse();
            (*ino, parts.join(&b'/'))
        };
        self.wanted.iter().map(path).collect()
    }
}
