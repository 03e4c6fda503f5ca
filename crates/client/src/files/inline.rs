//! Content that the manager keeps in the inode.

use wire::mgr::Attr;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Inline {
    held: bool,
    len: u64,
    leaving: bool,
}

impl Inline {
    /// Takes over whether and how much the manager keeps.
    pub fn set(&mut self, attr: &Attr) {
        self.held = attr.inline;
        self.len = if attr.inline { attr.stored } else { 0 };
    }

    /// Whether it keeps the content.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is dirty here, on its way to the pdisks.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// It leaves the inode, or stays after all.
    pub fn set_leaving(&mut self, leaving: bool) {
        self.leaving = leaving;
    }
}
