//! What programs do in [`crate::names`], and the rules of it that are taken out.

use base::InodeNo;
use client::untold::Untold;

use crate::concerned::{LeftOut, concerns};

/// A rule taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// None.
    None,
    /// What is held is given up before what was made under it is told.
    ToldLate,
    /// What was granted is forgotten with the manager's process.
    NumbersTwice,
    /// Messages are not waited for before the next is sent.
    Disorder,
    /// A message is carried out as often as it comes.
    Twice,
    /// fsync does not wait.
    SyncEarly,
    /// A session that has ended is listened to.
    AfterEnd,
    /// A question does not wait.
    Unwaited,
    /// It does not wait for all that concerns its inode.
    Concerns(LeftOut),
    /// It waits for the oldest in place of what concerns its inode.
    Entry,
}

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    Make(char),
    Remove(char),
    Move(char, char),
    Sync,
    /// Asks for the attributes of an inode.
    Ask(InodeNo),
}

impl Act {
    pub const ALL: [Act; 7] = [
        Act::Make('a'),
        Act::Make('b'),
        Act::Remove('a'),
        Act::Remove('b'),
        Act::Move('a', 'b'),
        Act::Move('b', 'a'),
        Act::Sync,
    ];
}

/// How many are to be told before a question about an inode.
pub fn waits_for(untold: &Untold, ino: InodeNo, fault: Fault) -> u64 {
    let at = untold.concerned_at(ino);
    match fault {
        Fault::Unwaited => 0,
        Fault::Entry => at.min(untold.told() + 1),
        Fault::Concerns(left_out) => {
            let all = untold.front(untold.count());
            let last = all.iter().rposition(|change| concerns(change, ino, left_out));
            last.map_or(0, |last| untold.told() + last as u64 + 1)
        }
        _ => at,
    }
}
