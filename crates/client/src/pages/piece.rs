//! A piece of a block: units that lie side by side, are in the same state, and are held in the same way.

use std::sync::{Arc, LazyLock};

use base::{AlignedBuf, units::UNIT};
use bytes::Bytes;

use super::{
    pool::{Charge, charged},
    queues::Tag,
};

/// Longest piece of our own, units (2 MiB: a huge page).
pub(crate) const PIECE_UNITS_MAX: u32 = 512;
pub(super) static ZERO_BYTES: LazyLock<Bytes> = LazyLock::new(|| AlignedBuf::zeroed(1 << 20).freeze());
/// `len` zero bytes as shared slices.
pub(crate) fn zeros(mut len: usize, out: &mut Vec<Bytes>) {
    while len > 0 {
        let step = len.min(ZERO_BYTES.len());
        out.push(ZERO_BYTES.slice(..step));
        len -= step;
    }
}

/// What is written: bytes to copy, or bytes shared with the caller, which become pages as they are.
#[derive(Clone, Copy)]
pub(crate) struct Content<'a> {
    bytes: &'a [u8],
    /// `bytes` lie in it.
    shared: Option<&'a Bytes>,
}

impl<'a> Content<'a> {
    pub fn shared(bytes: &'a Bytes) -> Content<'a> {
        Content { bytes, shared: Some(bytes) }
    }
    pub fn len(self) -> usize {
        self.bytes.len()
    }
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }
    pub fn part(self, part: std::ops::Range<usize>) -> Content<'a> {
        Content { bytes: &self.bytes[part], ..self }
    }
    /// To be kept as it is, if it is whole units from `offset` on.
    pub fn keep(self, offset: u32) -> Option<Bytes> {
        let whole = (offset as usize).is_multiple_of(UNIT) && self.len().is_multiple_of(UNIT);
        self.shared.filter(|_| whole).map(|shared| shared.slice_ref(self.bytes))
    }
}

impl<'a> From<&'a [u8]> for Content<'a> {
    fn from(bytes: &'a [u8]) -> Content<'a> {
        Content { bytes, shared: None }
    }
}

/// Memory of ours for a piece, with its charge.
pub(crate) struct OwnBuf {
    /// Capacity is the room of the piece.
    pub buf: AlignedBuf,
    /// For all of the capacity.
    pub charge: Charge,
}

pub(super) enum Data {
    Zeros,
    Shared { bytes: Bytes, tag: Option<Arc<Tag>> },
    Own { own: OwnBuf, room: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Clean,
    Dirty,
    /// Part of the version being written.
    Writing,
}

pub(super) struct Piece {
    pub units: u32,
    pub state: State,
    pub data: Data,
}

impl Piece {
    /// Units that take memory and are not stored.
    pub fn dirty_units(&self) -> u32 {
        match (self.state, &self.data) {
            (State::Clean, _) | (_, Data::Zeros) => 0,
            _ => self.units,
        }
    }

    /// Read-only from now on.
    pub fn freeze(self) -> Piece {
        let data = match self.data {
            Data::Own { own, .. } => {
                let bytes = charged(own.buf, own.charge).slice(..self.units as usize * UNIT);
                Data::Shared { bytes, tag: None }
            }
            data => data,
        };
        Piece { data, ..self }
    }

    /// Units `from..to` of a frozen piece, counted from its start.
    pub fn cut(&self, from: u32, to: u32) -> Piece {
        let data = match &self.data {
            Data::Shared { bytes, tag } => Data::Shared {
                bytes: bytes.slice(from as usize * UNIT..to as usize * UNIT),
                tag: tag.clone(),
            },
            _ => Data::Zeros,
        };
        Piece { units: to - from, state: self.state, data }
    }
}
