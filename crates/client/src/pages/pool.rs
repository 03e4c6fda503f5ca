//! The page pool: one bounded memory for the cached, prefetched and dirty data of all files.
//!
//! Owns: the count of bytes in use ([`Charge`] travels with the memory and gives it back when the last
//! reader of it is gone), the count of dirty bytes, and the order in which clean pages are given up.
//! Invariant: charges never add up to more than the pool, except [`Pool::charge_over`], whose users are
//! bounded by the number of blocks being written (writing must not wait for memory that only writing frees), and
//! the entries of blocks ([`Pool::enter_block`]), each made by somebody who has just got memory for its data or
//! is loading it. What is kept without data counts too: an entry goes when its turn comes and nothing else needs it.
//! On failure: who gets no memory before the deadline gets `EIO` and an event.
//!
//! What goes first is decided in [`super::queues`]. What a reader in sequence has gone through takes a sixteenth of the
//! pool at most ([`Pool::give_up_first`]): memory that was touched is used again before memory that was not
//! (docs/measurements.md).

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use base::{AlignedBuf, BufPool};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::{
    gone::Gone,
    queues::{PageOwner, Queues, Tag, Victim},
    usage::{PoolCounts, PoolUse},
};
use crate::{
    error::Errno,
    waits::{self, Waits},
};

/// Freed buffers kept for the next load: at most the pool's size divided by this.
pub(crate) const IDLE_SHARE: u64 = 4;
/// What is given up first takes at most the pool's size divided by this.
const PASSED_SHARE: u64 = 16;

/// What a block in memory takes beside its data: its entry, a few pieces, versions of its strips.
pub(crate) const BLOCK_BYTES: u64 = 1 << 10;

/// What a block in memory takes for itself, or the extents of a file.
pub(crate) struct BlockEntry {
    pub tag: Arc<Tag>,
    charge: Charge,
}

impl BlockEntry {
    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }
}

impl Drop for BlockEntry {
    fn drop(&mut self) {
        self.charge.pool.entries.fetch_sub(1, Relaxed);
    }
}

/// Bytes of the pool in use; given back on drop.
pub(crate) struct Charge {
    pool: Arc<Inner>,
    bytes: u64,
}

impl Charge {
    /// Takes `bytes` out of this charge (all of it if it holds less).
    pub fn split(&mut self, bytes: u64) -> Charge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Charge { pool: self.pool.clone(), bytes }
    }
    /// Bytes it stands for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let before = self.pool.used.fetch_sub(self.bytes, SeqCst);
            debug_assert!(before >= self.bytes, "more is given back than was taken");
            self.pool.progress.fetch_add(1, Relaxed);
            self.pool.freed.notify_waiters();
        }
    }
}

/// Bytes together with the pool memory they occupy.
struct Charged<T> {
    data: T,
    _charge: Charge,
}

impl<T: Deref<Target = [u8]>> AsRef<[u8]> for Charged<T> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// `data` as shared bytes that give their pool memory back with the last reference.
pub(crate) fn charged<T: Deref<Target = [u8]> + Send + 'static>(data: T, charge: Charge) -> Bytes {
    Bytes::from_owner(Charged { data, _charge: charge })
}

/// The pool. Clones are the same pool.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    bytes_max: AtomicU64,
    dirty_max: AtomicU64,
    used: AtomicU64,
    dirty: AtomicU64,
    used_most: AtomicU64,
    entries: AtomicU64,
    bufs: BufPool,
    queues: Mutex<Queues>,
    freed: Notify,
    cleaned: Notify,
    /// Counts every release of memory and every cleaning: a waiter's deadline restarts when it moves.
    progress: AtomicU64,
    counts: PoolCounts,
    gone: Gone,
    waits: Waits,
}

impl Pool {
    /// With a store of freed buffers of its own.
    #[cfg(test)]
    pub fn new(bytes_max: u64, dirty_pct: u32) -> Pool {
        Pool::with_buffers(bytes_max, dirty_pct, BufPool::new(0))
    }

    /// Freed buffers are kept in `bufs`, whose bound follows from the pool's.
    pub fn with_buffers(bytes_max: u64, dirty_pct: u32, bufs: BufPool) -> Pool {
        let pool = Pool(Arc::new(Inner {
            bytes_max: AtomicU64::new(0),
            dirty_max: AtomicU64::new(0),
            used: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            used_most: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            bufs,
            queues: Mutex::default(),
            freed: Notify::new(),
            cleaned: Notify::new(),
            progress: AtomicU64::new(0),
            counts: PoolCounts::default(),
            gone: Gone::default(),
            waits: Waits::default(),
        }));
        pool.resize(bytes_max, dirty_pct);
        pool
    }

    /// Changes the bounds. Clean pages above them go at once, dirty ones when they are written: writers
    /// wait. Never with an inode's state locked.
    pub fn resize(&self, bytes_max: u64, dirty_pct: u32) {
        self.0.bytes_max.store(bytes_max, SeqCst);
        self.0.dirty_max.store(bytes_max * u64::from(dirty_pct) / 100, SeqCst);
        self.0.bufs.set_idle_max((bytes_max / IDLE_SHARE) as usize);
        self.evict(0);
        self.0.freed.notify_waiters();
        self.0.cleaned.notify_waiters();
    }

    fn bytes_max(&self) -> u64 {
        self.0.bytes_max.load(SeqCst)
    }

    fn dirty_max(&self) -> u64 {
        self.0.dirty_max.load(SeqCst)
    }

    /// Who waits for what in this client.
    pub fn waits(&self) -> &Waits {
        &self.0.waits
    }

    /// Why blocks are not here any more.
    pub fn gone(&self) -> &Gone {
        &self.0.gone
    }

    /// What was read from where.
    pub fn counts(&self) -> &PoolCounts {
        &self.0.counts
    }

    pub fn usage(&self) -> PoolUse {
        let counts = &self.0.counts;
        let reused = self.lock().reused_bytes();
        PoolUse {
            bytes_max: self.bytes_max(),
            used: self.0.used.load(SeqCst),
            used_most: self.0.used_most.load(Relaxed),
            entries: self.0.entries.load(Relaxed),
            dirty: self.0.dirty.load(SeqCst),
            dirty_max: self.dirty_max(),
            reused,
            idle_buffers: self.0.bufs.idle_bytes() as u64,
            hit_bytes: counts.hit.get(),
            coming_bytes: counts.coming.get(),
            miss_bytes: counts.miss.get(),
            ahead_bytes: counts.ahead.get(),
            ahead_unused_bytes: counts.ahead_unused.get(),
        }
    }

    /// A buffer for `len` bytes; the caller holds the charge.
    pub fn buffer(&self, len: usize) -> AlignedBuf {
        self.0.bufs.get(len)
    }

    /// Memory if there is some free now. Evicts nothing: may be called with an inode's state locked.
    pub fn charge_now(&self, bytes: u64) -> Option<Charge> {
        let max = self.bytes_max();
        let grow = |used: u64| (used + bytes <= max).then_some(used + bytes);
        let before = self.0.used.fetch_update(SeqCst, SeqCst, grow).ok()?;
        self.0.used_most.fetch_max(before + bytes, Relaxed);
        Some(Charge { pool: self.0.clone(), bytes })
    }

    /// Memory, if need be by giving up clean pages. Never with an inode's state locked.
    pub fn charge_evicting(&self, bytes: u64) -> Option<Charge> {
        while let Some(victim) = self.passed() {
            self.drop_pages(victim);
        }
        if let Some(charge) = self.charge_now(bytes) {
            return Some(charge);
        }
        self.evict(bytes);
        self.charge_now(bytes)
    }

    /// Memory in any case, above the bound if there is no other way. Evicts nothing.
    pub fn charge_over_now(&self, bytes: u64) -> Charge {
        self.charge_now(bytes).unwrap_or_else(|| {
            let before = self.0.used.fetch_add(bytes, SeqCst);
            self.0.used_most.fetch_max(before + bytes, Relaxed);
            Charge { pool: self.0.clone(), bytes }
        })
    }

    /// The same, after giving up clean pages. Never with an inode's state locked.
    pub fn charge_over(&self, bytes: u64) -> Charge {
        self.charge_evicting(bytes).unwrap_or_else(|| self.charge_over_now(bytes))
    }

    /// Memory; waits until some is free. `EIO` after `patience` without any progress.
    pub async fn charge(&self, bytes: u64, patience: Duration) -> Result<Charge, Errno> {
        self.wait(&self.0.freed, patience, "page pool memory", || self.charge_evicting(bytes)).await
    }

    /// Waits until `bytes` more may be dirtied. The bound is soft by what concurrent writers bring.
    pub async fn throttle(&self, bytes: u64, patience: Duration) -> Result<(), Errno> {
        let below = || {
            let max = self.dirty_max();
            (self.0.dirty.load(SeqCst) + bytes.min(max) <= max).then_some(())
        };
        self.wait(&self.0.cleaned, patience, "dirty pages to be written", below).await
    }

    /// Dirty bytes changed by `delta`.
    pub fn dirty_changed(&self, delta: i64) {
        if delta > 0 {
            self.0.dirty.fetch_add(delta as u64, SeqCst);
        } else if delta < 0 {
            let before = self.0.dirty.fetch_sub(delta.unsigned_abs(), SeqCst);
            debug_assert!(before >= delta.unsigned_abs(), "more was written than was dirty");
            self.0.progress.fetch_add(1, Relaxed);
            self.0.cleaned.notify_waiters();
            self.0.freed.notify_waiters();
        }
    }

    /// Whether write-behind should not wait for age: half of what may be dirty is, or the pool is short
    /// of clean pages to give up.
    pub fn pressure(&self) -> bool {
        let dirty = self.0.dirty.load(SeqCst);
        dirty > self.dirty_max() / 2
    }

    async fn wait<T>(
        &self,
        notify: &Notify,
        patience: Duration,
        what: &'static str,
        attempt: impl Fn() -> Option<T>,
    ) -> Result<T, Errno> {
        let mut progress = self.0.progress.load(Relaxed);
        let mut deadline = Instant::now() + patience;
        let mut entered = None;
        loop {
            let notified = notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if let Some(got) = attempt() {
                return Ok(got);
            }
            entered.get_or_insert_with(|| self.0.waits.enter(what, None));
            // Pages become evictable without a release (a reader lets go of them): look again now and then.
            let step = (Instant::now() + Duration::from_millis(50)).min(deadline);
            let _ = tokio::time::timeout_at(step.into(), notified).await;
            let now = self.0.progress.load(Relaxed);
            if now != progress {
                progress = now;
                deadline = Instant::now() + patience;
                waits::moved();
            } else if Instant::now() >= deadline {
                tracing::error!(?patience, usage = ?self.usage(), "gave up waiting for {what}");
                return Err(Errno::EIO);
            }
        }
    }

    /// Enters clean pages. May be called with an inode's state locked.
    pub fn enter(&self, tag: Arc<Tag>) {
        self.lock().enter(tag);
    }

    /// A block comes into memory. May be called with an inode's state locked.
    pub fn enter_block(&self, owner: Weak<dyn PageOwner>, block: u64) -> BlockEntry {
        self.enter_entry(owner, block, self.charge_over_now(BLOCK_BYTES))
    }

    /// The same for what `charge` stands for.
    pub fn enter_entry(&self, owner: Weak<dyn PageOwner>, block: u64, charge: Charge) -> BlockEntry {
        self.0.entries.fetch_add(1, Relaxed);
        let tag = Tag::new(owner, block, 0..0, charge.bytes(), false);
        self.enter(tag.clone());
        BlockEntry { tag, charge }
    }

    /// These pages are given up before all others, unless they are used once more. May be called with an
    /// inode's state locked.
    pub fn give_up_first(&self, tags: Vec<Arc<Tag>>) {
        self.lock().give_up_first(&tags);
    }

    /// The next to go of what was passed in sequence, if that is more than it may be.
    fn passed(&self) -> Option<Victim> {
        self.lock().first_beyond(self.bytes_max() / PASSED_SHARE)
    }

    /// Gives a victim's pages up. The queues' lock must be free: the owner takes its state.
    fn drop_pages(&self, victim: Victim) {
        let Victim::Tag(tag) = victim else { return };
        self.0.counts.ahead_unused.add(tag.unused_ahead());
        tag.evict();
    }

    /// Gives up clean pages until `want` more bytes fit or nothing is left to give up.
    fn evict(&self, want: u64) {
        let mut steps = self.lock().steps_max();
        while steps > 0 && self.0.used.load(SeqCst) + want > self.bytes_max() {
            steps -= 1;
            // In a statement of its own: the queues' lock must be free when the owner takes its state.
            let victim = self.lock().victim();
            match victim {
                Victim::None => return,
                victim => self.drop_pages(victim),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.queues.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::queues::DEAD_MIN, *};

    /// Holds one page a block, as an inode would.
    struct Owner(Mutex<std::collections::BTreeMap<u64, (Arc<Tag>, Charge)>>);

    impl PageOwner for Owner {
        fn evict(&self, block: u64, tag: &Arc<Tag>) {
            let mut pages = self.0.lock();
            if pages.get(&block).is_some_and(|(t, _)| Arc::ptr_eq(t, tag)) {
                pages.remove(&block);
            }
        }
    }

    fn add(pool: &Pool, owner: &Arc<Owner>, block: u64) {
        let charge = pool.charge_evicting(4096).unwrap();
        let weak: Weak<dyn PageOwner> = Arc::downgrade(&(owner.clone() as Arc<dyn PageOwner>));
        let tag = Tag::new(weak, block, 0..1, 4096, false);
        owner.0.lock().insert(block, (tag.clone(), charge));
        pool.enter(tag);
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_reused() {
        let pool = Pool::new(100 * 4096, 40);
        let owner = Arc::new(Owner(Mutex::default()));
        for block in 0..10 {
            add(&pool, &owner, block);
            let tag = owner.0.lock()[&block].0.clone();
            tag.used(0, 4096);
            tag.used(0, 4096);
        }
        for block in 1000..2000 {
            add(&pool, &owner, block);
        }
        let pages = owner.0.lock();
        assert!((0..10).all(|b| pages.contains_key(&b)), "reused pages were pushed out by a scan");
        assert!(pool.usage().used <= 100 * 4096);
    }

    #[test]
    fn what_was_passed_in_sequence_goes_first_unless_it_was_used_again() {
        let pool = Pool::new(100 * 4096, 40);
        let owner = Arc::new(Owner(Mutex::default()));
        (0..100).for_each(|block| add(&pool, &owner, block));
        let tag = |block| owner.0.lock()[&block].0.clone();
        for block in 90..100 {
            tag(block).used(0, 4096);
        }
        tag(95).used(0, 4096);
        pool.give_up_first((90..100).map(tag).collect());
        (200..209).for_each(|block| add(&pool, &owner, block));
        let left: Vec<u64> = owner.0.lock().keys().copied().filter(|b| *b < 100).collect();
        assert_eq!(left, (0..90).chain([95]).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_passed_in_sequence_takes_a_sixteenth_of_the_pool_at_most() {
        let pool = Pool::new(100 * 4096, 40);
        let owner = Arc::new(Owner(Mutex::default()));
        for block in 0..60 {
            add(&pool, &owner, block);
            let tag = owner.0.lock()[&block].0.clone();
            pool.give_up_first(vec![tag]);
        }
        add(&pool, &owner, 100);
        let left: Vec<u64> = owner.0.lock().keys().copied().collect();
        assert_eq!(left, (54..60).chain([100]).collect::<Vec<_>>());
    }

    #[test]
    fn a_smaller_pool_gives_up_clean_pages_at_once() {
        let pool = Pool::new(100 * 4096, 40);
        let owner = Arc::new(Owner(Mutex::default()));
        (0..100).for_each(|block| add(&pool, &owner, block));
        pool.resize(10 * 4096, 40);
        assert_eq!((pool.usage().used, pool.usage().bytes_max), (10 * 4096, 10 * 4096));
        pool.resize(200 * 4096, 40);
        (100..290).for_each(|block| add(&pool, &owner, block));
        assert_eq!(pool.usage().used, 200 * 4096);
    }

    #[test]
    fn dead_entries_are_bounded() {
        let pool = Pool::new(1 << 20, 40);
        let owner = Arc::new(Owner(Mutex::default()));
        for _ in 0..100_000 {
            add(&pool, &owner, 7); // replaces the page: the old tag is dead
        }
        let queues = pool.lock();
        assert!(queues.len() <= 2 * DEAD_MIN + 4);
    }

    #[tokio::test]
    async fn memory_comes_back_with_the_last_reference() {
        let pool = Pool::new(8192, 40);
        let charge = pool.charge(8192, Duration::from_secs(5)).await.unwrap();
        let bytes = charged(pool.buffer(8192), charge);
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert!(pool.charge_evicting(4096).is_none());
        let waiter = tokio::spawn({
            let pool = pool.clone();
            async move { pool.charge(4096, Duration::from_secs(5)).await.map(|c| c.bytes()) }
        });
        tokio::task::yield_now().await;
        drop(slice);
        assert_eq!(waiter.await.unwrap(), Ok(4096));
    }

    #[tokio::test]
    async fn waiting_has_an_end() {
        let pool = Pool::new(4096, 40);
        let _all = pool.charge_now(4096).unwrap();
        assert_eq!(pool.charge(1, Duration::from_millis(20)).await.map(|_| ()), Err(Errno::EIO));
    }
}
