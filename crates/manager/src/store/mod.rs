//! The store: an ordered map from bytes to bytes with snapshots and atomic, durable commits.
//!
//! The trait is small on purpose, so that another store (a replicated one) fits behind it: read
//! snapshots, and one call that commits a set of changes. One writer prepares changes in a [`Txn`]
//! above a snapshot; nobody else commits meanwhile. When `commit` returns, the changes survive a power
//! cut; when it fails, the manager stops, because what is on disk is not known any more.

mod applied;
mod blocks;
mod confirmed;
mod dump;
mod error;
mod files;
#[cfg(test)]
mod flips;
mod interface;
mod journal;
mod journaled;
mod look;
mod mark;
mod medium;
#[cfg(test)]
pub(crate) mod memory;
mod mirror;
mod recent;
mod record;
mod redb;
mod replicated;
mod txn;
mod unflushed;
#[cfg(test)]
pub(crate) mod volatile;

pub use self::{
    applied::Mark,
    confirmed::Confirmed,
    dump::{Damaged, DumpWriter, dump, restore},
    error::StoreError,
    files::{journal_path, mark_path},
    interface::{Changes, Marked, Read, Remark, Snapshot, Store, Visit, prefix_end},
    journaled::JournaledStore,
    look::{Look, beside, copy, salvage},
    mirror::{
        Ballots, Keeper, Mirror, MirroredStore, NetWay, Node as KeptBy, Place as CopyPlace, Voter, Voters,
        Way, Witness, instead_of, promote_kept,
    },
    record::{BadRecord, KeyText, Record, is_whole, open_bytes, open_record, seal_bytes, seal_record},
    redb::RedbStore,
    replicated::{
        BadPlace, Following, Part, Place, ReplicatedStore, Standing, TableCopy, is_free, put_aside, to_etcd,
        to_file,
    },
    txn::Txn,
};
