//! The token table of one file system: which session may keep or change what (docs/tokens.md).
//!
//! A plain state machine: calls come with the time and return [`Acts`]. It holds no promise across a
//! restart: sessions claim what they hold ([`Recall::Share`]), and until all have claimed or are gone
//! nothing is granted.
//!
//! Invariants: of one inode one session holds `Write`, or any number hold `Read`, or any number hold `Part` with
//! blocks that exclude each other ([`rules`]). A session's tokens stay, whatever it does, until it gives them up
//! or [`Tokens::drop_session`] says that it is fenced or ended cleanly. After an unclean end an inode that the
//! ended session may have written is granted only with the duty to resolve, and whole. `Write` of a directory is granted beside nothing
//! but `Open`, and nobody is asked to make room for it.

mod acts;
mod calls;
mod grants;
#[cfg(test)]
mod making_tests;
mod notice;
mod rules;
mod sessions;
mod table;
#[cfg(test)]
mod tests;

pub use self::{
    acts::{Acts, NextGrant},
    table::{MemberReport, Tokens, Unclear},
};
