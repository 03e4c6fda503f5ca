//! The rows of one shard: 512 in sets of eight. A key that comes when its set is full takes the place of the lightest row
//! (Space-Saving within the set); what that row had counted goes to `other`, by operation. So the sums are exact always, and a
//! row says how much of its key `other` may hold at most.
//!
//! A row is one line of a CPU's cache. Its distribution of latencies stands apart, and begins with the second operation: of the
//! first the sum of the latencies says all. Where each operation is of another file no row has one, and rows come and go
//! by the touch of two lines.

use crate::stats::{
    cost::Sample,
    counted::{Amount, Key, weight},
    histogram::{LATENCY_BUCKETS, latency_bucket},
};

const WAYS: usize = 8;
pub(super) const SETS: usize = 64;
const ROWS: usize = WAYS * SETS;
/// Operations of one kind of record, at most.
const OPS: usize = 128;
/// Samples of what counting takes, of one second.
const SAMPLES: usize = 64;

/// What was counted of a key, or of many.
#[derive(Clone)]
pub(super) struct Cells {
    ops: u64,
    bytes: u64,
    ns: u64,
    latency: Latency,
}

type Latency = [u32; LATENCY_BUCKETS];

impl Cells {
    pub const NONE: Cells = Cells { ops: 0, bytes: 0, ns: 0, latency: [0; LATENCY_BUCKETS] };

    pub fn merge(&mut self, other: &Cells) {
        self.add(other.ops, other.bytes, other.ns);
        add_all(&mut self.latency, &other.latency);
    }

    fn add(&mut self, ops: u64, bytes: u64, ns: u64) {
        self.ops += ops;
        self.bytes += bytes;
        self.ns = self.ns.saturating_add(ns);
    }

    pub fn weight(&self) -> u64 {
        weight(self.ops, self.bytes)
    }

    pub fn amount(&self) -> Amount {
        let filled = self.latency.iter().enumerate().filter(|(_, n)| **n > 0);
        let latency = filled.map(|(bucket, n)| (bucket as u8, u64::from(*n))).collect();
        Amount { ops: self.ops, bytes: self.bytes, ns: self.ns, latency }
    }
}

fn add_all(all: &mut Latency, more: &Latency) {
    all.iter_mut().zip(more).for_each(|(all, n)| *all = all.saturating_add(*n));
}

/// Without `ops`: free.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Row {
    key: Key,
    ops: u64,
    bytes: u64,
    ns: u64,
    /// What of the key had gone to `other` at most when the row began, as weight.
    missed: u64,
}

const _: () = assert!(size_of::<Row>() == 64, "one line");

impl Row {
    fn weight(&self) -> u64 {
        weight(self.ops, self.bytes)
    }
}

/// A row as a second ends.
pub(super) struct Closed<'a> {
    pub key: &'a Key,
    pub cells: &'a Cells,
    /// By how much less than its set's floor the key missed.
    pub less: u64,
}

/// See the file's head.
pub(super) struct Table {
    /// Parts of the keys' hashes.
    tags: Box<[u32; ROWS]>,
    rows: Box<[Row]>,
    /// Of rows with more than one operation.
    latency: Box<[Latency]>,
    /// Of each set, what of a key without a row there may have gone to `other` at most.
    floors: Box<[u64; SETS]>,
    used: Vec<u16>,
    other: Box<[Cells]>,
    pub recorded: u64,
    /// What counting some of them took, and of how many that is known.
    pub samples: Vec<Sample>,
    pub sampled: u64,
}

pub(super) fn set_of(hash: u64) -> usize {
    hash as usize % SETS
}

impl Table {
    pub const MEMORY: usize = ROWS * (size_of::<Row>() + size_of::<Latency>() + size_of::<(u32, u16)>())
        + OPS * size_of::<Cells>()
        + SAMPLES * size_of::<Sample>();

    pub fn new() -> Table {
        Table {
            tags: Box::new([0; ROWS]),
            rows: vec![Row::default(); ROWS].into(),
            latency: vec![[0; LATENCY_BUCKETS]; ROWS].into(),
            floors: Box::new([0; SETS]),
            used: Vec::with_capacity(ROWS),
            other: vec![Cells::NONE; OPS].into(),
            recorded: 0,
            samples: Vec::with_capacity(SAMPLES),
            sampled: 0,
        }
    }

    /// Counts one operation of a key.
    pub fn add(&mut self, key: &Key, hash: u64, bytes: u64, ns: u64) {
        self.recorded += 1;
        let tag = (hash >> 32) as u32 | 1;
        let first = set_of(hash) * WAYS;
        let tags = &self.tags[first..first + WAYS];
        let found = (0..WAYS).find(|&way| tags[way] == tag && self.rows[first + way].key == *key);
        let Some(way) = found else { return self.begin(key, tag, first, bytes, ns) };
        let (row, latency) = (&mut self.rows[first + way], &mut self.latency[first + way]);
        if row.ops == 1 {
            latency[latency_bucket(row.ns)] = 1;
        }
        row.ops += 1;
        row.bytes += bytes;
        row.ns = row.ns.saturating_add(ns);
        latency[latency_bucket(ns)] += 1;
    }

    /// What counting an operation took; a second keeps the first ones.
    pub fn took(&mut self, sample: Sample) {
        self.sampled += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(sample);
        }
    }

    /// A row for a key that has none, with its first operation.
    fn begin(&mut self, key: &Key, tag: u32, first: usize, bytes: u64, ns: u64) {
        let set = first..first + WAYS;
        let (at, missed) = match set.clone().find(|&at| self.tags[at] == 0) {
            Some(at) => {
                self.used.push(at as u16);
                (at, 0)
            }
            None => self.make_room(set),
        };
        self.tags[at] = tag;
        self.rows[at] = Row { key: *key, ops: 1, bytes, ns, missed };
    }

    /// Sends the lightest row of a set to `other`. Where it was, and what of the next key there may have gone there.
    fn make_room(&mut self, set: std::ops::Range<usize>) -> (usize, u64) {
        let first = set.start;
        let heaviness = |at: &usize| self.rows[*at].weight() + self.rows[*at].missed;
        let at = set.min_by_key(heaviness).unwrap_or(first);
        let row = self.rows[at];
        let missed = row.missed + row.weight();
        self.floors[first / WAYS] = missed;
        let other = &mut self.other[usize::from(row.key.op) % OPS];
        other.add(row.ops, row.bytes, row.ns);
        if row.ops == 1 {
            other.latency[latency_bucket(row.ns)] += 1;
        } else {
            add_all(&mut other.latency, &self.latency[at]);
            self.latency[at] = [0; LATENCY_BUCKETS];
        }
        (at, missed)
    }

    /// Every row, in no order.
    pub fn each(&self, mut take: impl FnMut(Closed<'_>)) {
        let mut cells = Cells::NONE;
        for at in self.used.iter().copied().map(usize::from) {
            let row = &self.rows[at];
            (cells.ops, cells.bytes, cells.ns, cells.latency) =
                (row.ops, row.bytes, row.ns, self.latency[at]);
            if row.ops == 1 {
                cells.latency[latency_bucket(row.ns)] = 1;
            }
            take(Closed { key: &row.key, cells: &cells, less: self.floors[at / WAYS] - row.missed });
        }
    }

    /// Of each set, what of a key without a row there may have gone to `other` at most.
    pub fn floors(&self) -> impl Iterator<Item = &u64> {
        self.floors.iter()
    }

    /// What stands in no row, by operation.
    pub fn other(&self) -> impl Iterator<Item = (u8, &Cells)> {
        self.other.iter().zip(0..).filter(|(cells, _)| cells.ops > 0).map(|(cells, op)| (op, cells))
    }

    pub fn clear(&mut self) {
        for at in self.used.drain(..).map(usize::from) {
            if self.rows[at].ops > 1 {
                self.latency[at] = [0; LATENCY_BUCKETS];
            }
            (self.tags[at], self.rows[at]) = (0, Row::default());
        }
        self.other.iter_mut().filter(|cells| cells.ops > 0).for_each(|cells| *cells = Cells::NONE);
        self.floors.fill(0);
        self.samples.clear();
        (self.recorded, self.sampled) = (0, 0);
    }
}
