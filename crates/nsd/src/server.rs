//! The server: registers, keeps lease and map, admits requests, runs catch-up and repair of its pdisks.
//! Serves only under a lease and with the map loaded; without the manager its lease runs out by itself.
//!
//! The lease is looked at when a request comes and once more when its answer is ready: a server that was stopped in between
//! says `NoLease`, whatever it did or read. Between that look and the sending it can be stopped as well, and nothing here can see
//! it. That answer then counts for nothing where it arrives: its reader or writer held the token from before the question to the
//! answer, so that nobody else changed these bytes meanwhile, or has lost its session and is told so when it uses what it read;
//! and a writer counts a pdisk's answer only while the map says of the pdisk what it said at the question.
//!
//! Nobody waits here for a disk longer than its caller does: a request whose caller has given up is answered, and goes on by
//! itself with its pass ([`crate::gate`]) until the disk has answered.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{
    Epoch, GroupId, NodeId, OpClass, PdiskId, PoolId, SessionId, StripeId, presence::boot_time,
    tunables::Tunables,
};
use bytes::Bytes;
use net::{BoxFuture, Endpoint, Handler, Request, Response, Role, Service, Status};
use pdisk::Payload;
use stripe::{
    ClusterView, LinkError, ManagerLink, Membership, NetTransport, Registered, Registrar, RegistrarError,
    StripeIo,
};
use tokio::{sync::watch, task::JoinHandle};
use wire::{
    frame::{self, Header},
    mgr::{LogMark, MgrError, MgrReply, MgrRequest, PdiskReport, ProcessIdent},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{ReadStrip, StripRead},
    version::LEVEL_FLUSHED_TOGETHER,
};

use crate::{
    cache::{Cache, CacheUse},
    catchup::CatchUp,
    config::{ServedPdisk, ServerConfig},
    error::ServerError,
    fill::Fill,
    gate::{BeginLife, Gate, Pass},
    inbound::Inbound,
    leftovers::Leftovers,
    ops::{self, Found},
    pace::Pace,
    permits::Permits,
    progress::Progress,
    records::Records,
    repair::Repairs,
    scrub::{Page, Scrub},
    statistics::{self, Statistics},
    status::{PdiskStatus, ServerStatus},
};

/// One attempt to register.
const REGISTER_ATTEMPT: Duration = Duration::from_secs(5);

/// A running NSD server. Stops when the last handle goes, or with [`Server::stop`].
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
    tasks: Arc<Tasks>,
}

struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

struct Inner {
    served: HashMap<PdiskId, ServedPdisk>,
    membership: Membership,
    gate: Arc<Gate>,
    permits: Permits,
    inbound: Inbound,
    catch_up: HashMap<PdiskId, Arc<CatchUp>>,
    repairs: Arc<Repairs>,
    scrub: Arc<Scrub>,
    pace: Arc<Pace>,
    map_wait: Duration,
    statistics: Statistics,
    cache: Cache,
}

/// What this server says of itself to the manager.
struct NodeRegistrar {
    node: NodeId,
    process: ProcessIdent,
    addrs: Vec<String>,
    served: Vec<ServedPdisk>,
    progress: HashMap<PdiskId, Arc<Progress>>,
    pace: Arc<Pace>,
}

/// What the manager has on record of the logs of these pdisks: their registration must show that it is still there.
async fn ask_marks(link: &dyn ManagerLink, served: &[ServedPdisk]) -> Result<Vec<LogMark>, RegistrarError> {
    let request = MgrRequest::LogMarks { pdisks: served.iter().map(|served| served.id).collect() };
    let deadline = Instant::now() + REGISTER_ATTEMPT;
    match link.call(SessionId(0), Epoch(0), request, deadline).await {
        Ok(MgrReply::LogMarks(marks)) if marks.len() == served.len() => Ok(marks),
        Ok(_) => Err(RegistrarError::Fatal(LinkError::Protocol)),
        Err(error) => Err(RegistrarError::Retry(error)),
    }
}

impl Registrar for NodeRegistrar {
    fn register(&self, link: Arc<dyn ManagerLink>) -> BoxFuture<'static, Result<Registered, RegistrarError>> {
        let (node, process, addrs) = (self.node, self.process.clone(), self.addrs.clone());
        let (mut pdisks, served) = (self.reports(), self.served.clone());
        Box::pin(async move {
            let recorded = ask_marks(&*link, &served).await?;
            for ((report, served), recorded) in pdisks.iter_mut().zip(&served).zip(recorded) {
                report.proved = served.pdisk.mark_at(recorded.position);
            }
            let request = MgrRequest::RegisterServer { node, process, addrs, pdisks };
            let (sent, deadline) = (boot_time(), Instant::now() + REGISTER_ATTEMPT);
            match link.call(SessionId(0), Epoch(0), request, deadline).await {
                Ok(MgrReply::Registered { session, lease_us, map, .. }) => {
                    // What was reported is on record now, durably.
                    served.iter().for_each(|served| served.pdisk.confirm_marks());
                    Ok(Registered { session, sent, lease: Duration::from_micros(lease_us), map: *map })
                }
                Ok(_) => Err(RegistrarError::Fatal(LinkError::Protocol)),
                Err(error @ LinkError::Refused(MgrError::Pdisk { .. } | MgrError::Config(_))) => {
                    Err(RegistrarError::Fatal(error))
                }
                Err(error) => Err(RegistrarError::Retry(error)),
            }
        })
    }

    fn reports(&self) -> Vec<PdiskReport> {
        let report = |served: &ServedPdisk| {
            let stats = served.pdisk.stats();
            let report = PdiskReport {
                id: served.id,
                incarnation: stats.incarnation,
                log: served.pdisk.mark(),
                capacity: stats.capacity,
                free: stats.room(),
                failed: stats.failed.is_some(),
                client_us: self.pace.client_us(),
                ..PdiskReport::default()
            };
            match self.progress.get(&served.id) {
                Some(progress) => progress.report(report),
                None => report,
            }
        };
        self.served.iter().map(report).collect()
    }
}

impl Server {
    /// Registers at the manager and serves on `endpoint`.
    pub async fn start(endpoint: &Endpoint, config: ServerConfig) -> Result<Server, ServerError> {
        let ServerConfig { node, process, addrs, pdisks, manager, mut membership, io, tuning } = config;
        let mut served = HashMap::new();
        for pdisk in &pdisks {
            if served.insert(pdisk.id, pdisk.clone()).is_some() {
                return Err(ServerError::Twice { pdisk: pdisk.id });
            }
        }
        let progress: HashMap<_, _> = pdisks.iter().map(|p| (p.id, Arc::<Progress>::default())).collect();
        let pace = Arc::new(Pace::new());
        let registrar = Arc::new(NodeRegistrar {
            node,
            process,
            addrs,
            served: pdisks.clone(),
            progress: progress.clone(),
            pace: Arc::clone(&pace),
        });
        membership.in_force_by_owner = true;
        let membership =
            Membership::start(manager, registrar, membership).await.map_err(ServerError::Register)?;
        let lives =
            pdisks.iter().cloned().map(|p| (p.id, Box::new(move || p.pdisk.begin_life()) as BeginLife));
        let gate = Arc::new(Gate::new(membership.view(), lives.collect()));
        let transport = Arc::new(NetTransport::new(endpoint.clone()));
        let stripes = StripeIo::new(
            transport,
            membership.views(),
            membership.session_cell(),
            membership.reporter(),
            io,
        );
        let (repairs, queues) = Repairs::new(tuning.repair_queue_max, &pdisks);
        let (map_wait, cache_bytes) = (tuning.map_wait, tuning.cache_bytes);
        let records = Arc::new(Records::new(membership.clone()));
        let mut catch_up = HashMap::new();
        let mut tasks = Vec::new();
        for pdisk in &pdisks {
            let progress = progress.get(&pdisk.id).cloned().unwrap_or_default();
            let maker = || {
                Arc::new(CatchUp::new(
                    pdisk.clone(),
                    stripes.clone(),
                    membership.clone(),
                    tuning.clone(),
                    Arc::clone(&pace),
                    Arc::clone(&progress),
                ))
            };
            let one = maker();
            tasks.push(tokio::spawn(Arc::clone(&one).run()));
            catch_up.insert(pdisk.id, one);
            let sweeping = Arc::default();
            let fill = Fill::new(maker(), membership.clone(), Arc::clone(&sweeping));
            tasks.push(tokio::spawn(fill.run()));
            let (io, records) = (stripes.clone(), Arc::clone(&records));
            let leftovers = Leftovers::new(pdisk.clone(), io, records, membership.clone(), sweeping);
            tasks.push(tokio::spawn(leftovers.run()));
        }
        let ids = served.keys().copied().collect();
        let scrub = Arc::new(Scrub::new(stripes.clone(), Arc::clone(&records), Arc::clone(&pace), ids));
        tasks.push(tokio::spawn(Arc::clone(&scrub).run(membership.clone())));
        for queue in queues {
            let run = Arc::clone(&repairs).run(queue, stripes.clone(), Arc::clone(&records));
            tasks.push(tokio::spawn(run));
        }
        let inbound = Inbound::new(endpoint.inbound_bytes_max() as u64, served.keys().copied());
        let permits = Permits::new(membership.clone());
        let inner = Arc::new(Inner {
            served,
            membership,
            gate,
            permits,
            inbound,
            catch_up,
            repairs,
            scrub,
            pace,
            map_wait,
            statistics: Statistics::new(),
            cache: Cache::default(),
        });
        inner.cache.resize(cache_bytes);
        let following = (Arc::clone(&inner.gate), inner.membership.clone());
        tasks.push(tokio::spawn(async move { following.0.follow(following.1).await }));
        tasks.push(tokio::spawn(follow_level(pdisks.clone(), inner.membership.views())));
        endpoint.serve(Service::Nsd, Arc::new(Requests(Arc::clone(&inner))));
        for pdisk in &pdisks {
            pdisk.damaged.iter().for_each(|strip| inner.repairs.found(pdisk.id, *strip));
        }
        Ok(Server { inner, tasks: Arc::new(Tasks(tasks)) })
    }

    /// Session, lease and map.
    pub fn membership(&self) -> &Membership {
        &self.inner.membership
    }

    /// Changes the memory that strips are cached in, bytes; 0 turns it off.
    pub fn resize_cache(&self, bytes: u64) {
        self.inner.cache.resize(bytes);
    }

    /// How fast rebuild and scrub go from now on.
    pub fn set_pace(&self, tunables: &Tunables) {
        self.inner.pace.set(tunables);
    }

    /// What is cached of strips.
    pub fn cache_use(&self) -> CacheUse {
        self.inner.cache.usage()
    }

    /// Requests that a pdisk has not answered, those included whose callers have given up; and the most there may be.
    pub fn requests_of(&self, pdisk: PdiskId) -> (u64, u64) {
        self.inner.inbound.requests(pdisk)
    }

    /// What it is and does now.
    pub fn status(&self) -> ServerStatus {
        let view = self.inner.membership.view();
        let one = |(id, served): (&PdiskId, &ServedPdisk)| {
            let stats = served.pdisk.stats();
            PdiskStatus {
                id: *id,
                state: view.state(*id).name(),
                capacity: stats.capacity,
                free: stats.free,
                strips: stats.strips,
                prepared: stats.prepared,
                failed: stats.failed,
                catch_up: self.inner.catch_up.get(id).and_then(|c| c.status()),
            }
        };
        let mut pdisks: Vec<_> = self.inner.served.iter().map(one).collect();
        pdisks.sort_by_key(|p| p.id);
        ServerStatus {
            session: self.inner.membership.session(),
            epoch: view.epoch(),
            lease: self.inner.membership.lease_valid(),
            pdisks,
            repair: self.inner.repairs.status(),
        }
    }

    /// Reads and proves up to `limit` stripes of a group after `after`.
    pub async fn prove(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripeId>,
        limit: u32,
        repair: bool,
    ) -> Result<Page, String> {
        self.inner.scrub.page(pool, group, after, limit, repair).await
    }

    /// Whether blocks of a pool can be read from the strips in reach; the first 256 of them.
    pub async fn readable(&self, pool: PoolId, stripes: &[StripeId]) -> Result<Vec<bool>, String> {
        self.inner.scrub.readable(pool, stripes).await
    }

    /// Ends catch-up, repair and renewing. The pdisks stay open: they are the owner's to close.
    pub fn stop(&self) {
        self.tasks.0.iter().for_each(JoinHandle::abort);
        self.inner.membership.stop();
    }
}

/// How pdisks write follows what every build of the cluster can read.
async fn follow_level(pdisks: Vec<ServedPdisk>, mut views: watch::Receiver<Arc<ClusterView>>) {
    loop {
        let together = views.borrow_and_update().map.level >= LEVEL_FLUSHED_TOGETHER;
        pdisks.iter().for_each(|served| served.pdisk.flush_together(together));
        if views.changed().await.is_err() {
            return;
        }
    }
}

struct Requests(Arc<Inner>);

impl Handler for Requests {
    fn handle(&self, request: Request) -> BoxFuture<'static, Response> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let expires = request.expires;
            let mut work = Box::pin(inner.answer(request));
            match tokio::time::timeout_at(expires.into(), &mut work).await {
                Ok(response) => response,
                Err(_) => {
                    // The disk has the request, and what is under way is known by its pass: neither may be forgotten.
                    tokio::spawn(work);
                    Response::error(Status::Expired, "the disk has not answered in time")
                }
            }
        })
    }

    fn wants_unit_crcs(&self) -> bool {
        true
    }
}

impl Inner {
    /// The answer to a read, without the disk.
    async fn cached(&self, served: &ServedPdisk, read: &ReadStrip) -> Option<(StripRead, Bytes)> {
        if !self.cache.has(served.id, read.strip) {
            return None;
        }
        let states = served.pdisk.state(vec![read.strip]).await.ok()?;
        self.cache.get(served.id, read, states.first()?)
    }

    /// Whether a session is the peer's own, not one that it has read of in the map.
    fn is_its_session(&self, peer: &net::PeerId, session: SessionId) -> bool {
        self.membership.view().map.is_session_of(session, peer.member, peer.server())
    }

    /// Lets a request in if its session may use the files that it names.
    async fn admit(&self, request: &Request, message: &NsdRequest) -> Result<Pass, NsdRefusal> {
        let Header { session, epoch, .. } = request.header;
        let known = self.permits.check(session, message, request.expires).await?;
        let admit =
            || self.gate.admit(&self.membership, session, epoch, message, self.map_wait, request.expires);
        let pass = admit().await?;
        if known {
            return Ok(pass);
        }
        // It waited for the map that its session begins with, which says what that may do.
        drop(pass);
        match self.permits.check(session, message, request.expires).await? {
            true => admit().await,
            false => Err(NsdRefusal::NoMap),
        }
    }

    async fn answer(self: Arc<Self>, request: Request) -> Response {
        let message: NsdRequest = match frame::decode(&request.body) {
            Ok(message) => message,
            Err(error) => return Response::error(Status::BadRequest, error),
        };
        if let Some(reason) = ops::malformed(&message) {
            return Response::error(Status::BadRequest, reason);
        }
        if Instant::now() >= request.expires || request.is_cancelled() {
            return Response::error(Status::Expired, "nobody waits for it");
        }
        let header = &request.header;
        let busy = || {
            let used_up = "the pdisk's share of requests, of inbound_bytes_max or of replies is used up";
            Response::error(Status::Busy, used_up)
        };
        let Some(mut room) = self.inbound.take(message.pdisk(), request.payload.len() as u64) else {
            return busy();
        };
        // Session 0 stands for the manager at the gate: only the manager may use it.
        if header.session == SessionId(0) && request.peer.role != Role::Manager {
            return Response::ok(frame::encode(&NsdReply::Refused(NsdRefusal::Fenced)));
        }
        let rebuild = matches!(header.class, OpClass::Rebuild | OpClass::Scrub);
        let paced = rebuild && matches!(message, NsdRequest::Read { .. });
        let pass = match self.admit(&request, &message).await {
            Ok(pass) => pass,
            Err(refusal) => return Response::ok(frame::encode(&NsdReply::Refused(refusal))),
        };
        if header.session != SessionId(0) && !self.is_its_session(&request.peer, header.session) {
            return Response::ok(frame::encode(&NsdReply::Refused(NsdRefusal::Fenced)));
        }
        let (pdisk, key) = (message.pdisk(), statistics::key(&request, &message));
        let Some(served) = self.served.get(&pdisk) else {
            return Response::ok(frame::encode(&NsdReply::Refused(NsdRefusal::NoSuchPdisk)));
        };
        if let NsdRequest::Suspect { strip, .. } = &message {
            self.cache.forget(pdisk, *strip);
        }
        let wanted = match &message {
            NsdRequest::Read { read, .. } if !rebuild => Some(read),
            _ => None,
        };
        let strip = wanted.map(|read| read.strip);
        let cached = match wanted {
            Some(read) => self.cached(served, read).await,
            None => None,
        };
        let was_cached = cached.is_some();
        let (reply, payload, found) = match cached {
            Some((read, payload)) => (NsdReply::Read(read), payload, Found::Nothing),
            // What the cache has takes no memory of its own.
            None if !room.for_reply(ops::reply_bytes(&message), rebuild) => return busy(),
            None => {
                let payload =
                    Payload { bytes: request.payload.clone(), unit_crcs: request.unit_crcs.clone() };
                ops::carry_out(&served.pdisk, message, payload).await
            }
        };
        if let (Some(strip), NsdReply::Read(read), false) = (strip, &reply, was_cached) {
            self.cache.put(pdisk, strip, read, &payload);
        }
        drop(pass);
        if let Found::Lost(strip) = found {
            self.repairs.found(pdisk, strip);
        }
        if paced {
            // Afterwards: a request that waits for its turn first is refused then, if a group has moved meanwhile,
            // and has to be paid for again; and one that waits with its pass holds the next map up.
            self.pace.take(pdisk, payload.len() as u64, request.expires).await;
        }
        if !rebuild {
            self.pace.client(request.received);
        }
        self.statistics.done(&key, request.received, request.payload.len(), payload.len());
        if !self.membership.lease_valid() {
            return Response::ok(frame::encode(&NsdReply::Refused(NsdRefusal::NoLease)));
        }
        Response::with_payload(frame::encode(&reply), payload)
    }
}
