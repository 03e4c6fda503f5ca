//! Stories and random histories of locks; each history against a model that knows bytes and owners only.

use proptest::prelude::*;
use wire::lock::END;

use super::*;

const S1: SessionId = SessionId(1);
const S2: SessionId = SessionId(2);
const F: InodeNo = InodeNo(5);
const LATER: Duration = Duration::from_secs(1000);

/// A table, with numbers and the clock.
struct Stage {
    locks: Locks,
    now: Duration,
    seq: u64,
    ticket: Ticket,
    answers: HashMap<Ticket, LockAnswer>,
    /// Tickets in the order in which they were answered.
    order: Vec<Ticket>,
}

fn lock(owner: u64, mode: LockMode, start: u64, end: u64) -> Lock {
    Lock { kind: LockKind::Fcntl, mode, owner, pid: owner as u32, start, end }
}

fn exclusive(owner: u64, start: u64, end: u64) -> Lock {
    lock(owner, LockMode::Exclusive, start, end)
}

fn flock(owner: u64, mode: LockMode) -> Lock {
    Lock { kind: LockKind::Flock, ..lock(owner, mode, 0, END) }
}

impl Stage {
    fn new() -> Stage {
        let mut locks = Locks::new(77);
        locks.begin(S1, "b", true);
        locks.begin(S2, "b", true);
        Stage { locks, now: Duration::ZERO, seq: 0, ticket: 0, answers: HashMap::new(), order: Vec::new() }
    }

    fn take(&mut self, answers: Answers) {
        self.order.extend(answers.iter().map(|(ticket, _)| *ticket));
        self.answers.extend(answers);
    }

    fn set(&mut self, session: SessionId, ino: InodeNo, lock: Lock, wait: bool) -> Ticket {
        self.seq += 1;
        self.again(session, ino, self.seq, lock, wait)
    }

    fn test(&mut self, session: SessionId, ino: InodeNo, lock: Lock) -> LockAnswer {
        self.ticket += 1;
        let answers = self.locks.test(session, ino, lock, self.ticket, LATER, self.now);
        self.take(answers);
        self.answers[&self.ticket]
    }

    fn again(&mut self, session: SessionId, ino: InodeNo, seq: u64, lock: Lock, wait: bool) -> Ticket {
        self.ticket += 1;
        let answers = self.locks.set(session, ino, seq, lock, wait, self.ticket, LATER, self.now);
        self.take(answers);
        self.ticket
    }

    fn tried(&mut self, session: SessionId, lock: Lock) -> LockAnswer {
        let ticket = self.set(session, F, lock, false);
        self.answers[&ticket]
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        let answers = self.locks.tick(self.now);
        self.take(answers);
    }
}

#[test]
fn what_stands_in_the_way_first_is_named() {
    let mut s = Stage::new();
    for (owner, start) in [(1, 50), (2, 10), (3, 30), (4, 90)] {
        s.set(S1, F, exclusive(owner, start, start + 4), false);
    }
    let named = |answer| match answer {
        LockAnswer::Held(held) => held.map(|held: Lock| held.start),
        other => panic!("{other:?}"),
    };
    assert_eq!(named(s.test(S2, F, exclusive(9, 0, 100))), Some(10));
    assert_eq!(named(s.test(S2, F, exclusive(9, 12, 100))), Some(10), "it begins before the range");
    assert_eq!(named(s.test(S2, F, exclusive(9, 20, 100))), Some(30));
    assert_eq!(named(s.test(S2, F, exclusive(9, 60, 80))), None);
    assert_eq!(named(s.test(S1, F, exclusive(2, 0, 100))), Some(30), "not its own");
}

#[test]
fn exclusion_hand_over_and_order() {
    let mut stage = Stage::new();
    assert_eq!(stage.tried(S1, exclusive(1, 0, 9)), LockAnswer::Done);
    assert_eq!(stage.tried(S2, exclusive(1, 9, 20)), LockAnswer::Busy, "one owner's number on two sessions");
    assert_eq!(stage.tried(S1, exclusive(1, 5, 20)), LockAnswer::Done);
    let first = stage.set(S2, F, exclusive(2, 0, 0), true);
    let second = stage.set(S1, F, lock(3, LockMode::Shared, 0, 3), true);
    stage.locks.test(S2, F, exclusive(9, 15, 15), 900, LATER, stage.now);
    assert_eq!(stage.tried(S1, lock(1, LockMode::None, 0, 3)), LockAnswer::Done);
    assert_eq!(stage.answers.get(&first), Some(&LockAnswer::Done));
    assert_eq!(stage.answers.get(&second), None, "in the order in which they came");
    assert_eq!(stage.tried(S2, lock(2, LockMode::None, 0, END)), LockAnswer::Done);
    assert_eq!(stage.answers.get(&second), Some(&LockAnswer::Done));
    let held = stage.locks.test(S2, F, exclusive(9, 15, 15), 901, LATER, stage.now);
    assert_eq!(held, [(901, LockAnswer::Held(Some(exclusive(1, 4, 20))))]);
}

#[test]
fn a_late_reader_waits_behind_a_writer_but_not_for_ever() {
    let mut stage = Stage::new();
    let shared = |owner| lock(owner, LockMode::Shared, 0, 9);
    assert_eq!(stage.tried(S1, shared(1)), LockAnswer::Done);
    let writer = stage.set(S2, F, exclusive(2, 0, 9), true);
    let reader = stage.set(S1, F, shared(3), true);
    assert_eq!(stage.tried(S2, shared(4)), LockAnswer::Done, "who does not wait is refused only by holders");
    stage.pass(900);
    assert_eq!(stage.answers.get(&reader), None);
    stage.pass(200);
    assert_eq!(stage.answers.get(&reader), Some(&LockAnswer::Done));
    for (session, owner) in [(S1, 1), (S1, 3), (S2, 4)] {
        assert_eq!(stage.answers.get(&writer), None);
        assert_eq!(stage.tried(session, lock(owner, LockMode::None, 0, END)), LockAnswer::Done);
    }
    assert_eq!(stage.answers.get(&writer), Some(&LockAnswer::Done));
}

#[test]
fn a_circle_of_waits_is_refused_to_who_closes_it() {
    let mut stage = Stage::new();
    let (a, b, c) = (InodeNo(1), InodeNo(2), InodeNo(3));
    stage.set(S1, a, exclusive(1, 0, 0), false);
    stage.set(S2, b, exclusive(1, 0, 0), false);
    stage.set(S1, c, exclusive(2, 0, 0), false);
    let first = stage.set(S1, b, exclusive(1, 0, 0), true);
    let second = stage.set(S2, c, exclusive(1, 0, 0), true);
    assert!(!stage.answers.contains_key(&first) && !stage.answers.contains_key(&second));
    let closing = stage.set(S1, a, exclusive(2, 0, 0), true);
    assert_eq!(stage.answers.get(&closing), Some(&LockAnswer::Deadlock));
    stage.set(S1, c, lock(2, LockMode::None, 0, END), false);
    assert_eq!(stage.answers.get(&second), Some(&LockAnswer::Done));
    // Two readers that both want to write.
    let shared = |owner| lock(owner, LockMode::Shared, 0, 9);
    stage.set(S1, F, shared(7), false);
    stage.set(S2, F, shared(8), false);
    let first = stage.set(S1, F, exclusive(7, 0, 9), true);
    let second = stage.set(S2, F, exclusive(8, 0, 9), true);
    assert_eq!(stage.answers.get(&first), None);
    assert_eq!(stage.answers.get(&second), Some(&LockAnswer::Deadlock));
}

#[test]
fn a_changed_flock_is_given_up_first() {
    let mut stage = Stage::new();
    assert_eq!(stage.tried(S1, flock(1, LockMode::Shared)), LockAnswer::Done);
    assert_eq!(stage.tried(S2, flock(2, LockMode::Shared)), LockAnswer::Done);
    assert_eq!(stage.tried(S1, exclusive(1, 0, END)), LockAnswer::Done, "fcntl does not see flock");
    assert_eq!(stage.tried(S1, flock(1, LockMode::Exclusive)), LockAnswer::Busy);
    assert_eq!(stage.tried(S2, flock(2, LockMode::Exclusive)), LockAnswer::Done);
}

#[test]
fn copies_and_what_was_overtaken_change_nothing() {
    let mut stage = Stage::new();
    let (have, free) = (exclusive(1, 0, 9), lock(1, LockMode::None, 0, END));
    assert_eq!(stage.tried(S1, have), LockAnswer::Done);
    let copied = stage.seq;
    assert_eq!(stage.tried(S1, free), LockAnswer::Done);
    let copy = stage.again(S1, F, copied, have, false);
    assert_eq!(stage.answers[&copy], LockAnswer::Superseded);
    assert_eq!(stage.tried(S2, have), LockAnswer::Done);
    // A wait that is asked for again is the same wait; its end comes before its copy.
    let wait = stage.set(S1, F, have, true);
    let seq = stage.seq;
    let rearmed = stage.again(S1, F, seq, have, true);
    assert_eq!(stage.answers.get(&wait), Some(&LockAnswer::Superseded));
    stage.seq += 1;
    let ended = stage.locks.cancel(S1, F, stage.seq, seq, stage.now);
    assert_eq!(ended, [(rearmed, LockAnswer::Cancelled)]);
    let copy = stage.again(S1, F, seq, have, true);
    assert_eq!(stage.answers[&copy], LockAnswer::Superseded);
}

#[test]
fn a_wait_keeps_its_place_between_two_questions_but_not_for_ever() {
    let mut stage = Stage::new();
    stage.set(S1, F, exclusive(1, 0, 9), false);
    stage.now = LATER - Duration::from_secs(1);
    let first = stage.set(S2, F, exclusive(2, 0, 9), true);
    let seq = stage.seq;
    stage.pass(1000);
    assert_eq!(stage.answers.get(&first), Some(&LockAnswer::Waits));
    stage.set(S1, F, lock(1, LockMode::None, 0, END), false);
    assert_eq!(stage.locks.list(InodeNo(0), 9, stage.now).0.len(), 1, "nobody would hear of it");
    let ticket = stage.again(S2, F, seq, exclusive(2, 0, 9), true);
    assert_eq!(stage.answers.get(&ticket), Some(&LockAnswer::Done));
    let gone = stage.set(S1, F, exclusive(1, 0, 9), true);
    stage.pass(1);
    stage.pass(REARM.as_millis() as u64);
    assert_eq!(stage.answers.get(&gone), Some(&LockAnswer::Waits));
    assert_eq!(stage.locks.list(InodeNo(0), 9, stage.now).0.len(), 1);
}

#[test]
fn after_a_restart_nothing_is_given_before_all_have_claimed() {
    let mut stage = Stage::new();
    stage.locks = Locks::new(78);
    stage.locks.begin(S1, "b", false);
    stage.locks.begin(S2, "b", false);
    let tried = stage.set(S2, F, exclusive(2, 5, 5), false);
    assert_eq!((stage.locks.to_claim(S1), stage.locks.to_claim(S2)), (Some(78), Some(78)));
    let claimed = [(F, exclusive(1, 0, 9))];
    let late = stage.locks.claim(S1, 77, &claimed, true, stage.now);
    assert!(late.is_empty() && stage.locks.to_claim(S1).is_some(), "a claim of another life");
    let answers = stage.locks.claim(S2, 78, &[], true, stage.now);
    assert!(answers.is_empty() && stage.locks.is_wanted(S1));
    let answers = stage.locks.claim(S1, 78, &claimed, true, stage.now);
    assert_eq!(answers, [(tried, LockAnswer::Busy)]);
    // Who does not claim and does not renew is fenced, and then free.
    stage.locks.end(S1);
    assert_eq!(stage.tried(S2, exclusive(2, 5, 5)), LockAnswer::Busy, "not before it is fenced");
    stage.locks.drop_session(S1, stage.now);
    assert_eq!(stage.tried(S2, exclusive(2, 5, 5)), LockAnswer::Done);
}

/// Claims come from outside: two sessions may both say that a byte is theirs, and nothing of that breaks the table.
#[test]
fn claims_that_clash_are_believed() {
    let mut stage = Stage::new();
    stage.locks = Locks::new(78);
    stage.locks.begin(S1, "b", false);
    stage.locks.begin(S2, "b", false);
    let waits = stage.set(S2, F, exclusive(3, 5, 5), true);
    for session in [S1, S2] {
        let answers = stage.locks.claim(session, 78, &[(F, exclusive(1, 0, 9))], true, stage.now);
        assert!(answers.is_empty(), "{answers:?}");
    }
    assert_eq!(stage.tried(S1, lock(1, LockMode::None, 0, END)), LockAnswer::Done);
    assert_eq!(stage.answers.get(&waits), None);
    assert_eq!(stage.tried(S2, lock(1, LockMode::None, 0, END)), LockAnswer::Done);
    assert_eq!(stage.answers.get(&waits), Some(&LockAnswer::Done));
}

/// A program has one range, and gives up every other byte of it.
#[test]
fn a_range_is_cut_into_no_more_than_a_session_may_hold() {
    let mut stage = Stage::new();
    assert_eq!(stage.tried(S1, exclusive(1, 0, END)), LockAnswer::Done);
    let mut give_up = |byte| stage.tried(S1, lock(1, LockMode::None, byte, byte));
    for n in 1..HELD_MAX as u64 {
        assert_eq!(give_up(2 * n), LockAnswer::Done);
    }
    let next = 2 * HELD_MAX as u64;
    assert_eq!(give_up(next), LockAnswer::Full);
    // What makes no more of them: one goes, and there is room for one.
    assert_eq!(give_up(3), LockAnswer::Done);
    assert_eq!(give_up(next), LockAnswer::Done);
    assert_eq!(give_up(next + 2), LockAnswer::Full);
    assert_eq!(stage.tried(S1, lock(1, LockMode::None, 0, END)), LockAnswer::Done);
    assert_eq!(stage.tried(S1, exclusive(1, 0, 0)), LockAnswer::Done);
}

/// A session says that it holds more than it can have got: it is one that has not claimed, and is ended as such.
#[test]
fn claims_beyond_all_bounds_are_none() {
    let mut stage = Stage::new();
    stage.locks = Locks::new(78);
    stage.locks.begin(S1, "b", false);
    stage.locks.begin(S2, "b", true);
    stage.set(S2, InodeNo(6), exclusive(3, 5, 5), true);
    let claim: Vec<(InodeNo, Lock)> =
        (0..2 * CLAIMED_MAX as u64).map(|n| (F, exclusive(1, 2 * n, 2 * n))).collect();
    for part in claim.chunks(100) {
        stage.locks.claim(S1, 78, part, false, stage.now);
    }
    assert!(stage.locks.claim(S1, 78, &claim[..1], true, stage.now).is_empty());
    assert_eq!(stage.locks.list(InodeNo(0), usize::MAX, stage.now).0.len(), CLAIMED_MAX + 1);
    stage.locks.tick(stage.now);
    assert_eq!(stage.locks.overdue(stage.now), [S1]);
}

#[derive(Debug, Clone)]
enum Move {
    Set(u64, u64, Lock, bool),
    Cancel(usize),
    Drop(u64),
    Pass(u64),
}

fn a_move() -> impl Strategy<Value = Move> {
    let mode = prop_oneof![Just(LockMode::None), Just(LockMode::Shared), Just(LockMode::Exclusive)];
    let set = (1u64..4, 1u64..3, 1u64..3, mode, 0u64..6, 0u64..6, any::<bool>()).prop_map(
        |(session, ino, owner, mode, a, b, wait)| {
            Move::Set(session, ino, lock(owner, mode, a.min(b), a.max(b)), wait)
        },
    );
    prop_oneof![
        20 => set,
        2 => (0usize..8).prop_map(Move::Cancel),
        1 => (1u64..4).prop_map(Move::Drop),
        3 => (1u64..1500).prop_map(Move::Pass),
    ]
}

/// What each owner has of each byte: all that the table may tell by its answers.
type Model = HashMap<(u64, u64, u64, u64), LockMode>; // (inode, byte, session, owner)

fn clash(model: &Model, session: u64, ino: u64, lock: &Lock) -> bool {
    let own = (session, lock.owner);
    model.iter().any(|(&(i, byte, s, o), &mode)| {
        i == ino
            && (lock.start..=lock.end).contains(&byte)
            && (s, o) != own
            && mode.min(lock.mode) > LockMode::None
            && mode.max(lock.mode) == LockMode::Exclusive
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Every answer is what the bytes say; nobody is left waiting for nothing; nobody waits in a circle.
    #[test]
    fn answers_are_those_of_a_naive_model(moves in prop::collection::vec(a_move(), 1..80)) {
        let mut stage = Stage::new();
        stage.locks.begin(SessionId(3), "b", true);
        let mut model = Model::new();
        let mut waiting: Vec<(Ticket, u64, u64, Lock, u64, Duration)> = Vec::new();
        for one in moves {
            let mut asked = None;
            match one {
                Move::Set(session, ino, lock, wait) => {
                    // An owner is one thread: it waits for one thing at a time.
                    if waiting.iter().any(|w| (w.1, w.3.owner) == (session, lock.owner)) {
                        continue;
                    }
                    let ticket = stage.set(SessionId(session), InodeNo(ino), lock, wait);
                    waiting.push((ticket, session, ino, lock, stage.seq, stage.now));
                    asked = Some((ticket, wait));
                }
                Move::Cancel(which) if !waiting.is_empty() => {
                    let (ticket, session, ino, _, seq, _) = waiting[which % waiting.len()];
                    stage.seq += 1;
                    let answers =
                        stage.locks.cancel(SessionId(session), InodeNo(ino), stage.seq, seq, stage.now);
                    prop_assert!(answers.contains(&(ticket, LockAnswer::Cancelled)));
                    stage.take(answers);
                }
                Move::Drop(session) => {
                    waiting.retain(|w| w.1 != session);
                    model.retain(|key, _| key.2 != session);
                    let answers = stage.locks.drop_session(SessionId(session), stage.now);
                    stage.take(answers);
                    stage.locks.begin(SessionId(session), "b", true);
                }
                Move::Pass(millis) => stage.pass(millis),
                Move::Cancel(_) => continue,
            }
            // Those who were answered, in that order.
            let answered: Vec<_> = waiting.iter().copied().filter(|w| stage.answers.contains_key(&w.0)).collect();
            waiting.retain(|w| !stage.answers.contains_key(&w.0));
            let mut done: Vec<_> =
                answered.iter().filter(|w| stage.answers[&w.0] == LockAnswer::Done).collect();
            done.sort_by_key(|w| stage.order.iter().position(|ticket| *ticket == w.0));
            for (_, session, ino, lock, ..) in &done {
                prop_assert!(!clash(&model, *session, *ino, lock), "{lock:?} was given beside {model:?}");
                for byte in lock.start..=lock.end {
                    model.insert((*ino, byte, *session, lock.owner), lock.mode);
                }
            }
            for (ticket, session, ino, lock, ..) in &answered {
                match stage.answers[ticket] {
                    LockAnswer::Busy => prop_assert!(clash(&model, *session, *ino, lock)),
                    LockAnswer::Deadlock => prop_assert!(asked == Some((*ticket, true))),
                    LockAnswer::Done | LockAnswer::Cancelled => {}
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            // Nobody waits without a reason.
            for (at, (_, session, ino, lock, _, since)) in waiting.iter().enumerate() {
                let has = (lock.start..=lock.end)
                    .any(|byte| model.get(&(*ino, byte, *session, lock.owner)).is_some_and(|m| *m > LockMode::None));
                let behind = !has
                    && stage.now < *since + FAIR_FOR
                    && waiting[..at].iter().any(|w| w.2 == *ino && !w.3.goes_with(lock));
                // What has become free by time alone is given at the next tick.
                let free = !behind && !clash(&model, *session, *ino, lock) && stage.now >= *since + FAIR_FOR;
                prop_assert!(clash(&model, *session, *ino, lock) || behind || free, "{lock:?} waits for nothing");
            }
            prop_assert!(!has_circle(&model, &waiting));
        }
    }
}

/// By giving up one owner after the other that waits for nobody who waits.
fn has_circle(model: &Model, waiting: &[(Ticket, u64, u64, Lock, u64, Duration)]) -> bool {
    let mut left: Vec<_> = waiting.to_vec();
    loop {
        let stuck = |w: &(Ticket, u64, u64, Lock, u64, Duration)| {
            left.iter().any(|other| {
                let of_other: Model = model
                    .iter()
                    .filter(|(key, _)| (key.2, key.3) == (other.1, other.3.owner))
                    .map(|(key, mode)| (*key, *mode))
                    .collect();
                clash(&of_other, w.1, w.2, &w.3)
            })
        };
        let next: Vec<_> = left.iter().copied().filter(stuck).collect();
        if next.len() == left.len() {
            return !left.is_empty();
        }
        left = next;
    }
}
