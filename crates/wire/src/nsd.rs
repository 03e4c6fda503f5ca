//! Messages to an NSD server, and its answers. Header: `session` is the client's or server's own,
//! `epoch` the map version the request was made under.

use base::{Epoch, FsId, Grant, GroupId, InodeNo, PdiskId, PoolId, StripId, Version};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::strip::{DeleteStrips, PrepareStrip, ReadStrip, StripRead, StripRefusal, StripState};

/// Most strips or states in one message.
pub const BATCH_MAX: usize = 1024;

/// A request to an NSD server. All but the listings change nothing when they are refused, and may be
/// repeated: a repetition has no further effect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NsdRequest {
    /// Store a new version of a strip; answered when durable. Payload: the ranges' bytes.
    Prepare {
        /// The pdisk.
        pdisk: PdiskId,
        /// What.
        strip: PrepareStrip,
    },
    /// Make prepared versions the current ones; durable when answered.
    Adopt {
        /// The pdisk.
        pdisk: PdiskId,
        /// Which.
        items: Vec<(StripId, Version)>,
    },
    /// Drop prepared versions.
    Discard {
        /// The pdisk.
        pdisk: PdiskId,
        /// Which.
        items: Vec<(StripId, Version)>,
    },
    /// Durably refuse versions below a grant; answers the states.
    Seal {
        /// The pdisk.
        pdisk: PdiskId,
        /// Which strips.
        strips: Vec<StripId>,
        /// The resolver's grant.
        below: Grant,
    },
    /// Read ranges of a strip; payload in the reply.
    Read {
        /// The pdisk.
        pdisk: PdiskId,
        /// What.
        read: ReadStrip,
    },
    /// Remove strips. The one change that is also taken without a session (0): the manager sends what
    /// its queue holds, which may always be deleted, however late.
    Delete {
        /// The pdisk.
        pdisk: PdiskId,
        /// Which.
        items: Vec<DeleteStrips>,
    },
    /// States of strips.
    State {
        /// The pdisk.
        pdisk: PdiskId,
        /// Which.
        strips: Vec<StripId>,
    },
    /// States of all strips of a group, in order of their ids, after `after`.
    ListGroup {
        /// The pdisk.
        pdisk: PdiskId,
        /// The pool.
        pool: PoolId,
        /// The group.
        group: GroupId,
        /// Where the last listing ended.
        after: Option<StripId>,
        /// Most states to return, at most [`BATCH_MAX`].
        limit: u32,
    },
    /// States of all strips of a file system that have a prepared version.
    ListPrepared {
        /// The pdisk.
        pdisk: PdiskId,
        /// The file system.
        fs: FsId,
        /// Where the last listing ended.
        after: Option<StripId>,
        /// Most states to return, at most [`BATCH_MAX`].
        limit: u32,
    },
    /// Store a strip as the adopted one, where nothing equal or newer is. Payload: the whole strip.
    Install {
        /// The pdisk.
        pdisk: PdiskId,
        /// What; `base` and `adopt` are none.
        strip: PrepareStrip,
    },
    /// A reader found that bytes from this strip do not match their CRCs: check and repair.
    Suspect {
        /// The pdisk.
        pdisk: PdiskId,
        /// The strip.
        strip: StripId,
    },
}

impl NsdRequest {
    /// Number for the frame header's `op`, for statistics.
    pub fn op(&self) -> u8 {
        match self {
            NsdRequest::Prepare { .. } => 1,
            NsdRequest::Adopt { .. } => 2,
            NsdRequest::Discard { .. } => 3,
            NsdRequest::Seal { .. } => 4,
            NsdRequest::Read { .. } => 5,
            NsdRequest::Delete { .. } => 6,
            NsdRequest::State { .. } => 7,
            NsdRequest::ListGroup { .. } => 8,
            NsdRequest::ListPrepared { .. } => 9,
            NsdRequest::Install { .. } => 10,
            NsdRequest::Suspect { .. } => 11,
        }
    }
    /// The names of all operations, in the order of their numbers from 1.
    pub const NAMES: [&'static str; 11] = [
        "prepare",
        "adopt",
        "discard",
        "seal",
        "read",
        "delete",
        "state",
        "list_group",
        "list_prepared",
        "install",
        "suspect",
    ];
    /// Its name, for statistics and messages.
    pub fn name(&self) -> &'static str {
        Self::NAMES[usize::from(self.op()) - 1]
    }
    /// Whether it changes what is stored. That a strip is to be looked at changes nothing: it is compared with its CRCs first.
    pub fn changes(&self) -> bool {
        match self {
            NsdRequest::Prepare { .. }
            | NsdRequest::Adopt { .. }
            | NsdRequest::Discard { .. }
            | NsdRequest::Seal { .. }
            | NsdRequest::Delete { .. }
            | NsdRequest::Install { .. } => true,
            NsdRequest::Read { .. }
            | NsdRequest::State { .. }
            | NsdRequest::ListGroup { .. }
            | NsdRequest::ListPrepared { .. }
            | NsdRequest::Suspect { .. } => false,
        }
    }
    /// The file of the first strip that it names.
    pub fn first_file(&self) -> Option<(FsId, InodeNo)> {
        let strip = match self {
            NsdRequest::Prepare { strip, .. } | NsdRequest::Install { strip, .. } => Some(&strip.strip),
            NsdRequest::Adopt { items, .. } | NsdRequest::Discard { items, .. } => {
                items.first().map(|(strip, _)| strip)
            }
            NsdRequest::Seal { strips, .. } | NsdRequest::State { strips, .. } => strips.first(),
            NsdRequest::Read { read, .. } => Some(&read.strip),
            NsdRequest::Suspect { strip, .. } => Some(strip),
            NsdRequest::Delete { items, .. } => return items.first().map(|strips| (strips.fs, strips.inode)),
            NsdRequest::ListGroup { .. } | NsdRequest::ListPrepared { .. } => None,
        };
        strip.map(|strip| (strip.stripe.fs, strip.stripe.inode))
    }
    /// The files of a file system whose strips it names, without repetitions that follow each other; none if it names anything else.
    pub fn files_of(&self, fs: FsId) -> Option<Vec<InodeNo>> {
        let all: Vec<(FsId, InodeNo)> = {
            let of = |strip: &StripId| (strip.stripe.fs, strip.stripe.inode);
            match self {
                NsdRequest::Prepare { strip, .. } | NsdRequest::Install { strip, .. } => {
                    vec![of(&strip.strip)]
                }
                NsdRequest::Adopt { items, .. } | NsdRequest::Discard { items, .. } => {
                    items.iter().map(|(strip, _)| of(strip)).collect()
                }
                NsdRequest::Seal { strips, .. } | NsdRequest::State { strips, .. } => {
                    strips.iter().map(of).collect()
                }
                NsdRequest::Read { read, .. } => vec![of(&read.strip)],
                NsdRequest::Delete { items, .. } => {
                    items.iter().map(|strips| (strips.fs, strips.inode)).collect()
                }
                NsdRequest::Suspect { strip, .. } => vec![of(strip)],
                // All that is there.
                NsdRequest::ListGroup { .. } | NsdRequest::ListPrepared { .. } => return None,
            }
        };
        let mut files: Vec<InodeNo> =
            all.into_iter().map(|(of, file)| (of == fs).then_some(file)).collect::<Option<_>>()?;
        files.dedup();
        Some(files)
    }
    /// The pdisk it is for.
    pub fn pdisk(&self) -> PdiskId {
        match *self {
            NsdRequest::Prepare { pdisk, .. }
            | NsdRequest::Adopt { pdisk, .. }
            | NsdRequest::Discard { pdisk, .. }
            | NsdRequest::Seal { pdisk, .. }
            | NsdRequest::Read { pdisk, .. }
            | NsdRequest::Delete { pdisk, .. }
            | NsdRequest::State { pdisk, .. }
            | NsdRequest::ListGroup { pdisk, .. }
            | NsdRequest::ListPrepared { pdisk, .. }
            | NsdRequest::Install { pdisk, .. }
            | NsdRequest::Suspect { pdisk, .. } => pdisk,
        }
    }
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NsdReply {
    /// Done (prepare, delete, install, suspect).
    Done,
    /// One outcome for each item (adopt, discard).
    Outcomes(Vec<Result<(), StripRefusal>>),
    /// The bytes are the payload.
    Read(StripRead),
    /// States; `more` if the listing goes on after the last one.
    States {
        /// The states.
        states: Vec<StripState>,
        /// Whether there are more.
        more: bool,
    },
    /// Not done.
    Refused(NsdRefusal),
}

/// Why a server does not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum NsdRefusal {
    /// The request was made under a map older than its group's last change.
    #[error("request epoch is older than the group's last change, at {current}")]
    StaleEpoch {
        /// The map version of that change.
        current: Epoch,
    },
    /// The server could not get the map that the request was made under in time.
    #[error("server has no such map version yet")]
    NoMap,
    /// The server's lease has run out, or it has not registered yet.
    #[error("server is not under a lease")]
    NoLease,
    /// The session is not in the map: it was declared dead.
    #[error("session is fenced")]
    Fenced,
    /// The pdisk is not served here.
    #[error("pdisk not served here")]
    NoSuchPdisk,
    /// The pdisk refused.
    #[error(transparent)]
    Strip(#[from] StripRefusal),
    /// The strip is of a file system that the session has not mounted, or its member may only read.
    #[error("the session may not do that")]
    NotAllowed,
}
