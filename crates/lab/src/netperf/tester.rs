//! The client side of a test: endpoints, tester tasks, what they count.
//!
//! A message counts when it ends within the counted time. A tester has one message under way; one that fails
//! is counted as an error and not repeated (the transport has done that where it could).

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use base::{AlignedBuf, InodeNo, OpClass};
use bytes::Bytes;
use net::{
    Call, ConnState, Endpoint, EndpointConfig, Lane, Payload, Peer, Placement, Reply, Service, Transfer,
};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::{sync::Notify, task::JoinSet};

use super::{
    endpoint::endpoint_config,
    error::NetperfError,
    message::{Data, INLINE_MAX, op},
    payload::{Message, Pattern, check},
    result::{ClientResult, Connection},
    spec::{Kind, NOT_SHARED, Parallel, Spec, Transporting},
    times::Times,
};

/// One message; longer ones than this are errors.
const MESSAGE_MAX: Duration = Duration::from_secs(60);
/// All connections stand after this, or the test does not begin.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// After an error a tester waits this long, and after so many in a row it gives up.
const ERROR_PAUSE: Duration = Duration::from_millis(20);
const ERRORS_IN_A_ROW_MAX: u32 = 200;
/// Entries of the time line.
const INTERVALS_MAX: u32 = 1000;

/// CPU time of this process so far, in seconds.
pub(crate) fn process_cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// A client that is connected and can be started once.
pub(super) struct Client {
    spec: Spec,
    endpoints: Vec<Endpoint>,
    /// For each tester: the servers it visits, in turn.
    routes: Vec<Vec<Peer>>,
    pattern: Pattern,
    shared: Shared,
}

/// What testers count while others look.
#[derive(Default)]
struct Shared {
    bytes: AtomicU64,
    messages: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
    timeline: Vec<AtomicU64>,
    stopped: AtomicBool,
    stop: Notify,
}

impl Shared {
    fn failed(&self, reason: impl FnOnce() -> String) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.first_error.lock().get_or_insert_with(reason);
    }
}

impl Client {
    /// Connects to all servers, each given by all its addresses.
    pub async fn connect(spec: Spec, servers: &[Vec<SocketAddr>]) -> Result<Client, NetperfError> {
        spec.check()?;
        if servers.is_empty() {
            return Err(NetperfError::NoServer);
        }
        let fetched = spec.kind == Kind::Nwrite;
        let pattern = Pattern::new(spec.buffsize);
        let pattern = if fetched { pattern.into_payload() } else { pattern };
        let config = endpoint_config()?;
        let start = |parallel: Parallel| {
            Endpoint::start(EndpointConfig {
                conns_max: parallel.most(),
                conns_auto: parallel == Parallel::Auto,
                dispatch: spec.dispatch.into(),
                placement: if spec.place { Placement::Probe } else { Placement::Off },
                transfer: if fetched { Transfer::Fetch } else { Transfer::Push },
                inline_write_max: 0,
                transport: spec.transport.into(),
                cipher_list: spec.cipher_list,
                ..config.clone()
            })
        };
        let (mut endpoints, mut routes, mut all) = (Vec::new(), Vec::new(), Vec::new());
        if spec.per_connection() {
            for i in 0..spec.connections as usize {
                let endpoint = start(Parallel::Fixed(1))?;
                let peer = endpoint.peer(&servers[i % servers.len()]);
                let under_way = if spec.kind == Kind::Stream { spec.threads } else { 1 };
                routes.extend((0..under_way).map(|_| vec![peer.clone()]));
                all.push(peer);
                endpoints.push(endpoint);
            }
        } else {
            let endpoint = start(spec.parallel)?;
            let peers: Vec<Peer> = servers.iter().map(|s| endpoint.peer(s)).collect();
            let pinned = matches!(spec.kind, Kind::Swrite | Kind::Sread);
            for i in 0..spec.threads as usize {
                let mut route = peers.clone();
                route.rotate_left(i % peers.len());
                route.truncate(if pinned { 1 } else { peers.len() });
                routes.push(route);
            }
            all = peers;
            endpoints.push(endpoint);
        }
        let entries = spec.ttime.as_secs_f64() / interval(&spec).as_secs_f64();
        let timeline = (0..entries.ceil() as usize).map(|_| AtomicU64::new(0)).collect();
        let client =
            Client { spec, endpoints, routes, pattern, shared: Shared { timeline, ..Shared::default() } };
        client.open(all).await?;
        Ok(client)
    }

    /// Opens every connection by a first small message, and waits until all stand.
    async fn open(&self, peers: Vec<Peer>) -> Result<(), NetperfError> {
        let deadline = Instant::now() + CONNECT_MAX;
        let mut first = JoinSet::new();
        for peer in peers {
            let message = Pattern::new(1).message(0, false);
            first.spawn(async move {
                let result = peer.call(call(op::ECHO, message, deadline)).await;
                result.map_err(|source| NetperfError::Server { server: name(&peer), source })
            });
        }
        while let Some(result) = first.join_next().await {
            result.map_err(|_| NetperfError::Stopped)??;
        }
        loop {
            let status: Vec<_> = self.endpoints.iter().flat_map(Endpoint::status).collect();
            let lacking = status.iter().find(|p| {
                let bulk = |c: &&net::ConnStatus| c.lane == Lane::Bulk && c.state == ConnState::Active;
                p.connections.iter().filter(bulk).count() < usize::from(p.conns_wanted)
            });
            let Some(peer) = lacking else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(NetperfError::Connections {
                    server: peer.name.clone(),
                    wanted: peer.conns_wanted,
                    reason: peer.last_error.clone().unwrap_or_else(|| "no reason given".to_owned()),
                });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// (bytes, messages, errors) so far, from the start.
    pub fn progress(&self) -> (u64, u64, u64) {
        let n = |a: &AtomicU64| a.load(Ordering::Relaxed);
        (n(&self.shared.bytes), n(&self.shared.messages), n(&self.shared.errors))
    }

    /// Ends a running test at once.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.stop.notify_waiters();
    }

    /// Runs the test from `start` on. `None`: it was stopped.
    pub async fn run(self: Arc<Self>, start: Instant) -> Option<ClientResult> {
        let (from, to) = self.spec.counted();
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let started = since_1970 + start.saturating_duration_since(Instant::now());
        let mut testers = JoinSet::new();
        for i in 0..self.routes.len() {
            let client = Arc::clone(&self);
            testers.spawn(async move {
                // Made before looking: a stop between looking and waiting is not missed.
                let stop = client.shared.stop.notified();
                if client.shared.stopped.load(Ordering::Acquire) {
                    return None;
                }
                // Both are safe to cancel: a call that is dropped tells its server.
                tokio::select! {
                    counted = client.test(i, start) => Some(counted),
                    () = stop => None,
                }
            });
        }
        let cpu = async {
            tokio::time::sleep_until((start + from).into()).await;
            let before = process_cpu_seconds();
            tokio::time::sleep_until((start + to).into()).await;
            process_cpu_seconds() - before
        };
        // Safe to cancel: it only waits and looks at a clock.
        let cpu_seconds = tokio::select! {
            cpu = cpu => cpu,
            () = self.stopped() => 0.0,
        };
        let mut result = ClientResult {
            seconds: (to - from).as_secs_f64(),
            cpu_seconds,
            interval: interval(&self.spec).as_secs_f64(),
            started: started.as_secs_f64(),
            ..ClientResult::default()
        };
        while let Some(counted) = testers.join_next().await {
            let counted = counted.ok().flatten()?;
            result.bytes += counted.messages * u64::from(self.spec.buffsize);
            result.messages += counted.messages;
            result.delay.merge(&counted.delay);
            result.block.merge(&counted.block);
        }
        result.errors = self.shared.errors.load(Ordering::Relaxed);
        result.first_error = self.shared.first_error.lock().clone();
        result.timeline = self.shared.timeline.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        for peer in self.endpoints.iter().flat_map(Endpoint::status) {
            result.replaced += peer.replaced;
            let placed = peer.rails.iter().filter_map(|r| r.placement.as_ref().map(|p| (r.addr, p)));
            result.placement.extend(placed.map(|(addr, p)| format!("{addr}: {}", p.reason)));
            let bulk = peer.connections.iter().filter(|c| c.lane == Lane::Bulk);
            if self.spec.transport == Transporting::Shm && bulk.clone().any(|c| c.transport != "shm") {
                result.placement.push(format!("{}: {NOT_SHARED}", peer.name));
            }
            result.connections.extend(bulk.map(|c| Connection {
                local: c.local.to_string(),
                remote: c.remote.to_string(),
                sent: c.bytes_sent,
                received: c.bytes_received,
                links: c.path.as_ref().map(|p| (p.out.to_string(), p.back.to_string())),
                retransmits: c.tcp.as_ref().map_or(0, |t| t.retransmits.into()),
            }));
        }
        Some(result)
    }

    async fn stopped(&self) {
        loop {
            let stop = self.shared.stop.notified();
            if self.shared.stopped.load(Ordering::Acquire) {
                return;
            }
            stop.await;
        }
    }

    /// One tester.
    async fn test(&self, i: usize, start: Instant) -> Counted {
        let (from, to) = self.spec.counted();
        let (from, to, end) = (start + from, start + to, start + self.spec.ttime);
        let reads = match self.spec.kind {
            Kind::Read | Kind::Sread => true,
            Kind::Rw => i.is_multiple_of(2),
            _ => false,
        };
        let mut counted = Counted::default();
        let mut page = None;
        let mut failed_in_a_row = 0;
        tokio::time::sleep_until(start.into()).await;
        for n in 0.. {
            let begun = Instant::now();
            if begun >= end {
                break;
            }
            let peer = &self.routes[i][n as usize % self.routes[i].len()];
            let result = self.message(peer, reads, (i, n), &mut page).await;
            let now = Instant::now();
            match result {
                Ok(rtt) => {
                    failed_in_a_row = 0;
                    self.count(now.saturating_duration_since(start));
                    if (from..to).contains(&now) {
                        counted.messages += 1;
                        counted.delay.record(rtt);
                        counted.block.record(now - begun);
                    }
                }
                Err(reason) => {
                    self.shared.failed(|| format!("{}: {reason}", name(peer)));
                    failed_in_a_row += 1;
                    if failed_in_a_row >= ERRORS_IN_A_ROW_MAX {
                        break;
                    }
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
            }
        }
        counted
    }

    fn count(&self, since_start: Duration) {
        let size = self.spec.buffsize.into();
        self.shared.bytes.fetch_add(size, Ordering::Relaxed);
        self.shared.messages.fetch_add(1, Ordering::Relaxed);
        let i = (since_start.as_secs_f64() / interval(&self.spec).as_secs_f64()) as usize;
        if let Some(entry) = self.shared.timeline.get(i) {
            entry.fetch_add(size, Ordering::Relaxed);
        }
    }

    /// One message there and back; the network's part of its time.
    async fn message(
        &self,
        peer: &Peer,
        reads: bool,
        (tester, n): (usize, u64),
        page: &mut Option<AlignedBuf>,
    ) -> Result<Duration, String> {
        let (size, verify) = (self.spec.buffsize, self.spec.verify);
        let deadline = Instant::now() + MESSAGE_MAX;
        let head = || Message { body: Data { size, verify, crc: 0 }.encode(&[]), payload: Bytes::new() };
        let call = match self.spec.kind {
            _ if reads => Call {
                into: (size as usize > INLINE_MAX).then(|| {
                    let page = page.take().unwrap_or_else(|| AlignedBuf::zeroed(size as usize));
                    Box::new(page) as net::Destination
                }),
                ..call(op::READ, head(), deadline)
            },
            Kind::Rr => call(op::ECHO, self.pattern.message(n, verify), deadline),
            _ => call(op::WRITE, self.pattern.message(n, verify), deadline),
        };
        // By which pinned dispatch chooses the connection.
        let call = Call { inode: InodeNo(tester as u64), ..call };
        let Reply { body, payload, rtt, .. } = peer.call(call).await.map_err(|e| e.to_string())?;
        if reads || self.spec.kind == Kind::Rr {
            let (data, inline) = Data::decode(&body).ok_or("an answer that is none")?;
            match payload {
                net::ReplyPayload::Received { .. } => {
                    let (buffer, len) = payload.downcast::<AlignedBuf>().ok_or("another buffer came back")?;
                    check(data, inline, &buffer[..len])?;
                    *page = Some(buffer);
                }
                other => check(data, inline, &other.into_bytes())?,
            }
        }
        Ok(rtt)
    }
}

/// What one tester counted.
#[derive(Default)]
struct Counted {
    messages: u64,
    delay: Times,
    block: Times,
}

fn interval(spec: &Spec) -> Duration {
    (spec.ttime / INTERVALS_MAX).max(Duration::from_millis(100))
}

fn name(peer: &Peer) -> String {
    peer.addrs().iter().map(|a| a.to_string()).collect::<Vec<_>>().join(",")
}

/// A data request.
fn call(op: u8, message: Message, deadline: Instant) -> Call {
    Call {
        class: OpClass::Lab,
        lane: Lane::Bulk,
        payload: Payload::from(message.payload),
        // Sent twice it has the same effect.
        idempotent: true,
        ..Call::new(Service::Lab, op, message.body, deadline)
    }
}
