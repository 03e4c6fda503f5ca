//! Slices that are being sent: what of them is not sealed or sent yet, and what of that goes together.

use std::io::IoSlice;

use super::{CONTENT_MAX, LARGE};

/// Most bytes of a piece of a payload that goes in the clear with a tag.
pub(super) const PIECE_MAX: usize = 256 << 10;

/// What of several slices is not sealed yet.
pub(super) struct Rest<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    /// Which of them are of a payload that may go in pieces.
    payload: &'a [bool],
    at: usize,
    skip: usize,
}

impl<'a, 'b> Rest<'a, 'b> {
    /// All of these. `payload`: which of them may go in pieces; none where it ends.
    pub(super) fn new(slices: &'a [IoSlice<'b>], payload: &'a [bool]) -> Rest<'a, 'b> {
        let mut rest = Rest { slices, payload, at: 0, skip: 0 };
        rest.skip_empty();
        rest
    }

    fn present(&self) -> &[u8] {
        self.slices.get(self.at).map_or(&[], |slice| &slice[self.skip..])
    }

    pub(super) fn advance(&mut self, mut n: usize) {
        while n > 0 && self.at < self.slices.len() {
            let step = n.min(self.present().len());
            self.skip += step;
            n -= step;
            self.skip_empty();
        }
    }

    fn skip_empty(&mut self) {
        while self.at < self.slices.len() && self.present().is_empty() {
            (self.at, self.skip) = (self.at + 1, 0);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.slices.len()
    }

    /// Appends the content of one record; how many bytes. Small slices go together, and so do large ones.
    pub(super) fn take(&mut self, to: &mut Vec<u8>) -> usize {
        let (start, large) = (to.len(), self.present().len() >= LARGE);
        while !self.is_empty()
            && to.len() - start < CONTENT_MAX
            && (self.present().len() >= LARGE) == large
            && self.piece() == 0
        {
            let n = self.present().len().min(CONTENT_MAX - (to.len() - start));
            to.extend_from_slice(&self.present()[..n]);
            self.advance(n);
        }
        to.len() - start
    }

    /// Bytes of the piece that is next; 0: none is.
    pub(super) fn piece(&self) -> usize {
        let mut len = 0;
        for at in self.at..self.slices.len() {
            if self.payload.get(at) != Some(&true) || len >= PIECE_MAX {
                break;
            }
            len += self.slices[at].len() - if at == self.at { self.skip } else { 0 };
        }
        if len >= LARGE { len.min(PIECE_MAX) } else { 0 }
    }

    /// Appends the first `max` bytes; how many there were.
    pub(super) fn first<'c>(&'c self, max: usize, to: &mut Vec<IoSlice<'c>>) -> usize {
        let (mut total, mut skip) = (0, self.skip);
        for slice in &self.slices[self.at..] {
            let n = (slice.len() - skip).min(max - total);
            if n == 0 {
                break;
            }
            to.push(IoSlice::new(&slice[skip..skip + n]));
            (total, skip) = (total + n, 0);
        }
        total
    }
}
