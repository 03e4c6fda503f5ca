//! Operations as they end, each with who asked, for which file, what, how large and how long it took: counted in
//! rows of one key, closed once a second by [`super::history`].
//! A thread counts into its own shard ([`table`]): one lock that nobody else takes but the closing, no allocation.

mod table;

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    cost,
    counted::{Amount, Key, size_octave},
};
use table::{Cells, Closed, Packed, SETS, Table, set_of};

const SHARDS_MAX: usize = 16;
/// Of so many that a thread counts one is looked at.
const SAMPLED_ONE_IN: u32 = 1024;

/// What kind of operation is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Set {
    /// What programs ask of a mount.
    File,
    /// Requests to an NSD server.
    Strip,
    /// Requests to the manager.
    Manager,
}

/// What keys are hashed with, drawn anew by each process: nobody can choose files that share a set. Every operation is hashed, so it
/// is a few multiplications, no more.
struct Seed([u64; 4]);

impl Seed {
    fn new() -> Seed {
        let state = RandomState::new();
        Seed([0, 1, 2, 3].map(|n| state.hash_one(n)))
    }

    fn hash(&self, key: Packed) -> u64 {
        let ([a, b, c, d], [session, inode, owner, what]) = (self.0, key.words());
        folded(folded(session ^ a, inode ^ b) ^ c, folded(owner ^ b, what ^ c) ^ d)
    }
}

/// Both halves of a product.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Alone on its cache lines.
#[repr(align(128))]
struct Shard(Mutex<Table>);

/// The names of a set's numbers.
#[derive(Clone, Copy)]
pub struct Names {
    /// Of [`Key::op`].
    pub op: fn(u8) -> &'static str,
    /// Of [`Key::class`].
    pub class: fn(u8) -> &'static str,
}

/// Counts the operations of one set.
pub struct Recorder {
    set: Set,
    names: Names,
    shards: Box<[Shard]>,
    /// Empty; changes places with each shard when it is closed.
    spare: Mutex<Table>,
    /// What counting takes.
    samples: Mutex<cost::Samples>,
    seed: Seed,
}

/// One key of one second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The key.
    pub key: Key,
    /// What was counted of it.
    pub amount: Amount,
    /// What of it may be in `other` at most: operations, or 128 KiB each.
    pub missed: u64,
}

/// The operations of a set in one second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operations {
    /// The set.
    pub set: Set,
    /// The heaviest keys.
    pub rows: Vec<Row>,
    /// The rest, by operation: of these nothing else is known.
    pub other: Vec<(u8, Amount)>,
}

static RECORDING: AtomicBool = AtomicBool::new(true);
static RECORDERS: [OnceLock<Recorder>; 3] = [const { OnceLock::new() }; 3];

/// Whether operations are counted from now on.
pub fn set_recording(on: bool) {
    RECORDING.store(on, Relaxed);
}

/// The recorder of a set in this process, made at the first call.
pub fn recorder(set: Set, names: Names) -> &'static Recorder {
    RECORDERS[set as usize].get_or_init(|| Recorder::new(set, names))
}

/// All that were made.
pub(super) fn recorders() -> impl Iterator<Item = &'static Recorder> {
    RECORDERS.iter().filter_map(OnceLock::get)
}

/// The names of a set's numbers, if this process counts such operations.
pub fn names_of(set: Set) -> Option<Names> {
    RECORDERS[set as usize].get().map(|recorder| recorder.names)
}

/// The number of this thread, and whether what it counts now is looked at.
fn thread() -> (usize, bool) {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<(usize, u32)> = Cell::new((THREADS.fetch_add(1, Relaxed), 0)));
    let (number, counted) = MINE.get();
    let counted = (counted + 1) % SAMPLED_ONE_IN;
    MINE.set((number, counted));
    (number, counted == 0)
}

impl Recorder {
    fn new(set: Set, names: Names) -> Recorder {
        static CPUS: LazyLock<usize> =
            LazyLock::new(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        // A power of two: whoever counts an operation divides by it.
        let shards = (*CPUS * 2).next_power_of_two().min(SHARDS_MAX);
        Recorder {
            set,
            names,
            shards: (0..shards).map(|_| Shard(Mutex::new(Table::new()))).collect(),
            spare: Mutex::new(Table::new()),
            samples: Mutex::default(),
            seed: Seed::new(),
        }
    }

    /// Counts one operation of so many bytes that took `latency`.
    pub fn record(&self, key: &Key, bytes: u64, latency: Duration) {
        if !RECORDING.load(Relaxed) {
            return;
        }
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let key = Packed::of(key, size_octave(bytes));
        let (thread, is_sample) = thread();
        let shard = &self.shards[thread & (self.shards.len() - 1)];
        if !is_sample {
            return self.count(shard, key, bytes, ns);
        }
        let took = cost::sample(cost::thread_cpu, || self.count(shard, key, bytes, ns));
        shard.0.lock().took(took);
    }

    fn count(&self, shard: &Shard, key: Packed, bytes: u64, ns: u64) {
        let hash = self.seed.hash(key);
        shard.0.lock().add(key, hash, bytes, ns);
    }

    /// Ends the second: its operations, at most `rows_max` keys of them apart, the sums by operation, and what CPU time the
    /// counting took.
    pub(super) fn close(&self, rows_max: usize) -> (Operations, BTreeMap<u8, Amount>, Duration) {
        // The second number: by how much less than the floors of its set a key missed.
        let mut rows: HashMap<Key, (Cells, u64)> = HashMap::new();
        let mut totals: BTreeMap<u8, Cells> = BTreeMap::new();
        let mut floors = [0; SETS];
        let (mut recorded, mut sampled) = (0, 0);
        let (mut spare, mut samples) = (self.spare.lock(), self.samples.lock());
        for shard in &self.shards {
            std::mem::swap(&mut *shard.0.lock(), &mut *spare);
            spare.each(|Closed { key, cells, less }| {
                let row = rows.entry(key).or_insert((Cells::NONE, 0));
                row.0.merge(cells);
                row.1 += less;
            });
            floors.iter_mut().zip(spare.floors()).for_each(|(all, floor)| *all += floor);
            for (op, cells) in spare.totals() {
                totals.entry(op).or_insert(Cells::NONE).merge(cells);
            }
            (recorded, sampled) = (recorded + spare.recorded, sampled + spare.sampled);
            samples.add(&spare.samples);
            spare.clear();
        }
        let took = samples.cost(recorded, sampled);
        let mut rows: Vec<(Key, (Cells, u64))> = rows.into_iter().collect();
        rows.sort_unstable_by_key(|(key, (cells, _))| (std::cmp::Reverse(cells.weight()), *key));
        rows.truncate(rows_max);
        // What stands in no row.
        let mut other = totals.clone();
        for (key, (cells, _)) in &rows {
            other.entry(key.op).and_modify(|other| other.take_away(cells));
        }
        other.retain(|_, cells| !cells.is_none());
        let row = |(key, (cells, less)): (Key, (Cells, u64))| {
            let missed = floors[set_of(self.seed.hash(Packed::of(&key, key.size)))] - less;
            Row { key, amount: cells.amount(), missed }
        };
        let amounts = |by_op: BTreeMap<u8, Cells>| by_op.into_iter().map(|(op, cells)| (op, cells.amount()));
        let operations = Operations {
            set: self.set,
            rows: rows.into_iter().map(row).collect(),
            other: amounts(other).collect(),
        };
        (operations, amounts(totals).collect(), took)
    }

    /// Bytes of its tables.
    pub(super) fn memory(&self) -> usize {
        (self.shards.len() + 1) * Table::MEMORY
    }

    /// What it counts.
    pub(super) fn set(&self) -> Set {
        self.set
    }

    /// The name of an operation.
    pub(super) fn op_name(&self, op: u8) -> &'static str {
        (self.names.op)(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{LATENCY_BUCKETS, latency_bucket, latency_start, offset_octave};

    fn own() -> Recorder {
        Recorder::new(Set::File, Names { op: |_| "op", class: |_| "class" })
    }

    fn total(operations: &Operations) -> (u64, u64) {
        let all = operations.rows.iter().map(|row| &row.amount).chain(operations.other.iter().map(|o| &o.1));
        all.fold((0, 0), |(ops, bytes), a| {
            assert_eq!(a.latency.iter().map(|l| l.1).sum::<u64>(), a.ops);
            (ops + a.ops, bytes + a.bytes)
        })
    }

    #[test]
    fn latency_buckets_tile_the_range() {
        for bucket in 0..LATENCY_BUCKETS {
            let (start, end) = (latency_start(bucket), latency_start(bucket + 1));
            assert!(start < end);
            assert_eq!((latency_bucket(start), latency_bucket(end - 1)), (bucket, bucket));
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
        assert_eq!([0, 1, 4095, 4096].map(size_octave), [0, 1, 12, 13]);
        assert_eq!([None, Some(0), Some(4096), Some(u64::MAX)].map(offset_octave), [0, 1, 14, 65]);
    }

    #[test]
    fn sums_are_exact_whatever_the_number_of_files() {
        let recorder = own();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for n in 0..5000u64 {
                        // Every fourth operation is on one file.
                        let inode = if n % 4 == 0 { 7 } else { 1000 + thread * 5000 + n };
                        let key = Key { inode, op: (n % 3) as u8, ..Key::default() };
                        recorder.record(&key, 4096, Duration::from_micros(n));
                    }
                });
            }
        });
        let (operations, totals, _) = recorder.close(100);
        assert_eq!(total(&operations), (20_000, 20_000 * 4096));
        assert_eq!(totals.values().map(|a| a.ops).sum::<u64>(), 20_000);
        assert_eq!(operations.rows.len(), 100);
        // The heavy one is kept whole, or says what it lacks.
        let heavy: Vec<_> = operations.rows.iter().filter(|row| row.key.inode == 7).collect();
        let (counted, missed) = heavy.iter().fold((0, 0), |(c, m), r| (c + r.amount.ops, m + r.missed));
        assert!(counted <= 5000 && counted + missed >= 5000, "{counted} and at most {missed}");
        assert!(counted > 4000, "{counted}");
        assert_eq!(total(&recorder.close(100).0), (0, 0));
    }

    #[test]
    fn the_latencies_of_all_are_those_that_were_given() {
        let recorder = own();
        let mut given = BTreeMap::new();
        // Rows of one operation, of two, of many; some with their first again after they had to go.
        for n in 0..6000u64 {
            let inode = [n, n / 2, n % 3][(n % 3) as usize];
            let latency = Duration::from_nanos(n * n % 5_000_011);
            *given.entry(latency_bucket(latency.as_nanos() as u64) as u8).or_insert(0) += 1;
            recorder.record(&Key { inode, ..Key::default() }, 1, latency);
        }
        for again in [false, true] {
            let (operations, totals, _) = recorder.close(200);
            let mut all = Amount::default();
            operations.rows.iter().for_each(|row| all.merge(&row.amount));
            operations.other.iter().for_each(|(_, amount)| all.merge(amount));
            assert_eq!(all, totals.get(&0).cloned().unwrap_or_default());
            assert_eq!(all.latency, if again { Vec::new() } else { given.clone().into_iter().collect() });
        }
    }

    #[test]
    fn counting_costs_something_and_nothing_costs_nothing() {
        let recorder = own();
        for n in 0..u64::from(50 * SAMPLED_ONE_IN) {
            recorder.record(&Key { inode: n % 40, ..Key::default() }, 4096, Duration::from_micros(n));
        }
        let (operations, _, took) = recorder.close(512);
        assert_eq!(total(&operations).0, u64::from(50 * SAMPLED_ONE_IN));
        assert!(took > Duration::ZERO);
        assert_eq!(recorder.close(512).2, Duration::ZERO, "a second in which nothing was counted");
    }

    #[test]
    fn a_few_files_are_kept_exactly() {
        let recorder = own();
        for n in 0..1000u64 {
            let key = Key { inode: n % 10, user: 5, ..Key::default() };
            recorder.record(&key, n % 10, Duration::from_millis(1));
        }
        let (operations, ..) = recorder.close(512);
        assert!(operations.other.is_empty());
        assert_eq!(operations.rows.len(), 10);
        assert!(operations.rows.iter().all(|row| row.amount.ops == 100 && row.missed == 0));
    }
}
