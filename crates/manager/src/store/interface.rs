//! What a store is to those who use it: reading, snapshots, and one call that commits.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use super::{Confirmed, Following, Mark, StoreError};

/// Keys to their new values; none is a deletion.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a scan calls for each key and value; it may stop the scan.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Reading: a snapshot, or a transaction above one.
pub trait Read {
    /// The value at `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// Calls `visit` for every key in `start..end`, rising, until it breaks.
    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError>;
}

/// A consistent view of what was committed when it was taken.
pub type Snapshot = Arc<dyn Read + Send + Sync>;

/// See [`Store::marked`].
pub struct Marked {
    /// The last commit in the snapshot.
    pub mark: Mark,
    /// Which life of which manager has the store open: no two are the same.
    pub life: u64,
    /// The state.
    pub snapshot: Snapshot,
}

/// Something of a store that an admin should see to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// What is not as it should be; the same as long as that lasts.
    pub what: &'static str,
    /// The same in full, as it is now, with the remedy.
    pub text: String,
}

/// A store.
pub trait Store: Send + Sync + 'static {
    /// The state of the last commit.
    fn snapshot(&self) -> Result<Snapshot, StoreError>;
    /// Applies all changes or none, durably.
    fn commit(&self, changes: &Changes) -> Result<(), StoreError>;
    /// Where it is and how safe that is, for people.
    fn describe(&self) -> String;
    /// Whether commits and long reads want threads of their own, since they wait for a device. Without,
    /// everything runs in one thread, the same way each time.
    fn waits(&self) -> bool {
        true
    }
    /// Until when the manager may answer; none: as long as it lives, since nobody can take its place.
    fn confirmed(&self) -> Option<Confirmed> {
        None
    }
    /// What is known of the standing of a manager beside others; none: there are no others.
    fn following(&self) -> Option<Following> {
        None
    }
    /// A state with the commit that made it, where others follow the journal; none: nobody can.
    fn marked(&self) -> Result<Option<Marked>, StoreError> {
        Ok(None)
    }
    /// Who copies the table part after part asked for one just now; `first`: the last commit that its first part has, told with that
    /// one. What the journal has behind that commit stays a while, if there is room, even when others need it no more.
    fn copied(&self, _first: Option<u64>) {}
    /// How often it wants [`tend`](Self::tend) to be called; none: never.
    fn tends(&self) -> Option<Duration> {
        None
    }
    /// Looks whether it can still commit. An error: it cannot, and the manager stops.
    fn tend(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Whether what is left of its room is kept for removing: no new names are made.
    fn is_full(&self) -> bool {
        false
    }
    /// What an admin should see to.
    fn remarks(&self) -> Vec<Remark> {
        Vec::new()
    }
    /// For how long a commit waits for another machine or disk, and for what; none: none does.
    fn waits_for(&self) -> Option<(Duration, String)> {
        None
    }
    /// The manager stops: nothing waits any more for what is not there.
    fn end_waits(&self) {}
    /// Blocks found damaged since it was opened.
    fn damage(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Reads up to `count` blocks from `first` on from the device and compares them with their CRCs; the block to go on
    /// with, none at the end. What is damaged is among [`damage`](Self::damage) then.
    fn scrub(&self, _first: u64, _count: u64) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }
}

/// The first key that does not start with `prefix` and lies behind all that do.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // No such key exists for an empty or all-ones prefix; keys of this store start with a letter.
    vec![u8::MAX; 16]
}
