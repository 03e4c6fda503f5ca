//! Messages to the manager, and its answers: sessions and leases, the map, the namespace.
//!
//! Mutations are applied exactly once: each carries an [`OpId`], and the reply is stored in the
//! operation's own transaction. Repeating one returns the stored reply.

use base::{BlockIndex, Epoch, FsId, Grant, Incarnation, InodeNo, MemberId, NodeId, PdiskId, SessionId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    credentials::Credentials,
    hello::Role,
    lock::{LockAnswer, LockReport, LockRequest},
    map::{ClusterMap, FailureDomain, FsEntry, Limits, ManagerEntry},
    owned::{OwnedRun, Owner},
    token::{Need, Recall, Token},
};

mod allowed;
mod kinds;
mod namespace;
mod report;

pub use self::{namespace::*, report::*};

/// Slots of a session: mutations it may have in flight at once.
pub const SLOTS: u16 = 256;

/// Identity of a mutation: a session has [`SLOTS`] slots, each holds one mutation at a time and
/// counts them. Repeating (slot, seq) returns the stored reply; seq + 1 frees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct OpId {
    /// 0..SLOTS.
    pub slot: u16,
    /// Starts at 1.
    pub seq: u64,
}

/// Identity of a process, so that another one in the same place can prove that it is gone.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessIdent {
    /// Host name, for people.
    pub host: String,
    /// Where process ids and start times mean what they mean to this process: the boot, and the namespaces of both. Two
    /// processes with the same one see each other as they are; of any other process nothing can be proven.
    pub scope: String,
    /// Process id.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat: clock ticks from boot to the process's start.
    pub start_ticks: u64,
}

/// A point of a pdisk's log: where it is, and what everything before it was. The default, the start of the log, says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LogMark {
    /// Bytes of log before it; only grows.
    pub position: u64,
    /// A digest of all groups before it; 0 where it is not known.
    pub digest: u64,
}

/// What a server says of one pdisk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PdiskReport {
    /// Which.
    pub id: PdiskId,
    /// Its present life.
    pub incarnation: Incarnation,
    /// The point of its log up to which everything is durable.
    pub log: LogMark,
    /// At a registration: the point of its log at the position that [`MgrRequest::LogMarks`] named. None: it has no
    /// such point. Another one than the recorded: acknowledged content is missing, it is an old copy or damaged.
    pub proved: Option<LogMark>,
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
    /// Nothing that was admitted under a map version older than this one is under way on it.
    pub in_force: Epoch,
    /// How long the oldest request on it has been under way, microseconds.
    pub oldest_us: u64,
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
    /// The map, as soon as it is newer than `have`, or at the deadline; for a client as soon as more is new than who has a
    /// client's session, and without that. A server's next call with the new epoch tells the manager that it is in force there.
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
        /// Its listening addresses "ip:port": those in the map from now on. 1 to [`NODE_ADDRS_MAX`], none of them of
        /// another node whose server is registered; from one that is down they are taken.
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
        /// The caller will use a file that is made: it gets its token with the answer, if it is to be had at once.
        hold: bool,
        /// On whose behalf; said by mounts of squashed machines, where it is known.
        by: Option<Credentials>,
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
        /// Its id, above every one that was ever given ([`MgrRequest::LastPdisk`]).
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
        /// It is made only if the loss of any one of these is survived.
        survives: Option<FailureDomain>,
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
    /// The points of pdisks' logs on record, in the order of the request; the default where there is none. A server
    /// asks for them before it registers.
    LogMarks {
        /// Which.
        pdisks: Vec<PdiskId>,
    },
    /// A new node; the manager chooses its number. Asking again for the same is harmless as long as no server of it
    /// has registered and it has no pdisks.
    NodeAdd {
        /// Its name, as [`base::name::check_name`] has it.
        name: String,
        /// "ip:port" of its server, 1 to [`NODE_ADDRS_MAX`] of them, used by no other node.
        addrs: Vec<String>,
    },
    /// A node goes: only when no pdisk is on it and its server has no session. Its number is never given again.
    NodeRemove {
        /// Which.
        node: NodeId,
    },
    /// A node gets another name, other addresses, or another rack. What its server names when it registers replaces these.
    NodeSet {
        /// Which.
        node: NodeId,
        /// Its new name; none: as it is.
        name: Option<String>,
        /// Its new addresses; none: as they are.
        addrs: Option<Vec<String>>,
        /// The rack that it is in, as a node may be named; empty: in none that is known; none: as it is.
        rack: Option<String>,
    },
    /// The highest number of a pdisk that was ever given: a new one is above it.
    LastPdisk,
    /// A machine may join, once, that shows a secret with this hash. Asking again for the same is harmless.
    Invite {
        /// The token's number.
        token: u64,
        /// SHA-256 of its secret.
        hash: [u8; 32],
        /// What the machine will be: server, client, admin or manager.
        role: Role,
        /// Until then, seconds since 1970; at most [`INVITED_FOR_MAX`] from `now` on.
        expires: u64,
        /// The time where it is asked, seconds since 1970.
        now: u64,
        /// What its sessions may do; for clients only.
        limits: Limits,
    },
    /// A machine that was invited is there. The manager's own process asks this, for a visitor.
    Admit(Box<Admission>),
    /// Who has joined.
    Members,
    /// A member's certificate gets a new end. The manager's own process asks this, for a visitor that has its key.
    Recertify {
        /// Whose.
        member: MemberId,
        /// What it says.
        what: Recertified,
    },
    /// A member's certificate is worth nothing any more: its sessions are fenced, and nobody speaks to it. It does not come back;
    /// its machine may join with a new token. Asking again is harmless.
    Revoke {
        /// Which.
        member: MemberId,
    },
    /// Who runs which build, and the level of the cluster.
    Versions,
    /// The newest level that the manager's build knows is the cluster's from now on; refused while somebody's does not know it.
    Finalize,
    /// Whether a session that may not use all files may use these. A server asks, before it touches their strips.
    MayUse {
        /// Whose.
        session: SessionId,
        /// At most [`crate::nsd::BATCH_MAX`].
        files: Vec<InodeNo>,
        /// To write them, else to read them.
        write: bool,
    },
    /// Which authorities of the cluster are believed, and by which the asker's certificate was signed last.
    Authorities,
    /// A path of each of some files, for people.
    Paths {
        /// Of which file system.
        fs: FsId,
        /// At most [`PATHS_MAX`].
        files: Vec<InodeNo>,
    },
    /// There is one more manager, or it is at other addresses. Asking again is harmless.
    ManagerSet(ManagerEntry),
    /// A manager is none any more. Not the active one.
    ManagerRemove {
        /// Its name.
        name: String,
    },
    /// The active manager ends what it is at, and another one becomes the active one.
    Resign {
        /// Its name.
        to: String,
    },
    /// A part of all that the manager stores. A manager asks for it that has nothing yet.
    CopyTable {
        /// From behind this key on.
        after: Vec<u8>,
    },
    /// A part of all that the manager stores, of one moment: that of the first part. A manager's machine asks for it.
    Dump {
        /// Which dump it is of, as who asks calls it. The first part of another one ends it.
        dump: u64,
        /// From behind this key on; empty: the first part.
        after: Vec<u8>,
    },
    /// As `MutateMany`, of what a session has done ahead of the manager under tokens that it holds. So it waits for no other
    /// session: not for claims either, before its own. What it makes is held by the session from then on: `CreatedHeld`.
    Tell {
        /// The changes, in order.
        changes: Vec<(OpId, Change)>,
    },
    /// What pools have lost for good, in numbers.
    Losses,
}

/// Files whose paths are asked for at once, at most.
pub const PATHS_MAX: usize = 4096;

/// Who asks to be let in.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Admission {
    /// The token's number.
    pub token: u64,
    /// SHA-256 of the secret that was shown.
    pub hash: [u8; 32],
    /// SHA-256 of the request for a certificate: the same one may ask again.
    pub request: [u8; 32],
    /// Servers: the name of the new node, and its addresses, as with [`MgrRequest::NodeAdd`].
    pub name: String,
    /// "ip:port".
    pub addrs: Vec<String>,
    /// The rack that the node is in; empty: none that is known.
    pub rack: String,
    /// The manager's time, seconds since 1970.
    pub now: u64,
    /// When its certificate is to end, seconds since 1970.
    pub until: u64,
    /// Who signs it: SHA-256 of the authority's certificate.
    pub authority: [u8; 32],
    /// SHA-256 of its public key.
    pub key: [u8; 32],
}

/// A certificate that takes the place of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recertified {
    /// What the member is.
    pub role: Role,
    /// Its node, if it is a server.
    pub node: Option<NodeId>,
    /// When it is signed, seconds since 1970.
    pub now: u64,
    /// When it ends, seconds since 1970.
    pub until: u64,
    /// Who signs it: SHA-256 of the authority's certificate.
    pub authority: [u8; 32],
    /// SHA-256 of its public key, which the one before certified as well.
    pub key: [u8; 32],
    /// The one before was signed by an authority that is being exchanged, whose key others may have.
    pub of_former: bool,
}

/// The authorities of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AuthorityReport {
    /// SHA-256 of the certificates of those that are believed, the newest first, which signs; two while one is exchanged.
    pub believed: Vec<[u8; 32]>,
    /// By which the asker's certificate was signed last, if the asker is a machine that has joined; 0: not known.
    pub own: Option<[u8; 32]>,
    /// Processes that are connected to the manager by a certificate of another one than the newest.
    pub others: Vec<(MemberId, Role, NodeId)>,
}

/// Who has joined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its number.
    pub id: MemberId,
    /// What its machine called itself; of a server the node's name then.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its node, if it is a server.
    pub node: Option<NodeId>,
    /// When it joined, seconds since 1970.
    pub joined: u64,
    /// When its certificate was signed, seconds since 1970.
    pub certified: u64,
    /// When that ends, seconds since 1970.
    pub until: u64,
    /// Its certificate is worth nothing any more.
    pub revoked: bool,
    /// What its sessions may do.
    pub limits: Limits,
    /// Who has signed its certificate: SHA-256 of the authority's certificate; 0: not known.
    pub authority: [u8; 32],
}

/// Longest time for which a machine is invited, seconds: a week.
pub const INVITED_FOR_MAX: u64 = 7 * 24 * 3600;

/// Most addresses of a node.
pub const NODE_ADDRS_MAX: usize = 16;

impl MgrRequest {
    /// Whether it may be carried out once more, perhaps later, perhaps by the next manager. What begins a session
    /// ends the one that the same process had before: a copy would end the session that a later one began. What
    /// says all that is held is true when it is asked for: a copy lacks what was granted since.
    pub fn is_idempotent(&self) -> bool {
        use MgrRequest::{Claim, OpenSession, RegisterServer};
        !matches!(self, OpenSession { .. } | RegisterServer { .. } | Claim { .. })
    }
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
        /// The manager's map version; for a client the last one in which more changed than who has a client's session.
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
        /// Granted by this call, on top of what was held; at most what was asked. None left is ENOSPC; EAGAIN: the pdisks have not
        /// told yet whether there is some.
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
        /// Its attributes now; `nlink` 0 means gone, or orphaned if the asker has it open. Nobody else has: that is
        /// [`MgrReply::UnlinkedInUse`].
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
    /// Outcomes of MutateMany or Tell, in order.
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
        /// It is a directory without names, under the token.
        empty: bool,
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
    /// A file was made, and is held by its maker: Created and Token in one.
    CreatedHeld {
        /// The attributes.
        attr: Box<Attr>,
        /// The token.
        token: Token,
        /// As with Token.
        resolve: bool,
    },
    /// See [`MgrRequest::LogMarks`].
    LogMarks(Vec<LogMark>),
    /// A node is there.
    NodeAdded {
        /// Its number, above every one that was ever given.
        node: NodeId,
    },
    /// A machine may join.
    Admitted {
        /// What it is from now on.
        role: Role,
        /// Its node, if it is a server.
        node: Option<NodeId>,
    },
    /// See [`MgrRequest::LastPdisk`].
    LastPdisk {
        /// It; 0: none was given yet.
        pdisk: PdiskId,
    },
    /// Who has joined, by rising number.
    Members(Vec<MemberInfo>),
    /// See [`MgrRequest::Versions`].
    Versions(Box<VersionReport>),
    /// See [`MgrRequest::MayUse`]: all of them.
    MayUse(bool),
    /// See [`MgrRequest::Authorities`].
    Authorities(Box<AuthorityReport>),
    /// See [`MgrRequest::Paths`]: below the file system's root, in the order of the request. One that has no
    /// name any more has its last path, with `/` before it, or none where that is not remembered.
    Paths(Vec<Vec<u8>>),
    /// See [`Change::Numbers`]: so many from the first one on.
    Numbers {
        /// The first.
        first: InodeNo,
        /// How many.
        count: u32,
    },
    /// See [`MgrRequest::CopyTable`].
    TablePart {
        /// Which journal goes on with it.
        journal: u64,
        /// The last record of that that is in this part.
        applied: u64,
        /// The CRC in that record; 0: it has none.
        crc: u32,
        /// Which life of which manager sends it: parts of two do not fit each other.
        life: u64,
        /// Keys with their values, by rising key.
        records: Vec<(Vec<u8>, Vec<u8>)>,
        /// There are more behind.
        more: bool,
    },
    /// See [`MgrRequest::Dump`].
    Dumped {
        /// Keys with their values, by rising key.
        records: Vec<(Vec<u8>, Vec<u8>)>,
        /// There are more behind.
        more: bool,
    },
    /// Unlink and rename: the inode has lost its last name, and other sessions have it open. What this one has changed of it they
    /// read until they close it.
    UnlinkedInUse(Box<Attr>),
    /// See [`MgrRequest::Losses`]: the pools that have lost something, in map order.
    Losses(Vec<PoolLosses>),
}

/// Why the manager did not do it.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum MgrError {
    /// An error as POSIX names it (Linux number): ENOENT, EEXIST, ENOTEMPTY, ...
    #[error("{}", base::errno::text(*.0))]
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
    /// The asking process has another role than this takes.
    #[error(
        "a {0} may not ask that; give the command on the manager's machine, or on one that has joined as an administrator \
         (`ropewalk node token --role admin`)"
    )]
    Role(String),
    /// A configuration value was refused.
    #[error("{0}")]
    Config(String),
    /// The manager's store failed; it stops.
    #[error("store: {0}")]
    Store(String),
    /// This manager is not the active one: nothing was answered, ask that one.
    #[error("this manager is not active{}", match .active {
        Some(active) => format!("; active is {} at {}", active.name, active.addrs.join(", ")),
        None => ", and does not know which one is".to_owned(),
    })]
    NotActive {
        /// As far as it knows.
        active: Option<ManagerEntry>,
    },
}
