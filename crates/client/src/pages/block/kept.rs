//! The pieces of a block by their first unit, and the counts of what is dirty that go with them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use base::units::UNIT;
use stripe::BlockMeta;

use crate::pages::{
    loading::Load,
    piece::{Data, Piece, State},
    pool::BlockEntry,
};

/// A number for a flush or a load that no other has.
pub(super) fn new_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    IDS.fetch_add(1, Relaxed)
}

/// See the module.
pub(crate) struct Block {
    pub(super) pieces: BTreeMap<u32, Piece>,
    pub(super) loads: Vec<Load>,
    pub(super) strip_units: u32,
    pub(super) dirty_pieces: usize,
    pub(super) dirty_units: u64,
    /// The flush that is under way: a version being written, or content on its way into the inode.
    pub(super) flush: Option<u64>,
    /// Number of the last write into it (numbers are the file's).
    pub dirty_seq: u64,
    /// All writes up to this number are stored.
    pub stored_seq: u64,
    /// The current version on the pdisks, where known.
    pub meta: Option<BlockMeta>,
    /// The pdisks hold this block's bytes up to here as they were at some time (what is dirty again below
    /// it is a newer content of stored bytes).
    pub stored_to: u32,
    /// Raw bytes of room set aside for what is dirty here and in no version yet.
    pub reserved: u64,
    /// The same for the version that is being written.
    pub reserved_writing: u64,
    /// Versions begun since the block is in memory.
    pub flush_starts: u32,
    /// Versions that failed.
    pub failures: u64,
    /// Its place in the page pool.
    pub entry: Option<BlockEntry>,
    /// The last unit that came in because one was written in part, and how many such before it went forward step by step.
    pub(super) edge: (u32, u8),
}

impl Block {
    pub fn new(strip_units: u32) -> Block {
        Block {
            pieces: BTreeMap::new(),
            loads: Vec::new(),
            strip_units: strip_units.max(1),
            dirty_pieces: 0,
            dirty_units: 0,
            flush: None,
            dirty_seq: 0,
            stored_seq: 0,
            meta: None,
            stored_to: 0,
            reserved: 0,
            reserved_writing: 0,
            flush_starts: 0,
            failures: 0,
            entry: None,
            edge: (u32::MAX, 0),
        }
    }

    /// Whether something is not stored and not being written.
    pub fn has_dirty(&self) -> bool {
        self.dirty_pieces > 0
    }
    /// Whether no unit is here.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
    /// Bytes of memory that hold what is not stored yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_units * UNIT as u64
    }
    /// Nothing here and nothing under way: can be forgotten.
    pub fn is_idle(&self) -> bool {
        self.pieces.is_empty() && self.loads.is_empty() && !self.flushing()
    }
    /// Whether all data from its first unit to `units` is dirty: the block can go out whole.
    pub fn dirty_up_to(&self, units: u32) -> bool {
        let mut next = 0;
        for (&start, piece) in &self.pieces {
            if start != next || piece.state != State::Dirty {
                break;
            }
            next = start + piece.units;
        }
        next >= units
    }

    /// Whether a flush is under way.
    pub fn flushing(&self) -> bool {
        self.flush.is_some()
    }

    pub(super) fn add(&mut self, start: u32, piece: Piece) {
        debug_assert!(piece.units > 0);
        debug_assert!(
            self.missing(start, start + piece.units).first() == Some(&(start..start + piece.units)),
            "pieces do not overlap"
        );
        if let Data::Own { .. } = piece.data {
            debug_assert!(piece.state == State::Dirty, "what is frozen is not written to");
            let last = start + piece.units - 1;
            debug_assert!(start / self.strip_units == last / self.strip_units, "a piece has one strip");
        }
        self.dirty_pieces += usize::from(piece.state == State::Dirty);
        self.dirty_units += u64::from(piece.dirty_units());
        let old = self.pieces.insert(start, piece);
        debug_assert!(old.is_none());
    }

    pub(super) fn take(&mut self, start: u32) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        self.dirty_pieces -= usize::from(piece.state == State::Dirty);
        self.dirty_units -= u64::from(piece.dirty_units());
        Some(piece)
    }

    /// The piece that holds `unit`.
    pub(super) fn at(&self, unit: u32) -> Option<(u32, &Piece)> {
        let (&start, piece) = self.pieces.range(..=unit).next_back()?;
        (unit < start + piece.units).then_some((start, piece))
    }

    /// Removes units `from..to`, whatever they are.
    pub(super) fn carve(&mut self, from: u32, to: u32) {
        let first = self.at(from).map_or(from, |(start, _)| start);
        let starts: Vec<u32> = self.pieces.range(first..to).map(|(&s, _)| s).collect();
        for start in starts {
            let Some(piece) = self.take(start) else { continue };
            let end = start + piece.units;
            if start >= from && end <= to {
                continue;
            }
            let piece = piece.freeze();
            if start < from {
                self.add(start, piece.cut(0, from - start));
            }
            if end > to {
                self.add(to, piece.cut(to - start, end - start));
            }
        }
    }

    /// Absent units of `from..to`, rising.
    pub fn missing(&self, from: u32, to: u32) -> Vec<std::ops::Range<u32>> {
        let mut gaps = Vec::new();
        let mut next = from;
        let first = self.at(from).map_or(from, |(start, _)| start);
        for (&start, piece) in self.pieces.range(first..to) {
            if start > next {
                gaps.push(next..start);
            }
            next = next.max(start + piece.units);
        }
        if next < to {
            gaps.push(next..to);
        }
        gaps
    }

    /// Ranges of units that hold data not known to be zeros.
    pub fn data_units(&self) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
        self.pieces
            .iter()
            .filter(|(_, p)| !matches!(p.data, Data::Zeros))
            .map(|(&start, p)| start..start + p.units)
    }
}
