//! Open files.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::{files::inode::Inode, pages::streams::Streams};

/// An open file, as callers name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Reading is allowed.
    pub read: bool,
    /// Writing is allowed.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// O_DIRECT: no reading ahead.
    pub direct: bool,
    /// O_SYNC: a write returns when it is durable with all attributes.
    pub sync: bool,
    /// O_DSYNC: a write returns when it is durable.
    pub dsync: bool,
    /// Cut to nothing first.
    pub truncate: bool,
    /// With `truncate`: set-user-id and set-group-id bits go with it.
    pub drop_privileges: bool,
    /// With `append`: while nobody else has the file system mounted, the caller finds the end itself.
    pub caller_appends: bool,
}

impl OpenFlags {
    /// What each write does, unless it says otherwise.
    pub fn of_a_write(&self) -> WriteFlags {
        WriteFlags { append: self.append, sync: self.sync, dsync: self.dsync }
    }
}

/// What one write does: it need not be what its handle was opened with. fcntl(2) changes O_APPEND later, pwritev2(2) makes one write
/// durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// It goes to the end.
    pub append: bool,
    /// It returns when it is durable with all attributes.
    pub sync: bool,
    /// It returns when it is durable.
    pub dsync: bool,
}

/// State of an open file.
pub(crate) struct OpenFile {
    pub inode: Arc<Inode>,
    pub flags: OpenFlags,
    /// Opened while others had the file system mounted: no writes through the kernel's pages.
    pub shared: bool,
    /// Failures of the inode that this handle has reported or was opened after.
    pub failures_seen: AtomicU64,
    pub reader: Mutex<Reader>,
}

/// What the handle's reads look like.
#[derive(Default)]
pub(crate) struct Reader {
    pub streams: Streams,
    /// When it was last counted among those that share read-ahead.
    pub epoch: u64,
}

impl OpenFile {
    /// Whether the kernel may change pages before it asks: a mapping, a write through its page cache.
    pub fn is_wide(&self) -> bool {
        self.flags.write && (self.flags.read || !self.shared)
    }
}

/// All open files.
#[derive(Default)]
pub(crate) struct Handles {
    open: RwLock<HashMap<u64, Arc<OpenFile>>>,
    last: AtomicU64,
}

impl Handles {
    /// Gives a file its handle; `None` if there are `max` already.
    pub fn add(&self, file: Arc<OpenFile>, max: usize) -> Option<Handle> {
        let mut open = self.open.write();
        if open.len() >= max {
            return None;
        }
        let number = self.last.fetch_add(1, SeqCst) + 1;
        open.insert(number, file);
        Some(Handle(number))
    }

    pub fn get(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        self.open.read().get(&handle.0).cloned()
    }

    pub fn remove(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        self.open.write().remove(&handle.0)
    }
}

/// Bytes read, as shared pieces: short only at the end of the file.
#[derive(Clone, Default)]
pub struct ReadData {
    pieces: Vec<Bytes>,
    len: usize,
}

impl ReadData {
    pub(crate) fn new(pieces: Vec<Bytes>) -> ReadData {
        let len = pieces.iter().map(Bytes::len).sum();
        ReadData { pieces, len }
    }
    /// Bytes in all pieces.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Nothing: the position is at or beyond the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The pieces, in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }
    /// The pieces, without the wrapping.
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }
    /// One contiguous copy.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }
    /// Copies into `out`, which is at least as long; returns what was filled.
    pub fn copy_to(&self, out: &mut [u8]) -> Range<usize> {
        let mut at = 0;
        for piece in &self.pieces {
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        0..at
    }
}

impl std::fmt::Debug for ReadData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadData({} bytes in {} pieces)", self.len, self.pieces.len())
    }
}
