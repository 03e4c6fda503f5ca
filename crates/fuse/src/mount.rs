//! A mount: its options, its errors, its life from [`Mount::start`] to the end of [`Mount::unmounted`].
//! Owns the session and, until unmounted, the place in the directory tree: a mount that is dropped is
//! taken away by force, so that a failing process leaves no dead directory behind.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use thiserror::Error;
use tokio::{runtime, sync::watch};

use crate::{
    abi,
    buffers::Buffers,
    caching::Caching,
    calls::{Calls, Errno},
    device::{Channel, LastOut, ReadersEnd, start_readers},
    handshake::{Agreed, Limits, shake_hands},
    mountinfo::{Mounted, mounted_at},
    mountpoint::{mount, prepare, unmount},
    session::{KernelSide, Session},
    sys, tune,
    uring::{self, Rings},
    waiting::InFlight,
};

/// How long an unmount that the kernel has done waits for the last data to be durable.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(180);

/// How long a forced end waits for the kernel to write its dirty pages.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// How requests come from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// By io_uring where the kernel has it and lets us, else by `/dev/fuse`.
    #[default]
    Auto,
    /// By reads and writes of `/dev/fuse`.
    Classic,
    /// By io_uring; mounting fails without it.
    Uring,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Classic => "classic",
            Transport::Uring => "uring",
        })
    }
}

impl std::str::FromStr for Transport {
    type Err = String;
    fn from_str(s: &str) -> Result<Transport, String> {
        match s {
            "auto" => Ok(Transport::Auto),
            "classic" => Ok(Transport::Classic),
            "uring" => Ok(Transport::Uring),
            _ => Err(format!("transport {s:?} is not known: auto, classic or uring")),
        }
    }
}

/// How to mount. `..MountOptions::new(mountpoint, fs_name)` gives the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// An empty directory.
    pub mountpoint: PathBuf,
    /// Shown as the source, such as `fs1`.
    pub fs_name: String,
    /// What the kernel may keep.
    pub caching: Caching,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Requests of one CPU that are with us at once over io_uring, waiting ones included: 1..=256.
    /// `None`: as many as memory for all CPUs allows. Each holds up to `max_request` bytes.
    pub ring_depth: Option<usize>,
    /// Reader threads of the classic transport; each serves what is at hand itself. 1..=64.
    pub threads: usize,
    /// Other users than the mounting one may enter. Others than root need `user_allow_other` in
    /// /etc/fuse.conf for it.
    pub allow_other: bool,
    /// No changes.
    pub read_only: bool,
    /// Mount over a directory that has entries.
    pub allow_non_empty: bool,
    /// Set-user-id programs work (root only).
    pub suid: bool,
    /// Device nodes work (root only).
    pub dev: bool,
    /// Reading does not change access times.
    pub no_atime: bool,
    /// Requests the kernel may send on its own (read-ahead, direct I/O) before they are answered.
    pub max_background: u16,
    /// Largest data of one request, bytes: 4 KiB to 16 MiB, whole pages. Above 1 MiB the system's
    /// limit is raised where permitted; where not, the limit holds.
    pub max_request: u32,
    /// How far the kernel reads ahead, bytes, where it may be set.
    pub read_ahead: u32,
    /// Requests under way at most; beyond it the kernel keeps them.
    pub requests_max: u32,
    /// Large writes under way at most, each in a buffer of `max_request`.
    pub write_buffers_max: usize,
}

impl MountOptions {
    /// The defaults, for root.
    pub fn new(mountpoint: impl Into<PathBuf>, fs_name: impl Into<String>) -> MountOptions {
        let cpus = thread::available_parallelism().map_or(2, |n| n.get());
        MountOptions {
            mountpoint: mountpoint.into(),
            fs_name: fs_name.into(),
            caching: Caching::EXCLUSIVE,
            transport: Transport::Auto,
            ring_depth: None,
            threads: cpus.clamp(2, 16),
            allow_other: sys::effective_ids().0 == 0,
            read_only: false,
            allow_non_empty: false,
            suid: false,
            dev: false,
            no_atime: false,
            max_background: 128,
            max_request: 1 << 20,
            read_ahead: 4 << 20,
            requests_max: 4096,
            write_buffers_max: 64,
        }
    }

    /// The most memory that requests take: buffers of the readers and of large writes, entries of rings.
    pub fn memory_max(&self) -> u64 {
        let buffers = self.threads + self.write_buffers_max;
        let classic = buffers as u64 * (u64::from(self.max_request) + 8192);
        let rings = self.transport != Transport::Classic;
        classic + if rings { uring::memory_max(self.max_request) } else { 0 }
    }

    fn validate(&self) -> Result<(), MountError> {
        let bad = |option, value: u64, range| Err(MountError::BadOption { option, value, range });
        if !(1..=64).contains(&self.threads) {
            return bad("threads", self.threads as u64, "1 to 64");
        }
        if let Some(depth) = self.ring_depth.filter(|depth| !(1..=uring::DEPTH_MAX).contains(depth)) {
            return bad("ring_depth", depth as u64, "1 to 256");
        }
        let whole = self.max_request.is_multiple_of(4096);
        if !whole || !(4096..=16 << 20).contains(&self.max_request) {
            return bad("max_request", u64::from(self.max_request), "4k to 16m in whole 4 KiB pages");
        }
        if self.max_background == 0 {
            return bad("max_background", 0, "1 to 65535");
        }
        if self.requests_max == 0 {
            return bad("requests_max", 0, "at least 1");
        }
        if self.write_buffers_max == 0 {
            return bad("write_buffers_max", 0, "at least 1");
        }
        Ok(())
    }
}

/// Why a mount could not be made, or taken away. Each says what to do.
#[derive(Debug, Error)]
pub enum MountError {
    /// No such directory.
    #[error("mount point {} does not exist; make it first: mkdir -p {}", path.display(), path.display())]
    Missing {
        /// The mount point.
        path: PathBuf,
    },
    /// Not a directory.
    #[error("mount point {} is not a directory; give an empty directory", path.display())]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// Something is mounted there.
    #[error(
        "{} already has a mount ({kind} from {from}); unmount it first (umount {}) or give another directory",
        path.display(), path.display()
    )]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// Type of what is there.
        kind: String,
        /// Source of what is there.
        from: String,
    },
    /// It has entries, which a mount would hide.
    #[error("mount point {} is not empty (it holds {entries}, which the mount would hide); give an empty directory", path.display())]
    NotEmpty {
        /// The mount point.
        path: PathBuf,
        /// How many.
        entries: usize,
    },
    /// A FUSE mount without its process, not ours.
    #[error("{} is a mount whose process is gone; take it away first: umount -l {}", path.display(), path.display())]
    Dead {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point cannot be looked at.
    #[error("mount point {} cannot be used: {source}", path.display())]
    Unusable {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No FUSE in this kernel or container.
    #[error(
        "/dev/fuse is not there: load the kernel module (modprobe fuse), or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
    )]
    NoDevice,
    /// /dev/fuse may not be opened.
    #[error("no permission for /dev/fuse: run as root, or have the administrator do chmod 666 /dev/fuse")]
    DevicePermission,
    /// Mounting is not permitted.
    #[error("no permission to mount at {}: {detail}; run as root (in a container with --cap-add SYS_ADMIN), or own the directory and have the fuse3 package installed", path.display())]
    Permission {
        /// The mount point.
        path: PathBuf,
        /// The system's or the helper's words.
        detail: String,
    },
    /// Not root, and no helper.
    #[error("cannot mount at {} without being root: fusermount3 is missing; install it (apt-get install fuse3) or run as root", path.display())]
    NoHelper {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel refused the mount.
    #[error("mounting at {} failed: {source}", path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The first exchange with the kernel failed.
    #[error("the kernel did not start the FUSE connection: {source}")]
    Handshake {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Kernel too old, or of another major version.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or newer is needed")]
    Protocol {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// Threads or device queues could not be made.
    #[error("starting the readers of {} failed: {source}", path.display())]
    Readers {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// FUSE over io_uring was asked for.
    #[error("{} cannot be mounted over io_uring: {source}; mount with the classic transport, or with `auto`", path.display())]
    NoUring {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An option outside its range.
    #[error("mount option {option}: {value} is outside its range, {range}")]
    BadOption {
        /// Its name.
        option: &'static str,
        /// What was given.
        value: u64,
        /// What may be.
        range: &'static str,
    },
    /// In use.
    #[error("{} is in use{}; close what is open there, or unmount by force", path.display(), by(users))]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// Some of the processes, as "name (pid)".
        users: Vec<String>,
    },
    /// The kernel refused to unmount.
    #[error("unmounting {} failed: {source}", path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Unmounted, but the last data is not known to be durable.
    #[error("{} is unmounted, but its last data could not be made durable: {}", path.display(), base::errno::text(*errno))]
    NotDurable {
        /// The mount point.
        path: PathBuf,
        /// Why.
        errno: i32,
    },
}

fn by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

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
        if options.transport != Transport::Classic {
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
        // Without it a file opened with O_DSYNC could not be mapped.
        caching.parallel_durable &= agreed.flags & abi::init_flags::DIRECT_IO_ALLOW_MMAP != 0;
        let session = Arc::new(Session::new(
            calls,
            channel.clone(),
            options.requests_max,
            options.read_only,
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
        runtime.spawn(finish(session.clone(), place.path.clone(), readers, finished));
        tracing::info!(path = %place.path.display(), ?agreed, "mounted");
        Ok(Mount { place, session, agreed, end })
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
        let place = self.place.clone();
        // The kernel writes dirty pages during this call, by requests to us.
        let done = tokio::task::spawn_blocking(move || place.unmount(force)).await;
        match done {
            Ok(Ok(())) if force => Ok(()),
            Ok(Ok(())) => match tokio::time::timeout(FLUSH_TIMEOUT, self.unmounted()).await {
                Ok(end) => end,
                Err(_) => Err(Arc::new(self.not_durable(libc::ETIMEDOUT))),
            },
            Ok(Err(error)) => Err(Arc::new(error)),
            Err(_) => Err(Arc::new(self.not_durable(libc::EIO))),
        }
    }

    /// The end on SIGTERM: unmounts if nothing is in use; otherwise writes what the kernel still holds
    /// and unmounts by force, since a process that was told to end will not be asked twice.
    pub async fn end_on_signal(&self) -> MountEnd {
        match self.unmount(false).await {
            Err(error) if matches!(*error, MountError::Busy { .. }) => {
                tracing::warn!(%error, "told to end: unmounting by force");
            }
            end => return end,
        }
        let path = self.place.path.clone();
        let synced = tokio::task::spawn_blocking(move || File::open(path).and_then(|f| sys::syncfs(&f)));
        if let Ok(Ok(Err(error))) = tokio::time::timeout(SYNC_TIMEOUT, synced).await {
            tracing::warn!(%error, "pages of the kernel could not be written");
        }
        self.unmount(true).await?;
        self.unmounted().await
    }

    fn not_durable(&self, errno: i32) -> MountError {
        MountError::NotDurable { path: self.place.path.clone(), errno }
    }
}

/// Rings for the mount; `None` where they are not wanted, or not to be had and not insisted on.
fn prepare_rings(channel: &Channel, max_write: u32, options: &MountOptions) -> io::Result<Option<Rings>> {
    if options.transport == Transport::Classic {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outside_their_range_are_refused_by_name() {
        let options = MountOptions { threads: 0, ..MountOptions::new("/x", "fs1") };
        let message = options.validate().unwrap_err().to_string();
        assert!(message.contains("threads") && message.contains('0'), "{message}");
        let options = MountOptions { max_request: 5000, ..MountOptions::new("/x", "fs1") };
        assert!(options.validate().unwrap_err().to_string().contains("max_request"));
        assert!(MountOptions::new("/x", "fs1").validate().is_ok());
    }

    #[test]
    fn errors_say_where_and_what_to_do() {
        let path = PathBuf::from("/mnt/fs1");
        let missing = MountError::Missing { path: path.clone() }.to_string();
        assert_eq!(missing, "mount point /mnt/fs1 does not exist; make it first: mkdir -p /mnt/fs1");
        let busy = MountError::Busy { path, users: vec!["bash (42)".into()] }.to_string();
        assert_eq!(busy, "/mnt/fs1 is in use by bash (42); close what is open there, or unmount by force");
    }
}
