//! A manager is opened, runs and stops.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use base::{Epoch, FsId, MemberId, SessionId};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use wire::{
    map::{ClusterMap, FsEntry},
    mgr::MgrError,
    version::Build,
};

use super::{
    collect, driver, read_refusal,
    shared::{self, Inner},
    tend,
    tunables::{read_tunables, stored_lease},
};
use crate::{
    ManagerError,
    apply::{Watched, Writer},
    cluster::{Cluster, Holders},
    event_log::EventLog,
    format,
    keys::{self, EndingRecord},
    last_names,
    namespace::DirHash,
    scrub,
    store::{
        self, CopyPlace, JournaledStore, MirroredStore, Place, ReplicatedStore, Snapshot, Standing, Store,
        StoreError,
    },
};

/// Events waiting for the cluster's task; who has more waits.
const EVENTS_MAX: usize = 1024;
/// How long a stop waits for the store to be let go.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How a manager runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory for the store's pages, bytes.
    pub cache_bytes: usize,
    /// For tests: the store's files lose what was not flushed when the process ends, but for what this seed says.
    pub loses_unflushed: Option<u64>,
    /// The journal is in etcd, and not in a file beside the table.
    pub journal: Option<Replicated>,
    /// A copy of a store that has its journal beside it.
    pub mirror: Option<Arc<dyn CopyPlace>>,
}

/// A journal in etcd.
#[derive(Debug, Clone)]
pub struct Replicated {
    /// Where.
    pub place: Place,
    /// As what this manager opens it.
    pub standing: Standing,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 256 << 20, loses_unflushed: None, journal: None, mirror: None }
    }
}

/// Who asks, and until when.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// The session in the request's header.
    pub session: SessionId,
    /// Which member of the cluster asks.
    pub member: MemberId,
    /// When it stops waiting.
    pub expires: Instant,
    /// What it runs; none: it does not come over the network.
    pub build: Option<Build>,
}

/// The manager of a cluster. Cheap to clone; its tasks end with [`Manager::stop`].
#[derive(Clone)]
pub struct Manager {
    pub(super) inner: Arc<Inner>,
}

impl Manager {
    /// Opens the manager's directory. Must be called within a tokio runtime.
    pub fn open(dir: &Path) -> Result<Manager, ManagerError> {
        Manager::open_with(dir, &Options::default())
    }

    /// Opens the manager's directory with options.
    pub fn open_with(dir: &Path, options: &Options) -> Result<Manager, ManagerError> {
        let path: PathBuf = format::store_path(dir);
        if !path.exists() {
            return Err(ManagerError::NotFormatted { path: dir.to_owned() });
        }
        let cache = options.cache_bytes;
        let loses = options.loses_unflushed;
        let store: Arc<dyn Store> = match (&options.journal, &options.mirror) {
            (Some(Replicated { place, standing }), _) => {
                let (lease, sees) = (Some(stored_lease as _), Some(last_names::note_followed as _));
                let packs = Some(format::packs_records as _);
                let standing = Standing { lease, packs, sees, ..standing.clone() };
                Arc::new(ReplicatedStore::open_as(&path, cache, place, &standing)?)
            }
            (None, Some(mirror)) => {
                let store = Arc::new(MirroredStore::open(&path, cache, Arc::clone(mirror), loses)?);
                return Manager::on_store(store, dir).map_err(|error| match error {
                    // What cannot be read.
                    ManagerError::Store(error) => store::instead_of(&path, mirror, error).into(),
                    error => error,
                });
            }
            (None, None) => Arc::new(JournaledStore::open_as(&path, cache, loses)?),
        };
        Manager::on_store(store, dir)
    }

    /// On an open store; `dir` is for messages.
    pub fn on_store(store: Arc<dyn Store>, dir: &Path) -> Result<Manager, ManagerError> {
        let (place, scrubbed) = (store.describe(), Arc::downgrade(&store));
        let (scrubs, tends, confirmed) = (store.waits(), store.tends(), store.confirmed());
        let following = store.following();
        let (writer, thread) = Writer::start(store)?;
        let snapshot = writer.snapshot();
        let format = format::check_format(&*snapshot, dir)?;
        let tunables = read_tunables(&*snapshot)?;
        let mut cluster = Cluster::load(&*snapshot, tunables.lease_duration(), Duration::ZERO)?;
        // Changes nothing but a time.
        cluster.set_rebuild_delay(tunables.missing_rebuild_delay());
        cluster.set_operation_deadline(tunables.operation_deadline());
        cluster.set_files_to_cache_max(tunables.max_files_to_cache());
        let hash = DirHash::new(format.hash_key);
        writer.set_contexts(format::contexts(cluster.map(), hash));
        drop(snapshot);
        let (publish, map) = watch::channel(Arc::new(cluster.map().clone()));
        let (publish_to_clients, client_map) = watch::channel(Arc::new(cluster.client_map()));
        let publish = driver::Publish { map: publish, client_map: publish_to_clients };
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let inner = Arc::new(Inner {
            writer,
            map,
            client_map,
            deletes: Notify::new(),
            holders: Arc::new(Holders::new(cluster.unclear())),
            led: Mutex::default(),
            events,
            collect: Notify::new(),
            tickets: AtomicU64::new(1),
            started: Instant::now(),
            presence: Mutex::default(),
            place,
            hash,
            log: EventLog::default(),
            confirmed,
            following,
            resigning: Notify::new(),
            authorities: Mutex::default(),
            store: scrubbed,
            scrubbing: Arc::default(),
            damaged_records: Mutex::default(),
            lost: Mutex::default(),
            dump: Mutex::default(),
            tasks: Mutex::default(),
            thread: Mutex::new(thread),
        });
        let manager = Manager { inner };
        manager.spawn(driver::run(cluster, queue, publish, manager.inner.clone()));
        manager.spawn(collect::run(manager.inner.clone()));
        manager.spawn(shared::let_dump_go(manager.inner.clone()));
        if scrubs {
            manager.spawn(scrub::run(manager.inner.clone(), scrub::Pace::default()));
        }
        if let Some(every) = tends {
            manager.spawn(tend::run(manager.inner.clone(), every));
        }
        Ok(manager)
    }

    /// Runs a task until the manager is stopped. If it panics, the manager fails.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let watched = Watched(self.inner.writer.clone());
        let task = async move {
            let _watched = watched;
            task.await;
        };
        self.inner.tasks.lock().spawn(task);
    }

    /// Whether somebody says that he knows a newer map than this manager ever made.
    pub(crate) fn is_behind(&self, epoch: Epoch) -> bool {
        epoch > self.inner.map.borrow().epoch
    }

    /// A server knows a newer map than this manager ever made: its store is an older copy, and what was acknowledged
    /// since is not in it. The manager fails.
    pub(crate) fn overtaken(&self, epoch: Epoch) {
        let own = self.inner.map.borrow().epoch;
        self.inner.writer.fail(format!(
            "{} is an older copy: it knows epoch {own}, and epoch {epoch} has been given out; bring back the newest, \
             or go on without what it lacks by way of a dump (ropewalk manager dump, manager restore)",
            self.inner.place
        ));
    }

    /// What a client is told that says so: its word alone ends no manager.
    pub(crate) fn unknown_epoch(&self, epoch: Epoch) -> String {
        let own = self.inner.map.borrow().epoch;
        format!(
            "epoch {epoch} was never given out by this manager, which is at {own}: the request is wrong, or the manager's store an \
             older copy, which its servers will say"
        )
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The map, as it changes.
    pub fn map(&self) -> watch::Receiver<Arc<ClusterMap>> {
        self.inner.map.clone()
    }

    /// The last committed state of the store, for a dump.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.writer.snapshot()
    }

    /// File systems that nobody has mounted who could resolve, and that have stripes left by unclean sessions, all of which could be
    /// asked about now: every pdisk that counts is served.
    pub fn unresolved(&self) -> Result<Vec<FsEntry>, MgrError> {
        let map = self.inner.map.borrow().clone();
        let served = |node: &base::NodeId| map.node(*node).is_some_and(|node| node.session.is_some());
        if !map.pdisks.iter().filter(|p| p.state.written()).all(|p| p.nodes.iter().any(served)) {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        let resolved = |fs: FsId| map.clients.iter().any(|c| c.fs == fs && !map.is_guest(c.member));
        for fs in map.filesystems.iter().filter(|fs| !resolved(fs.id)) {
            if self.is_unresolved(fs.id)? {
                all.push(fs.clone());
            }
        }
        Ok(all)
    }

    /// Whether a file system has stripes left by unclean sessions that nothing of is under way any more.
    pub fn is_unresolved(&self, fs: FsId) -> Result<bool, MgrError> {
        let ending = keys::read::<EndingRecord>(&*self.snapshot(), &keys::ending_key(fs));
        let ending = ending.map_err(read_refusal)?.unwrap_or_default();
        Ok(ending.unresolved && ending.fence.is_none())
    }

    /// Resolves when the store has failed: nothing can be done any more.
    pub async fn failed(&self) -> StoreError {
        self.inner.writer.failure().await
    }

    /// Ends all tasks; what was acknowledged is stored. Calls in progress end with an error.
    pub async fn stop(self) {
        let mut tasks = std::mem::take(&mut *self.inner.tasks.lock());
        tasks.shutdown().await;
        *self.inner.dump.lock() = None;
        if let Some(store) = self.inner.store.upgrade() {
            store.end_waits();
        }
        let thread = self.inner.thread.lock().take();
        self.inner.writer.close().await;
        if let Some(thread) = thread {
            // The writer finishes the batch it is at.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        // A step of the scrub may still read it; who opens the store next finds it closed.
        let _ = tokio::time::timeout(STORE_PATIENCE, self.inner.scrubbing.lock()).await;
    }
}
