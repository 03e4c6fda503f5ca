//! Keeps session, lease and map up.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use base::{Epoch, PdiskId, SessionId, beat, presence::boot_time};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};
use wire::{
    map::ClusterMap,
    mgr::{MgrError, MgrReply, MgrRequest, PdiskReport},
};

use super::{
    in_force::InForce,
    link::{LinkError, ManagerLink},
    registrar::{Registrar, RegistrarError},
};
use crate::{ClusterView, SessionCell, SilenceReporter};

/// Times of membership.
#[derive(Clone, Debug)]
pub struct MembershipConfig {
    /// How often the lease is renewed, until [`Membership::set_renew_interval`] says otherwise; of a lease shorter than four
    /// times this, after a quarter of it.
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

/// How long a renewal may take.
const RENEW_PATIENCE: Duration = Duration::from_secs(3);
/// How long the report of a silent pdisk may take.
const REPORT_PATIENCE: Duration = Duration::from_secs(5);

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
    renew_interval: Mutex<Duration>,
    session: SessionCell,
    views: watch::Sender<Arc<ClusterView>>,
    in_force: watch::Sender<InForce>,
    /// How long the oldest request at each pdisk has been under way.
    oldest: Mutex<BTreeMap<PdiskId, Duration>>,
    lease: Mutex<Lease>,
    /// The lease is to be renewed now.
    renew: Notify,
    ended: watch::Sender<Option<String>>,
    /// The owner ends the session itself: that it is gone then is no news.
    leaving: AtomicBool,
    silent: Mutex<HashMap<PdiskId, Instant>>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// How long it is from its renewal.
    time: Duration,
    /// By [`boot_time`].
    until: Duration,
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
        link.identify(registered.session, &view.map);
        let inner = Arc::new(Inner {
            link,
            registrar,
            session: SessionCell::new(registered.session),
            in_force: watch::Sender::new(InForce {
                admitting: if config.in_force_by_owner { Epoch(0) } else { view.epoch() },
                pdisks: BTreeMap::new(),
            }),
            renew_interval: Mutex::new(config.renew_interval),
            config,
            views: watch::Sender::new(view),
            oldest: Mutex::default(),
            lease: Mutex::new(Lease { time: registered.lease, until: registered.sent + registered.lease }),
            renew: Notify::new(),
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
    /// Whether the lease holds now.
    pub fn lease_valid(&self) -> bool {
        !self.lease_left().is_zero()
    }
    /// How long it holds, if it is not renewed.
    pub fn lease_left(&self) -> Duration {
        self.inner.lease().until.saturating_sub(boot_time())
    }
    /// The map versions in force here.
    pub fn in_force(&self) -> watch::Receiver<InForce> {
        self.inner.in_force.subscribe()
    }
    /// The owner says what is in force. False if that is known.
    pub fn set_in_force(&self, now: InForce) -> bool {
        self.inner.in_force.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        })
    }
    /// The owner says how long the oldest request at each pdisk has been under way.
    pub fn set_oldest(&self, oldest: BTreeMap<PdiskId, Duration>) {
        *self.inner.oldest.lock() = oldest;
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
    /// Has the lease renewed at once, with what there is to report; waits for nothing.
    pub fn renew_soon(&self) {
        self.inner.renew.notify_one();
    }
    /// How often the lease is renewed from now on.
    pub fn set_renew_interval(&self, interval: Duration) {
        *self.inner.renew_interval.lock() = interval;
        self.renew_soon();
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
            let mut silent = self.silent.lock();
            silent.retain(|_, at| now.duration_since(*at) < Duration::from_secs(1));
            if silent.insert(pdisk, now).is_some() {
                return;
            }
        }
        let request = MgrRequest::ReportSilent { pdisk };
        let call = self.link.call(self.session.get(), self.epoch(), request, now + REPORT_PATIENCE);
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
        let newer = self.views.send_if_modified(|view| {
            let newer = map.epoch > view.epoch();
            if newer {
                *view = Arc::new(ClusterView::new(map));
            }
            newer
        });
        if newer {
            let view = self.views.borrow().clone();
            self.link.identify(self.session.get(), &view.map);
            if !self.config.in_force_by_owner {
                self.in_force.send_modify(|now| now.admitting = view.epoch());
            }
        }
    }

    fn lease(&self) -> Lease {
        *self.lease.lock()
    }

    /// A lease of so long, that was asked for at `sent`.
    fn set_lease(&self, sent: Duration, time: Duration) {
        let mut lease = self.lease.lock();
        *lease = Lease { time, until: lease.until.max(sent + time) };
    }

    /// What a renewal reports.
    fn reports(&self, in_force: &InForce) -> Vec<PdiskReport> {
        let mut reports = self.registrar.reports();
        let oldest = self.oldest.lock();
        for report in &mut reports {
            report.in_force = in_force.of(report.id);
            report.oldest_us = oldest.get(&report.id).map_or(0, |time| time.as_micros() as u64);
        }
        drop(oldest);
        reports
    }

    async fn renew(&self) -> Result<(), LinkError> {
        let (sent, session) = (boot_time(), self.session.get());
        let deadline = Instant::now() + RENEW_PATIENCE;
        let in_force = self.in_force.borrow().clone();
        let request = MgrRequest::Renew { epoch: in_force.admitting, pdisks: self.reports(&in_force) };
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
            self.set_lease(sent, Duration::from_micros(lease_us));
        }
        Ok(())
    }

    async fn keep_lease(self: Arc<Self>) {
        loop {
            let pause = (*self.renew_interval.lock()).min(self.lease().time / 4);
            // Safe to cancel: what was wished meanwhile is kept.
            let next = beat::by(Instant::now(), pause);
            let _ = tokio::time::timeout_at(next.into(), self.renew.notified()).await;
            match self.renew().await {
                Ok(()) => {}
                Err(LinkError::Refused(MgrError::NoSession)) if self.leaving.load(Ordering::Relaxed) => {
                    return;
                }
                Err(LinkError::Refused(MgrError::NoSession)) => {
                    tracing::warn!(session = %self.session.get(), "the manager ended this session");
                    self.lease.lock().until = Duration::ZERO;
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
                    self.link.identify(registered.session, &self.views.borrow().map);
                    self.set_lease(registered.sent, registered.lease);
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
            // The next poll says under which version requests are admitted here: not before they are.
            let epoch = self.epoch();
            let wait = in_force.wait_for(|now| now.admitting >= epoch);
            let _ = tokio::time::timeout(self.config.map_poll, wait).await;
            let have = self.in_force.borrow().admitting;
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

#[cfg(test)]
#[path = "member_tests.rs"]
mod tests;
