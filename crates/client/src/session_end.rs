//! What is to be durable before a session ends, and its end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wire::mgr::{MgrReply, MgrRequest};

use crate::{calls::unexpected, core::Core, error::Errno};

/// Pause before what could not be made durable is tried again.
const AGAIN: Duration = Duration::from_secs(1);

impl Core {
    /// See [`crate::Client::sync_until`].
    pub async fn sync_until(self: &Arc<Core>, deadline: Instant) -> Result<(), Errno> {
        let attempts = async {
            loop {
                match self.sync_all().await {
                    // Whatever waits for a manager or servers that are away ends so, after the client's patience.
                    Err(Errno::EIO) if !self.calls.dead() && !self.calls.ahead.is_lost() => {
                        tokio::time::sleep(AGAIN).await;
                    }
                    done => return done,
                }
            }
        };
        tokio::time::timeout_at(deadline.into(), attempts).await.unwrap_or(Err(Errno::EIO))
    }

    /// See [`crate::Client::sync_all`].
    pub async fn sync_all(self: &Arc<Core>) -> Result<(), Errno> {
        let inodes = self.unsettled.all();
        let mut first = self.calls.told().await;
        // All data first, so that the blocks of all files are in flight together.
        for batch in inodes.chunks(self.live().syncs_max as usize) {
            let stores: Vec<_> = batch
                .iter()
                .map(|inode| {
                    let (core, inode) = (self.clone(), inode.clone());
                    self.runtime.spawn(async move { core.make_durable(&inode, 0, u64::MAX, false).await })
                })
                .collect();
            let mut failed = 0;
            for (inode, store) in batch.iter().zip(stores) {
                let stored = match store.await.unwrap_or(Err(Errno::EIO)) {
                    // It was removed meanwhile: the manager has it no more, and nothing of it is to be durable.
                    Err(Errno::ENOENT) if !inode.lock().opens.any() => Ok(()),
                    stored => stored,
                };
                failed += usize::from(stored.is_err());
                first = first.and(stored);
            }
            // Nobody answers: each of what is left would wait as long.
            if failed == batch.len() {
                break;
            }
        }
        first
    }

    /// See [`crate::Client::shutdown`].
    pub async fn shutdown(self: &Arc<Core>, deadline: Instant) -> Result<(), Errno> {
        let durable = self.calls.alive(self.sync_until(deadline)).await.and_then(|done| done);
        let result = match durable {
            Ok(()) => {
                // Nothing is lost where the manager does not hear of it: that is not waited for as data is.
                let deadline = deadline.min(Instant::now() + self.patience());
                let left = tokio::time::timeout_at(deadline.into(), self.calls.alive(self.leave(deadline)));
                left.await.unwrap_or_else(|_| {
                    tracing::warn!("everything is durable; the end of the session could not be told in time");
                    Ok(Ok(()))
                })
            }
            Err(lost) => Err(lost),
        };
        self.calls.set_closed();
        result.and_then(|done| done)
    }

    /// Nothing is left to write: nothing is to be left for others to resolve either.
    async fn leave(self: &Arc<Core>, deadline: Instant) -> Result<(), Errno> {
        // Whoever waits gives up first.
        let deadline = deadline + AGAIN;
        while self.send_forgets().await > 0 {}
        let adopted = self.blocks.adopt_all(deadline).await;
        adopted.map_err(|error| {
            tracing::error!(%error, "adopt stripes at the end of the session");
            Errno::EIO
        })?;
        self.calls.set_leaving();
        let patience = deadline.saturating_duration_since(Instant::now());
        match self.calls.ask_within(MgrRequest::CloseSession, patience).await? {
            MgrReply::Done => Ok(()),
            other => Err(unexpected("CloseSession", &other)),
        }
    }
}
