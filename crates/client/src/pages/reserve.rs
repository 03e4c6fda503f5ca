//! Room on the pdisks, from the manager: asked for in large pieces before a page is dirtied.

use std::sync::Arc;

use base::PoolId;
use wire::mgr::{MgrReply, MgrRequest};

use super::room::RoomHold;
use crate::{calls::unexpected, core::Core, error::Errno, files::inode::Inode};

impl Core {
    /// Raw bytes that `bytes` of file data occupy with their redundancy.
    pub fn raw_bytes(&self, pool: PoolId, bytes: u64) -> Result<u64, Errno> {
        let geometry = self.geometry(pool)?;
        let data = u64::from(geometry.data_strips.max(1));
        Ok((bytes * u64::from(geometry.width)).div_ceil(data))
    }

    /// Sets raw room in a pool aside; asks the manager for more when what was granted runs low. `ENOSPC` if there
    /// is none.
    pub async fn take_room(self: &Arc<Core>, pool: PoolId, raw: u64) -> Result<RoomHold, Errno> {
        if let Some(hold) = self.rooms.take(pool, raw) {
            return Ok(hold);
        }
        let _one =
            self.patient("somebody else's question for room", None, self.rooms.asking().lock()).await?;
        // A large piece first; near the end of the pdisks only what is needed.
        for bytes in [raw.max(self.tunables.reserve_bytes), raw] {
            if let Some(hold) = self.rooms.take(pool, raw) {
                return Ok(hold);
            }
            let held = self.rooms.granted(pool);
            match self.calls.ask(MgrRequest::Reserve { pool, bytes, held }).await {
                Ok(MgrReply::Reserved { bytes }) => self.rooms.grant(pool, bytes),
                Ok(other) => return Err(unexpected("Reserve", &other)),
                Err(Errno::ENOSPC) => {}
                Err(error) => return Err(error),
            }
        }
        self.rooms.take(pool, raw).ok_or(Errno::ENOSPC)
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
