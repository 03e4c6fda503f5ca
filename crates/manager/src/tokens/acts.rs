//! What follows from a call of the table.

use std::collections::BTreeSet;

use base::{Grant, InodeNo, SessionId};
use wire::token::{Recall, Token};

use crate::ticket::Ticket;

/// What follows from a call.
#[derive(Debug, Default, PartialEq)]
pub struct Acts {
    /// Tokens given: answer, token, and whether the inode is to be resolved first.
    pub granted: Vec<(Ticket, Token, bool)>,
    /// What waiting sessions are told.
    pub told: Vec<(Ticket, Vec<Recall>)>,
    /// Waited too long.
    pub late: Vec<Ticket>,
    /// Inodes whose holders may have changed.
    pub touched: BTreeSet<InodeNo>,
    /// Changes that nobody else's memory stands in the way of.
    pub cleared: Vec<Ticket>,
    /// Sessions that gave up the last right on an inode.
    pub left: Vec<(SessionId, InodeNo)>,
}

/// Gives the numbers of grants: each above all before, restarts included.
pub type NextGrant<'a> = &'a mut dyn FnMut() -> Grant;
