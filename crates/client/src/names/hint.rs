//! What names led to when the kernel asked last.

use std::collections::HashMap;

use base::InodeNo;
use parking_lot::Mutex;
use wire::mgr::{FileKind, MgrReply};

use crate::error::Errno;

/// Answers kept for the changes that follow them.
const HINTS_MAX: usize = 4096;

/// What a name led to when it was asked for: inode 0, nothing.
#[derive(Clone, Copy)]
pub(crate) struct Hint {
    pub ino: InodeNo,
    pub is_file: bool,
}

impl Hint {
    /// The name leads nowhere.
    pub const NOTHING: Hint = Hint { ino: InodeNo(0), is_file: false };

    /// None if the question was not answered.
    pub fn of(reply: &Result<MgrReply, Errno>) -> Option<Hint> {
        match reply {
            Ok(
                MgrReply::Attr(attr)
                | MgrReply::Held(attr)
                | MgrReply::Created { attr, .. }
                | MgrReply::CreatedHeld { attr, .. },
            ) => Some(Hint { ino: attr.ino, is_file: attr.kind == FileKind::File }),
            Err(Errno::ENOENT) => Some(Hint::NOTHING),
            _ => None,
        }
    }
}

/// Hints by directory and name. Each may be outdated, and is good for one change.
#[derive(Default)]
pub(crate) struct Hints(Mutex<HashMap<(InodeNo, Vec<u8>), Hint>>);

impl Hints {
    pub fn note(&self, dir: InodeNo, name: &[u8], hint: Hint) {
        let mut hints = self.0.lock();
        if hints.len() >= HINTS_MAX {
            hints.clear();
        }
        hints.insert((dir, name.to_vec()), hint);
    }

    /// What was noted last, and stays.
    pub fn last(&self, dir: InodeNo, name: &[u8]) -> Option<Hint> {
        self.0.lock().get(&(dir, name.to_vec())).copied()
    }

    pub fn take(&self, dir: InodeNo, name: &[u8]) -> Option<Hint> {
        self.0.lock().remove(&(dir, name.to_vec()))
    }
}
