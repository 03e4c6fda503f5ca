//! The rows of one shard: 512 in sets of eight. A key that comes when its set is full takes the place of the lightest row
//! (Space-Saving within the set). All is summed by operation as well: so what a row had counted that had to go is among the others,
//! the sums are exact always, and a row says how much of its key the others may hold at most.
//!
//! A row is one line of a CPU's cache; what of the eight is looked at to find one, or the lightest, is one more. A row's distribution
//! of latencies stands apart, and begins with the second operation: of the first the sum of the latencies says all. Where each
//! operation is of another file no row has one; a row that has to go is written over, not read.

use crate::stats::{
    cost::Sample,
    counted::{Amount, Key, weight},
    histogram::{LATENCY_BUCKETS, latency_bucket},
};

const WAYS: usize = 8;
const WAY_BITS: u32 = 3;
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

    /// Without what these are, which are a part of it.
    pub fn take_away(&mut self, part: &Cells) {
        self.ops -= part.ops;
        self.bytes -= part.bytes;
        self.ns = self.ns.saturating_sub(part.ns);
        self.latency.iter_mut().zip(&part.latency).for_each(|(all, n)| *all = all.saturating_sub(*n));
    }

    pub fn is_none(&self) -> bool {
        self.ops == 0
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

/// A key in four words: hashed and compared by few instructions, and without a branch for each field.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Packed([u64; 4]);

impl Packed {
    /// The key, with its bytes' octave.
    pub fn of(key: &Key, size: u8) -> Packed {
        let owner = u64::from(key.fs) << 32 | u64::from(key.user);
        let what = u64::from(key.op) << 16 | u64::from(key.class) << 8 | u64::from(size);
        Packed([key.session, key.inode, owner, u64::from(key.place) << 32 | what])
    }

    pub fn key(self) -> Key {
        let [session, inode, owner, what] = self.0;
        let (fs, user, place) = ((owner >> 32) as u32, owner as u32, (what >> 32) as u32);
        let (op, class, size) = ((what >> 16) as u8, (what >> 8) as u8, what as u8);
        Key { session, inode, fs, user, place, op, class, size }
    }

    pub fn words(self) -> [u64; 4] {
        self.0
    }

    fn is(self, other: Packed) -> bool {
        self.0.iter().zip(other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }

    fn op(self) -> usize {
        usize::from(self.key().op) % OPS
    }
}

/// Without `ops`: free.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Row {
    key: Packed,
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

    /// What decides who goes, with the row's place among the eight in the lowest bits: one number tells both.
    fn rank(&self, way: usize) -> u32 {
        let heaviness = (self.weight() + self.missed).min(u64::from(u32::MAX >> WAY_BITS)) as u32;
        heaviness << WAY_BITS | way as u32
    }
}

/// What is looked at of eight rows.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Ways {
    /// A byte of each key's hash, never 0. 0: free.
    tags: u64,
    /// [`Row::rank`].
    ranks: [u32; WAYS],
    /// What of a key without a row here may have gone to `other` at most.
    floor: u64,
}

const _: () = assert!(size_of::<Ways>() == 64 && 1 << WAY_BITS == WAYS, "one line");

/// One in each byte.
const EACH: u64 = u64::MAX / 255;

impl Ways {
    /// A bit in the byte of each row of this tag, the lowest first. Behind it there can be some for rows of others.
    fn tagged(&self, tag: u64) -> u64 {
        let differ = self.tags ^ (tag * EACH);
        differ.wrapping_sub(EACH) & !differ & (EACH << 7)
    }

    fn set_tag(&mut self, way: usize, tag: u64) {
        let at = way * 8;
        self.tags = self.tags & !(0xff << at) | (tag << at);
    }

    /// The rank of the lightest row.
    fn lightest(&self) -> u32 {
        self.ranks.iter().fold(u32::MAX, |least, rank| least.min(*rank))
    }
}

fn way_of(bits: u64) -> usize {
    bits.trailing_zeros() as usize / 8
}

/// Never 0. Of other bits than [`set_of`].
fn tag_of(hash: u64) -> u64 {
    hash >> 56 | 1
}

/// A row as a second ends.
pub(super) struct Closed<'a> {
    pub key: Key,
    pub cells: &'a Cells,
    /// By how much less than its set's floor the key missed.
    pub less: u64,
}

/// See the file's head.
pub(super) struct Table {
    sets: Box<[Ways; SETS]>,
    rows: Box<[Row]>,
    /// Of rows with more than one operation.
    latency: Box<[Latency]>,
    used: Vec<u16>,
    /// Of all, by operation.
    totals: Box<[Cells]>,
    pub recorded: u64,
    /// What counting some of them took, and of how many that is known.
    pub samples: Vec<Sample>,
    pub sampled: u64,
}

pub(super) fn set_of(hash: u64) -> usize {
    hash as usize % SETS
}

impl Table {
    pub const MEMORY: usize = ROWS * (size_of::<Row>() + size_of::<Latency>() + size_of::<u16>())
        + SETS * size_of::<Ways>()
        + OPS * size_of::<Cells>()
        + SAMPLES * size_of::<Sample>();

    pub fn new() -> Table {
        Table {
            sets: Box::new([Ways::default(); SETS]),
            rows: vec![Row::default(); ROWS].into(),
            latency: vec![[0; LATENCY_BUCKETS]; ROWS].into(),
            used: Vec::with_capacity(ROWS),
            totals: vec![Cells::NONE; OPS].into(),
            recorded: 0,
            samples: Vec::with_capacity(SAMPLES),
            sampled: 0,
        }
    }

    /// Counts one operation of a key.
    #[inline]
    pub fn add(&mut self, key: Packed, hash: u64, bytes: u64, ns: u64) {
        self.recorded += 1;
        let bucket = latency_bucket(ns);
        let total = &mut self.totals[key.op()];
        total.add(1, bytes, ns);
        total.latency[bucket] += 1;
        let (set, tag) = (set_of(hash), tag_of(hash));
        let ways = &mut self.sets[set];
        let mut tagged = ways.tagged(tag);
        while tagged != 0 {
            let way = way_of(tagged);
            let at = set * WAYS + way;
            let row = &mut self.rows[at];
            if row.key.is(key) {
                let latency = &mut self.latency[at];
                if row.ops == 1 {
                    *latency = [0; LATENCY_BUCKETS];
                    latency[latency_bucket(row.ns)] = 1;
                }
                row.ops += 1;
                row.bytes += bytes;
                row.ns = row.ns.saturating_add(ns);
                latency[bucket] += 1;
                ways.ranks[way] = row.rank(way);
                return;
            }
            tagged &= tagged - 1;
        }
        // A row for a key that has none.
        let free = ways.tagged(0);
        let (way, missed) = if free != 0 {
            self.used.push((set * WAYS + way_of(free)) as u16);
            (way_of(free), 0)
        } else {
            let least = ways.lightest();
            ways.floor = u64::from(least >> WAY_BITS);
            (least as usize % WAYS, ways.floor)
        };
        let row = Row { key, ops: 1, bytes, ns, missed };
        ways.set_tag(way, tag);
        ways.ranks[way] = row.rank(way);
        self.rows[set * WAYS + way] = row;
    }

    /// What counting an operation took; a second keeps the first ones.
    pub fn took(&mut self, sample: Sample) {
        self.sampled += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(sample);
        }
    }

    /// Every row, in no order.
    pub fn each(&self, mut take: impl FnMut(Closed<'_>)) {
        let mut cells = Cells::NONE;
        for at in self.used.iter().copied().map(usize::from) {
            let row = &self.rows[at];
            (cells.ops, cells.bytes, cells.ns) = (row.ops, row.bytes, row.ns);
            if row.ops == 1 {
                cells.latency = [0; LATENCY_BUCKETS];
                cells.latency[latency_bucket(row.ns)] = 1;
            } else {
                cells.latency = self.latency[at];
            }
            let less = self.sets[at / WAYS].floor - row.missed;
            take(Closed { key: row.key.key(), cells: &cells, less });
        }
    }

    /// Of each set, what of a key without a row there may have gone to `other` at most.
    pub fn floors(&self) -> impl Iterator<Item = u64> {
        self.sets.iter().map(|ways| ways.floor)
    }

    /// All that was counted, by operation.
    pub fn totals(&self) -> impl Iterator<Item = (u8, &Cells)> {
        self.totals.iter().zip(0..).filter(|(cells, _)| !cells.is_none()).map(|(cells, op)| (op, cells))
    }

    pub fn clear(&mut self) {
        for at in self.used.drain(..).map(usize::from) {
            self.rows[at] = Row::default();
        }
        self.sets.fill(Ways::default());
        self.totals.iter_mut().filter(|cells| !cells.is_none()).for_each(|cells| *cells = Cells::NONE);
        self.samples.clear();
        (self.recorded, self.sampled) = (0, 0);
    }
}
