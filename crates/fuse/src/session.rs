//! One mount's requests, whatever transport they come by: admission, answering at once or later, end.
//! A request is started on the thread that read it. What the file system below has at hand is answered
//! there and then; what must wait goes on as a task of the runtime, so that a reader thread never waits
//! for a network. At most `requests_max` requests are under way; beyond that readers wait.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use base::{
    InodeNo,
    start::{Work, start},
};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::{runtime, sync::Semaphore};
use wire::mgr::FileKind;

use crate::{
    buffers::Payload,
    caching::Caching,
    calls::{Calls, Errno, Handle, KernelCache},
    inodes::{Inodes, Way},
    page_writes::PageWrites,
    reply::{self, Answer, Reply, Sink},
    request::{Header, Operation, Request},
    rights::Rights,
    statistics,
    unread::{Asked, Unread},
    waiting::{Waiting, interrupted},
};

/// How long the end of a mount waits for requests under way; each has a shorter deadline of its own.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);

/// How long the end of a mount tries to make the last data durable: as long as a manager that takes over, or servers that are
/// started again, may take.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(300);

/// And with that all of it.
pub(crate) const END_TIMEOUT: Duration = DRAIN_TIMEOUT.saturating_add(FLUSH_TIMEOUT);

/// So long it is tried to drop what the kernel is just taking in: what it does not have by then (its mount goes, or was aborted) must not
/// hold up whom others wait for.
const TAKEN_IN: Duration = Duration::from_secs(2);

/// Tells the kernel what it may no longer keep.
pub trait Notifier: Send + Sync {
    /// Drops pages of `len` bytes at `offset` (0: to the end) and the attributes. Blocks until pages in
    /// use are given up: never to be called from a thread that must answer for that inode.
    fn inval_inode(&self, ino: InodeNo, offset: u64, len: u64) -> std::io::Result<()>;
    /// Drops the attributes alone, also those of answers to questions that were put before. Whether the kernel has the inode. Does not block.
    fn inval_attr(&self, ino: InodeNo) -> std::io::Result<bool>;
    /// All names are believed no more. Does not block.
    fn inc_epoch(&self) -> std::io::Result<()>;
}

/// Calls the root as the kernel does.
struct Rooted {
    notifier: Arc<dyn Notifier>,
    root: InodeNo,
}

impl Rooted {
    fn named(&self, ino: InodeNo) -> InodeNo {
        if ino == self.root { InodeNo::ROOT } else { ino }
    }
}

impl Notifier for Rooted {
    fn inval_inode(&self, ino: InodeNo, offset: u64, len: u64) -> std::io::Result<()> {
        self.notifier.inval_inode(self.named(ino), offset, len)
    }
    fn inval_attr(&self, ino: InodeNo) -> std::io::Result<bool> {
        self.notifier.inval_attr(self.named(ino))
    }
    fn inc_epoch(&self) -> std::io::Result<()> {
        self.notifier.inc_epoch()
    }
}

/// A handle in use, for the end of the mount.
#[derive(Clone, Copy)]
pub(crate) struct OpenFile {
    pub(crate) ino: InodeNo,
    pub(crate) way: Way,
    /// Mappings of it may change pages.
    pub(crate) maps: bool,
}

/// Marks the numbers of handles that go round the page cache, as the kernel gives them back.
pub(crate) const DIRECT_BIT: u64 = 1 << 63;

/// The handle below, from the kernel's number for it.
pub(crate) fn handle(fh: u64) -> Handle {
    Handle(fh & !DIRECT_BIT)
}

/// State shared by everything that serves one mount.
pub struct Session<C> {
    pub(crate) calls: Arc<C>,
    pub(crate) inodes: Inodes,
    pub(crate) notifier: Arc<dyn Notifier>,
    pub(crate) rights: Rights,
    /// What the kernel calls its root.
    root: InodeNo,
    own_caching: Caching,
    /// Others have the file system mounted as well.
    shared: RwLock<bool>,
    files: Mutex<HashMap<Handle, OpenFile>>,
    waiting: Arc<Waiting>,
    pub(crate) page_writes: PageWrites,
    unread: Unread,
    /// Places of those that sync, few because each holds a request and waits for others; and whose turn it is.
    pub(crate) syncs: (Semaphore, Semaphore),
    permits: Arc<Semaphore>,
    requests_max: u32,
    /// Half of the requests under way may be waits for locks.
    pub(crate) lock_waits: Semaphore,
    runtime: runtime::Handle,
}

impl<C: Calls> Session<C> {
    /// A session without requests.
    pub fn new(
        calls: Arc<C>,
        notifier: Arc<dyn Notifier>,
        requests_max: u32,
        rights: Rights,
        root: InodeNo,
        caching: Caching,
        runtime: runtime::Handle,
    ) -> Session<C> {
        Session {
            calls,
            inodes: Inodes::new(),
            notifier: Arc::new(Rooted { notifier, root }),
            rights,
            root,
            own_caching: caching,
            shared: RwLock::new(false),
            files: Mutex::default(),
            waiting: Arc::default(),
            page_writes: PageWrites::default(),
            unread: Unread::default(),
            syncs: (Semaphore::new(8), Semaphore::new(1)),
            permits: Arc::new(Semaphore::new(requests_max as usize)),
            requests_max,
            lock_waits: Semaphore::new((requests_max as usize / 2).max(1)),
            runtime,
        }
    }

    /// What the kernel may keep now.
    pub(crate) fn caching(&self) -> Caching {
        self.caching_now(*self.shared.read())
    }

    fn caching_now(&self, shared: bool) -> Caching {
        let attr_by_token = self.own_caching.attr_by_token;
        if shared { Caching { attr_by_token, ..Caching::SHARED } } else { self.own_caching }
    }

    /// What it may keep by this handle.
    pub(crate) fn caching_of(&self, handle: Handle) -> Caching {
        if self.calls.is_shared(handle) { Caching::SHARED } else { self.own_caching }
    }

    /// Serves one request. `payload` owns the bytes of a WRITE. May block the calling reader thread
    /// only for admission.
    pub fn handle(self: &Arc<Self>, request: Request, payload: Option<Payload>, sink: &Arc<dyn Sink>) {
        let Request { header, operation } = request.rooted(self.root);
        match operation {
            Operation::Forget { nodes } => {
                for (ino, n) in nodes {
                    self.forget(ino, n);
                }
            }
            Operation::Interrupt { unique } => self.interrupt(&header, unique, sink),
            Operation::Read { .. } | Operation::Write { .. } if self.page_writes.are_refused() => {
                self.page_writes.refused(operation.page_bytes().unwrap_or_default());
                drop(sink.send(header.unique, libc::EIO, &[]));
            }
            operation => {
                let Some(reply) = self.admit(header, sink) else {
                    // As of a mount whose process has ended. A thread of this one may wait in the kernel for the answer.
                    return drop(sink.send(header.unique, libc::ENOTCONN, &[]));
                };
                self.start(Box::pin(self.clone().answer(header, operation, payload, reply)));
            }
        }
    }

    fn admit(&self, header: Header, sink: &Arc<dyn Sink>) -> Option<Reply> {
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            // Reader threads are not the runtime's: they may block.
            Err(_) => self.runtime.block_on(self.permits.clone().acquire_owned()).ok()?,
        };
        let (reply, early) = Reply::new(header, sink.clone(), self.waiting.clone(), permit);
        if let Some(cell) = early {
            drop(self.runtime.spawn(interrupted(cell)));
        }
        Some(reply)
    }

    /// Begins here; what must wait goes on in the runtime.
    fn start(&self, task: Work) {
        let runtime = self.runtime.clone();
        // A panic is a fault of ours; the reply, dropped by it, answers EIO and the mount goes on.
        let begun = AssertUnwindSafe(|| start(task, move |task| drop(runtime.spawn(task))));
        if catch_unwind(begun).is_err() {
            tracing::error!("a request handler panicked");
        }
    }

    async fn answer(
        self: Arc<Self>,
        header: Header,
        operation: Operation,
        payload: Option<Payload>,
        reply: Reply,
    ) {
        // Until it is answered: the kernel has the pages locked.
        let fills = Asked::of(&header, &operation);
        let _filling = fills.map(|_| self.inodes.filling(header.ino));
        let (offset, pages) = (operation.offset(), operation.page_bytes());
        let changes = matches!(
            operation,
            Operation::Write { .. } | Operation::Setattr(_) | Operation::Fallocate { .. }
        );
        // Of other answers the kernel believes the attributes, whatever it was told since it asked.
        let looks = matches!(operation, Operation::Lookup { .. } | Operation::Getattr | Operation::Statx);
        pages.inspect(|&bytes| self.page_writes.begun(bytes));
        let result = match self.rights.caller(&header) {
            _ if fills.is_some_and(|asked| self.unread.has(asked, Instant::now())) => Err(Errno::EIO),
            None => self.serve(&header, operation, payload).await,
            Some(by) => Box::pin(self.serve_checked(&header, operation, payload, by)).await,
        };
        let (begun, bytes) = (reply.since(), result.as_ref().map_or(0, Answer::moved));
        let error = result.as_ref().err().copied();
        fills.inspect(|&asked| self.unread.answered(asked, error, begun));
        if changes && error.is_none() {
            self.unread.moved(header.ino);
        }
        pages.inspect(|&of| self.page_writes.done(of, bytes == of));
        match result {
            Err(Errno(errno)) => reply.error(errno),
            Ok(answer) => self.send(&header, reply, answer, looks),
        }
        statistics::answered(&header, offset, bytes, begun);
        if let Some(error) = error {
            statistics::failed(&header, error);
        }
    }

    /// References are counted before the answer leaves, since a FORGET may follow at once, and taken
    /// back if nobody took it. `looks`: the attributes in it were asked for.
    fn send(&self, header: &Header, reply: Reply, mut answer: Answer, looks: bool) {
        // Until it is sent: who says that others come drops afterwards what the answer made the kernel keep.
        let shared = self.shared.read();
        let mut caching = self.caching_now(*shared);
        if let Answer::Entries(bytes, entries) = &mut answer
            && !entries.is_empty()
        {
            reply::set_lifetimes_listed(bytes, &caching);
        }
        let entries: &[_] = match &answer {
            Answer::Entry(attr) | Answer::Created(attr, ..) => std::slice::from_ref(&**attr),
            Answer::Entries(_, entries) => entries,
            Answer::Attr(attr) | Answer::Statx(attr) => {
                self.inodes.note(attr);
                &[]
            }
            _ => &[],
        };
        for attr in entries {
            self.inodes.refer(attr);
        }
        if let Answer::Entry(attr) | Answer::Attr(attr) | Answer::Statx(attr) = &answer
            && looks
            && caching.attr_by_token
            && caching.attr_ttl.is_zero()
        {
            caching.attr_ttl = self.calls.attr_ttl(attr);
        }
        if let Answer::Entries(bytes, _) = &answer
            && bytes.is_empty()
            && !caching.keeps_names()
        {
            self.drop_listing(header.ino);
        }
        if reply.answer(&answer, &caching) {
            return;
        }
        drop(shared);
        for attr in entries {
            self.forget(attr.ino, 1);
        }
        if let Answer::Opened(fh, _) | Answer::Created(_, fh, _) = answer {
            let handle = handle(fh);
            self.forget_file(handle);
            // Nobody will close this handle: close it here.
            self.calls.release(handle);
        }
    }

    /// The end of a listing is about to be answered. Of directories that are opened without us (see `Opendir`) the kernel keeps
    /// what it was given, and believes it once it has seen the end, whoever changes the directory: it gives it to whoever
    /// reads from the start again by the same descriptor. With a part dropped before the end it begins anew. Does not
    /// block: pages of a directory are not locked while we are asked.
    fn drop_listing(&self, ino: InodeNo) {
        if let Err(error) = self.notifier.inval_inode(ino, 0, 0) {
            tracing::warn!(%ino, %error, "a listing kept by the kernel could not be dropped");
        }
    }

    fn forget(&self, ino: InodeNo, n: u64) {
        self.inodes.forget(ino, n);
        self.calls.forget(ino, n);
    }

    fn interrupt(&self, header: &Header, unique: u64, sink: &Arc<dyn Sink>) {
        match self.waiting.find(unique) {
            Some(cell) => drop(self.runtime.spawn(interrupted(cell))),
            // Not here yet (another thread has just read it), or answered. EAGAIN makes the kernel ask
            // again; of a request in a ring it does not know, so that it is noted here too.
            None => {
                if let Some(cell) = self.waiting.note_early(unique) {
                    drop(self.runtime.spawn(interrupted(cell)));
                }
                drop(sink.send(header.unique, libc::EAGAIN, &[]));
            }
        }
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, HashMap<Handle, OpenFile>> {
        self.files.lock()
    }

    pub(crate) fn remember_file(&self, handle: Handle, file: OpenFile) {
        self.files().insert(handle, file);
    }

    pub(crate) fn forget_file(&self, handle: Handle) {
        let file = self.files().remove(&handle);
        if let Some(OpenFile { ino, way, .. }) = file {
            self.inodes.closed(ino, way);
        }
    }

    /// The requests that wait now.
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Open handles, inodes the kernel refers to, references in all.
    pub fn totals(&self) -> (usize, u64, u64) {
        let (inodes, references) = self.inodes.totals();
        (self.files().len(), inodes, references)
    }

    /// Waits for requests under way. Those that come later are refused.
    pub async fn stop_serving(&self) {
        self.waiting.end_lock_waits();
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, self.permits.acquire_many(self.requests_max)).await;
        if drained.is_err() {
            tracing::error!(
                under_way = self.waiting.list().len(),
                "requests are still under way at the end of the mount"
            );
        }
        self.permits.close();
    }

    /// The end, after the last reader: waits for requests under way, closes what a forced unmount left
    /// open, gives up every reference, makes everything durable.
    pub async fn finish(&self) -> Result<(), Errno> {
        self.stop_serving().await;
        let left: Vec<_> = self.files().drain().map(|(handle, _)| handle).collect();
        for handle in left {
            self.calls.release(handle);
        }
        for (ino, n) in self.inodes.drain() {
            self.calls.forget(ino, n);
        }
        self.make_durable().await
    }

    /// Makes everything durable that was answered, and tells whether it is. Once nothing is served.
    pub async fn make_durable(&self) -> Result<(), Errno> {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let durable = tokio::time::timeout_at(deadline.into(), self.calls.sync_until(deadline)).await;
        durable.unwrap_or(Err(Errno(libc::ETIMEDOUT))).and(self.pages_written())
    }

    /// Whether what programs had changed in mappings when the mount was told to end is known to be written. Once nothing is served.
    pub fn pages_written(&self) -> Result<(), Errno> {
        let Some(bytes) = self.page_writes.lost() else { return Ok(()) };
        tracing::error!(
            bytes,
            "what programs had changed in mappings could not be written, at least so much of it"
        );
        Err(Errno(libc::EIO))
    }
}

/// The kernel's part of the cache, as the client below takes it away.
pub(crate) struct KernelSide<C>(pub Weak<Session<C>>);

impl<C: Calls> KernelSide<C> {
    fn with_all(
        &self,
        session: &Session<C>,
        drop: impl Fn(&dyn Notifier, InodeNo, FileKind) -> std::io::Result<()>,
    ) {
        for (ino, kind) in session.inodes.all() {
            if let Err(error) = drop(&*session.notifier, ino, kind) {
                tracing::warn!(%ino, %error, "what the kernel caches could not be dropped");
            }
        }
    }

    /// All attributes, and what is kept of listings.
    fn drop_attributes(&self, session: &Session<C>) {
        self.with_all(session, |notifier, ino, kind| match kind {
            FileKind::Directory => notifier.inval_inode(ino, 0, 0),
            _ => notifier.inval_attr(ino).map(drop),
        });
    }
}

impl<C: Calls> KernelSide<C> {
    /// Attributes of all inodes, also of those that the kernel does not have yet as it is just taking in the first answer about
    /// them. Names that it takes in so late, in a listing, are younger than the epoch that began with the others, so another one begins.
    fn drop_all_attr(&self, session: &Session<C>) {
        let end = Instant::now() + TAKEN_IN;
        let mut left = session.inodes.all();
        let mut late = false;
        loop {
            left.retain(|(ino, _)| !self.drop_attr(*ino));
            if left.is_empty() || Instant::now() > end {
                break;
            }
            late = true;
            std::thread::sleep(Duration::from_millis(1));
        }
        if late {
            let _ = session.notifier.inc_epoch(); // a kernel without keeps no names
        }
    }
}

impl<C: Calls> KernelCache for KernelSide<C> {
    fn drop_pages(&self, ino: InodeNo, offset: u64, len: u64) {
        let Some(session) = self.0.upgrade() else { return };
        if let Err(error) = session.notifier.inval_inode(ino, offset, len) {
            tracing::warn!(%ino, %error, "pages cached by the kernel could not be dropped");
        }
    }

    fn drop_attr(&self, ino: InodeNo) -> bool {
        let Some(session) = self.0.upgrade() else { return true };
        match session.notifier.inval_attr(ino) {
            // With a reference that it was given it will have the inode, or says that it has forgotten it.
            Ok(known) => known || !session.inodes.is_referred(ino),
            Err(error) => {
                tracing::warn!(%ino, %error, "attributes kept by the kernel could not be dropped");
                true
            }
        }
    }

    fn set_shared(&self, shared: bool) {
        let Some(session) = self.0.upgrade() else { return };
        if shared {
            *session.shared.write() = true;
            if let Err(error) = session.notifier.inc_epoch() {
                tracing::debug!(%error, "the kernel knows no epochs: it keeps no names");
            }
            self.with_all(&session, |notifier, ino, kind| match kind {
                FileKind::Directory => notifier.inval_inode(ino, 0, 0),
                _ => Ok(()),
            });
            self.drop_all_attr(&session);
        } else {
            // Pages of files that were not open were left where they are.
            self.with_all(&session, |notifier, ino, _| notifier.inval_inode(ino, 0, 0));
            *session.shared.write() = false;
        }
    }

    fn drop_names(&self) {
        let Some(session) = self.0.upgrade() else { return };
        if let Err(error) = session.notifier.inc_epoch() {
            tracing::debug!(%error, "the kernel knows no epochs: names stay until they are looked up again");
        }
        self.drop_attributes(&session);
    }

    fn drop_all(&self) {
        let Some(session) = self.0.upgrade() else { return };
        self.with_all(&session, |notifier, ino, _| notifier.inval_inode(ino, 0, 0));
    }
}
