//! Room on the pdisks, from the manager: asked for in large pieces before a page is dirtied.

use std::{sync::Arc, time::Duration};

use base::PoolId;
use wire::mgr::{MgrReply, MgrRequest};

use super::{block::Block, room::RoomHold};
use crate::{calls::unexpected, core::Core, error::Errno, files::inode::Inode};

/// Between two questions for room while the pdisks have not reported what was used last.
const ASK_AGAIN: Duration = Duration::from_millis(200);

impl Core {
    /// Raw bytes that `bytes` of file data occupy with their redundancy.
    pub fn raw_bytes(&self, pool: PoolId, bytes: u64) -> Result<u64, Errno> {
        let geometry = self.geometry(pool)?;
        let data = u128::from(geometry.data_strips.max(1));
        let raw = (u128::from(bytes) * u128::from(geometry.width)).div_ceil(data);
        // More than there can be.
        Ok(u64::try_from(raw).unwrap_or(u64::MAX))
    }

    /// Sets raw room in a pool aside; asks the manager for more when what was granted runs low. `ENOSPC` if there
    /// is none. Waits where the manager cannot tell before the pdisks' next reports, at most for half of the client's patience;
    /// `EIO` if it cannot tell then.
    pub async fn take_room(self: &Arc<Core>, pool: PoolId, raw: u64) -> Result<RoomHold, Errno> {
        if let Some(hold) = self.rooms.take(pool, raw) {
            return Ok(hold);
        }
        let end = tokio::time::Instant::now() + self.patience() / 2;
        let _one =
            self.patient("somebody else's question for room", None, self.rooms.asking().lock()).await?;
        let mut untold = false;
        // A large piece first; near the end of the pdisks only what is needed.
        let mut pieces = [raw.max(self.tunables.reserve_bytes), raw].into_iter().peekable();
        while let Some(&bytes) = pieces.peek() {
            if let Some(hold) = self.rooms.take(pool, raw) {
                return Ok(hold);
            }
            let held = self.rooms.granted(pool);
            match self.calls.ask(MgrRequest::Reserve { pool, bytes, held }).await {
                Ok(MgrReply::Reserved { bytes }) => self.rooms.grant(pool, bytes),
                Ok(other) => return Err(unexpected("Reserve", &other)),
                Err(Errno(libc::EAGAIN)) if tokio::time::Instant::now() < end => {
                    self.calls.alive(tokio::time::sleep(ASK_AGAIN)).await?;
                    continue;
                }
                Err(error @ (Errno::ENOSPC | Errno(libc::EAGAIN))) => untold = error != Errno::ENOSPC,
                Err(error) => return Err(error),
            }
            pieces.next();
        }
        // Pdisks that do not report are no full ones.
        self.rooms.take(pool, raw).ok_or(if untold { Errno::EIO } else { Errno::ENOSPC })
    }

    /// An allocation begins: see [`Allocating`].
    pub fn allocating(self: &Arc<Core>, pool: PoolId) -> Allocating {
        self.rooms.note_allocation(pool, true);
        Allocating { core: self.clone(), pool }
    }

    /// Gives back what is held beyond one usual piece and what is used: others may want it. If that does not reach the
    /// manager, the next question says it.
    async fn give_up_room(&self, pool: PoolId) {
        let asking = self.rooms.asking().lock();
        let Ok(_one) = self.patient("somebody else's question for room", None, asking).await else { return };
        let Some(held) = self.rooms.give_up(pool, self.tunables.reserve_bytes) else { return };
        if let Err(error) = self.calls.ask(MgrRequest::Reserve { pool, bytes: 0, held }).await {
            tracing::warn!(%pool, %error, "room that is not used could not be given back");
        }
    }

    /// Takes what a block has set aside beyond what is dirty in it: for what was dropped before it was written.
    pub fn room_unused(&self, block: &mut Block, pool: PoolId) -> u64 {
        let needed = self.raw_bytes(pool, block.dirty_bytes()).unwrap_or(u64::MAX);
        let unused = (block.reserved + block.reserved_writing).saturating_sub(needed).min(block.reserved);
        block.reserved -= unused;
        unused
    }

    /// Room that was set aside for an inode and not used.
    pub fn return_room(&self, inode: &Inode, raw: u64) {
        self.rooms.give_back(inode.home.get(), raw);
    }

    /// Room that was set aside for an inode and now holds stored bytes.
    pub fn spend_room(&self, inode: &Inode, raw: u64) {
        self.rooms.spend(inode.home.get(), raw);
    }
}

/// An allocation under way, for which more room may be granted than a usual piece, or all that there is. What is left of that goes
/// back when it ends, in whatever way: nobody else could write until this session ends.
pub(crate) struct Allocating {
    core: Arc<Core>,
    pool: PoolId,
}

impl Drop for Allocating {
    fn drop(&mut self) {
        let (core, pool) = (self.core.clone(), self.pool);
        core.rooms.note_allocation(pool, false);
        self.core.runtime.spawn(async move { core.give_up_room(pool).await });
    }
}
