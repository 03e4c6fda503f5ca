//! Being part of the cluster: session, lease and map, kept up against a manager that may be restarted.
//!
//! Owns the session, the lease and the current [`ClusterView`]. The lease counts from the sending of the
//! request that renewed it, and only while the map here is at least the one the manager had then: whoever
//! was thought dead learns who was fenced before it serves again. Without the manager the lease runs out by
//! itself; with it back the process renews or registers anew.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use base::{Epoch, PdiskId, SessionId};
use net::{BoxFuture, Call, CallError, Endpoint, Lane, Service};
use thiserror::Error;
use tokio::{sync::watch, task::JoinHandle};
use wire::{
    frame,
    map::ClusterMap,
    mgr::{MgrError, MgrReply, MgrRequest, PdiskReport},
};

use crate::{ClusterView, SessionCell, SilenceReporter};

/// Why the manager did not answer, or not as wished.
#[derive(Debug, Error)]
pub enum LinkError {
    /// Not reached.
    #[error("manager not reached: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer of the manager in time")]
    Timeout,
    /// The manager refused.
    #[error(transparent)]
    Refused(#[from] MgrError),
    /// Not an answer to the question.
    #[error("the manager's answer does not fit the request")]
    Protocol,
}

/// Carries requests to the manager.
pub trait ManagerLink: Send + Sync + 'static {
    /// Sends one request; `Ok` is any reply that is not an error.
    fn call(
        &self,
        session: SessionId,
        epoch: Epoch,
        request: MgrRequest,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>>;
    /// The session and map version now in use.
    fn identify(&self, _session: SessionId, _epoch: Epoch) {}
}

/// Over connection groups.
pub struct NetManager {
    endpoint: Endpoint,
    addrs: Vec<std::net::SocketAddr>,
}

impl NetManager {
    /// The manager at `addrs`.
    pub fn new(endpoint: Endpoint, addrs: Vec<std::net::SocketAddr>) -> NetManager {
        NetManager { endpoint, addrs }
    }
}

impl ManagerLink for NetManager {
    fn call(
        &self,
        session: SessionId,
        epoch: Epoch,
        request: MgrRequest,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let peer = self.endpoint.peer(&self.addrs);
        Box::pin(async move {
            let call = Call {
                lane: Lane::Control,
                session,
                epoch,
                idempotent: request.is_idempotent(),
                ..Call::new(Service::Manager, 0, frame::encode(&request), deadline)
            };
            let reply = peer.call(call).await.map_err(|error| match error {
                CallError::Deadline => LinkError::Timeout,
                other => LinkError::Unreachable(other.to_string()),
            })?;
            match frame::decode(&reply.body).map_err(|_| LinkError::Protocol)? {
                MgrReply::Error(error) => Err(LinkError::Refused(error)),
                reply => Ok(reply),
            }
        })
    }

    fn identify(&self, session: SessionId, epoch: Epoch) {
        self.endpoint.set_session(session);
        self.endpoint.set_epoch(epoch);
    }
}

/// What a registration gave.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The session.
    pub session: SessionId,
    /// When the request was sent.
    pub sent: Instant,
    /// The lease from then on.
    pub lease: Duration,
    /// The map that includes the registration.
    pub map: ClusterMap,
}

/// Why a registration failed.
#[derive(Debug, Error)]
pub enum RegistrarError {
    /// It is tried again.
    #[error("{0}")]
    Retry(LinkError),
    /// It makes no sense to try again: the process stops.
    #[error("{0}")]
    Fatal(LinkError),
    /// The same, for a reason of the registrar's own.
    #[error("{reason}")]
    Ended {
        /// For a person.
        reason: String,
    },
}

/// How a process becomes part of the cluster: as a server, or as a client.
pub trait Registrar: Send + Sync + 'static {
    /// Registers; called at the start, and again when the manager no longer knows the session.
    fn register(&self, link: Arc<dyn ManagerLink>) -> BoxFuture<'static, Result<Registered, RegistrarError>>;
    /// What a renewal reports (servers).
    fn reports(&self) -> Vec<PdiskReport> {
        Vec::new()
    }
}

/// Times of membership.
#[derive(Clone, Debug)]
pub struct MembershipConfig {
    /// How often the lease is renewed.
    pub renew_interval: Duration,
    /// One long poll for the map.
    pub map_poll: Duration,
    /// Pause before the manager is tried again.
    pub retry_pause: Duration,
    /// How long the first registration is tried.
    pub register_deadline: Duration,
    /// The owner says when a new map is in force ([`Membership::set_in_force`]); otherwise it is at once.
    pub in_force_by_owner: bool,
}

impl Default for MembershipConfig {
    fn default() -> Self {
        MembershipConfig {
            renew_interval: Duration::from_secs(1),
            map_poll: Duration::from_secs(20),
            retry_pause: Duration::from_millis(200),
            register_deadline: Duration::from_secs(60),
            in_force_by_owner: false,
        }
    }
}

/// Session, lease and map of this process. Cheap to clone; the tasks end with [`Membership::stop`] or the
/// last clone.
#[derive(Clone)]
pub struct Membership {
    inner: Arc<Inner>,
    _tasks: Arc<Tasks>,
}

struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

struct Inner {
    link: Arc<dyn ManagerLink>,
    registrar: Arc<dyn Registrar>,
    config: MembershipConfig,
    session: SessionCell,
    views: watch::Sender<Arc<ClusterView>>,
    in_force: watch::Sender<Epoch>,
    lease_until: Mutex<Instant>,
    ended: watch::Sender<Option<String>>,
    /// The owner ends the session itself: that it is gone then is no news.
    leaving: AtomicBool,
    silent: Mutex<HashMap<PdiskId, Instant>>,
}

impl Membership {
    /// Registers and keeps it up.
    pub async fn start(
        link: Arc<dyn ManagerLink>,
        registrar: Arc<dyn Registrar>,
        config: MembershipConfig,
    ) -> Result<Membership, RegistrarError> {
        let until = Instant::now() + config.register_deadline;
        let registered = loop {
            match registrar.register(Arc::clone(&link)).await {
                Ok(registered) => break registered,
                Err(RegistrarError::Retry(error)) if Instant::now() < until => {
                    tracing::info!(%error, "registration is tried again");
                    tokio::time::sleep(config.retry_pause).await;
                }
                Err(error) => return Err(error),
            }
        };
        let view = Arc::new(ClusterView::new(registered.map));
        link.identify(registered.session, view.epoch());
        let inner = Arc::new(Inner {
            link,
            registrar,
            session: SessionCell::new(registered.session),
            in_force: watch::Sender::new(if config.in_force_by_owner { Epoch(0) } else { view.epoch() }),
            config,
            views: watch::Sender::new(view),
            lease_until: Mutex::new(registered.sent + registered.lease),
            ended: watch::Sender::new(None),
            leaving: AtomicBool::new(false),
            silent: Mutex::default(),
        });
        let tasks =
            vec![tokio::spawn(Arc::clone(&inner).keep_lease()), tokio::spawn(Arc::clone(&inner).keep_map())];
        Ok(Membership { inner, _tasks: Arc::new(Tasks(tasks)) })
    }

    /// The map and its changes.
    pub fn views(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.inner.views.subscribe()
    }
    /// The map.
    pub fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.inner.views.borrow())
    }
    /// The session, as it changes.
    pub fn session_cell(&self) -> SessionCell {
        self.inner.session.clone()
    }
    /// The session.
    pub fn session(&self) -> SessionId {
        self.inner.session.get()
    }
    /// Whether the lease holds at `now`.
    pub fn lease_valid(&self, now: Instant) -> bool {
        now < *self.inner.lease_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The map version in force here.
    pub fn in_force(&self) -> watch::Receiver<Epoch> {
        self.inner.in_force.subscribe()
    }
    /// The owner has put a map in force: nothing admitted under an older one is under way.
    pub fn set_in_force(&self, epoch: Epoch) {
        self.inner.in_force.send_if_modified(|e| std::mem::replace(e, epoch.max(*e)) < epoch);
    }
    /// Why membership ended for good, once it has.
    pub fn ended(&self) -> watch::Receiver<Option<String>> {
        self.inner.ended.subscribe()
    }
    /// The way to the manager.
    pub fn link(&self) -> Arc<dyn ManagerLink> {
        Arc::clone(&self.inner.link)
    }
    /// One request to the manager in this session.
    pub async fn call(&self, request: MgrRequest, deadline: Instant) -> Result<MgrReply, LinkError> {
        self.inner.call(request, deadline).await
    }
    /// Reports silent pdisks to the manager, each at most once a second.
    pub fn reporter(&self) -> Arc<dyn SilenceReporter> {
        Arc::clone(&self.inner) as Arc<dyn SilenceReporter>
    }
    /// Renews now, with what there is to report, instead of at the next turn.
    pub async fn renew_now(&self) {
        if let Err(error) = self.inner.renew().await {
            tracing::debug!(%error, "renewal");
        }
    }
    /// The owner is about to end the session. Its lease is kept up until it is gone.
    pub fn leave(&self) {
        self.inner.leaving.store(true, Ordering::Relaxed);
    }
    /// Ends renewing and polling; the lease runs out by itself.
    pub fn stop(&self) {
        self._tasks.0.iter().for_each(JoinHandle::abort);
    }
}

impl SilenceReporter for Inner {
    fn silent(&self, pdisk: PdiskId) {
        let now = Instant::now();
        {
            let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
            silent.retain(|_, at| now.duration_since(*at) < Duration::from_secs(1));
            if silent.insert(pdisk, now).is_some() {
                return;
            }
        }
        let request = MgrRequest::ReportSilent { pdisk };
        let call =
            self.link.call(self.session.get(), self.epoch(), request, now + self.config.renew_interval * 5);
        tokio::spawn(async move {
            if let Err(error) = call.await {
                tracing::debug!(%pdisk, %error, "cannot report a silent pdisk");
            }
        });
    }
}

impl Inner {
    fn epoch(&self) -> Epoch {
        self.views.borrow().epoch()
    }

    async fn call(&self, request: MgrRequest, deadline: Instant) -> Result<MgrReply, LinkError> {
        self.link.call(self.session.get(), self.epoch(), request, deadline).await
    }

    fn install(&self, map: ClusterMap) {
        let epoch = map.epoch;
        let newer = self.views.send_if_modified(|view| {
            let newer = map.epoch > view.epoch();
            if newer {
                *view = Arc::new(ClusterView::new(map));
            }
            newer
        });
        if newer {
            self.link.identify(self.session.get(), epoch);
            if !self.config.in_force_by_owner {
                self.in_force.send_replace(epoch);
            }
        }
    }

    fn set_lease(&self, until: Instant) {
        let mut lease = self.lease_until.lock().unwrap_or_else(PoisonError::into_inner);
        *lease = (*lease).max(until);
    }

    async fn renew(&self) -> Result<(), LinkError> {
        let sent = Instant::now();
        let session = self.session.get();
        let deadline = sent + self.config.renew_interval * 3;
        let request = MgrRequest::Renew { epoch: *self.in_force.borrow(), pdisks: self.registrar.reports() };
        let MgrReply::Renewed { lease_us, epoch } = self.call(request, deadline).await? else {
            return Err(LinkError::Protocol);
        };
        if epoch > self.epoch() {
            // The lease holds only with the map the manager has.
            match self.call(MgrRequest::GetMap, deadline).await? {
                MgrReply::Map(map) => self.install(*map),
                _ => return Err(LinkError::Protocol),
            }
        }
        if epoch <= self.epoch() && session == self.session.get() {
            self.set_lease(sent + Duration::from_micros(lease_us));
        }
        Ok(())
    }

    async fn keep_lease(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.config.renew_interval).await;
            match self.renew().await {
                Ok(()) => {}
                Err(LinkError::Refused(MgrError::NoSession)) if self.leaving.load(Ordering::Relaxed) => {
                    return;
                }
                Err(LinkError::Refused(MgrError::NoSession)) => {
                    tracing::warn!(session = %self.session.get(), "the manager ended this session");
                    *self.lease_until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    if !self.register_again().await {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "lease not renewed"),
            }
        }
    }

    /// False if it ended for good.
    async fn register_again(&self) -> bool {
        loop {
            match self.registrar.register(Arc::clone(&self.link)).await {
                Ok(registered) => {
                    self.session.set(registered.session);
                    self.install(registered.map);
                    self.link.identify(registered.session, self.epoch());
                    self.set_lease(registered.sent + registered.lease);
                    tracing::info!(session = %registered.session, "registered again");
                    return true;
                }
                Err(RegistrarError::Retry(error)) => {
                    tracing::debug!(%error, "registration is tried again");
                    tokio::time::sleep(self.config.retry_pause).await;
                }
                Err(error) => {
                    tracing::error!(%error, "membership has ended");
                    self.ended.send_replace(Some(error.to_string()));
                    return false;
                }
            }
        }
    }

    async fn keep_map(self: Arc<Self>) {
        let mut in_force = self.in_force.subscribe();
        loop {
            // The next poll says what is in force here: not before it is.
            let epoch = self.epoch();
            let wait = in_force.wait_for(|e| *e >= epoch);
            let _ = tokio::time::timeout(self.config.map_poll, wait).await;
            let have = *self.in_force.borrow();
            let deadline = Instant::now() + self.config.map_poll;
            match self.call(MgrRequest::WaitMap { have }, deadline).await {
                Ok(MgrReply::Map(map)) => self.install(*map),
                Ok(_) => {}
                Err(LinkError::Timeout) => {}
                Err(error) => {
                    tracing::debug!(%error, "map not polled");
                    tokio::time::sleep(self.config.retry_pause).await;
                }
            }
        }
    }
}
