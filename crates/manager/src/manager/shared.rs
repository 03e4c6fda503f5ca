//! What the manager's tasks and those who ask share.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Weak, atomic::AtomicU64},
    thread::JoinHandle,
    time::Duration,
};

use base::{
    InodeNo, SessionId, beat,
    presence::{Look, Presence, boot_time},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};
use wire::{
    map::ClusterMap,
    mgr::{AuthorityReport, MgrError, MgrReply},
};

use super::stopping;
use crate::{
    apply::Writer,
    cluster::{Event, Holders, Ticket},
    event_log::EventLog,
    losses::Counted,
    namespace::DirHash,
    store::{Confirmed, Following, Snapshot, Store},
};

/// What is dumped from.
pub(super) struct Dump {
    pub number: u64,
    pub snapshot: Snapshot,
    pub asked: Instant,
}

/// How long a snapshot is kept that nobody asks for.
const DUMP_IDLE_MAX: Duration = Duration::from_secs(60);

/// Lets go a dump that nobody asks for any more; runs until the manager ends.
pub(super) async fn let_dump_go(inner: Arc<Inner>) {
    loop {
        let next = beat::by(std::time::Instant::now(), DUMP_IDLE_MAX / 4);
        tokio::time::sleep_until(next.into()).await;
        inner.dump.lock().take_if(|dump| dump.asked.elapsed() >= DUMP_IDLE_MAX);
    }
}

/// How often the cluster looks at the clock.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The same, at most, while nothing is about to happen: well below the time from which on it would count as away.
pub(super) const REST: Duration = Duration::from_millis(512);
/// Questions that wait are answered this long before their deadline.
pub(crate) const ANSWER_BEFORE: Duration = Duration::from_millis(300);

/// An event for the cluster's task, with who waits for the answer if it is a question.
pub(super) struct Message {
    pub event: Event,
    pub answer: Option<(Ticket, Asker)>,
}

/// Who waits for the answer to a question.
pub(super) struct Asker {
    pub session: SessionId,
    pub answer: oneshot::Sender<MgrReply>,
}

/// See the module.
pub(crate) struct Inner {
    pub writer: Writer,
    pub map: watch::Receiver<Arc<ClusterMap>>,
    /// The map as clients get it.
    pub client_map: watch::Receiver<Arc<ClusterMap>>,
    /// Something was queued for deletion, perhaps.
    pub deletes: Notify,
    /// Who holds which tokens.
    pub(super) holders: Arc<Holders>,
    /// Files that a look into a directory has shown to sessions that are bound to a subtree.
    pub(super) led: Mutex<HashMap<SessionId, HashSet<InodeNo>>>,
    pub(super) events: mpsc::Sender<Message>,
    pub(super) collect: Notify,
    pub(super) tickets: AtomicU64,
    pub(super) started: Instant,
    /// When the cluster's task looked at the clocks.
    pub(super) presence: Mutex<Presence>,
    pub(super) place: String,
    pub(super) hash: DirHash,
    pub log: EventLog,
    /// Until when may be answered, where another manager could take over.
    pub confirmed: Option<Confirmed>,
    /// How it stands, where there can be others.
    pub following: Option<Following>,
    /// It is to make way for another one.
    pub resigning: Notify,
    /// As this process believes them.
    pub authorities: Mutex<AuthorityReport>,
    /// The store's damage, for those who look for it. (The writer holds the store, and lets it go at its end.)
    pub store: Weak<dyn Store>,
    /// Held by a step of the scrub, as long as it has the store.
    pub scrubbing: Arc<tokio::sync::Mutex<()>>,
    /// Records found damaged by the scrub.
    pub damaged_records: Mutex<BTreeSet<String>>,
    /// What was found lost when all files were looked at last, by this life of the manager.
    pub lost: Mutex<Option<Counted>>,
    /// What a dump that is under way is taken from.
    pub(super) dump: Mutex<Option<Dump>>,
    pub(super) tasks: Mutex<JoinSet<()>>,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

impl Inner {
    /// The time by which others are judged.
    pub(super) fn now(&self) -> Duration {
        let now = self.started.elapsed();
        self.presence.lock().present(now)
    }

    pub(super) fn look(&self) -> Look {
        let (now, boot) = (self.started.elapsed(), boot_time());
        self.presence.lock().look(now, boot)
    }

    pub(super) async fn tell(&self, event: Event, answer: Option<(Ticket, Asker)>) -> Result<(), MgrError> {
        self.events.send(Message { event, answer }).await.map_err(|_| stopping())
    }
}
