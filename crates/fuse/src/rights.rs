//! A mount of a squashed machine: what its kernel lets root do, it may not do here.
//!
//! The kernel checks with the user that it sees, by modes that say whose files are whose; root it lets do everything. So what somebody
//! is let in to by a handle (a file, a directory), and what is asked by name, is checked once more with the user that he acts as.
//! What changes names and attributes the manager checks, which hears who asks. The kernel keeps no names there: each way through a
//! directory is asked for.
//!
//! Where all act as one user the kernel, which sees others, checks nothing: it asks here. What it has kept is that user's to see.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use base::InodeNo;
use parking_lot::Mutex;
use wire::{
    credentials::{Credentials, GROUPS_MAX, Owned, READ, SEARCH, Squash, WRITE, Who},
    mgr::Attr,
};

use crate::{
    abi::fattr,
    calls::{Calls, Errno},
    request::{Header, Operation},
    session::Session,
};

/// How long a thread's supplementary groups are believed.
const GROUPS_HOLD: Duration = Duration::from_secs(1);
/// Threads whose groups are kept; beyond it all are read anew.
const THREADS_MAX: usize = 4096;
/// The kernel opens a file to run it.
const OPEN_TO_RUN: u32 = 0x20;

/// Whom programs act as by this mount, and who they are.
pub(crate) struct Rights {
    squash: Squash,
    threads: Mutex<HashMap<Thread, Groups>>,
}

/// A number is given again; hardly within [`GROUPS_HOLD`], to the same user.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Thread {
    pid: u32,
    uid: u32,
    gid: u32,
}

struct Groups {
    read: Instant,
    groups: Vec<u32>,
}

impl Rights {
    pub fn new(squash: Squash) -> Rights {
        Rights { squash, threads: Mutex::default() }
    }

    /// Whether anybody acts as somebody else.
    pub fn are_checked(&self) -> bool {
        self.squash.is_any()
    }

    /// Who asks, where that counts: on a squashed machine. There the manager hears it.
    pub fn caller(&self, header: &Header) -> Option<Credentials> {
        let Header { uid, gid, pid, .. } = *header;
        let groups = match self.squash {
            Squash::None => return None,
            // Whose groups count for nothing.
            Squash::All { .. } => Vec::new(),
            Squash::Root { .. } if uid == 0 => Vec::new(),
            Squash::Root { .. } => self.groups(Thread { pid, uid, gid }),
        };
        Some(Credentials { uid, gid, groups })
    }

    fn groups(&self, thread: Thread) -> Vec<u32> {
        let now = Instant::now();
        let kept = |kept: &Groups| (now.duration_since(kept.read) < GROUPS_HOLD).then(|| kept.groups.clone());
        if let Some(groups) = self.threads.lock().get(&thread).and_then(kept) {
            return groups;
        }
        // Who is gone meanwhile, or is not seen from here, has none.
        let status = std::fs::read_to_string(format!("/proc/{}/status", thread.pid)).unwrap_or_default();
        let groups = groups_of(&status);
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.clear();
        }
        threads.insert(thread, Groups { read: now, groups: groups.clone() });
        groups
    }
}

fn groups_of(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).take(GROUPS_MAX).collect()
}

fn owned(attr: &Attr) -> Owned {
    Owned { uid: attr.uid, gid: attr.gid, mode: attr.mode }
}

/// What somebody wants who opens with these flags.
fn to_open(flags: u32) -> u16 {
    let read = if flags & OPEN_TO_RUN != 0 { SEARCH } else { READ };
    let truncate = if flags as i32 & libc::O_TRUNC != 0 { WRITE } else { 0 };
    truncate
        | match flags as i32 & libc::O_ACCMODE {
            libc::O_WRONLY => WRITE,
            libc::O_RDWR => READ | WRITE,
            _ => read,
        }
}

impl<C: Calls> Session<C> {
    /// Refuses what the program may not do whose request this is.
    pub(crate) async fn check_rights(
        &self,
        header: &Header,
        operation: &Operation,
        by: &Credentials,
    ) -> Result<(), Errno> {
        let wanted = match operation {
            // "." is the inode of a file handle.
            Operation::Lookup { name } if name != b"." => SEARCH,
            Operation::Open { flags, .. } => to_open(*flags),
            Operation::Access { mask } => *mask as u16 & (READ | WRITE | SEARCH),
            Operation::Opendir | Operation::Readdir { .. } => READ,
            Operation::Setattr(args) if args.valid & fattr::SIZE != 0 && args.valid & fattr::FH == 0 => WRITE,
            Operation::Getxattr { name, .. } if name.starts_with(b"user.") => READ,
            Operation::Getxattr { name, .. } if name.starts_with(b"trusted.") => {
                return Err(Errno(libc::ENODATA));
            }
            _ => return Ok(()),
        };
        self.check_use(header.ino, wanted, by).await
    }

    /// The same of a file that is opened by the name under which it would have been made.
    pub(crate) async fn check_existing(
        &self,
        header: &Header,
        ino: InodeNo,
        flags: u32,
    ) -> Result<(), Errno> {
        match self.rights.caller(header) {
            Some(by) => self.check_use(ino, to_open(flags), &by).await,
            None => Ok(()),
        }
    }

    async fn check_use(&self, ino: InodeNo, wanted: u16, by: &Credentials) -> Result<(), Errno> {
        let who = Who::of(self.rights.squash, Some(by));
        let what = owned(&self.getattr(ino).await?);
        let may = who.may(what, wanted) && (wanted & WRITE == 0 || who.may_write(what));
        if may { Ok(()) } else { Err(Errno(libc::EACCES)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_groups_that_the_kernel_says() {
        assert_eq!(groups_of("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t7\n"), [4, 24, 1000]);
        assert_eq!(groups_of("Name:\tx\nGroups:\t \n"), [0u32; 0]);
        assert_eq!(groups_of(""), [0u32; 0]);
        let header = |uid, pid| Header { unique: 1, opcode: 1, ino: InodeNo::ROOT, uid, gid: 9, pid };
        let of = |squash: Squash, header| Rights::new(squash).caller(&header);
        assert_eq!(of(Squash::None, header(5, 1)), None);
        let root = Squash::Root { uid: 1, gid: 1 };
        let own = std::process::id();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let by = of(root, header(5, own)).unwrap();
        assert_eq!((by.uid, by.gid, by.groups), (5, 9, groups_of(&status)));
        for (squash, header) in [(root, header(0, own)), (Squash::All { uid: 1, gid: 1 }, header(5, own))] {
            assert_eq!(of(squash, header).unwrap().groups, [0u32; 0]);
        }
    }

    #[test]
    fn flags_say_what_is_wanted() {
        for (flags, wanted) in [
            (libc::O_RDONLY, READ),
            (libc::O_WRONLY, WRITE),
            (libc::O_RDWR | libc::O_APPEND, READ | WRITE),
            (libc::O_RDONLY | libc::O_TRUNC, READ | WRITE),
            (libc::O_RDONLY | OPEN_TO_RUN as i32, SEARCH),
        ] {
            assert_eq!(to_open(flags as u32), wanted, "{flags:o}");
        }
    }
}
