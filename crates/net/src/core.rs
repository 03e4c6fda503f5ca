//! What all tasks, groups and connections of an endpoint share: its settings, its numbers, its clock, its memory. It knows none
//! of them.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, Hasher, RandomState},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use base::{BufPool, CipherList, Epoch, MemberId, SessionId};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use trust::Identity;

use crate::{
    broken::{Broken, Process},
    config::{EndpointConfig, Transfer, Transport},
    connections::socket::Protection,
    names::Names,
    stats::CallTimes,
};

/// Bytes that one unit of `inbound_bytes_max` stands for: the semaphore counts in u32.
const SHARE_UNIT: usize = 4096;

/// Units of the shared bound that `bytes` take.
pub(crate) fn share_units(bytes: usize) -> u32 {
    bytes.div_ceil(SHARE_UNIT) as u32
}

fn place() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// What tasks, groups and connections share.
pub(crate) struct Core {
    pub config: EndpointConfig,
    /// Drawn at start: tells this life of the process from others.
    pub process: u64,
    identity: RwLock<Identity>,
    /// An authority is believed no more that was.
    dropped_authorities: AtomicBool,
    /// Held while identity or cipher list change: each is made of the other.
    changing: Mutex<()>,
    /// How new connections are protected, and how often that was changed.
    cipher_list: RwLock<(CipherList, u64)>,
    /// Where this process's loopback addresses mean something: the boot, and the network namespace. Drawn where the system does
    /// not say: nobody else is there then.
    pub place: String,
    pub runtime: Handle,
    pub pool: BufPool,
    /// `inbound_bytes_max` in units of 4 KiB.
    pub inbound_share: Arc<Semaphore>,
    /// When a request last had to wait for its share of it; 0: never.
    share_missed_us: AtomicU64,
    /// One placement at a time.
    pub placing: Semaphore,
    transport: RwLock<Transport>,
    /// `shared_max`.
    shares: Arc<Semaphore>,
    /// Whose memory was no good.
    broken: Mutex<Broken>,
    started: Instant,
    ids: AtomicU64,
    /// Calls that must take effect once and have not ended, to whatever peer: the lowest is told as settled.
    /// Of the whole endpoint, because a peer may be reached by more than one group.
    unsettled: Mutex<BTreeSet<u64>>,
    random: AtomicU64,
    session: AtomicU64,
    epoch: AtomicU64,
    local: Vec<SocketAddr>,
    accepted: AtomicUsize,
    /// Handshakes that came to nothing.
    pub refused: AtomicU64,
    /// Connections on which something else came than the peer had sealed.
    pub tampered: AtomicU64,
    /// Members whose certificates are worth nothing any more, by rising number.
    shut_out: RwLock<Vec<MemberId>>,
    /// What people call the others.
    pub names: Names,
    conns_max: AtomicU8,
    conns_auto: AtomicBool,
    /// `Transfer::Fetch` is in force.
    fetch: AtomicBool,
    inline_write_max: AtomicUsize,
    pub call_times: CallTimes,
}

impl Core {
    pub(crate) fn new(
        config: EndpointConfig,
        identity: Identity,
        runtime: Handle,
        local: Vec<SocketAddr>,
    ) -> Arc<Core> {
        let process = RandomState::new().build_hasher().finish().max(1);
        Arc::new(Core {
            pool: BufPool::new(config.pool_idle_bytes_max),
            inbound_share: Arc::new(Semaphore::new(share_units(config.inbound_bytes_max) as usize)),
            share_missed_us: AtomicU64::new(0),
            process,
            identity: RwLock::new(identity),
            dropped_authorities: AtomicBool::new(false),
            changing: Mutex::default(),
            cipher_list: RwLock::new((config.cipher_list, 0)),
            place: place().unwrap_or_else(|| format!("{process:x}")),
            runtime,
            placing: Semaphore::new(1),
            transport: RwLock::new(config.transport),
            shares: Arc::new(Semaphore::new(config.shared_max.min(Semaphore::MAX_PERMITS))),
            broken: Mutex::default(),
            started: Instant::now(),
            ids: AtomicU64::new(1),
            unsettled: Mutex::default(),
            random: AtomicU64::new(process | 1),
            session: AtomicU64::new(config.session.0),
            epoch: AtomicU64::new(0),
            local,
            accepted: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            tampered: AtomicU64::new(0),
            shut_out: RwLock::default(),
            names: Names::default(),
            conns_max: AtomicU8::new(config.conns_max),
            conns_auto: AtomicBool::new(config.conns_auto),
            fetch: AtomicBool::new(config.transfer == Transfer::Fetch),
            inline_write_max: AtomicUsize::new(config.inline_write_max),
            call_times: CallTimes::new(),
            config,
        })
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

    pub(crate) fn set_session(&self, session: SessionId) {
        self.session.store(session.0, Ordering::Relaxed);
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        self.epoch.store(epoch.0, Ordering::Relaxed);
    }

    /// A request has to wait for its share of `inbound_bytes_max`.
    pub(crate) fn share_missed(&self) {
        self.share_missed_us.store(self.now_us(), Ordering::Relaxed);
    }

    /// When one last had to; 0: never.
    pub(crate) fn share_missed_us(&self) -> u64 {
        self.share_missed_us.load(Ordering::Relaxed)
    }

    /// What this process proves itself by.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Identity and cipher list change by whoever holds this.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Gives the one before.
    pub(crate) fn set_identity(&self, identity: Identity) -> Identity {
        let mut place = self.identity.write().unwrap_or_else(|e| e.into_inner());
        if place.believed().iter().any(|one| !identity.believed().contains(one)) {
            self.dropped_authorities.store(true, Ordering::Relaxed);
        }
        std::mem::replace(&mut place, identity)
    }

    /// Whether connections may stand whose peers' certificates are of an authority that is believed no more.
    pub(crate) fn has_dropped_authorities(&self) -> bool {
        self.dropped_authorities.load(Ordering::Relaxed)
    }

    /// How new connections are protected; the number tells this choice from earlier ones.
    pub(crate) fn cipher_list(&self) -> (CipherList, u64) {
        *self.cipher_list.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Another choice; the identity follows.
    pub(crate) fn set_cipher_list(&self, list: CipherList) {
        let mut chosen = self.cipher_list.write().unwrap_or_else(|e| e.into_inner());
        *chosen = (list, chosen.1 + 1);
    }

    /// Whether a connection that was made for that choice is protected as the present one says, as far as the peer lets it.
    pub(crate) fn is_outdated(
        &self,
        choice: u64,
        protection: Protection,
        cipher: Option<CipherList>,
    ) -> bool {
        let (list, now) = self.cipher_list();
        choice != now
            && match list {
                CipherList::Empty => protection != Protection::Empty,
                CipherList::AuthOnly => protection != Protection::AuthOnly,
                CipherList::Default => protection != Protection::Encrypted,
                named => protection != Protection::Encrypted || cipher != Some(named),
            }
    }

    /// Whether a member's certificate is worth nothing any more.
    pub(crate) fn is_shut_out(&self, member: MemberId) -> bool {
        self.shut_out.read().unwrap_or_else(|e| e.into_inner()).binary_search(&member).is_ok()
    }

    /// These are shut out from now on, beside those that are; false: all of them were already.
    pub(crate) fn shut_out(&self, members: &[MemberId]) -> bool {
        if members.iter().all(|member| self.is_shut_out(*member)) {
            return false;
        }
        let mut all = self.shut_out.write().unwrap_or_else(|e| e.into_inner());
        all.extend_from_slice(members);
        all.sort();
        all.dedup();
        true
    }

    /// The addresses listened on.
    pub(crate) fn local(&self) -> &[SocketAddr] {
        &self.local
    }

    pub(crate) fn advertised(&self) -> &[SocketAddr] {
        if self.config.advertise.is_empty() { &self.local } else { &self.config.advertise }
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

    /// A connection that a peer made has begun, or has ended.
    pub(crate) fn count_accepted(&self, begun: bool) {
        if begun {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        } else {
            self.accepted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn accepted_count(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn conns_max(&self) -> u8 {
        self.conns_max.load(Ordering::Relaxed)
    }

    /// A new `conns_max`, found by measuring if `auto`; false: it is that already.
    pub(crate) fn set_conns(&self, n: u8, auto: bool) -> bool {
        let before = (self.conns_max(), self.conns_auto.swap(auto, Ordering::Relaxed));
        self.conns_max.store(n, Ordering::Relaxed);
        before != (n, auto)
    }

    pub(crate) fn transport(&self) -> Transport {
        *self.transport.read().unwrap_or_else(|e| e.into_inner())
    }

    /// False: it is that already.
    pub(crate) fn set_transport(&self, transport: Transport) -> bool {
        let mut now = self.transport.write().unwrap_or_else(|e| e.into_inner());
        std::mem::replace(&mut *now, transport) != transport
    }

    /// Whether a connection between these two addresses may go by memory of both ends.
    pub(crate) fn may_share(&self, own: IpAddr, peer: IpAddr) -> bool {
        let [own, peer] = [own, peer].map(|ip| ip.to_canonical());
        match self.transport() {
            Transport::Auto => own == peer || own.is_loopback() && peer.is_loopback(),
            Transport::Tcp => false,
            Transport::Shm => true,
        }
    }

    /// A place among the connections that go by memory, with that process.
    pub(crate) fn share_with(&self, process: Process) -> Option<OwnedSemaphorePermit> {
        let is_broken = self.broken.lock().unwrap_or_else(|e| e.into_inner()).has(process);
        if is_broken { None } else { Arc::clone(&self.shares).try_acquire_owned().ok() }
    }

    /// What that process wrote into memory of both was no good: TCP from now on.
    pub(crate) fn share_no_more(&self, process: Process) {
        self.broken.lock().unwrap_or_else(|e| e.into_inner()).note(process);
    }

    pub(crate) fn set_transfer(&self, transfer: Transfer, inline_max: usize) {
        self.fetch.store(transfer == Transfer::Fetch, Ordering::Relaxed);
        self.inline_write_max.store(inline_max, Ordering::Relaxed);
    }

    /// Whether the payload of a request is fetched by the peer.
    pub(crate) fn is_fetched(&self, len: usize) -> bool {
        self.fetch.load(Ordering::Relaxed) && len > self.inline_write_max.load(Ordering::Relaxed)
    }

    /// Whether groups find their number of connections themselves.
    pub(crate) fn conns_auto(&self) -> bool {
        self.conns_auto.load(Ordering::Relaxed)
    }
}
