//! Operations as they end, each with who asked, for which file, what, how large and how long it took: counted in
//! rows of one key, closed once a second by [`super::history`].
//! A thread counts into its own shard: one lock that nobody else takes but the closing, no allocation. A shard holds
//! 512 rows in sets of eight. A key that comes when its set is full takes the place of the lightest row (Space-Saving
//! within the set); what that row had counted goes to `other`, by operation. So the sums are exact always, and a row
//! says how much of its key `other` may hold at most.

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
    histogram::{BUCKETS, bucket_of, bucket_start},
};

/// Buckets of latency that a second keeps: halves of powers of two nanoseconds.
pub const LATENCY_BUCKETS: usize = BUCKETS / FINE;
/// Buckets of a [`super::Histogram`] in one of those.
pub(super) const FINE: usize = 16;

const WAYS: usize = 8;
const SETS: usize = 64;
const ROWS: usize = WAYS * SETS;
/// Operations of one kind of record, at most.
const OPS: usize = 128;
const SHARDS_MAX: usize = 16;
/// One record in so many is timed.
const TIMED_ONE_IN: u64 = 1024;
/// Bytes that weigh as much as one operation.
const BYTES_OF_WEIGHT: u64 = 128 << 10;

/// The bucket of a latency.
pub fn latency_bucket(ns: u64) -> usize {
    bucket_of(ns) / FINE
}

/// Where a bucket of latency begins, nanoseconds; that of [`LATENCY_BUCKETS`] is the end of the last.
pub fn latency_start(bucket: usize) -> u64 {
    bucket_start(bucket.min(LATENCY_BUCKETS) * FINE)
}

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

/// What is known of an operation. Fields that do not apply are 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Key {
    /// The session that asked.
    pub session: u64,
    /// The file.
    pub inode: u64,
    /// Its file system.
    pub fs: u32,
    /// The user that asked.
    pub user: u32,
    /// Where: of strips the pdisk, of files what [`offset_octave`] makes of the offset.
    pub place: u32,
    /// What: a number of the set, below 128.
    pub op: u8,
    /// A number of the set.
    pub class: u8,
    /// log2 of its bytes, plus one; 0 without bytes.
    pub size: u8,
}

/// The size octave of so many bytes, as in [`Key::size`].
pub fn size_octave(bytes: u64) -> u8 {
    (u64::BITS - bytes.leading_zeros()) as u8
}

/// The octave of an offset, as in [`Key::place`]: 0 stands for none, so that the beginning of a file is 1.
pub fn offset_octave(offset: Option<u64>) -> u32 {
    offset.map_or(0, |offset| u32::from(size_octave(offset)) + 1)
}

/// What was counted of one key.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Operations.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies together, nanoseconds.
    pub ns: u64,
    /// (bucket, operations) by rising bucket, only buckets with operations.
    pub latency: Vec<(u8, u64)>,
}

impl Amount {
    /// Adds what was counted elsewhere of the same.
    pub fn merge(&mut self, other: &Amount) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.ns = self.ns.saturating_add(other.ns);
        for (bucket, n) in &other.latency {
            match self.latency.binary_search_by_key(bucket, |l| l.0) {
                Ok(at) => self.latency[at].1 += n,
                Err(at) => self.latency.insert(at, (*bucket, *n)),
            }
        }
    }

    /// What decides who is kept apart: operations, and 128 KiB each.
    pub fn weight(&self) -> u64 {
        weight(self.ops, self.bytes)
    }
}

fn weight(ops: u64, bytes: u64) -> u64 {
    ops + bytes / BYTES_OF_WEIGHT
}

#[derive(Clone)]
struct Cells {
    ops: u64,
    bytes: u64,
    ns: u64,
    latency: [u32; LATENCY_BUCKETS],
}

impl Cells {
    const NONE: Cells = Cells { ops: 0, bytes: 0, ns: 0, latency: [0; LATENCY_BUCKETS] };

    fn add(&mut self, bytes: u64, ns: u64) {
        self.ops += 1;
        self.bytes += bytes;
        self.ns = self.ns.saturating_add(ns);
        self.latency[latency_bucket(ns)] += 1;
    }

    fn merge(&mut self, other: &Cells) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.ns = self.ns.saturating_add(other.ns);
        self.latency.iter_mut().zip(&other.latency).for_each(|(all, n)| *all = all.saturating_add(*n));
    }

    fn weight(&self) -> u64 {
        weight(self.ops, self.bytes)
    }

    fn amount(&self) -> Amount {
        let filled = self.latency.iter().enumerate().filter(|(_, n)| **n > 0);
        let latency = filled.map(|(bucket, n)| (bucket as u8, u64::from(*n))).collect();
        Amount { ops: self.ops, bytes: self.bytes, ns: self.ns, latency }
    }
}

/// The rows of one shard.
struct Table {
    /// 0: free.
    tags: Box<[u32; ROWS]>,
    keys: Box<[Key]>,
    cells: Box<[Cells]>,
    /// What of a key had gone to `other` at most when its row began, as weight.
    missed: Box<[u64; ROWS]>,
    /// Of each set, what of a key without a row there may have gone to `other` at most.
    floors: Box<[u64; SETS]>,
    used: Vec<u16>,
    other: Box<[Cells]>,
    recorded: u64,
    timed: Duration,
}

impl Table {
    fn new() -> Table {
        Table {
            tags: Box::new([0; ROWS]),
            keys: vec![Key::default(); ROWS].into(),
            cells: vec![Cells::NONE; ROWS].into(),
            missed: Box::new([0; ROWS]),
            floors: Box::new([0; SETS]),
            used: Vec::with_capacity(ROWS),
            other: vec![Cells::NONE; OPS].into(),
            recorded: 0,
            timed: Duration::ZERO,
        }
    }

    fn add(&mut self, key: &Key, hash: u64, bytes: u64, ns: u64) {
        let tag = (hash >> 32) as u32 | 1;
        let first = set_of(hash) * WAYS;
        let set = first..first + WAYS;
        let found = set.clone().find(|&at| self.tags[at] == tag && self.keys[at] == *key);
        let at = found.unwrap_or_else(|| {
            let free = set.clone().find(|&at| self.tags[at] == 0);
            let at = free.unwrap_or_else(|| self.make_room(set));
            if free.is_some() {
                self.used.push(at as u16);
            }
            (self.tags[at], self.keys[at]) = (tag, *key);
            at
        });
        self.cells[at].add(bytes, ns);
    }

    /// Sends the lightest row of a set to `other`.
    fn make_room(&mut self, set: std::ops::Range<usize>) -> usize {
        let first = set.start;
        let weight = |at: &usize| self.cells[*at].weight() + self.missed[*at];
        let at = set.min_by_key(weight).unwrap_or(first);
        self.missed[at] += self.cells[at].weight();
        self.floors[first / WAYS] = self.missed[at];
        let op = usize::from(self.keys[at].op) % OPS;
        self.other[op].merge(&self.cells[at]);
        self.cells[at] = Cells::NONE;
        at
    }

    fn clear(&mut self) {
        for at in self.used.drain(..).map(usize::from) {
            (self.tags[at], self.missed[at], self.cells[at]) = (0, 0, Cells::NONE);
        }
        self.other.iter_mut().filter(|cells| cells.ops > 0).for_each(|cells| *cells = Cells::NONE);
        self.floors.fill(0);
        (self.recorded, self.timed) = (0, Duration::ZERO);
    }
}

/// What keys are hashed with, drawn anew by each process: nobody can choose files that share a set. Every operation is hashed, so it
/// is a few multiplications, no more.
struct Seed([u64; 4]);

impl Seed {
    fn new() -> Seed {
        let state = RandomState::new();
        Seed([0, 1, 2, 3].map(|n| state.hash_one(n)))
    }

    fn hash(&self, key: &Key) -> u64 {
        let [a, b, c, d] = self.0;
        let owner = u64::from(key.fs) << 32 | u64::from(key.user);
        let what = u64::from(key.op) << 16 | u64::from(key.class) << 8 | u64::from(key.size);
        let place = u64::from(key.place) << 32 | what;
        folded(folded(key.session ^ a, key.inode ^ b) ^ c, folded(owner ^ b, place ^ c) ^ d)
    }
}

/// Both halves of a product.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn set_of(hash: u64) -> usize {
    hash as usize % SETS
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

fn shard_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = Cell::new(THREADS.fetch_add(1, Relaxed)));
    MINE.get()
}

impl Recorder {
    fn new(set: Set, names: Names) -> Recorder {
        static CPUS: LazyLock<usize> =
            LazyLock::new(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        let shards = (*CPUS * 2).min(SHARDS_MAX);
        Recorder {
            set,
            names,
            shards: (0..shards).map(|_| Shard(Mutex::new(Table::new()))).collect(),
            spare: Mutex::new(Table::new()),
            seed: Seed::new(),
        }
    }

    /// Counts one operation of so many bytes that took `latency`.
    pub fn record(&self, key: &Key, bytes: u64, latency: Duration) {
        if !RECORDING.load(Relaxed) {
            return;
        }
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let key = Key { size: size_octave(bytes), ..*key };
        let mut table = self.shards[shard_of_thread() % self.shards.len()].0.lock();
        table.recorded += 1;
        let timed = table.recorded.is_multiple_of(TIMED_ONE_IN).then(cost::thread_cpu);
        let hash = self.seed.hash(&key);
        table.add(&key, hash, bytes, ns);
        if let Some(begun) = timed {
            table.timed += cost::since(begun);
        }
    }

    /// Ends the second: its operations, at most `rows_max` keys of them apart, the sums by operation, and how long the
    /// counting took, by a sample.
    pub(super) fn close(&self, rows_max: usize) -> (Operations, BTreeMap<u8, Amount>, Duration) {
        // The second number: by how much less than the floors of its set a key missed.
        let mut rows: HashMap<Key, (Cells, u64)> = HashMap::new();
        let mut other: BTreeMap<u8, Cells> = BTreeMap::new();
        let mut floors = [0; SETS];
        let mut took = Duration::ZERO;
        let mut spare = self.spare.lock();
        for shard in &self.shards {
            std::mem::swap(&mut *shard.0.lock(), &mut *spare);
            for &at in &spare.used {
                let at = usize::from(at);
                let (cells, less) = rows.entry(spare.keys[at]).or_insert((Cells::NONE, 0));
                cells.merge(&spare.cells[at]);
                *less += spare.floors[at / WAYS] - spare.missed[at];
            }
            floors.iter_mut().zip(&*spare.floors).for_each(|(all, floor)| *all += floor);
            for (op, cells) in spare.other.iter().enumerate().filter(|(_, cells)| cells.ops > 0) {
                other.entry(op as u8).or_insert(Cells::NONE).merge(cells);
            }
            took += spare.timed * TIMED_ONE_IN as u32;
            spare.clear();
        }
        let mut totals = other.clone();
        for (key, (cells, _)) in &rows {
            totals.entry(key.op).or_insert(Cells::NONE).merge(cells);
        }
        let mut rows: Vec<(Key, (Cells, u64))> = rows.into_iter().collect();
        rows.sort_unstable_by_key(|(key, (cells, _))| (std::cmp::Reverse(cells.weight()), *key));
        for (key, (cells, _)) in rows.drain(rows_max.min(rows.len())..) {
            other.entry(key.op).or_insert(Cells::NONE).merge(&cells);
        }
        let row = |(key, (cells, less)): (Key, (Cells, u64))| {
            let missed = floors[set_of(self.seed.hash(&key))] - less;
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
        let row = size_of::<Cells>() + size_of::<Key>() + size_of::<(u32, u64, u16)>();
        (self.shards.len() + 1) * (ROWS * row + OPS * size_of::<Cells>())
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
