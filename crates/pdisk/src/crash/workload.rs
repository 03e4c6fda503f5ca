//! A random workload whose outcome is known: each client has an inode of its own and asks one thing at a
//! time; several clients run at once, so that groups carry the records of many.

use std::collections::BTreeMap;

use base::{
    BlockIndex, FsId, Grant, GroupId, InodeNo, PoolId, StripId, StripIndex, StripSet, StripeId, Version,
};
use bytes::Bytes;
use wire::{
    crc::unit_crcs,
    strip::{DeleteStrips, PrepareStrip, Range, VersionInfo},
};

use super::oracle::{Content, Operation, Operations, StripModel, bytes_of};
use crate::{io::fault::Trace, pdisk::Pdisk, random::Random};

const CLIENTS: u64 = 6;
const STRIPS: u64 = 3;
/// Longest strip, in units.
const LEN_MAX: u64 = 8;
const UNIT: u32 = base::units::UNIT as u32;

pub(super) type Models = BTreeMap<StripId, StripModel>;

/// Runs until each client has had `operations` answers. Panics if the pdisk refuses what it must do.
pub(super) async fn run(
    pdisk: &Pdisk,
    trace: &Trace,
    table: &Operations,
    models: &Models,
    (seed, grant): (u64, u64),
    operations: u64,
) {
    let clients = (0..CLIENTS).map(|n| {
        let mine =
            (0..STRIPS).map(|block| models.get(&strip(n, block)).cloned().unwrap_or_default()).collect();
        let mut client = Client {
            pdisk: pdisk.clone(),
            trace: trace.clone(),
            table: table.clone(),
            random: Random::new(seed ^ (n << 32)),
            number: n,
            strips: mine,
            last: Version::default(),
        };
        client.last = client.newest(grant);
        tokio::spawn(async move {
            for _ in 0..operations {
                client.step().await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("a client panicked");
    }
}

pub(super) fn strip(client: u64, block: u64) -> StripId {
    let stripe = StripeId { fs: FsId(1), inode: InodeNo(100 + client), block: BlockIndex(block) };
    stripe.strip(StripIndex((client % 3) as u8))
}

struct Client {
    pdisk: Pdisk,
    trace: Trace,
    table: Operations,
    random: Random,
    number: u64,
    strips: Vec<StripModel>,
    /// The last version given.
    last: Version,
}

impl Client {
    /// Not below `grant`: an earlier life deleted up to there, and what it left does not say so.
    fn newest(&self, grant: u64) -> Version {
        let versions =
            self.strips.iter().flat_map(|s| s.adopted.iter().chain(&s.prepared)).map(|c| c.version);
        let sealed = self.strips.iter().map(|s| s.sealed).max().unwrap_or(0);
        let newest = versions.max().unwrap_or_default();
        Version { grant: Grant(newest.grant.0.max(sealed).max(grant)), seq: newest.seq }
    }

    fn next_version(&mut self) -> Version {
        self.last.seq += 1;
        self.last
    }

    async fn step(&mut self) {
        let which = self.random.below(STRIPS) as usize;
        let has = |c: &Option<Content>| c.is_some();
        let (adopted, prepared) = (has(&self.strips[which].adopted), has(&self.strips[which].prepared));
        match self.random.below(100) {
            0..25 => self.prepare(vec![which], false).await,
            25..50 if adopted || prepared => self.prepare(vec![which], true).await,
            50..60 => {
                let ranges = self.random.chance(500_000);
                self.prepare((0..STRIPS as usize).collect(), ranges).await;
            }
            60..78 if prepared => self.adopt(which, true).await,
            78..84 if prepared => self.adopt(which, false).await,
            84..89 => self.seal(which).await,
            89..93 => self.delete().await,
            93..95 => self.install(which).await,
            95..98 => self.at_once(which).await,
            _ => self.prepare(vec![which], false).await,
        }
    }

    fn id(&self, which: usize) -> StripId {
        strip(self.number, which as u64)
    }

    /// Notes the operation, runs it, notes the answer.
    async fn operate<T>(
        &mut self,
        changes: Vec<(usize, StripModel)>,
        run: impl AsyncFnOnce(&Pdisk) -> T,
    ) -> T {
        self.operate_through(Vec::new(), changes, run).await
    }

    /// The same of several operations, between which the strips may be found as well.
    async fn operate_through<T>(
        &mut self,
        between: Vec<(usize, StripModel)>,
        changes: Vec<(usize, StripModel)>,
        run: impl AsyncFnOnce(&Pdisk) -> T,
    ) -> T {
        let named = |list: &[(usize, StripModel)]| {
            list.iter().map(|(which, m)| (self.id(*which), m.clone())).collect()
        };
        let (changed, between) = (named(&changes), named(&between));
        let mark = self.table.begin(Operation { changes: changed, between, ..Operation::default() });
        self.trace.mark(mark);
        let answer = run(&self.pdisk).await;
        let stats = self.pdisk.stats();
        self.table.told(mark, (stats.log_position, stats.incarnation.0));
        self.trace.mark(mark + 1);
        for (which, model) in changes {
            self.strips[which] = model;
        }
        answer
    }

    async fn prepare(&mut self, which: Vec<usize>, ranges: bool) {
        let mut batch = Vec::new();
        let mut changes = Vec::new();
        for which in which {
            let mut model = self.strips[which].clone();
            let adopt = model.prepared.as_ref().map(|c| c.version);
            if let Some(prepared) = model.prepared.take() {
                model.adopted = Some(prepared);
            }
            let base = model.adopted.clone().filter(|_| ranges);
            let (content, ranges) = self.content(base.as_ref());
            let request = self.request(which, &content, ranges, base.map(|b| b.version), adopt);
            batch.push(request);
            model.prepared = Some(content);
            changes.push((which, model));
        }
        let answers = self.operate(changes, async |p| p.prepare(batch).await).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }

    /// A new version's content and the ranges it writes.
    fn content(&mut self, base: Option<&Content>) -> (Content, Vec<Range>) {
        let version = self.next_version();
        let len = 1 + self.random.below(LEN_MAX);
        let mut units = vec![0; len as usize];
        let mut ranges = Vec::new();
        match base {
            None => {
                units.fill_with(|| self.random.next() | 1);
                ranges.push(Range { offset: 0, len: len as u32 * UNIT });
            }
            Some(base) => {
                let kept = base.units.len().min(units.len());
                units[..kept].copy_from_slice(&base.units[..kept]);
                let mut at = 0;
                while ranges.len() < 2 && at < len {
                    let first = at + self.random.below(len - at);
                    let count = 1 + self.random.below((len - first).min(4));
                    units[first as usize..(first + count) as usize].fill_with(|| self.random.next() | 1);
                    ranges.push(Range { offset: first as u32 * UNIT, len: count as u32 * UNIT });
                    at = first + count + 1;
                }
            }
        }
        (Content { version, units }, ranges)
    }

    fn request(
        &self,
        which: usize,
        content: &Content,
        ranges: Vec<Range>,
        base: Option<Version>,
        adopt: Option<Version>,
    ) -> (PrepareStrip, Bytes) {
        let written = ranges.iter().flat_map(|r| r.offset / UNIT..r.end() / UNIT);
        let payload: Vec<u8> = written.flat_map(|u| bytes_of(content.units[u as usize])).collect();
        let info = VersionInfo {
            version: content.version,
            touched: StripSet(7),
            len: content.units.len() as u32 * UNIT,
            covers: vec![None; (self.number % 3) as usize],
        };
        let crcs = unit_crcs(&payload).collect();
        let (pool, group) = (PoolId(1), GroupId(self.number as u32));
        let strip = self.id(which);
        (PrepareStrip { strip, pool, group, info, base, adopt, ranges, crcs }, payload.into())
    }

    async fn adopt(&mut self, which: usize, take: bool) {
        let mut model = self.strips[which].clone();
        let Some(prepared) = model.prepared.take() else { return };
        let what = vec![(self.id(which), prepared.version)];
        if take {
            model.adopted = Some(prepared);
        }
        let run = async |p: &Pdisk| if take { p.adopt(what).await } else { p.discard(what).await };
        assert_eq!(self.operate(vec![(which, model)], run).await, [Ok(())]);
    }

    async fn seal(&mut self, which: usize) {
        let mut model = self.strips[which].clone();
        self.last = Version { grant: Grant(self.last.grant.0 + 1), seq: 0 };
        model.sealed = self.last.grant.0;
        let (id, below) = (self.id(which), self.last.grant);
        let answer = self.operate(vec![(which, model)], async |p| p.seal(vec![id], below).await).await;
        assert_eq!(answer.map(|s| s[0].sealed_below), Ok(below));
    }

    async fn delete(&mut self) {
        let highest = Version { grant: self.last.grant, seq: self.random.below(self.last.seq + 2) };
        let mut changes = Vec::new();
        for (which, model) in self.strips.iter().enumerate() {
            let mut model = model.clone();
            model.adopted.take_if(|c| c.version <= highest);
            model.prepared.take_if(|c| c.version <= highest);
            if model.adopted.is_none() && model.prepared.is_none() && model.sealed <= highest.grant.0 {
                model.sealed = 0;
            }
            changes.push((which, model));
        }
        // Later versions are above every delete, as a file system's are.
        self.last.seq = self.last.seq.max(highest.seq);
        let stripe = self.id(0).stripe;
        let delete = DeleteStrips {
            fs: stripe.fs,
            inode: stripe.inode,
            first: BlockIndex(0),
            last: BlockIndex(STRIPS),
            highest,
        };
        let answer = self.operate(changes, async |p| p.delete(vec![delete]).await).await;
        assert!(answer.is_ok(), "{answer:?}");
    }

    async fn install(&mut self, which: usize) {
        let mut model = self.strips[which].clone();
        let (content, ranges) = self.content(None);
        let (request, payload) = self.request(which, &content, ranges, None, None);
        model.prepared = None;
        model.adopted = Some(content);
        let answer = self.operate(vec![(which, model)], async |p| p.install(request, payload).await).await;
        assert_eq!(answer, Ok(()));
    }

    /// Installs a version, and deletes it, installs another over it, or writes over it in place before the first is answered:
    /// one group may hold a record and what frees its units, or lets others go there.
    async fn at_once(&mut self, which: usize) {
        let id = self.id(which);
        let mut model = self.strips[which].clone();
        let (first, ranges) = self.content(None);
        let (request, payload) = self.request(which, &first, ranges, None, None);
        model.prepared = None;
        model.adopted = Some(first.clone());
        let mut between = vec![(which, model.clone())];
        let install = async move |p: Pdisk| assert_eq!(p.install(request, payload).await, Ok(()));
        match self.random.below(3) {
            0 => {
                let highest = first.version;
                model.adopted = None;
                if model.sealed <= highest.grant.0 {
                    model.sealed = 0;
                }
                let (fs, inode, block) = (id.stripe.fs, id.stripe.inode, id.stripe.block);
                let delete = DeleteStrips { fs, inode, first: block, last: block, highest };
                let run = async move |p: &Pdisk| {
                    let first = tokio::spawn(install(p.clone()));
                    until_here(p, id, highest).await;
                    assert_eq!(p.delete(vec![delete]).await, Ok(1));
                    first.await.expect("the install panicked");
                };
                self.operate_through(between, vec![(which, model)], run).await;
            }
            1 => {
                let (second, ranges) = self.content(None);
                let (over, bytes) = self.request(which, &second, ranges, None, None);
                model.adopted = Some(second);
                let run = async move |p: &Pdisk| {
                    let version = first.version;
                    let first = tokio::spawn(install(p.clone()));
                    until_here(p, id, version).await;
                    assert_eq!(p.install(over, bytes).await, Ok(()));
                    first.await.expect("the install panicked");
                };
                self.operate_through(between, vec![(which, model)], run).await;
            }
            _ => {
                let (second, ranges) = self.content(Some(&first));
                let (over, bytes) = self.request(which, &second, ranges, Some(first.version), None);
                let then = second.version;
                model.prepared = Some(second);
                between.push((which, model.clone()));
                model.adopted = model.prepared.take();
                let run = async move |p: &Pdisk| {
                    let version = first.version;
                    let first = tokio::spawn(install(p.clone()));
                    until_here(p, id, version).await;
                    let pdisk = p.clone();
                    let second = tokio::spawn(async move { pdisk.prepare(vec![(over, bytes)]).await });
                    until_here(p, id, then).await;
                    assert_eq!(p.adopt(vec![(id, then)]).await, [Ok(())]);
                    first.await.expect("the install panicked");
                    assert_eq!(second.await.expect("the prepare panicked"), [Ok(())]);
                };
                self.operate_through(between, vec![(which, model)], run).await;
            }
        }
    }
}

/// Waits until a version is in the index, durable or not.
async fn until_here(pdisk: &Pdisk, strip: StripId, version: Version) {
    let here = || {
        let state = pdisk.store().lock();
        state.index.get(strip).is_some_and(|s| s.versions().any(|v| v.version == version))
    };
    while !here() {
        tokio::task::yield_now().await;
    }
}
