//! The replicated store: etcd holds the journal, the table stays with each manager.
//!
//! ```text
//! PREFIX/start       the journal: its identity, the number its records begin behind
//! PREFIX/leader      who leads; under a lease. Its create revision is the fence
//! PREFIX/heir        who is to lead next, if the last one named somebody; for some seconds
//! PREFIX/j/NUMBER    the records, 16 hexadecimal digits each; NUMBER rises by one
//! ```
//! One commit is one record, or some of them in a row if it is large; each is put by one transaction, which holds only while
//! the leader's key is the one that this manager made, the record before is the one that it knows, and the record's own key is
//! not there. So a manager that has lost its lease commits nothing, whatever it believes, and two requests of unknown outcome
//! cannot both count. No commit hangs on a lease or a watch. That an answer is not stale hangs on the lease's time alone: it is
//! given only while a renewal lasts after which the leader's key was still there.
//!
//! [`holder`] decides, without I/O; [`etcd`] asks; [`store`] keeps the table and joins both.

#[cfg(test)]
mod access_tests;
mod copy;
mod etcd;
mod following;
mod holder;
#[cfg(test)]
mod member;
mod migrate;
mod part;
mod place;
#[cfg(test)]
mod sim;
mod store;
#[cfg(test)]
mod tests;
mod turn;
mod upkeep;

pub use self::{
    copy::{Part, TableCopy, put_aside},
    following::Following,
    migrate::{is_free, to_etcd, to_file},
    place::{BadPlace, Place},
    store::{ReplicatedStore, Standing},
};
