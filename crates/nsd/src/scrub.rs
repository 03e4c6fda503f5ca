//! Scrub: the stripes of a group are read and proved, on demand a page at a time, and by itself at a pace that
//! goes over everything once in `scrub_interval`. What is damaged or absent is made anew; of inodes that do not exist
//! nothing is, and what is there of them is removed.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::{
    GroupId, OpClass, PdiskId, PoolId, StripId, StripIndex, StripeId, Version, beat,
    stats::{self, Counter},
};
use serde::Serialize;
use stripe::{Finding, Membership, StripeIo};
use wire::{
    map::PdiskState,
    nsd::{BATCH_MAX, NsdReply, NsdRequest},
    owned::Owner,
};

use crate::{pace::Pace, records::Records, settle::only};

/// Stripes of a page when nobody says.
const PAGE: u32 = 64;
/// Findings named in one page; further ones are counted.
const NAMED_MAX: usize = 200;
/// Blocks of one question whether they can be read, and how many of them are looked at at once.
const READABLE_MAX: usize = 256;
const READABLE_AT_ONCE: usize = 32;
/// How often it is looked whether a group is due.
const LOOK: Duration = Duration::from_secs(1);

/// What came of proving a page of a group.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Page {
    /// Stripes proved, or found wanting.
    pub stripes: u64,
    /// Bytes read and compared.
    pub bytes: u64,
    /// Strips on pdisks that do not count: nothing is said of them.
    pub away: u64,
    /// The stripes looked at that are (still) there.
    pub there: Vec<StripeId>,
    /// What is wrong, at most 200 of them.
    pub findings: Vec<Found>,
    /// How many in all.
    pub found: u64,
    /// Strips that are made anew.
    pub repaired: u64,
    /// Blocks of inodes that do not exist, removed.
    pub removed: u64,
    /// Where to go on; none at the end of the group.
    pub next: Option<StripeId>,
}

/// A finding and where.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The block.
    pub stripe: StripeId,
    /// What.
    pub finding: Finding,
}

/// Proves stripes.
pub struct Scrub {
    io: StripeIo,
    records: Arc<Records>,
    pace: Arc<Pace>,
    served: BTreeSet<PdiskId>,
    /// Groups gone over since the start.
    groups: AtomicU64,
    counted: Counted,
}

/// What it came to, in the process's registry.
struct Counted {
    bytes: Counter,
    proved: Counter,
    found: Counter,
    repaired: Counter,
}

impl Counted {
    fn new() -> Counted {
        let of = |outcome| stats::counter("nsd_scrubbed_stripes", &[("outcome", outcome)]);
        let bytes = stats::counter("nsd_scrubbed_bytes", &[]);
        Counted { bytes, proved: of("proved"), found: of("found"), repaired: of("repaired") }
    }
}

impl Scrub {
    /// For the groups whose first pdisk that counts is one of `served`.
    pub fn new(io: StripeIo, records: Arc<Records>, pace: Arc<Pace>, served: BTreeSet<PdiskId>) -> Scrub {
        Scrub { io, records, pace, served, groups: AtomicU64::new(0), counted: Counted::new() }
    }

    /// Proves up to `limit` stripes of a group after `after`.
    pub async fn page(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripeId>,
        limit: u32,
        repair: bool,
    ) -> Result<Page, String> {
        let mut page = Page::default();
        let (stripes, more) = self.stripes(pool, group, after, limit.clamp(1, BATCH_MAX as u32)).await?;
        page.next = stripes.last().copied().filter(|_| more);
        // While the manager does not say which blocks exist nothing is made anew.
        let (gone, repair) =
            self.gone(&stripes).await.map_or((BTreeSet::new(), false), |gone| (gone, repair));
        page.removed = self.remove(pool, group, &gone).await;
        for stripe in stripes {
            if gone.contains(&stripe) {
                continue;
            }
            let begun = Instant::now();
            let proof = self.io.prove(stripe, pool, OpClass::Scrub).await.map_err(|e| e.to_string())?;
            if proof.gone {
                continue;
            }
            page.stripes += 1;
            page.there.push(stripe);
            page.bytes += proof.bytes;
            self.counted.bytes.add(proof.bytes);
            self.counted.proved.inc();
            self.counted.found.add(proof.findings.len() as u64);
            page.away += u64::from(proof.away);
            page.found += proof.findings.len() as u64;
            for finding in &proof.findings {
                tracing::warn!(%stripe, %finding, "scrub");
            }
            if repair && !proof.findings.is_empty() {
                let repaired = self.io.repair(stripe, pool, &proof, OpClass::Scrub).await;
                let repaired = u64::from(repaired.map_err(|e| e.to_string())?);
                page.repaired += repaired;
                self.counted.repaired.add(repaired);
            }
            let room = NAMED_MAX.saturating_sub(page.findings.len());
            page.findings
                .extend(proof.findings.into_iter().take(room).map(|finding| Found { stripe, finding }));
            self.pace.yield_to_clients(begun.elapsed()).await;
        }
        Ok(page)
    }

    /// Those of some blocks whose inodes do not exist, and never will. `None`: the manager does not say.
    async fn gone(&self, stripes: &[StripeId]) -> Option<BTreeSet<StripeId>> {
        let deadline = Instant::now() + self.io.config().attempt;
        let asked = self.records.of_all(stripes.to_vec(), deadline).await;
        let told = asked.inspect_err(|reason| tracing::debug!(%reason, "scrub only looks"));
        let of = stripes.iter().zip(told.ok()?);
        Some(of.filter(|(_, owner)| *owner == Owner::Nobody).map(|(stripe, _)| *stripe).collect())
    }

    /// Has everything of some blocks removed wherever strips of their group are written; how many are. What a pdisk does
    /// not answer is found again.
    async fn remove(&self, pool: PoolId, group: GroupId, gone: &BTreeSet<StripeId>) -> u64 {
        if gone.is_empty() {
            return 0;
        }
        let view = self.io.view();
        let moving = view.moves(pool, group).iter().map(|m| m.to).collect::<Vec<_>>();
        let members = view.members(pool, group).iter().copied().chain(moving);
        let items: Vec<_> = gone.iter().map(|stripe| only(*stripe, Version::MAX)).collect();
        for pdisk in members.filter(|m| view.state(*m).written()) {
            let deadline = Instant::now() + self.io.config().attempt;
            let request = NsdRequest::Delete { pdisk, items: items.clone() };
            if let Err(fault) = self.io.call(pdisk, request, Vec::new(), OpClass::Scrub, deadline).await {
                tracing::debug!(%pdisk, %fault, "what no inode owns is left there");
                return 0;
            }
        }
        tracing::info!(%pool, %group, removed = gone.len(), "blocks of inodes that do not exist are removed");
        gone.len() as u64
    }

    /// Whether blocks of a pool can be read from the strips in reach; the first [`READABLE_MAX`] of them.
    pub async fn readable(&self, pool: PoolId, stripes: &[StripeId]) -> Result<Vec<bool>, String> {
        let stripes = &stripes[..stripes.len().min(READABLE_MAX)];
        let mut asked = tokio::task::JoinSet::new();
        let mut readable = vec![false; stripes.len()];
        let mut outcome = |joined: Result<(usize, Result<bool, stripe::StripeError>), _>| {
            if let Ok((at, answer)) = joined {
                readable[at] = answer.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        };
        for (at, &stripe) in stripes.iter().enumerate() {
            if asked.len() >= READABLE_AT_ONCE
                && let Some(joined) = asked.join_next().await
            {
                outcome(joined)?;
            }
            let io = self.io.clone();
            asked.spawn(async move { (at, io.readable(stripe, pool, OpClass::Scrub).await) });
        }
        while let Some(joined) = asked.join_next().await {
            outcome(joined)?;
        }
        Ok(readable)
    }

    /// The next stripes of a group, as any of its pdisks that count knows them; whether there are more.
    async fn stripes(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripeId>,
        limit: u32,
    ) -> Result<(Vec<StripeId>, bool), String> {
        let view = self.io.view();
        let mut all = BTreeSet::new();
        let mut end: Option<StripeId> = None;
        for &pdisk in view.members(pool, group) {
            if view.state(pdisk) != PdiskState::Ok {
                continue;
            }
            let after = after.map(|stripe| StripId { stripe, index: StripIndex(u8::MAX) });
            let request = NsdRequest::ListGroup { pdisk, pool, group, after, limit };
            let deadline = Instant::now() + self.io.config().attempt;
            match self.io.call(pdisk, request, Vec::new(), OpClass::Scrub, deadline).await {
                Ok((NsdReply::States { states, more }, _)) => {
                    if let (true, Some(last)) = (more, states.last()) {
                        // Beyond here this pdisk may know more.
                        end = Some(end.map_or(last.strip.stripe, |e| e.min(last.strip.stripe)));
                    }
                    all.extend(states.into_iter().map(|s| s.strip.stripe));
                }
                Ok(_) => return Err(format!("{pdisk}: unexpected answer")),
                Err(fault) => return Err(format!("{pdisk}: {fault}")),
            }
        }
        let stripes: Vec<StripeId> = all.into_iter().filter(|s| end.is_none_or(|end| *s <= end)).collect();
        Ok((stripes, end.is_some()))
    }

    /// Goes over this server's groups again and again, for the life of the server.
    pub async fn run(self: Arc<Self>, membership: Membership) {
        let mut began = Instant::now();
        let mut at = 0;
        loop {
            tokio::time::sleep_until(beat::by(Instant::now(), LOOK).into()).await;
            let Some(interval) = self.pace.scrub_interval() else {
                (began, at) = (Instant::now(), 0);
                continue;
            };
            let mine = self.groups(&membership);
            while at < mine.len() && began.elapsed() >= interval.mul_f64(at as f64 / mine.len() as f64) {
                let (pool, group) = mine[at];
                self.group(pool, group).await;
                at += 1;
            }
            if at >= mine.len() && began.elapsed() >= interval {
                (began, at) = (Instant::now(), 0);
            }
        }
    }

    async fn group(&self, pool: PoolId, group: GroupId) {
        let mut after = None;
        loop {
            match self.page(pool, group, after, PAGE, true).await {
                Ok(Page { next: None, .. }) => break,
                Ok(page) => after = page.next,
                Err(reason) => {
                    tracing::debug!(%pool, %group, reason, "scrub goes on with the next group");
                    break;
                }
            }
        }
        self.groups.fetch_add(1, Ordering::Relaxed);
    }

    /// The groups whose first pdisk that counts is served here.
    fn groups(&self, membership: &Membership) -> Vec<(PoolId, GroupId)> {
        let view = membership.view();
        let mut mine = Vec::new();
        for pool in &view.map.pools {
            for (g, members) in (0u32..).zip(pool.table.chunks_exact(usize::from(pool.width.max(1)))) {
                let first = members.iter().find(|m| view.state(**m) == PdiskState::Ok);
                if first.is_some_and(|first| self.served.contains(first)) {
                    mine.push((pool.id, GroupId(g)));
                }
            }
        }
        mine
    }
}
