//! What follows from an event.

use std::sync::Arc;

use base::{FsId, InodeNo, SessionId};
use wire::{
    map::ClusterMap,
    mgr::{MgrError, MgrReply},
    token::Token,
};

use super::Ticket;
use crate::{
    store::{Record, seal_record},
    tokens::Unclear,
};

/// Something to store.
#[derive(Debug, Clone, PartialEq)]
pub enum StoreOp {
    /// Set a key.
    Put(Vec<u8>, Vec<u8>),
    /// Remove a key.
    Delete(Vec<u8>),
    /// A client session is over: its record and replies go.
    EndSession(SessionId),
}

/// Sessions with their tokens.
pub type HolderList = Vec<(SessionId, Token)>;

/// What follows from an event.
#[derive(Debug, Default)]
pub struct Step {
    /// First: store this, in one transaction.
    pub store: Vec<StoreOp>,
    /// Then: the new map, if it changed.
    pub map: Option<Arc<ClusterMap>>,
    /// Then: the new map of clients, if that changed.
    pub client_map: Option<Arc<ClusterMap>>,
    /// Then: who holds which tokens now, where that changed.
    pub holders: Vec<(FsId, InodeNo, HolderList)>,
    /// Then: file systems of which that is not known in full, or is known again.
    pub unclear: Vec<(FsId, Unclear)>,
    /// Then: sessions that gave up the last right on an inode.
    pub left: Vec<(SessionId, FsId, InodeNo)>,
    /// Then: the answers.
    pub replies: Vec<(Ticket, MgrReply)>,
    /// For people.
    pub notes: Vec<String>,
    /// Orphans of ended sessions may be removed now.
    pub collect: bool,
}

impl Step {
    /// Whether nothing follows but answers.
    pub(crate) fn is_nothing_new(&self) -> bool {
        self.store.is_empty()
            && self.map.is_none()
            && self.client_map.is_none()
            && self.holders.is_empty()
            && self.unclear.is_empty()
            && self.left.is_empty()
            && self.notes.is_empty()
            && !self.collect
    }

    pub(super) fn put<T: Record>(&mut self, key: Vec<u8>, record: &T) {
        let value = seal_record(&key, record);
        self.store.push(StoreOp::Put(key, value));
    }

    pub(super) fn reply(&mut self, ticket: Ticket, reply: MgrReply) {
        self.replies.push((ticket, reply));
    }

    pub(super) fn answer(&mut self, ticket: Ticket, outcome: Result<(), MgrError>) {
        self.reply(ticket, outcome.map_or_else(MgrReply::Error, |()| MgrReply::Done));
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, error: MgrError) {
        self.reply(ticket, MgrReply::Error(error));
    }
}
