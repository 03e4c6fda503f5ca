//! All connection groups of an endpoint: those that connect, by the addresses of their peer, and those of peers that connected to
//! us, by who they are.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use base::{MemberId, NodeId, beat};
use bytes::Bytes;
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    calls::{handler::BoxFuture, services::Services},
    connections::{
        group::{Group, User},
        handshake::Identity,
        keeper,
    },
    core::Core,
};

/// An accepted group without connections is kept this long: its peer may come back, and calls to it wait.
const ACCEPTED_LINGER: Duration = Duration::from_secs(30);
/// A dialed one that nobody holds, connects or waits on: whoever asks for it again connects anew.
const DIALED_LINGER: Duration = Duration::from_secs(300);
/// How often such groups are looked for.
const JANITOR_INTERVAL: Duration = Duration::from_secs(5);

/// Unfinished handshakes, oldest first.
#[derive(Default)]
pub(crate) struct Handshakes {
    tasks: Mutex<VecDeque<AbortHandle>>,
}

impl Handshakes {
    pub(crate) fn add(&self, task: AbortHandle, max: usize) {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        if tasks.len() >= max {
            tasks.retain(|t| !t.is_finished());
        }
        while tasks.len() >= max {
            if let Some(oldest) = tasks.pop_front() {
                oldest.abort();
            }
        }
        tasks.push_back(task);
    }

    pub(crate) fn abort_all(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        tasks.drain(..).for_each(|t| t.abort());
    }
}

/// What is answered to a visitor at an address who says something.
pub type Receive = Box<dyn Fn(SocketAddr, Bytes) -> BoxFuture<'static, Vec<u8>> + Send + Sync>;

pub(crate) struct Groups {
    pub core: Arc<Core>,
    pub services: Arc<Services>,
    pub handshakes: Handshakes,
    /// Answers who has no certificate.
    pub visitors: OnceLock<Receive>,
    /// Told when the endpoint is shut down.
    pub shutting: Notify,
    shut: AtomicBool,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    dialed: HashMap<Vec<SocketAddr>, Arc<Group>>,
    accepted: HashMap<(MemberId, NodeId, u64), Arc<Group>>,
}

impl Groups {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Groups> {
        Arc::new(Groups {
            core,
            services: Arc::default(),
            handshakes: Handshakes::default(),
            visitors: OnceLock::new(),
            shutting: Notify::new(),
            shut: AtomicBool::new(false),
            peers: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A new group, and the task that keeps its connections.
    fn begin(&self, addrs: &[SocketAddr]) -> Arc<Group> {
        let group = Group::new(&self.core, addrs.to_vec());
        self.core.runtime.spawn(keeper::run(Arc::downgrade(&group), Arc::clone(&self.services)));
        group
    }

    /// The group that connects to the process at `addrs`, kept for the user beside it.
    pub(crate) fn dialed(&self, addrs: &[SocketAddr]) -> (Arc<Group>, User) {
        let mut key = addrs.to_vec();
        key.sort();
        key.dedup();
        let held = {
            let mut peers = self.lock();
            let group = peers.dialed.entry(key).or_insert_with(|| self.begin(addrs));
            // Counted before another can find that nobody has it.
            (Arc::clone(group), group.user())
        };
        if self.is_shut() {
            held.0.shut();
        }
        held
    }

    /// The group of a process that connects to us.
    pub(crate) fn accepted(&self, peer: &Identity) -> Arc<Group> {
        let key = (peer.member, peer.node, peer.process);
        Arc::clone(self.lock().accepted.entry(key).or_insert_with(|| self.begin(&[])))
    }

    /// The same, if it has.
    pub(crate) fn find_accepted(&self, node: NodeId, process: u64) -> Option<Arc<Group>> {
        let peers = self.lock();
        let mut all = peers.accepted.iter();
        all.find(|((_, n, p), _)| (*n, *p) == (node, process)).map(|(_, group)| Arc::clone(group))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Group>> {
        let peers = self.lock();
        peers.dialed.values().chain(peers.accepted.values()).cloned().collect()
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// Ends all of them.
    pub(crate) fn shut(&self) {
        if self.shut.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shutting.notify_waiters();
        self.handshakes.abort_all();
        self.all().iter().for_each(|g| g.shut());
        let mut peers = self.lock();
        peers.dialed.clear();
        peers.accepted.clear();
    }
}

/// Forgets groups whose peers have gone for good.
pub(crate) async fn janitor(groups: Weak<Groups>) {
    loop {
        tokio::time::sleep_until(beat::by(Instant::now(), JANITOR_INTERVAL).into()).await;
        let Some(groups) = groups.upgrade() else { return };
        if groups.is_shut() {
            return;
        }
        groups.forget(ACCEPTED_LINGER, DIALED_LINGER);
    }
}

impl Groups {
    /// Those that have not been used for so long: accepted ones without connections, dialed ones that nobody holds besides.
    fn forget(&self, accepted: Duration, dialed: Duration) {
        let mut peers = self.lock();
        peers.accepted.retain(|_, group| {
            let empty = {
                let state = group.lock();
                state.conns.is_empty() && state.table.calls().next().is_none()
            };
            !empty || group.idle() < accepted || group.lock_once().is_needed(Instant::now())
        });
        peers.dialed.retain(|_, group| {
            let stays =
                group.idle() < dialed || !group.is_unused() || group.lock_once().is_needed(Instant::now());
            if !stays {
                // It ends when it finds that it is alone with the group.
                group.keeper.notify_one();
            }
            stays
        });
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
