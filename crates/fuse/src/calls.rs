//! What the mount asks of the file system below it: the client, and in tests and for the ceiling of the
//! transport something simpler.
//! Every call is answered or fails within the file system's own deadline; the mount adds none.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use base::InodeNo;
use bytes::Bytes;
use tokio::sync::Notify;
use wire::{
    lock::Lock,
    mgr::{Attr, FileKind},
};

pub use client::{
    Errno, Fallocate, Handle, KernelCache, Listing, OpenFlags, Privileges, SetAttrs, WriteFlags,
};

/// Setting this attribute (by whoever may write the file) gives up what is cached of it; nothing is stored.
/// It is in none of the name spaces of attributes, so that no other file system takes it for one to keep.
/// (The kernel's own advice, fadvise, stays in the kernel.)
pub const UNCACHE_ATTRIBUTE: &[u8] = b"ropewalk.uncache";

/// Asking for this attribute of anything on a mount makes durable all that was written on the mount before; its value is empty. sync(2)
/// and syncfs(2) never come. As with these, whoever may read something there may do it, on a squashed machine too: nothing is changed,
/// and few do it at a time. It is a question because the kernel locks what it sets an attribute of: as long as this takes nobody could
/// make a name in that directory or write to that file, and who waited for the lock could not be killed.
pub const SYNC_ATTRIBUTE: &[u8] = b"ropewalk.sync";

/// What a read gave, in order; together shorter than asked only at the end of the file.
pub type ReadData = Vec<Bytes>;

/// Capacity and use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Bytes of file data that fit.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// What a new inode is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewInode {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits, umask applied.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Target of a symlink.
    pub target: Vec<u8>,
    /// Succeed with a file that exists already.
    pub existing_ok: bool,
}

/// A fallible answer that comes later.
pub trait Answer<T>: Future<Output = Result<T, Errno>> + Send {}
impl<T, F: Future<Output = Result<T, Errno>> + Send> Answer<T> for F {}

/// The calls of a mount. Names are bytes without '/' and NUL, of 1 to 255 bytes, "." and ".." only in
/// `lookup`. Futures may be polled on any thread inside the runtime, first on a request thread:
/// what is at hand should be answered without waiting.
pub trait Calls: Send + Sync + 'static {
    /// The way to what the kernel caches of this mount, given once at its start.
    fn attach(&self, kernel: Arc<dyn KernelCache>) {
        let _ = kernel;
    }
    /// Whether the handle was opened while others had the file system mounted.
    fn is_shared(&self, handle: Handle) -> bool {
        let _ = handle;
        false
    }
    /// An entry by name; "." also of what is no directory: the inode of a file handle.
    fn lookup(&self, parent: InodeNo, name: &[u8]) -> impl Answer<Attr>;
    /// Attributes.
    fn getattr(&self, ino: InodeNo) -> impl Answer<Attr>;
    /// Changes attributes.
    fn setattr(&self, ino: InodeNo, set: SetAttrs) -> impl Answer<Attr>;
    /// Target of a symlink.
    fn readlink(&self, ino: InodeNo) -> impl Answer<Vec<u8>>;
    /// A new inode under a name, and whether it was made now.
    fn create(&self, parent: InodeNo, name: &[u8], new: NewInode) -> impl Answer<(Attr, bool)>;
    /// A new file without a name, opened; `linkable`: [`Calls::link`] may give it one. Without one it goes with its last handle.
    fn create_unnamed(
        &self,
        parent: InodeNo,
        new: NewInode,
        linkable: bool,
        flags: OpenFlags,
    ) -> impl Answer<(Attr, Handle)> {
        let _ = (parent, new, linkable, flags);
        async { Err(Errno(libc::EOPNOTSUPP)) }
    }
    /// Another name for a file.
    fn link(&self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> impl Answer<Attr>;
    /// Removes a name, of a directory with `directory`.
    fn unlink(&self, parent: InodeNo, name: &[u8], directory: bool) -> impl Answer<()>;
    /// Moves a name.
    fn rename(
        &self,
        parent: InodeNo,
        name: &[u8],
        new_parent: InodeNo,
        new_name: &[u8],
        no_replace: bool,
        exchange: bool,
    ) -> impl Answer<()>;
    /// Opens a file.
    fn open(&self, ino: InodeNo, flags: OpenFlags) -> impl Answer<Handle>;
    /// Closes it. Data still to be written is written in its own time.
    fn release(&self, handle: Handle);
    /// Bytes of a file, fewer than `len` only at its end.
    fn read(&self, handle: Handle, offset: u64, len: u32) -> impl Answer<ReadData>;
    /// Writes all of `data`, or says how much, as this one write is asked for: the handle may have been opened otherwise. What
    /// appends chooses the offset itself, unless the caller of `open` does so.
    fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        privileges: Privileges,
    ) -> impl Answer<usize>;
    /// A page of the kernel's cache, which has its place in the file; also by handles that append.
    fn write_page(&self, handle: Handle, offset: u64, data: &[u8]) -> impl Answer<usize>;
    /// A descriptor of the handle is closed: errors of earlier writes show here.
    fn flush(&self, handle: Handle) -> impl Answer<()>;
    /// Whether locks are kept below; else the kernel keeps them, of this mount by itself.
    fn keeps_locks(&self) -> bool {
        false
    }
    /// Sets a lock, or gives it up with mode `None`; waits for it with `interrupted`, until that is notified.
    fn lock(&self, handle: Handle, lock: Lock, interrupted: Option<Arc<Notify>>) -> impl Answer<()> {
        let _ = (handle, lock, interrupted);
        async { Err(Errno(libc::ENOSYS)) }
    }
    /// A lock of another owner that stands in the way of `lock`.
    fn test_lock(&self, ino: InodeNo, lock: Lock) -> impl Answer<Option<Lock>> {
        let _ = (ino, lock);
        async { Err(Errno(libc::ENOSYS)) }
    }
    /// `owner` closes a descriptor: its fcntl locks of the file are gone.
    fn drop_locks(&self, ino: InodeNo, owner: u64) -> impl Future<Output = ()> + Send {
        let _ = (ino, owner);
        async {}
    }
    /// Makes a file or directory durable; with a handle, errors of earlier writes show here as well.
    fn fsync(&self, ino: InodeNo, handle: Option<Handle>, datasync: bool) -> impl Answer<()>;
    /// Allocates, punches or zeroes.
    fn fallocate(
        &self,
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> impl Answer<()>;
    /// The next data at or after `offset`; ENXIO if there is none.
    fn seek_data(&self, handle: Handle, offset: u64) -> impl Answer<u64>;
    /// The next hole at or after `offset`, at the latest the end of the file; ENXIO beyond it.
    fn seek_hole(&self, handle: Handle, offset: u64) -> impl Answer<u64>;
    /// Copies bytes inside the file system, and says how many.
    fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> impl Answer<u64>;
    /// Entries after `cookie` (0: from the start), at most `limit`, with attributes if `plus`.
    fn readdir(&self, ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> impl Answer<Listing>;
    /// Value of an extended attribute.
    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> impl Answer<Vec<u8>>;
    /// Names of extended attributes.
    fn listxattr(&self, ino: InodeNo) -> impl Answer<Vec<Vec<u8>>>;
    /// Sets an extended attribute; `create`: must be new, `replace`: must exist.
    fn setxattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> impl Answer<()>;
    /// Removes an extended attribute.
    fn removexattr(&self, ino: InodeNo, name: &[u8]) -> impl Answer<()>;
    /// Capacity and use.
    fn statfs(&self) -> impl Answer<StatFs>;
    /// Makes everything durable.
    fn sync_all(&self) -> impl Answer<()>;
    /// The same at the end of the mount, when nobody is there to try it again: it may be tried until `deadline`.
    fn sync_until(&self, deadline: Instant) -> impl Answer<()> {
        let _ = deadline;
        self.sync_all()
    }
    /// How long the kernel, which is about to be told these attributes as the answer to a question about them, may believe them:
    /// until they are taken away by [`KernelCache::drop_attr`].
    fn attr_ttl(&self, attr: &Attr) -> Duration {
        let _ = attr;
        Duration::ZERO
    }
    /// `n` references to the inode are given up. Every answer of `lookup`, `create`, `create_unnamed`, `link`, and every
    /// entry of `readdir` with attributes, is one reference; each is given up once, at the latest at the
    /// end of the mount.
    fn forget(&self, ino: InodeNo, n: u64);
}
