//! What all calls of one mount share, each a type of its own that keeps its own invariants: the parts below, the page
//! pool, the tables of inodes and handles, the tokens of the session. Here are only version numbers and waits.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base::{
    BufPool, Grant, InodeNo, PoolId, SessionId, StripeId, Version,
    start::{Work, start},
};
use parking_lot::{Mutex, RwLock};
use wire::{credentials::Squash, map::FsEntry, mgr::Timestamp};

use crate::{
    calls::Calls,
    config::Tunables,
    error::Errno,
    files::{
        handle::Handles,
        inode::Inode,
        table::Table,
        unsettled::{Orphans, Unsettled},
    },
    locks::held::Locks,
    names::cache::NameCaches,
    pages::{load_meter::LoadMeter, pool::Pool, room::Rooms},
    parts::{Blocks, Geometry},
    permits::Permits,
    sharing::{kernel::Kernel, state::Sharing},
    waits,
};

/// The session under which everything is done.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Its number.
    pub session: SessionId,
    /// The grant of its versions while it has the file system alone.
    pub grant: Grant,
    /// The file system.
    pub fs: FsEntry,
    /// Its machine may only read.
    pub read_only: bool,
    /// Whom its machine's programs act as.
    pub squash: Squash,
    /// The directory that is its root: that of the file system, unless its machine is bound to a subtree.
    pub root: InodeNo,
}

impl SessionInfo {
    /// Whether it takes no part in resolving what ended sessions left: a token of what they left is waited for until others have.
    pub fn is_guest(&self) -> bool {
        self.read_only || self.squash.is_any() || self.root != InodeNo::ROOT
    }
}

/// See the file's head.
pub(crate) struct Core {
    pub session: SessionInfo,
    /// As they were at the start; what may change since is in [`Core::live`].
    pub tunables: Tunables,
    live: RwLock<Tunables>,
    pub runtime: tokio::runtime::Handle,
    pub calls: Calls,
    pub blocks: Arc<dyn Blocks>,
    version_seq: AtomicU64,
    pub sharing: Sharing,
    pub kernel: Kernel,
    pub pool: Pool,
    pub rooms: Rooms,
    pub permits: Permits,
    pub load_meter: LoadMeter,
    pub table: Table,
    pub handles: Handles,
    pub unsettled: Unsettled,
    pub orphans: Orphans,
    pub names: NameCaches,
    /// Locks that programs hold through this mount.
    pub locks: Mutex<Locks>,
}

impl Core {
    pub fn new(
        calls: Calls,
        blocks: Arc<dyn Blocks>,
        session: SessionInfo,
        tunables: Tunables,
        buffers: BufPool,
    ) -> Arc<Core> {
        Arc::new(Core {
            live: RwLock::new(tunables),
            runtime: tokio::runtime::Handle::current(),
            calls,
            blocks,
            version_seq: AtomicU64::new(0),
            sharing: Sharing::whole(session.grant),
            kernel: Kernel::default(),
            pool: Pool::with_buffers(tunables.pagepool, tunables.dirty_pct, buffers),
            rooms: Rooms::default(),
            permits: Permits::new(&tunables),
            load_meter: LoadMeter::default(),
            table: Table::default(),
            handles: Handles::default(),
            unsettled: Unsettled::default(),
            orphans: Orphans::default(),
            names: NameCaches::default(),
            locks: Mutex::default(),
            session,
            tunables,
        })
    }

    /// The tunables now.
    pub fn live(&self) -> Tunables {
        *self.live.read()
    }

    /// Takes over changes that count at once. False: nothing changed.
    pub fn retune(&self, cluster: &base::tunables::Tunables) -> bool {
        let mut live = self.live.write();
        let mut new = *live;
        new.adopt_live(cluster);
        if new == *live {
            return false;
        }
        let old = std::mem::replace(&mut *live, new);
        drop(live);
        self.pool.resize(new.pagepool, new.dirty_pct);
        self.permits.resize(&self.runtime, &old, &new);
        tracing::info!(?new, "tunables changed");
        true
    }

    pub fn patience(&self) -> Duration {
        self.tunables.deadline
    }

    /// A version for a write of an inode, or as the bound of a delete: above all given before, below all
    /// given later. Its write token is held.
    pub fn next_version(&self, inode: &Inode) -> Version {
        let grant = inode.lock().token.serial();
        let seq = self.version_seq.fetch_add(1, SeqCst) + 1;
        Version { grant, seq }
    }

    /// Says of an inode that is going that something of it may be on the pdisks.
    pub fn any_version(&self) -> Version {
        let seq = self.version_seq.fetch_add(1, SeqCst) + 1;
        Version { grant: self.session.grant, seq }
    }

    pub fn stripe(&self, ino: InodeNo, block: u64) -> StripeId {
        StripeId { fs: self.session.fs.id, inode: ino, block: base::BlockIndex(block) }
    }

    pub fn geometry(&self, pool: PoolId) -> Result<Geometry, Errno> {
        self.blocks.geometry(pool).ok_or_else(|| {
            tracing::error!(%pool, "the map has no such pool");
            Errno::EIO
        })
    }

    /// Notes that an inode wants background work.
    pub fn note_unsettled(&self, inode: &Arc<Inode>) {
        self.unsettled.note(inode);
    }

    /// Begins work that somebody waits for on his own thread; what must wait goes on in the runtime.
    pub fn begin(&self, work: Work) {
        let runtime = self.runtime.clone();
        start(work, move |work| drop(runtime.spawn(work)));
    }

    /// Waits until `ready` says so; it is asked again whenever something about the inode changed. `EIO`
    /// after the deadline without any change, or when the session ends.
    pub async fn wait_inode<T>(
        &self,
        inode: &Inode,
        what: &'static str,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, Errno> {
        let mut entered = None;
        loop {
            let changed = inode.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(result) = ready() {
                return Ok(result);
            }
            entered.get_or_insert_with(|| self.pool.waits().enter(what, Some(inode.ino)));
            if self.calls.alive(tokio::time::timeout(self.patience(), changed)).await?.is_err() {
                tracing::error!(inode = %inode.ino, "gave up waiting for {what}");
                return Err(Errno::EIO);
            }
        }
    }

    /// A wait with the client's patience, listed while it lasts. `EIO` also when the session ends.
    pub async fn patient<T>(
        &self,
        what: &'static str,
        inode: Option<InodeNo>,
        wait: impl Future<Output = T>,
    ) -> Result<T, Errno> {
        tokio::pin!(wait);
        if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await {
            return Ok(done);
        }
        let _entered = self.pool.waits().enter(what, inode);
        self.calls.alive(tokio::time::timeout(self.patience(), wait)).await?.map_err(|_| {
            tracing::error!(inode = inode.map_or(0, |ino| ino.0), "gave up waiting for {what}");
            Errno::EIO
        })
    }

    /// What a program asked for: ends with `EIO` when it has not moved on for the client's patience, or the session ends.
    /// Pinned where it is made: handed on by value it would be copied at each step from there, and lie there several times.
    pub async fn operation<T>(
        &self,
        name: &'static str,
        inode: Option<InodeNo>,
        work: Pin<&mut impl Future<Output = Result<T, Errno>>>,
    ) -> Result<T, Errno> {
        self.calls.alive(waits::bounded(name, self.patience(), work)).await?.unwrap_or_else(|waits_for| {
            let inode = inode.map_or(0, |ino| ino.0);
            tracing::error!(inode, usage = ?self.pool.usage(), "{name} gave up waiting for {waits_for}");
            Err(Errno::EIO)
        })
    }
}

/// The time, as files carry it.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}
