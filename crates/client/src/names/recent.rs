//! Directories that were listed just now, whole. Who walks a tree asks for a listing two or three times: `rm -r` whether there is anything in it,
//! then for all of it, and everybody for what follows the last entry. Only the first is put to the manager.
//!
//! Invariant: a listing is given out only while the names of its directory are kept and nothing was forgotten or changed there since
//! before it was asked for ([`super::directory`]); attributes only as they are known now.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use base::InodeNo;
use parking_lot::Mutex;
use wire::mgr::DirEntry;

use super::kept::Position;
use crate::files::inode::Inode;

/// Listings kept; a tree is walked one directory after the other, by a few programs.
const LISTINGS_MAX: usize = 16;
/// Entries of one, some 100 bytes each.
const WHOLE_MAX: usize = 256;

struct Whole {
    /// Its memory is not used by another inode as long as this is here, so it is the same if the address is.
    dir: Weak<Inode>,
    position: Position,
    /// In cookie order, without attributes.
    entries: Arc<[DirEntry]>,
    parent: InodeNo,
}

/// The last listings.
#[derive(Default)]
pub(crate) struct Recent(Mutex<VecDeque<Whole>>);

impl Recent {
    /// All that a directory has was listed in one answer; it was asked for at `position`.
    pub(super) fn note(&self, dir: &Arc<Inode>, position: Position, entries: &[DirEntry], parent: InodeNo) {
        if entries.len() > WHOLE_MAX {
            return;
        }
        let bare = |entry: &DirEntry| DirEntry { name: entry.name.clone(), attr: None, ..*entry };
        let entries = entries.iter().map(bare).collect();
        let whole = Whole { dir: Arc::downgrade(dir), position, entries, parent };
        let mut all = self.0.lock();
        all.retain(|other| !other.dir.ptr_eq(&whole.dir));
        all.truncate(LISTINGS_MAX - 1);
        all.push_front(whole);
    }

    /// The same listing, if the directory is still there.
    pub(super) fn of(&self, dir: &Arc<Inode>, position: Position) -> Option<(Arc<[DirEntry]>, InodeNo)> {
        let all = self.0.lock();
        let whole = all.iter().find(|whole| std::ptr::eq(whole.dir.as_ptr(), &raw const **dir))?;
        (whole.position == position).then(|| (whole.entries.clone(), whole.parent))
    }
}
