//! What is told to the cluster.

use std::time::Duration;

use base::{Epoch, FsId, Grant, InodeNo, NodeId, PdiskId, PoolId, SessionId};
use wire::{
    lock::LockRequest,
    map::PdiskEntry,
    mgr::{PdiskReport, PdiskWish, ProcessIdent, Timestamp},
    token::{Need, Token},
};

use super::{NewPool, Ticket, Unmake};

/// Something happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The manager itself was away for so long.
    Away(Duration),
    /// Time has passed.
    Tick,
    /// A server asks what is on record of its pdisks' logs.
    LogMarks {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        pdisks: Vec<PdiskId>,
    },
    /// A server starts.
    Register {
        /// Answer to.
        ticket: Ticket,
        /// Which node.
        node: NodeId,
        /// Its process.
        process: ProcessIdent,
        /// Where it listens.
        addrs: Vec<String>,
        /// What it serves.
        pdisks: Vec<PdiskReport>,
    },
    /// A lease is renewed, by a server or a client.
    Renew {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// The map version in force there.
        epoch: Epoch,
        /// Servers: their pdisks.
        pdisks: Vec<PdiskReport>,
    },
    /// A map version is in force somewhere.
    Have {
        /// At whom.
        session: SessionId,
        /// Which.
        epoch: Epoch,
    },
    /// Somebody waits to know who has what open.
    Unclear {
        /// In which file system.
        fs: FsId,
    },
    /// A client mounts.
    Open {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// File system.
        fs: String,
        /// Its process.
        process: ProcessIdent,
        /// Where it answers admin requests.
        admin_addr: String,
        /// Mount point.
        mount: String,
        /// Sessions known to be dead.
        proven_dead: Vec<SessionId>,
        /// It knows who else is there.
        share: bool,
    },
    /// A client has resolved what unclean sessions left.
    ResolveDone {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
    },
    /// A client ends cleanly.
    Close {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
    },
    /// A client wants room.
    Reserve {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// In which pool.
        pool: PoolId,
        /// Raw bytes wanted.
        bytes: u64,
        /// Raw bytes it still holds.
        held: u64,
    },
    /// A pdisk did not answer a client.
    Silent {
        /// Answer to.
        ticket: Ticket,
        /// Whom.
        session: SessionId,
        /// Which.
        pdisk: PdiskId,
    },
    /// Capacity of a file system.
    StatFs {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        fs: FsId,
    },
    /// The listing.
    Report {
        /// Answer to.
        ticket: Ticket,
    },
    /// The lease duration was changed.
    SetLease(Duration),
    /// A client wants a token.
    Acquire {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
        /// Which inode.
        ino: InodeNo,
        /// What for.
        need: Need,
    },
    /// A client changes an inode or a name in it: answered when no other session keeps anything of it.
    Change {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
        /// Which inode.
        ino: InodeNo,
    },
    /// A client gives tokens up.
    Release {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// What is left of them.
        tokens: Vec<Token>,
    },
    /// A client asks what is wanted of it.
    WaitRecalls {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
    },
    /// A client says what it holds.
    Claim {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// What.
        tokens: Vec<Token>,
        /// All is said.
        last: bool,
    },
    /// A client has resolved an inode.
    Resolved {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// Which.
        ino: InodeNo,
    },
    /// A client has committed the times of an inode.
    Published {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// Which inode.
        ino: InodeNo,
        /// The question's number.
        number: Grant,
    },
    /// A client has resolved everything.
    ResolvePassDone {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// The pass.
        pass: u64,
    },
    /// The listing of tokens.
    ListTokens {
        /// Answer to.
        ticket: Ticket,
        /// Of which file system.
        fs: FsId,
        /// Inodes above this one.
        after: InodeNo,
    },
    /// A client wants something about programs' locks.
    Lock {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
        /// What.
        request: LockRequest,
    },
    /// The listing of locks.
    ListLocks {
        /// Answer to.
        ticket: Ticket,
        /// Of which file system.
        fs: FsId,
        /// Inodes above this one.
        after: InodeNo,
    },
    /// A client is to go.
    Detach {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        session: SessionId,
    },
    /// How long a pdisk may be missing before its strips are rebuilt elsewhere was changed.
    SetRebuildDelay(Duration),
    /// An administrator wants something of a pdisk.
    Wish {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        pdisk: PdiskId,
        /// What.
        wish: PdiskWish,
    },
    /// A new pdisk.
    Add {
        /// Answer to.
        ticket: Ticket,
        /// What is known of it.
        entry: Box<PdiskEntry>,
        /// The pools that are to use it.
        pools: Vec<PoolId>,
    },
    /// A new pool.
    MakePool {
        /// Answer to.
        ticket: Ticket,
        /// What it is to be.
        wish: NewPool,
    },
    /// A new file system.
    MakeFs {
        /// Answer to.
        ticket: Ticket,
        /// Its name.
        name: String,
        /// The pool of its root.
        pool: PoolId,
        /// When its root is made.
        now: Timestamp,
    },
    /// A pool or file system goes.
    Unmake {
        /// Answer to.
        ticket: Ticket,
        /// Which, and how far.
        what: Unmake,
    },
}
