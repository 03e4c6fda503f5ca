//! Who holds which tokens, for those who answer questions and make changes beside the cluster's task.
//!
//! Changed by the driver before the answers that follow from a change go out: who is answered can rely on
//! it. A session's release is seen here only after what it committed is in the store's snapshots.
//!
//! Changes of names are announced here before it is looked who keeps them. So one who is granted them meanwhile is
//! either seen by the change, which then recalls that grant, or sees the change, and is answered after it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use base::{FsId, InodeNo, SessionId};
use parking_lot::RwLock;
use tokio::sync::Notify;
use wire::token::TokenMode;

use super::Step;
use crate::tokens::Unclear;

/// See the module.
#[derive(Debug, Default)]
pub struct Holders {
    table: RwLock<Table>,
    /// A change has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Table {
    holders: HashMap<(FsId, InodeNo), Vec<(SessionId, TokenMode)>>,
    /// File systems of which that is not known in full.
    unclear: HashMap<FsId, Unclear>,
    /// Numbers of the changes under way of an inode.
    changing: HashMap<(FsId, InodeNo), BTreeSet<u64>>,
    next: u64,
}

/// A change of some inodes that is under way until this is dropped.
#[derive(Debug)]
pub struct UnderWay {
    holders: Arc<Holders>,
    fs: FsId,
    inos: Vec<InodeNo>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut table = self.holders.table.write();
        for &ino in &self.inos {
            if let Some(numbers) = table.changing.get_mut(&(self.fs, ino)) {
                numbers.remove(&self.number);
                if numbers.is_empty() {
                    table.changing.remove(&(self.fs, ino));
                }
            }
        }
        drop(table);
        self.holders.ended.notify_waiters();
    }
}

impl Holders {
    /// At the start: nothing is known, and of these file systems that is not all.
    pub fn new(unclear: Vec<(FsId, Unclear)>) -> Holders {
        let unclear = unclear.into_iter().collect();
        Holders { table: RwLock::new(Table { unclear, ..Table::default() }), ended: Notify::new() }
    }

    /// A change of some inodes begins.
    pub fn begin(self: &Arc<Holders>, fs: FsId, inos: Vec<InodeNo>) -> UnderWay {
        let mut table = self.table.write();
        table.next += 1;
        let number = table.next;
        for &ino in &inos {
            table.changing.entry((fs, ino)).or_default().insert(number);
        }
        UnderWay { holders: self.clone(), fs, inos, number }
    }

    /// Waits until the changes of an inode have ended that are under way now.
    pub async fn wait_changes(&self, fs: FsId, ino: InodeNo) {
        let last = self.table.read().next;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let first = {
                let table = self.table.read();
                table.changing.get(&(fs, ino)).and_then(|numbers| numbers.first().copied())
            };
            if first.is_none_or(|first| first > last) {
                return;
            }
            ended.await;
        }
    }

    /// Whether another session may keep something of the inode.
    pub fn kept_by_other(&self, fs: FsId, ino: InodeNo, session: SessionId) -> bool {
        let table = self.table.read();
        let holders = table.holders.get(&(fs, ino)).map(Vec::as_slice).unwrap_or_default();
        let keeps = |&(holder, mode): &(SessionId, TokenMode)| holder != session && mode >= TokenMode::Part;
        table.unclear(fs).tokens || holders.iter().any(keeps)
    }

    /// Takes over what a step changed.
    pub fn take(&self, step: &mut Step) {
        if step.holders.is_empty() && step.unclear.is_empty() {
            return;
        }
        let mut table = self.table.write();
        for (fs, ino, holders) in step.holders.drain(..) {
            if holders.is_empty() {
                table.holders.remove(&(fs, ino));
            } else {
                let modes = holders.into_iter().map(|(session, token)| (session, token.mode));
                table.holders.insert((fs, ino), modes.collect());
            }
        }
        for (fs, unclear) in step.unclear.drain(..) {
            if unclear.tokens {
                table.unclear.insert(fs, unclear);
            } else {
                table.unclear.remove(&fs);
            }
        }
    }

    /// Whether any token is held one by one: several sessions share a file system.
    pub fn is_shared(&self) -> bool {
        let table = self.table.read();
        !table.holders.is_empty() || !table.unclear.is_empty()
    }

    /// Whether it is not known in full who holds what.
    pub fn unclear(&self, fs: FsId) -> bool {
        self.table.read().unclear(fs).tokens
    }

    /// Whether another session than `session` may be changing the file.
    pub fn written_by_other(&self, fs: FsId, ino: InodeNo, session: SessionId) -> bool {
        let table = self.table.read();
        table.unclear(fs).tokens || table.is_written(fs, ino, session)
    }

    /// Whether another session than `session` may be changing what is no file ahead of the manager: a directory's names, attributes.
    pub fn led_by_other(&self, fs: FsId, ino: InodeNo, session: SessionId) -> bool {
        let table = self.table.read();
        table.unclear(fs).names || table.is_written(fs, ino, session)
    }

    /// What a session holds for `Write`.
    pub fn written_by(&self, fs: FsId, session: SessionId) -> Vec<InodeNo> {
        let table = self.table.read();
        let of_fs = table.holders.iter().filter(|((of, _), _)| *of == fs);
        let its = of_fs.filter(|(_, holders)| holders.contains(&(session, TokenMode::Write)));
        its.map(|((_, ino), _)| *ino).collect()
    }

    /// The sessions that have the inode open, or hold more of it.
    pub fn openers(&self, fs: FsId, ino: InodeNo) -> Vec<SessionId> {
        let table = self.table.read();
        let holders = table.holders.get(&(fs, ino)).map(Vec::as_slice).unwrap_or_default();
        holders.iter().map(|(session, _)| *session).collect()
    }
}

impl Table {
    fn unclear(&self, fs: FsId) -> Unclear {
        self.unclear.get(&fs).copied().unwrap_or_default()
    }

    fn is_written(&self, fs: FsId, ino: InodeNo, session: SessionId) -> bool {
        let holders = self.holders.get(&(fs, ino)).map(Vec::as_slice).unwrap_or_default();
        holders.iter().any(|&(holder, mode)| holder != session && is_writing(mode))
    }
}

fn is_writing(mode: TokenMode) -> bool {
    matches!(mode, TokenMode::Write | TokenMode::Part)
}
