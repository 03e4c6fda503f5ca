//! The manager: requests in, answers out. Puts namespace, cluster and writer together; knows no network.
//!
//! Reads are answered from the last committed snapshot, changes go through the writer, everything about
//! leases and the map through one task that owns the cluster's state machine: it stores what the machine
//! wants stored, publishes the map, answers, and only then takes the next event.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use base::{
    Epoch, FsId, InodeNo, SessionId,
    presence::{Look, Presence, boot_time},
    tunables::Tunables,
};
use libc::{EINVAL, EIO, ENOENT, ETIMEDOUT};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use wire::{
    map::ClusterMap,
    mgr::{Attr, Change, FileKind, MgrError, MgrReply, MgrRequest, OpId},
    token::Need,
};

use crate::{
    ManagerError,
    apply::{Outcome, Watched, Writer},
    cluster::{Ask, Cluster, Event, Holders, NewPool, Question, Removal, Step, StoreOp, Ticket},
    event_log::EventLog,
    format,
    keys::{self, ConfigRecord, EndingRecord, ReadError, SessionRecord},
    namespace::{self, DirHash, Fault, FsContext},
    scrub,
    store::{JournaledStore, Snapshot, Store, StoreError, Txn, open_record, prefix_end},
};

/// Events waiting for the cluster's task; who has more waits.
const EVENTS_MAX: usize = 1024;
/// How often the cluster looks at the clock.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Questions that wait are answered this long before their deadline.
pub(crate) const ANSWER_BEFORE: Duration = Duration::from_millis(300);
/// How long the token of a new file is waited for.
const MADE_WAIT: Duration = Duration::from_millis(50);
/// Orphans removed in one transaction.
const COLLECT_MAX: usize = 64;
/// How long a stop waits for the store to be let go.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
/// Records of removed file systems removed in one transaction.
const EMPTY_MAX: usize = 256;

/// How a manager runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory for the store's pages, bytes.
    pub cache_bytes: usize,
    /// For tests: the store's files lose what was not flushed when the process ends, but for what this seed says.
    pub loses_unflushed: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 256 << 20, loses_unflushed: None }
    }
}

/// Who asks, and until when.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// The session in the request's header.
    pub session: SessionId,
    /// When it stops waiting.
    pub expires: Instant,
}

/// An event for the cluster's task, with who waits for the answer if it is a question.
struct Message {
    event: Event,
    answer: Option<(Ticket, Asker)>,
}

/// Who waits for the answer to a question.
struct Asker {
    session: SessionId,
    answer: oneshot::Sender<MgrReply>,
}

/// The manager of a cluster. Cheap to clone; its tasks end with [`Manager::stop`].
#[derive(Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub writer: Writer,
    pub map: watch::Receiver<Arc<ClusterMap>>,
    /// Something was queued for deletion, perhaps.
    pub deletes: Notify,
    /// Who holds which tokens.
    holders: Arc<Holders>,
    events: mpsc::Sender<Message>,
    collect: Notify,
    tickets: AtomicU64,
    started: Instant,
    /// When the cluster's task looked at the clocks.
    presence: std::sync::Mutex<Presence>,
    place: String,
    hash: DirHash,
    pub log: EventLog,
    /// The store's damage, for those who look for it. (The writer holds the store, and lets it go at its end.)
    pub store: Weak<dyn Store>,
    /// Held by a step of the scrub, as long as it has the store.
    pub scrubbing: Arc<tokio::sync::Mutex<()>>,
    /// Records found damaged by the scrub.
    pub damaged_records: std::sync::Mutex<BTreeSet<String>>,
    tasks: std::sync::Mutex<JoinSet<()>>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
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
        Manager::on_store(
            Arc::new(JournaledStore::open_as(&path, options.cache_bytes, options.loses_unflushed)?),
            dir,
        )
    }

    /// On an open store; `dir` is for messages.
    pub fn on_store(store: Arc<dyn Store>, dir: &Path) -> Result<Manager, ManagerError> {
        let (place, scrubbed) = (store.describe(), Arc::downgrade(&store));
        let scrubs = store.waits();
        let (writer, thread) = Writer::start(store)?;
        let snapshot = writer.snapshot();
        let format = format::check_format(&*snapshot, dir)?;
        let tunables = read_tunables(&snapshot)?;
        let mut cluster =
            Cluster::load(&*snapshot, tunables.lease_duration(), Duration::ZERO).map_err(read_error)?;
        // Changes nothing but a time.
        cluster.set_rebuild_delay(tunables.missing_rebuild_delay());
        cluster.set_files_to_cache_max(tunables.max_files_to_cache());
        let hash = DirHash::new(format.hash_key);
        writer.set_contexts(format::contexts(cluster.map(), hash));
        drop(snapshot);
        let (publish, map) = watch::channel(Arc::new(cluster.map().clone()));
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let inner = Arc::new(Inner {
            writer,
            map,
            deletes: Notify::new(),
            holders: Arc::new(Holders::new(cluster.unclear())),
            events,
            collect: Notify::new(),
            tickets: AtomicU64::new(1),
            started: Instant::now(),
            presence: std::sync::Mutex::default(),
            place,
            hash,
            log: EventLog::default(),
            store: scrubbed,
            scrubbing: Arc::default(),
            damaged_records: std::sync::Mutex::default(),
            tasks: std::sync::Mutex::default(),
            thread: std::sync::Mutex::new(thread),
        });
        let manager = Manager { inner };
        manager.spawn(run_cluster(cluster, queue, publish, manager.inner.clone()));
        manager.spawn(run_collector(manager.inner.clone()));
        if scrubs {
            manager.spawn(scrub::run(manager.inner.clone(), scrub::Pace::default()));
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
        self.inner.tasks.lock().unwrap_or_else(|e| e.into_inner()).spawn(task);
    }

    /// Somebody knows a newer map than this manager ever made: its store is an older copy, and what was acknowledged
    /// since is not in it. The manager fails.
    pub(crate) fn overtaken(&self, epoch: Epoch) -> bool {
        let own = self.inner.map.borrow().epoch;
        if epoch > own {
            self.inner.writer.fail(format!(
                "{} is an older copy: it knows epoch {own}, and epoch {epoch} has been given out; bring back the newest, \
                 or go on without what it lacks by way of a dump (ropewalk manager dump, manager restore)",
                self.inner.place
            ));
        }
        epoch > own
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

    /// File systems that nobody has mounted and that have stripes left by unclean sessions, all of which could be
    /// asked about now: every pdisk that counts is served.
    pub fn unresolved(&self) -> Result<Vec<String>, MgrError> {
        let (snapshot, map) = (self.snapshot(), self.inner.map.borrow().clone());
        let served = |node: &base::NodeId| map.node(*node).is_some_and(|node| node.session.is_some());
        if !map.pdisks.iter().filter(|p| p.state.written()).all(|p| p.nodes.iter().any(served)) {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for fs in map.filesystems.iter().filter(|fs| map.clients.iter().all(|client| client.fs != fs.id)) {
            let ending = keys::read::<EndingRecord>(&*snapshot, &keys::ending_key(fs.id));
            let ending = ending.map_err(read_refusal)?.unwrap_or_default();
            if ending.unresolved && ending.fence.is_none() {
                names.push(fs.name.clone());
            }
        }
        Ok(names)
    }

    /// Resolves when the store has failed: nothing can be done any more.
    pub async fn failed(&self) -> StoreError {
        self.inner.writer.failure().await
    }

    /// Ends all tasks; what was acknowledged is stored. Calls in progress end with an error.
    pub async fn stop(self) {
        let mut tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(|e| e.into_inner()));
        tasks.shutdown().await;
        let thread = self.inner.thread.lock().unwrap_or_else(|e| e.into_inner()).take();
        self.inner.writer.close().await;
        if let Some(thread) = thread {
            // The writer finishes the batch it is at.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        // A step of the scrub may still read it; who opens the store next finds it closed.
        let _ = tokio::time::timeout(STORE_PATIENCE, self.inner.scrubbing.lock()).await;
    }

    /// Answers one request.
    pub async fn handle(&self, caller: Caller, request: MgrRequest) -> MgrReply {
        match self.answer(caller, request).await {
            Ok(reply) => reply,
            Err(error) => MgrReply::Error(error),
        }
    }

    async fn answer(&self, caller: Caller, request: MgrRequest) -> Result<MgrReply, MgrError> {
        let session = caller.session;
        match request {
            MgrRequest::Mutate { op, change, hold } => {
                let mut outcomes = self.mutate(caller, vec![(op, change)]).await?;
                match outcomes.pop().unwrap_or(Err(MgrError::Errno(EIO)))? {
                    MgrReply::Created { attr, new: true } if hold && attr.kind == FileKind::File => {
                        Ok(self.made_held(caller, attr).await)
                    }
                    done => Ok(done),
                }
            }
            MgrRequest::MutateMany { changes } => Ok(MgrReply::Many(self.mutate(caller, changes).await?)),
            MgrRequest::GetMap => Ok(MgrReply::Map(Box::new((**self.inner.map.borrow()).clone()))),
            MgrRequest::WaitMap { have } => self.wait_map(caller, have).await,
            MgrRequest::RegisterServer { .. } | MgrRequest::OpenSession { .. } => {
                self.with_config(self.ask(caller, request).await?)
            }
            MgrRequest::StatFs { fs } => match self.ask(caller, request).await? {
                MgrReply::StatFs { total, free, .. } => {
                    Ok(MgrReply::StatFs { total, free, inodes: self.inodes(fs)? })
                }
                other => Ok(other),
            },
            MgrRequest::Cluster => self.cluster_report(caller).await,
            MgrRequest::ConfigSet { pairs } => self.config_set(pairs).await,
            MgrRequest::ConfigGet => Ok(MgrReply::Config(self.config()?)),
            MgrRequest::Acquire { ino, need } => self.acquire(caller, ino, need).await,
            MgrRequest::Locks { fs, .. } => {
                let reply = self.ask(caller, request).await?;
                let MgrReply::Locks { locks, more } = reply else { return Ok(reply) };
                let snapshot = self.snapshot();
                let name = move || crate::paths::name_locks(&*snapshot, fs, locks);
                let named = self.inner.writer.aside(name).await?;
                let locks = named.map_err(|error| refusal(Fault::from(error).into_reply()))?;
                Ok(MgrReply::Locks { locks, more })
            }
            MgrRequest::PoolCreate { name, code, block_size, pdisks } => {
                let seed = format::random_key().map_err(|error| MgrError::Store(error.to_string()))?[0];
                self.ask(caller, Ask::MakePool(NewPool { name, code, block_size, pdisks, seed })).await
            }
            MgrRequest::FsCreate { name, pool } => {
                self.ask(caller, Ask::MakeFs { name, pool, now: format::wall_clock() }).await
            }
            MgrRequest::LostFiles { fs, after } => {
                let reply = self.ask(caller, MgrRequest::Cluster).await?;
                let MgrReply::Cluster(report) = reply else { return Ok(reply) };
                let snapshot = self.snapshot();
                // Goes over all extents.
                let look = move || crate::lost::lost_files(&*snapshot, &report, fs, after);
                let found = self.inner.writer.aside(look).await?;
                let found = found.map_err(|error| refusal(Fault::from(error).into_reply()))?;
                Ok(MgrReply::LostFiles(found))
            }
            MgrRequest::PoolDelete { name } => self.pool_delete(caller, name).await,
            MgrRequest::FsDelete { name } => self.remove(caller, Removal::RemoveFs(name)).await,
            MgrRequest::Owned { fs, ino, block } => {
                let snapshot = self.snapshot();
                let look = move || crate::owned::runs(&*snapshot, fs, ino, block);
                let found = self.inner.writer.aside(look).await?;
                let (runs, more) = found.map_err(read_refusal)?;
                Ok(MgrReply::Owned { runs, more })
            }
            MgrRequest::Owners { blocks } => {
                let snapshot = self.snapshot();
                let look = move || crate::owned::owners(&*snapshot, &blocks);
                let found = self.inner.writer.aside(look).await?;
                Ok(MgrReply::Owners(found.map_err(read_refusal)?))
            }
            MgrRequest::Events { after } => Ok(MgrReply::Events(self.inner.log.after(after))),
            MgrRequest::Lookup { .. }
            | MgrRequest::GetAttr { .. }
            | MgrRequest::ReadDir { .. }
            | MgrRequest::ReadLink { .. }
            | MgrRequest::ReadInline { .. }
            | MgrRequest::Extents { .. }
            | MgrRequest::GetXattr { .. }
            | MgrRequest::ListXattr { .. } => self.read(session, request).await,
            of_cluster => self.ask(caller, of_cluster).await,
        }
    }

    /// Asks the cluster's task.
    pub(crate) async fn ask(&self, caller: Caller, ask: impl Into<Ask>) -> Result<MgrReply, MgrError> {
        let ask = ask.into();
        // Answers that wait for something are under way in time; a mount that can begin begins up to the end.
        let ahead = match &ask {
            Ask::Request(MgrRequest::OpenSession { .. }) => Duration::ZERO,
            _ => ANSWER_BEFORE,
        };
        self.ask_until(self.expiry(caller).saturating_sub(ahead), caller, ask).await
    }

    /// The same; who cannot be answered before `expires` is told so then.
    async fn ask_until(&self, expires: Duration, caller: Caller, ask: Ask) -> Result<MgrReply, MgrError> {
        let ticket = self.inner.tickets.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let asker = Asker { session: caller.session, answer };
        let question = Question { ticket, session: caller.session, expires };
        self.inner.tell(Event::Asked(question, ask), Some((ticket, asker))).await?;
        match tokio::time::timeout_at(caller.expires, answered).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => Err(MgrError::Errno(ETIMEDOUT)),
        }
    }

    async fn wait_map(&self, caller: Caller, have: Epoch) -> Result<MgrReply, MgrError> {
        self.inner.tell(Event::InForce { session: caller.session, epoch: have }, None).await?;
        let mut map = self.inner.map.clone();
        // Safe to cancel: waiting on a watch changes nothing.
        match tokio::time::timeout_at(caller.expires, map.wait_for(|map| map.epoch > have)).await {
            Ok(Ok(map)) => Ok(MgrReply::Map(Box::new((**map).clone()))),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => Ok(MgrReply::MapUnchanged),
        }
    }

    fn expiry(&self, caller: Caller) -> Duration {
        let expires = caller.expires.saturating_duration_since(self.inner.started);
        self.inner.presence.lock().unwrap_or_else(|e| e.into_inner()).present(expires)
    }

    /// Carries changes out. Whoever else keeps what they change in memory gives that up first. Those that take names
    /// away need to know who else has the inodes open; the caller's write tokens on them see to it that nobody
    /// opens them meanwhile.
    async fn mutate(
        &self,
        caller: Caller,
        mut changes: Vec<(OpId, Change)>,
    ) -> Result<Vec<Outcome>, MgrError> {
        let (fs, session) = (self.fs_of(caller.session)?, caller.session);
        if self.inner.holders.is_shared() {
            changes.iter_mut().for_each(|(_, change)| self.expect(session, change));
        }
        let mut inos: Vec<InodeNo> = changes.iter().flat_map(|(_, change)| kept(change)).collect();
        inos.sort_unstable();
        inos.dedup();
        let under_way = self.inner.holders.begin(fs, inos.clone());
        for ino in inos {
            if self.inner.holders.kept_by_other(fs, ino, session) {
                if let MgrReply::Error(error) = self.ask(caller, Ask::Change(ino)).await? {
                    return Err(error);
                }
            }
        }
        let mut losers: Vec<InodeNo> = Vec::new();
        for (_, change) in &changes {
            match change {
                Change::Unlink { expect: Some(ino), .. } => losers.push(*ino),
                Change::Rename { expect: Some((_, ino)), .. } => losers.push(*ino),
                _ => {}
            }
        }
        let mut openers = Vec::new();
        if !losers.is_empty() {
            let end = caller.expires;
            if self.inner.holders.unclear(fs) {
                self.inner.tell(Event::Unclear { fs }, None).await?;
            }
            while self.inner.holders.unclear(fs) {
                // Sessions are about to say what they have open.
                if Instant::now() + TICK >= end {
                    return Err(MgrError::Errno(ETIMEDOUT));
                }
                tokio::time::sleep(TICK / 4).await;
            }
            for ino in losers {
                let sessions = self.inner.holders.openers(fs, ino);
                openers.extend(sessions.into_iter().filter(|s| *s != caller.session).map(|s| (ino, s)));
            }
        }
        let outcomes = self.inner.writer.mutate(session, changes, openers, under_way).await?;
        self.inner.deletes.notify_one();
        Ok(outcomes)
    }

    /// A change from the time when its session had everything names no inodes that lose a name. Here they are found,
    /// so that it is known whose memory they are in; if it finds others then, it is refused and comes again.
    fn expect(&self, session: SessionId, change: &mut Change) {
        let leads_to = |parent: InodeNo, name: &[u8]| {
            let ask = MgrRequest::Lookup { parent, name: name.to_vec() };
            match self.read_now(session, &ask) {
                Ok(MgrReply::Attr(attr)) if name != b"." && name != b".." => attr.ino,
                _ => InodeNo(0),
            }
        };
        match change {
            Change::Unlink { parent, name, expect: expect @ None, .. } => {
                *expect = Some(leads_to(*parent, name));
            }
            Change::Rename { parent, name, new_parent, new_name, expect: expect @ None, .. } => {
                *expect = Some((leads_to(*parent, name), leads_to(*new_parent, new_name)));
            }
            _ => {}
        }
    }

    fn fs_of(&self, session: SessionId) -> Result<FsId, MgrError> {
        let record = keys::read::<SessionRecord>(&*self.snapshot(), &keys::session_key(session));
        let record = record.map_err(|error| refusal(Fault::from(error).into_reply()))?;
        record.map(|record| record.fs).ok_or(MgrError::NoSession)
    }

    /// A token, with the inode's attributes as they are after it was given.
    async fn acquire(&self, caller: Caller, ino: InodeNo, need: Need) -> Result<MgrReply, MgrError> {
        let session = caller.session;
        let names = need == Need::Names;
        if names {
            match self.read_now(session, &MgrRequest::GetAttr { ino })? {
                MgrReply::Attr(attr) if attr.kind == FileKind::File => return Err(MgrError::Errno(EINVAL)),
                MgrReply::Attr(_) => {}
                other => return Ok(other),
            }
        }
        let (token, resolve) = match self.ask(caller, MgrRequest::Acquire { ino, need }).await? {
            MgrReply::Token { token, resolve, .. } => (token, resolve),
            refused => return Ok(refused),
        };
        if names {
            // Changes that began before cannot know of this grant.
            let ended = self.inner.holders.wait_changes(self.fs_of(session)?, ino);
            let ended = tokio::time::timeout_at(caller.expires - ANSWER_BEFORE, ended).await;
            ended.map_err(|_| MgrError::Errno(ETIMEDOUT))?;
        }
        let attr = match self.read_now(session, &MgrRequest::GetAttr { ino }) {
            Ok(MgrReply::Attr(attr)) if !names || attr.nlink > 0 => Some(attr),
            Ok(_) | Err(MgrError::Errno(ENOENT)) => None,
            Err(error) => return Err(error),
        };
        let empty = names && attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Directory) && {
            let read = self.inner.writer.snapshot();
            let empty = namespace::is_empty(&*read, self.fs_of(session)?, ino);
            empty.map_err(|fault| refusal(fault.into_reply()))?
        };
        Ok(MgrReply::Token { token, resolve, attr, empty })
    }

    /// A file was made for somebody who will use it. Nobody else knows it yet; if somebody does (the answer is repeated),
    /// or tokens are not given now, it is asked for when it is used.
    async fn made_held(&self, caller: Caller, attr: Box<Attr>) -> MgrReply {
        let ask = MgrRequest::Acquire { ino: attr.ino, need: Need::Write };
        match self.ask_until(self.inner.now() + MADE_WAIT, caller, ask.into()).await {
            Ok(MgrReply::Token { token, resolve, .. }) => MgrReply::CreatedHeld { attr, token, resolve },
            _ => MgrReply::Created { attr, new: true },
        }
    }

    /// Answers a short question from the last committed snapshot.
    fn read_now(&self, session: SessionId, request: &MgrRequest) -> Result<MgrReply, MgrError> {
        let outcome =
            answer_from(&self.inner.writer.snapshot(), &self.inner.writer.contexts(), session, request);
        outcome.map_err(|fault| refusal(fault.into_reply()))
    }

    /// Attributes in an answer are true only if nobody is changing them. Whoever looks first and then takes
    /// the snapshot sees everything that was committed before a token was given up.
    fn settle_attrs(&self, session: SessionId, reply: MgrReply) -> Result<MgrReply, MgrError> {
        let fs = self.fs_of(session)?;
        let held = |attr: &Attr| {
            attr.kind == FileKind::File && self.inner.holders.written_by_other(fs, attr.ino, session)
        };
        match reply {
            MgrReply::Attr(attr) if held(&attr) => Ok(MgrReply::Held(attr)),
            MgrReply::Attr(attr) if attr.kind == FileKind::File => {
                self.read_now(session, &MgrRequest::GetAttr { ino: attr.ino })
            }
            MgrReply::Entries { mut entries, end, parent } => {
                entries.iter_mut().filter(|e| e.attr.as_ref().is_some_and(&held)).for_each(|e| e.attr = None);
                let files = entries.iter_mut().filter_map(|entry| entry.attr.as_mut());
                for attr in files.filter(|attr| attr.kind == FileKind::File) {
                    if let Ok(MgrReply::Attr(now)) =
                        self.read_now(session, &MgrRequest::GetAttr { ino: attr.ino })
                    {
                        *attr = *now;
                    }
                }
                Ok(MgrReply::Entries { entries, end, parent })
            }
            other => Ok(other),
        }
    }

    /// Answers a reading request from the last committed snapshot.
    async fn read(&self, session: SessionId, request: MgrRequest) -> Result<MgrReply, MgrError> {
        let attrs = matches!(
            request,
            MgrRequest::Lookup { .. } | MgrRequest::GetAttr { .. } | MgrRequest::ReadDir { plus: true, .. }
        );
        let reply = self.read_snapshot(session, request).await?;
        if attrs && self.inner.holders.is_shared() { self.settle_attrs(session, reply) } else { Ok(reply) }
    }

    async fn read_snapshot(&self, session: SessionId, request: MgrRequest) -> Result<MgrReply, MgrError> {
        let snapshot = self.inner.writer.snapshot();
        let contexts = self.inner.writer.contexts();
        let long = matches!(
            request,
            MgrRequest::ReadDir { .. } | MgrRequest::Extents { .. } | MgrRequest::ListXattr { .. }
        );
        let read = move || answer_from(&snapshot, &contexts, session, &request);
        let outcome = if long {
            self.inner.writer.aside(read).await? // thousands of records
        } else {
            read()
        };
        outcome.map_err(|fault| refusal(fault.into_reply()))
    }

    fn config(&self) -> Result<Vec<(String, String)>, MgrError> {
        read_config(&*self.snapshot()).map_err(|error| refusal(Fault::from(error).into_reply()))
    }

    /// Tells the tunables with the answers that begin a session.
    fn with_config(&self, mut reply: MgrReply) -> Result<MgrReply, MgrError> {
        if let MgrReply::Registered { config, .. } | MgrReply::SessionOpen { config, .. } = &mut reply {
            *config = self.config()?;
        }
        Ok(reply)
    }

    async fn config_set(&self, pairs: Vec<(String, String)>) -> Result<MgrReply, MgrError> {
        // Checked and stored in one transaction, so that two callers cannot store what does not fit.
        let (told, heard) = oneshot::channel();
        let stored = self.inner.writer.run(move |txn| {
            let mut tunables = tunables_of(&read_config(&*txn)?);
            let new = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let outcome =
                tunables.apply(new).map(|()| (tunables.lease_duration(), tunables.missing_rebuild_delay()));
            if outcome.is_ok() {
                for (name, value) in tunables.changed() {
                    keys::write(txn, keys::config_key(name), &ConfigRecord { value });
                }
            }
            let _ = told.send(outcome); // who asked may have gone
            Ok(())
        });
        stored.await?;
        match heard.await {
            Ok(Ok((lease, delay))) => {
                self.inner.tell(Event::SetLease(lease), None).await?;
                self.inner.tell(Event::SetRebuildDelay(delay), None).await?;
                Ok(MgrReply::Done)
            }
            Ok(Err(error)) => Err(MgrError::Config(error.to_string())),
            Err(_) => Err(stopping()),
        }
    }

    fn inodes(&self, fs: FsId) -> Result<u64, MgrError> {
        let record = keys::read::<keys::FsRecord>(&*self.snapshot(), &keys::fs_key(fs));
        let record = record.map_err(|error| refusal(Fault::from(error).into_reply()))?;
        Ok(record.unwrap_or_default().inodes)
    }

    async fn cluster_report(&self, caller: Caller) -> Result<MgrReply, MgrError> {
        let reply = self.ask(caller, MgrRequest::Cluster).await?;
        let MgrReply::Cluster(mut report) = reply else { return Ok(reply) };
        let counts: Result<Vec<u64>, MgrError> =
            report.map.filesystems.iter().map(|fs| self.inodes(fs.id)).collect();
        report.inodes = counts?;
        let queue = keys::read::<keys::DeleteQueueRecord>(&*self.snapshot(), &keys::delete_queue_key());
        let queue = queue.map_err(|error| refusal(Fault::from(error).into_reply()))?;
        report.deletes_pending = queue.unwrap_or_default().blocks;
        report.store = self.inner.place.clone();
        report.store_damage = scrub::damage(&self.inner);
        Ok(MgrReply::Cluster(report))
    }
}

impl Inner {
    /// Sessions gave up their last right on inodes: those without a name may go.
    fn drop_orphans(self: &Arc<Inner>, left: Vec<(SessionId, FsId, InodeNo)>) {
        let snapshot = self.writer.snapshot();
        for (session, fs, ino) in left {
            if !matches!(snapshot.get(&keys::orphan_key(session, fs, ino)), Ok(Some(_))) {
                continue;
            }
            let inner = self.clone();
            tokio::spawn(async move {
                let contexts = inner.writer.contexts();
                let outcome = inner.writer.run(move |txn| {
                    let context = |fs| contexts.iter().find(|context| context.fs == fs).copied();
                    namespace::drop_orphan(txn, context, session, fs, ino)
                });
                if let Err(error) = outcome.await {
                    tracing::error!(%error, %ino, "an orphan cannot be removed");
                }
                inner.deletes.notify_one();
            });
        }
    }

    /// The time by which others are judged.
    fn now(&self) -> Duration {
        let now = self.started.elapsed();
        self.presence.lock().unwrap_or_else(|e| e.into_inner()).present(now)
    }

    fn look(&self) -> Look {
        let (now, boot) = (self.started.elapsed(), boot_time());
        self.presence.lock().unwrap_or_else(|e| e.into_inner()).look(now, boot)
    }

    async fn tell(&self, event: Event, answer: Option<(Ticket, Asker)>) -> Result<(), MgrError> {
        self.events.send(Message { event, answer }).await.map_err(|_| stopping())
    }
}

/// Inodes of which sessions may keep in memory what a change changes. What is committed of a file is changed under
/// tokens of its own.
fn kept(change: &Change) -> Vec<InodeNo> {
    let mut inos = match change {
        Change::Create { parent, .. } => vec![*parent],
        Change::Link { ino, parent, .. } => vec![*ino, *parent],
        Change::Unlink { parent, expect, .. } => vec![*parent, expect.unwrap_or_default()],
        Change::Rename { parent, new_parent, expect, .. } => {
            let (from, to) = expect.unwrap_or_default();
            vec![*parent, *new_parent, from, to]
        }
        Change::SetAttr { ino, .. } | Change::SetXattr { ino, .. } | Change::RemoveXattr { ino, .. } => {
            vec![*ino]
        }
        Change::CommitWrite { .. } | Change::Deallocate { .. } | Change::Forget { .. } => Vec::new(),
    };
    inos.retain(|ino| ino.0 > 0);
    inos
}

fn answer_from(
    snapshot: &Snapshot,
    contexts: &[FsContext],
    session: SessionId,
    request: &MgrRequest,
) -> Result<MgrReply, Fault> {
    let record = keys::read::<SessionRecord>(&**snapshot, &keys::session_key(session))?;
    let Some(record) = record else { return Ok(MgrReply::Error(MgrError::NoSession)) };
    let Some(fs) = contexts.iter().find(|context| context.fs == record.fs) else {
        return Err(Fault::Errno(ENOENT));
    };
    namespace::query(&**snapshot, fs, request)
}

pub(crate) fn stopping() -> MgrError {
    MgrError::Store("the manager is stopping".into())
}

fn refusal(outcome: Result<MgrError, StoreError>) -> MgrError {
    outcome.unwrap_or_else(|error| MgrError::Store(error.to_string()))
}

/// A question that could not be answered.
pub(crate) fn read_refusal(error: ReadError) -> MgrError {
    refusal(Fault::from(error).into_reply())
}

fn read_error(error: ReadError) -> ManagerError {
    match error {
        ReadError::Store(error) => error.into(),
        ReadError::Record(error) => error.into(),
    }
}

fn read_config(from: &dyn crate::store::Read) -> Result<Vec<(String, String)>, ReadError> {
    let (mut pairs, mut bad) = (Vec::new(), None);
    from.scan(b"k", &prefix_end(b"k"), &mut |key, value| {
        match open_record::<ConfigRecord>(key, value) {
            Ok(record) => pairs.push((String::from_utf8_lossy(&key[1..]).into_owned(), record.value)),
            Err(error) => bad = Some(error),
        }
        std::ops::ControlFlow::Continue(())
    })?;
    bad.map_or(Ok(pairs), |error| Err(error.into()))
}

/// What was stored, as far as this version knows it.
fn tunables_of(pairs: &[(String, String)]) -> Tunables {
    let mut tunables = Tunables::default();
    let all = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    if let Err(error) = tunables.apply(all) {
        tracing::error!(%error, "stored tunables do not fit; defaults are used");
    }
    tunables
}

fn read_tunables(from: &Snapshot) -> Result<Tunables, ManagerError> {
    Ok(tunables_of(&read_config(&**from).map_err(read_error)?))
}

/// The task that owns the cluster.
async fn run_cluster(
    mut cluster: Cluster,
    mut queue: mpsc::Receiver<Message>,
    publish: watch::Sender<Arc<ClusterMap>>,
    inner: Arc<Inner>,
) {
    let mut waiting: HashMap<Ticket, Asker> = HashMap::new();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    inner.collect.notify_one();
    let broken = || inner.writer.fail("the cluster's state cannot be stored".into());
    if !take_step(cluster.begin_life(), &publish, &inner, &mut waiting).await {
        return broken();
    }
    loop {
        // Both arms only wait: nothing is lost when the other one wins. The clock comes first, so that questions
        // cannot keep a lease from running out.
        let ask = tokio::select! {
            biased;
            _ = tick.tick() => Some(Message { event: Event::Tick, answer: None }),
            ask = queue.recv() => ask,
        };
        let Some(Message { event, answer }) = ask else { return };
        waiting.extend(answer);
        let look = inner.look();
        for event in look.away.map(Event::Away).into_iter().chain([event]) {
            let step = cluster.handle(event, look.present);
            if !take_step(step, &publish, &inner, &mut waiting).await {
                // Nothing is served without it. Dropping the answers tells everyone who waits.
                return broken();
            }
        }
        waiting.retain(|_, asker| !asker.answer.is_closed());
    }
}

/// Stores, publishes, answers; false if the store has failed.
async fn take_step(
    mut step: Step,
    publish: &watch::Sender<Arc<ClusterMap>>,
    inner: &Arc<Inner>,
    waiting: &mut HashMap<Ticket, Asker>,
) -> bool {
    let mut ended = Vec::new();
    if !step.store.is_empty() {
        let ops = std::mem::take(&mut step.store);
        ended.extend(ops.iter().filter_map(|op| match op {
            StoreOp::EndSession(session) => Some(*session),
            _ => None,
        }));
        let stored = inner.writer.run(move |txn| {
            for op in ops {
                match op {
                    StoreOp::Put(key, value) => txn.put(key, value),
                    StoreOp::Delete(key) => txn.delete(key),
                    StoreOp::EndSession(session) => namespace::end_session(txn, session)?,
                }
            }
            Ok(())
        });
        if let Err(error) = stored.await {
            tracing::error!(%error, "the cluster's state cannot be stored");
            return false;
        }
    }
    for note in std::mem::take(&mut step.notes) {
        tracing::info!("{note}");
        inner.log.add(note);
    }
    if let Some(map) = step.map.take() {
        inner.writer.set_contexts(format::contexts(&map, inner.hash));
        publish.send_replace(map);
    }
    inner.holders.take(&mut step);
    inner.drop_orphans(std::mem::take(&mut step.left));
    for (ticket, reply) in std::mem::take(&mut step.replies) {
        if let Some(asker) = waiting.remove(&ticket) {
            let _ = asker.answer.send(reply); // who waited may have given up
        }
    }
    // Nothing that a session waits for comes once it has ended.
    for (_, asker) in waiting.extract_if(|_, asker| ended.contains(&asker.session)) {
        let _ = asker.answer.send(MgrReply::Error(MgrError::NoSession));
    }
    if step.collect {
        inner.collect.notify_one();
    }
    true
}

/// The task that removes orphans of ended sessions, and what removed file systems leave.
async fn run_collector(inner: Arc<Inner>) {
    loop {
        inner.collect.notified().await;
        let hash = inner.hash;
        let of_orphans = collect(&inner, |txn, contexts| {
            let context = |fs| contexts.iter().find(|context| context.fs == fs).copied();
            namespace::collect_orphans(txn, context, COLLECT_MAX)
        });
        of_orphans.await;
        collect(&inner, move |txn, _| namespace::empty_removed(txn, hash, EMPTY_MAX)).await;
    }
}

/// Does `some` in transactions of its own until it says that nothing is left.
async fn collect(
    inner: &Arc<Inner>,
    some: impl Fn(&mut Txn<'_>, &[FsContext]) -> Result<bool, Fault> + Copy + Send + 'static,
) {
    loop {
        let contexts = inner.writer.contexts();
        let (told, heard) = oneshot::channel();
        let outcome = inner.writer.run(move |txn| {
            let _ = told.send(some(txn, &contexts)?);
            Ok(())
        });
        if let Err(error) = outcome.await {
            tracing::error!(%error, "what ended sessions and removed file systems leave cannot be removed");
            return;
        }
        inner.deletes.notify_one();
        if heard.await != Ok(true) {
            return;
        }
    }
}
