//! What one worker of a measurement does, over and over.

use std::{sync::Arc, time::Instant};

use base::{
    BlockIndex, FsId, Grant, GroupId, InodeNo, PoolId, StripId, StripIndex, StripSet, StripeId, Version,
    stats::Histogram, units::UNIT,
};
use bytes::Bytes;
use wire::strip::{PrepareStrip, Range, ReadStrip, ReadVersion, StripRefusal, VersionInfo};

use super::{ADOPT_BATCH, Load, STRIP};
use crate::{error::PdiskError, pdisk::Pdisk, random::Random};

pub(super) fn failed(refusal: StripRefusal) -> PdiskError {
    PdiskError::Failed { reason: format!("the pdisk refused: {refusal}") }
}

pub(super) fn strip(n: u64) -> StripId {
    StripeId { fs: FsId(1), inode: InodeNo(2 + n / 4096), block: BlockIndex(n % 4096) }.strip(StripIndex(0))
}

pub(super) fn whole(strip: StripId, version: Version, len: usize, crcs: &[u32]) -> PrepareStrip {
    PrepareStrip {
        strip,
        pool: PoolId(1),
        group: GroupId((strip.stripe.block.0 % 64) as u32),
        info: VersionInfo { version, touched: StripSet(1), len: len as u32, covers: Vec::new() },
        base: None,
        adopt: None,
        ranges: vec![Range { offset: 0, len: len as u32 }],
        crcs: crcs.to_vec(),
    }
}

/// One of several that do the same at the same time, each on strips of its own where it writes.
pub(super) struct Worker {
    pub pdisks: Vec<Pdisk>,
    pub strips: u64,
    pub payload: Bytes,
    pub crcs: Arc<Vec<u32>>,
    pub version: u64,
    pub at: u64,
    pub step: u64,
    pub adopt: Vec<(u64, Version)>,
    pub latency: Histogram,
    pub random: Random,
}

impl Worker {
    /// The pdisk of strip `n` of all, and its strip there.
    fn place(&self, n: u64) -> (&Pdisk, StripId) {
        (&self.pdisks[(n / self.strips) as usize % self.pdisks.len()], strip(n % self.strips))
    }

    pub async fn step(&mut self, load: Load, all: u64) -> Result<(), PdiskError> {
        let n = self.at % all;
        match load {
            Load::Write { .. } => {
                let start = Instant::now();
                self.write(n).await?;
                self.latency.record(start.elapsed());
                self.next(all);
                // Before it comes to the same strip again, however few it has.
                let own = (all / self.step).max(1) as usize;
                if self.adopt.len() >= ADOPT_BATCH.min(own) {
                    self.adopt().await?;
                }
                Ok(())
            }
            Load::Read { .. } => {
                self.at += self.step;
                self.read(1, STRIP as u32, |_| (n, 0)).await
            }
            Load::RandomRead { batch, .. } => {
                let mut random = self.random.clone();
                let read = self.read(batch, UNIT as u32, |_| {
                    (random.below(all), (random.below((STRIP / UNIT) as u64) * UNIT as u64) as u32)
                });
                read.await?;
                self.random = random;
                Ok(())
            }
            Load::SyncWrite { .. } => self.sync_write(all).await,
        }
    }

    fn next(&mut self, all: u64) {
        self.at += self.step;
        if self.at / all != (self.at - self.step) / all {
            self.version += 1;
        }
    }

    pub async fn write(&mut self, n: u64) -> Result<(), PdiskError> {
        let version = Version { grant: Grant(1), seq: self.version };
        let (pdisk, id) = self.place(n);
        let request = whole(id, version, STRIP, &self.crcs);
        let answer = pdisk.prepare(vec![(request, self.payload.clone())]).await.pop();
        answer.unwrap_or(Ok(())).map_err(failed)?;
        self.adopt.push((n, version));
        Ok(())
    }

    pub async fn adopt(&mut self) -> Result<(), PdiskError> {
        for pdisk in 0..self.pdisks.len() as u64 {
            let batch: Vec<_> = self
                .adopt
                .iter()
                .filter(|(n, _)| n / self.strips == pdisk)
                .map(|(n, v)| (strip(n % self.strips), *v))
                .collect();
            for answer in self.pdisks[pdisk as usize].adopt(batch).await {
                answer.map_err(failed)?;
            }
        }
        self.adopt.clear();
        Ok(())
    }

    async fn read(
        &mut self,
        batch: u32,
        len: u32,
        mut place: impl FnMut(u32) -> (u64, u32),
    ) -> Result<(), PdiskError> {
        let start = Instant::now();
        let mut requests = Vec::with_capacity(batch as usize);
        let mut pdisk = &self.pdisks[0];
        for i in 0..batch {
            let (n, offset) = place(i);
            let (of, id) = self.place(n);
            // A batch goes to one pdisk: that of its first read.
            if i == 0 {
                pdisk = of;
            }
            let ranges = vec![Range { offset, len }];
            requests.push(ReadStrip { strip: id, version: ReadVersion::Adopted, ranges });
        }
        for answer in pdisk.read(requests).await {
            let (_, bytes) = answer.map_err(failed)?;
            debug_assert_eq!(bytes.len(), len as usize);
        }
        self.latency.record(start.elapsed());
        Ok(())
    }

    /// A random range of a random strip of this writer's own. Returns its bytes.
    pub async fn overwrite(&mut self, all: u64) -> Result<u64, PdiskError> {
        let units = (STRIP / UNIT) as u64;
        let n = self.random.below(all.div_ceil(self.step)) * self.step + self.at;
        let (pdisk, id) = self.place(n % all);
        let (pdisk, id) = (pdisk.clone(), id);
        let mine = n < all;
        let state = pdisk.state(vec![id]).await.map_err(failed)?;
        let now = state[0].prepared.as_ref().or(state[0].adopted.as_ref()).map(|i| i.version);
        let Some(base) = now.filter(|_| mine) else { return Ok(0) };
        let count = 1 + self.random.below(64);
        let first = self.random.below(units - count) as usize;
        let span = first..first + count as usize;
        let version = Version { grant: base.grant, seq: base.seq + 1 };
        let mut request = whole(id, version, STRIP, &self.crcs[span.clone()]);
        let range = Range { offset: (first * UNIT) as u32, len: (span.len() * UNIT) as u32 };
        (request.base, request.adopt, request.ranges) = (Some(base), Some(base), vec![range]);
        let payload = self.payload.slice(span.start * UNIT..span.end * UNIT);
        let answer = pdisk.prepare(vec![(request, payload)]).await.pop();
        answer.unwrap_or(Ok(())).map_err(failed)?;
        Ok(range.len.into())
    }

    /// One unit of a strip of this writer's own, over what it wrote before.
    async fn sync_write(&mut self, all: u64) -> Result<(), PdiskError> {
        let (pdisk, id) = self.place(self.at % all);
        let (pdisk, id) = (pdisk.clone(), id);
        if self.adopt.is_empty() {
            let state = pdisk.state(vec![id]).await.map_err(failed)?;
            let base = state[0].adopted.as_ref().map(|i| i.version).unwrap_or_default();
            self.adopt.push((self.at % all, base));
        }
        let base = self.adopt[0].1;
        let version = Version { grant: Grant(1), seq: self.version.max(base.seq + 1) };
        let unit = self.random.below((STRIP / UNIT) as u64) as usize;
        let range = Range { offset: (unit * UNIT) as u32, len: UNIT as u32 };
        let mut request = whole(id, version, STRIP, &self.crcs[unit..unit + 1]);
        (request.base, request.adopt, request.ranges) = (Some(base), Some(base), vec![range]);
        let payload = self.payload.slice(unit * UNIT..(unit + 1) * UNIT);
        let start = Instant::now();
        let answer = pdisk.prepare(vec![(request, payload)]).await.pop();
        answer.unwrap_or(Ok(())).map_err(failed)?;
        self.latency.record(start.elapsed());
        self.adopt[0].1 = version;
        self.version = version.seq + 1;
        Ok(())
    }
}
