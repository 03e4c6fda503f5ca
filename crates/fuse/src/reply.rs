//! Answers: what a request's handler gives back ([`Answer`]), how it is laid out for the kernel, and
//! the promise that every request is answered exactly once ([`Reply`]).
//! A reply that is dropped without an answer (a panic, a cancelled task) sends EIO: otherwise the
//! asking thread would wait for ever.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use wire::mgr::{Attr, FileKind};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::{
    abi,
    caching::Caching,
    calls::{ReadData, StatFs},
    request::{Header, operation_name},
    waiting::{InFlight, Waiting},
};

/// Takes answers to the kernel: one transport's way.
pub trait Sink: Send + Sync {
    /// Sends an answer; `error` is 0 or a positive errno. Fails with ENOENT if nobody waits any more.
    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()>;
    /// Where waiting for a lock, which may take for ever, takes something that unlocking needs as well: as
    /// many permits as may be taken so.
    fn wait_room(&self) -> Option<&Arc<Semaphore>> {
        None
    }
}

/// What a handler gives back.
#[derive(Debug)]
pub enum Answer {
    /// Done, nothing to say.
    Done,
    /// An entry; the kernel gets a reference.
    Entry(Box<Attr>),
    /// No such entry, and the kernel may remember that.
    Absent,
    /// An entry and an open handle on it; the kernel gets a reference.
    Created(Box<Attr>, u64, u32),
    /// Attributes.
    Attr(Box<Attr>),
    /// Attributes with creation time.
    Statx(Box<Attr>),
    /// Handle and flags.
    Opened(u64, u32),
    /// An open directory, which has no handle; nothing of it is kept.
    OpenedDirectory,
    /// Bytes taken.
    Written(u32),
    /// Bytes copied, 64 bits.
    Copied(u64),
    /// File data.
    Data(ReadData),
    /// Encoded bytes, and the entries in them of which the kernel gets references.
    Entries(Vec<u8>, Vec<Attr>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Length of an extended attribute or of the list of names.
    XattrSize(u32),
    /// Position found.
    Offset(u64),
    /// Capacity and use.
    Statfs(StatFs),
    /// The lock in the way, or none.
    Lock(abi::FileLock),
}

impl Answer {
    /// Bytes of file data that it gives or says were taken.
    pub fn moved(&self) -> u64 {
        match self {
            Answer::Written(bytes) => u64::from(*bytes),
            Answer::Copied(bytes) => *bytes,
            Answer::Data(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            _ => 0,
        }
    }
}

/// The right and duty to answer one request.
pub struct Reply {
    cell: Arc<Cell>,
    waiting: Arc<Waiting>,
    _permit: OwnedSemaphorePermit,
}

/// The part of a reply that an interrupt can reach.
pub struct Cell {
    header: Header,
    since: Instant,
    sink: Arc<dyn Sink>,
    sent: AtomicBool,
    interrupted: Arc<Notify>,
}

impl Cell {
    /// Sends `error` in place of the answer, if that is not yet given.
    pub fn cut(&self, error: i32) {
        if !self.sent.swap(true, Ordering::AcqRel) {
            log_lost(&self.header, self.sink.send(self.header.unique, error, &[]));
        }
    }

    /// The request.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Told when the one who waits for a lock is to wait no more.
    pub fn interrupted(&self) -> &Arc<Notify> {
        &self.interrupted
    }

    /// The way of its answer.
    pub fn sink(&self) -> &dyn Sink {
        &*self.sink
    }

    /// Whether it has its answer.
    pub fn is_answered(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// For listings.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            operation: operation_name(self.header.opcode),
            ino: self.header.ino,
            pid: self.header.pid,
            age: self.since.elapsed(),
        }
    }
}

impl Reply {
    /// Enters the request into the table of those that wait. With it, if its interrupt came before it,
    /// what that is about.
    pub fn new(
        header: Header,
        sink: Arc<dyn Sink>,
        waiting: Arc<Waiting>,
        permit: OwnedSemaphorePermit,
    ) -> (Reply, Option<Arc<Cell>>) {
        let cell = Arc::new(Cell {
            header,
            since: Instant::now(),
            sink,
            sent: AtomicBool::new(false),
            interrupted: Arc::default(),
        });
        let early = waiting.enter(header.unique, cell.clone()).then(|| cell.clone());
        (Reply { cell, waiting, _permit: permit }, early)
    }

    /// When the request came.
    pub fn since(&self) -> Instant {
        self.cell.since
    }

    /// Sends an error.
    pub fn error(self, errno: i32) {
        self.cell.cut(errno);
    }

    /// Sends an answer. False if nobody took it: references in it do not count.
    pub fn answer(self, answer: &Answer, caching: &Caching) -> bool {
        if self.cell.sent.swap(true, Ordering::AcqRel) {
            return false;
        }
        let header = self.cell.header;
        let sent = with_parts(answer, caching, |parts| self.cell.sink.send(header.unique, 0, parts));
        let taken = sent.is_ok();
        log_lost(&header, sent);
        taken
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.waiting.leave(self.cell.header.unique);
        if !self.cell.is_answered() {
            tracing::error!(header = ?self.cell.header, "request ended without an answer");
            self.cell.cut(libc::EIO);
        }
    }
}

fn log_lost(header: &Header, sent: io::Result<()>) {
    let Err(error) = sent else { return };
    match error.raw_os_error() {
        // The asker was killed, or the mount is gone.
        Some(libc::ENOENT | libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED) => {}
        _ => tracing::error!(?header, %error, "kernel refused an answer"),
    }
}

/// Lays an answer out for the kernel, without copying file data.
fn with_parts<R>(answer: &Answer, caching: &Caching, send: impl FnOnce(&[&[u8]]) -> R) -> R {
    match answer {
        Answer::Done => send(&[]),
        Answer::Entry(attr) => send(&[entry_out(attr, caching).as_bytes()]),
        Answer::Absent => {
            let (entry_valid, entry_valid_nsec) = split(caching.entry_ttl);
            let none = abi::EntryOut { entry_valid, entry_valid_nsec, ..Default::default() };
            send(&[none.as_bytes()])
        }
        Answer::Created(attr, fh, open_flags) => {
            let open = abi::OpenOut { fh: *fh, open_flags: *open_flags, backing_id: 0 };
            send(&[entry_out(attr, caching).as_bytes(), open.as_bytes()])
        }
        Answer::Attr(attr) => {
            let (attr_valid, attr_valid_nsec) = split(caching.attr_ttl);
            let out = abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: fuse_attr(attr) };
            send(&[out.as_bytes()])
        }
        Answer::Statx(attr) => send(&[statx_out(attr, caching).as_bytes()]),
        Answer::Opened(fh, open_flags) => {
            send(&[abi::OpenOut { fh: *fh, open_flags: *open_flags, backing_id: 0 }.as_bytes()])
        }
        Answer::OpenedDirectory => send(&[abi::OpenOut::default().as_bytes()]),
        Answer::Written(size) => send(&[abi::WriteOut { size: *size, padding: 0 }.as_bytes()]),
        Answer::Copied(bytes) => send(&[abi::CopyFileRangeOut { bytes_copied: *bytes }.as_bytes()]),
        Answer::Data(parts) => send(&parts.iter().map(|b| &b[..]).collect::<Vec<_>>()),
        Answer::Entries(bytes, _) | Answer::Bytes(bytes) => send(&[bytes]),
        Answer::XattrSize(size) => send(&[abi::GetxattrOut { size: *size, padding: 0 }.as_bytes()]),
        Answer::Offset(offset) => send(&[abi::LseekOut { offset: *offset }.as_bytes()]),
        Answer::Statfs(s) => send(&[statfs_out(s).as_bytes()]),
        Answer::Lock(lock) => send(&[lock.as_bytes()]),
    }
}

fn split(ttl: Duration) -> (u64, u32) {
    (ttl.as_secs(), ttl.subsec_nanos())
}

/// S_IFMT bits of a kind.
pub fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// The kind that S_IFMT bits mean; none are a regular file.
pub fn kind_of(mode: u32) -> Option<FileKind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        _ => return None,
    })
}

fn io_size(attr: &Attr) -> u32 {
    if attr.block_size == 0 { 4096 } else { attr.block_size }
}

/// Attributes as the kernel takes them.
pub fn fuse_attr(attr: &Attr) -> abi::FuseAttr {
    abi::FuseAttr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.stored.div_ceil(512),
        atime: attr.atime.secs,
        mtime: attr.mtime.secs,
        ctime: attr.ctime.secs,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: kind_bits(attr.kind) | u32::from(attr.mode & 0o7777),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: io_size(attr),
        flags: 0,
    }
}

/// An entry as the kernel takes it. Inode numbers are never used again: one generation is enough.
pub fn entry_out(attr: &Attr, caching: &Caching) -> abi::EntryOut {
    let mut out = abi::EntryOut { nodeid: attr.ino.0, attr: fuse_attr(attr), ..Default::default() };
    set_lifetimes(&mut out, caching);
    out
}

/// Says how long the kernel may keep it.
pub fn set_lifetimes(out: &mut abi::EntryOut, caching: &Caching) {
    (out.entry_valid, out.entry_valid_nsec) = split(caching.entry_ttl);
    (out.attr_valid, out.attr_valid_nsec) = split(caching.attr_ttl);
}

/// Says in a listing with attributes how long the kernel may keep them: as it is sent, since others may have come after it was asked for.
pub fn set_lifetimes_listed(mut bytes: &mut [u8], caching: &Caching) {
    const HEADER: usize = size_of::<abi::EntryOut>() + size_of::<abi::Dirent>();
    while let Ok((mut entry, rest)) = abi::EntryOut::read_from_prefix(bytes)
        && let Ok((dirent, _)) = abi::Dirent::read_from_prefix(rest)
    {
        if entry.nodeid != 0 {
            set_lifetimes(&mut entry, caching);
            // It was read from there: it fits.
            let _ = entry.write_to_prefix(bytes);
        }
        let len = (HEADER + dirent.namelen as usize).next_multiple_of(8).min(bytes.len());
        bytes = &mut bytes[len..];
    }
}

fn statx_out(attr: &Attr, caching: &Caching) -> abi::StatxOut {
    let (attr_valid, attr_valid_nsec) = split(caching.attr_ttl);
    let time = |t: wire::mgr::Timestamp| abi::SxTime { sec: t.secs, nsec: t.nanos, reserved: 0 };
    let mut out = abi::StatxOut::new_zeroed();
    out.attr_valid = attr_valid;
    out.attr_valid_nsec = attr_valid_nsec;
    out.mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    out.blksize = io_size(attr);
    out.nlink = attr.nlink;
    out.uid = attr.uid;
    out.gid = attr.gid;
    out.mode = kind_bits(attr.kind) as u16 | (attr.mode & 0o7777);
    out.ino = attr.ino.0;
    out.size = attr.size;
    out.blocks = attr.stored.div_ceil(512);
    out.atime = time(attr.atime);
    out.btime = time(attr.btime);
    out.ctime = time(attr.ctime);
    out.mtime = time(attr.mtime);
    // The kernel's 32-bit device number: 12 bits major, 20 bits minor around it.
    out.rdev_major = (attr.rdev >> 8) & 0xfff;
    out.rdev_minor = (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00);
    out
}

fn statfs_out(s: &StatFs) -> abi::StatfsOut {
    const FRAGMENT: u64 = 4096;
    // Inodes are bounded by space only; a new one takes a fragment at most before it has data.
    let inodes_free = s.free / FRAGMENT;
    abi::StatfsOut {
        blocks: s.total / FRAGMENT,
        bfree: s.free / FRAGMENT,
        bavail: s.free / FRAGMENT,
        files: s.inodes + inodes_free,
        ffree: inodes_free,
        bsize: FRAGMENT as u32,
        namelen: wire::mgr::NAME_LEN_MAX as u32,
        frsize: FRAGMENT as u32,
        padding: 0,
        spare: [0; 6],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_survive_the_way_to_the_kernel_and_back() {
        use FileKind::*;
        for kind in [File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice] {
            assert_eq!(kind_of(kind_bits(kind) | 0o644), Some(kind));
        }
        assert_eq!(kind_of(0o644), Some(File));
        assert_eq!(kind_of(0o030000), None);
    }

    #[test]
    fn device_numbers_are_split_as_the_kernel_does() {
        // major 0x123, minor 0x45678: new_encode_dev gives (minor & 0xff) | major << 8 | (minor & ~0xff) << 12
        let attr = Attr { rdev: 0x78 | 0x123 << 8 | 0x456 << 20, ..Attr::default() };
        let out = statx_out(&attr, &Caching::EXCLUSIVE);
        assert_eq!((out.rdev_major, out.rdev_minor), (0x123, 0x45678));
    }
}
