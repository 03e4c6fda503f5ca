//! The end of inodes without a name and without a handle.
//!
//! Invariant: what was written to one that others have open is stored, told and adopted, as when its token is given back, before
//! anything of it is dropped here. Of one that nobody else has open what is dirty is never written.
//! On failure (pdisks away) it stays until that can be done; whoever waits for its token has the session ended.

use std::sync::Arc;

use super::inode::Inode;
use crate::{core::Core, error::Errno, sharing::give::RETRY};

impl Core {
    /// The last handle on an inode without a name is closed, or it never had one: its data is dropped,
    /// and the manager may reclaim it once nothing of it is in flight; `tell` it so, unless it has.
    pub fn give_up(self: &Arc<Core>, inode: &Arc<Inode>, tell: bool) {
        // Nobody who comes later can open it.
        inode.lock().unshared |= self.whole().is_some();
        let (core, inode) = (self.clone(), inode.clone());
        self.runtime.spawn(async move {
            if !core.leave_to_others(&inode).await {
                return;
            }
            let hold = loop {
                match core.hold_flushes(&inode).await {
                    Ok(hold) => break hold,
                    Err(_) if core.calls.dead() => return,
                    // What is in flight takes long. Nobody else would give the inode up, or what is dirty of it.
                    Err(_) => {}
                }
            };
            let room = {
                let mut state = inode.lock();
                if state.opens.any() {
                    return;
                }
                let room = state.drop_blocks(0, u64::MAX);
                state.pending.remove(0, u64::MAX);
                state.unsent.forget();
                state.size_committed = state.attr.size;
                room
            };
            core.return_room(&inode, room);
            core.blocks.forget_inode(core.session.fs.id, inode.ino);
            drop(hold);
            let unused = || (inode.lock().token.users() == 0).then_some(());
            if core.wait_inode(&inode, "users of a token", unused).await.is_ok() {
                let left = inode.lock().token.forget(inode.ino);
                core.orphans.add_token(left);
            }
            core.drop_inode(inode.ino);
            core.orphans.add(tell.then_some(inode.ino));
            core.unsettled.wake.notify_one();
        });
    }

    /// Makes what was written to an inode theirs who may have it open still; false if the session has ended.
    async fn leave_to_others(self: &Arc<Core>, inode: &Arc<Inode>) -> bool {
        loop {
            {
                let state = inode.lock();
                if state.unshared || state.opens.any() {
                    return true;
                }
            }
            let settled = self.settle(inode, 0, u64::MAX, false).await;
            match settled {
                // The others have closed it, and it does not exist any more.
                Err(Errno::ENOENT) => inode.lock().unshared = true,
                Ok(()) => {
                    let mut state = inode.lock();
                    state.unshared = !state.unsettled();
                }
                Err(_) if self.calls.dead() => return false,
                Err(error) => {
                    tracing::warn!(inode = %inode.ino, %error, "what others have open cannot be left to them yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}
