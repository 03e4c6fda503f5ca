//! fallocate's promise: a later write into the range does not fail for lack of room.
//!
//! Kept in the plainest way: the range is stored. What is not there is written as zeros, what is there is
//! written once more (a block may hold less than its range: what was never written of it has no room), and
//! both are durable before the answer. Writing over what is stored needs no room of its own: each pdisk keeps
//! some for new versions of what it has. So the promise outlives this session, a remount and a crash.
//! Beyond the end of the file nothing says how much of a block is stored, so nothing is promised there
//! (FALLOC_FL_KEEP_SIZE is refused); the size grows with what is stored.

use std::sync::Arc;

use base::units::UNIT;

use crate::{
    core::Core,
    error::Errno,
    files::{inode::Inode, state::FileState},
};

/// Bytes stored under one hold of the file's lock.
const STEP_MAX: u64 = 1 << 20;

const UNIT64: u64 = UNIT as u64;

/// How far an allocation has come: a file of this size whose last write this was is as it has left it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reached {
    size: u64,
    last_write: u64,
}

impl Reached {
    fn of(state: &FileState) -> Reached {
        Reached { size: state.attr.size, last_write: state.writes.last() }
    }
}

impl Core {
    /// Stores bytes `from..to`. On an error the size is as before, unless somebody else has written to the file meanwhile, or has set it.
    pub async fn allocate(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        from: u64,
        to: u64,
        keep_size: bool,
    ) -> Result<(), Errno> {
        let (mut reached, pool, block_size) = {
            let state = inode.lock();
            (Reached::of(&state), state.attr.pool, state.block_size())
        };
        let size = reached.size;
        if keep_size && to > size {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if to.max(size) <= u64::from(self.tunables.inline_data_max) && inode.lock().inline.is_held() {
            // The content is the manager's to keep: it needs no room on the pdisks.
            return self.extend(inode, to).await;
        }
        // All of it, or nothing: room for what is new is given back and taken again step by step, room for
        // what is there is held beside it to the end.
        let blocks = from / block_size..to.div_ceil(block_size);
        let there = {
            let state = inode.lock();
            let count = |set: &crate::pages::extents::BlockSet| set.count_in(blocks.start, blocks.end);
            (count(state.recorded.allocated()) + count(&state.pending)) * block_size
        };
        // Dropped last, when nothing is set aside any more.
        let _allocating = self.allocating(pool);
        let bytes = to.next_multiple_of(UNIT64) - from / UNIT64 * UNIT64;
        let new = self.take_room(pool, self.raw_bytes(pool, bytes.saturating_sub(there))?).await?;
        let _again = self.take_room(pool, self.raw_bytes(pool, bytes.min(there))?).await?;
        drop(new);

        let stored = self.store_range(inode, from, to, &mut reached).await;
        if stored.is_err() && to > size {
            let io = self.alone_in(inode).await?;
            // Not what others have written or set meanwhile.
            if reached == Reached::of(&inode.lock())
                && let Err(error) = self.shrink(inode, size, io).await
            {
                tracing::warn!(inode = %inode.ino, %error, "what was allocated before an error stays");
            }
        }
        stored
    }

    /// The file is at least this long; nothing is stored.
    async fn extend(self: &Arc<Core>, inode: &Arc<Inode>, size: u64) -> Result<(), Errno> {
        let _io = self.patient("a file's lock", Some(inode.ino), inode.io.write()).await?;
        if size > inode.lock().attr.size { self.grow(inode, size).await } else { Ok(()) }
    }

    async fn store_range(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        from: u64,
        to: u64,
        reached: &mut Reached,
    ) -> Result<(), Errno> {
        let mut pos = from;
        while pos < to {
            let end = to.min((pos / STEP_MAX + 1) * STEP_MAX);
            self.store_again(inode, pos, end, reached).await?;
            pos = end;
        }
        self.make_durable(inode, from, to, true).await
    }

    /// Makes bytes `from..to` dirty as they are. `reached` goes on, unless others have changed the file since.
    async fn store_again(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        from: u64,
        to: u64,
        reached: &mut Reached,
    ) -> Result<(), Errno> {
        let memory = (to - from).next_multiple_of(UNIT64) + 2 * UNIT64;
        self.pool.throttle(memory, self.patience()).await?;
        let mut charge = self.pool.charge(memory, self.patience()).await?;
        let _io = self.patient("a file's lock", Some(inode.ino), inode.io.write()).await?;
        let alone = *reached == Reached::of(&inode.lock());
        let mut content = Vec::with_capacity((to - from) as usize);
        for piece in self.read_inode(inode, from, (to - from) as usize).await?.into_pieces() {
            content.extend_from_slice(&piece);
        }
        content.resize((to - from) as usize, 0);
        let written = self.write_held(inode, from, content[..].into(), &mut charge).await;
        if alone {
            *reached = Reached::of(&inode.lock());
        }
        written
    }
}
