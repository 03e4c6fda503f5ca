//! When the timers of one process ring that need not ring at a time of their own: at common times, so that a process that does
//! nothing is woken once for all of them.
//!
//! The common times lie on a grid that begins when this is first asked, best just before the process's runtime is built. Its
//! step is one of the timer wheel of tokio: there a timer that rings within a step costs a second wake-up, at the step's
//! begin, to be sorted into finer slots. Who is off the grid loses nothing but that.
//!
//! Nothing rings later than it was asked to: a period is shortened, never lengthened.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A slot of the second level of tokio's timer wheel, milliseconds.
const STEP: u64 = 64;
/// What happens once a second happens this often: the most steps that are no longer than a second, milliseconds.
const BEAT: u64 = 15 * STEP;
/// Between two beats there is one more time, this long after the first of them, milliseconds.
const HALF: u64 = 7 * STEP;
/// The longest time between two of beats and halves, milliseconds.
const HALF_MAX: u64 = BEAT - HALF;

/// The grid begins now, if it has not begun.
pub fn begin() {
    grid();
}

fn grid() -> Instant {
    static GRID: OnceLock<Instant> = OnceLock::new();
    *GRID.get_or_init(Instant::now)
}

/// The last common time that is no more than `within` after `now`, and after `now`: a beat, if there is always one within that time
/// (960 ms and more); a half, if there is always one (512 ms and more); else a step of 64 ms, or with less than that `now + within`.
pub fn by(now: Instant, within: Duration) -> Instant {
    on(grid(), now, within)
}

fn on(grid: Instant, now: Instant, within: Duration) -> Instant {
    let limit = now + within;
    let Some(since) = limit.checked_duration_since(grid) else { return limit };
    let ms = since.as_millis() as u64;
    let (beat, rest) = (ms - ms % BEAT, ms % BEAT);
    let common = match within.as_millis() as u64 {
        BEAT.. => beat,
        HALF_MAX.. => beat + if rest >= HALF { HALF } else { 0 },
        STEP.. => ms - ms % STEP,
        _ => return limit,
    };
    let at = grid + Duration::from_millis(common);
    // A limit that is itself on the grid to the millisecond, and whatever else leaves no time.
    if at > now { at } else { limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Rings of a loop that waits `within` again and again, `late` after each ring.
    fn rings(begun: Duration, within: Duration, late: Duration) -> Vec<Duration> {
        let grid = Instant::now();
        let mut now = grid + begun;
        let ring = |_| {
            let at = on(grid, now, within);
            assert!(at > now && at <= now + within, "{:?} {:?}", at - grid, now - grid);
            now = at + late;
            at - grid
        };
        (0..50).map(ring).collect()
    }

    #[test]
    fn timers_that_begin_apart_ring_together() {
        for begun in [0, 1, 39, 300, 959, 960, 961].map(ms) {
            for late in [0, 1, 30].map(ms) {
                let (second, half) = (rings(begun, ms(1000), late), rings(begun, ms(512), late));
                let on_beat = |at: &Duration| (at.as_millis() as u64).is_multiple_of(BEAT);
                assert!(second.iter().all(on_beat), "{second:?}");
                assert!(second.windows(2).all(|two| two[1] - two[0] == ms(BEAT)), "{second:?}");
                // A beat, a half, a beat: none more in a second.
                assert!(half.iter().filter(|at| !on_beat(at)).all(|at| at.as_millis() as u64 % BEAT == HALF));
                assert!(half.windows(3).all(|some| some[2] - some[0] == ms(BEAT)), "{half:?}");
            }
        }
        assert_eq!(rings(ms(5), ms(2000), ms(1))[..3], [1920, 2880 + 960, 4800 + 960].map(ms));
    }

    #[test]
    fn short_periods_are_kept() {
        assert!(rings(ms(7), ms(10), ms(0)).windows(2).all(|two| two[1] - two[0] == ms(10)));
        assert!(rings(ms(7), ms(200), ms(1)).windows(2).all(|two| two[1] - two[0] == ms(192)));
    }

    #[test]
    fn a_time_before_the_grid_is_no_common_time() {
        let grid = Instant::now() + ms(10_000);
        let now = grid - ms(5000);
        assert_eq!(on(grid, now, ms(1000)), now + ms(1000));
    }
}
