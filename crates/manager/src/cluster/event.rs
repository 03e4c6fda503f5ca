//! What is told to the cluster.

use std::time::Duration;

use base::{Epoch, FsId, InodeNo, MemberId, PoolId, SessionId};
use wire::{
    mgr::{MgrRequest, Timestamp},
    version::Build,
};

use super::{NewPool, Removal, Ticket};
use crate::losses::Losses;

/// Something happened.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "nearly every event is one that asks")]
pub enum Event {
    /// The manager itself was away for so long.
    Away(Duration),
    /// Time has passed.
    Tick,
    /// The lease duration was changed.
    SetLease(Duration),
    /// How long a pdisk may be missing before its strips are rebuilt elsewhere was changed.
    SetRebuildDelay(Duration),
    /// After how long a client's operation that does not move on fails was changed.
    SetOperationDeadline(Duration),
    /// A server admits requests under a map version.
    InForce {
        /// Whose session.
        session: SessionId,
        /// Which version.
        epoch: Epoch,
    },
    /// Somebody waits to know who has what open.
    Unclear {
        /// In which file system.
        fs: FsId,
    },
    /// Somebody wants something, and waits for the answer.
    Asked(Question, Ask),
}

/// Who asks, and until when.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// What the answer carries.
    pub ticket: Ticket,
    /// Whose session; 0 where it needs none.
    pub session: SessionId,
    /// Which member of the cluster asks.
    pub member: MemberId,
    /// When the asker stops waiting.
    pub expires: Duration,
    /// What the asker runs; none: it does not come over the network.
    pub build: Option<Build>,
}

/// What is wanted of the cluster.
#[derive(Debug, Clone)]
pub enum Ask {
    /// What a client, a server or an administrator sent.
    Request(MgrRequest),
    /// A client changes an inode or a name in it: answered when no other session keeps anything of it.
    Change(InodeNo),
    /// A client looks at a directory, or at attributes of what is no file: answered when no other session changes them ahead of
    /// the manager.
    Look(InodeNo),
    /// A client is about to tell of inodes that it has made: it gets their tokens (`Many` of `Token`, or `Done` where there is none),
    /// or `Done` if it may hold everything.
    Made(Vec<InodeNo>),
    /// A new pool.
    MakePool(NewPool),
    /// A new file system.
    MakeFs {
        /// Its name.
        name: String,
        /// The pool of its root.
        pool: PoolId,
        /// When its root is made.
        now: Timestamp,
    },
    /// One step of the removal of a pool or file system.
    Remove(Removal),
    /// Groups that were looked at, with what was on record of them before: all of their blocks are whole.
    ForgetLosses(Losses),
}

impl From<MgrRequest> for Ask {
    fn from(request: MgrRequest) -> Ask {
        Ask::Request(request)
    }
}
