//! Which record a thread visits next, and whether it reads or writes it. Pure; the same job gives the
//! same visits.

use super::job::{Job, Operation, Pattern};

/// What to do with one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visit {
    /// Where the record starts.
    pub offset: u64,
    /// Read it, or else write it.
    pub read: bool,
}

/// The visits of one thread.
pub struct Visits {
    job: Job,
    thread: u64,
    /// Visits left.
    left: u64,
    /// Visits made.
    made: u64,
    /// Own records, for `seq`: first and count.
    part: (u64, u64),
    random: u64,
    /// Hundredths of a read that are owed.
    owed: u32,
}

impl Visits {
    /// The visits of thread `thread` of the job's threads.
    pub fn new(job: &Job, thread: u32) -> Visits {
        let (threads, thread) = (u64::from(job.spec.threads), u64::from(thread));
        let cut = |n: u64, t: u64| (u128::from(n) * u128::from(t) / u128::from(threads)) as u64;
        let records = job.file_bytes / job.record_bytes;
        let ops = job.transfer_bytes / job.record_bytes;
        let first = cut(records, thread);
        Visits {
            thread,
            left: cut(ops, thread + 1) - cut(ops, thread),
            made: 0,
            part: (first, cut(records, thread + 1) - first),
            random: mix(job.spec.seed ^ mix(thread + 1)),
            owed: 0,
            job: job.clone(),
        }
    }

    fn record(&mut self) -> u64 {
        let records = self.job.file_bytes / self.job.record_bytes;
        match self.job.spec.pattern {
            Pattern::Seq => self.part.0 + self.made % self.part.1.max(1),
            Pattern::Rand => {
                self.random = self.random.wrapping_add(GOLDEN);
                // The high half of a product: even over any number of records.
                ((u128::from(mix(self.random)) * u128::from(records)) >> 64) as u64
            }
            Pattern::Strided => self.strided(records),
        }
    }

    /// Rounds of records a stride apart; when the end is reached, the next round begins so far on that
    /// after all rounds every record was visited once.
    fn strided(&self, records: u64) -> u64 {
        let stride = self.job.stride_bytes / self.job.record_bytes;
        let threads = u64::from(self.job.spec.threads);
        let rounds = stride.saturating_sub(self.thread).div_ceil(threads);
        // Records left over after whole strides: rounds that begin in them have one step more.
        let (steps, rest) = (records / stride, records % stride);
        let long = rest.saturating_sub(self.thread).div_ceil(threads);
        let in_long = long * (steps + 1);
        let all = in_long + (rounds - long) * steps;
        let visit = self.made % all.max(1);
        let (round, step) = if visit < in_long {
            (visit / (steps + 1), visit % (steps + 1))
        } else {
            (long + (visit - in_long) / steps, (visit - in_long) % steps)
        };
        self.thread + round * threads + step * stride
    }

    /// The read ratio without chance: after any number of visits it is kept to within one record.
    fn is_read(&mut self) -> bool {
        match self.job.spec.operation {
            Operation::Read => true,
            Operation::MixRw => {
                self.owed += self.job.spec.read_ratio;
                let read = self.owed >= 100;
                self.owed -= if read { 100 } else { 0 };
                read
            }
            Operation::Create | Operation::Write | Operation::Uncache => false,
        }
    }
}

impl Iterator for Visits {
    type Item = Visit;
    fn next(&mut self) -> Option<Visit> {
        self.left = self.left.checked_sub(1)?;
        let offset = self.record() * self.job.record_bytes;
        self.made += 1;
        Some(Visit { offset, read: self.is_read() })
    }
}

/// Step of the sequence that is mixed: 2^64 divided by the golden ratio (splitmix64).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::job::{Spec, spec};

    fn job(pattern: Pattern, threads: u32, records: u64, ops: u64) -> Job {
        Job {
            spec: Spec { threads, seed: 7, ..spec(Operation::MixRw, pattern) },
            record_bytes: 4096,
            file_bytes: records * 4096,
            transfer_bytes: ops * 4096,
            stride_bytes: u64::from(threads) * 4096,
        }
    }

    fn records(job: &Job, thread: u32) -> Vec<u64> {
        Visits::new(job, thread).map(|v| v.offset / job.record_bytes).collect()
    }

    #[test]
    fn sequential_threads_have_a_part_each_and_cycle_in_it() {
        let six = job(Pattern::Seq, 6, 60, 60);
        assert_eq!(records(&six, 0), (0..10).collect::<Vec<_>>());
        assert_eq!(records(&six, 5), (50..60).collect::<Vec<_>>());
        let twice = job(Pattern::Seq, 2, 4, 8);
        assert_eq!(records(&twice, 1), [2, 3, 2, 3]);
    }

    #[test]
    fn strided_threads_interleave() {
        let six = job(Pattern::Strided, 6, 60, 60);
        assert_eq!(records(&six, 0), (0..10).map(|i| i * 6).collect::<Vec<_>>());
        let wide = Job { stride_bytes: 4 * 4096, ..job(Pattern::Strided, 2, 10, 10) };
        assert_eq!(records(&wide, 0), [0, 4, 8, 2, 6]);
        let mut all: Vec<u64> = (0..2).flat_map(|t| records(&wide, t)).collect();
        all.sort();
        assert_eq!(all, (0..10).collect::<Vec<_>>(), "every record once");
    }

    #[test]
    fn random_threads_visit_the_whole_file_each_in_its_own_order() {
        let job = job(Pattern::Rand, 2, 1000, 20_000);
        let (a, b) = (records(&job, 0), records(&job, 1));
        assert_eq!(a.len() + b.len(), 20_000);
        assert_ne!(a[..50], b[..50]);
        assert_eq!(a, records(&job, 0), "repeatable");
        let seen: std::collections::BTreeSet<u64> = a.into_iter().collect();
        assert!(seen.len() > 990 && seen.iter().all(|&r| r < 1000), "{}", seen.len());
    }

    #[test]
    fn seven_of_ten_records_are_read() {
        let job = job(Pattern::Seq, 1, 100, 100);
        let visits: Vec<bool> = Visits::new(&job, 0).map(|v| v.read).collect();
        assert!(visits.chunks(10).all(|ten| ten.iter().filter(|&&read| read).count() == 7));
        for operation in [Operation::Read, Operation::Write] {
            let mut all = job.clone();
            all.spec.operation = operation;
            assert!(Visits::new(&all, 0).all(|v| v.read == (operation == Operation::Read)));
        }
    }
}
