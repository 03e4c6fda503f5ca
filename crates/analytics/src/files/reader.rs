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

/// Divides the time (`after`, `to`] among the tiers: each part from the finest that reaches so far back.
pub fn parts(dir: &Path, after: u64, to: u64) -> io::Result<Vec<Part>> {
    let mut firsts = [None; 3];
    for (first, tier) in firsts.iter_mut().zip(Tier::ALL) {
        *first = tier::files(dir, tier)?.first().map(|file| file.begin);
    }
    Ok(divide(firsts, after, to))
}

/// `firsts`: where each tier begins.
fn divide(firsts: [Option<u64>; 3], after: u64, mut to: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    for (at, tier) in Tier::ALL.into_iter().enumerate() {
        let Some(first) = firsts[at] else { continue };
        // Where a coarser one reaches further back, this one begins with a whole record of it.
        let coarser = (at + 1..3).find_map(|next| {
            let unit = Tier::ALL[next].resolution();
            firsts[next].filter(|begin| *begin < first / unit * unit).map(|_| first.div_ceil(unit) * unit)
        });
        let begin = coarser.unwrap_or(0).max(after);
        if begin < to {
            parts.push(Part { tier, after: begin, to });
            to = begin;
        }
    }
    parts
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
        let firsts = [Some(100_030), Some(50_040), Some(7200)];
        assert_eq!(divide(firsts, 100_100, 100_200), [part(Second, 100_100, 100_200)]);
        assert_eq!(
            divide(firsts, 0, 100_200),
            [part(Second, 100_080, 100_200), part(Minute, 50_400, 100_080), part(Hour, 0, 50_400)]
        );
        assert_eq!(divide(firsts, 20_000, 30_000), [part(Hour, 20_000, 30_000)]);
        // A young history: its minutes say nothing that its seconds do not.
        let young = [Some(100_030), Some(99_960 + 60), Some(97_200)];
        assert_eq!(divide(young, 0, 100_200), [part(Second, 0, 100_200)]);
        assert_eq!(divide([None; 3], 0, 100), []);
    }
}
