//! What a campaign found: counts by fault, the longest pause, violations; and the search for the fewest faults with which a
//! round fails.

use std::{collections::BTreeMap, time::Duration};

use super::{
    checker::Class,
    plan::{Kind, Round, Shape, name},
    run::Outcome,
};

/// Counts over all rounds.
#[derive(Default)]
pub struct Summary {
    rounds: u64,
    two_pools: u64,
    volatile: u64,
    by_kind: BTreeMap<Kind, u64>,
    longest: (Duration, String),
    recovery: Duration,
    failed: u64,
    classes: BTreeMap<Class, u64>,
    stories: Vec<String>,
}

impl Summary {
    pub fn add(&mut self, round: &Round, shape: Shape, outcome: &Outcome) {
        self.rounds += 1;
        self.two_pools += u64::from(shape.two_pools);
        self.volatile += u64::from(shape.volatile);
        for fault in &round.faults {
            *self.by_kind.entry(fault.kind).or_default() += 1;
        }
        if outcome.longest.0 > self.longest.0 {
            self.longest = outcome.longest.clone();
        }
        self.recovery = self.recovery.max(outcome.recovery);
        self.failed += u64::from(!outcome.wrong.is_empty());
        for wrong in &outcome.wrong {
            *self.classes.entry(wrong.class).or_default() += 1;
        }
    }

    pub fn is_clean(&self) -> bool {
        self.failed == 0
    }

    /// A failing round, with what is left of it.
    pub fn shrunk(&mut self, round: &Round, smallest: Option<&Round>, runs: u64) {
        let said = |round: &Round| {
            let faults: Vec<String> = round.faults.iter().map(super::plan::Fault::say).collect();
            faults.join(", ")
        };
        let found = match smallest {
            _ if runs == 0 => String::new(),
            Some(smallest) => format!("; fails on a new cluster with: {}", said(smallest)),
            None => format!("; did not fail again on a new cluster in {runs} runs"),
        };
        self.stories.push(format!("round {}: {}{found}", round.number, said(round)));
    }

    pub fn text(&self) -> String {
        let kinds: Vec<String> =
            self.by_kind.iter().map(|(kind, n)| format!("{} {n}", name(*kind))).collect();
        let mut text = format!(
            "{} rounds ({} with two pools, {} with disks that forget what was not flushed): {}\n\
             longest call of a mount in no fault {:?} ({}); all pdisks ok at most {:?} after the last fault\n\
             {} rounds failed: {:?}",
            self.rounds,
            self.two_pools,
            self.volatile,
            kinds.join(", "),
            self.longest.0,
            self.longest.1,
            self.recovery,
            self.failed,
            self.classes
        );
        for story in &self.stories {
            text += &format!("\n  {story}");
        }
        text
    }
}

/// The round with the fewest of its faults that still fails, found in `runs` runs at most. `None`: none failed, not even with all.
pub fn shrink(round: &Round, runs: u64, mut fails: impl FnMut(&Round) -> bool) -> Option<Round> {
    let mut left = runs;
    let mut try_it = |candidate: &Round| {
        let run = left > 0;
        left = left.saturating_sub(1);
        run && fails(candidate)
    };
    // Twice: the interleaving is never the same.
    if !try_it(round) && !try_it(round) {
        return None;
    }
    let (mut smallest, mut at) = (round.clone(), 0);
    while at < smallest.faults.len() {
        let mut fewer = smallest.clone();
        fewer.faults.remove(at);
        if try_it(&fewer) {
            smallest = fewer;
        } else {
            at += 1;
        }
    }
    Some(smallest)
}

#[cfg(test)]
mod tests {
    use super::{
        super::plan::{TABLE, round},
        *,
    };

    #[test]
    fn the_fault_that_matters_is_left() {
        let kinds: Vec<Kind> = TABLE.iter().map(|row| row.kind).collect();
        let many = (0..).map(|n| round(3, n, &kinds)).find(|r| r.faults.len() == 4).unwrap();
        let guilty = many.faults[2].clone();
        let mut runs = 0;
        let smallest = shrink(&many, 10, |round| {
            runs += 1;
            round.faults.contains(&guilty)
        });
        assert_eq!(smallest.unwrap().faults, [guilty]);
        assert!(runs <= 10);
        assert_eq!(shrink(&many, 10, |_| false), None);
        assert_eq!(shrink(&many, 1, |_| true).unwrap().faults, many.faults, "no runs are left");
    }
}
