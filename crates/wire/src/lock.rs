//! Locks that programs take on files: fcntl (ranges of bytes, of a process) and flock (whole files, of an
//! open file), as manager and clients name them. docs/locks.md has the protocol.

use std::time::Duration;

use base::{InodeNo, SessionId};
use serde::{Deserialize, Serialize};

/// Most locks in one claim.
pub const CLAIM_MAX: usize = 4096;
/// The last byte a lock can cover: a lock up to here goes on to the end of the file, wherever that is.
pub const END: u64 = i64::MAX as u64;

/// Which of the two calls a lock is of. They do not see each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum LockKind {
    /// fcntl: a range, of a process (or, with F_OFD_SETLK, of an open file).
    #[default]
    Fcntl,
    /// flock: the file, of an open file.
    Flock,
}

/// What a lock allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum LockMode {
    /// No lock: what was held of the range is given up.
    #[default]
    None,
    /// Beside others of this mode.
    Shared,
    /// Alone.
    Exclusive,
}

/// A lock, held or wished for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Lock {
    /// Of which call.
    pub kind: LockKind,
    /// What it allows.
    pub mode: LockMode,
    /// Whose, within its session: the kernel's number for the process or open file.
    pub owner: u64,
    /// The process that asked for it; 0 if it is not one of the reader's machine.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte, at most [`END`].
    pub end: u64,
}

impl Lock {
    /// Whether the range is one.
    pub fn is_valid(&self) -> bool {
        self.start <= self.end && self.end <= END
    }
    /// Whether they have a byte in common.
    pub fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.end && other.start <= self.end
    }
    /// Whether both may be held, by different owners.
    pub fn goes_with(&self, other: &Lock) -> bool {
        self.kind != other.kind
            || !self.overlaps(other)
            || self.mode.min(other.mode) == LockMode::None
            || self.mode.max(other.mode) == LockMode::Shared
    }
}

impl LockKind {
    /// Lower-case name for listings.
    pub fn name(self) -> &'static str {
        match self {
            LockKind::Fcntl => "fcntl",
            LockKind::Flock => "flock",
        }
    }
}

impl LockMode {
    /// Lower-case name for listings.
    pub fn name(self) -> &'static str {
        match self {
            LockMode::None => "none",
            LockMode::Shared => "shared",
            LockMode::Exclusive => "exclusive",
        }
    }
}

/// A request about locks. `seq` numbers a session's changes: of one inode a number that is not above all
/// before is a late copy, or was overtaken, and is answered [`LockAnswer::Superseded`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockRequest {
    /// Sets a lock, or with [`LockMode::None`] gives it up.
    Set {
        /// Of which inode.
        ino: InodeNo,
        /// Number of the change. A wait is asked for again under its own.
        seq: u64,
        /// The lock.
        lock: Lock,
        /// Wait until it can be had, or the deadline: then `Waits`, and the place in the queue is kept for
        /// [`REARM`].
        wait: bool,
    },
    /// Ends a wait: it is answered `Cancelled`, unless it was answered before.
    Cancel {
        /// Of which inode.
        ino: InodeNo,
        /// Number of this change.
        seq: u64,
        /// Number of the one that waits.
        wait: u64,
    },
    /// A lock of another owner that stands in the way, if there is one.
    Test {
        /// Of which inode.
        ino: InodeNo,
        /// The lock wished for.
        lock: Lock,
    },
    /// After `Recall::Locks`: every lock held.
    Claim {
        /// The number that the recall gave.
        life: u64,
        /// At most [`CLAIM_MAX`].
        locks: Vec<(InodeNo, Lock)>,
        /// Nothing follows.
        last: bool,
    },
}

/// For how long a wait keeps its place after it was answered `Waits`.
pub const REARM: Duration = Duration::from_secs(10);

/// The answer to a [`LockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockAnswer {
    /// Done.
    Done,
    /// Another owner's lock stands in the way.
    Busy,
    /// Still waiting: to be asked again.
    Waits,
    /// To wait would close a circle of owners that wait for one another.
    Deadlock,
    /// The wait was ended.
    Cancelled,
    /// A later change of the inode was faster, or this is a copy: to be asked again under a new number.
    Superseded,
    /// The session holds or waits for as many as it may.
    Full,
    /// What stands in the way.
    Held(Option<Lock>),
}

/// A lock in a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LockReport {
    /// Its inode.
    pub ino: InodeNo,
    /// A path of that; empty if it has no name any more.
    pub path: Vec<u8>,
    /// The session it is of.
    pub session: SessionId,
    /// The lock.
    pub lock: Lock,
    /// Not held but waited for.
    pub waits: bool,
    /// Milliseconds since it was given, or asked for; after a restart of the manager since then.
    pub age_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        frame,
        mgr::{MgrReply, MgrRequest},
        token::Recall,
    };

    /// The bytes in docs/locks.md.
    #[test]
    fn golden_messages() {
        let lock = Lock {
            kind: LockKind::Fcntl,
            mode: LockMode::Exclusive,
            owner: 0xabcd,
            pid: 300,
            start: 100,
            end: END,
        };
        let ino = InodeNo(5);
        let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let request = |request| hex(frame::encode(&MgrRequest::Lock(request)));
        let lock_bytes = "0002cdd702ac0264ffffffffffffffff7f";
        assert_eq!(
            request(LockRequest::Set { ino, seq: 7, lock, wait: true }),
            format!("25000507{lock_bytes}01")
        );
        assert_eq!(request(LockRequest::Cancel { ino, seq: 8, wait: 7 }), "2501050807");
        assert_eq!(request(LockRequest::Test { ino, lock }), format!("250205{lock_bytes}"));
        assert_eq!(
            request(LockRequest::Claim { life: 9, locks: vec![(ino, lock)], last: true }),
            format!("2503090105{lock_bytes}01")
        );
        assert_eq!(hex(frame::encode(&MgrReply::Lock(LockAnswer::Done))), "1a00");
        assert_eq!(
            hex(frame::encode(&MgrReply::Lock(LockAnswer::Held(Some(lock))))),
            format!("1a0701{lock_bytes}")
        );
        assert_eq!(hex(frame::encode(&Recall::Locks(9))), "0409");
    }

    #[test]
    fn shared_locks_go_together_and_kinds_do_not_see_each_other() {
        let lock = |kind, mode, start, end| Lock { kind, mode, start, end, ..Lock::default() };
        use LockKind::{Fcntl, Flock};
        use LockMode::{Exclusive, Shared};
        assert!(lock(Fcntl, Shared, 0, 9).goes_with(&lock(Fcntl, Shared, 5, 6)));
        assert!(!lock(Fcntl, Shared, 0, 9).goes_with(&lock(Fcntl, Exclusive, 9, 9)));
        assert!(lock(Fcntl, Exclusive, 0, 9).goes_with(&lock(Fcntl, Exclusive, 10, 10)));
        assert!(lock(Fcntl, Exclusive, 0, END).goes_with(&lock(Flock, Exclusive, 0, END)));
        assert!(!lock(Flock, Exclusive, 0, END).goes_with(&lock(Flock, Shared, 0, END)));
        assert!(lock(Fcntl, LockMode::None, 0, 9).goes_with(&lock(Fcntl, Exclusive, 0, 9)));
    }
}
