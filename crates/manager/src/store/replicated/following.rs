//! What a manager with its journal in etcd knows of its own standing: whether it leads or follows, whom, how far it has come, and
//! since when etcd says nothing. Told by its store, read by whoever answers for it; and where it is told to make way, and to end.
//! Nothing that must hold hangs on it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wire::map::ManagerEntry;

/// See the module. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Following(Arc<Shared>);

/// How long a manager leads after etcd last heard of it, unless it is told otherwise.
const LEASE: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
struct Shared {
    /// Whole seconds; 0: nothing was told.
    lease: AtomicU64,
    leads: AtomicBool,
    /// Another one has taken over.
    deposed: AtomicBool,
    last: AtomicU64,
    leader: Mutex<Option<ManagerEntry>>,
    silent: Mutex<Option<(Instant, String)>>,
    heir: Mutex<Option<String>>,
    ends: AtomicBool,
}

impl Following {
    /// This manager leads: it has the leader's key and has claimed the journal.
    pub fn leads(&self) -> bool {
        self.0.leads.load(Relaxed)
    }
    /// It led, and another one has taken over.
    pub fn is_deposed(&self) -> bool {
        self.0.deposed.load(Relaxed)
    }
    /// Number of the last record that its table has.
    pub fn last(&self) -> u64 {
        self.0.last.load(Relaxed)
    }
    /// Who leads, as the leader's key said when it was read last; none: there was no such key.
    pub fn leader(&self) -> Option<ManagerEntry> {
        self.0.leader.lock().clone()
    }
    /// For how long etcd has not answered, and why not; none: it answers.
    pub fn silence(&self) -> Option<(Duration, String)> {
        self.0.silent.lock().as_ref().map(|(since, why)| (since.elapsed(), why.clone()))
    }
    /// When this manager ends, that one is to lead.
    pub fn set_heir(&self, name: &str) {
        *self.0.heir.lock() = Some(name.to_owned());
    }
    pub(super) fn heir(&self) -> Option<String> {
        self.0.heir.lock().clone()
    }
    /// It is to end: it waits for nothing any more. One that follows writes what it has read into its table; opening it fails then.
    pub fn end(&self) {
        self.0.ends.store(true, Relaxed);
    }
    /// Whether it is.
    pub fn ends(&self) -> bool {
        self.0.ends.load(Relaxed)
    }
    /// How long after etcd last heard of it a manager leads that wins now: whole seconds.
    pub(super) fn lease(&self) -> Duration {
        match self.0.lease.load(Relaxed) {
            0 => LEASE,
            seconds => Duration::from_secs(seconds),
        }
    }
    pub(super) fn set_lease(&self, lease: Duration) {
        self.0.lease.store(lease.as_millis().div_ceil(1000) as u64, Relaxed);
    }
    pub(super) fn set_leads(&self) {
        self.0.leads.store(true, Relaxed);
    }
    pub(super) fn set_deposed(&self) {
        self.0.leads.store(false, Relaxed);
        self.0.deposed.store(true, Relaxed);
    }
    pub(super) fn set_last(&self, last: u64) {
        self.0.last.store(last, Relaxed);
    }
    pub(super) fn set_leader(&self, leader: Option<ManagerEntry>) {
        *self.0.leader.lock() = leader;
    }
    pub(super) fn set_silence(&self, why: Option<String>) {
        let mut silent = self.0.silent.lock();
        let since = silent.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *silent = why.map(|why| (since, why));
    }
}
