//! Messages to the manager, and its answers: sessions and leases, the map, the namespace.
//!
//! Mutations are applied exactly once: each carries an [`OpId`], and the reply is stored in the
//! operation's own transaction. Repeating one returns the stored reply.

use base::{BlockIndex, Epoch, FsId, Grant, Incarnation, InodeNo, NodeId, PdiskId, SessionId, Version};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    lock::{LockAnswer, LockReport, LockRequest},
    map::{ClusterMap, FsEntry, PdiskState},
    owned::{OwnedRun, Owner},
    token::{Need, Recall, Token},
};

/// Longest name in a directory, bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest symlink target, bytes.
pub const SYMLINK_LEN_MAX: usize = 4095;
/// Longest extended attribute name, bytes.
pub const XATTR_NAME_LEN_MAX: usize = 255;
/// Extended attribute of every inode that names its pool. Setting it on a directory directs what is made
/// there from then on, and below, to that pool; nothing that exists moves. Not listed, so not copied along.
pub const POOL_XATTR: &[u8] = b"ropewalk.pool";
/// Longest extended attribute value, bytes.
pub const XATTR_VALUE_LEN_MAX: usize = 64 << 10;
/// Most bytes of a file kept inside its inode.
pub const INLINE_LEN_MAX: usize = 16 << 10;
/// Slots of a session: mutations it may have in flight at once.
pub const SLOTS: u16 = 256;
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

/// A file's mode after its owner, or somebody's write, changed: setuid is gone, setgid too where it is one.
pub fn without_privileges(mode: u16) -> u16 {
    let setgid = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | setgid)
}

/// Identity of a mutation: a session has [`SLOTS`] slots, each holds one mutation at a time and
/// counts them. Repeating (slot, seq) returns the stored reply; seq + 1 frees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct OpId {
    /// 0..SLOTS.
    pub slot: u16,
    /// Starts at 1.
    pub seq: u64,
}

/// Identity of a process, so that another one on the same boot can prove that it is gone.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessIdent {
    /// Host name, for people.
    pub host: String,
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: String,
    /// Process id.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat: clock ticks from boot to the process's start.
    pub start_ticks: u64,
}

/// What a server says of one pdisk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PdiskReport {
    /// Which.
    pub id: PdiskId,
    /// Its present life.
    pub incarnation: Incarnation,
    /// Its log position: only grows; behind the recorded one means an old copy.
    pub log_position: u64,
    /// Bytes it can hold.
    pub capacity: u64,
    /// Bytes free for new strips.
    pub free: u64,
    /// Latched failed.
    pub failed: bool,
    /// Catch-up under this epoch is finished: everything adopted elsewhere is here.
    pub caught_up: Option<Epoch>,
    /// Strips that move to it and are all here, at most [`FILLED_MAX`].
    pub filled: Vec<Filled>,
    /// What moving and catching up have stored on it since its server's start, bytes.
    pub moved: u64,
    /// Why a strip of it could not be made last, for people; empty if none waits.
    pub waits: String,
    /// Mean time that requests of clients take at its server now, microseconds; 0 if there are none.
    pub client_us: u64,
}

/// Most entries of [`PdiskReport::filled`]: what the manager lets move to one pdisk at a time.
pub const FILLED_MAX: usize = 64;

/// Everything of one move is in its new place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Filled {
    /// The pool.
    pub pool: base::PoolId,
    /// Which move.
    pub what: crate::map::StripMove,
}

/// What an administrator wants of a pdisk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PdiskWish {
    /// Give up what it holds: rebuild it elsewhere from the other strips, at once.
    Fail,
    /// Move everything away, reading from it; it counts until it is empty.
    Drain,
    /// Undo `Drain`.
    Keep,
    /// Take it out of the map: only when it holds no group.
    Remove,
}

/// A request to the manager. The header's `session` is the sender's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MgrRequest {
    /// The map.
    GetMap,
    /// The map, as soon as it is newer than `have`, or at the deadline. A server's or client's next
    /// call with the new epoch tells the manager that it is in force there.
    WaitMap {
        /// What the sender has in force.
        have: Epoch,
    },
    /// A server starts: it gets a session and the map.
    RegisterServer {
        /// The node it is.
        node: NodeId,
        /// Its process.
        process: ProcessIdent,
        /// Its listening addresses "ip:port".
        addrs: Vec<String>,
        /// What it serves.
        pdisks: Vec<PdiskReport>,
    },
    /// Renews the sender's lease (server or client).
    Renew {
        /// The map version in force at the sender.
        epoch: Epoch,
        /// Servers: state of their pdisks; clients: empty.
        pdisks: Vec<PdiskReport>,
    },
    /// A client mounts.
    OpenSession {
        /// Name of the file system.
        fs: String,
        /// The client's process.
        process: ProcessIdent,
        /// Where the client answers `wire::admin` requests.
        admin_addr: String,
        /// Mount point, for people.
        mount: String,
        /// Sessions the client knows to be dead (same boot, process gone).
        proven_dead: Vec<SessionId>,
        /// Not the first attempt: the client has seen who else is there and knows of no other death.
        share: bool,
    },
    /// Stripes left by unclean ends of sessions are resolved under this session's grant.
    ResolveDone,
    /// A clean end: everything written and adopted.
    CloseSession,
    /// Asks for room before pages are dirtied; renewed as needed.
    Reserve {
        /// In which pool.
        pool: base::PoolId,
        /// Raw bytes wanted, redundancy included. 0 only tells what is held.
        bytes: u64,
        /// Raw bytes of earlier grants in that pool that the sender still holds unused; what it was granted
        /// beyond that is stored by now, or given back.
        held: u64,
    },
    /// A pdisk did not answer the sender in time.
    ReportSilent {
        /// Which.
        pdisk: PdiskId,
    },
    /// Capacity and use.
    StatFs {
        /// Which file system.
        fs: FsId,
    },

    /// An entry by name ("." and ".." are answered too).
    Lookup {
        /// Directory.
        parent: InodeNo,
        /// Name.
        name: Vec<u8>,
    },
    /// Attributes.
    GetAttr {
        /// Inode.
        ino: InodeNo,
    },
    /// Entries after `cookie` (0: from the start), without "." and "..".
    ReadDir {
        /// Directory.
        ino: InodeNo,
        /// Position.
        cookie: u64,
        /// Most entries, at most 4096.
        limit: u32,
        /// With attributes.
        plus: bool,
    },
    /// Target of a symlink.
    ReadLink {
        /// Inode.
        ino: InodeNo,
    },
    /// Bytes of a file that is kept in its inode; what is missing up to its size is zeros.
    ReadInline {
        /// Inode.
        ino: InodeNo,
    },
    /// Allocated extents that end after `from`, rising.
    Extents {
        /// Inode.
        ino: InodeNo,
        /// First block of interest.
        from: BlockIndex,
        /// Most extents, at most 4096.
        limit: u32,
    },
    /// Value of an extended attribute.
    GetXattr {
        /// Inode.
        ino: InodeNo,
        /// Name with its prefix.
        name: Vec<u8>,
    },
    /// Names of extended attributes.
    ListXattr {
        /// Inode.
        ino: InodeNo,
    },
    /// A change; applied exactly once.
    Mutate {
        /// Its identity.
        op: OpId,
        /// What.
        change: Change,
    },
    /// Several changes in one transaction's batch, each with its own identity and outcome.
    MutateMany {
        /// The changes, in order.
        changes: Vec<(OpId, Change)>,
    },
    /// Listing for people and scripts.
    Cluster,
    /// Changes tunables: (name, value) pairs, all or none.
    ConfigSet {
        /// The pairs.
        pairs: Vec<(String, String)>,
    },
    /// Tunables that differ from their defaults.
    ConfigGet,

    /// A token that is enough for this, as soon as it can be had. Asking again is harmless.
    Acquire {
        /// Inode.
        ino: InodeNo,
        /// What for.
        need: Need,
    },
    /// Tokens as they are now held, after a recall or by the client's own will: `serial` is that of the
    /// recall or of the grant, `mode` what is left.
    Release {
        /// At most [`crate::token::TOKENS_MAX`].
        tokens: Vec<Token>,
    },
    /// What the manager wants of the session, as soon as there is something, or nothing at the deadline.
    WaitRecalls,
    /// After [`Recall::Share`]: every token held.
    Claim {
        /// At most [`crate::token::TOKENS_MAX`].
        tokens: Vec<Token>,
        /// Nothing follows.
        last: bool,
    },
    /// The inode's stripes are resolved, as a grant demanded.
    Resolved {
        /// Inode.
        ino: InodeNo,
    },
    /// After [`Recall::Resolve`]: nothing is left.
    ResolvePassDone {
        /// Its number.
        pass: u64,
    },
    /// The tokens of a file system, for people.
    Tokens {
        /// Which file system.
        fs: FsId,
        /// Inodes above this one.
        after: InodeNo,
    },
    /// Ends a client's session by force.
    Detach {
        /// Whose.
        session: SessionId,
    },
    /// Something is to be done about a pdisk.
    PdiskSet {
        /// Which.
        pdisk: PdiskId,
        /// What.
        wish: PdiskWish,
    },
    /// A new pdisk; its server names it when it registers next.
    PdiskAdd {
        /// Its id, above all others.
        pdisk: PdiskId,
        /// Its name.
        name: String,
        /// The node that serves it.
        node: NodeId,
        /// Bytes it can hold.
        capacity: u64,
        /// The pools that are to use it.
        pools: Vec<base::PoolId>,
    },
    /// A new pool over pdisks of the cluster. Asking again for the same is harmless.
    PoolCreate {
        /// Its name.
        name: String,
        /// Redundancy code, as text.
        code: String,
        /// Bytes of a block, a power of two from 256 KiB to 16 MiB.
        block_size: u32,
        /// The pdisks it is laid out over; empty: all that are to hold something.
        pdisks: Vec<PdiskId>,
    },
    /// A new, empty file system. Asking again for the same is harmless.
    FsCreate {
        /// Its name.
        name: String,
        /// The pool of its root directory.
        pool: base::PoolId,
    },
    /// Files with blocks that cannot be read now, by rising inode number.
    LostFiles {
        /// Of which file system.
        fs: FsId,
        /// The last one already named; 0 from the start.
        after: InodeNo,
    },
    /// Events after a number, oldest first.
    Events {
        /// The last one already seen; 0 for all that are kept.
        after: u64,
    },
    /// About locks that programs hold.
    Lock(LockRequest),
    /// The locks of a file system, for people.
    Locks {
        /// Which file system.
        fs: FsId,
        /// Inodes above this one.
        after: InodeNo,
    },
    /// After [`Recall::Publish`]: the manager knows the times.
    Published {
        /// Inode.
        ino: InodeNo,
        /// The number of the question.
        number: Grant,
    },
    /// Removes a pool that nothing is in. Asking again goes on.
    PoolDelete {
        /// Its name.
        name: String,
    },
    /// Removes a file system that nobody has mounted, with everything in it; its blocks are given back in the
    /// background.
    FsDelete {
        /// Its name.
        name: String,
    },
    /// Blocks that the inodes of a file system name, by rising inode and block.
    Owned {
        /// Which file system.
        fs: FsId,
        /// From this inode on ...
        ino: InodeNo,
        /// ... and of it from this block on.
        block: BlockIndex,
    },
    /// Whose blocks are.
    Owners {
        /// At most [`crate::owned::OWNERS_MAX`].
        blocks: Vec<base::StripeId>,
    },
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
}

/// The manager's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MgrReply {
    /// Done, nothing to say.
    Done,
    /// The map (whole).
    Map(Box<ClusterMap>),
    /// The map has not changed before the deadline.
    MapUnchanged,
    /// A server is registered.
    Registered {
        /// Its session.
        session: SessionId,
        /// Lease, microseconds from the sending of the request.
        lease_us: u64,
        /// The map that includes it.
        map: Box<ClusterMap>,
        /// Tunables that differ from defaults.
        config: Vec<(String, String)>,
    },
    /// The lease is renewed.
    Renewed {
        /// Lease, microseconds from the sending of the request.
        lease_us: u64,
        /// The manager's map version.
        epoch: Epoch,
    },
    /// A client session is open.
    SessionOpen {
        /// The session.
        session: SessionId,
        /// With `whole`: the grant of all its write tokens.
        grant: Grant,
        /// Nobody else is there: all tokens of the file system are held, until [`Recall::Share`].
        whole: bool,
        /// The file system.
        fs: FsEntry,
        /// A former session ended uncleanly: resolve before the first data access, then ResolveDone.
        resolve: bool,
        /// Lease, microseconds.
        lease_us: u64,
        /// The map that includes it.
        map: Box<ClusterMap>,
        /// Tunables that differ from defaults.
        config: Vec<(String, String)>,
    },
    /// Other clients have the file system mounted; some may be known to be dead.
    SessionBusy {
        /// Their sessions and processes.
        holders: Vec<(SessionId, ProcessIdent)>,
    },
    /// Room for raw bytes.
    Reserved {
        /// Granted by this call, on top of what was held; at most what was asked. None left is ENOSPC.
        bytes: u64,
    },
    /// Capacity and use, bytes of file data (redundancy taken off).
    StatFs {
        /// Capacity.
        total: u64,
        /// Free.
        free: u64,
        /// Inodes in use.
        inodes: u64,
    },
    /// Attributes (lookup, getattr, and every change that has an inode).
    Attr(Box<Attr>),
    /// Create: the attributes, and whether it was made now.
    Created {
        /// The attributes.
        attr: Box<Attr>,
        /// False if `existing_ok` found it.
        new: bool,
    },
    /// Unlink and rename: the inode that lost a name, if one did.
    Unlinked {
        /// Its attributes now; `nlink` 0 means gone, or orphaned if it was open.
        attr: Option<Box<Attr>>,
    },
    /// Entries.
    Entries {
        /// In cookie order.
        entries: Vec<DirEntry>,
        /// Whether the listing is complete.
        end: bool,
        /// The directory's parent, for "..".
        parent: InodeNo,
    },
    /// Bytes: symlink target, inline data, xattr value.
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// Allocated extents.
    Extents {
        /// Rising.
        extents: Vec<Extent>,
        /// Whether there are more.
        more: bool,
    },
    /// Outcomes of MutateMany, in order.
    Many(Vec<Result<MgrReply, MgrError>>),
    /// Listing.
    Cluster(Box<ClusterReport>),
    /// Events.
    Events(Vec<ClusterEvent>),
    /// Files with blocks that cannot be read, the first so many.
    LostFiles(Vec<LostFile>),
    /// Tunables.
    Config(Vec<(String, String)>),
    /// Not done.
    Error(MgrError),
    /// A token.
    Token {
        /// It; perhaps more than was asked for.
        token: Token,
        /// The inode's stripes are to be resolved before anything of it is used; then `Resolved`.
        resolve: bool,
        /// The inode's attributes under the token; none if there is no such inode any more.
        attr: Option<Box<Attr>>,
    },
    /// Attributes that another session may be changing just now: a read token gives the true ones.
    Held(Box<Attr>),
    /// What the manager wants.
    Recalls(Vec<Recall>),
    /// Tokens, by rising inode.
    Tokens {
        /// Who holds what, and who waits for what since how many milliseconds.
        inodes: Vec<TokenReport>,
        /// Whether there are more.
        more: bool,
    },
    /// About locks that programs hold.
    Lock(LockAnswer),
    /// Locks, by rising inode.
    Locks {
        /// Held ones and those that are waited for.
        locks: Vec<LockReport>,
        /// Whether there are more.
        more: bool,
    },
    /// Runs of blocks, by rising inode and block.
    Owned {
        /// Disjoint.
        runs: Vec<OwnedRun>,
        /// Whether there are more.
        more: bool,
    },
    /// Whose blocks are, in the order of the question.
    Owners(Vec<Owner>),
}

/// Why the manager did not do it.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum MgrError {
    /// An error as POSIX names it (Linux number): ENOENT, EEXIST, ENOTEMPTY, ...
    #[error("errno {0}")]
    Errno(i32),
    /// The session is unknown or was ended: whoever holds it must stop.
    #[error("session is not alive")]
    NoSession,
    /// The (slot, seq) is behind what the slot holds.
    #[error("operation was superseded")]
    Superseded,
    /// A pdisk report contradicts the record.
    #[error("pdisk {pdisk}: {reason}")]
    Pdisk {
        /// Which.
        pdisk: PdiskId,
        /// Why, for people.
        reason: String,
    },
    /// A configuration value was refused.
    #[error("{0}")]
    Config(String),
    /// The manager's store failed; it stops.
    #[error("store: {0}")]
    Store(String),
}

/// What `status` and the listings show.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterReport {
    /// The map.
    pub map: ClusterMap,
    /// Per pdisk, in map order: state, use and last report.
    pub pdisks: Vec<PdiskUse>,
    /// Live clients.
    pub clients: Vec<ClientReport>,
    /// Per file system, in map order: inodes in use.
    pub inodes: Vec<u64>,
    /// Blocks of deleted files not yet removed from pdisks.
    pub deletes_pending: u64,
    /// Where the manager's store stands, and whether it is replicated.
    pub store: String,
    /// Per pool, in map order: what moves.
    pub moving: Vec<PoolMoving>,
}

/// What moves in a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolMoving {
    /// Strips of groups that are to move, under way or not.
    pub left: u32,
    /// Of these, strips whose pdisk does not count: they are rebuilt.
    pub lost: u32,
    /// Strips of groups that have moved since nothing was left to move last.
    pub done: u32,
    /// Milliseconds since then.
    pub running_ms: u64,
    /// Why nothing can be planned, for people; empty if it can.
    pub hindered: String,
    /// Of `left`, strips that nothing can be made from until pdisks of their groups are back or given up.
    pub waiting: u32,
    /// Mean time that requests of clients took at the slowest server when the moves began, microseconds; 0 if
    /// there were none.
    pub client_us_before: u64,
}

/// A file with blocks that cannot be read now.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LostFile {
    /// Its inode.
    pub ino: InodeNo,
    /// A path of it below the file system's root; empty if it has no name any more.
    pub path: Vec<u8>,
    /// Its bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// The first block that cannot be read.
    pub first: BlockIndex,
    /// How many cannot.
    pub blocks: u64,
    /// The pool they are in.
    pub pool: base::PoolId,
    /// Which they are: the first [`LOST_RUNS_MAX`] runs. Only their strips say whether one can be decoded after
    /// all.
    pub runs: Vec<Extent>,
}

/// Most runs of blocks named for one file in [`LostFile`].
pub const LOST_RUNS_MAX: usize = 4096;

/// Something that happened in the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// Rises by one; starts anew with the manager.
    pub number: u64,
    /// When, by the manager's clock.
    pub at: Timestamp,
    /// What, for people.
    pub text: String,
}

/// Use of one pdisk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PdiskUse {
    /// Which.
    pub id: PdiskId,
    /// Whether it counts.
    pub state: PdiskState,
    /// Capacity, bytes.
    pub capacity: u64,
    /// Free, bytes.
    pub free: u64,
    /// Milliseconds since its server's last report; none since the manager's start.
    pub age_ms: Option<u64>,
    /// Whether a server serves it now. The last copies stay `ok` in the map when they are gone.
    pub served: bool,
    /// What moving and catching up have stored on it since its server's start, bytes.
    pub moved: u64,
    /// Why a strip of it could not be made last; empty if none waits.
    pub waits: String,
    /// Mean time that requests of clients take at its server now, microseconds; 0 if there are none.
    pub client_us: u64,
}

/// Tokens of one inode.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TokenReport {
    /// The inode.
    pub ino: InodeNo,
    /// Who holds which token.
    pub holders: Vec<(SessionId, Token)>,
    /// Who waits for which, first first, for how many milliseconds.
    pub waiting: Vec<(SessionId, Need, u64)>,
}

/// One client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its session.
    pub session: SessionId,
    /// Its process.
    pub process: ProcessIdent,
    /// Its mount point.
    pub mount: String,
    /// Where it answers admin requests.
    pub admin_addr: String,
    /// The file system.
    pub fs: FsId,
    /// Milliseconds since its last renewal.
    pub age_ms: u64,
    /// Whether it holds all tokens of the file system.
    pub whole: bool,
    /// Tokens it holds one by one.
    pub tokens: u64,
    /// Tokens it is asked to give up, and for how many milliseconds the oldest.
    pub recalls: (u64, u64),
}
