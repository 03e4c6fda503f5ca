//! What has been stored becomes known to the manager: size, times, allocation, and the whole content of
//! files small enough to live in their inode.
//!
//! Invariants: a commit names only blocks that are complete on the pdisks, and a size that covers only
//! stored bytes; a file leaves its inode only when its first block is stored.
//! On failure nothing is lost: what was not committed stays pending.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;
use wire::{
    mgr::{Change, Extent, MgrReply},
    token::TokenMode,
};

use crate::{
    calls::{MANY_MAX, unexpected},
    core::Core,
    error::Errno,
    files::inode::{Inode, Locked},
};

/// Most extents in one commit.
const EXTENTS_MAX: usize = 1024;

/// A commit on its way.
pub(crate) struct Commit {
    inode: Arc<Inode>,
    size: u64,
    allocated: Vec<Extent>,
    times_count: u64,
    /// The flush ticket and sequence of an inline commit.
    inline: Option<(u64, u64)>,
    change: Option<Change>,
}

/// What a commit needs first.
enum Plan {
    /// The manager knows everything that can be told now.
    Nothing,
    /// Units of the content must be loaded.
    Load(Vec<Arc<crate::pages::loading::LoadWait>>),
    Ready(Box<Commit>),
}

impl Core {
    /// Tells the manager all of what is stored of this inode; goes on if who waits goes away or gives up.
    pub async fn commit(self: &Arc<Core>, inode: &Arc<Inode>) -> Result<(), Errno> {
        let (core, file) = (self.clone(), inode.clone());
        let work = async move {
            let lock = core.patient("an inode's commit", Some(file.ino), file.commit.lock());
            let _one = lock.await?;
            core.commit_locked(&file).await
        };
        self.see_through(inode, "what is stored to be told to the manager", work).await
    }

    /// The same, with the inode's commit lock held.
    pub async fn commit_locked(self: &Arc<Core>, inode: &Arc<Inode>) -> Result<(), Errno> {
        loop {
            let plan = self.plan(inode);
            let mut commit = match plan {
                Plan::Nothing => return Ok(()),
                Plan::Load(waits) => {
                    self.wait_loads(waits).await?;
                    continue;
                }
                Plan::Ready(commit) => commit,
            };
            let Some(change) = commit.change.take() else { return Ok(()) };
            let full = commit.allocated.len() == EXTENTS_MAX;
            let result = self.calls.mutate(change).await;
            self.finish(*commit, result)?;
            if !full {
                return Ok(());
            }
        }
    }

    /// Commits several inodes in one message, those that can be at once; the others are left. Returns
    /// how many were told.
    pub async fn commit_many(self: &Arc<Core>, inodes: Vec<Arc<Inode>>) -> usize {
        let mut commits: Vec<(Commit, OwnedMutexGuard<()>)> = Vec::new();
        let mut changes = Vec::new();
        for inode in inodes.into_iter().take(MANY_MAX) {
            let Ok(lock) = inode.commit.clone().try_lock_owned() else { continue };
            match self.plan(&inode) {
                Plan::Ready(mut commit) => {
                    changes.extend(commit.change.take());
                    commits.push((*commit, lock));
                }
                // Looked at again when it is older, or when the load has ended.
                Plan::Nothing | Plan::Load(_) => inode.lock().due.commit_later(),
            }
        }
        if commits.is_empty() {
            return 0;
        }
        let count = commits.len();
        let outcomes = match self.calls.mutate_many(changes).await {
            Ok(outcomes) => outcomes,
            Err(error) => commits.iter().map(|_| Err(error)).collect(),
        };
        for ((commit, _lock), outcome) in commits.into_iter().zip(outcomes) {
            // Reported to the inode's handles; tried again with a later round.
            let _ = self.finish(commit, outcome);
        }
        count
    }

    fn plan(self: &Arc<Core>, inode: &Arc<Inode>) -> Plan {
        let mut state = inode.lock();
        if state.is_forsaken() {
            return Plan::Nothing;
        }
        if state.fits_inode(self.tunables.inline_data_max) {
            let content_new = state.dirty.contains(&0) || state.attr.size != state.size_committed;
            if content_new && (state.attr.size > 0 || state.inline.is_held()) {
                return if state.flushes.are_held() {
                    Plan::Nothing
                } else {
                    self.plan_inline(inode, &mut state)
                };
            }
        }
        let allocated = state.pending.extents(EXTENTS_MAX);
        if state.in_inode(0) && (!allocated.is_empty() || state.attr.size > state.size_committed) {
            // The content would be lost: the first block goes to the pdisks before the file leaves its inode.
            return Plan::Nothing;
        }
        let size = state.size_stored();
        if allocated.is_empty() && size == state.size_committed && !state.unsent.is_any() {
            return Plan::Nothing;
        }
        Plan::Ready(Box::new(self.make(inode, &state, size, allocated, None, None)))
    }

    fn plan_inline(self: &Arc<Core>, inode: &Arc<Inode>, state: &mut Locked<'_>) -> Plan {
        let size = state.attr.size as u32;
        if state.block(0).is_some_and(|b| b.flushing()) {
            return Plan::Nothing;
        }
        let units = 0..size.div_ceil(base::units::UNIT as u32);
        if state.in_inode(0) && state.block(0).is_none_or(|b| !b.missing(0, units.end).is_empty()) {
            return Plan::Load(self.start_load(inode, state, 0, units, base::OpClass::Write));
        }
        let (content, ticket, seq) = state.edit(0, |b| {
            let mut parts: Vec<Bytes> = Vec::new();
            b.collect(0, size, true, &mut parts);
            let ticket = b.begin_flush();
            b.flush_starts += 1;
            (parts.concat(), ticket, b.freeze().seq)
        });
        state.flushes.begin();
        Plan::Ready(Box::new(self.make(
            inode,
            state,
            u64::from(size),
            Vec::new(),
            Some(content),
            Some((ticket, seq)),
        )))
    }

    fn make(
        &self,
        inode: &Arc<Inode>,
        state: &Locked<'_>,
        size: u64,
        allocated: Vec<Extent>,
        content: Option<Vec<u8>>,
        inline: Option<(u64, u64)>,
    ) -> Commit {
        debug_assert!(content.is_some() || size <= state.size_stored(), "it covers only what is stored");
        debug_assert!(
            content.is_some() || !state.in_inode(0) || allocated.is_empty() && size <= state.size_committed,
            "content in the inode would be lost"
        );
        let unsent = state.unsent.attrs();
        let change = Change::CommitWrite {
            ino: inode.ino,
            size,
            allocated: allocated.clone(),
            inline: content,
            mtime: state.attr.mtime,
            ctime: state.attr.ctime,
            mode: unsent.mode,
            uid: unsent.uid,
            gid: unsent.gid,
            atime: unsent.atime,
            shared: state.token.mode() == TokenMode::Part,
        };
        let times_count = state.unsent.changes();
        Commit { inode: inode.clone(), size, allocated, times_count, inline, change: Some(change) }
    }

    fn finish(&self, commit: Commit, result: Result<MgrReply, Errno>) -> Result<(), Errno> {
        let inode = commit.inode;
        let result = match result {
            Ok(MgrReply::Attr(attr)) => Ok(Some(attr)),
            Ok(MgrReply::Done) => Ok(None),
            Ok(other) => Err(unexpected("CommitWrite", &other)),
            Err(error) => Err(error),
        };
        let mut tagger = inode.tagger(0, false);
        let mut state = inode.lock();
        let mut room = 0;
        let grown = state.attr.size > u64::from(self.tunables.inline_data_max);
        if let Some((ticket, seq)) = commit.inline {
            state.flushes.end();
            state.edit_existing(0, |b| {
                b.end_flush(ticket);
                match &result {
                    Ok(_) => {
                        room = b.written(seq, &mut tagger);
                    }
                    Err(_) => {
                        b.not_written();
                        b.failures += 1;
                    }
                }
            });
            state.inline.set_leaving(false);
        }
        match &result {
            Ok(attr) => {
                state.failures.over();
                state.told = self.sharing.note_told();
                for extent in &commit.allocated {
                    state.pending.remove_extent(*extent);
                    state.recorded.entered(*extent);
                }
                state.charge_extents(None);
                state.size_committed = commit.size;
                if let Some(attr) = attr {
                    state.inline.set(attr);
                    if !state.recorded.is_whole() {
                        state.attr.stored = attr.stored;
                    }
                    state.attr.ctime = state.attr.ctime.max(attr.ctime);
                }
                state.unsent.sent(commit.times_count);
                if grown && state.must_leave_inode() {
                    state.leave_inode();
                }
                state.due.commit_since = None;
                if state.unsent.is_any()
                    || !state.pending.is_empty()
                    || state.attr.size != state.size_committed
                {
                    state.due.commit_later();
                }
            }
            Err(error) => {
                state.failures.add(*error);
                state.due.commit_later();
            }
        }
        drop(state);
        self.return_room(&inode, room);
        inode.changed.notify_waiters();
        result.map(|_| ())
    }
}
