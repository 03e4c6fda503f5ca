//! Stories of parts of one file, told to the table, by sessions that obey.

use std::{collections::BTreeSet, time::Duration};

use base::{Grant, InodeNo, SessionId};
use wire::token::{Blocks, Need, RUNS_MAX, Recall, Span, Token, TokenMode, Use};

use super::{calls::TICKETS_MAX, grants::RESOLVED_MAX, *};
use crate::ticket::Ticket;

const INO: InodeNo = InodeNo(7);
const NOW: Duration = Duration::ZERO;
const NEVER: Duration = Duration::MAX;

struct Stage {
    tokens: Tokens,
    grants: u64,
    /// Grants, recalls and releases so far.
    messages: u64,
    now: Duration,
}

impl Stage {
    fn new(sessions: u64) -> Stage {
        let mut stage = Stage { tokens: Tokens::new(false), grants: 0, messages: 0, now: Duration::ZERO };
        (1..=sessions).for_each(|session| stage.tokens.begin(SessionId(session), false, false));
        stage
    }

    fn with(&mut self, call: impl FnOnce(&mut Tokens, NextGrant<'_>) -> Acts) -> Acts {
        let grants = &mut self.grants;
        call(&mut self.tokens, &mut || {
            *grants += 1;
            Grant(*grants)
        })
    }

    fn held(&self, session: u64) -> Token {
        let holders = self.tokens.holders(INO);
        let own = holders.into_iter().find(|(holder, _)| *holder == SessionId(session));
        own.map(|(_, token)| token).unwrap_or_default()
    }

    /// What a client does that wants something: nothing if it has it; all others obey at once.
    fn want(&mut self, session: u64, need: Need) -> Token {
        if self.held(session).allows(need) {
            return self.held(session);
        }
        let now = self.now;
        let Acts { mut granted, mut told, .. } = self
            .with(|tokens, next| tokens.acquire(SessionId(session), INO, need, session, NEVER, now, next));
        while granted.is_empty() || !told.is_empty() {
            for other in 1..=2 {
                told.extend(self.tokens.poll(SessionId(other), 10 + other, NEVER, now).told);
            }
            assert!(!told.is_empty(), "{session} waits for {need:?}, and nobody is told to do anything");
            for (ticket, recalls) in std::mem::take(&mut told) {
                for recall in recalls {
                    let session = SessionId(ticket - 10);
                    self.messages += 2;
                    let more = self.with(|tokens, next| match recall {
                        Recall::Token(left) => tokens.release(session, &[left], now, next),
                        Recall::Publish(ino, number) => tokens.published(session, ino, number, now, next),
                        other => panic!("{other:?}"),
                    });
                    granted.extend(more.granted);
                    told.extend(more.told);
                }
            }
        }
        self.messages += 2;
        self.held(session)
    }

    fn write(&mut self, session: u64, block: u64) {
        self.want(session, Need::Blocks(Span { first: block, end: block + 1 }, Use::Write));
    }

    fn runs(&self) -> usize {
        self.tokens.holders(INO).iter().map(|(_, token)| token.blocks.runs().len()).sum()
    }
}

#[test]
fn every_other_block_costs_no_message_once_it_is_divided() {
    let mut stage = Stage::new(2);
    let pass = |stage: &mut Stage| (0..200).for_each(|block| stage.write(1 + block % 2, block));
    pass(&mut stage);
    let (messages, runs) = (stage.messages, stage.runs());
    assert!(messages <= 4 * 201 && runs <= 201, "{messages} messages, {runs} runs");
    pass(&mut stage);
    assert_eq!(stage.messages, messages);
    // Times are asked for, and nobody loses anything.
    let before = stage.held(2);
    stage.want(1, Need::Attr);
    assert_eq!((stage.messages, stage.held(2)), (messages + 4, before));
    pass(&mut stage);
    assert_eq!(stage.messages, messages + 4);
    // All of it: the other keeps nothing.
    assert_eq!(stage.want(1, Need::Write).mode, TokenMode::Write);
    assert_eq!(stage.held(2).mode, TokenMode::Open);
}

/// Who gives something up may have a question under way whose asker has pages locked that go with it: it is answered before
/// whoever waits for that. Who gives nothing up stays behind.
#[test]
fn who_is_recalled_reads_before_who_waits_for_it() {
    let mut stage = Stage::new(3);
    let block = |first, what| Need::Blocks(Span { first, end: first + 1 }, what);
    stage.write(1, 0);
    stage.write(2, 1);
    assert!(!stage.held(1).allows(block(1, Use::Read)));
    let ask = |stage: &mut Stage, session, need, ticket| {
        let acts = |tokens: &mut Tokens, next: NextGrant<'_>| {
            tokens.acquire(SessionId(session), INO, need, ticket, NEVER, NOW, next)
        };
        stage.with(acts).granted
    };
    assert_eq!(ask(&mut stage, 2, Need::Write, 20), []);
    assert_eq!(ask(&mut stage, 3, block(0, Use::Read), 30), [], "it has nothing to give up");
    assert_eq!(ask(&mut stage, 1, block(1, Use::Read), 10), [], "another has written there");
    // That one gives its part up, while it waits for the whole.
    let left = Token { blocks: Default::default(), mode: TokenMode::Open, ..stage.held(2) };
    let granted = stage.with(|tokens, next| tokens.release(SessionId(2), &[left], NOW, next)).granted;
    assert_eq!(granted.iter().map(|(ticket, ..)| *ticket).collect::<Vec<_>>(), [10]);
    assert!(stage.held(1).allows(block(0, Use::Read)) && stage.held(1).allows(block(1, Use::Read)));
    let left = Token { blocks: Default::default(), mode: TokenMode::Open, ..stage.held(1) };
    let granted = stage.with(|tokens, next| tokens.release(SessionId(1), &[left], NOW, next)).granted;
    assert_eq!(granted.first().map(|(ticket, ..)| *ticket), Some(20), "and then the first of those who wait");
}

/// Of two questions of one session the writer's may come last: they were sent again, by connections of their own, and the reader's is the one that its giving up
/// waits for.
#[test]
fn a_writers_question_does_not_take_the_place_of_a_readers() {
    for others_first in [false, true] {
        let mut stage = Stage::new(2);
        let block = |first, what| Need::Blocks(Span { first, end: first + 1 }, what);
        stage.write(1, 0);
        stage.write(2, 1);
        let ask = |stage: &mut Stage, session, need, ticket| {
            let acts = |tokens: &mut Tokens, next: NextGrant<'_>| {
                tokens.acquire(SessionId(session), INO, need, ticket, NEVER, NOW, next)
            };
            stage.with(acts).granted
        };
        if others_first {
            assert_eq!(ask(&mut stage, 2, Need::Write, 20), []);
        }
        assert_eq!(ask(&mut stage, 1, block(1, Use::Read), 10), []);
        if !others_first {
            assert_eq!(ask(&mut stage, 2, Need::Write, 20), []);
        }
        assert_eq!(ask(&mut stage, 1, Need::Write, 11), []);
        let left = Token { blocks: Default::default(), mode: TokenMode::Open, ..stage.held(2) };
        let granted = stage.with(|tokens, next| tokens.release(SessionId(2), &[left], NOW, next)).granted;
        let mut tickets: Vec<_> = granted.iter().map(|(ticket, ..)| *ticket).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, [10, 11], "both are answered with what the reader asked");
        assert!(stage.held(1).allows(block(1, Use::Read)), "{others_first}: {:?}", stage.held(1));
    }
}

#[test]
fn two_writers_far_apart_have_one_conflict() {
    let mut stage = Stage::new(2);
    stage.write(1, 0);
    stage.write(2, 1000);
    let messages = stage.messages;
    for block in 0..1000 {
        stage.write(1, block);
        stage.write(2, 1000 + block);
    }
    assert_eq!((stage.messages, stage.runs()), (messages, 2));
}

#[test]
fn a_file_is_not_divided_without_bound() {
    let mut stage = Stage::new(2);
    let mut most = 0;
    for block in 0..5000 {
        stage.write(1 + block % 2, block);
        most = most.max(stage.runs());
        assert!(stage.tokens.holders(INO).iter().all(|(_, token)| token.is_valid()));
    }
    assert!((RUNS_MAX / 2..=RUNS_MAX).contains(&most), "{most} runs");
}

#[test]
fn who_wants_other_blocks_goes_past_who_waits() {
    let mut stage = Stage::new(3);
    stage.write(1, 0);
    stage.write(2, 10);
    let need = |block| Need::Blocks(Span { first: block, end: block + 1 }, Use::Write);
    let acts = stage.with(|tokens, next| tokens.acquire(SessionId(3), INO, need(10), 3, NEVER, NEVER, next));
    assert!(acts.granted.is_empty(), "the second one holds it");
    stage.with(|tokens, next| {
        tokens.release(SessionId(1), &[Token::new(INO, TokenMode::Open, Grant(u64::MAX))], NEVER, next)
    });
    let acts = stage.with(|tokens, next| tokens.acquire(SessionId(1), INO, need(3), 1, NEVER, NEVER, next));
    assert_eq!(acts.granted.len(), 1);
    let acts =
        stage.with(|tokens, next| tokens.acquire(SessionId(1), INO, Need::Write, 1, NEVER, NEVER, next));
    assert!(acts.granted.is_empty());
}

#[test]
fn a_late_copy_of_a_question_does_not_silence_the_question() {
    let mut stage = Stage::new(2);
    stage.write(1, 0);
    let ask = |stage: &mut Stage, ticket| {
        let acquire = |tokens: &mut Tokens, next: NextGrant<'_>| {
            tokens.acquire(SessionId(2), INO, Need::Write, ticket, Duration::from_secs(1), NOW, next)
        };
        stage.with(acquire)
    };
    (1..=TICKETS_MAX as u64).for_each(|ticket| assert_eq!(ask(&mut stage, ticket).late, []));
    assert_eq!(ask(&mut stage, 100).late, [1], "of many the oldest is given up");
    let left = [Token::new(INO, TokenMode::Open, Grant(u64::MAX))];
    let mut others = stage.tokens.clone();
    let acts = stage.with(|tokens, next| tokens.release(SessionId(1), &left, NOW, next));
    let answered: BTreeSet<Ticket> = acts.granted.iter().map(|(ticket, ..)| *ticket).collect();
    assert_eq!(answered, (2..=TICKETS_MAX as u64).chain([100]).collect());
    let late = others.tick(false, Duration::from_secs(1), &mut || Grant(1)).late;
    assert_eq!(late.into_iter().collect::<BTreeSet<_>>(), answered);
}

#[test]
fn a_change_waits_until_nobody_else_keeps_what_it_changes() {
    let mut stage = Stage::new(2);
    let (one, two) = (SessionId(1), SessionId(2));
    assert_eq!(stage.want(1, Need::Names).mode, TokenMode::Read);
    assert_eq!(stage.want(2, Need::Names).mode, TokenMode::Read);
    // Who changes keeps its own.
    let acts = stage.with(|tokens, next| tokens.change(one, INO, 90, NEVER, NOW, next));
    assert!(acts.cleared.is_empty() && acts.told.is_empty());
    let told = stage.tokens.poll(two, 12, NEVER, NOW).told;
    let Recall::Token(wanted) = told[0].1[0].clone() else { panic!("{told:?}") };
    assert_eq!(wanted.mode, TokenMode::Open);
    // Others who want it meanwhile come after the change, and it ends in time whatever they do.
    let acts = stage.with(|tokens, next| tokens.acquire(two, INO, Need::Names, 91, NEVER, NOW, next));
    assert!(acts.granted.is_empty());
    let acts = stage.with(|tokens, next| tokens.change(one, INO, 92, Duration::from_secs(1), NOW, next));
    assert!(acts.cleared.is_empty());
    let acts = stage.with(|tokens, next| tokens.tick(false, Duration::from_secs(1), next));
    assert_eq!((acts.late, acts.cleared), (vec![92], vec![]));
    let left = Token { mode: TokenMode::None, ..wanted };
    let acts = stage.with(|tokens, next| tokens.release(two, &[left], NOW, next));
    assert_eq!((acts.cleared, acts.granted.len()), (vec![90], 1));
    assert_eq!((stage.held(1).mode, stage.held(2).mode), (TokenMode::Read, TokenMode::Read));
    // Nobody else keeps it: at once.
    let none = Token::new(INO, TokenMode::None, stage.held(2).serial);
    stage.with(|tokens, next| tokens.release(two, &[none], NOW, next));
    let acts = stage.with(|tokens, next| tokens.change(one, INO, 93, NEVER, NOW, next));
    assert_eq!(acts.cleared, [93]);
}

#[test]
fn a_change_waits_for_a_dead_session_until_it_is_fenced_and_for_claims_after_a_restart() {
    let mut stage = Stage::new(2);
    let (one, two) = (SessionId(1), SessionId(2));
    stage.want(2, Need::Names);
    stage.tokens.end(two);
    let acts = stage.with(|tokens, next| tokens.change(one, INO, 90, NEVER, NOW, next));
    assert!(acts.cleared.is_empty());
    let acts = stage.with(|tokens, next| tokens.drop_session(two, NOW, next));
    assert_eq!(acts.cleared, [90]);
    // What the dead session left of files is no matter of names.
    assert_eq!(stage.want(1, Need::Names).mode, TokenMode::Read);

    let mut stage = Stage::new(0);
    stage.tokens.begin(one, true, false);
    stage.tokens.begin(two, true, false);
    let acts = stage.with(|tokens, next| tokens.change(one, INO, 91, NEVER, NOW, next));
    assert!(acts.cleared.is_empty());
    for (session, ticket) in [(one, 11), (two, 12)] {
        let told = stage.tokens.poll(session, ticket, NEVER, NOW).told;
        assert_eq!(told, [(ticket, vec![Recall::Share])]);
    }
    stage.with(|tokens, next| tokens.claim(one, &[], true, NOW, next));
    let acts = stage.with(|tokens, next| tokens.claim(two, &[], true, NOW, next));
    assert_eq!(acts.cleared, [91]);
}

#[test]
fn a_session_holds_no_more_tokens_than_it_may() {
    let mut stage = Stage::new(2);
    let session = SessionId(1);
    for ino in 0..5 {
        let (ino, full) = (InodeNo(ino), ino >= 3);
        assert_eq!(stage.tokens.is_full(session, ino, 3), full);
        if !full {
            stage.with(|tokens, next| tokens.acquire(session, ino, Need::Read, 1, NEVER, NOW, next));
        }
    }
    assert!(!stage.tokens.is_full(session, InodeNo(1), 3), "what it has it may have more of");
    assert!(!stage.tokens.is_full(SessionId(2), InodeNo(9), 3));
    let left = Token { mode: TokenMode::None, ..stage.tokens.holders(InodeNo(0))[0].1.clone() };
    stage.with(|tokens, next| tokens.release(session, &[Token { ino: InodeNo(0), ..left }], NOW, next));
    assert!(!stage.tokens.is_full(session, InodeNo(9), 3));
}

#[test]
fn what_is_resolved_is_remembered_within_bounds() {
    let mut stage = Stage { tokens: Tokens::new(true), ..Stage::new(0) };
    let session = SessionId(1);
    stage.tokens.begin(session, false, false);
    for ino in 0..RESOLVED_MAX as u64 + 100 {
        let acts = stage
            .with(|tokens, next| tokens.acquire(session, InodeNo(ino), Need::Write, 1, NEVER, NOW, next));
        stage.with(|tokens, next| tokens.resolved(session, InodeNo(ino), NOW, next));
        let left = Token { mode: TokenMode::None, ..acts.granted[0].1.clone() };
        stage.with(|tokens, next| tokens.release(session, &[left], NOW, next));
    }
    assert!(stage.tokens.inodes.len() <= RESOLVED_MAX + 1, "{}", stage.tokens.inodes.len());
}

#[test]
fn of_two_that_die_together_neither_vouches_for_the_other() {
    let blocks = |first| Need::Blocks(Span { first, end: first + 1 }, Use::Write);
    let stories: [&[(u64, Need)]; 4] = [
        &[(1, Need::Write)],
        &[(2, Need::Write)],
        &[(1, blocks(0)), (2, blocks(5))],
        &[(1, blocks(0)), (2, Need::Size)],
    ];
    for held in stories {
        for dying in [[1, 2], [2, 1]] {
            let mut stage = Stage::new(3);
            for (session, need) in held {
                stage.want(*session, *need);
            }
            dying.iter().for_each(|&session| stage.tokens.end(SessionId(session)));
            for session in dying {
                stage.with(|tokens, next| tokens.drop_session(SessionId(session), NOW, next));
            }
            let third = SessionId(3);
            let acts = stage.with(|tokens, next| tokens.acquire(third, INO, Need::Read, 3, NEVER, NOW, next));
            let resolve: Vec<bool> = acts.granted.iter().map(|(_, _, resolve)| *resolve).collect();
            assert_eq!(resolve, [true], "{held:?}, {dying:?} die");
        }
    }
}

#[test]
fn who_has_still_to_resolve_does_not_vouch_for_the_file() {
    for told in [false, true] {
        let mut stage = Stage::new(4);
        stage.want(1, Need::Write);
        let die = |stage: &mut Stage, session| {
            stage.tokens.end(SessionId(session));
            stage.with(|tokens, next| tokens.drop_session(SessionId(session), NOW, next)).granted
        };
        let ask = |stage: &mut Stage, session| {
            let asks = SessionId(session);
            stage
                .with(|tokens, next| tokens.acquire(asks, INO, Need::Write, session, NEVER, NOW, next))
                .granted
        };
        die(&mut stage, 1);
        let granted = ask(&mut stage, 2);
        assert!(granted[0].2, "who comes first resolves");
        if told {
            stage.with(|tokens, next| tokens.resolved(SessionId(2), INO, NOW, next));
        }
        // One that never held anything dies, and the grant is given back unused.
        die(&mut stage, 3);
        let left = Token { mode: TokenMode::None, ..granted[0].1.clone() };
        stage.with(|tokens, next| tokens.release(SessionId(2), &[left], NOW, next));
        assert_eq!(ask(&mut stage, 4)[0].2, !told);
    }
}

#[test]
fn who_writes_and_claims_after_another_session_died_does_not_vouch_for_the_file() {
    for (mode, resolve) in [(TokenMode::Part, true), (TokenMode::Read, false), (TokenMode::Write, true)] {
        // After a restart of the manager nobody has said yet what it holds.
        let mut stage = Stage::new(0);
        (1..=2).for_each(|session| stage.tokens.begin(SessionId(session), true, false));
        stage.tokens.begin(SessionId(3), false, false);
        stage.tokens.end(SessionId(1));
        stage.with(|tokens, next| tokens.drop_session(SessionId(1), NOW, next));
        let blocks = if mode == TokenMode::Part {
            Blocks::of(Span { first: 0, end: 5 }, Use::Read)
        } else {
            Blocks::default()
        };
        let held = Token { blocks, ..Token::new(INO, mode, Grant(1)) };
        stage.with(|tokens, next| tokens.claim(SessionId(2), &[held], true, NOW, next));
        let third = SessionId(3);
        let mut acts = stage.with(|tokens, next| tokens.acquire(third, INO, Need::Read, 3, NEVER, NOW, next));
        if acts.granted.is_empty() {
            let left = Token::new(INO, TokenMode::None, Grant(1));
            acts = stage.with(|tokens, next| tokens.release(SessionId(2), &[left], NOW, next));
        }
        assert_eq!(acts.granted.first().map(|(_, _, resolve)| *resolve), Some(resolve), "{mode:?}");
    }
}

#[test]
fn who_only_reads_waits_for_somebody_else_to_resolve() {
    let (reader, writer) = (SessionId(1), SessionId(2));
    for whole_pass in [false, true] {
        let mut stage = Stage { tokens: Tokens::new(true), ..Stage::new(0) };
        stage.tokens.begin(reader, false, true);
        stage.with(|tokens, next| tokens.acquire(reader, INO, Need::Read, 1, NEVER, NOW, next));
        let acts = stage.tokens.poll(reader, 11, NEVER, NOW);
        let tick = stage.with(|tokens, next| tokens.tick(true, NOW, next));
        assert!(acts.told.is_empty() && tick.told.is_empty() && tick.granted.is_empty());
        // It stands in nobody's way, and is not asked to go over everything.
        stage.tokens.begin(writer, false, false);
        stage.with(|tokens, _| tokens.poll(writer, 12, NEVER, NOW));
        let told = stage.with(|tokens, next| tokens.tick(true, NOW, next)).told;
        let [(12, recalls)] = &told[..] else { panic!("{told:?}") };
        let [Recall::Resolve(pass)] = recalls[..] else { panic!("{recalls:?}") };
        let acts = stage.with(|tokens, next| tokens.acquire(writer, INO, Need::Attr, 2, NEVER, NOW, next));
        assert!(matches!(acts.granted[..], [(2, _, true)]));
        if whole_pass {
            let left = Token { mode: TokenMode::None, ..acts.granted[0].1.clone() };
            stage.with(|tokens, next| tokens.release(writer, &[left], NOW, next));
            assert!(stage.tokens.pass_done(writer, pass));
            let acts = stage.with(|tokens, next| tokens.all_resolved(NOW, next));
            assert!(matches!(acts.granted[..], [(1, _, false)]), "{:?}", acts.granted);
        } else {
            let serial = acts.granted[0].1.serial;
            stage.with(|tokens, _| tokens.poll(writer, 13, NEVER, NOW));
            let told = stage.with(|tokens, next| tokens.resolved(writer, INO, NOW, next)).told;
            assert!(matches!(told[..], [(13, _)]), "the writer is asked to let it read: {told:?}");
            let left = Token::new(INO, TokenMode::Read, serial);
            let acts = stage.with(|tokens, next| tokens.release(writer, &[left], NOW, next));
            assert!(matches!(acts.granted[..], [(1, _, false)]), "{:?}", acts.granted);
        }
        // What it claims vouches for nothing that others wrote.
        assert_eq!(stage.held(1).mode, TokenMode::Read);
    }
}
