//! Bringing what ended sessions left half written to its old or its new content.

use std::{sync::Arc, time::Duration};

use wire::{
    mgr::MgrRequest,
    token::{Need, Token},
};

use super::guards::TokenHold;
use crate::{core::Core, error::Errno, files::inode::Inode};

/// Pause before what ended sessions left is tried again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(2);

impl Core {
    /// Resolves an inode under a token that came with that duty. Carried to its end, also if who wants the inode gives up:
    /// until that is said nobody is let in, and nobody else would say it.
    pub async fn resolve_under(
        self: &Arc<Core>,
        hold: TokenHold,
        inode: &Arc<Inode>,
        token: Token,
    ) -> Result<TokenHold, Errno> {
        let (core, file) = (self.clone(), inode.clone());
        let resolution =
            self.runtime.spawn(async move { core.resolve_inode(&file, &token).await.map(|()| hold) });
        let _entered = self.pool.waits().enter("what an ended session left to be resolved", Some(inode.ino));
        resolution.await.unwrap_or(Err(Errno::EIO))
    }

    /// Brings an inode that an ended session was writing to its old or new content, block by block.
    async fn resolve_inode(self: &Arc<Core>, inode: &Arc<Inode>, token: &Token) -> Result<(), Errno> {
        let resolved = self.blocks.resolve_inode(self.session.fs.id, inode.ino, token.serial);
        let outcome = match self.calls.alive(resolved).await? {
            Ok(()) => self.calls.ask(MgrRequest::Resolved { ino: inode.ino }).await.map(drop),
            Err(error) => Err(self.block_error("resolve", inode, 0, &error)),
        };
        let left = {
            let mut state = inode.lock();
            state.token.resolved();
            // Not resolved: the next who wants it tries again.
            outcome.is_err().then(|| {
                state.attr_known = false;
                state.recorded.forget_all();
                state.token.forget(inode.ino)
            })
        };
        inode.changed.notify_waiters();
        if let Some(left) = left {
            self.release(vec![left]).await;
        }
        outcome
    }

    /// Resolves what is left of ended sessions: whoever takes the tokens one by one resolves.
    pub async fn resolve_pass(self: Arc<Core>, pass: u64) {
        let outcome = async {
            let left = self.blocks.unresolved_inodes(self.session.fs.id).await;
            let left = left.map_err(|error| {
                tracing::warn!(%error, "what ended sessions left cannot be listed");
                Errno::EIO
            })?;
            // One whose pdisks are away holds up no other.
            let mut failed = None;
            for ino in left {
                match self.hold(&self.inode(ino), Need::Attr).await {
                    // Removed since.
                    Ok(_) | Err(Errno::ENOENT) => {}
                    Err(error) if self.calls.dead() => return Err(error),
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) => Err(error),
                None => self.calls.ask(MgrRequest::ResolvePassDone { pass }).await.map(drop),
            }
        };
        if let Err(error) = outcome.await {
            tracing::warn!(%error, "not all that ended sessions left is resolved; tried again");
            tokio::time::sleep(RESOLVE_AGAIN).await;
            self.sharing.resolution_failed();
        }
    }
}
