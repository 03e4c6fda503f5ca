//! Reading ahead: sequential readers of a handle are found, and what they will want is loaded before.
//!
//! The window begins small at the first sequential hit, doubles while the reader follows, and is bounded
//! by `prefetchPct` of the page pool. Random reads load nothing beyond what was asked for. Never waits;
//! under memory pressure it simply does less.

use std::sync::Arc;

use base::{
    OpClass,
    units::{KIB, UNIT},
};

use crate::{core::Core, handle::OpenFile};

/// First window, bytes.
const WINDOW_MIN: u64 = 512 * KIB;

/// What is known of a handle's reads.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Where the last read ended.
    end: u64,
    /// How much to have ahead of the reader; 0: not sequential.
    window: u64,
    /// Everything before this was asked for.
    ahead: u64,
    /// Reads seen.
    reads: u64,
}

impl Pattern {
    /// Notes a read; returns what to load now.
    fn note(&mut self, offset: u64, len: u64, size: u64, window_max: u64) -> Option<(u64, u64)> {
        let sequential = offset == self.end && (self.reads > 0);
        self.reads += 1;
        self.end = offset + len;
        if !sequential || len == 0 || window_max < UNIT as u64 {
            self.window = 0;
            self.ahead = self.end;
            return None;
        }
        if self.window == 0 {
            self.window = WINDOW_MIN.max(2 * len).min(window_max);
            self.ahead = self.end;
        }
        self.ahead = self.ahead.max(self.end);
        // Ask again when half of the window is used up, so that requests stay large.
        if self.ahead >= size || self.ahead - self.end > self.window / 2 {
            return None;
        }
        let to = (self.end + self.window).min(size);
        let from = std::mem::replace(&mut self.ahead, to);
        self.window = (self.window * 2).min(window_max);
        (from < to).then_some((from, to))
    }
}

impl Core {
    /// Notes a read of a handle, and starts loading what comes next.
    pub fn read_ahead(self: &Arc<Core>, file: &OpenFile, offset: u64, len: usize) {
        if file.flags.direct {
            return;
        }
        let window_max = self.tunables.pagepool * u64::from(self.tunables.prefetch_pct) / 100;
        let (size, block_size) = {
            let state = file.inode.lock();
            (state.attr.size, state.block_size())
        };
        let next = {
            let mut pattern = file.pattern.lock().unwrap_or_else(|e| e.into_inner());
            pattern.note(offset, len as u64, size, window_max)
        };
        let Some((from, to)) = next else { return };
        let mut pos = from;
        while pos < to {
            let block = pos / block_size;
            let end = to.min((block + 1) * block_size);
            // What does not get a permit is loaded when it is read.
            let Ok(permit) = self.prefetch_permits.clone().try_acquire_owned() else { return };
            let units = (pos % block_size) as u32 / UNIT as u32
                ..((end - block * block_size) as u32).div_ceil(UNIT as u32);
            let waits = {
                let mut state = file.inode.lock();
                if !state.on_disk(block) {
                    pos = end;
                    continue;
                }
                self.start_load(&file.inode, &mut state, block, units, OpClass::Prefetch)
            };
            let core = self.clone();
            self.runtime.spawn(async move {
                // The reader sees a failure when it comes here itself.
                let _ = core.wait_loads(waits).await;
                drop(permit);
            });
            pos = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_reads_load_nothing_ahead() {
        let mut p = Pattern::default();
        for offset in [0, 8 << 20, 4096, 1 << 20, 5 << 20] {
            assert_eq!(p.note(offset, 4096, 1 << 30, 64 << 20), None);
        }
    }

    #[test]
    fn the_window_grows_without_gap_or_overlap_and_is_bounded() {
        let mut p = Pattern::default();
        let (mut end, size, max) = (128 << 10, 100 << 20, 8 << 20);
        let mut largest = 0;
        for i in 0..800 {
            if let Some((from, to)) = p.note(i * (128 << 10), 128 << 10, size, max) {
                assert!(from >= end || end == 128 << 10, "asked for {from} again");
                assert!(to <= size && to - (i + 1) * (128 << 10) <= max);
                largest = largest.max(to - from);
                end = to;
            }
        }
        assert_eq!(end, size);
        assert!(largest > WINDOW_MIN);
    }

    #[test]
    fn a_jump_starts_anew() {
        let mut p = Pattern::default();
        p.note(0, 4096, 1 << 30, 8 << 20);
        assert!(p.note(4096, 4096, 1 << 30, 8 << 20).is_some());
        assert_eq!(p.note(1 << 29, 4096, 1 << 30, 8 << 20), None);
        let again = p.note((1 << 29) + 4096, 4096, 1 << 30, 8 << 20);
        assert_eq!(again, Some(((1 << 29) + 8192, (1 << 29) + 8192 + WINDOW_MIN)));
    }
}
