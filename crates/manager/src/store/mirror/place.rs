//! Where a copy of the embedded store is kept: on another disk ([`super::witness`]), or by another machine of the cluster
//! ([`super::node`]). What both promise: a copy that may lack something acknowledged is never promoted.

use std::{fmt::Debug, path::Path, sync::atomic::AtomicBool, time::Duration};

use super::{
    super::{Changes, Confirmed, JournaledStore, Read, StoreError},
    order::Order,
    until_end::UntilEnd,
};

/// How long a commit waits for the copy. In tests as well: on a busy machine a disk that is well takes seconds for a commit.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What a copy holds: its journal and the number of its last commit, and that commit, where the journal has it.
pub type Held = ((u64, u64), Option<(u64, Changes)>);

/// An opened copy. One thread has it.
pub trait Copied: Send {
    /// What it holds.
    fn holds(&self) -> Held;
    /// The next commit: durable there when this returns.
    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError>;
    /// It has all that was acknowledged, and counts from now on. An error: whether it does is not known.
    fn count(&mut self) -> Result<(), StoreError>;
    /// Nothing was committed for a while: is it there?
    fn beat(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A place for a copy.
pub trait Place: Debug + Send + Sync + 'static {
    /// Where that is, as "a copy" is followed by it.
    fn name(&self) -> String;
    /// Whether a copy there has all that was acknowledged; else why not.
    fn whole(&self) -> Result<(), String>;
    /// Opens that copy.
    fn open(&self, loses: Option<u64>) -> Result<Box<dyn Copied>, String>;
    /// Looks whether a copy can be made there.
    fn ready(&self) -> Result<(), StoreError>;
    /// Makes a copy anew, which does not count yet: of what `from` shows, the state of commit `of.1` of journal `of.0`. None: nobody
    /// wants it any more, as `from` says.
    fn make(&self, of: (u64, u64), from: &UntilEnd<'_>) -> Result<Option<Box<dyn Copied>>, StoreError>;
    /// From now on no copy counts; durable when this returns. `state`: the store's. It may wait for others until `ends` says that nobody
    /// wants it any more, and says so by [`Place::waits_for`]. An error: a copy may count.
    fn dismiss(&self, state: &dyn Read, ends: &AtomicBool) -> Result<(), StoreError>;
    /// Who is to have a commit first that the store is about to get.
    fn order(&self, _store: &JournaledStore, _changes: &Changes) -> Result<Order, StoreError> {
        Ok(Order::Any)
    }
    /// What [`Place::dismiss`] waits for, if it does.
    fn waits_for(&self) -> Option<String> {
        None
    }
    /// Until when the manager may answer; none: as long as it lives.
    fn confirmed(&self) -> Option<Confirmed> {
        None
    }
    /// How often [`Copied::beat`] is to be called, at least.
    fn beats(&self) -> Duration {
        Duration::MAX
    }
    /// The store at `path` does not do, and the copy does.
    fn instead(&self, path: &Path, why: &str) -> StoreError;
    /// What makes that copies are made again.
    fn remedy(&self) -> &'static str;
}
