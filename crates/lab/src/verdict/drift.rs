//! Whether a steady load stays as it was: its rate and its latency by a straight line through all periods, the memory
//! and the descriptors of every process from the second period to the last. Pure.
//!
//! A change counts where it is beyond the noise, and for a process where it is more than a quarter and goes on to the end.

use crate::{
    cell::Record,
    expect::{Analysis, line},
    observe::ProcessUse,
};

/// Periods from which on a line says something.
pub const PERIODS_MIN: usize = 4;
/// What a rate must lose at least, however quiet the machine.
const CHANGE_MIN: f64 = 0.05;
/// Latency differs more than rates do.
const SLOWER_MIN: f64 = 0.25;
/// What a process must grow by to be named.
const GROWTH: f64 = 0.25;
/// And at least by so much memory, in bytes,
const GROWTH_BYTES: u64 = 64 << 20;
/// or by so many descriptors.
const GROWTH_DESCRIPTORS: u64 = 16;

/// Processes that are shown at most.
const HELD: usize = 4;

/// How a steady load went on.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Drift {
    /// Periods measured.
    pub periods: usize,
    /// Change of the rate from the first to the last period, by the line; -0.3 is 30 % less.
    pub rate: f64,
    /// Change of the mean latency likewise; absent where the engine tells none.
    pub latency: Option<f64>,
    /// Processes that hold much more at the end.
    pub grown: Vec<String>,
    /// The largest processes at the end, whether they grew or not.
    pub held: Vec<String>,
}

/// Gathers it from the records of the periods; `None` of too few.
pub fn drift(analysis: &Analysis, records: &[Record]) -> Option<Drift> {
    let points = &analysis.points;
    if points.len() < PERIODS_MIN {
        return None;
    }
    let rates: Vec<(f64, f64)> = points.iter().map(|p| (f64::from(p.step), p.measured)).collect();
    let of = |step: u32| records.iter().find(|r| r.cell.step == step && r.figures.is_some());
    let latency = |step: u32| Some(of(step)?.figures.as_ref()?.latency?.mean);
    let latencies: Vec<(f64, f64)> =
        points.iter().filter_map(|p| Some((f64::from(p.step), latency(p.step)?))).collect();
    // The first period warms up: the second is what the last is held against.
    let held = |step: u32| of(step).map(|record| record.usage.processes.as_slice());
    let (first, middle) = (held(points[1].step)?, held(points[points.len() / 2].step)?);
    let last = held(points.last()?.step)?;
    let (grown, held) = held_more(first, middle, last);
    Some(Drift { periods: points.len(), rate: change(&rates)?, latency: change(&latencies), grown, held })
}

/// The processes that hold much more than at first and still grow, and the largest of all, in words. What has stopped
/// growing by the middle has filled its caches, or has just been started.
fn held_more(first: &[ProcessUse], middle: &[ProcessUse], last: &[ProcessUse]) -> (Vec<String>, Vec<String>) {
    let grew = |first: u64, middle: u64, last: u64, least: u64| {
        let by = last.saturating_sub(first);
        by >= least && last as f64 > first as f64 * (1.0 + GROWTH) && last.saturating_sub(middle) >= by / 3
    };
    let (mut grown, mut held) = (Vec::new(), Vec::new());
    for now in last {
        let find = |list: &'_ [ProcessUse]| list.iter().find(|one| one.pid == now.pid).cloned();
        let (Some(a), Some(b)) = (find(first), find(middle)) else { continue };
        let words = words(&a, now);
        if grew(a.resident, b.resident, now.resident, GROWTH_BYTES)
            || grew(a.descriptors, b.descriptors, now.descriptors, GROWTH_DESCRIPTORS)
        {
            grown.push(words.clone());
        }
        if held.len() < HELD {
            held.push(words);
        }
    }
    (grown, held)
}

fn words(before: &ProcessUse, now: &ProcessUse) -> String {
    let mib = |bytes: u64| bytes >> 20;
    format!(
        "{} {}: {} to {} MiB, {} to {} descriptors",
        now.name,
        now.pid,
        mib(before.resident),
        mib(now.resident),
        before.descriptors,
        now.descriptors
    )
}

/// Change from the first to the last by the line through all, as a part of the first.
fn change(values: &[(f64, f64)]) -> Option<f64> {
    let line = line::through(values)?;
    let (first, last) = (line.at(values.first()?.0), line.at(values.last()?.0));
    (first > 0.0).then(|| last / first - 1.0)
}

fn signed(part: f64) -> String {
    format!("{:+.0} %", part * 100.0)
}

impl Drift {
    /// What changed, in words.
    pub fn said(&self) -> String {
        let latency = self.latency.map_or(String::new(), |by| format!(", mean latency by {}", signed(by)));
        let rate = signed(self.rate);
        format!("over {} periods the rate changed by {rate}{latency}, by a straight line", self.periods)
    }
    /// Whether the rate fell by more than noise can do.
    pub fn falls(&self, noise: f64) -> bool {
        self.rate < -CHANGE_MIN.max(2.0 * noise)
    }
    /// Whether operations took longer by more than noise can do.
    pub fn slower(&self, noise: f64) -> bool {
        self.latency.is_some_and(|by| by > SLOWER_MIN.max(4.0 * noise))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_still_grows_is_named() {
        let of = |mib: [u64; 3], descriptors: [u64; 3]| {
            let one = |i: usize| {
                let (resident, descriptors) = (mib[i] << 20, descriptors[i]);
                vec![ProcessUse { name: "ropewalk serve".into(), pid: 7, resident, descriptors }]
            };
            held_more(&one(0), &one(1), &one(2))
        };
        let (grown, held) = of([100, 200, 300], [10, 10, 10]);
        assert_eq!(grown, ["ropewalk serve 7: 100 to 300 MiB, 10 to 10 descriptors"]);
        assert_eq!(grown, held);
        assert!(of([100, 290, 300], [10, 10, 10]).0.is_empty(), "its caches are full");
        assert!(of([100, 110, 120], [10, 12, 14]).0.is_empty(), "little");
        assert_eq!(of([100, 100, 100], [10, 500, 1000]).0.len(), 1, "descriptors");
        assert_eq!(held_more(&[], &[], &[]), (Vec::new(), Vec::new()));
    }
}
