//! Stories of a directory in which one session makes names ahead of the manager, told to the table.

use std::time::Duration;

use base::{Grant, InodeNo, SessionId};
use wire::token::{Need, Recall, Token, TokenMode};

use super::*;

const DIR: InodeNo = InodeNo(7);
const NOW: Duration = Duration::ZERO;
const NEVER: Duration = Duration::MAX;
const ONE: SessionId = SessionId(1);
const TWO: SessionId = SessionId(2);
const THREE: SessionId = SessionId(3);

struct Stage {
    tokens: Tokens,
    grants: u64,
}

impl Stage {
    fn new() -> Stage {
        let mut tokens = Tokens::new(false);
        [ONE, TWO, THREE].iter().for_each(|session| tokens.begin(*session, false, false));
        Stage { tokens, grants: 0 }
    }

    /// Nobody has claimed since the manager's start.
    fn restarted() -> Stage {
        let mut tokens = Tokens::new(false);
        [ONE, TWO, THREE].iter().for_each(|session| tokens.begin(*session, true, false));
        Stage { tokens, grants: 0 }
    }

    fn with<R>(&mut self, call: impl FnOnce(&mut Tokens, NextGrant<'_>) -> R) -> R {
        let grants = &mut self.grants;
        call(&mut self.tokens, &mut || {
            *grants += 1;
            Grant(*grants)
        })
    }

    /// What a session gets at once.
    fn ask(&mut self, session: SessionId, need: Need) -> Option<TokenMode> {
        let acts = self.with(|tokens, next| tokens.acquire(session, DIR, need, session.0, NEVER, NOW, next));
        acts.granted.iter().find(|(ticket, ..)| *ticket == session.0).map(|(_, token, _)| token.mode)
    }

    /// What a session is told to keep, if it is told to give something up.
    fn recalled(&mut self, session: SessionId) -> Option<Token> {
        let told = self.tokens.poll(session, 10 + session.0, NEVER, NOW).told;
        let (_, recalls) = told.into_iter().next()?;
        match recalls.into_iter().next()? {
            Recall::Token(token) => Some(token),
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, session: SessionId, left: Token) -> Acts {
        self.with(|tokens, next| tokens.release(session, &[left], NOW, next))
    }

    fn look(&mut self, session: SessionId, ticket: u64) -> Acts {
        self.with(|tokens, next| tokens.look(session, DIR, ticket, NEVER, NOW, next))
    }

    fn made(&mut self, session: SessionId, inos: &[InodeNo]) -> Option<Vec<Option<Token>>> {
        self.with(|tokens, next| tokens.made(session, inos, next)).1
    }
}

#[test]
fn a_directory_is_given_for_making_names_only_where_nobody_gives_anything_up_for_it() {
    let mut stage = Stage::new();
    assert_eq!(stage.ask(ONE, Need::Make), Some(TokenMode::Write), "nobody else has anything");
    // Another one asks for the same: as for names, and that takes the right to make from the first.
    assert_eq!(stage.ask(TWO, Need::Make), None);
    let left = stage.recalled(ONE).unwrap();
    assert_eq!(left.mode, TokenMode::Read);
    let granted = stage.release(ONE, left).granted;
    assert!(matches!(&granted[..], [(2, token, false)] if token.mode == TokenMode::Read), "{granted:?}");
    // Both keep names: neither may make any, and neither is told anything.
    assert_eq!(stage.ask(ONE, Need::Make), Some(TokenMode::Read));
    assert_eq!(stage.ask(TWO, Need::Make), Some(TokenMode::Read));
    assert_eq!((stage.recalled(ONE), stage.recalled(TWO)), (None, None));
    // Who has it only open keeps nothing.
    let open = Token::new(DIR, TokenMode::Open, Grant(stage.grants));
    stage.release(TWO, open);
    assert_eq!(stage.ask(ONE, Need::Make), Some(TokenMode::Write));
}

#[test]
fn a_look_takes_the_right_to_make_names_and_leaves_the_names() {
    let mut stage = Stage::new();
    stage.ask(ONE, Need::Make);
    assert_eq!(stage.look(ONE, 80).cleared, [80], "its own");
    assert_eq!(stage.look(TWO, 81).cleared, []);
    let left = stage.recalled(ONE).unwrap();
    assert_eq!(left.mode, TokenMode::Read);
    // Another change makes it less.
    let acts = stage.with(|tokens, next| tokens.change(THREE, DIR, 82, NEVER, NOW, next));
    assert!(acts.cleared.is_empty());
    assert_eq!(stage.recalled(ONE).map(|left| left.mode), Some(TokenMode::Open));
    assert_eq!(stage.release(ONE, left.clone()).cleared, [81]);
    // Nobody makes names before the change is done.
    assert_eq!(stage.ask(TWO, Need::Make), None);
    let acts = stage.release(ONE, Token { mode: TokenMode::None, ..left });
    assert_eq!(acts.cleared, [82]);
    assert_eq!(acts.granted.iter().map(|(_, token, _)| token.mode).collect::<Vec<_>>(), [TokenMode::Write]);
    // Names that are only kept are in no look's way.
    let left = Token::new(DIR, TokenMode::Read, Grant(stage.grants));
    stage.release(TWO, left);
    assert_eq!(stage.look(ONE, 83).cleared, [83]);
}

#[test]
fn a_look_waits_for_a_dead_session_until_it_is_fenced_and_for_claims_after_a_restart() {
    let mut stage = Stage::new();
    stage.ask(ONE, Need::Make);
    stage.tokens.end(ONE);
    assert_eq!(stage.look(TWO, 80).cleared, []);
    let acts = stage.with(|tokens, next| tokens.drop_session(ONE, NOW, next));
    assert_eq!(acts.cleared, [80]);
    // What it left is no matter of names.
    assert_eq!(stage.ask(TWO, Need::Make), Some(TokenMode::Write));

    let mut stage = Stage::restarted();
    assert_eq!(stage.tokens.unclear(), Unclear { tokens: true, names: false }, "nobody makes names ahead");
    stage.tokens.may_be_ahead(ONE);
    assert_eq!(stage.tokens.unclear(), Unclear { tokens: true, names: true });
    assert_eq!(stage.look(TWO, 81).cleared, []);
    let acts = stage.with(|tokens, next| tokens.change(TWO, DIR, 82, NEVER, NOW, next));
    assert_eq!(acts.cleared, []);
    // Meanwhile who has not claimed tells: it may hold everything.
    assert_eq!(stage.made(ONE, &[InodeNo(9)]), None);
    let acts = stage.with(|tokens, next| tokens.claim(ONE, &[], true, NOW, next));
    assert_eq!(acts.cleared, [81], "the others have no names that are not told");
    assert_eq!(stage.tokens.unclear(), Unclear { tokens: true, names: false });
    // Who changes something waits for all.
    let acts = stage.with(|tokens, next| tokens.claim(TWO, &[], true, NOW, next));
    assert_eq!(acts.cleared, []);
    let acts = stage.with(|tokens, next| tokens.claim(THREE, &[], true, NOW, next));
    assert_eq!(acts.cleared, [82]);

    // One that makes names ahead ends before it has claimed.
    let mut stage = Stage::restarted();
    stage.tokens.may_be_ahead(ONE);
    stage.tokens.end(ONE);
    assert_eq!(stage.tokens.unclear(), Unclear { tokens: true, names: true });
    assert_eq!(stage.look(TWO, 83).cleared, []);
    let acts = stage.with(|tokens, next| tokens.drop_session(ONE, NOW, next));
    assert_eq!(acts.cleared, [83]);
}

#[test]
fn what_a_session_tells_it_holds_and_once() {
    let mut stage = Stage::new();
    let [first, second] = [8, 9].map(InodeNo);
    let tokens = stage.made(ONE, &[first, second]).unwrap();
    let serials: Vec<u64> = tokens.iter().flatten().map(|token| token.serial.0).collect();
    assert_eq!(serials, [1, 2]);
    assert_eq!(stage.made(ONE, &[first, second]), Some(tokens.clone()), "a copy of the message");
    assert_eq!(stage.tokens.member(ONE).tokens, 2);
    // It gave one up, and another has that: a late copy brings nothing.
    let left = Token::new(first, TokenMode::None, Grant(1));
    stage.release(ONE, left);
    stage.with(|tokens, next| tokens.acquire(TWO, first, Need::Read, 2, NEVER, NOW, next));
    assert_eq!(stage.made(ONE, &[first, second]), Some(vec![None, tokens[1].clone()]));
    // Or it kept a part of its right.
    let left = Token::new(second, TokenMode::Read, Grant(2));
    stage.release(ONE, left);
    assert_eq!(stage.made(ONE, &[second]), Some(vec![None]));
    assert_eq!(stage.tokens.holders(second).len(), 1);
}

/// Nobody can have left anything of what is new.
#[test]
fn what_is_made_while_others_leave_things_undone_is_not_resolved() {
    let mut stage = Stage { tokens: Tokens::new(true), ..Stage::new() };
    [ONE, TWO].iter().for_each(|session| stage.tokens.begin(*session, false, false));
    stage.made(ONE, &[DIR]).unwrap();
    assert_eq!(stage.ask(TWO, Need::Read), None);
    let left = stage.recalled(ONE).unwrap();
    let granted = stage.release(ONE, left).granted;
    assert!(matches!(&granted[..], [(2, _, false)]), "{granted:?}");
}
