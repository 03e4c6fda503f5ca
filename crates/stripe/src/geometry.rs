//! Ranges of a block and of its strips: pure arithmetic.
//! Strip i of a block is its bytes [i × strip_len, (i+1) × strip_len), whatever the file's length.
//! In a replicated pool there is one data strip, the block, and the others are copies of it.

use base::{StripIndex, StripSet};
use layout::Code;
use wire::strip::Range;

/// Code and strip length of a pool: how a block is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The redundancy code.
    pub code: Code,
    /// Bytes of a whole strip.
    pub strip_len: u32,
}

impl Geometry {
    /// Of a pool with `block_size`.
    pub fn new(code: Code, block_size: u32) -> Geometry {
        Geometry { code, strip_len: code.strip_len(block_size) }
    }
    /// Data strips: K.
    pub fn k(self) -> usize {
        self.code.data().into()
    }
    /// Strips in all: K+M.
    pub fn width(self) -> usize {
        self.code.width().into()
    }
    /// Whether strips are copies of the block.
    pub fn replicated(self) -> bool {
        self.code.is_replicated()
    }
    /// Bytes of a block.
    pub fn block_len(self) -> u32 {
        self.strip_len * u32::from(self.code.data())
    }
    /// The block offset at which data strip `i` begins (0 for copies).
    pub fn start(self, i: usize) -> u32 {
        if self.replicated() { 0 } else { i as u32 * self.strip_len }
    }
    /// The indexes of the data strips.
    pub fn data(self) -> StripSet {
        StripSet::first(self.code.data())
    }
    /// The indexes of parity, or of the further copies.
    pub fn parity(self) -> StripSet {
        StripSet(StripSet::first(self.code.width()).0 & !self.data().0)
    }
    /// All indexes.
    pub fn all(self) -> impl Iterator<Item = StripIndex> {
        (0..self.code.width()).map(StripIndex)
    }
    /// How many bytes of data strip `i` a block of `len` stored bytes can have.
    pub fn strip_stored(self, len: u32, i: usize) -> u32 {
        len.saturating_sub(self.start(i)).min(self.strip_len)
    }
    /// Cuts block ranges into ranges of each data strip, sorted and merged.
    pub fn split(self, ranges: &[Range]) -> Vec<Vec<Range>> {
        let mut strips = vec![Vec::new(); self.k()];
        for range in ranges {
            let (mut at, end) = (range.offset, range.end().min(self.block_len()));
            while at < end {
                let i = (at / self.strip_len) as usize;
                let stop = end.min((i as u32 + 1) * self.strip_len);
                strips[i].push(Range { offset: at - self.start(i), len: stop - at });
                at = stop;
            }
        }
        strips.iter_mut().for_each(normalise);
        strips
    }
    /// The same ranges of every data strip, as block ranges.
    pub fn rows_as_block(self, rows: &[Range]) -> Vec<Range> {
        let mut out: Vec<Range> = (0..self.k())
            .flat_map(|i| rows.iter().map(move |r| Range { offset: r.offset + self.start(i), len: r.len }))
            .collect();
        normalise(&mut out);
        out
    }
}

/// What a partial write of `dirty` (block ranges) needs to know of the block: the parity of a row of
/// units is computed from that row of all K data strips, so all of them are needed; old parity is not.
/// In a replicated pool it is `dirty` itself.
pub fn parity_ranges(code: Code, strip_len: u32, dirty: &[Range]) -> Vec<Range> {
    let geometry = Geometry { code, strip_len };
    geometry.rows_as_block(&union(geometry.split(dirty)))
}

/// Sorts ranges and merges those that touch or overlap; empty ones go.
pub fn normalise(ranges: &mut Vec<Range>) {
    ranges.retain(|r| r.len > 0);
    ranges.sort_by_key(|r| r.offset);
    let mut out: Vec<Range> = Vec::with_capacity(ranges.len());
    for r in ranges.drain(..) {
        match out.last_mut() {
            Some(last) if last.end() >= r.offset => last.len = last.end().max(r.end()) - last.offset,
            _ => out.push(r),
        }
    }
    *ranges = out;
}

/// The union of several sets of ranges.
pub fn union(sets: Vec<Vec<Range>>) -> Vec<Range> {
    let mut all = sets.concat();
    normalise(&mut all);
    all
}

/// The parts of `ranges` (normalised) below `end`.
pub fn clip(ranges: &[Range], end: u32) -> Vec<Range> {
    let below = ranges.iter().filter(|r| r.offset < end);
    below.map(|r| Range { offset: r.offset, len: r.end().min(end) - r.offset }).collect()
}

/// The parts of `a` that are not in `b`; both normalised.
pub fn subtract(a: &[Range], b: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    for r in a {
        let mut at = r.offset;
        for hole in b.iter().filter(|h| h.end() > r.offset && h.offset < r.end()) {
            if hole.offset > at {
                out.push(Range { offset: at, len: hole.offset - at });
            }
            at = at.max(hole.end());
        }
        if at < r.end() {
            out.push(Range { offset: at, len: r.end() - at });
        }
    }
    out
}

/// Whether normalised `ranges` contain every byte of [0, end).
pub fn covers_all(ranges: &[Range], end: u32) -> bool {
    end == 0 || ranges.first().is_some_and(|r| r.offset == 0 && r.end() >= end)
}

/// Bytes of all ranges.
pub fn total(ranges: &[Range]) -> u32 {
    ranges.iter().map(|r| r.len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(offset: u32, len: u32) -> Range {
        Range { offset: offset << 12, len: len << 12 }
    }

    #[test]
    fn ranges_are_cut_at_strips_and_rows_come_back_as_block_ranges() {
        let g = Geometry::new("4+2p".parse().unwrap(), 1 << 20);
        assert_eq!((g.strip_len, g.k(), g.width()), (256 << 10, 4, 6));
        let strips = g.split(&[r(60, 8), r(64, 1), r(200, 1)]);
        assert_eq!(strips, vec![vec![r(60, 4)], vec![r(0, 4)], vec![], vec![r(8, 1)]]);
        let rows = parity_ranges(g.code, g.strip_len, &[r(60, 8)]);
        assert_eq!(rows.len(), 5); // the end of each strip's rows touches the start of the next one's
        assert_eq!(total(&rows), (4 * 8) << 12);
        assert_eq!((g.strip_stored(0, 0), g.strip_stored(300 << 10, 1)), (0, 44 << 10));
    }

    #[test]
    fn copies_are_the_whole_block() {
        let g = Geometry::new("3way".parse().unwrap(), 256 << 10);
        assert_eq!((g.strip_len, g.start(2), g.parity().count()), (256 << 10, 0, 2));
        assert_eq!(parity_ranges(g.code, g.strip_len, &[r(3, 1)]), vec![r(3, 1)]);
    }

    #[test]
    fn set_arithmetic() {
        let mut a = vec![r(5, 1), r(0, 2), r(2, 1), r(4, 0)];
        normalise(&mut a);
        assert_eq!(a, vec![r(0, 3), r(5, 1)]);
        assert_eq!(subtract(&a, &[r(1, 1), r(5, 9)]), vec![r(0, 1), r(2, 1)]);
        assert_eq!(subtract(&a, &[]), a);
        assert_eq!(clip(&a, 1 << 12), vec![r(0, 1)]);
        assert!(covers_all(&a, 3 << 12) && !covers_all(&a, 4 << 12) && covers_all(&[], 0));
    }
}
