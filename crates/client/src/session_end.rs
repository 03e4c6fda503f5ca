//! What is to be durable before a session ends, and its end.

use std::{sync::Arc, time::Instant};

use wire::mgr::{MgrReply, MgrRequest};

use crate::{calls::unexpected, core::Core, error::Errno};

impl Core {
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
            for store in stores {
                first = first.and(store.await.unwrap_or(Err(Errno::EIO)));
            }
        }
        first
    }

    /// See [`crate::Client::shutdown`].
    pub async fn shutdown(self: &Arc<Core>, deadline: Instant) -> Result<(), Errno> {
        let end = async {
            self.sync_all().await?;
            while self.send_forgets().await > 0 {}
            let adopted = self.blocks.adopt_all(deadline).await;
            adopted.map_err(|error| {
                tracing::error!(%error, "adopt stripes at the end of the session");
                Errno::EIO
            })?;
            self.calls.set_leaving();
            match self.calls.ask(MgrRequest::CloseSession).await? {
                MgrReply::Done => Ok(()),
                other => Err(unexpected("CloseSession", &other)),
            }
        };
        let end = tokio::time::timeout_at(deadline.into(), self.calls.alive(end));
        let result = end.await.unwrap_or(Err(Errno::EIO)).and_then(|done| done);
        self.calls.set_closed();
        result
    }
}
