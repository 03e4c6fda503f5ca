//! The strips of a pdisk as far as making them anew needs them: the pdisk, or what stands for it where the code runs under a
//! simulated disk. Each answer but a refusal is durable.

use std::future::Future;

use base::{GroupId, PoolId, StripId, Version};
use bytes::Bytes;
use pdisk::{DeletesSeen, Pdisk};
use wire::strip::{DeleteStrips, PrepareStrip, StripRefusal, StripState};

type Refused<T> = Result<T, StripRefusal>;

/// See the methods of [`Pdisk`] of the same names.
pub trait Strips: Clone + Send + Sync + 'static {
    /// How many deletes were carried out at some moment.
    type Seen: Copy + Send;
    /// Deletes carried out so far.
    fn deletes_seen(&self) -> Self::Seen;
    /// What is prepared now is what an earlier life left.
    fn begin_life(&self);
    /// The states of strips.
    fn state(&self, strips: Vec<StripId>) -> impl Future<Output = Refused<Vec<StripState>>> + Send;
    /// The states of a group's strips after one, in order, at most `limit`.
    fn list_group(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripId>,
        limit: usize,
    ) -> impl Future<Output = Refused<Vec<StripState>>> + Send;
    /// Reads what is adopted, and marks it lost, durably, if its bytes do not come or are not what was written; whether it is lost.
    fn mark_lost(&self, strip: StripId) -> impl Future<Output = Refused<bool>> + Send;
    /// Makes prepared versions the current ones.
    fn adopt(&self, items: Vec<(StripId, Version)>) -> impl Future<Output = Vec<Refused<()>>> + Send;
    /// Drops prepared versions.
    fn discard(&self, items: Vec<(StripId, Version)>) -> impl Future<Output = Vec<Refused<()>>> + Send;
    /// Drops a prepared version that an earlier life left; false if it is not that.
    fn discard_leftover(
        &self,
        strip: StripId,
        version: Version,
    ) -> impl Future<Output = Refused<bool>> + Send;
    /// Makes a prepared version that an earlier life left the current one; false if it is not that.
    fn adopt_leftover(&self, strip: StripId, version: Version) -> impl Future<Output = Refused<bool>> + Send;
    /// Removes versions; how many strips lost one.
    fn delete(&self, items: Vec<DeleteStrips>) -> impl Future<Output = Refused<u64>> + Send;
    /// Stores an adopted version that was asked for after `since`.
    fn install_since(
        &self,
        request: PrepareStrip,
        payload: Bytes,
        since: Self::Seen,
    ) -> impl Future<Output = Refused<()>> + Send;
}

impl Strips for Pdisk {
    type Seen = DeletesSeen;
    fn deletes_seen(&self) -> DeletesSeen {
        self.deletes_seen()
    }
    fn begin_life(&self) {
        self.begin_life();
    }
    async fn state(&self, strips: Vec<StripId>) -> Refused<Vec<StripState>> {
        self.state(strips).await
    }
    async fn list_group(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripId>,
        limit: usize,
    ) -> Refused<Vec<StripState>> {
        self.list_group(pool, group, after, limit).await
    }
    async fn mark_lost(&self, strip: StripId) -> Refused<bool> {
        self.mark_lost(strip).await
    }
    async fn adopt(&self, items: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.adopt(items).await
    }
    async fn discard(&self, items: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.discard(items).await
    }
    async fn discard_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        self.discard_leftover(strip, version).await
    }
    async fn adopt_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        self.adopt_leftover(strip, version).await
    }
    async fn delete(&self, items: Vec<DeleteStrips>) -> Refused<u64> {
        self.delete(items).await
    }
    async fn install_since(&self, request: PrepareStrip, payload: Bytes, since: DeletesSeen) -> Refused<()> {
        self.install_since(request, payload, since).await
    }
}
