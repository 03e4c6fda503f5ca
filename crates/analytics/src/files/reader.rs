//! Reads histories on disk, while they are written or after. A torn or damaged file is read up to there; the rest of it is a gap.

use std::{fs, io, path::Path};

use base::stats::Second;

use super::{
    record::{Entry, Records},
    tier::{self, Tier},
};
use crate::legend::Legend;

/// Takes a second and what its numbers mean.
pub type Take<'a> = &'a mut dyn FnMut(&Second, &Legend);

/// All records of one file.
pub fn file(path: &Path, take: Take<'_>) -> io::Result<()> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        // It made room for newer ones meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut legend = Legend::default();
    for entry in Records::of(&bytes) {
        learn(&mut legend, &entry, take);
    }
    Ok(())
}

/// Takes over what an entry says.
pub fn learn(legend: &mut Legend, entry: &Entry, take: Take<'_>) {
    match entry {
        Entry::Origin(_) => *legend = Legend::default(),
        Entry::Series { number, name, labels } => {
            legend.series.insert(*number, (name.clone(), labels.clone()));
        }
        Entry::Op { set, number, name } => drop(legend.ops.insert((*set, *number), name.clone())),
        Entry::Class { set, number, name } => drop(legend.classes.insert((*set, *number), name.clone())),
        Entry::Second(second) => take(second, legend),
        Entry::Names(_) => {}
    }
}

/// The records of a tier that end after `after` and not after `to`.
pub fn tier(dir: &Path, tier: Tier, after: u64, to: u64, take: Take<'_>) -> io::Result<()> {
    let files = tier::files(dir, tier)?;
    for (at, found) in files.iter().enumerate() {
        // What follows begins where this one ends, or later.
        let ended = files.get(at + 1).is_some_and(|next| next.begin <= after && next.begin > found.begin);
        if ended || found.begin >= to {
            continue;
        }
        file(&found.path, &mut |second, legend| {
            if (after + 1..=to).contains(&second.at) {
                take(second, legend);
            }
        })?;
    }
    Ok(())
}

/// Which tier has which part of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The tier.
    pub tier: Tier,
    /// Records that end after this ...
    pub after: u64,
    /// ... and not after this.
    pub to: u64,
}

/// Times of which a tier has files without a break, in order: (where the first begins, where the last can end at most).
type Runs = Vec<(u64, u64)>;

/// Divides the time (`after`, `to`] among the tiers: each part from the finest that has it. A file covers a bounded time, so one
/// from a clock that stood elsewhere for a moment (a machine that starts in 1970) says nothing of the years up to the next.
pub fn parts(dir: &Path, after: u64, to: u64) -> io::Result<Vec<Part>> {
    let mut all: [Runs; 3] = Default::default();
    for (runs, tier) in all.iter_mut().zip(Tier::ALL) {
        for file in tier::files(dir, tier)? {
            let end = file.begin.saturating_add(tier.file_seconds());
            match runs.last_mut() {
                Some(last) if file.begin <= last.1 => last.1 = end,
                _ => runs.push((file.begin, end)),
            }
        }
    }
    let mut found = Vec::new();
    divide(&all, 0, after, to, &mut found);
    Ok(found)
}

/// The same from tier `at` on, the newest first.
fn divide(all: &[Runs; 3], at: usize, after: u64, mut to: u64, into: &mut Vec<Part>) {
    let Some(tier) = Tier::ALL.get(at).copied() else { return };
    for &(first, end) in all[at].iter().rev() {
        // Where a coarser one reaches further back, this one begins with a whole record of it, and the coarser one with a whole
        // one after its end.
        let coarser = (at + 1..3).find_map(|next| {
            let unit = Tier::ALL[next].resolution();
            let covers = |run: &(u64, u64)| run.0 < first / unit * unit && run.1 >= first;
            all[next].iter().any(covers).then(|| first.div_ceil(unit) * unit)
        });
        let begin = coarser.unwrap_or(first).max(after);
        if begin >= to || end <= after {
            continue;
        }
        let unit = Tier::ALL.get(at + 1).map_or(1, |next| next.resolution());
        let end = end.div_ceil(unit) * unit;
        if end < to {
            divide(all, at + 1, end, to, into);
        }
        let end = end.min(to);
        if end / tier.resolution() > begin / tier.resolution() {
            into.push(Part { tier, after: begin, to: end });
        }
        to = begin;
    }
    if after < to {
        divide(all, at + 1, after, to, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(tier: Tier, after: u64, to: u64) -> Part {
        Part { tier, after, to }
    }

    #[test]
    fn each_part_of_a_time_from_the_finest_that_has_it() {
        use Tier::{Hour, Minute, Second};
        let divided = |runs: [&[(u64, u64)]; 3], after, to| {
            let mut found = Vec::new();
            divide(&runs.map(<[_]>::to_vec), 0, after, to, &mut found);
            found
        };
        let runs: [&[(u64, u64)]; 3] = [&[(100_030, 101_000)], &[(50_040, 250_000)], &[(7200, 8_000_000)]];
        assert_eq!(divided(runs, 100_100, 100_200), [part(Second, 100_100, 100_200)]);
        assert_eq!(
            divided(runs, 0, 100_200),
            [part(Second, 100_080, 100_200), part(Minute, 50_400, 100_080), part(Hour, 7200, 50_400)]
        );
        assert_eq!(divided(runs, 20_000, 30_000), [part(Hour, 20_000, 30_000)]);
        // A young history: its minutes say nothing that its seconds do not.
        let young: [&[(u64, u64)]; 3] =
            [&[(100_030, 101_000)], &[(99_960 + 60, 250_000)], &[(97_200, 8_000_000)]];
        assert_eq!(divided(young, 0, 100_200), [part(Second, 100_030, 100_200)]);
        assert_eq!(divided([&[], &[], &[]], 0, 100), []);
        // A clock that stood at 1970 for a moment, on a machine that has recorded for weeks.
        let started: [&[(u64, u64)]; 3] = [
            &[(7, 907), (2_000_030, 2_001_000)],
            &[(0, 172_800), (1_000_020, 2_172_820)],
            &[(900_000, 9_000_000)],
        ];
        assert_eq!(
            divided(started, 950_000, 2_000_300),
            [
                part(Second, 2_000_040, 2_000_300),
                part(Minute, 1_000_800, 2_000_040),
                part(Hour, 950_000, 1_000_800)
            ]
        );
        assert_eq!(divided(started, 0, 500), [part(Second, 7, 500)]);
        // No part twice, none left out that a tier has.
        let all = divided(started, 0, 2_000_300);
        assert!(all.windows(2).all(|two| two[1].to <= two[0].after), "{all:?}");
    }
}
