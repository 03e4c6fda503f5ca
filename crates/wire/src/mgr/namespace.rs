//! What the namespace is made of, and what can be done to it.

use base::{BlockIndex, InodeNo, Version};
use serde::{Deserialize, Serialize};

pub use crate::credentials::without_privileges;

/// Longest name in a directory, bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest symlink target, bytes.
pub const SYMLINK_LEN_MAX: usize = 4095;
/// Longest extended attribute name, bytes.
pub const XATTR_NAME_LEN_MAX: usize = 255;
/// Extended attribute of every inode that names its pool. Setting it on a directory directs what is made
/// there from then on, and below, to that pool; nothing that exists moves. Not listed, so not copied along.
pub const POOL_XATTR: &[u8] = b"ropewalk.pool";
/// How names of extended attributes that can be set begin.
pub const XATTR_NAMESPACES: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];
/// Longest extended attribute value, bytes.
pub const XATTR_VALUE_LEN_MAX: usize = 64 << 10;
/// Most bytes of a file kept inside its inode.
pub const INLINE_LEN_MAX: usize = 16 << 10;
/// Inode numbers granted at once, at most.
pub const NUMBERS_MAX: u32 = 1 << 16;
/// Largest file size, bytes (off_t).
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// A point in time: nanoseconds belong to the second, also before 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC.
    pub secs: i64,
    /// 0..=999_999_999.
    pub nanos: u32,
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    #[default]
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// Attributes of an inode.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attr {
    /// Its number.
    pub ino: InodeNo,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid, sticky: 0..=0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead to it; for directories 2 + subdirectories.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage, without redundancy: allocated blocks (cut at the size) or inline data.
    pub stored: u64,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// The pool of its blocks.
    pub pool: base::PoolId,
    /// Bytes of a block; fixed at creation.
    pub block_size: u32,
    /// Whether the bytes are in the inode: so for every file without an allocated block.
    pub inline: bool,
    /// Whether it has no extended attribute.
    pub plain: bool,
}

/// A run of allocated blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Extent {
    /// First block.
    pub first: BlockIndex,
    /// Blocks, above 0.
    pub count: u64,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirEntry {
    /// Its name: 1..=255 bytes without '/' and NUL.
    pub name: Vec<u8>,
    /// Where it leads.
    pub ino: InodeNo,
    /// What is there.
    pub kind: FileKind,
    /// Position: listing goes on after it; stable while the entry exists. At least 128 and below 2^63:
    /// smaller numbers are the reader's own, for "." and "..".
    pub cookie: u64,
    /// With `plus`: the attributes.
    pub attr: Option<Attr>,
}

/// What to do to the namespace.
///
/// `highest` is of the session's own grant, above every version it has written to the inode so far;
/// its `seq` is 0 if this session has written no block of the inode (then a file that never had
/// blocks costs no delete). Everything of earlier grants is below it by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A new inode under a name.
    Create {
        /// Directory.
        parent: InodeNo,
        /// Name.
        name: Vec<u8>,
        /// What.
        kind: FileKind,
        /// Permission bits, umask applied.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group (the setgid rule of directories is applied by the manager).
        gid: u32,
        /// Device number.
        rdev: u32,
        /// Symlinks: the target.
        target: Vec<u8>,
        /// When.
        now: Timestamp,
        /// If the name exists as a file: succeed with it (open with O_CREAT without O_EXCL).
        existing_ok: bool,
    },
    /// Another name for a file.
    Link {
        /// The file.
        ino: InodeNo,
        /// Directory.
        parent: InodeNo,
        /// Name.
        name: Vec<u8>,
        /// When.
        now: Timestamp,
    },
    /// Removes a name (file or, with `directory`, an empty directory).
    Unlink {
        /// Directory.
        parent: InodeNo,
        /// Name.
        name: Vec<u8>,
        /// rmdir instead of unlink.
        directory: bool,
        /// Inodes the client holds open: if the removed one is among them it lives on until Forget.
        open: bool,
        /// Above every version the client has written so far.
        highest: Version,
        /// The inode whose token the client holds for this: ESTALE if the name leads to another.
        expect: Option<InodeNo>,
        /// When.
        now: Timestamp,
    },
    /// Moves a name.
    Rename {
        /// From directory.
        parent: InodeNo,
        /// From name.
        name: Vec<u8>,
        /// To directory.
        new_parent: InodeNo,
        /// To name.
        new_name: Vec<u8>,
        /// RENAME_NOREPLACE.
        no_replace: bool,
        /// RENAME_EXCHANGE.
        exchange: bool,
        /// A replaced inode is held open by the client.
        open: bool,
        /// Above every version the client has written so far.
        highest: Version,
        /// The inodes the two names lead to (0: to none) whose tokens the client holds for this: ESTALE if
        /// they lead to others.
        expect: Option<(InodeNo, InodeNo)>,
        /// When.
        now: Timestamp,
    },
    /// Changes attributes; `None` leaves as is.
    SetAttr {
        /// Inode.
        ino: InodeNo,
        /// Permission bits.
        mode: Option<u16>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Size: shorter deallocates the blocks beyond, longer makes a hole.
        size: Option<u64>,
        /// Access time.
        atime: Option<Timestamp>,
        /// Modification time.
        mtime: Option<Timestamp>,
        /// Change time (now).
        ctime: Timestamp,
        /// With size: above every version the client has written so far.
        highest: Version,
    },
    /// Written data has reached the pdisks (or is carried here, inline): size, allocation and times
    /// follow.
    CommitWrite {
        /// Inode.
        ino: InodeNo,
        /// The file's size now.
        size: u64,
        /// Blocks that hold data now (added to the record).
        allocated: Vec<Extent>,
        /// The whole content, if it is kept in the inode: at most [`INLINE_LEN_MAX`] bytes and at most
        /// `size`; zeros follow up to the size. Refused (EINVAL) while blocks are allocated.
        /// `None` with `allocated` not empty moves the file out of the inode.
        inline: Option<Vec<u8>>,
        /// Modification time.
        mtime: Timestamp,
        /// Change time.
        ctime: Timestamp,
        /// What the client has set and not told so far; `None` leaves as is.
        mode: Option<u16>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Access time.
        atime: Option<Timestamp>,
        /// Others write other blocks: size and times only grow by this.
        shared: bool,
    },
    /// Blocks become holes (punch).
    Deallocate {
        /// Inode.
        ino: InodeNo,
        /// Which blocks.
        blocks: Extent,
        /// Above every version the client has written so far.
        highest: Version,
        /// When.
        now: Timestamp,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Inode.
        ino: InodeNo,
        /// Name with its prefix.
        name: Vec<u8>,
        /// Value.
        value: Vec<u8>,
        /// XATTR_CREATE: fail if it exists.
        create: bool,
        /// XATTR_REPLACE: fail if it does not.
        replace: bool,
        /// When.
        now: Timestamp,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Inode.
        ino: InodeNo,
        /// Name with its prefix.
        name: Vec<u8>,
        /// When.
        now: Timestamp,
    },
    /// The client's last handle on an unlinked inode is closed: it may be reclaimed.
    Forget {
        /// Inode.
        ino: InodeNo,
        /// Above every version the client has written so far.
        highest: Version,
    },
    /// A new inode under a name that does not exist, with a number of the caller's own ([`Change::Numbers`]): what a session made
    /// before it told the manager. Refused (EINVAL) if the number was not granted, or one as high was used. If the name leads
    /// to that inode already, it is answered as made.
    CreateAs {
        /// Its number: above all that this session used before.
        ino: InodeNo,
        /// Directory.
        parent: InodeNo,
        /// Name.
        name: Vec<u8>,
        /// What.
        kind: FileKind,
        /// Permission bits, umask applied.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group (the setgid rule of directories is applied by the manager).
        gid: u32,
        /// Device number.
        rdev: u32,
        /// Symlinks: the target.
        target: Vec<u8>,
        /// When.
        now: Timestamp,
    },
    /// Inode numbers for [`Change::CreateAs`], answered by [`super::MgrReply::Numbers`]. They take the place of those
    /// that were granted before: what was not used of these never will be.
    Numbers {
        /// How many: 1 to [`NUMBERS_MAX`].
        count: u32,
    },
    /// A new file without a name (O_TMPFILE), held open by the session: it is reclaimed with [`Change::Forget`] or the session's
    /// end, unless [`Change::LinkUnnamed`] has given it a name. Answered by [`super::MgrReply::Created`].
    CreateUnnamed {
        /// The directory that it would be in: pool, group and rights are as of a file made there.
        parent: InodeNo,
        /// Permission bits, umask applied.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group (the setgid rule of directories is applied by the manager).
        gid: u32,
        /// When.
        now: Timestamp,
    },
    /// The first name of a file that this session made without one. Otherwise as [`Change::Link`], which is refused (ENOENT) for
    /// what has no name: of what has lost its last one, nobody makes another.
    LinkUnnamed {
        /// The file.
        ino: InodeNo,
        /// Directory.
        parent: InodeNo,
        /// Name.
        name: Vec<u8>,
        /// When.
        now: Timestamp,
    },
}
