//! Reading ahead: what the readers of an open file will want next is loaded before they ask.
//!
//! [`crate::pages::streams`] finds the streams; here they get their share and their loads. What all streams
//! together may have ahead is the smallest of `prefetchPct` of the page pool, `prefetchThreads` blocks, and
//! what `maxMBpS` moves in twice the time that loads take now (twice: a stream asks again when half of
//! its share is used up). Streams that were read lately have equal shares of it, a block at least.
//! Never waits; under memory pressure it simply does less.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use base::{OpClass, units::UNIT};
use wire::token::{Need, Span, Use};

use crate::{
    core::Core,
    files::{handle::OpenFile, inode::Inode},
    pages::streams::AHEAD_MIN,
};

/// A stream counts as active for one to two of these.
const EPOCH: Duration = Duration::from_secs(1);
/// A load is taken to last at least this long: windows do not shrink below what hides a hiccup.
const LATENCY_MIN: Duration = Duration::from_millis(5);

/// How long loads take, and how many streams share what may be ahead.
#[derive(Default)]
pub(crate) struct LoadMeter(Mutex<Meter>);

#[derive(Default)]
struct Meter {
    latency: Duration,
    epoch: Option<Instant>,
    /// Handles with a stream in this epoch and the one before.
    active: [u32; 2],
    number: u64,
}

impl LoadMeter {
    fn lock(&self) -> std::sync::MutexGuard<'_, Meter> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A load of read-ahead took this long.
    fn took(&self, time: Duration) {
        let mut meter = self.lock();
        meter.latency = if meter.latency.is_zero() { time } else { (meter.latency * 7 + time) / 8 };
    }

    /// A handle streams that did so last in epoch `seen`; returns the epoch now, the streams that share and
    /// the time that a load takes.
    fn share(&self, seen: u64, now: Instant) -> (u64, u32, Duration) {
        let mut meter = self.lock();
        let began = *meter.epoch.get_or_insert(now);
        let age = now.saturating_duration_since(began);
        if age >= EPOCH {
            let last = if age < 2 * EPOCH { meter.active[0] } else { 0 };
            meter.active = [0, last];
            meter.epoch = Some(now);
            meter.number += 1;
        }
        if seen != meter.number + 1 {
            meter.active[0] += 1;
        }
        let sharers = meter.active[0].max(meter.active[1]);
        (meter.number + 1, sharers, meter.latency.max(LATENCY_MIN))
    }
}

impl Core {
    /// Notes a read of a handle, and starts loading what comes next.
    pub fn read_ahead(self: &Arc<Core>, file: &OpenFile, offset: u64, len: usize) {
        if file.flags.direct || len == 0 {
            return;
        }
        let (size, block_size) = {
            let state = file.inode.lock();
            (state.attr.size, state.block_size())
        };
        let len = (len as u64).min(size.saturating_sub(offset));
        let next = {
            let mut reader = file.reader.lock().unwrap_or_else(|e| e.into_inner());
            let streaming = reader.streams.is_streaming();
            let window_max = self.ahead_max(&mut reader.epoch, streaming, block_size);
            reader.streams.note(offset, len, size, window_max)
        };
        if !next.passed.is_empty() && size > self.live().seq_discard_threshold {
            self.passed(&file.inode, next.passed.start / block_size..next.passed.end / block_size);
        }
        for part in next.load {
            if !self.load_ahead(&file.inode, part.start, part.end) {
                return;
            }
        }
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
            let Ok(permit) = self.prefetch_permits.clone().try_acquire_owned() else { return false };
            let units = (pos % block_size) as u32 / UNIT as u32
                ..((end - block * block_size) as u32).div_ceil(UNIT as u32);
            pos = end;
            let waits = {
                let mut state = inode.lock();
                if !state.token.allows(Need::Blocks(Span { first: block, end: block + 1 }, Use::Read)) {
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

    /// A reader in sequence has gone through these blocks.
    fn passed(&self, inode: &Inode, blocks: std::ops::Range<u64>) {
        for block in blocks {
            let tags = inode.lock().block(block).map(|b| b.tags()).unwrap_or_default();
            self.pool.give_up_first(tags);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_until_they_are_quiet() {
        let meter = LoadMeter::default();
        let start = Instant::now();
        let (a, one, _) = meter.share(0, start);
        let (b, two, _) = meter.share(0, start);
        assert_eq!((one, two, meter.share(a, start).1), (1, 2, 2));
        // One of them goes on: the other counts for a while, then no more.
        let (a, still, _) = meter.share(a, start + EPOCH);
        assert_eq!(still, 2);
        assert_eq!(meter.share(a, start + EPOCH * 2).1, 1);
        assert_ne!(a, b);
    }

    #[test]
    fn latency_is_an_average_with_a_floor() {
        let meter = LoadMeter::default();
        assert_eq!(meter.share(0, Instant::now()).2, LATENCY_MIN);
        (0..100).for_each(|_| meter.took(Duration::from_millis(40)));
        assert!(meter.share(0, Instant::now()).2 > Duration::from_millis(30));
    }
}
