//! Stories of grants and recalls, told to one token.

use wire::token::Span;

use super::*;

const INO: InodeNo = InodeNo(7);

fn token(mode: TokenMode, serial: u64) -> Token {
    Token::new(INO, mode, Grant(serial))
}

#[test]
fn a_grant_that_comes_after_its_recall_is_not_used() {
    let mut cell = Cell::default();
    assert_eq!(cell.enter(Need::Write), Enter::Ask);
    let answer = cell.recalled(&token(TokenMode::Open, 5), TokenMode::Write, false);
    assert_eq!(answer, Recalled::Answer(token(TokenMode::None, 5)));
    assert!(!cell.granted(&token(TokenMode::Write, 5), false, false));
    assert_eq!((cell.mode(), cell.users()), (TokenMode::None, 0));
    assert_eq!(cell.enter(Need::Read), Enter::Ask, "it asks anew");
    assert!(cell.granted(&token(TokenMode::Read, 6), false, false));
}

#[test]
fn while_it_is_given_up_only_those_enter_it_waits_for() {
    let mut cell = Cell::whole(Grant(3));
    assert_eq!(cell.enter(Need::Write), Enter::In);
    let recall = cell.recalled(&token(TokenMode::Open, 3), TokenMode::Write, true);
    assert_eq!(recall, Recalled::Begin);
    assert_eq!(cell.enter(Need::Read), Enter::Wait);
    assert!(cell.enter_late(Need::Read));
    cell.leave(Need::Write);
    cell.leave(Need::Read);
    assert_eq!(cell.users(), 0);
    assert_eq!(cell.gave(INO, true), token(TokenMode::Open, 3));
    assert!(!cell.enter_late(Need::Read));
    assert_eq!(cell.closed(INO), Some(token(TokenMode::None, 3)));
}

#[test]
fn what_is_open_before_its_first_grant_stays_open_without_it() {
    let mut cell = Cell::default();
    cell.opened();
    assert_eq!(cell.enter(Need::Write), Enter::Ask);
    assert_eq!(cell.unused(&token(TokenMode::Write, 5)), token(TokenMode::Open, 5));
    let mut whole = Cell::whole(Grant(3));
    whole.opened();
    assert_eq!(whole.mode(), TokenMode::Write);
}

#[test]
fn a_recall_of_a_newer_grant_ends_the_older_one_too() {
    let mut cell = Cell::default();
    cell.enter(Need::Read);
    cell.granted(&token(TokenMode::Read, 5), false, false);
    cell.leave(Need::Read);
    assert_eq!(cell.enter(Need::Write), Enter::Ask);
    // Grant 9 is on its way, its recall came first.
    let recall = cell.recalled(&token(TokenMode::Open, 9), TokenMode::Write, false);
    assert_eq!(recall, Recalled::Begin);
    assert_eq!(cell.gave(INO, false), token(TokenMode::None, 9));
    assert!(!cell.granted(&token(TokenMode::Write, 9), false, false));
}

#[test]
fn nobody_enters_before_resolution_is_over() {
    let mut cell = Cell::default();
    cell.enter(Need::Read);
    assert!(cell.granted(&token(TokenMode::Write, 4), true, false));
    assert_eq!(cell.enter(Need::Read), Enter::Wait);
    cell.resolved();
    assert_eq!(cell.enter(Need::Read), Enter::In);
}

#[test]
fn what_is_given_up_while_more_is_asked_for_outdates_the_grant() {
    let mut cell = Cell::default();
    let part = token(TokenMode::Part, 5);
    cell.enter(Need::Size);
    assert!(cell.granted(&part, false, false));
    cell.leave(Need::Size);
    assert_eq!(cell.enter(Need::Write), Enter::Ask);
    assert_eq!(cell.recalled(&token(TokenMode::Open, 5), TokenMode::Write, false), Recalled::Begin);
    cell.gave(INO, false);
    assert!(cell.is_outdated());
    assert_eq!(cell.unused(&token(TokenMode::Write, 6)), token(TokenMode::None, 6));
    assert_eq!(cell.enter(Need::Write), Enter::Ask);
    assert!(!cell.is_outdated(), "the next grant says what is");
}

#[test]
fn a_part_is_given_up_and_the_rest_stays() {
    let span = |first, end| Span { first, end };
    let write = |first, end| Need::Blocks(span(first, end), Use::Write);
    let part = |first, end, serial| Token {
        blocks: Blocks::of(span(first, end), Use::Write),
        ..token(TokenMode::Part, serial)
    };
    let mut cell = Cell::whole(Grant(3));
    assert_eq!(cell.recalled(&part(0, 5, 3), TokenMode::Read, true), Recalled::Begin);
    let losing = cell.losing();
    let rest = Blocks::of(span(5, u64::MAX), Use::Write);
    assert_eq!((losing.to, &losing.gone, &losing.written), (TokenMode::Part, &rest, &rest));
    assert_eq!(cell.gave(INO, true), part(0, 5, 3));
    assert_eq!(cell.enter(write(0, 5)), Enter::In);
    cell.leave(write(0, 5));
    assert_eq!(cell.enter(write(4, 6)), Enter::Ask);
    assert!(!cell.allows(Need::Attr) && cell.allows(Need::Size));
    // What can be mapped for writing is held whole or not at all.
    assert!(cell.granted(&part(0, 9, 7), false, false));
    cell.leave(write(4, 6));
    assert_eq!(cell.recalled(&part(0, 1, 7), TokenMode::Open, true), Recalled::Begin);
    assert_eq!(cell.losing().to, TokenMode::Open);
    assert_eq!(cell.gave(INO, true), token(TokenMode::Open, 7));
}
