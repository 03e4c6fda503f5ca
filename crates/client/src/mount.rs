//! Mounting over the network: session, membership, resolution of what a dead predecessor left, and the
//! parts below over real connections.
//!
//! A session that the manager no longer knows is not replaced by another: what was cached under it is
//! worthless, so the mount is dead and says so.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{
    BufPool, Epoch, FsId, Grant, InodeNo, OpClass, PoolId, SessionId, StripeId, Version, presence::boot_time,
};
use net::Endpoint;
use parking_lot::Mutex;
use rustix::process::Pid;
use stripe::{
    ClusterView, IoConfig, LinkError, ManagerLink, Managers, Membership, MembershipConfig, NetManager,
    NetTransport, NsdTransport, Registered, Registrar, RegistrarError, StripeError, StripeIo,
};
use wire::{
    credentials::Squash,
    mgr::{MgrError, MgrReply, MgrRequest, ProcessIdent},
    strip::Range,
};

use crate::{
    BlockError, BlockMeta, BlockRead, Blocks, BoxFuture, CallError, Client, Geometry, Manager, MountError,
    SessionInfo, Tunables, WriteStripe, config::installed_memory,
};

/// What to mount, and as whom.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The managers that are known.
    pub managers: Managers,
    /// Name of the file system.
    pub fs: String,
    /// Mount point, for people.
    pub mount: String,
    /// This process.
    pub process: ProcessIdent,
    /// Where this process answers `wire::admin` requests.
    pub admin_addr: String,
    /// The client's own bounds; where the cluster's configuration names one, that one counts.
    pub tunables: Tunables,
}

impl Client {
    /// Opens a session, resolves what an unclean predecessor left, and starts the client.
    pub async fn mount(endpoint: &Endpoint, config: ClientConfig) -> Result<Client, MountError> {
        let transport = Arc::new(NetTransport::new(endpoint.clone()));
        Client::mount_with(manager_link(endpoint, &config), transport, config, endpoint.buffers()).await
    }

    /// The same over any way to the manager and to the servers.
    pub async fn mount_over(
        link: Arc<dyn ManagerLink>,
        transport: Arc<dyn NsdTransport>,
        config: ClientConfig,
    ) -> Result<Client, MountError> {
        Client::mount_with(link, transport, config, BufPool::new(0)).await
    }

    /// The same; freed buffers are kept in `buffers`, from which the transport takes those it receives into.
    async fn mount_with(
        link: Arc<dyn ManagerLink>,
        transport: Arc<dyn NsdTransport>,
        config: ClientConfig,
        buffers: BufPool,
    ) -> Result<Client, MountError> {
        let (membership, granted) = open_session(link, &config).await?;
        let tunables = match accept(&config, &granted, &membership.view()) {
            Ok(tunables) => tunables,
            Err(refusal) => {
                // What the last session left is the next one's to resolve. Unanswered, this one ends with its lease.
                membership.leave();
                let until = Instant::now() + config.tunables.deadline;
                let _ = membership.call(MgrRequest::CloseSession, until).await;
                return Err(refusal);
            }
        };
        membership.set_renew_interval(tunables.lease_renew_interval);

        let io = stripe_io(transport, &membership, tunables.deadline);
        let resolved = !granted.resolve || resolve(&membership, &io, &granted, tunables.deadline).await?;

        let blocks = Arc::new(StripeBlocks { io });
        let manager = Arc::new(MemberCalls { membership: membership.clone() });
        let client = Client::with_buffers(manager, blocks, granted.session.clone(), tunables, buffers);
        if !granted.whole {
            client.core.sharing.set_split();
        } else if !resolved {
            // With tokens each inode is resolved before it is used, and the manager has the rest tried again and again.
            client.core.share().await;
        }
        client.core.runtime.spawn(client.core.clone().follow_recalls());
        let mut ended = membership.ended();
        let core = Arc::downgrade(&client.core);
        client.core.runtime.spawn(async move {
            if ended.wait_for(Option::is_some).await.is_ok()
                && let Some(core) = core.upgrade()
            {
                core.calls.set_dead();
                core.drop_caches().await;
            }
        });
        Ok(client)
    }
}

/// Opens a session, resolves what unclean sessions left, if nobody else is there, and ends it again: for a file
/// system that nobody mounts. `config.tunables.deadline` bounds the waits. What could not be resolved is left to
/// the next one.
pub async fn resolve_unmounted(endpoint: &Endpoint, config: ClientConfig) -> Result<(), MountError> {
    let patience = config.tunables.deadline;
    let (membership, granted) = open_session(manager_link(endpoint, &config), &config).await?;
    let transport = Arc::new(NetTransport::new(endpoint.clone()));
    let outcome = match granted.whole && granted.resolve {
        true => resolve(&membership, &stripe_io(transport, &membership, patience), &granted, patience).await,
        false => Ok(true),
    };
    let closed = membership.call(MgrRequest::CloseSession, Instant::now() + patience).await;
    membership.stop();
    outcome?;
    closed.map(drop).map_err(|error| MountError::Manager(CallError::Deadline(error.to_string())))
}

fn manager_link(endpoint: &Endpoint, config: &ClientConfig) -> Arc<dyn ManagerLink> {
    Arc::new(NetManager::new(endpoint.clone(), config.managers.clone()))
}

async fn open_session(
    link: Arc<dyn ManagerLink>,
    config: &ClientConfig,
) -> Result<(Membership, Granted), MountError> {
    let registrar = Arc::new(SessionOpener { config: config.clone(), granted: Mutex::new(None) });
    let opener = Arc::new(Opener(Arc::clone(&registrar)));
    let started = Membership::start(link, opener, MembershipConfig::default()).await;
    let membership = started.map_err(|error| registrar.refusal(error))?;
    match registrar.granted() {
        Some(granted) => Ok((membership, granted)),
        None => Err(MountError::Manager(CallError::Unexpected("OpenSession"))),
    }
}

/// The tunables of a mount, of a file system that it can take on.
fn accept(config: &ClientConfig, granted: &Granted, view: &ClusterView) -> Result<Tunables, MountError> {
    let mut tunables = config.tunables;
    tunables.adopt_cluster_values(&granted.config)?;
    tunables.validate()?;
    let pool = view.map.pool(granted.session.fs.pool);
    pool.map_or(Ok(()), |pool| tunables.check_pool(&config.fs, pool))?;
    tunables.check_memory(pool.map_or(0, |pool| u64::from(pool.block_size)), installed_memory())?;
    Ok(tunables)
}

fn stripe_io(transport: Arc<dyn NsdTransport>, membership: &Membership, deadline: Duration) -> StripeIo {
    let config = IoConfig { deadline, ..IoConfig::default() };
    StripeIo::new(transport, membership.views(), membership.session_cell(), membership.reporter(), config)
}

/// Brings every stripe that the last session left half done to its old or its new version; false if pdisks are away
/// that this needs.
async fn resolve(
    membership: &Membership,
    io: &StripeIo,
    granted: &Granted,
    patience: Duration,
) -> Result<bool, MountError> {
    let started = Instant::now();
    let report = match stripe::resolve_fs(io, granted.session.fs.id, granted.session.grant, |_| ()).await {
        Ok(report) => report,
        Err(error @ StripeError::CannotList { .. }) if !error.is_fenced() => {
            tracing::error!(%error, "what the last session left cannot be resolved until its pdisks are back");
            return Ok(false);
        }
        Err(error) => return Err(MountError::Resolve(block_error(error))),
    };
    tracing::info!(?report, took = ?started.elapsed(), "resolved what the last session left");
    if !report.unavailable.is_empty() {
        tracing::error!(
            stripes = report.unavailable.len(),
            "some stripes cannot be resolved until their pdisks are back"
        );
        return Ok(false);
    }
    // Repeated if it is lost, as later calls are.
    let manager = MemberCalls { membership: membership.clone() };
    match manager.call(MgrRequest::ResolveDone, Instant::now() + patience).await {
        Ok(MgrReply::Error(error)) => Err(MountError::Manager(CallError::Deadline(error.to_string()))),
        Ok(_) => Ok(true),
        Err(error) => Err(MountError::Manager(error)),
    }
}

/// What OpenSession gave.
#[derive(Clone)]
struct Granted {
    session: SessionInfo,
    whole: bool,
    resolve: bool,
    config: Vec<(String, String)>,
}

/// Opens the session, once.
struct SessionOpener {
    config: ClientConfig,
    granted: Mutex<Option<Granted>>,
}

/// How long one attempt to open a session may take: the manager may have to wait out servers' leases.
const OPEN_ATTEMPT: Duration = Duration::from_secs(40);

impl SessionOpener {
    fn granted(&self) -> Option<Granted> {
        self.granted.lock().clone()
    }

    /// The reason why no session could be had, as an error of the mount.
    fn refusal(&self, error: RegistrarError) -> MountError {
        match error {
            RegistrarError::Fatal(LinkError::Refused(reason)) => {
                MountError::Refused { fs: self.config.fs.clone(), reason }
            }
            RegistrarError::Retry(error) => {
                MountError::NoManager { manager: self.config.managers.places(), reason: error.to_string() }
            }
            other => MountError::Manager(CallError::Deadline(other.to_string())),
        }
    }

    async fn open(&self, link: &dyn ManagerLink) -> Result<Registered, RegistrarError> {
        let (mut proven_dead, mut share) = (Vec::new(), false);
        // Twice at most: the second attempt says who of the others is known to be gone.
        loop {
            let ClientConfig { fs, mount, process, admin_addr, .. } = self.config.clone();
            let dead = proven_dead.clone();
            let request =
                MgrRequest::OpenSession { fs, process, admin_addr, mount, proven_dead: dead, share };
            let (sent, deadline) = (boot_time(), Instant::now() + OPEN_ATTEMPT);
            let reply = link.call(SessionId(0), Epoch(0), request, deadline).await;
            match reply {
                Ok(MgrReply::SessionOpen { session, grant, whole, fs, resolve, lease_us, map, config }) => {
                    let its = map.client(session).map(|client| client.member);
                    let limits = its.and_then(|member| map.limits_of(member));
                    let info = SessionInfo {
                        session,
                        grant,
                        fs,
                        read_only: limits.is_some_and(|limits| limits.read_only),
                        squash: limits.map_or(Squash::None, |limits| limits.squash),
                        root: limits
                            .and_then(|limits| limits.subtree.as_ref())
                            .map_or(InodeNo::ROOT, |subtree| subtree.root),
                    };
                    *self.granted.lock() = Some(Granted { session: info, whole, resolve, config });
                    return Ok(Registered {
                        session,
                        sent,
                        lease: Duration::from_micros(lease_us),
                        map: *map,
                    });
                }
                Ok(MgrReply::SessionBusy { holders }) if !share => {
                    let gone = |process: &ProcessIdent| is_gone(&self.config.process, process);
                    let dead = holders.into_iter().filter(|(_, process)| gone(process));
                    (proven_dead, share) = (dead.map(|(session, _)| session).collect(), true);
                }
                Ok(_) => return Err(RegistrarError::Fatal(LinkError::Protocol)),
                Err(error @ LinkError::Refused(_)) => return Err(RegistrarError::Fatal(error)),
                Err(error) => return Err(RegistrarError::Retry(error)),
            }
        }
    }
}

/// The opener as membership wants it; the mount keeps the other end.
struct Opener(Arc<SessionOpener>);

impl Registrar for Opener {
    fn register(
        &self,
        link: Arc<dyn ManagerLink>,
    ) -> net::BoxFuture<'static, Result<Registered, RegistrarError>> {
        let opener = Arc::clone(&self.0);
        Box::pin(async move {
            if opener.granted().is_some() {
                let reason = "the manager gave this mount's session to another, or ended it".to_owned();
                return Err(RegistrarError::Ended { reason });
            }
            opener.open(&*link).await
        })
    }
}

/// Whether `other` has ended: only if that is proven. A process of another boot or of other namespaces is left to its
/// lease: here its id is nobody's, or somebody else's.
fn is_gone(own: &ProcessIdent, other: &ProcessIdent) -> bool {
    if own.scope.is_empty() || own.scope != other.scope {
        return false;
    }
    let Some(pid) = i32::try_from(other.pid).ok().and_then(Pid::from_raw) else { return false };
    let absent = rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", other.pid)).ok();
    base::proc_stat::has_ended(other.start_ticks, absent, stat.as_deref())
}

/// The manager through this process's membership.
struct MemberCalls {
    membership: Membership,
}

/// Pause before a lost or failed call is repeated.
const CALL_PAUSE: Duration = Duration::from_millis(100);

impl Manager for MemberCalls {
    fn lease_left(&self) -> Duration {
        self.membership.lease_left()
    }

    fn call(&self, request: MgrRequest, deadline: Instant) -> BoxFuture<'_, Result<MgrReply, CallError>> {
        Box::pin(async move {
            if request == MgrRequest::CloseSession {
                self.membership.leave();
            }
            let repeatable = request.is_idempotent();
            let mut again = false;
            loop {
                match self.membership.call(request.clone(), deadline).await {
                    Ok(reply) => return Ok(reply),
                    // An earlier copy has ended it, or its lease has; all was durable before that was asked for.
                    Err(LinkError::Refused(MgrError::NoSession))
                        if again && request == MgrRequest::CloseSession =>
                    {
                        return Ok(MgrReply::Done);
                    }
                    // A manager whose store failed stops; the next one answers, each change once.
                    Err(LinkError::Refused(MgrError::Store(error)))
                        if repeatable && Instant::now() + CALL_PAUSE < deadline =>
                    {
                        tracing::warn!(%error, "the manager stops; the call is repeated");
                        tokio::time::sleep(CALL_PAUSE).await;
                    }
                    Err(LinkError::Refused(error)) => return Ok(MgrReply::Error(error)),
                    Err(LinkError::Protocol) => return Err(CallError::Unexpected("a request")),
                    // An earlier copy may have been carried out by a newer manager.
                    Err(LinkError::TooOld(why)) if again => return Err(CallError::Deadline(why)),
                    Err(LinkError::TooOld(why)) => return Err(CallError::TooOld(why)),
                    Err(error) if !repeatable || Instant::now() + CALL_PAUSE >= deadline => {
                        return Err(CallError::Deadline(error.to_string()));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the call to the manager is repeated");
                        tokio::time::sleep(CALL_PAUSE).await;
                    }
                }
                again = true;
            }
        })
    }
}

/// Blocks as stripes on the NSD servers.
struct StripeBlocks {
    io: StripeIo,
}

impl Blocks for StripeBlocks {
    fn geometry(&self, pool: PoolId) -> Option<Geometry> {
        let view = self.io.view();
        let geometry = view.pool(pool)?.geometry;
        Some(Geometry {
            data_strips: geometry.code.data(),
            width: geometry.code.width(),
            block_size: geometry.block_len(),
        })
    }

    fn await_pool(&self, pool: PoolId) -> BoxFuture<'_, ()> {
        let mut views = self.io.views();
        Box::pin(async move {
            // Without a map to come the mount is at its end: what is asked next says so.
            let _ = views.wait_for(|view| view.pool(pool).is_some()).await;
        })
    }

    fn parity_ranges(&self, pool: PoolId, _block_size: u32, dirty: &[Range]) -> Vec<Range> {
        let view = self.io.view();
        let Some(pool) = view.pool(pool) else { return dirty.to_vec() };
        let geometry = pool.geometry;
        stripe::parity_ranges(geometry.code, geometry.strip_len, dirty)
    }

    fn write<'a>(
        &'a self,
        write: WriteStripe,
        next: &'a (dyn Fn() -> Version + Send + Sync),
    ) -> BoxFuture<'a, Result<BlockMeta, BlockError>> {
        Box::pin(async move { self.io.write_when_room(write, next).await.map_err(block_error) })
    }

    fn read(
        &self,
        stripe: StripeId,
        pool: PoolId,
        _block_size: u32,
        ranges: Vec<Range>,
        class: OpClass,
    ) -> BoxFuture<'_, Result<BlockRead, BlockError>> {
        Box::pin(async move { self.io.read(stripe, pool, &ranges, class).await.map_err(block_error) })
    }

    fn leftover(&self, stripe: StripeId, pool: PoolId) -> BoxFuture<'_, Result<u32, BlockError>> {
        Box::pin(async move {
            let view = self.io.view();
            let Some(geometry) = view.pool(pool).map(|p| p.geometry) else {
                return Err(block_error(StripeError::NoSuchPool { pool }));
            };
            let deadline = Instant::now() + self.io.config().attempt;
            let states = self.io.states(stripe, pool, OpClass::Write, |s| s.written(), deadline);
            let states = states.await.map_err(block_error)?;
            let mut bytes = 0;
            for (i, state) in states.iter().enumerate() {
                match state {
                    Some(Ok(state)) if i < geometry.k() || geometry.replicated() => {
                        let versions = [&state.adopted, &state.prepared];
                        let len = versions.into_iter().flatten().map(|v| v.len).max();
                        bytes = len.map_or(bytes, |len| bytes.max(geometry.start(i) + len));
                    }
                    // Parity is written with every version; what it held before does not matter.
                    Some(Ok(_)) | None => {}
                    // No answer: whatever it may hold is replaced.
                    Some(Err(_)) => bytes = geometry.block_len(),
                }
            }
            Ok(bytes)
        })
    }

    fn adopt_all(&self, deadline: Instant) -> BoxFuture<'_, Result<(), BlockError>> {
        Box::pin(async move { self.io.adopt_all(deadline).await.map_err(block_error) })
    }

    fn settle_inode(&self, fs: FsId, inode: InodeNo) -> BoxFuture<'_, Result<(), BlockError>> {
        Box::pin(async move {
            let deadline = Instant::now() + self.io.config().deadline;
            self.io.settle_inode(fs, inode, deadline).await.map_err(block_error)
        })
    }

    fn forget_inode(&self, fs: FsId, inode: InodeNo) {
        self.io.forget_inode(fs, inode);
    }

    fn is_abandoned(&self, stripe: StripeId) -> bool {
        self.io.is_abandoned(stripe)
    }

    fn resolve_inode(&self, fs: FsId, inode: InodeNo, grant: Grant) -> BoxFuture<'_, Result<(), BlockError>> {
        Box::pin(async move {
            let report = stripe::resolve_inode(&self.io, fs, inode, grant).await.map_err(block_error)?;
            if report.stripes > 0 {
                tracing::info!(%inode, ?report, "resolved what an ended session left");
            }
            match report.unavailable.first() {
                Some((stripe, reason)) => Err(BlockError::Unavailable(format!("{stripe}: {reason}"))),
                None => Ok(()),
            }
        })
    }

    fn unresolved_inodes(&self, fs: FsId) -> BoxFuture<'_, Result<Vec<InodeNo>, BlockError>> {
        Box::pin(async move { stripe::unresolved_inodes(&self.io, fs).await.map_err(block_error) })
    }
}

fn block_error(error: StripeError) -> BlockError {
    match error {
        StripeError::NoSpace { .. } => BlockError::NoSpace,
        StripeError::Sealed { .. } => BlockError::Fenced,
        error if error.is_fenced() => BlockError::Fenced,
        other => BlockError::Unavailable(other.to_string()),
    }
}
