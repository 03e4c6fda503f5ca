//! Golden vectors of tokens as they are sent (FORMAT.md).
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use base::{Grant, InodeNo};
use wire::{
    frame::{decode, encode},
    token::{Blocks, Need, Recall, Span, Token, TokenMode, Use},
};

#[test]
fn tokens_have_the_bytes_of_the_format() {
    let blocks = Blocks::of(Span { first: 0, end: 1 }, Use::Write);
    let blocks = blocks.with(Span { first: 2, end: u64::MAX }, Use::Read);
    let token = Token { blocks, ..Token::new(InodeNo(7), TokenMode::Part, Grant(300)) };
    let bytes: Vec<u8> = [
        [7, 2, 0xac, 2, 2, 0, 1, 2, 2].as_slice(),
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1],
    ]
    .concat();
    assert_eq!(encode(&token), bytes);
    assert_eq!(encode(&Recall::Token(token.clone())), [&[0], bytes.as_slice()].concat());
    assert_eq!(decode::<Token>(&bytes).unwrap(), token);
    let need = Need::Blocks(Span { first: 5, end: 6 }, Use::Write);
    assert_eq!(encode(&need), [2, 5, 6, 2]);
    assert_eq!((encode(&Need::Names), encode(&Need::Make)), (vec![5], vec![6]));
    assert_eq!(encode(&Recall::Publish(InodeNo(7), Grant(9))), [5, 7, 9]);
}
