//! How long a token stays that others want: while somebody writes under it, and until it was held for [`SHARE`] times as
//! long as giving it up took the last time. So of the time that several mounts write one file in turns only a small
//! part goes into storing, committing and asking, however small their writes are.
//!
//! It is a recall that comes later and nothing else: whatever may happen before a recall comes may happen meanwhile.
//! Invariant: no token stays longer than [`HELD_MAX`] after its recall, or than [`IDLE`] after the last write.

use std::time::{Duration, Instant};

use wire::token::{Need, Token, Use};

/// It is held for so many times what giving it up costs.
const SHARE: u32 = 10;
/// And for no longer; for less if it was waited for longer than [`WAITED`], as where many take turns: their wait grows with the root of their number only.
const HELD_MAX: Duration = Duration::from_millis(250);
const WAITED: Duration = Duration::from_secs(1);
/// Who does not write for so long is done for now.
const IDLE: Duration = Duration::from_millis(2);

/// See the file's head.
#[derive(Default)]
pub(crate) struct Linger {
    /// When the last grant came; none: nothing was ever asked for.
    since: Option<Instant>,
    /// The longest that it is held since then.
    most: Duration,
    /// What giving up took the last time.
    cost: Duration,
    /// Uses for writing under way, and when one began or ended last.
    writers: u32,
    written: Option<Instant>,
    /// What a recall leaves, and when it is obeyed at the latest.
    recall: Option<(Token, Instant)>,
}

impl Linger {
    /// A grant came, for somebody who has asked for it since `asked`.
    pub fn granted(&mut self, asked: Instant, now: Instant) {
        self.since = Some(now);
        let waited = now.saturating_duration_since(asked).max(WAITED);
        self.most = HELD_MAX.mul_f64(WAITED.as_secs_f64() / waited.as_secs_f64());
    }

    /// A use begins. Uses that a waiting recall leaves do not count. True if it is one that [`Linger::end_use`] must hear of.
    pub fn begin_use(&mut self, need: Need, now: impl FnOnce() -> Instant) -> bool {
        let stays = |(left, _): &(Token, Instant)| left.allows(need);
        let counts = matches!(need, Need::Write | Need::Blocks(_, Use::Write))
            && self.since.is_some()
            && !self.recall.as_ref().is_some_and(stays);
        if counts {
            self.writers += 1;
            self.written = Some(now());
        }
        counts
    }

    /// A use ends that counted.
    pub fn end_use(&mut self, now: Instant) {
        debug_assert!(self.writers > 0, "it began");
        self.writers = self.writers.saturating_sub(1);
        self.written = Some(now);
    }

    /// A recall came. False if one waits already: it is this one now.
    pub fn recalled(&mut self, left: Token, now: Instant) -> bool {
        if let Some((waiting, _)) = &mut self.recall {
            if left.serial >= waiting.serial {
                *waiting = left;
            }
            return false;
        }
        let hold = (SHARE * self.cost).min(self.most);
        self.recall = Some((left, self.since.map_or(now, |since| since + hold)));
        true
    }

    /// Whether the recall waits on.
    pub fn stays(&self, now: Instant) -> bool {
        let used = self.writers > 0 || self.written.is_some_and(|at| now < at + IDLE);
        used && self.recall.as_ref().is_some_and(|(_, until)| now < *until)
    }

    /// The recall is obeyed now.
    pub fn obey(&mut self) -> Option<Token> {
        self.recall.take().map(|(left, _)| left)
    }

    /// So long giving up took.
    pub fn gave(&mut self, took: Duration) {
        self.cost = took;
    }
}

#[cfg(test)]
mod tests {
    use base::{Grant, InodeNo};
    use wire::token::{Blocks, Span, TokenMode};

    use super::*;

    const COST: Duration = Duration::from_millis(5);

    fn left(mode: TokenMode, serial: u64) -> Token {
        Token::new(InodeNo(7), mode, Grant(serial))
    }

    /// A token that costs [`COST`] to give up, granted `now`.
    fn held(now: Instant) -> Linger {
        let mut linger = Linger::default();
        linger.gave(COST);
        linger.granted(now, now);
        linger
    }

    #[test]
    fn it_stays_while_it_is_written_under_and_not_for_ever() {
        let now = Instant::now();
        let mut linger = held(now);
        assert!(linger.begin_use(Need::Write, || now));
        assert!(linger.recalled(left(TokenMode::None, 3), now));
        assert!(linger.stays(now + COST) && !linger.stays(now + SHARE * COST));
        linger.end_use(now + COST);
        assert!(linger.stays(now + COST) && !linger.stays(now + COST + IDLE));
        assert_eq!(linger.obey(), Some(left(TokenMode::None, 3)));
        assert!(!linger.stays(now));
        linger.gave(Duration::from_secs(9));
        linger.granted(now, now);
        assert!(linger.begin_use(Need::Write, || now) && linger.recalled(left(TokenMode::None, 5), now));
        assert!(!linger.stays(now + HELD_MAX));
    }

    #[test]
    fn where_many_wait_it_is_held_for_less() {
        let now = Instant::now();
        let mut linger = held(now);
        linger.gave(HELD_MAX);
        linger.granted(now, now + 10 * WAITED);
        assert!(linger.begin_use(Need::Write, || now) && linger.recalled(left(TokenMode::None, 3), now));
        assert!(linger.stays(now + 10 * WAITED) && !linger.stays(now + 10 * WAITED + HELD_MAX / 10));
    }

    #[test]
    fn what_only_reads_or_was_not_asked_for_goes_at_once() {
        let now = Instant::now();
        let mut linger = held(now);
        assert!(!linger.begin_use(Need::Read, || now) && !linger.begin_use(Need::Size, || now));
        assert!(linger.recalled(left(TokenMode::None, 3), now) && !linger.stays(now));
        let mut linger = Linger::default();
        assert!(!linger.begin_use(Need::Write, || now));
        assert!(linger.recalled(left(TokenMode::None, 3), now) && !linger.stays(now));
    }

    #[test]
    fn writes_into_what_is_left_do_not_count() {
        let now = Instant::now();
        let mut linger = held(now);
        let write = |first| Need::Blocks(Span { first, end: first + 1 }, Use::Write);
        let part =
            Token { blocks: Blocks::of(Span { first: 5, end: 9 }, Use::Write), ..left(TokenMode::Part, 3) };
        assert!(linger.recalled(part, now));
        assert!(!linger.begin_use(write(6), || now) && !linger.stays(now));
        assert!(linger.begin_use(write(4), || now) && linger.stays(now));
    }

    #[test]
    fn of_recalls_that_wait_the_newest_counts() {
        let now = Instant::now();
        let mut linger = held(now);
        assert!(linger.recalled(left(TokenMode::Read, 3), now));
        assert!(
            !linger.recalled(left(TokenMode::None, 4), now)
                && !linger.recalled(left(TokenMode::Open, 2), now)
        );
        assert_eq!(linger.obey(), Some(left(TokenMode::None, 4)));
    }
}
