//! What many jobs say together: the metrics of the source. Pure: jobs in, figures out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    catalogue::Class,
    job::{Job, Outcome},
};
use crate::observe::median;

/// A job is starved if it takes so many times the median of its test, of so many jobs at least.
const STARVED: f64 = 3.0;
const STARVED_OF: usize = 3;

/// All jobs of one run of the workload.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Summary {
    /// Jobs.
    pub jobs: usize,
    /// Cumulative real time of all jobs, in minutes: the workload's response time.
    pub real_minutes: f64,
    /// User and system time of all jobs, in minutes, times the factor.
    pub cpu_minutes: f64,
    /// CPU time by real time. Below 1 jobs wait, for files or for CPUs.
    pub ratio: f64,
    /// What CPU time was multiplied by.
    pub factor: f64,
    /// From the first job's start to the last one's end, in seconds.
    pub elapsed_s: f64,
    /// Jobs that ran at a time, on average.
    pub concurrency: f64,
    /// The most that ran at a time.
    pub concurrency_most: usize,
    /// Bytes a second on each node on average, read and written.
    pub bytes_per_second: BTreeMap<u32, f64>,
    /// Bytes a second on each node in its busiest second. A job's bytes count as spread evenly over its time.
    pub peak_bytes_per_second: BTreeMap<u32, f64>,
    /// Each test.
    pub tests: Vec<TestSummary>,
    /// Jobs that did not give what was expected, and why.
    pub bad: Vec<String>,
    /// Jobs that were starved.
    pub starved: Vec<String>,
}

/// All jobs of one test.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TestSummary {
    /// The test.
    pub test: String,
    /// Its class.
    pub class: Class,
    /// Its engine.
    pub engine: String,
    /// Jobs.
    pub jobs: usize,
    /// Those with the right values.
    pub right: usize,
    /// Real time in seconds: the shortest, the median, the longest.
    pub real_s: [f64; 3],
    /// User time of all, in seconds.
    pub user_s: f64,
    /// System time of all, in seconds.
    pub system_s: f64,
    /// The most that one held.
    pub memory_bytes: u64,
    /// Context switches of all, voluntary or not.
    pub switches: u64,
    /// Bytes read by all.
    pub read_bytes: i64,
    /// Bytes written by all.
    pub written_bytes: i64,
}

impl TestSummary {
    /// Spread of its real times: of the middle half by the median. `None` for fewer than four.
    pub fn spread(jobs: &[&Job]) -> Option<f64> {
        let mut times: Vec<f64> = jobs.iter().map(|job| job.used.real_s).collect();
        times.sort_by(f64::total_cmp);
        let quarter = times.len() / 4;
        (quarter > 0).then(|| {
            (times[times.len() - 1 - quarter] - times[quarter]) / median(&times).max(f64::MIN_POSITIVE)
        })
    }
}

/// Jobs by test, in the order of their names.
pub fn by_test(jobs: &[Job]) -> BTreeMap<&str, Vec<&Job>> {
    let mut tests: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
    jobs.iter().for_each(|job| tests.entry(&job.test).or_default().push(job));
    tests
}

/// Sums jobs up. `factor` is what CPU time is multiplied by: 1 where the system counts seconds on a CPU.
pub fn summarise(jobs: &[Job], factor: f64) -> Summary {
    let sum = |of: fn(&Job) -> f64| jobs.iter().map(of).sum::<f64>();
    let real = sum(|job| job.used.real_s);
    let cpu = sum(|job| job.used.user_s + job.used.system_s) * factor;
    let elapsed = jobs.iter().map(|job| job.started_s + job.used.real_s).fold(0.0, f64::max);
    let mut all = Summary {
        jobs: jobs.len(),
        real_minutes: real / 60.0,
        cpu_minutes: cpu / 60.0,
        ratio: cpu / real.max(f64::MIN_POSITIVE),
        factor,
        elapsed_s: elapsed,
        concurrency: real / elapsed.max(f64::MIN_POSITIVE),
        concurrency_most: most(jobs),
        ..Summary::default()
    };
    for (test, jobs) in by_test(jobs) {
        let times: Vec<f64> = jobs.iter().map(|job| job.used.real_s).collect();
        let middle = median(&times);
        let (low, high) = times.iter().fold((f64::MAX, 0.0f64), |(l, h), t| (l.min(*t), h.max(*t)));
        let right = jobs.iter().filter(|job| job.outcome == Outcome::Right).count();
        all.tests.push(TestSummary {
            test: test.to_owned(),
            class: jobs[0].class,
            engine: jobs[0].engine.clone(),
            jobs: jobs.len(),
            right,
            real_s: [low, middle, high],
            user_s: jobs.iter().map(|job| job.used.user_s).sum(),
            system_s: jobs.iter().map(|job| job.used.system_s).sum(),
            memory_bytes: jobs.iter().map(|job| job.used.memory_bytes).max().unwrap_or(0),
            switches: jobs.iter().map(|job| job.used.voluntary + job.used.involuntary).sum(),
            read_bytes: jobs.iter().map(|job| job.used.read_bytes).sum(),
            written_bytes: jobs.iter().map(|job| job.used.written_bytes).sum(),
        });
        for job in jobs {
            match &job.outcome {
                Outcome::Right => {}
                Outcome::Wrong(why) => all.bad.push(format!("{}: wrong: {why}", job.name())),
                Outcome::Failed(why) => all.bad.push(format!("{}: failed: {why}", job.name())),
            }
            if times.len() >= STARVED_OF && job.used.real_s > STARVED * middle {
                let (took, times) = (job.used.real_s, job.used.real_s / middle);
                all.starved
                    .push(format!("{}: {took:.1} s, {times:.1} times the median of its test", job.name()));
            }
        }
    }
    all.tests.sort_by_key(|test| test.class);
    for node in 1..=jobs.iter().map(|job| job.node).max().unwrap_or(0) {
        let (mean, peak) = rates(jobs, node, elapsed);
        all.bytes_per_second.insert(node, mean);
        all.peak_bytes_per_second.insert(node, peak);
    }
    all
}

/// The most jobs that ran at one time.
fn most(jobs: &[Job]) -> usize {
    let ends = jobs.iter().flat_map(|job| [(job.started_s, 1), (job.started_s + job.used.real_s, -1)]);
    let mut ends: Vec<(f64, isize)> = ends.collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut now = 0;
    ends.into_iter()
        .map(|(_, step)| {
            now += step;
            now
        })
        .max()
        .map_or(0, |most| most.max(0) as usize)
}

/// Bytes a second of a node: on average, and in its busiest second.
fn rates(jobs: &[Job], node: u32, elapsed: f64) -> (f64, f64) {
    let own = || jobs.iter().filter(|job| job.node == node);
    let mut seconds = vec![0.0; (elapsed.ceil() as usize).clamp(1, 1 << 20)];
    for job in own() {
        let (from, to) = (job.started_s, job.started_s + job.used.real_s.max(1e-3));
        let rate = job.bytes() / (to - from);
        let last = (to as usize).min(seconds.len() - 1);
        for (second, sum) in seconds.iter_mut().enumerate().take(last + 1).skip(from as usize) {
            let inside = to.min(second as f64 + 1.0) - from.max(second as f64);
            *sum += rate * inside.max(0.0);
        }
    }
    let mean = own().map(Job::bytes).sum::<f64>() / elapsed.max(1e-3);
    (mean, seconds.into_iter().fold(mean, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::job::Used;

    fn job(test: &str, node: u32, number: u32, started_s: f64, real_s: f64) -> Job {
        let used =
            Used { real_s, user_s: real_s / 2.0, read_bytes: 3000, written_bytes: 1000, ..Used::default() };
        let (test, engine) = (test.to_owned(), "sort".to_owned());
        Job { test, class: Class::Io, engine, node, number, started_s, used, outcome: Outcome::Right }
    }

    #[test]
    fn real_time_cpu_time_rates_and_those_that_starve() {
        let mut jobs = vec![
            job("a", 1, 1, 0.0, 2.0),
            job("a", 1, 2, 0.0, 2.0),
            job("a", 1, 3, 2.0, 8.0),
            job("b", 2, 1, 9.5, 0.5),
        ];
        jobs[3].outcome = Outcome::Wrong("crc is 1".into());
        let all = summarise(&jobs, 0.6);
        assert!((all.real_minutes * 60.0 - 12.5).abs() < 1e-9);
        assert!((all.ratio - 0.3).abs() < 1e-9 && all.elapsed_s == 10.0);
        assert_eq!((all.concurrency, all.concurrency_most), (1.25, 2));
        assert_eq!(all.tests.len(), 2);
        assert_eq!(all.tests[0].real_s, [2.0, 2.0, 8.0]);
        assert_eq!((all.tests[1].jobs, all.tests[1].right), (1, 0));
        assert_eq!(all.starved, ["n1-a-3: 8.0 s, 4.0 times the median of its test"]);
        assert_eq!(all.bad, ["n2-b-1: wrong: crc is 1"]);
        assert_eq!(all.bytes_per_second[&1], 1200.0);
        assert_eq!(all.peak_bytes_per_second[&1], 4000.0, "two jobs of 4000 bytes in 2 s");
        assert_eq!(all.peak_bytes_per_second[&2], 4000.0, "all within half a second of the last");
        assert_eq!(summarise(&[], 1.0).jobs, 0);
    }
}
