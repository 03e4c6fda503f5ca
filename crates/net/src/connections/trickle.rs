//! Judges at each heartbeat whether a large request comes fast enough.
//!
//! While it comes it holds its share of the memory that the requests of all peers have in common, and each byte is a sign of life: by
//! a byte now and then a single member could keep all others out. So while others wait for memory a request must come at such
//! a rate that the whole of it takes no longer than a call may; a slower one would be late in any case. As long as there is memory for
//! all, a slow network harms nobody, and nobody is cut off.
//!
//! The reader notes where a request begins and ends, and nothing else: what is judged is what the connection counts anyway.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::config::EndpointConfig;

/// It is judged by what comes in so many times `heartbeat_timeout`: an honest peer of which nothing is heard for one of these is gone.
const SPAN_TIMEOUTS: u32 = 2;

/// The request that is coming and holds a share.
#[derive(Default)]
pub(crate) struct Incoming {
    /// The number of its frame on the connection; 0: none is coming.
    frame: AtomicU64,
    bytes: AtomicU64,
}

impl Incoming {
    /// `frame`, which is not 0, tells it from others.
    pub(crate) fn begin(&self, frame: u64, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.frame.store(frame, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.frame.store(0, Ordering::Relaxed);
    }

    /// Its frame, and its bytes in all.
    pub(crate) fn now(&self) -> Option<(u64, u64)> {
        let frame = self.frame.load(Ordering::Relaxed);
        (frame > 0).then(|| (frame, self.bytes.load(Ordering::Relaxed)))
    }
}

/// A time in which the same request has been coming.
struct Span {
    frame: u64,
    since_us: u64,
    received: u64,
}

/// See the module. Times in microseconds.
pub(crate) struct Trickle {
    span_us: u64,
    /// The whole request may take so long.
    whole_us: u64,
    span: Option<Span>,
}

impl Trickle {
    pub(crate) fn new(config: &EndpointConfig) -> Trickle {
        let us = |d: Duration| d.as_micros() as u64;
        Trickle {
            span_us: us(config.heartbeat_timeout * SPAN_TIMEOUTS),
            whole_us: us(config.deadline_default).max(1),
            span: None,
        }
    }

    /// (Bytes that came, in how long), if these are too few. `received`: all that came on the connection so far; `missed`: when a request
    /// last had to wait for memory; `slept`: this process may have been stopped, and says nothing of others.
    pub(crate) fn tick(
        &mut self,
        now: u64,
        incoming: Option<(u64, u64)>,
        received: u64,
        missed: u64,
        slept: bool,
    ) -> Option<(u64, Duration)> {
        let Some((frame, whole)) = incoming else {
            self.span = None;
            return None;
        };
        let begun = Span { frame, since_us: now, received };
        let span = match &mut self.span {
            Some(span) if span.frame == frame && !slept => span,
            other => {
                *other = Some(begun);
                return None;
            }
        };
        let took = now.saturating_sub(span.since_us);
        if took < self.span_us {
            return None;
        }
        let came = received.saturating_sub(span.received);
        let due = u128::from(whole) * u128::from(took) / u128::from(self.whole_us);
        let slow = u128::from(came) < due && missed >= span.since_us;
        *span = begun;
        slow.then(|| (came, Duration::from_micros(took)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    /// Takes a minute at 1000 bytes a second.
    const WHOLE: u64 = 60_000;

    struct Bench {
        trickle: Trickle,
        second: u64,
        received: u64,
        missed: u64,
    }

    impl Bench {
        fn new() -> Bench {
            let config = EndpointConfig::default();
            Bench { trickle: Trickle::new(&config), second: 100, received: 0, missed: 0 }
        }
        fn tick(&mut self, frame: u64, slept: bool) -> Option<(u64, Duration)> {
            let incoming = (frame > 0).then_some((frame, WHOLE));
            self.trickle.tick(self.second * SECOND, incoming, self.received, self.missed, slept)
        }
        /// After how many of so many seconds at this rate it is closed.
        fn run(&mut self, seconds: u64, frame: impl Fn(u64) -> u64, rate: u64, wanted: bool) -> Option<u64> {
            (0..seconds).find(|&second| {
                let slow = self.tick(frame(second), false);
                self.second += 1;
                self.received += rate;
                if wanted {
                    self.missed = self.second * SECOND;
                }
                slow.is_some()
            })
        }
    }

    #[test]
    fn a_request_that_trickles_is_found_after_a_span_in_which_others_want_memory() {
        let mut b = Bench::new();
        assert_eq!(b.run(11, |_| 5, 1, true), Some(10));
        // It would be late by little.
        assert_eq!(Bench::new().run(11, |_| 5, 990, true), Some(10));
        assert_eq!(Bench::new().run(60, |_| 5, 1000, true), None);
    }

    #[test]
    fn a_slow_network_is_left_alone_as_long_as_there_is_memory() {
        let mut b = Bench::new();
        assert_eq!(b.run(95, |_| 5, 1, false), None);
        // Others want it from now on: the next whole span counts.
        assert!(b.run(20, |_| 5, 1, true).is_some());
    }

    #[test]
    fn each_request_has_its_time_and_so_has_a_process_that_was_stopped() {
        // One in nine seconds, at whatever rate.
        assert_eq!(Bench::new().run(200, |second| 1 + second / 9, 1, true), None);
        // Nothing comes in between.
        assert_eq!(Bench::new().run(200, |second| if second % 9 == 8 { 0 } else { 5 }, 1, true), None);
        let mut b = Bench::new();
        assert_eq!(b.run(9, |_| 5, 1, true), None);
        b.second += 30;
        assert_eq!(b.tick(5, true), None);
        b.second += 1;
        assert_eq!(b.run(9, |_| 5, 1, true), None);
        assert!(b.run(2, |_| 5, 1, true).is_some());
    }

    #[test]
    fn what_comes_is_a_request_with_its_frame_until_it_is_there() {
        let incoming = Incoming::default();
        assert_eq!(incoming.now(), None);
        incoming.begin(3, 70_000);
        assert_eq!(incoming.now(), Some((3, 70_000)));
        incoming.end();
        assert_eq!(incoming.now(), None);
    }
}
