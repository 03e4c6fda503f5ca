//! Stripes in memory: K data strips and one XOR parity, which is checked after every write.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use base::{Grant, OpClass, PoolId, StripeId, Version};
use bytes::Bytes;
use client::{BlockError, BlockMeta, BlockRead, Blocks, BoxFuture, Geometry, WriteStripe};
use wire::strip::Range;

use super::Rng;

#[derive(Clone)]
struct Stripe {
    bytes: Vec<u8>,
    parity: Vec<u8>,
    meta: BlockMeta,
}

pub struct FakeBlocks {
    k: u8,
    block_size: u32,
    stripes: Mutex<BTreeMap<StripeId, Stripe>>,
    writing: Mutex<BTreeSet<StripeId>>,
    rng: Mutex<Rng>,
    below: AtomicU64,
    /// Blocks that nobody wrote read as zeros.
    pub zeros: AtomicBool,
    /// Writes fail until it is cleared.
    pub failing: AtomicBool,
    /// What the last failed write of a block has left of itself.
    left: Mutex<BTreeMap<StripeId, WriteStripe>>,
    /// Writes wait while it is set.
    pub stuck: AtomicBool,
    /// A write takes up to so many milliseconds.
    pub slow: AtomicU64,
    /// Writes of this block wait while it is set; none is `u64::MAX`.
    pub stuck_block: AtomicU64,
    /// Reads wait while it is set.
    pub stuck_reads: AtomicBool,
    /// Who has it exclusively keeps answers, already given, from arriving.
    pub on_their_way: tokio::sync::RwLock<()>,
    /// How many were to arrive so far.
    pub kept_back: AtomicU64,
    /// Reads so far.
    pub reads: AtomicU64,
    reading: AtomicU64,
    /// Most reads that were under way at once.
    pub reading_most: AtomicU64,
    pub writes: AtomicU64,
    /// Payload sizes of the last write.
    pub last_pieces: Mutex<Vec<usize>>,
    deletes: Mutex<Vec<(StripeId, u64, Version)>>,
    /// Questions for leftovers.
    pub questions: AtomicU64,
    /// Inodes of which nothing will be written any more.
    pub forgotten: Mutex<Vec<base::InodeNo>>,
}

impl FakeBlocks {
    pub fn new(k: u8, block_size: u32, seed: u64) -> FakeBlocks {
        FakeBlocks {
            k,
            block_size,
            stripes: Mutex::default(),
            writing: Mutex::default(),
            rng: Mutex::new(Rng(seed | 1)),
            below: AtomicU64::new(0),
            zeros: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            left: Mutex::default(),
            stuck: AtomicBool::new(false),
            slow: AtomicU64::new(0),
            stuck_block: AtomicU64::new(u64::MAX),
            stuck_reads: AtomicBool::new(false),
            on_their_way: tokio::sync::RwLock::new(()),
            kept_back: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            reading: AtomicU64::new(0),
            reading_most: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            last_pieces: Mutex::default(),
            deletes: Mutex::default(),
            questions: AtomicU64::new(0),
            forgotten: Mutex::default(),
        }
    }

    pub fn fence_below(&self, grant: Grant) {
        self.below.store(grant.0, SeqCst);
        self.writing.lock().unwrap().clear();
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        !self.writing.lock().unwrap().is_empty()
    }

    /// Whoever resolves what an ended session left goes forward with it.
    pub fn go_forward(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap());
        left.values().for_each(|write| drop(self.store(write).unwrap()));
    }

    pub fn exists(&self, stripe: StripeId) -> bool {
        self.stripes.lock().unwrap().contains_key(&stripe)
    }

    pub fn exists_any(&self, ino: base::InodeNo) -> bool {
        self.stripes.lock().unwrap().keys().any(|id| id.inode == ino)
    }

    /// Removes strips of blocks `first..end` of a file whose version is at most `highest`, some time later.
    pub fn delete(&self, of: StripeId, end: u64, highest: Version) {
        self.deletes.lock().unwrap().push((of, end, highest));
        self.reap(false);
    }

    /// Deletes some of what is to be deleted, or all.
    pub fn reap(&self, all: bool) {
        let mut deletes = self.deletes.lock().unwrap();
        let mut stripes = self.stripes.lock().unwrap();
        let strip = self.strip_len() as usize;
        while !deletes.is_empty() && (all || self.rng.lock().unwrap().below(3) == 0) {
            let (of, end, highest) = deletes.remove(0);
            stripes.retain(|id, stripe| {
                if !(id.fs == of.fs && id.inode == of.inode && (of.block.0..end).contains(&id.block.0)) {
                    return true;
                }
                for (i, version) in stripe.meta.data.iter_mut().enumerate() {
                    if version.is_some_and(|v| v <= highest) {
                        *version = Some(Version::ZERO);
                        stripe.bytes[i * strip..(i + 1) * strip].fill(0);
                    }
                }
                stripe.meta.parity > Some(highest)
            });
        }
    }

    fn strip_len(&self) -> u32 {
        self.block_size / u32::from(self.k)
    }

    async fn arrive(&self) {
        self.kept_back.fetch_add(1, SeqCst);
        drop(self.on_their_way.read().await);
    }

    async fn dawdle(&self) {
        let steps = self.rng.lock().unwrap().below(6);
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
    }

    fn store(&self, write: &WriteStripe) -> Result<BlockMeta, BlockError> {
        if write.version.grant.0 < self.below.load(SeqCst) {
            return Err(BlockError::Fenced);
        }
        let mut stripes = self.stripes.lock().unwrap();
        let old = stripes.get(&write.stripe).cloned();
        let id = write.stripe;
        match (&write.previous, &old) {
            (Some(previous), Some(old)) if previous.is_complete(self.k.into()) => {
                assert_eq!(*previous, old.meta, "{id}: wrong previous version")
            }
            (Some(_), Some(_)) => {}
            (Some(_), None) => panic!("{id}: a previous version is named where none is"),
            (None, _) => {}
        }
        let mut new = old.unwrap_or_else(|| Stripe {
            bytes: vec![0; self.block_size as usize],
            parity: vec![0; self.strip_len() as usize],
            meta: BlockMeta::empty(self.k.into()),
        });
        if write.previous.is_none() {
            // A new block: strips that have bytes are replaced as a whole, the others stay as they were.
            let strip = self.strip_len() as usize;
            new.parity.fill(0);
            for (offset, _) in &write.pieces {
                let i = *offset as usize / strip;
                if new.meta.data[i] != Some(write.version) {
                    new.meta.data[i] = Some(write.version);
                    new.bytes[i * strip..(i + 1) * strip].fill(0);
                }
            }
            let stale = new.meta.data.iter().any(|v| *v != Some(write.version) && *v != Some(Version::ZERO));
            assert!(!stale, "{id}: what an older life of the block left would show through");
            new.meta.len = 0;
        }
        assert!(new.meta.parity < Some(write.version), "{id}: version does not grow");
        let claimed = write.previous.as_ref().map_or(0, |m| m.len);
        let len = write.len;
        assert!(
            len >= claimed && len <= self.block_size && len.is_multiple_of(4096),
            "{id}: length {len}, {claimed}"
        );
        let mut end = 0;
        for (offset, bytes) in &write.pieces {
            let last = offset + bytes.len() as u32;
            assert!(offset % 4096 == 0 && bytes.len() % 4096 == 0 && !bytes.is_empty(), "{id}: unaligned");
            assert!(*offset >= end, "{id}: pieces overlap or are not sorted");
            assert_eq!(offset / self.strip_len(), (last - 1) / self.strip_len(), "{id}: crosses a strip");
            end = last;
        }
        let unit = |offset: u32| -> Option<&[u8]> {
            let i = write.pieces.partition_point(|(o, b)| o + b.len() as u32 <= offset);
            let (o, b) = write.pieces.get(i)?;
            let at = offset.checked_sub(*o)? as usize;
            b.get(at..at + 4096)
        };
        // Parity from the pieces alone, as a writer computes it.
        for row in rows(&write.dirty, self.strip_len()) {
            let mut parity = vec![0u8; 4096];
            for strip in 0..u32::from(self.k) {
                let bytes = unit(strip * self.strip_len() + row);
                for (p, b) in parity.iter_mut().zip(bytes.unwrap_or(&[0; 4096])) {
                    *p ^= b;
                }
            }
            new.parity[row as usize..row as usize + 4096].copy_from_slice(&parity);
        }
        for range in &write.dirty {
            assert!(range.end() <= write.len, "{id}: dirty beyond the length");
            for offset in (range.offset..range.end()).step_by(4096) {
                let bytes = unit(offset).unwrap_or_else(|| panic!("{id}: dirty unit {offset} has no bytes"));
                new.bytes[offset as usize..offset as usize + 4096].copy_from_slice(bytes);
                new.meta.data[(offset / self.strip_len()) as usize] = Some(write.version);
            }
        }
        for row in rows(&write.dirty, self.strip_len()) {
            let mut all = vec![0u8; 4096];
            for strip in 0..u32::from(self.k) {
                let at = (strip * self.strip_len() + row) as usize;
                all.iter_mut().zip(&new.bytes[at..at + 4096]).for_each(|(a, b)| *a ^= b);
            }
            assert!(all == new.parity[row as usize..row as usize + 4096], "{id}: parity differs at {row}");
        }
        new.meta.parity = Some(write.version);
        new.meta.len = new.meta.len.max(write.len);
        let meta = new.meta.clone();
        stripes.insert(id, new);
        Ok(meta)
    }
}

/// Strip offsets of the 4 KiB rows that ranges touch.
fn rows(dirty: &[Range], strip: u32) -> BTreeSet<u32> {
    dirty.iter().flat_map(|r| (r.offset..r.end()).step_by(4096)).map(|o| o % strip).collect()
}

impl Blocks for FakeBlocks {
    fn geometry(&self, _: PoolId) -> Option<Geometry> {
        Some(Geometry { data_strips: self.k, width: self.k + 1, block_size: self.block_size })
    }

    fn parity_ranges(&self, _: PoolId, _: u32, dirty: &[Range]) -> Vec<Range> {
        let rows = rows(dirty, self.strip_len());
        let mut ranges: Vec<Range> = Vec::new();
        for strip in 0..u32::from(self.k) {
            for row in &rows {
                let offset = strip * self.strip_len() + row;
                match ranges.last_mut() {
                    Some(last) if last.end() == offset => last.len += 4096,
                    _ => ranges.push(Range { offset, len: 4096 }),
                }
            }
        }
        ranges
    }

    fn write<'a>(
        &'a self,
        write: WriteStripe,
        _: &'a (dyn Fn() -> Version + Send + Sync),
    ) -> BoxFuture<'a, Result<BlockMeta, BlockError>> {
        Box::pin(async move {
            self.writes.fetch_add(1, SeqCst);
            *self.last_pieces.lock().unwrap() = write.pieces.iter().map(|(_, b)| b.len()).collect();
            let (stripe, grant) = (write.stripe, write.version.grant.0);
            if grant >= self.below.load(SeqCst) {
                assert!(self.writing.lock().unwrap().insert(write.stripe), "two versions in flight");
            }
            self.dawdle().await;
            let slow = match self.slow.load(SeqCst) {
                0 => 0,
                slow => self.rng.lock().unwrap().below(slow + 1),
            };
            if slow > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(slow)).await;
            }
            while self.stuck.load(SeqCst) || self.stuck_block.load(SeqCst) == write.stripe.block.0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            let result = if self.failing.load(SeqCst) {
                self.left.lock().unwrap().insert(write.stripe, write);
                Err(BlockError::Unavailable("injected".into()))
            } else {
                self.left.lock().unwrap().remove(&write.stripe);
                self.store(&write)
            };
            self.arrive().await;
            self.dawdle().await;
            if grant >= self.below.load(SeqCst) {
                self.writing.lock().unwrap().remove(&stripe);
            }
            result
        })
    }

    fn read(
        &self,
        stripe: StripeId,
        _: PoolId,
        _: u32,
        ranges: Vec<Range>,
        _: OpClass,
    ) -> BoxFuture<'_, Result<BlockRead, BlockError>> {
        Box::pin(async move {
            self.reads.fetch_add(1, SeqCst);
            self.reading_most.fetch_max(self.reading.fetch_add(1, SeqCst) + 1, SeqCst);
            self.dawdle().await;
            while self.stuck_reads.load(SeqCst) {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            self.reading.fetch_sub(1, SeqCst);
            let found = self.stripes.lock().unwrap().get(&stripe).cloned();
            let Some(found) = found else {
                if self.zeros.load(SeqCst) {
                    return Ok(BlockRead { pieces: Vec::new(), meta: BlockMeta::unknown(self.k.into()) });
                }
                return Err(BlockError::Unavailable(format!("{stripe} is not here")));
            };
            let mut pieces = Vec::new();
            for range in ranges {
                assert!(range.len > 0 && range.end() <= self.block_size);
                for offset in (range.offset..range.end()).step_by(4096) {
                    let bytes = &found.bytes[offset as usize..offset as usize + 4096];
                    if bytes.iter().any(|&b| b != 0) {
                        pieces.push((offset, Bytes::copy_from_slice(bytes)));
                    }
                }
            }
            self.arrive().await;
            self.dawdle().await;
            // What a read happens to learn of versions.
            let meta = match self.rng.lock().unwrap().below(3) {
                0 => BlockMeta::unknown(self.k.into()),
                _ => found.meta,
            };
            Ok(BlockRead { pieces, meta })
        })
    }

    fn leftover(&self, stripe: StripeId, _: PoolId) -> BoxFuture<'_, Result<u32, BlockError>> {
        Box::pin(async move {
            self.questions.fetch_add(1, SeqCst);
            self.dawdle().await;
            let strip = |i: usize| (i as u32 + 1) * self.strip_len();
            let held =
                |s: &Stripe| (0..self.k.into()).filter(|&i| s.meta.data[i] != Some(Version::ZERO)).max();
            let bytes = self.stripes.lock().unwrap().get(&stripe).and_then(held).map_or(0, strip);
            self.dawdle().await;
            self.reap(false);
            Ok(bytes)
        })
    }

    fn forget_inode(&self, _: base::FsId, inode: base::InodeNo) {
        assert!(
            self.writing.lock().unwrap().iter().all(|stripe| stripe.inode != inode),
            "{inode} is written"
        );
        self.left.lock().unwrap().retain(|stripe, _| stripe.inode != inode);
        self.forgotten.lock().unwrap().push(inode);
    }

    fn is_abandoned(&self, stripe: StripeId) -> bool {
        self.left.lock().unwrap().contains_key(&stripe)
    }

    fn adopt_all(&self, _: Instant) -> BoxFuture<'_, Result<(), BlockError>> {
        Box::pin(async { Ok(()) })
    }
}
