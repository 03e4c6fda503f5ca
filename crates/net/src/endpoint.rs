//! The endpoint: one per process. Owns the listening sockets, all connection groups and the services.
//! When the last handle is dropped everything it owns ends.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, Hasher, RandomState},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use base::{BufPool, Epoch, NodeId, SessionId};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
};
use wire::{auth::Secret, frame::Service};

use crate::{
    EndpointConfig, Handler, NetError, Peer, PeerStatus, Serving, Transfer, Waiter,
    accept::{self, Handshakes},
    config::check_conns_max,
    conn::Conn,
    group::Group,
    inbound, service, socket,
    stats::CallTimes,
};

/// An accepted group without connections is kept this long: its peer may come back, and calls to it wait.
const ACCEPTED_LINGER: Duration = Duration::from_secs(30);
/// How often such groups are looked for.
const JANITOR_INTERVAL: Duration = Duration::from_secs(5);
/// Connections the kernel holds until they are accepted.
const BACKLOG: u32 = 4096;

/// The transport of one process. Clones are handles to the same endpoint.
#[derive(Clone)]
pub struct Endpoint {
    owner: Arc<Owner>,
}

/// Its drop is the end of the endpoint; the tasks hold only the core.
struct Owner(Arc<Core>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.shut();
    }
}

/// What tasks, groups and connections share.
pub(crate) struct Core {
    pub config: EndpointConfig,
    /// Drawn at start: tells this life of the process from others.
    pub process: u64,
    pub secret: Secret,
    pub runtime: Handle,
    pub pool: BufPool,
    /// `inbound_bytes_max` in units of 4 KiB.
    pub inbound_share: Arc<Semaphore>,
    pub handshakes: Handshakes,
    /// One placement at a time.
    pub placing: Semaphore,
    pub shutting: Notify,
    started: Instant,
    ids: AtomicU64,
    /// Calls that must take effect once and have not ended, to whatever peer: the lowest is told as settled.
    /// Of the whole endpoint, because a peer may be reached by more than one group.
    unsettled: Mutex<BTreeSet<u64>>,
    random: AtomicU64,
    session: AtomicU64,
    epoch: AtomicU64,
    local: Vec<SocketAddr>,
    services: RwLock<[Option<Arc<dyn Handler>>; 8]>,
    peers: Mutex<Peers>,
    accepted: AtomicUsize,
    shut: AtomicBool,
    conns_max: AtomicU8,
    conns_auto: AtomicBool,
    /// `Transfer::Fetch` is in force.
    fetch: AtomicBool,
    inline_write_max: AtomicUsize,
    pub call_times: CallTimes,
}

#[derive(Default)]
struct Peers {
    dialed: HashMap<Vec<SocketAddr>, Arc<Group>>,
    accepted: HashMap<(NodeId, u64), Arc<Group>>,
}

impl Endpoint {
    /// Binds the addresses and starts accepting. Must be called within a tokio runtime, whose tasks do
    /// the endpoint's work.
    pub fn start(config: EndpointConfig) -> Result<Endpoint, NetError> {
        config.validate()?;
        let secret = config.secret.clone().ok_or(NetError::NoSecret)?;
        let runtime = Handle::try_current().map_err(|_| NetError::NoRuntime)?;
        let mut listeners = Vec::new();
        let mut local = Vec::new();
        for &addr in &config.listen {
            let listener = socket::listen(addr, BACKLOG)?;
            local.push(listener.local_addr().map_err(|source| NetError::Listen { addr, source })?);
            listeners.push(listener);
        }
        let process = RandomState::new().build_hasher().finish().max(1);
        let core = Arc::new(Core {
            pool: BufPool::new(config.pool_idle_bytes_max),
            inbound_share: Arc::new(Semaphore::new(inbound::share_units(config.inbound_bytes_max) as usize)),
            process,
            secret,
            runtime,
            handshakes: Handshakes::default(),
            placing: Semaphore::new(1),
            shutting: Notify::new(),
            started: Instant::now(),
            ids: AtomicU64::new(1),
            unsettled: Mutex::default(),
            random: AtomicU64::new(process | 1),
            session: AtomicU64::new(config.session.0),
            epoch: AtomicU64::new(0),
            local,
            services: RwLock::default(),
            peers: Mutex::default(),
            accepted: AtomicUsize::new(0),
            shut: AtomicBool::new(false),
            conns_max: AtomicU8::new(config.conns_max),
            conns_auto: AtomicBool::new(config.conns_auto),
            fetch: AtomicBool::new(config.transfer == Transfer::Fetch),
            inline_write_max: AtomicUsize::new(config.inline_write_max),
            call_times: CallTimes::new(),
            config,
        });
        let endpoint = Endpoint { owner: Arc::new(Owner(Arc::clone(&core))) };
        endpoint.serve(Service::Net, service::handler());
        for listener in listeners {
            core.runtime.spawn(accept::run(Arc::clone(&core), listener));
        }
        core.runtime.spawn(janitor(Arc::downgrade(&core)));
        Ok(endpoint)
    }

    fn core(&self) -> &Arc<Core> {
        &self.owner.0
    }

    /// The addresses listened on, with the ports that were chosen.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.core().local
    }

    /// The number that tells this life of the process from others.
    pub fn process(&self) -> u64 {
        self.core().process
    }

    /// Gives a service its handler; replaces an earlier one. Requests for a service without one are
    /// answered `NoService`.
    pub fn serve(&self, service: Service, handler: Arc<dyn Handler>) {
        let mut services = self.core().services.write().unwrap_or_else(|e| e.into_inner());
        if let Some(place) = services.get_mut(service as usize) {
            *place = Some(handler);
        }
    }

    /// The process at `addrs` (its addresses on one or several networks). Handles for the same addresses
    /// share their connections. Nothing is connected before the first call.
    pub fn peer(&self, addrs: &[SocketAddr]) -> Peer {
        let mut key = addrs.to_vec();
        key.sort();
        key.dedup();
        let core = self.core();
        let mut peers = core.lock_peers();
        let group = Arc::clone(peers.dialed.entry(key).or_insert_with(|| Group::new(core, addrs.to_vec())));
        drop(peers);
        if core.is_shut() {
            group.shut();
        }
        Peer::from_group(group)
    }

    /// A process that connected to this one.
    pub fn peer_by_process(&self, node: NodeId, process: u64) -> Option<Peer> {
        let group = self.core().lock_peers().accepted.get(&(node, process)).cloned();
        group.map(Peer::from_group)
    }

    /// The session named in later handshakes.
    pub fn set_session(&self, session: SessionId) {
        self.core().session.store(session.0, Ordering::Relaxed);
    }

    /// Changes `maxTcpConnsPerNodeConn`, 1–16: connections are made and drained accordingly, and peers that
    /// connected to this endpoint are told.
    pub fn set_conns_max(&self, n: u8) -> Result<(), NetError> {
        self.set_conns(n, false)
    }

    /// `maxTcpConnsPerNodeConn` = auto: each group finds the number by measuring, up to 16 and to what its
    /// peer allows.
    pub fn set_conns_auto(&self) {
        // 16 is within the range.
        let _ = self.set_conns(16, true);
    }

    fn set_conns(&self, n: u8, auto: bool) -> Result<(), NetError> {
        check_conns_max(n)?;
        let core = self.core();
        let before = (core.conns_max(), core.conns_auto.swap(auto, Ordering::Relaxed));
        if before == (n, auto) {
            return Ok(());
        }
        core.conns_max.store(n, Ordering::Relaxed);
        for group in core.groups() {
            group.keeper.notify_one();
            if !group.dials() {
                core.runtime.spawn(service::tell_conns_max(Peer::from_group(group), n));
            }
        }
        Ok(())
    }

    /// Changes how payloads of more than `inline_max` bytes travel.
    pub fn set_transfer(&self, transfer: Transfer, inline_max: usize) {
        self.core().fetch.store(transfer == Transfer::Fetch, Ordering::Relaxed);
        self.core().inline_write_max.store(inline_max, Ordering::Relaxed);
    }

    /// The map version named in replies.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.core().epoch.store(epoch.0, Ordering::Relaxed);
    }

    /// Payload bytes of requests under way, at most.
    pub fn inbound_bytes_max(&self) -> usize {
        self.core().config.inbound_bytes_max
    }

    /// The buffers that payloads are received into, for who keeps them: with one store of freed buffers, what one of them
    /// gives back the other uses.
    pub fn buffers(&self) -> BufPool {
        self.core().pool.clone()
    }

    /// Every call of this process that has not ended, oldest first.
    pub fn waiters(&self) -> Vec<Waiter> {
        let mut out = Vec::new();
        self.core().groups().iter().for_each(|g| g.waiters(&mut out));
        out.sort_by_key(|w| std::cmp::Reverse(w.age));
        out
    }

    /// Every request this process has received and not answered, oldest first.
    pub fn serving(&self) -> Vec<Serving> {
        let mut out = Vec::new();
        self.core().groups().iter().for_each(|g| g.serving(&mut out));
        out.sort_by_key(|w| std::cmp::Reverse(w.age));
        out
    }

    /// All peers and connections.
    pub fn status(&self) -> Vec<PeerStatus> {
        self.core().groups().iter().map(|g| g.status()).collect()
    }

    /// Ends everything: calls end with `Shutdown`, connections and listening sockets are closed. Also
    /// happens when the last handle is dropped.
    pub fn shutdown(&self) {
        self.core().shut();
    }
}

impl Core {
    fn lock_peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn groups(&self) -> Vec<Arc<Group>> {
        let peers = self.lock_peers();
        peers.dialed.values().chain(peers.accepted.values()).cloned().collect()
    }

    /// A number that this endpoint never gives again.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn lock_unsettled(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.unsettled.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The number of a call that must take effect once. Given and noted under one lock: a later call, by which
    /// the peer learns what is settled, must know of this one.
    pub(crate) fn next_unsettled(&self) -> u64 {
        let mut unsettled = self.lock_unsettled();
        let id = self.next_id();
        unsettled.insert(id);
        id
    }

    /// No such call below this number is waited for; `own` is one that is.
    pub(crate) fn settled(&self, own: u64) -> u64 {
        self.lock_unsettled().first().copied().unwrap_or(own)
    }

    /// Call `id` has ended.
    pub(crate) fn settle(&self, id: u64) {
        self.lock_unsettled().remove(&id);
    }

    /// Microseconds on this process's monotonic clock.
    pub(crate) fn now_us(&self) -> u64 {
        self.us_of(Instant::now())
    }

    /// The same of a moment.
    pub(crate) fn us_of(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.started).as_micros() as u64
    }

    pub(crate) fn session(&self) -> SessionId {
        SessionId(self.session.load(Ordering::Relaxed))
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Relaxed))
    }

    pub(crate) fn advertised(&self) -> &[SocketAddr] {
        if self.config.advertise.is_empty() { &self.local } else { &self.config.advertise }
    }

    pub(crate) fn handler(&self, service: Service) -> Option<Arc<dyn Handler>> {
        let services = self.services.read().unwrap_or_else(|e| e.into_inner());
        services.get(service as usize).cloned().flatten()
    }

    /// `d` times a random factor of 0.5 to 1.5, so that many peers do not come back at one instant.
    pub(crate) fn jitter(&self, d: Duration) -> Duration {
        d.mul_f64(self.jitter_factor())
    }

    /// 0.5 to 1.5.
    pub(crate) fn jitter_factor(&self) -> f64 {
        // splitmix64: spread, not secrecy.
        let mut x = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        0.5 + (x >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn accepted_count(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn conns_max(&self) -> u8 {
        self.conns_max.load(Ordering::Relaxed)
    }

    /// Whether the payload of a request is fetched by the peer.
    pub(crate) fn is_fetched(&self, len: usize) -> bool {
        self.fetch.load(Ordering::Relaxed) && len > self.inline_write_max.load(Ordering::Relaxed)
    }

    /// Whether groups find their number of connections themselves.
    pub(crate) fn conns_auto(&self) -> bool {
        self.conns_auto.load(Ordering::Relaxed)
    }

    /// The group of a process that connects to us.
    pub(crate) fn accepted_group(self: &Arc<Self>, node: NodeId, process: u64) -> Arc<Group> {
        let mut peers = self.lock_peers();
        let group = peers.accepted.entry((node, process)).or_insert_with(|| Group::new(self, Vec::new()));
        Arc::clone(group)
    }

    pub(crate) fn connection_begun(&self, conn: &Conn) {
        if !conn.dialed {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        tracing::debug!(conn = conn.id, peer = %conn.peer_name(), lane = ?conn.lane, "connected");
    }

    pub(crate) fn connection_ended(&self, conn: &Conn, reason: &str) {
        if !conn.dialed {
            self.accepted.fetch_sub(1, Ordering::Relaxed);
        }
        tracing::debug!(conn = conn.id, peer = %conn.peer_name(), "connection ended: {reason}");
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    fn shut(&self) {
        if self.shut.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shutting.notify_waiters();
        self.handshakes.abort_all();
        let groups = self.groups();
        groups.iter().for_each(|g| g.shut());
        let mut peers = self.lock_peers();
        peers.dialed.clear();
        peers.accepted.clear();
    }
}

/// Forgets accepted groups whose peers have gone for good.
async fn janitor(core: std::sync::Weak<Core>) {
    loop {
        tokio::time::sleep(JANITOR_INTERVAL).await;
        let Some(core) = core.upgrade() else { return };
        if core.is_shut() {
            return;
        }
        core.lock_peers().accepted.retain(|_, group| {
            let empty = {
                let state = group.lock();
                state.conns.is_empty() && state.table.calls().next().is_none()
            };
            !empty || group.idle() < ACCEPTED_LINGER || group.lock_once().is_needed(Instant::now())
        });
    }
}
