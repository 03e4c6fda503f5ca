//! What is asked for, read and given up first while a token is given up.

use wire::token::Span;

use super::*;

const INO: InodeNo = InodeNo(7);

fn token(mode: TokenMode, serial: u64) -> Token {
    Token::new(INO, mode, Grant(serial))
}

fn part(uses: [Use; 2], serial: u64) -> Token {
    let block = |first| Span { first, end: first + 1 };
    let blocks = Blocks::of(block(0), uses[0]).with(block(1), uses[1]);
    Token { blocks, ..Token::new(INO, TokenMode::Part, Grant(serial)) }
}

fn holding(token: &Token) -> Cell {
    let mut cell = Cell::default();
    assert_eq!(cell.enter(Need::Size), Enter::Ask);
    assert!(cell.granted(token, false, false));
    cell.leave(Need::Size);
    cell
}

#[test]
fn what_goes_is_only_read_before_it_goes_whatever_is_granted_meanwhile() {
    use Use::{None, Read, Write};
    let mut cell = holding(&part([Write, Write], 4));
    cell.lower();
    assert_eq!(
        (cell.take_lowered(INO), cell.known(INO)),
        (Option::None, part([Write, Write], 4)),
        "nothing goes"
    );
    assert_eq!(cell.recalled(&part([None, Write], 4), TokenMode::Read, true), Recalled::Begin);
    assert_eq!(cell.take_lowered(INO), Option::None, "it may be dirty");
    cell.lower();
    assert_eq!(cell.take_lowered(INO), Some(part([Read, Write], 4)), "the rest is written on");
    assert_eq!(cell.take_lowered(INO), Option::None, "once");
    assert!(!cell.stop_writing(), "nobody asks for more, and it is told");
    let losing = cell.losing();
    assert_eq!(losing.gone, Blocks::of(Span { first: 0, end: 1 }, Read), "pages go as before");
    assert!(losing.written.is_empty());
    let first = |what| Need::Blocks(Span { first: 0, end: 1 }, what);
    assert!(cell.enter_late(first(Read)) && !cell.enter_late(first(Write)));
    cell.leave(first(Read));
    // The manager has not heard of it yet.
    let wide = Need::Blocks(Span { first: 0, end: 9 }, Read);
    assert!(cell.ask_late(wide) && cell.end_late(|cell| cell.granted(&part([Write, Write], 6), false, true)));
    assert!(!cell.enter_late(first(Write)) && cell.stop_writing());
    assert_eq!(cell.take_lowered(INO), Some(part([Read, Write], 6)));
    assert!(!cell.stop_writing());
    cell.leave(wide);
    assert_eq!(cell.gave(INO, true), part([None, Write], 6));
}

#[test]
fn nobody_is_let_in_to_write_once_it_is_to_be_made_clean() {
    use Use::{None, Read, Write};
    let block = |first, what| Need::Blocks(Span { first, end: first + 1 }, what);
    let mut cell = holding(&part([Write, None], 4));
    assert_eq!(cell.recalled(&part([None, None], 4), TokenMode::Read, true), Recalled::Begin);
    assert!(!cell.stop_writing() && cell.enter_late(block(0, Write)), "whoever is waited for goes in");
    cell.leave(block(0, Write));
    assert!(cell.ask_late(block(1, Read)) && cell.stop_writing());
    assert!(!cell.enter_late(block(0, Write)) && cell.enter_late(block(0, Read)));
    cell.leave(block(0, Read));
    // The answer comes before it is clean.
    assert!(cell.end_late(|cell| cell.granted(&part([Write, Read], 6), false, true)));
    cell.leave(block(1, Read));
    assert!(!cell.enter_late(block(0, Write)) && cell.stop_writing());
    assert_eq!(cell.losing().written, Blocks::of(Span { first: 0, end: 1 }, Write), "it may be dirty");
    cell.lower();
    assert_eq!(cell.take_lowered(INO), Some(part([Read, Read], 6)));
}

/// Others may read what is lowered, so who may write must have ended; who reads may stay, and always be let in.
#[test]
fn who_may_write_is_told_from_who_reads_however_they_came_in() {
    use Use::{None, Read, Write};
    let block = |first, what| Need::Blocks(Span { first, end: first + 1 }, what);
    let mut cell = Cell::default();
    assert_eq!(cell.enter(block(0, Write)), Enter::Ask);
    assert!(cell.granted(&part([Write, None], 4), false, false));
    assert!(cell.enter(block(0, Write)) == Enter::In && cell.enter(block(0, Read)) == Enter::In);
    cell.enter_beside();
    assert_eq!((cell.users(), cell.writers()), (4, 3));
    // A question is out, for writing.
    assert_eq!(cell.enter(block(1, Write)), Enter::Ask);
    assert_eq!(cell.recalled(&part([None, None], 4), TokenMode::Read, true), Recalled::Begin);
    assert!(cell.enter_late(block(0, Write)) && cell.enter_late(block(0, Read)));
    assert!(cell.ask_late(block(1, Read)));
    assert!(cell.end_late(|cell| cell.granted(&part([Write, Read], 6), false, true)));
    assert_eq!((cell.users(), cell.writers()), (7, 4), "who asked late reads");
    assert!(cell.granted(&part([Write, Write], 7), false, true));
    assert_eq!((cell.users(), cell.writers()), (8, 5), "the other one does not");
    (0..4).for_each(|_| cell.leave(block(0, Write)));
    cell.leave(block(1, Write));
    assert_eq!((cell.users(), cell.writers()), (3, 0));
    cell.lower();
    assert_eq!(cell.take_lowered(INO), Some(part([Read, Read], 7)), "with three who read");
    assert!(cell.enter_late(block(0, Read)));
    cell.leave(block(1, Read));
    (0..3).for_each(|_| cell.leave(block(0, Read)));
    assert_eq!(cell.gave(INO, true), part([None, None], 7));
}

#[test]
fn what_is_only_read_or_held_whole_is_told_nothing_of() {
    use Use::{None, Read};
    let mut cell = holding(&part([Read, Read], 4));
    assert_eq!(cell.recalled(&part([None, Read], 4), TokenMode::Read, true), Recalled::Begin);
    cell.lower();
    assert_eq!((cell.take_lowered(INO), cell.known(INO)), (Option::None, part([Read, Read], 4)));
    let whole = Token::new(INO, TokenMode::Write, Grant(4));
    let mut cell = holding(&whole);
    assert_eq!(cell.recalled(&part([None, Read], 4), TokenMode::Read, true), Recalled::Begin);
    cell.lower();
    assert_eq!((cell.take_lowered(INO), cell.known(INO)), (Option::None, whole));
}

#[test]
fn a_question_for_pages_that_are_given_up_is_used_though_recalled() {
    let mut cell = Cell::default();
    assert_eq!(cell.enter(Need::Read), Enter::Ask);
    let part = Token {
        blocks: Blocks::default().with(Span { first: 0, end: 1 }, Use::Read),
        ..token(TokenMode::Part, 4)
    };
    assert!(cell.granted(&part, false, false));
    cell.leave(Need::Read);
    assert_eq!(cell.recalled(&token(TokenMode::Open, 4), TokenMode::Read, true), Recalled::Begin);
    let next = Need::Blocks(Span { first: 1, end: 2 }, Use::Read);
    assert!(!cell.enter_late(next) && !cell.ask_late(Need::Write) && cell.ask_late(next));
    // The recall of the grant comes before it: it is answered with what is under way.
    assert_eq!(cell.recalled(&token(TokenMode::Open, 6), TokenMode::Read, true), Recalled::UnderWay);
    assert!(cell.end_late(|cell| cell.granted(&token(TokenMode::Read, 6), false, true)));
    cell.leave(next);
    let left = cell.gave(INO, true);
    assert_eq!((left.mode, left.serial), (TokenMode::Open, Grant(6)));
    // One that comes after the answer is not used.
    assert_eq!(cell.enter(next), Enter::Ask);
    assert!(!cell.granted(&token(TokenMode::Read, 6), false, true));
}

/// The one for writing stands behind the one that the token is given up for: it must not be waited for.
#[test]
fn a_question_for_pages_that_are_given_up_goes_beside_one_for_writing() {
    let (held, comes) = (token(TokenMode::Read, 4), token(TokenMode::Read, 6));
    for late_first in [true, false] {
        let mut cell = Cell::default();
        assert!(cell.enter(Need::Read) == Enter::Ask && cell.granted(&held, false, false));
        cell.leave(Need::Read);
        assert_eq!(cell.enter(Need::Write), Enter::Ask);
        assert!(!cell.ask_late(Need::Attr), "nothing is given up");
        assert_eq!(cell.recalled(&token(TokenMode::Open, 4), TokenMode::Read, true), Recalled::Begin);
        assert!(cell.ask_late(Need::Read) && !cell.ask_late(Need::Read), "one at a time");
        // The manager answers both with what the second gets. Only who is waited for may use it.
        let writer = |cell: &mut Cell| assert!(!cell.granted(&comes, false, false));
        let reader = |cell: &mut Cell| assert!(cell.end_late(|cell| cell.granted(&comes, false, true)));
        match late_first {
            true => (reader(&mut cell), writer(&mut cell)),
            false => (writer(&mut cell), reader(&mut cell)),
        };
        cell.leave(Need::Read);
        assert_eq!(cell.gave(INO, true).mode, TokenMode::Open);
        assert_eq!(cell.enter(Need::Write), Enter::Ask, "it asks once more");
    }
    // What is refused ends one question, not the other.
    let mut cell = Cell::default();
    assert!(cell.enter(Need::Read) == Enter::Ask && cell.granted(&held, false, false));
    cell.leave(Need::Read);
    assert_eq!(cell.enter(Need::Write), Enter::Ask);
    assert_eq!(cell.recalled(&token(TokenMode::Open, 4), TokenMode::Read, true), Recalled::Begin);
    assert!(cell.ask_late(Need::Read));
    cell.end_late(Cell::refused);
    assert!(cell.ask_late(Need::Read));
    cell.refused();
    cell.gave(INO, true);
    assert_eq!(cell.enter(Need::Write), Enter::Wait, "the late one is out");
    cell.end_late(Cell::refused);
    assert_eq!(cell.enter(Need::Write), Enter::Ask);
}
