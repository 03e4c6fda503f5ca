//! What fsync, O_SYNC and the end of a token wait for, and what they say of errors.
//!
//! Invariant: who is told that something is durable has it, or something later, after any crash: content, size and, unless only
//! data is asked for, the attributes as they were when he asked.
//! On failure nothing is lost: what is not durable stays to be stored and told.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use crate::{
    core::Core,
    error::Errno,
    files::{handle::OpenFile, inode::Inode},
    pages::extents::BlockSet,
    waits,
};

/// Rounds of storing and committing: a size that the manager is told covers no byte that is not stored, and others may write below it again.
const DURABLE_TRIES: u32 = 100;

/// What is to be known to the manager.
struct Wanted {
    /// The file's size, if that much is concerned, as it was.
    size: u64,
    /// Blocks that are stored. What others store later is theirs to tell.
    blocks: BlockSet,
}

impl Core {
    /// Bytes `from..to` as they are now, and what is needed to find them again, are durable when this
    /// returns: stored on the pdisks and known to the manager.
    pub async fn make_durable(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        from: u64,
        to: u64,
        data_only: bool,
    ) -> Result<(), Errno> {
        self.calls.inode_told(inode.ino).await?;
        let changes = inode.lock().unsent.changes();
        let mut wanted: Option<Wanted> = None;
        for _ in 0..DURABLE_TRIES {
            self.wait_settled(inode).await?;
            let (first, end, size) = {
                let state = inode.lock();
                let block_size = state.block_size();
                // The size covers stored bytes only: what lies between the manager's and ours goes too.
                let below = if state.in_inode(0) { 0 } else { state.size_committed };
                let size = wanted.as_ref().map_or(to.min(state.attr.size), |wanted| wanted.size);
                // What was dirty in the range is stored after the first round.
                let from = if wanted.is_none() { from.min(below) } else { below };
                (from / block_size, size.div_ceil(block_size), size)
            };
            self.store(inode, first, end).await?;
            let wanted = wanted.get_or_insert_with(|| {
                let blocks = inode.lock().pending.within(first, end);
                Wanted { size, blocks }
            });
            let is_told = || {
                let state = inode.lock();
                // Neither less than was there, nor what has been cut off since.
                let sizes = wanted.size.min(state.attr.size)..=state.attr.size;
                let all = sizes.contains(&state.size_committed) && !state.pending.meets(&wanted.blocks);
                // Content in the inode goes with the attributes.
                let attrs = !data_only || state.inline.is_held();
                // Nobody can ask for what has neither a name nor a handle.
                state.is_forsaken() || all && (!attrs || state.unsent.is_told(changes))
            };
            if is_told() {
                return Ok(());
            }
            // Content in the inode is told only while nobody changes it: who looks before that finds nothing to tell.
            let free = || (!inode.lock().flushes.are_held()).then_some(());
            self.wait_inode(inode, "a change of the file's blocks", free).await?;
            self.commit(inode).await?;
            waits::moved();
            if is_told() {
                return Ok(());
            }
        }
        tracing::error!(inode = %inode.ino, "a file changes too fast to be made durable");
        Err(Errno::EIO)
    }

    /// An error of writing that this handle has not yet reported.
    pub fn report_error(&self, file: &OpenFile) -> Result<(), Errno> {
        let (failures, error) = {
            let state = file.inode.lock();
            (state.failures.count(), state.failures.last())
        };
        let seen = file.failures_seen.swap(failures, SeqCst);
        if seen < failures { Err(error) } else { Ok(()) }
    }
}
