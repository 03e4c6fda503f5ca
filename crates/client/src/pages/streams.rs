//! What the readers of one open file do: pure decisions, no I/O.
//!
//! Several streams are found in the reads of a handle: forward (each read begins where the last ended),
//! reverse (each ends where the last began) and strided (equal reads at equal steps). Nothing is loaded
//! before a pattern was seen twice running (a stride: three times), so that random reads cost no read that
//! nobody asked for; a file read from its start is believed at the second read. The amount ahead of a
//! stream begins small and doubles while its reader follows, up to what the caller allows.
//! The kernel sends the parts of its own read-ahead at once, and they come in any order: a stream that is
//! known forgives reads a little out of place.

use std::ops::Range;

/// Streams of a handle; a new one takes the place of the one that was quiet longest.
const STREAMS_MAX: usize = 8;
/// Reads kept that belong to no stream.
const RECENT_MAX: usize = 8;
/// After so many other reads of the handle a stream that is not proved yet is forgotten: among random reads
/// some happen to lie side by side.
const QUIET_MAX: u64 = 32;
/// First amount ahead of a stream, bytes.
pub(crate) const AHEAD_MIN: u64 = 512 << 10;
/// How far out of place a read of a known stream may be, bytes.
const SLACK: u64 = 4 << 20;
/// Reads of a strided stream that are asked for ahead, at most.
const RECORDS_MAX: u64 = 64;

/// What a caller knows of the reads to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Nothing: patterns are looked for.
    #[default]
    Normal,
    /// In sequence: read-ahead begins at the first read.
    Sequential,
    /// Anywhere: nothing is read ahead.
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    Forward,
    Reverse,
    Strided { step: i64 },
}

/// One stream. `edge` is how far it was asked for: forward the end, reverse the start, strided the offset
/// of the last read asked for.
#[derive(Clone, Copy, Debug)]
struct Stream {
    course: Course,
    start: u64,
    len: u64,
    edge: u64,
    window: u64,
    hits: u32,
    used: u64,
}

/// What to do after a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// Bytes to load now.
    pub load: Vec<Range<u64>>,
    /// Bytes that a reader in sequence has just gone through.
    pub passed: Range<u64>,
}

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    access: Access,
    streams: Vec<Stream>,
    recent: Vec<(u64, u64)>,
    recent_next: usize,
    reads: u64,
}

impl Stream {
    fn end(&self) -> u64 {
        self.start + self.len
    }

    fn known(&self) -> bool {
        self.hits >= 2
    }

    fn continues(&self, offset: u64, len: u64, now: u64) -> bool {
        let fresh = now - self.used <= QUIET_MAX;
        let near =
            |a: u64, b: u64| a == b || self.known() && fresh && a.abs_diff(b) <= SLACK.min(self.window);
        (self.known() || fresh)
            && match self.course {
                Course::Forward => near(offset, self.end()),
                Course::Reverse => near(offset + len, self.start),
                Course::Strided { step } => {
                    len == self.len && self.start.checked_add_signed(step) == Some(offset)
                }
            }
    }

    fn follow(&mut self, offset: u64, len: u64) -> Range<u64> {
        let before = *self;
        self.hits += 1;
        match self.course {
            Course::Forward => {
                let end = before.end().max(offset + len);
                (self.start, self.len) = (end - len.min(end), len.min(end));
                before.end()..end
            }
            Course::Reverse => {
                (self.start, self.len) = (before.start.min(offset), len);
                0..0
            }
            Course::Strided { .. } => {
                self.start = offset;
                0..0
            }
        }
    }

    /// What to load now. Asked again when half of the amount is used up, so that loads stay large.
    fn ask(&mut self, size: u64, window_max: u64) -> Vec<Range<u64>> {
        let one = |part: Range<u64>| std::iter::once(part).collect();
        if self.window == 0 {
            self.window = AHEAD_MIN.max(2 * self.len);
            self.edge = match self.course {
                Course::Forward => self.end(),
                _ => self.start,
            };
        }
        self.window = self.window.min(window_max);
        let half = self.window / 2;
        // Loads end at even places, so that blocks are loaded whole: a part costs a request as a whole one does.
        let even = if half == 0 { 1 } else { 1 << half.ilog2() };
        let load: Vec<_> = match self.course {
            Course::Forward => {
                self.edge = self.edge.max(self.end());
                if self.edge >= size || self.edge - self.end() > half {
                    return Vec::new();
                }
                // Beyond the edge in any case: that is at most `half` ahead.
                let to = ((self.end() + self.window) / even * even).min(size);
                one(std::mem::replace(&mut self.edge, to)..to)
            }
            Course::Reverse => {
                self.edge = self.edge.min(self.start);
                if self.edge == 0 || self.start - self.edge > half {
                    return Vec::new();
                }
                let from = self.start.saturating_sub(self.window).next_multiple_of(even);
                one(from..std::mem::replace(&mut self.edge, from))
            }
            Course::Strided { step } => self.ask_records(step, size),
        };
        self.window = (self.window * 2).min(window_max);
        load.into_iter().filter(|part| part.start < part.end).collect()
    }

    fn ask_records(&mut self, step: i64, size: u64) -> Vec<Range<u64>> {
        let records = (self.window / self.len.max(1)).clamp(1, RECORDS_MAX);
        let reached = (self.edge as i64 - self.start as i64) / step;
        if reached > (records / 2) as i64 {
            return Vec::new();
        }
        let mut load = Vec::new();
        for record in reached.max(0) + 1..=records as i64 {
            let at = record.checked_mul(step).and_then(|far| self.start.checked_add_signed(far));
            let Some(at) = at.filter(|&at| at < size) else { break };
            self.edge = at;
            load.push(at..(at + self.len).min(size));
        }
        load
    }
}

impl Streams {
    /// Takes the caller's word; what was found so far is forgotten.
    pub fn advise(&mut self, access: Access) {
        *self = Streams { access, ..Streams::default() };
    }

    /// Whether any stream is known.
    pub fn is_streaming(&self) -> bool {
        self.streams.iter().any(Stream::known)
    }

    /// Notes a read of a file of `size` bytes, with at most `window_max` bytes ahead of a stream.
    pub fn note(&mut self, offset: u64, len: u64, size: u64, window_max: u64) -> Next {
        if len == 0 || self.access == Access::Random {
            return Next::default();
        }
        self.reads += 1;
        let at = self.streams.iter().position(|s| s.continues(offset, len, self.reads));
        let Some(at) = at.or_else(|| self.found(offset, len)) else {
            if !self.recent.contains(&(offset, len)) {
                self.remember(offset, len);
            }
            return Next::default();
        };
        let stream = &mut self.streams[at];
        let passed = stream.follow(offset, len);
        stream.used = self.reads;
        let load = if stream.known() && window_max > 0 { stream.ask(size, window_max) } else { Vec::new() };
        Next { load, passed }
    }

    /// A stream that this read makes of earlier ones, as it was before this read.
    fn found(&mut self, offset: u64, len: u64) -> Option<usize> {
        let stream = |course, (start, len): (u64, u64), hits| Stream {
            course,
            start,
            len,
            edge: 0,
            window: 0,
            hits,
            used: self.reads,
        };
        let recent = || self.recent.iter().copied();
        let forward = recent().find(|r| r.0 + r.1 == offset);
        let reverse = recent().find(|r| r.0 == offset + len);
        let new = if self.access == Access::Sequential {
            // Nothing needs to be proved: as if the read before this one had been seen.
            stream(Course::Forward, (offset, 0), 1)
        } else if let Some(last) = forward {
            stream(Course::Forward, last, u32::from(last.0 == 0))
        } else if let Some(last) = reverse {
            stream(Course::Reverse, last, 0)
        } else {
            let equal = || recent().filter(|r| r.1 == len && r.0 != offset);
            let (last, step) = equal().find_map(|last| {
                let step = offset as i64 - last.0 as i64;
                let before = last.0.checked_add_signed(-step)?;
                equal().any(|r| r.0 == before).then_some((last, step))
            })?;
            stream(Course::Strided { step }, last, 0)
        };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(new);
            return Some(self.streams.len() - 1);
        }
        let quiet = (0..STREAMS_MAX).min_by_key(|&i| self.streams[i].used)?;
        self.streams[quiet] = new;
        Some(quiet)
    }

    fn remember(&mut self, offset: u64, len: u64) {
        if self.recent.len() < RECENT_MAX {
            self.recent.push((offset, len));
        } else {
            self.recent[self.recent_next % RECENT_MAX] = (offset, len);
            self.recent_next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;
    const MAX: u64 = 8 << 20;

    /// All that was asked for after the reads at these offsets.
    fn asked(reads: impl IntoIterator<Item = u64>, len: u64, size: u64) -> Vec<Range<u64>> {
        let mut streams = Streams::default();
        reads.into_iter().flat_map(|offset| streams.note(offset, len, size, MAX).load).collect()
    }

    fn random(seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        })
    }

    #[test]
    fn random_reads_load_nothing_ahead() {
        let pages = random(7).map(|r| r % (SIZE / 4096) * 4096).take(100_000);
        assert_eq!(asked(pages, 4096, SIZE), []);
    }

    #[test]
    fn forward_is_asked_for_once_without_gap_and_bounded() {
        let (len, size) = (128 << 10, 100 << 20);
        let mut streams = Streams::default();
        let mut end = 2 * len;
        for i in 0..size / len {
            for part in streams.note(i * len, len, size, MAX).load {
                assert_eq!(part.start, end, "a gap or an overlap at {end}");
                assert!(part.end <= size && part.end - (i + 1) * len <= MAX);
                end = part.end;
            }
        }
        assert_eq!(end, size);
    }

    #[test]
    fn a_stream_under_way_loads_whole_blocks_whatever_its_share_is() {
        let (len, block) = (1 << 20, 4 << 20);
        for reverse in [false, true] {
            let mut streams = Streams::default();
            let place = |i: u64| if reverse { SIZE - (i + 1) * len } else { i * len };
            let loads = (0..200).flat_map(|i| streams.note(place(i), len, SIZE, 20_480_000).load);
            let cut = loads.skip(8).flat_map(|part| [part.start, part.end]).find(|at| at % block != 0);
            assert_eq!(cut, None, "reverse {reverse}");
        }
    }

    #[test]
    fn reverse_is_asked_for_down_to_the_start() {
        let (len, size) = (64u64 << 10, 20u64 << 20);
        let loads = asked((0..size / len).rev().map(|i| i * len), len, size);
        let mut start = size - 3 * len;
        for part in &loads {
            assert_eq!(part.end, start);
            start = part.start;
        }
        assert_eq!(start, 0);
    }

    #[test]
    fn a_stride_loads_its_records_and_nothing_between() {
        for step in [100_000i64, -100_000] {
            let (len, from) = (4096, if step > 0 { 0 } else { 90_000_000 });
            let reads: Vec<u64> = (0..900).map(|i| (from + i * step) as u64).collect();
            let loads = asked(reads.iter().copied(), len, 100_000_000);
            let starts: Vec<u64> = loads.iter().map(|part| part.start).collect();
            assert_eq!(starts[..896], reads[4..900], "step {step}");
            assert!(loads.iter().all(|part| part.end - part.start == len));
        }
    }

    #[test]
    fn interleaved_streams_are_all_found() {
        let mut streams = Streams::default();
        let mut ahead = [0u64; 6];
        for i in 0..64u64 {
            for (s, ahead) in ahead.iter_mut().enumerate() {
                let next = streams.note((s as u64) * (100 << 20) + i * 65536, 65536, SIZE, MAX);
                *ahead += next.load.iter().map(|part| part.end - part.start).sum::<u64>();
            }
        }
        assert!(ahead.iter().all(|bytes| *bytes > 1 << 20), "{ahead:?}");
    }

    #[test]
    fn reads_of_a_known_stream_may_come_out_of_order() {
        let mib = 1u64 << 20;
        let mut streams = Streams::default();
        let mut end = 0;
        for i in 0..100u64 {
            // 0 1 3 2 5 4 7 6 ...
            let i = if i < 2 { i } else { i ^ 1 };
            for part in streams.note(i * mib, mib, SIZE, MAX).load {
                assert!(end == 0 || part.start <= end, "what lies between is left out");
                end = part.end;
            }
        }
        assert!(end > 100 * mib, "the stream was lost");
    }

    #[test]
    fn advice_counts() {
        let mut streams = Streams::default();
        streams.advise(Access::Sequential);
        assert_ne!(streams.note(5 << 20, 4096, SIZE, MAX).load, []);
        streams.advise(Access::Random);
        assert!((0..100).all(|i| streams.note(i * 4096, 4096, SIZE, MAX) == Next::default()));
    }

    #[test]
    fn what_was_passed_in_sequence_is_told() {
        let mut streams = Streams::default();
        streams.note(0, 100, SIZE, MAX);
        assert_eq!(streams.note(100, 50, SIZE, MAX).passed, 100..150);
    }
}
