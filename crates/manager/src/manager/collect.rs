//! Removes what ended sessions and removed file systems leave.

use std::sync::Arc;

use base::{FsId, InodeNo, SessionId};
use tokio::sync::oneshot;

use super::shared::Inner;
use crate::{
    keys,
    namespace::{self, Fault, FsContext},
    store::Txn,
};

/// Orphans looked at, and removed, in one transaction.
const COLLECT_MAX: usize = 64;
/// Records of removed file systems removed in one transaction.
const EMPTY_MAX: usize = 256;

impl Inner {
    /// Sessions gave up their last right on inodes: those without a name may go.
    pub(super) fn drop_orphans(self: &Arc<Inner>, left: Vec<(SessionId, FsId, InodeNo)>) {
        let snapshot = self.writer.snapshot();
        for (session, fs, ino) in left {
            if !matches!(snapshot.get(&keys::orphan_key(session, fs, ino)), Ok(Some(_))) {
                continue;
            }
            let inner = self.clone();
            tokio::spawn(async move {
                let contexts = inner.writer.contexts();
                let outcome = inner.writer.run(move |txn| {
                    let context = |fs| contexts.iter().find(|context| context.fs == fs).copied();
                    namespace::drop_orphan(txn, context, session, fs, ino)
                });
                if let Err(error) = outcome.await {
                    tracing::error!(%error, %ino, "an orphan cannot be removed");
                }
                inner.deletes.notify_one();
            });
        }
    }
}

/// The task that removes orphans of ended sessions, and what removed file systems leave.
pub(super) async fn run(inner: Arc<Inner>) {
    loop {
        inner.collect.notified().await;
        let hash = inner.hash;
        let of_orphans = collect(&inner, |txn, contexts, from| {
            let context = |fs| contexts.iter().find(|context| context.fs == fs).copied();
            namespace::collect_orphans(txn, context, from, COLLECT_MAX)
        });
        of_orphans.await;
        let of_removed = collect(&inner, move |txn, _, _| {
            // What is left is found by itself.
            Ok(namespace::empty_removed(txn, hash, EMPTY_MAX)?.then(Vec::new))
        });
        of_removed.await;
    }
}

/// Does `some` in transactions of its own, each from the key on that the one before said, until nothing is left.
async fn collect(
    inner: &Arc<Inner>,
    some: impl Fn(&mut Txn<'_>, &[FsContext], &[u8]) -> Result<Option<Vec<u8>>, Fault> + Copy + Send + 'static,
) {
    let mut from = Vec::new();
    loop {
        let contexts = inner.writer.contexts();
        let (told, heard) = oneshot::channel();
        let outcome = inner.writer.run(move |txn| {
            let _ = told.send(some(txn, &contexts, &from)?);
            Ok(())
        });
        if let Err(error) = outcome.await {
            tracing::error!(%error, "what ended sessions and removed file systems leave cannot be removed");
            return;
        }
        inner.deletes.notify_one();
        match heard.await {
            Ok(Some(next)) => from = next,
            _ => return,
        }
    }
}
