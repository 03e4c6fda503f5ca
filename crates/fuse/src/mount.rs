//! A mount: its life from [`Mount::start`] to the end of [`Mount::unmounted`].
//! Owns the session and, until unmounted, the place in the directory tree: a mount that is dropped is
//! taken away by force, so that a failing process leaves no dead directory behind.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{runtime, sync::watch};
use wire::credentials::Squash;

use crate::{
    abi,
    buffers::Buffers,
    calls::{Calls, Errno},
    device::{Channel, LastOut, ReadersEnd, start_readers},
    error::MountError,
    handshake::{Agreed, Limits, shake_hands},
    mountinfo::{Mounted, held_elsewhere, mounted_at},
    mountpoint::{mount, prepare, unmount},
    options::{MountOptions, Transport},
    rights::Rights,
    session::{END_TIMEOUT, KernelSide, Session},
    tune,
    uring::Rings,
    waiting::InFlight,
    write_out::write_out,
};

/// How long the kernel may take to let go what is unmounted, before it counts as held by another mount namespace.
const HELD_TIMEOUT: Duration = Duration::from_secs(2);

/// How a mount ended.
pub type MountEnd = Result<(), Arc<MountError>>;

/// What a mount is doing.
#[derive(Clone, Debug)]
pub struct MountStatus {
    /// Open files.
    pub open_files: usize,
    /// Inodes the kernel refers to.
    pub inodes: u64,
    /// References in all.
    pub references: u64,
    /// Requests under way, longest first.
    pub waiting: Vec<InFlight>,
    /// What was agreed with the kernel.
    pub agreed: Agreed,
}

/// A mounted file system.
pub struct Mount<C: Calls> {
    place: Arc<Place>,
    session: Arc<Session<C>>,
    agreed: Agreed,
    readers: watch::Receiver<Option<ReadersEnd>>,
    end: watch::Receiver<Option<MountEnd>>,
}

/// Where it is mounted, and how it is told from another mount at the same place.
struct Place {
    path: PathBuf,
    device: Option<(u32, u32)>,
}

impl Place {
    fn is_ours(&self) -> bool {
        matches!(mounted_at(&self.path), Ok(Some(Mounted { device, .. })) if Some(device) == self.device)
    }

    fn unmount(&self, force: bool) -> Result<(), MountError> {
        // Whoever mounted something else there since is not disturbed.
        if self.is_ours() { unmount(&self.path, force) } else { Ok(()) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(true) {
            tracing::error!(%error, "mount could not be taken away");
        }
    }
}

impl<C: Calls> Mount<C> {
    /// Mounts, and starts to serve. Must be called inside a tokio runtime with time and several
    /// threads; the futures of `calls` run in it. Blocks for as long as the kernel takes to mount.
    pub fn start(calls: Arc<C>, options: MountOptions) -> Result<Mount<C>, MountError> {
        options.validate()?;
        let runtime = runtime::Handle::current();
        let path = prepare(&options)?;
        let max_write = options.max_request.min(tune::raise_request_limit(options.max_request)).max(4096);
        if options.transport.tries_uring() {
            // What the kernel offers is decided when it mounts. Without it the rings say why not.
            tune::allow_uring();
        }
        let channel = Channel::new(mount(&path, &options)?);
        let mounted = mounted_at(&path).ok().flatten();
        let place = Arc::new(Place { device: mounted.as_ref().map(|m| m.device), path });
        let rings = prepare_rings(&channel, max_write, &options)
            .map_err(|source| MountError::NoUring { path: place.path.clone(), source })?;
        let limits = Limits {
            max_write,
            max_background: options.max_background,
            keeps_locks: calls.keeps_locks(),
            over_uring: rings.is_some(),
        };
        let mut agreed = shake_hands(&channel, limits)?;
        if options.transport == Transport::Uring && !agreed.is_over_uring() {
            let source = io::Error::new(io::ErrorKind::Unsupported, "this kernel does not offer it");
            return Err(MountError::NoUring { path: place.path.clone(), source });
        }
        let mut caching = options.caching;
        if agreed.minor < abi::INC_EPOCH_MINOR {
            // Names could not be taken back when others come.
            caching.entry_ttl = Duration::ZERO;
        }
        if matches!(options.squash, Squash::Root { .. }) {
            // The kernel would lead root by names that another has looked up, through directories that are closed to it.
            caching.entry_ttl = Duration::ZERO;
        }
        // Before that it believes an answer that was under way while it was told to drop attributes.
        caching.attr_by_token &= agreed.minor >= abi::INVAL_COUNTED_MINOR;
        // Without it a file opened with O_DSYNC could not be mapped.
        caching.parallel_durable &= agreed.flags & abi::init_flags::DIRECT_IO_ALLOW_MMAP != 0;
        let session = Arc::new(Session::new(
            calls,
            channel.clone(),
            options.requests_max,
            Rights::new(options.squash, options.read_only),
            options.root,
            caching,
            runtime.clone(),
        ));
        session.calls.attach(Arc::new(KernelSide(Arc::downgrade(&session))));
        let (readers_ended, readers) = watch::channel(None);
        let last = LastOut::new(readers_ended);
        if let Some(rings) = rings.filter(|_| agreed.is_over_uring())
            && let Err(source) = rings.start(&session, &runtime, &last)
        {
            if options.transport == Transport::Uring {
                return Err(MountError::NoUring { path: place.path.clone(), source });
            }
            tracing::warn!(error = %source, "io_uring is refused for this mount: requests come by /dev/fuse");
            agreed.forget_uring();
        }
        start_classic(&session, channel, &options, agreed, &runtime, &last)
            .map_err(|source| MountError::Readers { path: place.path.clone(), source })?;
        drop(last);
        if let Some(mounted) = &mounted {
            tune::set_read_ahead(mounted, options.read_ahead);
        }
        let (finished, end) = watch::channel(None);
        runtime.spawn(finish(session.clone(), place.path.clone(), readers.clone(), finished));
        tracing::info!(path = %place.path.display(), ?agreed, "mounted");
        Ok(Mount { place, session, agreed, readers, end })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// What it is doing.
    pub fn status(&self) -> MountStatus {
        let (open_files, inodes, references) = self.session.totals();
        let waiting = self.session.waiting().list();
        MountStatus { open_files, inodes, references, waiting, agreed: self.agreed }
    }

    /// Completes when the kernel's side of the mount is gone; what is left is being made durable.
    pub async fn gone(&self) {
        // An error here means that the sender is gone: the readers ended all the same.
        drop(self.readers.clone().wait_for(Option::is_some).await);
    }

    /// Bytes of its pages that the kernel has written. While this grows, the end of the mount goes on.
    pub fn pages_written(&self) -> u64 {
        self.session.page_writes.written()
    }

    /// Whether something that programs had changed in mappings when the mount was told to end could not be written.
    pub fn has_lost_pages(&self) -> bool {
        self.session.page_writes.lost().is_some()
    }

    /// Completes when the mount is gone, by [`Mount::unmount`] or from outside (`umount`), and
    /// everything is durable; an error if it could not be made so. Can be awaited any number of times.
    pub async fn unmounted(&self) -> MountEnd {
        let mut end = self.end.clone();
        let ended = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        // The sender sends before it goes.
        ended.unwrap_or_else(|| Err(Arc::new(self.not_durable(libc::EIO))))
    }

    /// Unmounts. Without `force`: refused with [`MountError::Busy`] while something is in use, and
    /// complete when everything is durable. With `force`: the directory is free at once, requests
    /// under way end with ECONNABORTED, and [`Mount::unmounted`] says when the rest is durable.
    pub async fn unmount(&self, force: bool) -> Result<(), Arc<MountError>> {
        self.unmount_here(force).await?;
        if force { Ok(()) } else { self.unmounted_in_time().await }
    }

    /// Takes it away in this mount namespace. The kernel writes dirty pages meanwhile, by requests to us.
    async fn unmount_here(&self, force: bool) -> Result<(), Arc<MountError>> {
        let place = self.place.clone();
        let done = tokio::task::spawn_blocking(move || place.unmount(force)).await;
        done.map_err(|_| Arc::new(self.not_durable(libc::EIO)))?.map_err(Arc::new)
    }

    async fn unmounted_in_time(&self) -> MountEnd {
        let end = tokio::time::timeout(END_TIMEOUT, self.unmounted()).await;
        end.unwrap_or_else(|_| Err(Arc::new(self.not_durable(libc::ETIMEDOUT))))
    }

    /// The end on SIGTERM: unmounts if nothing is in use; otherwise has what the kernel still holds written
    /// and unmounts by force, since a process that was told to end will not be asked twice. A mount that another
    /// mount namespace holds, or that was unmounted while it was in use, is not waited for: it is dead there, once its process
    /// has ended. An error if something that was written, or changed in a mapping, before this may be lost.
    pub async fn end_on_signal(&self) -> MountEnd {
        match self.unmount_here(false).await {
            Ok(()) if self.is_held_elsewhere().await => return self.end_elsewhere().await,
            Ok(()) => return self.unmounted_in_time().await,
            Err(error) if matches!(*error, MountError::Busy { .. }) => {
                tracing::warn!(%error, "told to end: unmounting by force");
            }
            Err(error) => return Err(error),
        }
        self.write_out(Some(self.place.path.clone())).await;
        self.unmount_here(true).await?;
        self.unmounted().await
    }

    async fn write_out(&self, place: Option<PathBuf>) {
        write_out(&self.session, place, || self.readers.borrow().is_some()).await;
    }

    /// Whether what is unmounted here goes on in another mount namespace.
    async fn is_held_elsewhere(&self) -> bool {
        let is_held = tokio::time::timeout(HELD_TIMEOUT, self.gone()).await.is_err();
        if is_held {
            let holders = self.place.device.map(held_elsewhere);
            tracing::warn!(path = %self.place.path.display(), ?holders, "told to end, and it is still held, by other mount namespaces or by what is open: it ends there as well");
        }
        is_held
    }

    /// Has the kernel write what it holds, makes everything durable that was answered, and serves nothing more: the kernel, and
    /// with it the other mount namespaces, learn of the end when the process has ended.
    async fn end_elsewhere(&self) -> MountEnd {
        self.write_out(None).await;
        self.session.stop_serving().await;
        self.session.make_durable().await.map_err(|Errno(errno)| Arc::new(self.not_durable(errno)))
    }

    fn not_durable(&self, errno: i32) -> MountError {
        MountError::NotDurable { path: self.place.path.clone(), errno }
    }
}

/// Rings for the mount; `None` where they are not wanted, or not to be had and not insisted on.
fn prepare_rings(channel: &Channel, max_write: u32, options: &MountOptions) -> io::Result<Option<Rings>> {
    if !options.transport.tries_uring() {
        return Ok(None);
    }
    match Rings::prepare(channel.file(), max_write, options.ring_depth) {
        Ok(rings) => Ok(Some(rings)),
        Err(error) if options.transport == Transport::Uring => Err(error),
        Err(error) => {
            tracing::info!(%error, "no FUSE over io_uring here: requests come by /dev/fuse");
            Ok(None)
        }
    }
}

/// The readers of `/dev/fuse`: all of them, or the one that rings need beside them.
fn start_classic<C: Calls>(
    session: &Arc<Session<C>>,
    channel: Arc<Channel>,
    options: &MountOptions,
    agreed: Agreed,
    runtime: &runtime::Handle,
    last: &Arc<LastOut>,
) -> io::Result<()> {
    let threads = if agreed.is_over_uring() { 1 } else { options.threads };
    let mut channels = Vec::with_capacity(threads);
    for _ in 1..threads {
        channels.push(channel.another()?);
    }
    channels.push(channel);
    let buffers =
        Buffers::new(agreed.max_write as usize, threads, options.write_buffers_max, runtime.clone());
    start_readers(session, channels, &buffers, runtime, last)
}

async fn finish<C: Calls>(
    session: Arc<Session<C>>,
    path: PathBuf,
    mut readers: watch::Receiver<Option<ReadersEnd>>,
    finished: watch::Sender<Option<MountEnd>>,
) {
    // An error here means that the sender is gone: the readers ended all the same.
    drop(readers.wait_for(Option::is_some).await);
    let end = match session.finish().await {
        Ok(()) => Ok(()),
        Err(Errno(errno)) => Err(Arc::new(MountError::NotDurable { path: path.clone(), errno })),
    };
    match &end {
        Ok(()) => tracing::info!(path = %path.display(), "unmounted"),
        Err(error) => tracing::error!(%error, "unmounted"),
    }
    finished.send_replace(Some(end));
}
