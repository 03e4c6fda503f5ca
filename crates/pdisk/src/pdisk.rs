//! A pdisk to its users: open it, then batches of operations, each answered when it is durable.
//! All methods may be called from any number of tasks; dropping a future forgets the answer, not the
//! operation.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use base::{ClusterId, Grant, GroupId, Incarnation, PdiskId, PoolId, StripId, Version, units::UNIT};
use bytes::Bytes;
use tokio::sync::oneshot;
use wire::strip::{
    DeleteStrips, PrepareStrip, Range, ReadStrip, ReadVersion, StripRead, StripRefusal, StripState,
};

use crate::{
    checkpoint::Head,
    commit,
    deletes::DeletesSeen,
    error::PdiskError,
    files,
    io::{self, IoNode, Request},
    keeper,
    log::ReadAt,
    options::{CreateOptions, OpenOptions},
    put, read,
    record::Record,
    recover::{Image, recover},
    report::{OpenReport, PdiskStats, VerifyReport},
    rules::{self, Action},
    stats::Op,
    store::{State, Store, log_cost},
    strip::Strip,
};

/// An open pdisk. Clones share it; with the last one it stops, without a last checkpoint.
#[derive(Clone)]
pub struct Pdisk(Arc<Running>);

/// Longest wait for I/O under way when a pdisk is dropped without being closed.
const DROP_WAIT_MS: u32 = 2000;

struct Running {
    store: Arc<Store>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Recovery reads through the node, so that faults reach it as well.
struct Through<'a>(&'a IoNode, &'a io::IoFile);

impl ReadAt for Through<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.0.read_now(self.1, buf, offset)
    }
    fn size(&self) -> std::io::Result<u64> {
        self.0.size(self.1)
    }
}

type Refused<T> = Result<T, StripRefusal>;

impl Pdisk {
    /// Makes a new pdisk in `dir`, which must be empty or absent.
    pub fn create(dir: &Path, options: CreateOptions) -> Result<(), PdiskError> {
        files::create(dir, &options, |label| Head { number: 1, ..Head::default() }.encode(&label.uuid))
    }

    /// Whose pdisk is in `dir`: cluster and number.
    pub fn identify(dir: &Path) -> Result<(ClusterId, PdiskId), PdiskError> {
        files::read_label(dir).map(|l| (l.cluster, l.pdisk))
    }

    /// The log of the pdisk in `dir`: in the same directory, or where it was made.
    pub fn log_path(dir: &Path) -> Result<PathBuf, PdiskError> {
        files::read_label(dir).map(|l| l.log_path(dir, None))
    }

    /// Opens the pdisk in `dir` on the node's queues: recovers it, raises its incarnation durably. Blocks.
    pub fn open(dir: &Path, options: OpenOptions, node: &IoNode) -> Result<(Pdisk, OpenReport), PdiskError> {
        let start = Instant::now();
        options.check()?;
        let files = files::open(dir, &options, node)?;
        let recovered = {
            let at = |f: &'static str| dir.join(f);
            let (crc, i0, i1) = (at("crc"), at("index.0"), at("index.1"));
            let through = |file| Through(node, file);
            recover(&Image {
                label: &files.label,
                log: (&through(&files.log), &files.log.path),
                crc: (&through(&files.crc), &crc),
                index: [(&through(&files.index[0]), &i0), (&through(&files.index[1]), &i1)],
            })?
        };
        // If only the process died, what was read here may still be in the disk's cache alone, and the order
        // of what comes next relies on it.
        let all = [&files.data, &files.crc, &files.log, &files.index[0], &files.index[1]];
        let flushes =
            all.map(|file| Request { file: Arc::clone(file), op: io::Op::Flush, offset: 0, tag: 0 });
        node.submit_and_wait(0, flushes.into()).map_err(PdiskError::io("flush", dir))?;
        let log_bytes_replayed = recovered.replayed_bytes;
        let damaged = recovered.damage.clone();
        let incarnation = Incarnation(recovered.index.incarnation.0 + 1);
        let store = Arc::new(Store::new(files, node.clone(), options, recovered));

        let spawn = |name: &str, run: fn(&Store)| {
            let store = Arc::clone(&store);
            let name = format!("{name} {}", store.files.label.pdisk);
            std::thread::Builder::new().name(name).spawn(move || run(&store))
        };
        let committer = spawn("commit", commit::run).map_err(PdiskError::io("start threads for", dir))?;
        let running = Running { store: Arc::clone(&store), threads: Mutex::new(vec![committer]) };
        let keeper = spawn("keep", keeper::run).map_err(PdiskError::io("start threads for", dir))?;
        io::lock(&running.threads).push(keeper);
        let pdisk = Pdisk(Arc::new(running));

        let (tx, rx) = std::sync::mpsc::channel();
        let mut state = store.lock();
        if let Ok((rsn, _)) = store.append(&mut state, &Record::Open { incarnation }, Bytes::new(), false) {
            let waiter = move |ok| {
                let _ = tx.send(ok);
            };
            store.when_durable(state, rsn, Box::new(waiter));
        } else {
            drop((state, tx));
        }
        if rx.recv() != Ok(true) {
            let reason = store.lock().failed.clone().unwrap_or_default();
            return Err(PdiskError::Failed { reason });
        }
        let state = store.lock();
        let report = OpenReport {
            incarnation,
            log_position: state.head.position,
            strips: state.index.len() as u64,
            recovery: start.elapsed(),
            log_bytes_replayed,
            damaged,
        };
        drop(state);
        report.tell(store.files.label.pdisk, dir);
        Ok((pdisk, report))
    }

    /// The node whose queues it uses.
    pub fn node(&self) -> &IoNode {
        &self.store().node
    }

    fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// Stores new versions beside the adopted ones. Answered when all of them are durable.
    pub async fn prepare(&self, batch: Vec<(PrepareStrip, Bytes)>) -> Vec<Refused<()>> {
        let (start, strips) = (Instant::now(), batch.len());
        let bytes = batch.iter().map(|(_, payload)| payload.len()).sum();
        let answers = put::put(self.store(), batch, None).await;
        self.store().stats.done(Op::Prepare, start, strips, bytes);
        answers
    }

    /// Stores a version that exists elsewhere, adopted at once (repair, catch-up): only over something
    /// older, or over a lost copy of the same version, and not over a delete of late.
    pub async fn install(&self, request: PrepareStrip, payload: Bytes) -> Refused<()> {
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
        payload: Bytes,
        since: DeletesSeen,
    ) -> Refused<()> {
        let (start, bytes) = (Instant::now(), payload.len());
        let answer = put::put(self.store(), vec![(request, payload)], Some(since)).await.pop();
        self.store().stats.done(Op::Install, start, 1, bytes);
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

    /// Drops a prepared version that nothing has asked for or touched since the pdisk was opened: one that
    /// an earlier life left. False, and nothing is changed, if it is not that.
    pub async fn discard_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        let change = |store: &Store, state: &mut State| {
            let here = state.index.get(strip).filter(|s| s.rsn <= store.inherited);
            if here.and_then(|s| s.prepared.as_ref()).is_none_or(|p| p.version != version) {
                return (0, Ok(false));
            }
            match store.append(state, &Record::Discard { strip, version }, Bytes::new(), false) {
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
                    let strip = state.index.get(*id).ok_or(StripRefusal::Absent);
                    // Nothing is here to discard: that is what the caller wants.
                    let (now, rsn) = match strip {
                        Ok(s) => (s.state(*id), s.rsn),
                        Err(_) => (StripState { strip: *id, ..StripState::default() }, 0),
                    };
                    last = last.max(rsn);
                    if rule(&now, *version)? == Action::Apply {
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
                    let record = Record::Seal { strip: *id, below };
                    if let Err(e) = store.append(state, &record, Bytes::new(), false) {
                        return (0, Err(e));
                    }
                }
                last = last.max(state.index.get(*id).map_or(0, |s| s.rsn));
                states.push(state_of(state, *id));
            }
            (last, Ok(states))
        };
        self.logged(Some(Op::Seal), batch.len(), change).await?
    }

    /// Removes versions of a file's strips. Durable. Returns how many strips lost a version.
    pub async fn delete(&self, batch: Vec<DeleteStrips>) -> Refused<u64> {
        let change = |store: &Store, state: &mut State| {
            let mut deleted = 0;
            for d in &batch {
                match store.append(state, &Record::Delete(*d), Bytes::new(), false) {
                    Ok((_, n)) => {
                        state.deletes.note(*d);
                        deleted += n;
                    }
                    Err(e) => return (0, Err(e)),
                }
            }
            (state.rsn, Ok(deleted))
        };
        self.logged(Some(Op::Delete), batch.len(), change).await?
    }

    /// The states of strips, each as it durably is. An absent strip has neither version.
    pub async fn state(&self, batch: Vec<StripId>) -> Refused<Vec<StripState>> {
        self.listed(|state| {
            let rsn = |id: &StripId| state.index.get(*id).map_or(0, |s| s.rsn);
            let last = batch.iter().map(rsn).max().unwrap_or(0);
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
        self.listed(|state| states(state.index.group_after(pool, group, after), limit)).await
    }

    /// Strips with a prepared version, rising by identity, after `after`.
    pub async fn list_prepared(&self, after: Option<StripId>, limit: usize) -> Refused<Vec<StripState>> {
        self.listed(|state| states(state.index.prepared_after(after), limit)).await
    }

    /// Strips of every kind, rising by identity, after `after`.
    pub async fn list(&self, after: Option<StripId>, limit: usize) -> Refused<Vec<StripState>> {
        self.listed(|state| states(state.index.iter_after(after), limit)).await
    }

    /// Reads ranges of strips.
    pub async fn read(&self, batch: Vec<ReadStrip>) -> Vec<Refused<(StripRead, Bytes)>> {
        let (start, n) = (Instant::now(), batch.len());
        let verify = self.store().options.verify_reads;
        let answer = read::read(self.store(), batch, verify).await;
        let ok = answer.iter().flatten();
        self.store().stats.done(Op::Read, start, n, ok.map(|(_, payload)| payload.len()).sum());
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

    /// Figures as of now.
    pub fn stats(&self) -> PdiskStats {
        let store = self.store();
        let state = store.lock();
        let unit = UNIT as u64;
        let coming: u64 = state.generations.iter().flat_map(|g| &g.freed).map(|e| u64::from(e.count())).sum();
        let free = state.space.free_units() + coming;
        let (runs, longest) = state.space.runs();
        PdiskStats {
            capacity: store.files.label.units * unit,
            free: free * unit,
            reserved: store.reserve_units.min(free) * unit,
            free_runs: runs as u64,
            free_run_max: longest * unit,
            strips: state.index.len() as u64,
            prepared: state.index.prepared_count() as u64,
            tombstones: state.index.tombstones() as u64,
            pending_bytes: state.index.pending_bytes() as u64,
            log_bytes: state.head.position - state.tail,
            log_capacity: store.files.label.log_bytes,
            incarnation: state.index.incarnation,
            log_position: state.head.position,
            checkpoints: state.checkpoint.1.number,
            failed: state.failed.clone(),
        }
    }

    /// Strips with an adopted version, and pieces of the data file that these versions lie in.
    pub(crate) fn extents(&self) -> (u64, u64) {
        let state = self.store().lock();
        let adopted = state.index.iter_after(None).filter_map(|(_, s)| s.adopted.as_ref());
        adopted.fold((0, 0), |(strips, extents), v| (strips + 1, extents + v.map.len() as u64))
    }

    /// Ends all operations, brings everything to its place, makes a last checkpoint and closes the files.
    /// Other clones refuse from then on.
    pub async fn close(self) -> Result<(), PdiskError> {
        let (tx, rx) = oneshot::channel();
        let dir = self.store().files.dir.clone();
        let end = move || {
            // The caller may have gone away; the pdisk is closed all the same.
            let _ = tx.send(self.0.close());
        };
        std::thread::Builder::new().name("close".into()).spawn(end).map_err(PdiskError::io("close", dir))?;
        rx.await.unwrap_or(Err(PdiskError::Failed { reason: "closing was cut off".into() }))
    }

    /// Applies a change under the lock; its result, when the record it names is durable.
    async fn logged<T>(
        &self,
        op: Option<Op>,
        records: usize,
        change: impl FnOnce(&Store, &mut State) -> (u64, T),
    ) -> Refused<T> {
        let (start, store) = (Instant::now(), self.store());
        let reserve = store.reserve_log(records as u64 * log_cost(64, 0)).await?;
        let (durable, result) = {
            let mut state = store.lock();
            let (rsn, result) = change(store, &mut state);
            (store.durable(state, rsn), result)
        };
        drop(reserve);
        let durable = durable.await;
        if let Some(op) = op {
            store.stats.done(op, start, records, 0);
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

fn state_of(state: &State, id: StripId) -> StripState {
    state.index.get(id).map_or_else(|| StripState { strip: id, ..StripState::default() }, |s| s.state(id))
}

fn states<'a>(strips: impl Iterator<Item = (StripId, &'a Strip)>, limit: usize) -> (u64, Vec<StripState>) {
    let mut last = 0;
    let list = strips
        .take(limit)
        .map(|(id, s)| {
            last = last.max(s.rsn);
            s.state(id)
        })
        .collect();
    (last, list)
}

impl Running {
    fn stop(&self) {
        {
            let mut state = self.store.lock();
            state.stopping = true;
            state.room_waiters.clear();
        }
        self.store.wake_all();
        for thread in io::lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::error!(dir = %self.store.files.dir.display(), "a pdisk thread panicked");
            }
        }
    }

    fn close(&self) -> Result<(), PdiskError> {
        self.stop();
        let store = &self.store;
        while store.is_busy() {
            // The kernel owns the buffers of what is under way: it ends when the disk answers.
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut result = Ok(());
        while result.is_ok() && store.lock().failed.is_none() {
            store.turn_generations(&mut store.lock());
            match keeper::clean(store) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) => result = Err(e),
            }
        }
        if result.is_ok() && store.lock().failed.is_none() {
            result = keeper::checkpoint(store);
        }
        store.files.unlock();
        let failed = store.lock().failed.clone();
        match (result, failed) {
            (Err(e), _) => Err(PdiskError::io("close", &store.files.dir)(e)),
            (Ok(()), Some(reason)) => Err(PdiskError::Failed { reason }),
            (Ok(()), None) => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        // What is under way owns the files; when it has ended, another open may have them. A disk that
        // does not answer keeps the lock until it does.
        for _ in 0..DROP_WAIT_MS {
            if !self.store.is_busy() {
                self.store.files.unlock();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl std::fmt::Debug for Pdisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pdisk({} in {})", self.store().files.label.pdisk, self.store().files.dir.display())
    }
}
