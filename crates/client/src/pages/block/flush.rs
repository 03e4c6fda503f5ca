//! Versions of a block: what is dirty is frozen for one, and is clean once it is written, or dirty again.

use std::sync::Arc;

use base::units::UNIT;
use bytes::Bytes;
use wire::strip::Range;

use super::{Block, kept::new_id};
use crate::pages::{
    piece::{Data, Piece, State, ZERO_BYTES},
    queues::Tag,
};

/// Pieces frozen for one version.
pub(crate) struct Frozen {
    /// All dirty units at this time: rising, merged.
    pub dirty: Vec<Range>,
    /// Their bytes by offset; no piece crosses a strip boundary.
    pub pieces: Vec<(u32, Bytes)>,
    /// Everything written up to this number is in it.
    pub seq: u64,
}

impl Block {
    /// Claims the block for one flush; the ticket proves it (the block may be dropped and made again
    /// before the flush gets its turn).
    pub fn begin_flush(&mut self) -> u64 {
        let ticket = new_id();
        self.flush = Some(ticket);
        ticket
    }
    /// Whether this flush holds the block.
    pub fn flush_is(&self, ticket: u64) -> bool {
        self.flush == Some(ticket)
    }
    /// The flush is over.
    pub fn end_flush(&mut self, ticket: u64) {
        if self.flush_is(ticket) {
            self.flush = None;
        }
    }

    /// Freezes all that is dirty for the next version.
    pub fn freeze(&mut self) -> Frozen {
        let mut frozen = Frozen { dirty: Vec::new(), pieces: Vec::new(), seq: self.dirty_seq };
        self.reserved_writing += std::mem::take(&mut self.reserved);
        let starts: Vec<u32> =
            self.pieces.iter().filter(|(_, p)| p.state == State::Dirty).map(|(&s, _)| s).collect();
        for start in starts {
            let Some(piece) = self.take(start) else { continue };
            let mut piece = piece.freeze();
            piece.state = State::Writing;
            push_range(&mut frozen.dirty, start, piece.units);
            self.piece_bytes(start, &piece, 0..piece.units, &mut frozen.pieces);
            self.add(start, piece);
        }
        frozen
    }

    /// Clean units within `ranges` as bytes (what parity needs beside the dirty ones); returns what is
    /// absent.
    pub fn clean_within(&self, ranges: &[Range], out: &mut Vec<(u32, Bytes)>) -> Vec<std::ops::Range<u32>> {
        let mut absent = Vec::new();
        for range in ranges {
            let (from, to) = (range.offset / UNIT as u32, range.end() / UNIT as u32);
            absent.extend(self.missing(from, to));
            let first = self.at(from).map_or(from, |(start, _)| start);
            for (&start, piece) in self.pieces.range(first..to) {
                if piece.state == State::Clean {
                    let (a, b) = (from.max(start), to.min(start + piece.units));
                    self.piece_bytes(start, piece, a - start..b - start, out);
                }
            }
        }
        absent
    }

    /// Units of a frozen piece as bytes, cut at strip boundaries.
    fn piece_bytes(
        &self,
        start: u32,
        piece: &Piece,
        units: std::ops::Range<u32>,
        out: &mut Vec<(u32, Bytes)>,
    ) {
        let mut unit = units.start;
        while unit < units.end {
            let strip_end = ((start + unit) / self.strip_units + 1) * self.strip_units - start;
            let mut end = units.end.min(strip_end);
            let bytes = match &piece.data {
                Data::Shared { bytes, .. } => bytes.slice(unit as usize * UNIT..end as usize * UNIT),
                _ => {
                    end = end.min(unit + (ZERO_BYTES.len() / UNIT) as u32);
                    ZERO_BYTES.slice(..(end - unit) as usize * UNIT)
                }
            };
            out.push(((start + unit) * UNIT as u32, bytes));
            unit = end;
        }
    }

    /// The version is complete: its units are clean unless they were written again. `tag(units, bytes)`
    /// makes the replacement entries. Returns the room that was set aside for it.
    pub fn written(
        &mut self,
        frozen_seq: u64,
        tag: &mut dyn FnMut(std::ops::Range<u32>, u64) -> Arc<Tag>,
    ) -> u64 {
        self.stored_seq = self.stored_seq.max(frozen_seq);
        self.settle(State::Clean, &mut |start, piece| {
            if let Data::Shared { tag: slot, .. } = &mut piece.data {
                *slot = Some(tag(start..start + piece.units, u64::from(piece.units) * UNIT as u64));
            }
        });
        std::mem::take(&mut self.reserved_writing)
    }

    /// The version failed: its units are dirty again.
    pub fn not_written(&mut self) {
        self.reserved += std::mem::take(&mut self.reserved_writing);
        self.settle(State::Dirty, &mut |_, _| {});
    }

    fn settle(&mut self, state: State, each: &mut dyn FnMut(u32, &mut Piece)) {
        let starts: Vec<u32> =
            self.pieces.iter().filter(|(_, p)| p.state == State::Writing).map(|(&s, _)| s).collect();
        for start in starts {
            if let Some(mut piece) = self.take(start) {
                piece.state = state;
                each(start, &mut piece);
                self.add(start, piece);
            }
        }
    }

    /// Offset of the first unit that is not stored and reaches beyond byte `from`.
    pub fn first_unstored(&self, from: u32) -> Option<u32> {
        let found = self.pieces.iter().find(|(start, piece)| {
            piece.state != State::Clean && (**start + piece.units) * UNIT as u32 > from
        });
        found.map(|(&start, _)| (start * UNIT as u32).max(from / UNIT as u32 * UNIT as u32))
    }
}

fn push_range(ranges: &mut Vec<Range>, start: u32, units: u32) {
    let (offset, len) = (start * UNIT as u32, units * UNIT as u32);
    match ranges.last_mut() {
        Some(last) if last.end() == offset => last.len += len,
        _ => ranges.push(Range { offset, len }),
    }
}
