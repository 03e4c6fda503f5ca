//! A strip that its disk did not give.
//!
//! An error of a disk, or of the way to it, may pass, and the bytes are what they were; a mark that they are lost does not pass. So such a
//! strip is treated as lost, and marked when its bytes have been made of the others' and it still cannot be read. Where others do
//! not have them nothing is recorded.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use base::{GroupId, PoolId, StripId, Version};
use bytes::Bytes;
use wire::strip::{DeleteStrips, PrepareStrip, StripRefusal, StripState};

use crate::strips::Strips;

type Refused<T> = Result<T, StripRefusal>;

/// A pdisk, of which a strip is in doubt.
#[derive(Clone)]
pub struct Doubted<S> {
    /// Where it is.
    pub pdisk: S,
    /// The strip.
    pub strip: StripId,
    /// It could be read at last.
    pub sound: Arc<AtomicBool>,
}

impl<S: Strips> Strips for Doubted<S> {
    type Seen = S::Seen;
    fn deletes_seen(&self) -> S::Seen {
        self.pdisk.deletes_seen()
    }
    fn begin_life(&self) {
        self.pdisk.begin_life();
    }
    async fn state(&self, strips: Vec<StripId>) -> Refused<Vec<StripState>> {
        let mut states = self.pdisk.state(strips).await?;
        let its = states.iter_mut().filter(|s| s.strip == self.strip && s.adopted.is_some());
        its.for_each(|state| state.lost = true);
        Ok(states)
    }
    async fn list_group(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripId>,
        limit: usize,
    ) -> Refused<Vec<StripState>> {
        self.pdisk.list_group(pool, group, after, limit).await
    }
    async fn mark_lost(&self, strip: StripId) -> Refused<bool> {
        self.pdisk.mark_lost(strip).await
    }
    async fn adopt(&self, items: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.pdisk.adopt(items).await
    }
    async fn discard(&self, items: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.pdisk.discard(items).await
    }
    async fn discard_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        self.pdisk.discard_leftover(strip, version).await
    }
    async fn adopt_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        self.pdisk.adopt_leftover(strip, version).await
    }
    async fn delete(&self, items: Vec<DeleteStrips>) -> Refused<u64> {
        self.pdisk.delete(items).await
    }
    async fn install_since(&self, request: PrepareStrip, payload: Bytes, since: S::Seen) -> Refused<()> {
        if !self.pdisk.mark_lost(self.strip).await? {
            self.sound.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.pdisk.install_since(request, payload, since).await
    }
}
