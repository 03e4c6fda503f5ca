//! What a campaign found: counts by fault, the longest pause, violations; and the search for the fewest faults with which a
//! round fails.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{
    checker::Class,
    plan::{Kind, Round, Shape, name},
    run::Outcome,
};

/// Counts over all rounds.
#[derive(Default)]
pub struct Summary {
    rounds: u64,
    seed: u64,
    clusters: u64,
    two_pools: u64,
    volatile: u64,
    by_kind: BTreeMap<Kind, u64>,
    longest: (Duration, String),
    recovery: Duration,
    /// Loads with faults, and what comes after them.
    took: (Duration, Duration),
    failed: u64,
    classes: BTreeMap<Class, u64>,
    stories: Vec<String>,
}

impl Summary {
    pub fn new(seed: u64) -> Summary {
        Summary { seed, ..Summary::default() }
    }

    pub fn a_new_cluster(&mut self) {
        self.clusters += 1;
    }

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
        self.took = (self.took.0 + outcome.took.0, self.took.1 + outcome.took.1);
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
        let mean = |time: Duration| time.as_secs_f64() / self.rounds.max(1) as f64;
        let mut text = format!(
            "{} rounds ({} with two pools, {} with disks that forget what was not flushed): {}\n\
             a round took {:.1} s of load and faults, and {:.1} s until all was judged\n\
             longest call of a mount in no fault {:?} ({}); all pdisks ok at most {:?} after the last fault\n\
             {} rounds failed: {:?}",
            self.rounds,
            self.two_pools,
            self.volatile,
            kinds.join(", "),
            mean(self.took.0),
            mean(self.took.1),
            self.longest.0,
            self.longest.1,
            self.recovery,
            self.failed,
            self.classes
        );
        for story in &self.stories {
            text += &format!("\n  {story}");
        }
        text + "\n" + &self.figures()
    }

    /// One line for `scripts/chaos-sum.py`, which adds up what several runners did. The last of a runner counts.
    pub fn figures(&self) -> String {
        let kinds: BTreeMap<&str, u64> = self.by_kind.iter().map(|(kind, n)| (name(*kind), *n)).collect();
        let classes: BTreeMap<String, u64> =
            self.classes.iter().map(|(class, n)| (format!("{class:?}"), *n)).collect();
        let figures = json!({
            "seed": self.seed,
            "rounds": self.rounds,
            "clusters": self.clusters,
            "two_pools": self.two_pools,
            "volatile": self.volatile,
            "faults": kinds,
            "longest_call_s": self.longest.0.as_secs_f64(),
            "longest_call": self.longest.1,
            "longest_recovery_s": self.recovery.as_secs_f64(),
            "load_s": self.took.0.as_secs_f64(),
            "rest_s": self.took.1.as_secs_f64(),
            "failed": self.failed,
            "violations": classes,
            "stories": self.stories,
        });
        format!("figures: {figures}")
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
