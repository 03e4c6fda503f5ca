//! On whose behalf requests come, where that counts: by the mount of a squashed machine.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wire::credentials::{Credentials, GROUPS_MAX, Squash};

use crate::request::Header;

/// How long a thread's supplementary groups are believed.
const GROUPS_HOLD: Duration = Duration::from_secs(1);
/// Threads whose groups are kept; beyond it all are read anew.
const THREADS_MAX: usize = 4096;

/// Whom programs act as by this mount, and who they are.
pub(crate) struct Rights {
    pub(crate) squash: Squash,
    /// Nobody changes anything.
    pub(crate) read_only: bool,
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
    pub fn new(squash: Squash, read_only: bool) -> Rights {
        Rights { squash, read_only, threads: Mutex::default() }
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

#[cfg(test)]
mod tests {
    use base::InodeNo;

    use super::*;

    #[test]
    fn a_thread_has_the_groups_that_the_kernel_says() {
        assert_eq!(groups_of("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t7\n"), [4, 24, 1000]);
        assert_eq!(groups_of("Name:\tx\nGroups:\t \n"), [0u32; 0]);
        assert_eq!(groups_of(""), [0u32; 0]);
        let header = |uid, pid| Header { unique: 1, opcode: 1, ino: InodeNo::ROOT, uid, gid: 9, pid };
        let of = |squash: Squash, header| Rights::new(squash, false).caller(&header);
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
}
