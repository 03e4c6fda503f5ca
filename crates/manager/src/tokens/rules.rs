//! What must be given up for somebody, and what can be given then: the rules of one inode's tokens, as
//! plain functions.
//!
//! Invariants of what they give: `Write` beside nothing but `Open`; `Read` beside `Read` and `Open`; with
//! `Part` a block has one writer or any number of readers.

use wire::token::{Blocks, Need, Span, Token, TokenMode, Use};

/// What a holder must do before another gets what it needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Demand {
    /// Nothing.
    Nothing,
    /// Keep at most this.
    Keep(Token),
    /// Tell its times.
    Publish,
}

/// What stands between the `need` of somebody who has `own` and a holder's token. `at` is the block for which
/// that was granted last.
pub(super) fn demand(held: &Token, at: u64, own: &Token, need: Need) -> Demand {
    let keep = |mode, blocks| Demand::Keep(Token { mode, blocks, ..*held });
    let whole = |mode| keep(mode, Blocks::default());
    match (need, held.mode) {
        (_, TokenMode::None | TokenMode::Open) => Demand::Nothing,
        (Need::Write, _) | (Need::Read, TokenMode::Part) => whole(TokenMode::Open),
        (Need::Attr, TokenMode::Part) => Demand::Publish,
        (Need::Size, TokenMode::Part) | (_, TokenMode::Read) if !writes(need) => Demand::Nothing,
        (Need::Blocks(span, what), _) if writes(need) || held.mode == TokenMode::Part => {
            let usable = held.usable();
            let Some(run) = usable.beyond(span, what.leaves()) else { return Demand::Nothing };
            let share = match held.mode {
                TokenMode::Part => grown(own, span, what),
                _ => half(run, span, at),
            };
            keep(TokenMode::Part, usable.limited(share, what.leaves()))
        }
        _ => whole(TokenMode::Read),
    }
}

pub(super) fn writes(need: Need) -> bool {
    matches!(need, Need::Write | Need::Blocks(_, Use::Write))
}

/// What a holder of `run` gives up for `span`: all from there on, on the side where it is not at work.
fn half(run: Span, span: Span, at: u64) -> Span {
    let first = run.first.max(span.first);
    if at < span.first {
        Span { first, end: run.end.max(span.end) }
    } else {
        Span { first: run.first.min(span.first), end: span.end }
    }
}

/// What of a file that is divided already goes to somebody with `own`: what it wants, and the more beyond the longer
/// the run of its own is that it goes on with.
fn grown(own: &Token, span: Span, what: Use) -> Span {
    let usable = own.usable();
    let beside = |touches: fn(Span, Span) -> bool| {
        let found = usable.runs().iter().find(|run| run.what >= what && touches(run.span, span));
        found.map_or(0, |run| (run.span.end - run.span.first).saturating_mul(2))
    };
    Span {
        first: span.first.saturating_sub(beside(|own, span| own.first == span.end)),
        end: span.end.saturating_add(beside(|own, span| own.end == span.first)),
    }
}

/// What a session gets that nobody stands in the way of, as wide as others leave it.
pub(super) fn granted(own: &Token, others: &[Token], need: Need) -> Token {
    let others: Vec<&Token> = others.iter().filter(|token| token.mode >= TokenMode::Part).collect();
    let give = |mode| Token { mode, blocks: Blocks::default(), ..*own };
    if matches!(need, Need::Write | Need::Make)
        || others.is_empty() && (writes(need) || own.mode == TokenMode::Part)
    {
        return give(TokenMode::Write);
    }
    if !writes(need) && others.iter().all(|token| token.mode == TokenMode::Read) {
        return give(own.mode.max(TokenMode::Read));
    }
    let mut blocks = own.usable();
    if let Need::Blocks(span, what) = need {
        let mut wide = Span::ALL;
        for other in others {
            for run in other.usable().runs().iter().filter(|run| run.what > what.leaves()) {
                if run.span.end <= span.first {
                    wide.first = wide.first.max(run.span.end);
                } else {
                    wide.end = wide.end.min(run.span.first);
                }
            }
        }
        blocks = blocks.with(wide, what);
    }
    Token { mode: TokenMode::Part, blocks, ..*own }
}

/// Whether so many sessions may hold these of one inode.
pub(super) fn go_together(tokens: &[Token]) -> bool {
    (1..tokens.len()).all(|n| tokens[..n].iter().all(|other| goes_with(&tokens[n], other)))
}

/// Whether two sessions may.
pub(super) fn goes_with(a: &Token, b: &Token) -> bool {
    match (a.mode.min(b.mode), a.mode.max(b.mode)) {
        (TokenMode::None | TokenMode::Open, _) | (TokenMode::Read, TokenMode::Read) => true,
        (TokenMode::Part, TokenMode::Part) => {
            let blocks = b.blocks.runs();
            a.blocks.runs().iter().all(|run| {
                let over = |other: &Span| run.span.first < other.end && other.first < run.span.end;
                blocks.iter().filter(|other| over(&other.span)).all(|other| other.what <= run.what.leaves())
            })
        }
        _ => false,
    }
}

/// The need of somebody who would have a file cut into more runs than are allowed: all of it.
pub(super) fn widened(need: Need) -> Need {
    match need {
        Need::Blocks(_, Use::Write) => Need::Write,
        Need::Blocks(..) => Need::Read,
        need => need,
    }
}

#[cfg(test)]
mod tests {
    use base::{Grant, InodeNo};

    use super::*;

    fn part(runs: &[(u64, u64, Use)]) -> Token {
        let blocks = runs
            .iter()
            .fold(Blocks::default(), |blocks, &(first, end, what)| blocks.with(Span { first, end }, what));
        Token { blocks, ..Token::new(InodeNo(7), TokenMode::Part, Grant(1)) }
    }

    fn write(first: u64, end: u64) -> Need {
        Need::Blocks(Span { first, end }, Use::Write)
    }

    const END: u64 = u64::MAX;

    #[test]
    fn a_writer_gives_up_the_side_where_it_is_not_at_work() {
        let all = Token::new(InodeNo(7), TokenMode::Write, Grant(1));
        let none = Token::default();
        assert_eq!(demand(&all, 0, &none, write(5, 6)), Demand::Keep(part(&[(0, 5, Use::Write)])));
        assert_eq!(demand(&all, 9, &none, write(5, 6)), Demand::Keep(part(&[(6, END, Use::Write)])));
        let reader = Need::Blocks(Span { first: 5, end: 6 }, Use::Read);
        assert_eq!(
            demand(&all, 0, &none, reader),
            Demand::Keep(Token::new(InodeNo(7), TokenMode::Read, Grant(1)))
        );
    }

    #[test]
    fn of_a_divided_file_as_much_goes_as_was_asked_for_and_more_to_who_goes_on() {
        let held = part(&[(0, 100, Use::Write)]);
        let keep = |runs: &[(u64, u64, Use)]| Demand::Keep(part(runs));
        let none = Token::default();
        assert_eq!(demand(&held, 0, &none, write(5, 6)), keep(&[(0, 5, Use::Write), (6, 100, Use::Write)]));
        let reader = Need::Blocks(Span { first: 5, end: 6 }, Use::Read);
        let mixed = [(0, 5, Use::Write), (5, 6, Use::Read), (6, 100, Use::Write)];
        assert_eq!(demand(&held, 0, &none, reader), keep(&mixed));
        assert_eq!(demand(&part(&mixed), 0, &none, reader), Demand::Nothing);
        assert_eq!(demand(&held, 0, &none, Need::Attr), Demand::Publish);
        let going_on = part(&[(100, 104, Use::Write)]);
        assert_eq!(demand(&held, 0, &going_on, write(99, 100)), keep(&[(0, 91, Use::Write)]));
        let going_on = part(&[(3, 5, Use::Write)]);
        let held = part(&[(0, 3, Use::Write), (5, 100, Use::Write)]);
        assert_eq!(
            demand(&held, 0, &going_on, write(5, 6)),
            keep(&[(0, 3, Use::Write), (10, 100, Use::Write)])
        );
    }

    #[test]
    fn a_block_has_one_writer_or_any_number_of_readers() {
        let token = |mode| Token::new(InodeNo(7), mode, Grant(1));
        let (open, read, write) = (token(TokenMode::Open), token(TokenMode::Read), token(TokenMode::Write));
        assert!(go_together(&[open, read.clone(), read.clone()]));
        assert!(!goes_with(&read, &write) && !goes_with(&part(&[]), &read));
        let mine = part(&[(0, 5, Use::Write), (5, 9, Use::Read)]);
        assert!(goes_with(&mine, &part(&[(6, 9, Use::Read), (9, 12, Use::Write)])));
        assert!(!goes_with(&mine, &part(&[(4, 5, Use::Read)])));
        assert!(!goes_with(&mine, &part(&[(8, 12, Use::Write)])));
    }

    #[test]
    fn what_is_given_is_as_wide_as_others_leave_it() {
        let none = Token::new(InodeNo(7), TokenMode::None, Grant(1));
        assert_eq!(granted(&none, &[], write(5, 6)).mode, TokenMode::Write);
        let others = [part(&[(0, 5, Use::Write)]), part(&[(8, 9, Use::Read)])];
        assert_eq!(granted(&none, &others, write(5, 6)), part(&[(5, 8, Use::Write)]));
        let read = Need::Blocks(Span { first: 5, end: 6 }, Use::Read);
        assert_eq!(granted(&none, &others, read), part(&[(5, END, Use::Read)]));
        assert_eq!(granted(&none, &others, Need::Attr), part(&[]));
        let reading = Token::new(InodeNo(7), TokenMode::Read, Grant(1));
        assert_eq!(granted(&none, &[reading], read).mode, TokenMode::Read);
    }
}
