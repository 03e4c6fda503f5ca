//! Which inodes a change of names concerns, with a mistake in it: what `client::untold` knows, told once more.
#![allow(dead_code)] // each test file uses a part

use base::InodeNo;
use wire::mgr::Change;

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftOut {
    Nothing,
    /// The directories of names.
    Directories,
    /// The directory to which a name moves.
    Target,
    /// What a name led to that another one moves to.
    Replaced,
}

/// Whether a change concerns an inode.
pub fn concerns(change: &Change, ino: InodeNo, left_out: LeftOut) -> bool {
    let directory = |dir: InodeNo| dir == ino && left_out != LeftOut::Directories;
    match *change {
        Change::CreateAs { ino: made, parent, .. } => made == ino || directory(parent),
        Change::Unlink { parent, expect, .. } => expect == Some(ino) || directory(parent),
        Change::Rename { parent, new_parent, expect, .. } => {
            let (moved, replaced) = expect.unwrap_or_default();
            moved == ino
                || replaced == ino && left_out != LeftOut::Replaced
                || directory(parent)
                || directory(new_parent) && left_out != LeftOut::Target
        }
        Change::SetAttr { ino: set, .. } => set == ino,
        _ => true,
    }
}
