//! Bytes at offsets: the content of a block or strip as a sorted list of shared buffers; what lies
//! between them is zeros. Nothing here copies.

use std::sync::LazyLock;

use base::{AlignedBuf, StripeId, units::UNIT};
use bytes::Bytes;
use wire::{crc::unit_crcs, strip::Range};

use crate::{StripeError, geometry::Geometry};

static ZEROS: LazyLock<Bytes> = LazyLock::new(|| AlignedBuf::zeroed(256 << 10).freeze());
static ZERO_CRC: LazyLock<u32> = LazyLock::new(|| wire::crc::crc32c(&[0; UNIT]));

/// Sorted, not overlapping, each a multiple of 4 KiB at a multiple of 4 KiB.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Vec<(u32, Bytes)>);

impl Pieces {
    /// Takes what a writer gave, if it keeps the rules.
    pub fn checked(
        stripe: StripeId,
        geometry: Geometry,
        list: Vec<(u32, Bytes)>,
    ) -> Result<Pieces, StripeError> {
        let mut end = 0;
        for (offset, bytes) in &list {
            let range = Range { offset: *offset, len: u32::try_from(bytes.len()).unwrap_or(u32::MAX) };
            let bad = |reason| Err(StripeError::BadRequest { stripe, reason, range });
            if !range.offset.is_multiple_of(UNIT as u32) || !range.len.is_multiple_of(UNIT as u32) {
                return bad("a piece is not 4 KiB aligned");
            }
            if range.len == 0 || range.offset < end {
                return bad("pieces are empty or not in order");
            }
            if range.end() > geometry.block_len() {
                return bad("a piece ends beyond the block");
            }
            if range.offset / geometry.strip_len != (range.end() - 1) / geometry.strip_len {
                return bad("a piece lies in two strips");
            }
            end = range.end();
        }
        Ok(Pieces(list))
    }

    /// Takes a list that keeps the rules by construction.
    pub(crate) fn from_sorted(list: Vec<(u32, Bytes)>) -> Pieces {
        debug_assert!(list.windows(2).all(|w| w[0].0 as usize + w[0].1.len() <= w[1].0 as usize));
        Pieces(list)
    }

    /// The pieces, in order.
    pub fn list(&self) -> &[(u32, Bytes)] {
        &self.0
    }
    /// Gives up the list.
    pub fn into_list(self) -> Vec<(u32, Bytes)> {
        self.0
    }

    /// What begins at `at`: bytes (`Some`) or zeros (`None`), and for how long, at most `max`.
    pub fn run(&self, at: u32, max: u32) -> (Option<&[u8]>, u32) {
        let next = self.0.partition_point(|(offset, bytes)| *offset as usize + bytes.len() <= at as usize);
        match self.0.get(next) {
            None => (None, max),
            Some((offset, _)) if *offset > at => (None, max.min(offset - at)),
            Some((offset, bytes)) => {
                let rest = &bytes[(at - offset) as usize..];
                let len = rest.len().min(max as usize);
                (Some(&rest[..len]), len as u32)
            }
        }
    }

    /// The shared buffer of what begins at `at`, as [`Pieces::run`].
    fn run_shared(&self, at: u32, max: u32) -> (Option<Bytes>, u32) {
        let next = self.0.partition_point(|(offset, bytes)| *offset as usize + bytes.len() <= at as usize);
        match self.0.get(next) {
            None => (None, max),
            Some((offset, _)) if *offset > at => (None, max.min(offset - at)),
            Some((offset, bytes)) => {
                let from = (at - offset) as usize;
                let len = (bytes.len() - from).min(max as usize);
                (Some(bytes.slice(from..from + len)), len as u32)
            }
        }
    }

    /// The content of `ranges` as a payload with the CRC of each unit; gaps become zeros.
    pub fn payload(&self, ranges: &[Range], shift: u32) -> (Vec<Bytes>, Vec<u32>) {
        let (mut payload, mut crcs) = (Vec::new(), Vec::new());
        for range in ranges {
            let mut at = range.offset + shift;
            let end = range.end() + shift;
            while at < end {
                let (bytes, len) = self.run_shared(at, end - at);
                match bytes {
                    Some(bytes) => {
                        crcs.extend(unit_crcs(&bytes));
                        payload.push(bytes);
                    }
                    None => {
                        crcs.extend(std::iter::repeat_n(*ZERO_CRC, len as usize / UNIT));
                        push_zeros(&mut payload, len);
                    }
                }
                at += len;
            }
        }
        (payload, crcs)
    }

    /// One past the last byte in [start, start + len), relative to start; 0 if there is none.
    pub fn end_within(&self, start: u32, len: u32) -> u32 {
        let last = self.0.partition_point(|(offset, _)| *offset < start + len);
        match last.checked_sub(1).map(|i| &self.0[i]) {
            Some((offset, bytes)) => (*offset + bytes.len() as u32).saturating_sub(start).min(len),
            None => 0,
        }
    }

    /// This content with `over` laid over it in `ranges` (normalised): there `over` counts, zeros included.
    pub fn overlay(&self, over: &Pieces, ranges: &[Range]) -> Pieces {
        let mut list = Vec::new();
        let mut keep = |from: &Pieces, range: Range| {
            let mut at = range.offset;
            while at < range.end() {
                let (bytes, len) = from.run_shared(at, range.end() - at);
                if let Some(bytes) = bytes {
                    list.push((at, bytes));
                }
                at += len;
            }
        };
        let mut at = 0;
        for range in ranges {
            keep(self, Range { offset: at, len: range.offset - at });
            keep(over, *range);
            at = range.end();
        }
        keep(self, Range { offset: at, len: u32::MAX - at });
        Pieces(list)
    }
}

fn push_zeros(payload: &mut Vec<Bytes>, mut len: u32) {
    while len > 0 {
        let part = (len as usize).min(ZEROS.len());
        payload.push(ZEROS.slice(..part));
        len -= part as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: u32 = UNIT as u32;

    fn piece(at: u32, units: u32, fill: u8) -> (u32, Bytes) {
        (at * U, Bytes::from(vec![fill; (units * U) as usize]))
    }
    fn flat(pieces: &Pieces, len: u32) -> Vec<u8> {
        let (payload, crcs) = pieces.payload(&[Range { offset: 0, len }], 0);
        let flat = payload.concat();
        assert_eq!(crcs, unit_crcs(&flat).collect::<Vec<_>>());
        flat
    }

    #[test]
    fn gaps_are_zeros_and_overlays_count() {
        let a = Pieces::from_sorted(vec![piece(1, 2, 1), piece(5, 1, 2)]);
        let b = Pieces::from_sorted(vec![piece(2, 1, 9), piece(70, 1, 8)]);
        let bytes: Vec<u8> = flat(&a, 8 * U).chunks(UNIT).map(|u| u[0]).collect();
        assert_eq!(bytes, [0, 1, 1, 0, 0, 2, 0, 0]);
        let c = a.overlay(&b, &[Range { offset: 2 * U, len: 2 * U }, Range { offset: 5 * U, len: U }]);
        let bytes: Vec<u8> = flat(&c, 8 * U).chunks(UNIT).map(|u| u[0]).collect();
        assert_eq!(bytes, [0, 1, 9, 0, 0, 0, 0, 0]);
        assert_eq!((a.end_within(0, 8 * U), a.end_within(2 * U, 2 * U), a.end_within(0, U)), (6 * U, U, 0));
        assert_eq!((a.run(0, 9 * U), a.run(6 * U, 7)), ((None, U), (None, 7)));
    }

    #[test]
    fn long_gaps_cost_no_memory() {
        let a = Pieces::from_sorted(vec![piece(0, 1, 1)]);
        let (payload, _) = a.payload(&[Range { offset: 0, len: 1 << 20 }], 0);
        assert_eq!(payload.iter().map(Bytes::len).sum::<usize>(), 1 << 20);
        assert_eq!(payload[1].as_ptr(), payload[2].as_ptr());
    }

    #[test]
    fn rules_are_checked() {
        let g = Geometry::new("2+1p".parse().unwrap(), 256 << 10);
        let s = StripeId::default();
        assert!(Pieces::checked(s, g, vec![piece(0, 32, 1), piece(32, 1, 1)]).is_ok());
        for bad in [
            vec![piece(31, 2, 1)],
            vec![piece(1, 1, 1), piece(1, 1, 1)],
            vec![piece(64, 1, 1)],
            vec![(5, Bytes::from(vec![0; UNIT]))],
            vec![(0, Bytes::from(vec![0; 5]))],
        ] {
            assert!(Pieces::checked(s, g, bad).is_err());
        }
    }
}
