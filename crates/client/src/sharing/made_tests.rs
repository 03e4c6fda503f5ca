//! Stories of what is made here ahead of the manager, told to one token.

use super::*;

const INO: InodeNo = InodeNo(7);

fn token(mode: TokenMode, serial: u64) -> Token {
    Token::new(INO, mode, Grant(serial))
}

#[test]
fn what_is_made_here_is_held_before_and_after_it_is_told() {
    let made = || {
        let mut cell = Cell::default();
        cell.made(Grant(3));
        assert!(cell.enter_now(Need::Write) && cell.serial() == Grant(3));
        cell.leave(Need::Write);
        cell
    };
    let mut cell = made();
    assert_eq!(cell.told(&token(TokenMode::Write, 5)), None);
    assert_eq!((cell.mode(), cell.serial()), (TokenMode::Write, Grant(5)));
    // The recall may come first.
    let mut cell = made();
    assert_eq!(cell.recalled(&token(TokenMode::Open, 5), TokenMode::Write, false), Recalled::Begin);
    assert_eq!(cell.told(&token(TokenMode::Write, 5)), None);
    assert_eq!(cell.gave(INO, false), token(TokenMode::None, 5));
    assert_eq!(cell.told(&token(TokenMode::Write, 5)), None);
    // It was given up for another reason, while or before it is told.
    let mut cell = made();
    assert_eq!(cell.recalled(&token(TokenMode::None, 3), TokenMode::Write, false), Recalled::Begin);
    assert_eq!(cell.told(&token(TokenMode::Write, 5)), None);
    assert_eq!(cell.gave(INO, false), token(TokenMode::None, 5));
    let mut cell = made();
    cell.forget(INO);
    assert_eq!(cell.told(&token(TokenMode::Write, 5)), Some(token(TokenMode::None, 5)));
    // The manager does not say that it is held.
    let mut cell = made();
    assert!(cell.told_without() && !cell.told_without());
    assert!(!Cell::whole(Grant(3)).told_without());
}

#[test]
fn what_was_given_up_once_may_be_open_elsewhere() {
    let mut made = Cell::default();
    made.made(Grant(3));
    made.told(&token(TokenMode::Write, 5));
    for mut cell in [made, Cell::whole(Grant(5))] {
        assert!(cell.is_exclusive());
        assert_eq!(cell.recalled(&token(TokenMode::Open, 5), TokenMode::Write, true), Recalled::Begin);
        assert!(!cell.is_exclusive());
        cell.gave(INO, true);
        assert_eq!(cell.enter(Need::Write), Enter::Ask);
        assert!(cell.granted(&token(TokenMode::Write, 9), false, false) && !cell.is_exclusive());
        cell.take_whole(Grant(10));
        assert!(cell.is_exclusive(), "nobody else is there");
    }
}
