//! What users do with an open pdisk: batches of operations, each answered when it is durable.
//! All methods may be called from any number of tasks; dropping a future forgets the answer, not the
//! operation.

use std::collections::VecDeque;

use base::{Grant, GroupId, PoolId, StripId, Version};
use bytes::Bytes;
use wire::strip::{
    DeleteStrips, PrepareStrip, Range, ReadStrip, ReadVersion, StripRead, StripRefusal, StripState,
};

use crate::{
    deletes::DeletesSeen,
    pdisk::Pdisk,
    put::{self, Payload},
    read,
    record::Record,
    report::VerifyReport,
    rules::{self, Action},
    state::{State, log_cost},
    stats::Op,
    store::Store,
    strip::Strip,
};

type Refused<T> = Result<T, StripRefusal>;

impl Pdisk {
    /// Stores new versions beside the adopted ones. Answered when all of them are durable.
    pub async fn prepare<P: Into<Payload>>(&self, batch: Vec<(PrepareStrip, P)>) -> Vec<Refused<()>> {
        let (begun, strips) = (self.store().stats.begin(), batch.len());
        let batch: Vec<_> = batch.into_iter().map(|(request, payload)| (request, payload.into())).collect();
        let bytes = batch.iter().map(|(_, payload)| payload.bytes.len()).sum();
        let answers = put::put(self.store(), batch, None).await;
        begun.done(Op::Prepare, strips, bytes);
        answers
    }

    /// Stores a version that exists elsewhere, adopted at once (repair, catch-up): only over something
    /// older, or over a lost copy of the same version, and not over a delete of late.
    pub async fn install(&self, request: PrepareStrip, payload: impl Into<Payload>) -> Refused<()> {
        self.install_since(request, payload, DeletesSeen::UNKNOWN).await
    }

    /// Deletes carried out so far: to be taken before asking for what will be installed.
    pub fn deletes_seen(&self) -> DeletesSeen {
        self.store().lock().deletes.seen()
    }

    /// [`Pdisk::install`] of what was asked for after `since`: no delete that came in between is undone.
    pub async fn install_since(
        &self,
        request: PrepareStrip,
        payload: impl Into<Payload>,
        since: DeletesSeen,
    ) -> Refused<()> {
        let payload = payload.into();
        let (begun, bytes) = (self.store().stats.begin(), payload.bytes.len());
        let answer = put::put(self.store(), vec![(request, payload)], Some(since)).await.pop();
        begun.done(Op::Install, 1, bytes);
        answer.unwrap_or(Err(StripRefusal::Failed))
    }

    /// Makes prepared versions the current ones. `Ok` also where the version is adopted already.
    pub async fn adopt(&self, batch: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.by_version(Op::Adopt, batch, rules::adopt, |strip, version| Record::Adopt { strip, version })
            .await
    }

    /// Drops prepared versions. `Ok` also where it is gone already.
    pub async fn discard(&self, batch: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.by_version(Op::Discard, batch, rules::discard, |strip, version| Record::Discard {
            strip,
            version,
        })
        .await
    }

    /// A new life begins, as when the pdisk was opened: what is prepared here now is an earlier one's. Called when the pdisk
    /// returns, before anything is asked for by those who know that; who asked before has forgotten it.
    pub fn begin_life(&self) {
        let mut state = self.store().lock();
        state.inherited = state.rsn;
        state.left_prepared.clear();
    }

    /// Drops a prepared version that nothing has asked for or touched in this life of the pdisk: one that
    /// an earlier life left. False, and nothing is changed, if it is not that.
    pub async fn discard_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        self.leftover(strip, version, Record::Discard { strip, version }).await
    }

    /// Makes such a version the current one. False, and nothing is changed, if it is not one.
    pub async fn adopt_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        self.leftover(strip, version, Record::Adopt { strip, version }).await
    }

    async fn leftover(&self, strip: StripId, version: Version, record: Record) -> Refused<bool> {
        let change = |store: &Store, state: &mut State| {
            let here = state.index.get(strip).filter(|s| state.is_inherited(strip, s.rsn));
            if here.and_then(|s| s.prepared.as_ref()).is_none_or(|p| p.version != version) {
                return (state.known_by(strip), Ok(false));
            }
            match store.append(state, &record, Bytes::new(), false) {
                Ok((rsn, _)) => (rsn, Ok(true)),
                Err(e) => (0, Err(e)),
            }
        };
        self.logged(None, 1, change).await?
    }

    async fn by_version(
        &self,
        op: Op,
        batch: Vec<(StripId, Version)>,
        rule: fn(&StripState, Version) -> Refused<Action>,
        record: fn(StripId, Version) -> Record,
    ) -> Vec<Refused<()>> {
        let n = batch.len();
        let change = |store: &Store, state: &mut State| {
            let mut last = 0;
            let results = batch
                .iter()
                .map(|(id, version)| {
                    // Where nothing is to discard, that is what the caller wants, once it is durable.
                    last = last.max(state.known_by(*id));
                    if rule(&state_of(state, *id), *version)? == Action::Apply {
                        last = store.append(state, &record(*id, *version), Bytes::new(), false)?.0;
                    }
                    Ok(())
                })
                .collect();
            (last, results)
        };
        self.logged(Some(op), n, change).await.unwrap_or_else(|e| vec![Err(e); n])
    }

    /// Refuses, durably, all versions with a grant below `below` on these strips, those included that are
    /// not here. Returns their states, durable as well.
    pub async fn seal(&self, batch: Vec<StripId>, below: Grant) -> Refused<Vec<StripState>> {
        let change = |store: &Store, state: &mut State| {
            let mut last = 0;
            let mut states = Vec::with_capacity(batch.len());
            for id in &batch {
                let now = state_of(state, *id);
                if rules::seal(&now, below) == Action::Apply {
                    let known = state.index.get(*id).is_some();
                    if !known && state.index.memory() as u64 >= store.index_max {
                        return (0, Err(StripRefusal::NoSpace));
                    }
                    let record = Record::Seal { strip: *id, below };
                    if let Err(e) = store.append(state, &record, Bytes::new(), false) {
                        return (0, Err(e));
                    }
                }
                last = last.max(state.known_by(*id));
                states.push(state_of(state, *id));
            }
            (last, Ok(states))
        };
        self.logged(Some(Op::Seal), batch.len(), change).await?
    }

    /// Removes versions of a file's strips. Durable. Returns how many strips lost a version. Very many go in rounds, between
    /// which others have the pdisk: dropped there it is half done, as after a crash, and has no answer.
    pub async fn delete(&self, batch: Vec<DeleteStrips>) -> Refused<u64> {
        self.remove(batch, true).await
    }

    /// The same for strips that are elsewhere now: they were not deleted, and may be made here again.
    pub async fn remove_leftovers(&self, batch: Vec<DeleteStrips>) -> Refused<u64> {
        self.remove(batch, false).await
    }

    async fn remove(&self, batch: Vec<DeleteStrips>, deleted_everywhere: bool) -> Refused<u64> {
        let (store, records) = (self.store(), batch.len());
        let begun = store.stats.begin();
        // All of it from the first round on: what is late is stored nowhere between them.
        let mut noted = if deleted_everywhere { batch.clone() } else { Vec::new() };
        let (mut rest, mut deleted, mut last) = (VecDeque::from(batch), 0, 0);
        while !rest.is_empty() {
            let reserve = store.reserve_log(rest.len() as u64 * log_cost(64, 0)).await?;
            {
                let mut state = store.lock();
                noted.drain(..).for_each(|d| state.deletes.note(d));
                let mut left = store.options.delete_round;
                while left > 0
                    && let Some(d) = rest.pop_front()
                {
                    let (now, strips, later) = state.index.part_of_delete(d, left);
                    let (rsn, n) = remove_now(store, &mut state, now, deleted_everywhere)?;
                    (last, deleted, left) = (rsn, deleted + n, left.saturating_sub(strips));
                    if let Some(later) = later {
                        rest.push_front(later);
                        break;
                    }
                }
            }
            drop(reserve);
            if !rest.is_empty() {
                tokio::task::yield_now().await;
            }
        }
        let durable = store.durable(store.lock(), last).await;
        begun.done(Op::Delete, records, 0);
        if durable == Ok(true) { Ok(deleted) } else { Err(StripRefusal::Failed) }
    }

    /// The states of strips, each as it durably is. An absent strip has neither version.
    pub async fn state(&self, batch: Vec<StripId>) -> Refused<Vec<StripState>> {
        self.listed(|state| {
            let last = batch.iter().map(|id| state.known_by(*id)).max().unwrap_or(0);
            (last, batch.iter().map(|id| state_of(state, *id)).collect())
        })
        .await
    }

    /// Strips of a group, rising by identity, after `after`.
    pub async fn list_group(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripId>,
        limit: usize,
    ) -> Refused<Vec<StripState>> {
        self.listed(|state| states(state.removed, state.index.group_after(pool, group, after), limit)).await
    }

    /// Strips with a prepared version, rising by identity, after `after`.
    pub async fn list_prepared(&self, after: Option<StripId>, limit: usize) -> Refused<Vec<StripState>> {
        // Any record may have taken one out of it.
        self.listed(|state| states(state.rsn, state.index.prepared_after(after), limit)).await
    }

    /// Strips of every kind, rising by identity, after `after`.
    pub async fn list(&self, after: Option<StripId>, limit: usize) -> Refused<Vec<StripState>> {
        self.listed(|state| states(state.removed, state.index.iter_after(after), limit)).await
    }

    /// Reads ranges of strips.
    pub async fn read(&self, batch: Vec<ReadStrip>) -> Vec<Refused<(StripRead, Bytes)>> {
        let (begun, n) = (self.store().stats.begin(), batch.len());
        let verify = self.store().options.verify_reads;
        let answer = read::read(self.store(), batch, verify).await;
        let ok = answer.iter().flatten();
        begun.done(Op::Read, n, ok.map(|(_, payload)| payload.len()).sum());
        answer
    }

    /// A reader found bad bytes: reads the strip's adopted version and marks it lost, durably, if they do
    /// not verify here. Returns whether the strip is lost.
    pub async fn mark_lost(&self, strip: StripId) -> Refused<bool> {
        let Some(version) = self.adopted_of(strip) else { return Err(StripRefusal::Absent) };
        if self.reads_well(strip, version).await? {
            return Ok(false);
        }
        let change = |store: &Store, state: &mut State| {
            let adopted = state.index.get(strip).and_then(|s| s.adopted.as_ref());
            // Replaced meanwhile: what was bad is gone.
            let Some(v) = adopted.filter(|v| v.version == version) else { return (0, Ok(false)) };
            if v.damaged {
                return (state.index.get(strip).map_or(0, |s| s.rsn), Ok(true));
            }
            match store.append(state, &Record::Lost { strip, version }, Bytes::new(), false) {
                Ok((rsn, _)) => (rsn, Ok(true)),
                Err(e) => (0, Err(e)),
            }
        };
        self.logged(None, 1, change).await?
    }

    fn adopted_of(&self, strip: StripId) -> Option<Version> {
        self.store().lock().index.get(strip)?.adopted.as_ref().map(|v| v.version)
    }

    /// Whether a version's bytes match their CRCs. A version that is gone reads well.
    async fn reads_well(&self, strip: StripId, version: Version) -> Refused<bool> {
        let whole = Range { offset: 0, len: wire::strip::STRIP_LEN_MAX };
        let request = ReadStrip { strip, version: ReadVersion::Exactly(version), ranges: vec![whole] };
        match read::read(self.store(), vec![request], true).await.pop() {
            Some(Ok(_)) | Some(Err(StripRefusal::Absent)) => Ok(true),
            Some(Err(StripRefusal::Lost)) => Ok(false),
            Some(Err(e)) => Err(e),
            None => Err(StripRefusal::Failed),
        }
    }

    /// Reads every version and compares it with its CRCs. Changes nothing.
    pub async fn verify(&self) -> Refused<VerifyReport> {
        let mut report = VerifyReport::default();
        let mut after = None;
        loop {
            let page = self.list(after, 256).await?;
            let Some(last) = page.last() else { return Ok(report) };
            after = Some(last.strip);
            for s in page {
                report.strips += 1;
                for info in s.adopted.iter().chain(&s.prepared) {
                    report.bytes += u64::from(info.len);
                    if !self.reads_well(s.strip, info.version).await? {
                        report.damaged.push((s.strip, info.version));
                    }
                }
            }
        }
    }

    /// Applies a change under the lock; its result, when the record it names is durable.
    async fn logged<T>(
        &self,
        op: Option<Op>,
        records: usize,
        change: impl FnOnce(&Store, &mut State) -> (u64, T),
    ) -> Refused<T> {
        let store = self.store();
        let begun = store.stats.begin();
        let reserve = store.reserve_log(records as u64 * log_cost(64, 0)).await?;
        let (durable, result) = {
            let mut state = store.lock();
            let (rsn, result) = change(store, &mut state);
            (store.durable(state, rsn), result)
        };
        drop(reserve);
        let durable = durable.await;
        if let Some(op) = op {
            begun.done(op, records, 0);
        }
        if durable == Ok(true) { Ok(result) } else { Err(StripRefusal::Failed) }
    }

    async fn listed<T>(&self, list: impl FnOnce(&State) -> (u64, T)) -> Refused<T> {
        let (durable, result) = {
            let state = self.store().lock();
            let (rsn, result) = list(&state);
            (self.store().durable(state, rsn), result)
        };
        if durable.await == Ok(true) { Ok(result) } else { Err(StripRefusal::Failed) }
    }
}

/// One record of a delete: its number, and how many strips lost a version.
fn remove_now(
    store: &Store,
    state: &mut State,
    d: DeleteStrips,
    deleted_everywhere: bool,
) -> Refused<(u64, u64)> {
    let record = if deleted_everywhere { Record::Delete(d) } else { Record::Remove(d) };
    // What it leaves prepared it has not asked for.
    let left = state.index.prepared_above(&d).filter(|(id, rsn)| state.is_inherited(*id, *rsn));
    let left: Vec<StripId> = left.map(|(id, _)| id).collect();
    let done = store.append(state, &record, Bytes::new(), false)?;
    for id in left {
        if let Some(rsn) = state.index.get(id).map(|s| s.rsn) {
            state.left_prepared.insert(id, rsn);
        }
    }
    Ok(done)
}

fn state_of(state: &State, id: StripId) -> StripState {
    state.index.get(id).map_or_else(|| StripState { strip: id, ..StripState::default() }, |s| s.state(id))
}

/// The states of the first strips, and the record that says so; `last`: the one that says which strips there are.
fn states<'a>(
    mut last: u64,
    strips: impl Iterator<Item = (StripId, &'a Strip)>,
    limit: usize,
) -> (u64, Vec<StripState>) {
    let list = strips
        .take(limit)
        .map(|(id, s)| {
            last = last.max(s.rsn);
            s.state(id)
        })
        .collect();
    (last, list)
}
