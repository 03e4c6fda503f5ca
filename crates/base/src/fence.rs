//! Fence liveness: which map version is in force where, and who holds a newer one up for too long.
//!
//! A version is *in force* at a pdisk when nothing that was admitted under an older one is under way there. A fence (a
//! version without some session) has settled when it is in force at every pdisk of every server that has a lease. One
//! disk that hangs must not keep it from settling for ever, nor for the others: so passes are counted for each pdisk
//! ([`Passes`], at the server), and who lags behind by a lease ([`Versions`], at the manager) is set aside: a server loses its
//! session, a pdisk counts as away. So does a pdisk at which anything at all is under way for a lease: who waits for it may be
//! nobody who could complain, and the map need not have changed.
//!
//! **Why a pdisk may be set aside while I/O of a fenced session is still in the kernel.** It can land at any later time, so it
//! must count for nothing:
//! - it is not acknowledged: an answer to a fenced session reaches nobody who counts, and a living writer counts a pdisk's answer
//!   only while the map says of it what it said when it was asked;
//! - it is not adopted: whoever takes the tokens over resolves first, by asking pdisks what they have, and what says what is
//!   there (`State`, `Seal`, listings) is answered only when the version it was asked under is in force *at that pdisk*. So either
//!   the pdisk is `missing` and not asked, or it is one of the last copies and the resolution waits for it, and with it for
//!   the late I/O;
//! - it is not read: a pdisk that was set aside comes back, as `returning`, when all that was admitted before is over
//!   ([`Passes`] says so by what is in force there) or by an open, whose new incarnation is a proof of the same since the
//!   files of a pdisk are locked until its last I/O has ended. Then catch-up compares every strip with the others', late ones
//!   included, before any is read. A late prepared version that the others do not have too is incomplete: nobody reads or
//!   adopts it, and the next write, resolution or open removes it, as what any dead writer leaves.
//!
//! The same holds for a server that was stopped beyond its lease with requests under way: all its pdisks are then away, and come
//! back by a new session of the server.
//!
//! No I/O and no clock here: events and times in, answers out. Server, manager and the simulation run this code.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::Epoch;

/// Versions whose time of publication is remembered; with more, those between the oldest and the newest are forgotten.
const VERSIONS_MAX: usize = 256;

/// The requests under way at one pdisk, by the map version they were admitted under, and by the second in which they began.
#[derive(Clone, Debug, Default)]
pub struct Passes {
    admitting: Epoch,
    out: BTreeMap<Epoch, u64>,
    since: BTreeMap<u64, u64>,
}

/// A request under way; to be given back when it has ended.
#[derive(Debug)]
pub struct Permit {
    epoch: Epoch,
    second: u64,
}

/// Takes one away; what is none any more goes.
fn take<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Passes {
    /// Admits under `epoch` from now on.
    pub fn new(epoch: Epoch) -> Passes {
        Passes { admitting: epoch, ..Passes::default() }
    }

    /// What comes is admitted under this version.
    pub fn admitting(&self) -> Epoch {
        self.admitting
    }

    /// A newer map: what comes is admitted under it.
    pub fn replace(&mut self, epoch: Epoch) {
        self.admitting = self.admitting.max(epoch);
    }

    /// A request begins.
    pub fn begin(&mut self, now: Duration) -> Permit {
        let (epoch, second) = (self.admitting, now.as_secs());
        *self.out.entry(epoch).or_default() += 1;
        *self.since.entry(second).or_default() += 1;
        Permit { epoch, second }
    }

    /// A request has ended. True if a newer version is in force by that.
    pub fn end(&mut self, permit: Permit) -> bool {
        let before = self.in_force();
        take(&mut self.out, permit.epoch);
        take(&mut self.since, permit.second);
        self.in_force() > before
    }

    /// How long the oldest request has been under way, to the second below.
    pub fn oldest(&self, now: Duration) -> Duration {
        let since = self.since.keys().next().map(|second| Duration::from_secs(second + 1));
        since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// The newest version such that nothing admitted under an older one is under way.
    pub fn in_force(&self) -> Epoch {
        self.out.keys().next().copied().unwrap_or(self.admitting).min(self.admitting)
    }
}

/// The map versions that somebody may still have to put in force, and since when.
#[derive(Clone, Debug, Default)]
pub struct Versions(VecDeque<(Epoch, Duration)>);

impl Versions {
    /// A new version.
    pub fn publish(&mut self, epoch: Epoch, now: Duration) {
        if self.0.back().is_none_or(|(last, _)| *last < epoch) {
            if self.0.len() >= VERSIONS_MAX {
                self.0.remove(VERSIONS_MAX / 2);
            }
            self.0.push_back((epoch, now));
        }
    }

    /// These and all before are in force at everybody.
    pub fn settled(&mut self, epoch: Epoch) {
        while self.0.front().is_some_and(|(first, _)| *first <= epoch) {
            self.0.pop_front();
        }
    }

    /// Whether somebody who is there since `since`, and at whom `acked` is in force, has not put a later version in
    /// force within `limit`.
    pub fn is_late(&self, acked: Epoch, since: Duration, limit: Duration, now: Duration) -> bool {
        let owed = self.0.iter().find(|(epoch, _)| *epoch > acked);
        owed.is_some_and(|(_, published)| now > since.max(*published) + limit)
    }

    /// The judge was away: everybody has the whole time once more.
    pub fn again(&mut self, now: Duration) {
        self.0.iter_mut().for_each(|(_, published)| *published = now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_version_is_in_force_when_nothing_older_is_under_way() {
        let mut passes = Passes::new(Epoch(3));
        assert_eq!(passes.in_force(), Epoch(3));
        let (first, second) = (passes.begin(s(1)), passes.begin(s(2)));
        passes.replace(Epoch(5));
        let third = passes.begin(s(2));
        passes.replace(Epoch(9));
        assert_eq!([&first, &second, &third].map(|permit| permit.epoch.0), [3, 3, 5]);
        assert_eq!((passes.in_force(), passes.oldest(s(12))), (Epoch(3), s(10)));
        assert!(!passes.end(first), "one more of that version is out");
        assert!(passes.end(second));
        assert_eq!((passes.in_force(), passes.oldest(s(12))), (Epoch(5), s(9)));
        passes.replace(Epoch(4));
        assert!(passes.end(third));
        assert_eq!(passes.in_force(), Epoch(9), "an older map changes nothing");
        assert_eq!(passes.oldest(s(1000)), s(0));
    }

    #[test]
    fn who_puts_nothing_newer_in_force_for_a_lease_is_late() {
        let mut versions = Versions::default();
        versions.publish(Epoch(2), s(100));
        versions.publish(Epoch(3), s(108));
        let late = |versions: &Versions, acked, since, now| versions.is_late(Epoch(acked), since, LEASE, now);
        assert!(!late(&versions, 1, s(0), s(110)));
        assert!(late(&versions, 1, s(0), s(111)));
        assert!(!late(&versions, 2, s(0), s(111)), "it goes on, and has a lease for the next");
        assert!(!late(&versions, 3, s(0), s(1000)), "nothing is owed");
        assert!(!late(&versions, 0, s(105), s(111)), "it came later");
        versions.again(s(200));
        assert!(!late(&versions, 1, s(0), s(210)), "the judge was away");
        assert!(late(&versions, 1, s(0), s(211)));
        versions.settled(Epoch(3));
        assert!(!late(&versions, 0, s(0), s(10_000)));
    }

    #[test]
    fn versions_are_bounded_and_the_oldest_owed_stays() {
        let mut versions = Versions::default();
        (1..=10_000).for_each(|epoch| versions.publish(Epoch(epoch), s(epoch)));
        assert_eq!(versions.0.len(), VERSIONS_MAX);
        assert!(versions.is_late(Epoch(0), s(0), LEASE, s(12)));
        assert!(!versions.is_late(Epoch(9_999), s(0), LEASE, s(10_010)));
    }
}
