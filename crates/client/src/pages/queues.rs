//! The order in which clean pages are given up.
//!
//! Replacement is scan-resistant: pages enter a short first-in-first-out queue and reach the long one only
//! if they were used again; the long one gives used pages another round. A hit costs an atomic store, no lock.
//! What a reader in sequence has gone through, and blocks of large files that were stored whole, are given up before
//! anything else.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use base::units::UNIT;

/// Share of the clean bytes that the entry queue may hold before it gives up pages first, percent.
const ENTRY_PCT: u64 = 20;
/// Entries that need not be checked for dead ones.
pub(super) const DEAD_MIN: usize = 1024;
/// Who holds pages, and can be asked to drop them.
pub(crate) trait PageOwner: Send + Sync {
    /// Drops the clean pieces of `block` that carry this tag; if it is the block's own, what is known to be zeros, and
    /// the block if nothing is left.
    fn evict(&self, block: u64, tag: &Arc<Tag>);
}

/// Identity of one clean allocation in the replacement queues; all pieces cut from it share it.
pub(crate) struct Tag {
    owner: Weak<dyn PageOwner>,
    /// Block of the owner's file.
    pub block: u64,
    /// Units of the block that the allocation spans.
    pub units: std::ops::Range<u32>,
    bytes: u64,
    /// Read ahead: nobody has asked for it yet when it enters.
    ahead: bool,
    hits: AtomicU8,
    last_end: AtomicU32,
    /// A bit for each of `units` that was used.
    seen: Box<[AtomicU64]>,
}

impl Tag {
    pub fn new(
        owner: Weak<dyn PageOwner>,
        block: u64,
        units: std::ops::Range<u32>,
        bytes: u64,
        ahead: bool,
    ) -> Arc<Tag> {
        let (hits, last_end) = (AtomicU8::new(0), AtomicU32::new(0));
        let seen = (0..units.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Tag { owner, block, units, bytes, ahead, hits, last_end, seen })
    }

    /// Notes a use of bytes `from..to` of the block. A scan must not look like reuse: units that nobody used before are none,
    /// in whatever order several readers come to them, nor is going on behind the last use.
    pub fn used(&self, from: u32, to: u32) {
        let last = self.last_end.swap(to, Relaxed);
        if self.all_seen(from, to) && from < last && self.hits.load(Relaxed) < 3 {
            self.hits.fetch_add(1, Relaxed);
        }
    }

    /// Whether every unit of `from..to` was used before; from now on they are.
    fn all_seen(&self, from: u32, to: u32) -> bool {
        let within = |unit: u32| unit.clamp(self.units.start, self.units.end) - self.units.start;
        let (first, end) = (within(from / UNIT as u32), within(to.div_ceil(UNIT as u32)));
        let mut all = true;
        for (word, seen) in (0u32..).step_by(64).zip(&self.seen) {
            let (a, b) = (first.saturating_sub(word).min(64), end.saturating_sub(word).min(64));
            if a >= b {
                continue;
            }
            let bits = u64::MAX >> (64 - (b - a)) << a;
            if seen.load(Relaxed) & bits != bits {
                all = false;
                seen.fetch_or(bits, Relaxed);
            }
        }
        all
    }

    /// Whether nobody used it more than once.
    fn is_unused(&self) -> bool {
        self.hits.load(Relaxed) == 0
    }

    /// Bytes that were read ahead for nothing.
    pub fn unused_ahead(&self) -> u64 {
        if self.ahead && self.last_end.load(Relaxed) == 0 { self.bytes } else { 0 }
    }

    /// Its owner drops its pages. Never with the owner's state locked, or the queues.
    pub fn evict(self: &Arc<Tag>) {
        if let Some(owner) = self.owner.upgrade() {
            owner.evict(self.block, self);
        }
    }
}

#[derive(Default)]
pub(super) struct Queues {
    /// Given up before all others; each is in one of the other queues too.
    first: VecDeque<(Weak<Tag>, u64)>,
    /// Bytes of these, those that are gone or were used again included.
    first_bytes: u64,
    entry: VecDeque<Arc<Tag>>,
    main: VecDeque<Arc<Tag>>,
    entry_bytes: u64,
    main_bytes: u64,
    /// Queue length after the last removal of dead tags.
    live_estimate: usize,
}

/// What [`Queues::victim`] finds.
pub(super) enum Victim {
    Tag(Arc<Tag>),
    Again,
    None,
}

impl Queues {
    /// The next of those given up before all others.
    fn first(&mut self) -> Option<Victim> {
        let (tag, bytes) = self.first.pop_front()?;
        self.first_bytes -= bytes;
        // It leaves the other queue when its turn there comes: without pages it counts as dead.
        let unused = |tag: &Arc<Tag>| tag.is_unused();
        Some(tag.upgrade().filter(unused).map_or(Victim::Again, Victim::Tag))
    }

    /// The next to go.
    pub fn victim(&mut self) -> Victim {
        if let Some(victim) = self.first() {
            return victim;
        }
        let from_entry =
            self.main.is_empty() || self.entry_bytes * 100 > (self.entry_bytes + self.main_bytes) * ENTRY_PCT;
        let popped = if from_entry {
            self.entry.pop_front().inspect(|tag| self.entry_bytes -= tag.bytes)
        } else {
            self.main.pop_front().inspect(|tag| self.main_bytes -= tag.bytes)
        };
        let Some(tag) = popped else { return Victim::None };
        if Arc::strong_count(&tag) == 1 {
            return Victim::Again;
        }
        let hits = tag.hits.load(Relaxed);
        if hits == 0 {
            return Victim::Tag(tag);
        }
        tag.hits.store(if from_entry { 0 } else { hits - 1 }, Relaxed);
        self.main_bytes += tag.bytes;
        self.main.push_back(tag);
        Victim::Again
    }

    /// Tags whose pages are gone already stay in the queues until they come to the front; this removes
    /// them when they are more than the living.
    fn remove_dead(&mut self) {
        let alive = |tag: &Arc<Tag>| Arc::strong_count(tag) > 1;
        self.entry.retain(alive);
        self.main.retain(alive);
        self.entry_bytes = self.entry.iter().map(|t| t.bytes).sum();
        self.main_bytes = self.main.iter().map(|t| t.bytes).sum();
        self.live_estimate = self.len();
    }

    /// Enters clean pages.
    pub fn enter(&mut self, tag: Arc<Tag>) {
        self.entry_bytes += tag.bytes;
        self.entry.push_back(tag);
        if self.len() > 2 * self.live_estimate + DEAD_MIN {
            self.remove_dead();
        }
    }

    /// These go before all others, unless they are used once more.
    pub fn give_up_first(&mut self, tags: &[Arc<Tag>]) {
        for tag in tags.iter().filter(|tag| tag.is_unused()) {
            self.first_bytes += tag.bytes;
            self.first.push_back((Arc::downgrade(tag), tag.bytes));
        }
        if self.first.len() > self.len() + DEAD_MIN {
            self.first.retain(|(tag, _)| tag.strong_count() > 1);
            self.first_bytes = self.first.iter().map(|(_, bytes)| bytes).sum();
        }
    }

    /// The next of those that go before all others, if these are more than `bytes_max`.
    pub fn first_beyond(&mut self, bytes_max: u64) -> Option<Victim> {
        (self.first_bytes > bytes_max).then(|| self.first())?
    }

    /// Bytes of pages that were used more than once.
    pub fn reused_bytes(&self) -> u64 {
        self.main_bytes
    }

    /// Entries of the two queues.
    pub fn len(&self) -> usize {
        self.entry.len() + self.main.len()
    }

    /// Within so many steps everything that can be given up has had its turn.
    pub fn steps_max(&self) -> usize {
        4 * self.len() + self.first.len() + 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;
    impl PageOwner for Nobody {
        fn evict(&self, _: u64, _: &Arc<Tag>) {}
    }

    #[test]
    fn small_steps_through_a_page_are_one_use() {
        let owner: Weak<Nobody> = Weak::new();
        let tag = Tag::new(owner, 0, 0..4, 16384, false);
        (0..4u32).for_each(|i| tag.used(i * 4096, (i + 1) * 4096));
        assert_eq!(tag.hits.load(Relaxed), 0);
        tag.used(0, 4096);
        assert_eq!(tag.hits.load(Relaxed), 1);
        let tag = Tag::new(Weak::<Nobody>::new(), 0, 0..1, 4096, false);
        (0..4u32).for_each(|i| tag.used(i * 1024, i * 1024 + 512));
        assert!(tag.is_unused(), "every other half of a KiB");
        let zeros = Tag::new(Weak::<Nobody>::new(), 0, 0..0, 1024, false);
        zeros.used(8192, 12288);
        assert!(zeros.is_unused(), "used once");
    }

    #[test]
    fn several_readers_of_a_scan_are_one_use_in_whatever_order() {
        let (record, units) = (47_008u32, 1024..2048u32);
        let (start, end) = (units.start * 4096, units.end * 4096);
        let places: Vec<u32> = (start..end).step_by(record as usize).collect();
        for readers in 1..6 {
            let tag = Tag::new(Weak::<Nobody>::new(), 1, units.clone(), 4 << 20, true);
            // Each the next of its own records, the last reader first.
            for round in places.chunks(readers) {
                round.iter().rev().for_each(|&at| tag.used(at, (at + record).min(end)));
            }
            assert!(tag.is_unused(), "{readers} readers");
            assert!(tag.seen.iter().all(|word| word.load(Relaxed) == u64::MAX));
            tag.used(places[3], places[3] + record);
            assert!(!tag.is_unused(), "what was read before is read again");
        }
    }

    #[test]
    fn what_was_used_is_known_to_the_unit() {
        let tag = |units| Tag::new(Weak::<Nobody>::new(), 0, units, 0, false);
        let at = |unit: u32| unit * 4096;
        let large = tag(100..230);
        assert!(!large.all_seen(at(163), at(165)), "both words");
        assert!(large.all_seen(at(163), at(165)) && large.all_seen(at(164), at(164) + 1));
        assert!(!large.all_seen(at(162), at(164)) && !large.all_seen(at(165), at(166)));
        assert!(!large.all_seen(at(100), at(230)) && large.all_seen(at(100), at(230)));
        // Beyond it there is nothing to note.
        assert!(
            large.all_seen(at(230), at(999)) && large.all_seen(0, at(100)) && tag(5..5).all_seen(0, u32::MAX)
        );
    }
}
