//! Bytes of a block for who reads them.

use base::units::UNIT;
use bytes::Bytes;

use super::Block;
use crate::pages::piece::{Data, zeros};

/// Reads of an `Own` piece up to this many bytes are copied out; longer ones freeze it.
const COPY_MAX: usize = 64 << 10;

impl Block {
    /// Appends bytes `from..to` to `out`; absent units count as zeros if `absent_is_zero`. False (and
    /// `out` as before) if something is absent.
    pub fn collect(&mut self, from: u32, to: u32, absent_is_zero: bool, out: &mut Vec<Bytes>) -> bool {
        let before = out.len();
        let mut pos = from;
        while pos < to {
            let unit = pos / UNIT as u32;
            let Some((start, piece)) = self.at(unit) else {
                if !absent_is_zero {
                    out.truncate(before);
                    return false;
                }
                let next = self.pieces.range(unit..).next().map_or(u32::MAX, |(&s, _)| s);
                let end = to.min(next.saturating_mul(UNIT as u32));
                zeros((end - pos) as usize, out);
                pos = end;
                continue;
            };
            let end = to.min((start + piece.units) * UNIT as u32);
            // Before anything counts as used: who gets nothing comes again.
            let to_unit = to.div_ceil(UNIT as u32);
            if pos == from && end < to && !absent_is_zero && !self.missing(unit, to_unit).is_empty() {
                return false;
            }
            let slice = (pos - start * UNIT as u32) as usize..(end - start * UNIT as u32) as usize;
            match &piece.data {
                Data::Zeros => {
                    zeros(slice.len(), out);
                    if let Some(entry) = &self.entry {
                        entry.tag.used(pos, end);
                    }
                }
                Data::Shared { bytes, tag } => {
                    if let Some(tag) = tag {
                        tag.used(pos, end);
                    }
                    out.push(bytes.slice(slice));
                }
                Data::Own { own, .. } if slice.len() <= COPY_MAX => {
                    out.push(Bytes::copy_from_slice(&own.buf[slice]));
                }
                Data::Own { .. } => {
                    if let Some(piece) = self.take(start) {
                        self.add(start, piece.freeze());
                    }
                    continue;
                }
            }
            pos = end;
        }
        true
    }
}
