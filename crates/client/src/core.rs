//! What all calls of one mount share: the parts below, the page pool, the tables of inodes and handles,
//! version numbers, and room on the pdisks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base::{BufPool, Grant, InodeNo, PoolId, SessionId, StripeId, Version};
use tokio::sync::{Notify, Semaphore};
use wire::{
    map::FsEntry,
    mgr::{MgrReply, MgrRequest, Timestamp},
    token::Token,
};

use crate::{
    calls::{Calls, unexpected},
    changes::Late,
    config::Tunables,
    error::Errno,
    files::{handle::OpenFile, inode::Inode, table::Table},
    locks::Locks,
    names::made::Hints,
    pages::{pool::Pool, prefetch::LoadMeter},
    parts::{Blocks, Geometry},
    sharing::hold::KernelCache,
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
}

/// See the file's head.
pub(crate) struct Core {
    pub calls: Calls,
    /// Changes that nobody waits for any more.
    pub late: Late,
    pub blocks: Arc<dyn Blocks>,
    pub pool: Pool,
    pub session: SessionInfo,
    /// As they were at the start; what may change since is in [`Core::live`].
    pub tunables: Tunables,
    live: RwLock<Tunables>,
    pub load_meter: LoadMeter,
    pub inodes: Mutex<Table>,
    pub handles: RwLock<HashMap<u64, Arc<OpenFile>>>,
    pub handle_next: AtomicU64,
    /// Inodes with something to write out or commit, by the order in which they came.
    pub unsettled: Mutex<BTreeMap<InodeNo, Arc<Inode>>>,
    /// Inodes without a name and without a handle that the manager may reclaim.
    pub forgets: Mutex<Vec<InodeNo>>,
    /// Their tokens, given up.
    pub forgotten: Mutex<Vec<Token>>,
    /// It was looked which of them are left.
    pub settled: Notify,
    /// Wakes the background work.
    pub wake: Notify,
    pub flush_permits: Arc<Semaphore>,
    pub prefetch_permits: Arc<Semaphore>,
    pub load_permits: Arc<Semaphore>,
    pub cleaner_permits: Arc<Semaphore>,
    pub runtime: tokio::runtime::Handle,
    /// The grant under which all tokens are held; 0: they are asked for one by one.
    pub whole: AtomicU64,
    /// Counts tokens given back: an answer asked for before one may be older than what was known here.
    pub gives: AtomicU64,
    /// Counts claims: a grant asked for before one is not in it.
    pub claims: AtomicU64,
    /// Names in directories made here; and how often one was made in another directory.
    pub names_known: Arc<AtomicUsize>,
    pub names_elsewhere: AtomicU64,
    /// Names kept under tokens.
    pub names_kept: Arc<AtomicUsize>,
    /// Counts beginnings and ends of changes of names, and of attributes of what is no file.
    pub moves: AtomicU64,
    /// Counts recalls: a token that comes with an answer asked for before one may be recalled already.
    pub recalls: AtomicU64,
    /// What names led to when the kernel asked last.
    pub hints: Mutex<Hints>,
    /// The resolution under way, plus 1.
    pub resolving: AtomicU64,
    pub kernel: RwLock<Option<Arc<dyn KernelCache>>>,
    /// Locks that programs hold through this mount.
    pub locks: Mutex<Locks>,
    /// By pool.
    room: Mutex<BTreeMap<PoolId, Room>>,
    room_call: tokio::sync::Mutex<()>,
    version_seq: AtomicU64,
}

/// Raw bytes on the pdisks of a pool that this session may use and has not stored yet.
#[derive(Default)]
struct Room {
    /// Granted and not stored.
    granted: u64,
    /// Of these, set aside for what is dirty.
    used: u64,
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
            calls,
            late: Late::default(),
            blocks,
            pool: Pool::with_buffers(tunables.pagepool, tunables.dirty_pct, buffers),
            inodes: Mutex::default(),
            handles: RwLock::default(),
            handle_next: AtomicU64::new(1),
            unsettled: Mutex::default(),
            forgets: Mutex::default(),
            forgotten: Mutex::default(),
            settled: Notify::new(),
            wake: Notify::new(),
            flush_permits: Arc::new(Semaphore::new(tunables.flushes_max as usize)),
            prefetch_permits: Arc::new(Semaphore::new(tunables.prefetches_max as usize)),
            load_permits: Arc::new(Semaphore::new(tunables.loads_max as usize)),
            cleaner_permits: Arc::new(Semaphore::new(tunables.cleaners_max as usize)),
            runtime: tokio::runtime::Handle::current(),
            whole: AtomicU64::new(session.grant.0),
            gives: AtomicU64::new(0),
            claims: AtomicU64::new(0),
            names_known: Arc::default(),
            names_elsewhere: AtomicU64::new(0),
            names_kept: Arc::default(),
            moves: AtomicU64::new(0),
            recalls: AtomicU64::new(0),
            hints: Mutex::default(),
            resolving: AtomicU64::new(0),
            kernel: RwLock::default(),
            locks: Mutex::default(),
            session,
            room: Mutex::default(),
            room_call: tokio::sync::Mutex::new(()),
            version_seq: AtomicU64::new(0),
            load_meter: LoadMeter::default(),
            live: RwLock::new(tunables),
            tunables,
        })
    }

    /// The tunables now.
    pub fn live(&self) -> Tunables {
        *self.live.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes over changes that count at once. False: nothing changed.
    pub fn retune(&self, cluster: &base::tunables::Tunables) -> bool {
        let mut live = self.live.write().unwrap_or_else(|e| e.into_inner());
        let mut new = *live;
        new.adopt_live(cluster);
        if new == *live {
            return false;
        }
        let old = std::mem::replace(&mut *live, new);
        drop(live);
        self.pool.resize(new.pagepool, new.dirty_pct);
        self.resize_permits(&self.flush_permits, old.flushes_max, new.flushes_max);
        self.resize_permits(&self.prefetch_permits, old.prefetches_max, new.prefetches_max);
        self.resize_permits(&self.load_permits, old.loads_max, new.loads_max);
        self.resize_permits(&self.cleaner_permits, old.cleaners_max, new.cleaners_max);
        tracing::info!(?new, "tunables changed");
        true
    }

    fn resize_permits(&self, permits: &Arc<Semaphore>, old: u32, new: u32) {
        permits.add_permits(new.saturating_sub(old) as usize);
        let less = old.saturating_sub(new);
        if less > 0 {
            // What is in use goes when it is given back.
            let permits = permits.clone();
            self.runtime.spawn(async move {
                if let Ok(taken) = permits.acquire_many(less).await {
                    taken.forget();
                }
            });
        }
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

    /// Raw bytes that `bytes` of file data occupy with their redundancy.
    pub fn raw_bytes(&self, pool: PoolId, bytes: u64) -> Result<u64, Errno> {
        let geometry = self.geometry(pool)?;
        let data = u64::from(geometry.data_strips.max(1));
        Ok((bytes * u64::from(geometry.width)).div_ceil(data))
    }

    fn room(&self) -> MutexGuard<'_, BTreeMap<PoolId, Room>> {
        self.room.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sets raw room in a pool aside; asks the manager for more when what was granted runs low. `ENOSPC` if there
    /// is none.
    pub async fn take_room(self: &Arc<Core>, pool: PoolId, raw: u64) -> Result<RoomHold, Errno> {
        if let Some(hold) = self.take_room_now(pool, raw) {
            return Ok(hold);
        }
        let _one = self.patient("somebody else's question for room", None, self.room_call.lock()).await?;
        // A large piece first; near the end of the pdisks only what is needed.
        for bytes in [raw.max(self.tunables.reserve_bytes), raw] {
            if let Some(hold) = self.take_room_now(pool, raw) {
                return Ok(hold);
            }
            let held = self.room().get(&pool).map_or(0, |room| room.granted);
            match self.calls.ask(MgrRequest::Reserve { pool, bytes, held }).await {
                Ok(MgrReply::Reserved { bytes }) => self.room().entry(pool).or_default().granted += bytes,
                Ok(other) => return Err(unexpected("Reserve", &other)),
                Err(Errno::ENOSPC) => {}
                Err(error) => return Err(error),
            }
        }
        self.take_room_now(pool, raw).ok_or(Errno::ENOSPC)
    }

    fn take_room_now(self: &Arc<Core>, pool: PoolId, raw: u64) -> Option<RoomHold> {
        let mut rooms = self.room();
        let room = rooms.entry(pool).or_default();
        if raw > 0 && room.used + raw > room.granted {
            return None;
        }
        room.used += raw;
        Some(RoomHold { core: self.clone(), pool, raw })
    }

    fn with_room(&self, inode: &Inode, change: impl FnOnce(&mut Room)) {
        let mut rooms = self.room();
        inode.home.get().and_then(|pool| rooms.get_mut(pool)).map(change);
    }

    /// Room that was set aside for an inode and not used.
    pub fn return_room(&self, inode: &Inode, raw: u64) {
        self.with_room(inode, |room| room.used = room.used.saturating_sub(raw));
    }

    /// Room that was set aside for an inode and now holds stored bytes.
    pub fn spend_room(&self, inode: &Inode, raw: u64) {
        self.with_room(inode, |room| {
            room.used = room.used.saturating_sub(raw);
            room.granted = room.granted.saturating_sub(raw);
        });
    }

    /// Notes that an inode wants background work.
    pub fn note_unsettled(&self, inode: &Arc<Inode>) {
        let mut unsettled = self.unsettled.lock().unwrap_or_else(|e| e.into_inner());
        unsettled.entry(inode.ino).or_insert_with(|| inode.clone());
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
}

/// Raw room taken and not yet given to a block; returned on drop.
pub(crate) struct RoomHold {
    core: Arc<Core>,
    pool: PoolId,
    raw: u64,
}

impl RoomHold {
    /// Gives up to `raw` of it away.
    pub fn take(&mut self, raw: u64) -> u64 {
        let taken = raw.min(self.raw);
        self.raw -= taken;
        taken
    }
}

impl Drop for RoomHold {
    fn drop(&mut self) {
        if let Some(room) = self.core.room().get_mut(&self.pool) {
            room.used = room.used.saturating_sub(self.raw);
        }
    }
}

/// The time, as files carry it.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}
