//! Reading ahead: what the readers of an open file will want next is loaded before they ask.
//!
//! [`crate::pages::streams`] finds the streams; here they get their share and their loads. What all streams
//! together may have ahead is the smallest of `prefetchPct` of the page pool, `prefetchThreads` blocks, and
//! what `maxMBpS` moves in twice the time that loads take now (twice: a stream asks again when half of
//! its share is used up). Streams that were read lately have equal shares of it, a block at least.
//! Never waits; under memory pressure it simply does less.

use std::{ops::Range, sync::Arc, time::Instant};

use base::{OpClass, units::UNIT};
use wire::token::{Need, Span, Use};

use crate::{
    core::Core,
    files::{handle::OpenFile, inode::Inode},
    pages::{load_meter::LATENCY_MIN, streams::AHEAD_MIN},
};

/// Blocks of a large file that a reader in sequence goes through with a read.
#[must_use]
pub(crate) struct Passed(Range<u64>);

impl Core {
    /// Notes a read of a handle, and starts loading what comes next. The result is for [`Core::passed`], when the read has its bytes.
    pub fn read_ahead(self: &Arc<Core>, file: &OpenFile, offset: u64, len: usize) -> Passed {
        if file.flags.direct || len == 0 {
            return Passed(0..0);
        }
        let (size, block_size) = {
            let state = file.inode.lock();
            (state.attr.size, state.block_size())
        };
        let len = (len as u64).min(size.saturating_sub(offset));
        let next = {
            let mut reader = file.reader.lock();
            let streaming = reader.streams.is_streaming();
            let window_max = self.ahead_max(&mut reader.epoch, streaming, block_size);
            reader.streams.note(offset, len, size, window_max)
        };
        for part in next.load {
            if !self.load_ahead(&file.inode, part.start, part.end) {
                break;
            }
        }
        let large = size > self.live().seq_discard_threshold;
        Passed(if large { next.passed.start / block_size..next.passed.end / block_size } else { 0..0 })
    }

    /// Bytes that one stream may have ahead.
    fn ahead_max(&self, epoch: &mut u64, streaming: bool, block_size: u64) -> u64 {
        let live = self.live();
        let memory = live.pagepool / 100 * u64::from(live.prefetch_pct);
        if memory < AHEAD_MIN / 4 {
            return 0;
        }
        let (sharers, latency) = if streaming {
            let (now, sharers, latency) = self.load_meter.share(*epoch, Instant::now());
            *epoch = now;
            (u64::from(sharers.max(1)), latency)
        } else {
            (1, LATENCY_MIN)
        };
        let threads = u64::from(live.prefetches_max) * block_size;
        let rate = u64::from(live.mb_per_second_max) * latency.as_micros() as u64 * 2;
        (memory.min(threads).min(rate) / sharers).max(block_size).min(memory)
    }

    /// Begins to load bytes of a file that are not here. False: nothing more can be begun now; what is
    /// left out is loaded when it is read.
    pub fn load_ahead(self: &Arc<Core>, inode: &Arc<Inode>, from: u64, to: u64) -> bool {
        let block_size = inode.lock().block_size();
        let mut pos = from;
        while pos < to {
            let block = pos / block_size;
            let end = to.min((block + 1) * block_size);
            let Ok(permit) = self.permits.prefetch.clone().try_acquire_owned() else { return false };
            let units = (pos % block_size) as u32 / UNIT as u32
                ..((end - block * block_size) as u32).div_ceil(UNIT as u32);
            pos = end;
            let waits = {
                let mut state = inode.lock();
                if !state.token.allows(Need::Blocks(Span { first: block, end: block + 1 }, Use::Read)) {
                    return false;
                }
                if state.recorded.first_unknown(block, block + 1).is_some() {
                    return false;
                }
                if !state.on_disk(block) {
                    continue;
                }
                self.start_load(inode, &mut state, block, units, OpClass::Prefetch)
            };
            if waits.is_empty() {
                continue;
            }
            let (core, began) = (self.clone(), Instant::now());
            self.runtime.spawn(async move {
                // The reader sees a failure when it comes here itself.
                if core.wait_loads(waits).await.is_ok() {
                    core.load_meter.took(began.elapsed());
                }
                drop(permit);
            });
        }
        true
    }

    /// A reader in sequence has gone through these blocks: they go first. What is still being loaded is not known to the pool.
    pub fn passed(&self, inode: &Inode, Passed(blocks): Passed) {
        for block in blocks {
            let tags = inode.lock().block(block).map(|b| b.tags()).unwrap_or_default();
            self.pool.give_up_first(tags);
        }
    }
}
