//! Extents: where the units of a strip lie in the data file. A map is a list of extents that covers
//! the strip from its first unit to its last; a hole reads as zeros and takes no space.
//! Pure computation.

use std::ops::Range as Span;

/// A run of units of the data file, packed into 8 bytes: start in the upper 40 bits, count in the
/// lower 24. The largest start means "hole".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Extent(u64);

const COUNT_BITS: u32 = 24;
const HOLE: u64 = (1 << 40) - 1;
/// Units a data file can have at most: 2^40 - 1, 4 PiB.
pub(crate) const UNITS_MAX: u64 = HOLE;

impl Extent {
    pub fn new(start: u64, count: u32) -> Extent {
        assert!(start < HOLE && count > 0 && count < 1 << COUNT_BITS, "extent {start}+{count}");
        Extent(start << COUNT_BITS | u64::from(count))
    }
    pub fn hole(count: u32) -> Extent {
        assert!(count > 0 && count < 1 << COUNT_BITS);
        Extent(HOLE << COUNT_BITS | u64::from(count))
    }
    /// From its packed form; `None` if it is no extent of a data file of `units` units.
    pub fn from_packed(packed: u64, units: u64) -> Option<Extent> {
        let e = Extent(packed);
        let fits = e.is_hole() || e.0 >> COUNT_BITS < units && e.end() <= units;
        (e.count() > 0 && fits).then_some(e)
    }
    pub fn packed(self) -> u64 {
        self.0
    }
    pub fn is_hole(self) -> bool {
        self.0 >> COUNT_BITS == HOLE
    }
    pub fn start(self) -> u64 {
        debug_assert!(!self.is_hole());
        self.0 >> COUNT_BITS
    }
    pub fn count(self) -> u32 {
        (self.0 & ((1 << COUNT_BITS) - 1)) as u32
    }
    pub fn end(self) -> u64 {
        self.start() + u64::from(self.count())
    }
    /// The part from `skip` on, `count` units long.
    fn part(self, skip: u32, count: u32) -> Extent {
        debug_assert!(skip + count <= self.count());
        if self.is_hole() { Extent::hole(count) } else { Extent::new(self.start() + u64::from(skip), count) }
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_hole() {
            write!(f, "hole+{}", self.count())
        } else {
            write!(f, "{}+{}", self.start(), self.count())
        }
    }
}

/// Units covered by a map.
pub(crate) fn units_of(map: &[Extent]) -> u32 {
    map.iter().map(|e| e.count()).sum()
}

/// The extents of `span` (units of the strip), each with the first unit of the strip it serves. What
/// lies beyond the map is left out.
pub(crate) fn pieces(map: &[Extent], span: Span<u32>) -> impl Iterator<Item = (u32, Extent)> + '_ {
    let mut at = 0u32;
    map.iter().filter_map(move |&e| {
        let first = at;
        at += e.count();
        let from = span.start.max(first);
        let to = span.end.min(at);
        (from < to).then(|| (from, e.part(from - first, to - from)))
    })
}

/// The unit of the data file that holds unit `unit` of the strip, if it is no hole.
pub(crate) fn unit_at(map: &[Extent], unit: u32) -> Option<u64> {
    let (_, e) = pieces(map, unit..unit + 1).next()?;
    (!e.is_hole()).then(|| e.start())
}

fn push(map: &mut Vec<Extent>, e: Extent) {
    if let Some(last) = map.last_mut() {
        let count = last.count() + e.count();
        let joins =
            last.is_hole() && e.is_hole() || !last.is_hole() && !e.is_hole() && last.end() == e.start();
        if joins && count < 1 << COUNT_BITS {
            *last = if e.is_hole() { Extent::hole(count) } else { Extent::new(last.start(), count) };
            return;
        }
    }
    map.push(e);
}

/// The map of `units` units that takes `replaced` (rising, not overlapping, each with the first unit of
/// the strip it serves) where given, else `base`, else a hole.
pub(crate) fn replace(base: &[Extent], units: u32, replaced: &[(u32, Extent)]) -> Vec<Extent> {
    let mut map = Vec::with_capacity(base.len() + 2 * replaced.len());
    let mut at = 0;
    for &(first, e) in replaced {
        copy(&mut map, base, at..first);
        push(&mut map, e);
        at = first + e.count();
    }
    copy(&mut map, base, at..units);
    debug_assert_eq!(units_of(&map), units);
    map
}

fn copy(map: &mut Vec<Extent>, base: &[Extent], span: Span<u32>) {
    let mut at = span.start;
    for (first, e) in pieces(base, span.clone()) {
        debug_assert_eq!(first, at);
        at += e.count();
        push(map, e);
    }
    if at < span.end {
        push(map, Extent::hole(span.end - at));
    }
}

/// What is in `before` and not in `after`: the units that become free. Both are sets of extents, in
/// which the same unit may occur twice (adopted and prepared versions share units).
pub(crate) fn released(before: &[Extent], after: &[Extent]) -> Vec<Extent> {
    let spans = |list: &[Extent]| {
        let mut spans: Vec<Span<u64>> =
            list.iter().filter(|e| !e.is_hole()).map(|e| e.start()..e.end()).collect();
        spans.sort_unstable_by_key(|s| s.start);
        spans.dedup_by(|b, a| {
            let overlap = b.start <= a.end;
            if overlap {
                a.end = a.end.max(b.end);
            }
            overlap
        });
        spans
    };
    if before == after {
        return Vec::new();
    }
    let keep = spans(after);
    let mut keep = keep.iter().peekable();
    let mut free = Vec::new();
    for span in spans(before) {
        let mut at = span.start;
        while at < span.end {
            while keep.peek().is_some_and(|k| k.end <= at) {
                keep.next();
            }
            let (free_to, next) = match keep.peek() {
                Some(k) if k.start < span.end => (k.start.max(at), k.end),
                _ => (span.end, span.end),
            };
            let mut from = at;
            while from < free_to {
                let count = (free_to - from).min((1 << COUNT_BITS) - 1);
                free.push(Extent::new(from, count as u32));
                from += count;
            }
            at = next;
        }
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e(start: u64, count: u32) -> Extent {
        Extent::new(start, count)
    }

    #[test]
    fn replacing_keeps_the_rest_and_fills_gaps_with_holes() {
        let base = [e(100, 4), e(200, 4)];
        assert_eq!(replace(&base, 8, &[(3, e(50, 2))]), [e(100, 3), e(50, 2), e(201, 3)]);
        assert_eq!(replace(&base, 12, &[(10, e(50, 2))]), [e(100, 4), e(200, 4), Extent::hole(2), e(50, 2)]);
        assert_eq!(replace(&base, 5, &[]), [e(100, 4), e(200, 1)]);
        assert_eq!(replace(&[e(7, 2)], 4, &[(2, e(9, 2))]), [e(7, 4)]);
        assert_eq!(replace(&[], 0, &[]), []);
    }

    #[test]
    fn pieces_of_a_span() {
        let map = [e(100, 4), Extent::hole(2), e(200, 4)];
        let found: Vec<_> = pieces(&map, 3..8).collect();
        assert_eq!(found, [(3, e(103, 1)), (4, Extent::hole(2)), (6, e(200, 2))]);
        assert_eq!(pieces(&map, 10..20).count(), 0);
        assert_eq!((unit_at(&map, 4), unit_at(&map, 7)), (None, Some(201)));
    }

    #[test]
    fn released_is_the_difference() {
        assert_eq!(released(&[e(10, 10)], &[e(12, 2), e(18, 5)]), [e(10, 2), e(14, 4)]);
        assert_eq!(released(&[e(10, 4), e(10, 4), e(12, 6)], &[]), [e(10, 8)]);
        assert_eq!(released(&[e(10, 4), e(20, 4)], &[e(8, 30)]), []);
        assert_eq!(released(&[e(10, 4), e(20, 4)], &[e(13, 8)]), [e(10, 3), e(21, 3)]);
        assert_eq!(released(&[Extent::hole(3), e(1, 1)], &[Extent::hole(3)]), [e(1, 1)]);
    }

    #[test]
    fn packed_extents_are_checked() {
        assert_eq!(Extent::from_packed(e(5, 3).packed(), 8), Some(e(5, 3)));
        assert_eq!(Extent::from_packed(e(5, 3).packed(), 7), None);
        assert_eq!(Extent::from_packed(5 << 24, 100), None);
        assert!(Extent::from_packed(Extent::hole(9).packed(), 1).is_some());
    }
}
