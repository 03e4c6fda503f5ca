//! The kernel's FUSE interface, as in `linux/fuse.h` (protocol 7.31 to 7.45): numbers and structures.
//! Byte order is the machine's own: this is an interface to the kernel, not a format.
//! Only what the mount uses is here. Structures are plain old data without padding holes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const KERNEL_VERSION: u32 = 7;
/// Minor version this code speaks; an older kernel answers with its own.
pub const KERNEL_MINOR_VERSION: u32 = 42;
/// Oldest minor version accepted (Linux 5.4, 2019): all structures have their present size since then.
pub const KERNEL_MINOR_VERSION_MIN: u32 = 31;

/// Operation numbers.
pub mod opcode {
    #![allow(missing_docs)] // the kernel's own names
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Capabilities exchanged at INIT; bits 32..63 travel in `flags2`.
pub mod init_flags {
    #![allow(missing_docs)] // the kernel's own names
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Which fields of [`SetattrIn`] are meant.
pub mod fattr {
    #![allow(missing_docs)] // the kernel's own names
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of an open answer.
pub mod fopen {
    #![allow(missing_docs)] // the kernel's own names
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// WRITE: the kernel writes from its page cache; the handle is any writable one of the inode.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: it says who owns locks, which only those do that go round the page cache.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// READ: the same. Any other READ fills pages of the cache, whatever its handle.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// WRITE: setuid and setgid are to be cleared.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// OPEN with O_TRUNC: setuid and setgid are to be cleared.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// Lock requests: it is flock, not fcntl.
pub const LK_FLOCK: u32 = 1 << 0;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// Notification that pages of an inode are to be dropped.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Ring command: here is an entry's memory, bring a request.
pub const URING_CMD_REGISTER: u32 = 1;
/// Ring command: the entry holds the answer, bring the next request.
pub const URING_CMD_COMMIT_AND_FETCH: u32 = 2;
/// Bytes of an entry's first header area: the request's header, or the answer's.
pub const URING_IN_OUT_HEADER_LEN: usize = 128;
/// Bytes of its second: the operation's own structure.
pub const URING_OP_IN_LEN: usize = 128;
/// The least that an entry has for data.
pub const URING_PAYLOAD_MIN: usize = 8192;
/// Notification: names and what they lead to are believed no more (since 7.44, Linux 6.16).
pub const NOTIFY_INC_EPOCH: i32 = 8;
/// The protocol version that has it.
pub const INC_EPOCH_MINOR: u32 = 44;
/// From here on (Linux 5.10) the kernel surely believes nothing of an answer that was under way while it was told to drop attributes: it does since
/// 5.8, which has the version before.
pub const INVAL_COUNTED_MINOR: u32 = 32;
/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
pub const DEV_IOC_CLONE: u64 = 0x8004_e500;

macro_rules! abi {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)] // fields keep the kernel's names
        pub struct $name { $(pub $field: $type),* }
    };
}

abi!(/// Begins every request.
InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 });
abi!(/// Begins every answer; `error` is 0 or a negative errno, and a positive code in notifications.
OutHeader { len: u32, error: i32, unique: u64 });
abi!(/// INIT.
InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 });
abi!(/// INIT, rest of it, with INIT_EXT.
InitInExt { flags2: u32, unused: [u32; 11] });
abi!(/// Answer to INIT.
InitOut {
    major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
    max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
    request_timeout: u16, unused16: u16, unused: [u32; 5],
});
abi!(/// Attributes of an inode.
FuseAttr {
    ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
    ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
});
abi!(/// Answer to LOOKUP, MKNOD, MKDIR, SYMLINK, LINK; first part of CREATE's and TMPFILE's.
EntryOut {
    nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
    attr: FuseAttr,
});
abi!(/// Answer to GETATTR and SETATTR.
AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: FuseAttr });
abi!(/// A time of [`StatxOut`].
SxTime { sec: i64, nsec: u32, reserved: i32 });
abi!(/// Answer to STATX.
StatxOut {
    attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2],
    mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
    ino: u64, size: u64, blocks: u64, attributes_mask: u64,
    atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
    rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
});
abi!(/// SETATTR.
SetattrIn {
    valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
    atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
});
abi!(/// MKNOD.
MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 });
abi!(/// MKDIR.
MkdirIn { mode: u32, umask: u32 });
abi!(/// RENAME.
RenameIn { newdir: u64 });
abi!(/// RENAME2.
Rename2In { newdir: u64, flags: u32, padding: u32 });
abi!(/// LINK.
LinkIn { oldnodeid: u64 });
abi!(/// ACCESS.
AccessIn { mask: u32, padding: u32 });
abi!(/// OPEN and OPENDIR.
OpenIn { flags: u32, open_flags: u32 });
abi!(/// CREATE and TMPFILE.
CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 });
abi!(/// Answer to OPEN; second part of CREATE's and TMPFILE's.
OpenOut { fh: u64, open_flags: u32, backing_id: u32 });
abi!(/// RELEASE.
ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 });
abi!(/// FLUSH.
FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 });
abi!(/// A lock: both bytes belong to it; types are F_RDLCK, F_WRLCK, F_UNLCK.
FileLock { start: u64, end: u64, kind: u32, pid: u32 });
abi!(/// GETLK, SETLK, SETLKW.
LkIn { fh: u64, owner: u64, lock: FileLock, lk_flags: u32, padding: u32 });
abi!(/// READ, READDIR, READDIRPLUS.
ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 });
abi!(/// WRITE; the data follows.
WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 });
abi!(/// Answer to WRITE and COPY_FILE_RANGE.
WriteOut { size: u32, padding: u32 });
abi!(/// Answer to COPY_FILE_RANGE_64.
CopyFileRangeOut { bytes_copied: u64 });
abi!(/// Answer to STATFS.
StatfsOut {
    blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
    padding: u32, spare: [u32; 6],
});
abi!(/// FSYNC and FSYNCDIR.
FsyncIn { fh: u64, fsync_flags: u32, padding: u32 });
abi!(/// SETXATTR (without SETXATTR_EXT); name and value follow.
SetxattrIn { size: u32, flags: u32 });
abi!(/// GETXATTR and LISTXATTR.
GetxattrIn { size: u32, padding: u32 });
abi!(/// Answer to GETXATTR and LISTXATTR of size 0.
GetxattrOut { size: u32, padding: u32 });
abi!(/// FORGET.
ForgetIn { nlookup: u64 });
abi!(/// BATCH_FORGET; `count` of [`ForgetOne`] follow.
BatchForgetIn { count: u32, dummy: u32 });
abi!(/// One inode of BATCH_FORGET.
ForgetOne { nodeid: u64, nlookup: u64 });
abi!(/// What an entry of a ring carries beside its request or answer.
UringEntInOut { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 });
abi!(/// In the command area of a submission.
UringCmdReq { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] });
abi!(/// INTERRUPT.
InterruptIn { unique: u64 });
abi!(/// FALLOCATE.
FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 });
abi!(/// LSEEK.
LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 });
abi!(/// Answer to LSEEK.
LseekOut { offset: u64 });
abi!(/// COPY_FILE_RANGE.
CopyFileRangeIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 });
abi!(/// An entry of READDIR's answer; the name follows, padded to 8 bytes.
Dirent { ino: u64, off: u64, namelen: u32, kind: u32 });
abi!(/// Notification: drop cached attributes and, from `off`, `len` bytes (0: to the end) of pages.
NotifyInvalInodeOut { ino: u64, off: i64, len: i64 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitIn>() + size_of::<InitInExt>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<FuseAttr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<StatxOut>(), 288);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<StatfsOut>(), 80);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!((size_of::<LkIn>(), size_of::<FileLock>()), (48, 24));
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
        assert_eq!(size_of::<Dirent>(), 24);
        assert_eq!(size_of::<UringEntInOut>(), 32);
        assert_eq!(size_of::<UringCmdReq>(), 24);
    }
}
