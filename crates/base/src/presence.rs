//! Was this process itself away? A process that is stopped (SIGSTOP, a debugger, a disk that its only task waits for) or
//! whose machine sleeps finds on waking that a long time has passed in which it heard of nobody: that says nothing
//! about the others. So who judges others by a clock looks at it often, and does not count what passed between two looks
//! that are far apart.
//!
//! Two clocks: CLOCK_MONOTONIC, by which waits and timers run, stands while the machine sleeps; [`boot_time`] does not.
//! **What one may do oneself** (a lease that was given) is measured by [`boot_time`], absences included: whoever gave it did not
//! sleep. **What others may do** (a lease that one has given) is measured by [`Presence`]: later than by any other clock, and
//! later is always safe there. A machine whose hypervisor stops it without telling it stops both clocks; nothing here sees that.

use std::time::Duration;

/// Looks further apart than this are an absence; no look counts for more time than this.
pub const PRESENT_WITHIN: Duration = Duration::from_secs(1);

/// Time since this machine's boot, time asleep included.
#[expect(unsafe_code, reason = "the standard library has no way to this clock")]
pub fn boot_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that lives as long as the call. It fails only for a clock that is not known, which
    // this one is since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// What a look at the clocks shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// The time that counts for judging others: the monotonic time less what was missed.
    pub present: Duration,
    /// How long this process was away since the last look, if it was.
    pub away: Option<Duration>,
}

/// The clock of a process that judges others: it stands while the process is away. Times in, times out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Presence {
    last: Option<(Duration, Duration)>,
    missed: Duration,
}

impl Presence {
    /// A look at both clocks, to be taken often (well below [`PRESENT_WITHIN`]).
    pub fn look(&mut self, monotonic: Duration, boot: Duration) -> Look {
        let (before, boot_before) = self.last.replace((monotonic, boot)).unwrap_or((monotonic, boot));
        let passed = monotonic.saturating_sub(before);
        self.missed += passed.saturating_sub(PRESENT_WITHIN);
        let away = boot.saturating_sub(boot_before).max(passed);
        Look { present: self.present(monotonic), away: (away > PRESENT_WITHIN).then_some(away) }
    }

    /// The time that counts, as of the last look's knowledge.
    pub fn present(&self, monotonic: Duration) -> Duration {
        monotonic.saturating_sub(self.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn what_passes_between_looks_far_apart_does_not_count() {
        let mut presence = Presence::default();
        assert_eq!(presence.look(s(5.0), s(105.0)), Look { present: s(5.0), away: None });
        assert_eq!(presence.look(s(5.5), s(105.5)), Look { present: s(5.5), away: None });
        let woken = presence.look(s(65.5), s(165.5));
        assert_eq!(woken, Look { present: s(6.5), away: Some(s(60.0)) }, "stopped for a minute");
        assert_eq!(presence.look(s(66.0), s(166.0)), Look { present: s(7.0), away: None });
        assert_eq!(presence.present(s(66.25)), s(7.25));
    }

    #[test]
    fn a_machine_that_slept_was_away_although_its_timers_stood() {
        let mut presence = Presence::default();
        presence.look(s(1.0), s(1.0));
        assert_eq!(presence.look(s(1.1), s(3601.1)), Look { present: s(1.1), away: Some(s(3600.1)) });
    }

    #[test]
    fn the_boot_clock_runs() {
        let before = boot_time();
        assert!(before > Duration::ZERO && boot_time() >= before);
    }
}
