//! Which blocks of a file a session may read or change: runs of block numbers, as tokens name them.
//!
//! Invariant of [`Blocks`]: runs rise, do not overlap, are not empty and allow something; those that touch
//! differ in what they allow. What comes from outside is checked by [`Blocks::is_valid`].

use serde::{Deserialize, Serialize};

/// What may be done with the bytes of a block. Each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Use {
    /// Nothing.
    #[default]
    None,
    /// To keep them. Excludes writers.
    Read,
    /// To change them. Excludes all others.
    Write,
}

impl Use {
    /// What another session may do where one does `self`.
    pub fn leaves(self) -> Use {
        match self {
            Use::None => Use::Write,
            Use::Read => Use::Read,
            Use::Write => Use::None,
        }
    }
}

/// Blocks `first..end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Span {
    /// The first block.
    pub first: u64,
    /// One past the last.
    pub end: u64,
}

impl Span {
    /// Every block.
    pub const ALL: Span = Span { first: 0, end: u64::MAX };

    /// The blocks of `len` bytes (at least one) at `offset`.
    pub fn of_bytes(offset: u64, len: u64, block_size: u64) -> Span {
        let last = offset.saturating_add(len.max(1) - 1) / block_size;
        Span { first: offset / block_size, end: last + 1 }
    }
    /// Whether the two have a block in common.
    pub fn meets(self, other: Span) -> bool {
        self.first < other.end && other.first < self.end
    }
}

/// Blocks with one use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Which.
    pub span: Span,
    /// What for.
    pub what: Use,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Blocks(Vec<Run>);

impl Blocks {
    /// One run.
    pub fn of(span: Span, what: Use) -> Blocks {
        let empty = span.first >= span.end || what == Use::None;
        Blocks(if empty { Vec::new() } else { vec![Run { span, what }] })
    }
    /// The runs.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }
    /// Nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Whether the invariant holds.
    pub fn is_valid(&self) -> bool {
        let sound = self.0.iter().all(|run| run.span.first < run.span.end && run.what > Use::None);
        let apart =
            |a: &Run, b: &Run| a.span.end < b.span.first || a.span.end == b.span.first && a.what != b.what;
        sound && self.0.windows(2).all(|pair| apart(&pair[0], &pair[1]))
    }
    /// Whether all of `span` may be used so.
    pub fn covers(&self, span: Span, what: Use) -> bool {
        self.reach(span.first, what) >= span.end
    }
    /// How far from `first` on every block may be used so: `first` if not even that one.
    pub fn reach(&self, first: u64, what: Use) -> u64 {
        let mut at = first;
        for run in &self.0 {
            if run.span.first <= at && at < run.span.end && run.what >= what {
                at = run.span.end;
            }
        }
        at
    }
    /// The runs that meet `span` and allow more than `leave`, as one span over all of them.
    pub fn beyond(&self, span: Span, leave: Use) -> Option<Span> {
        let mut found = self.0.iter().filter(|run| run.what > leave && run.span.meets(span));
        let first = found.next()?.span;
        Some(found.fold(first, |all, run| Span { first: all.first, end: run.span.end }))
    }
    /// At most `what` within `span`.
    pub fn limited(&self, span: Span, what: Use) -> Blocks {
        combine(&self.0, &[Run { span, what: Use::Write }], |mine, there| {
            if there > Use::None { mine.min(what) } else { mine }
        })
    }
    /// At least `what` within `span`.
    pub fn with(&self, span: Span, what: Use) -> Blocks {
        combine(&self.0, &Blocks::of(span, what).0, Use::max)
    }
    /// What both allow.
    pub fn meet(&self, other: &Blocks) -> Blocks {
        combine(&self.0, &other.0, Use::min)
    }
    /// Where `other` allows nothing.
    pub fn without(&self, other: &Blocks) -> Blocks {
        combine(&self.0, &other.0, |mine, there| if there > Use::None { Use::None } else { mine })
    }
}

fn combine(a: &[Run], b: &[Run], with: impl Fn(Use, Use) -> Use) -> Blocks {
    let mut edges: Vec<u64> = a.iter().chain(b).flat_map(|run| [run.span.first, run.span.end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut out: Vec<Run> = Vec::new();
    let (mut i, mut j) = (0, 0);
    let at = |runs: &[Run], k: &mut usize, first: u64| {
        while runs.get(*k).is_some_and(|run| run.span.end <= first) {
            *k += 1;
        }
        runs.get(*k).filter(|run| run.span.first <= first).map_or(Use::None, |run| run.what)
    };
    for pair in edges.windows(2) {
        let span = Span { first: pair[0], end: pair[1] };
        let what = with(at(a, &mut i, span.first), at(b, &mut j, span.first));
        match out.last_mut() {
            _ if what == Use::None => {}
            Some(last) if last.span.end == span.first && last.what == what => last.span.end = span.end,
            _ => out.push(Run { span, what }),
        }
    }
    Blocks(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u64, end: u64) -> Span {
        Span { first, end }
    }

    /// Every operation against sixteen blocks one by one, over all pairs of a few hundred sets.
    #[test]
    fn runs_behave_as_blocks_one_by_one() {
        const BLOCKS: u64 = 5;
        let uses = [Use::None, Use::Read, Use::Write];
        let sets: Vec<(Vec<Use>, Blocks)> = (0..3usize.pow(BLOCKS as u32))
            .map(|number| {
                let plain: Vec<Use> = (0..BLOCKS).map(|b| uses[number / 3usize.pow(b as u32) % 3]).collect();
                let add = |runs: Blocks, (b, what): (u64, &Use)| runs.with(span(b, b + 1), *what);
                let runs = (0..).zip(&plain).fold(Blocks::default(), add);
                (plain, runs)
            })
            .collect();
        let plain_of = |runs: &Blocks| -> Vec<Use> {
            assert!(runs.is_valid(), "{runs:?}");
            let allows = |b, what| runs.covers(span(b, b + 1), what);
            (0..BLOCKS)
                .map(|b| {
                    if allows(b, Use::Write) {
                        Use::Write
                    } else if allows(b, Use::Read) {
                        Use::Read
                    } else {
                        Use::None
                    }
                })
                .collect()
        };
        for (plain, runs) in &sets {
            assert_eq!(*plain, plain_of(runs));
            let limited = plain_of(&runs.limited(span(1, 3), Use::Read));
            let expected =
                (0..).zip(plain).map(|(b, u)| if (1..3).contains(&b) { (*u).min(Use::Read) } else { *u });
            assert_eq!(limited, expected.collect::<Vec<_>>());
            let beyond = runs.beyond(span(2, 4), Use::Read).is_some();
            assert_eq!(beyond, plain[2..4].contains(&Use::Write));
            for (other_plain, other) in &sets {
                let both = |f: fn(Use, Use) -> Use| {
                    plain.iter().zip(other_plain).map(|(a, b)| f(*a, *b)).collect::<Vec<_>>()
                };
                assert_eq!(plain_of(&runs.meet(other)), both(Use::min));
                assert_eq!(
                    plain_of(&runs.without(other)),
                    both(|a, b| if b > Use::None { Use::None } else { a })
                );
            }
        }
    }

    #[test]
    fn what_breaks_the_rules_is_seen() {
        let run = |first, end, what| Run { span: span(first, end), what };
        assert!(Blocks(vec![run(0, 2, Use::Read), run(2, 3, Use::Write)]).is_valid());
        for bad in [
            vec![run(0, 0, Use::Read)],
            vec![run(0, 1, Use::None)],
            vec![run(0, 2, Use::Read), run(2, 3, Use::Read)],
            vec![run(0, 2, Use::Read), run(1, 3, Use::Write)],
        ] {
            assert!(!Blocks(bad.clone()).is_valid(), "{bad:?}");
        }
        assert_eq!(Span::of_bytes(4096, 0, 4096), span(1, 2));
        assert_eq!(Span::of_bytes(1, 4096, 4096), span(0, 2));
    }
}
