//! A pdisk's life: made, opened (recovered, its incarnation raised), closed. What is done with it: `operations.rs`.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use base::{ClusterId, Incarnation, PdiskId, start::is_thread_lent, units::UNIT};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use wire::mgr::LogMark;

use crate::{
    checkpoint::Head,
    commit,
    error::PdiskError,
    files,
    io::{self, IoNode, Request},
    keeper,
    log::ReadAt,
    options::{CreateOptions, OpenOptions},
    record::Record,
    recover::{Image, recover},
    report::{OpenReport, PdiskStats},
    state::State,
    store::Store,
    unfinished,
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

impl Pdisk {
    /// Makes a new pdisk in `dir`, which must be empty or absent.
    pub fn create(dir: &Path, options: CreateOptions) -> Result<(), PdiskError> {
        files::create(dir, &options, |label| Head { number: 1, ..Head::default() }.encode(&label.uuid, &[]))
    }

    /// Whether a pdisk can be made in `dir`: it is empty or absent.
    pub fn is_free(dir: &Path) -> Result<(), PdiskError> {
        unfinished::is_free(dir)
    }

    /// Removes what an interrupted [`Pdisk::create`] of this pdisk left; true if it is there as a whole, and stays.
    pub fn clear_unfinished(dir: &Path, cluster: ClusterId, pdisk: PdiskId) -> Result<bool, PdiskError> {
        unfinished::clear(dir, cluster, pdisk)
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
                data: &through(&files.data),
                crc: (&through(&files.crc), &crc),
                index: [(&through(&files.index[0]), &i0), (&through(&files.index[1]), &i1)],
            })?
        };
        // If only the process died, what was read here may still be in the disk's cache alone, and the order
        // of what comes next relies on it.
        let flushes = files.written().map(|file| Request {
            file: Arc::clone(file),
            op: io::Op::Flush,
            offset: 0,
            tag: 0,
        });
        node.submit_and_wait(0, flushes.into()).map_err(PdiskError::io("flush", dir))?;
        files.set_aside();
        let log_bytes_replayed = recovered.replayed_bytes;
        let damaged = recovered.damage.clone();
        let found = recovered.head.mark();
        let incarnation = Incarnation(recovered.index.incarnation.0 + 1);
        let store = Arc::new(Store::new(files, node.clone(), options, recovered));

        let spawn = |name: &str, run: fn(&Store)| {
            let store = Arc::clone(&store);
            let name = format!("{name} {}", store.files.label.pdisk);
            std::thread::Builder::new().name(name).spawn(move || latched(&store, run))
        };
        let committer = spawn("commit", commit::run).map_err(PdiskError::io("start threads for", dir))?;
        let running = Running { store: Arc::clone(&store), threads: Mutex::new(vec![committer]) };
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
        // Not before: the last group that was recovered is proved now, and what it names may be overwritten.
        let keeper = spawn("keep", keeper::run).map_err(PdiskError::io("start threads for", dir))?;
        pdisk.0.threads.lock().push(keeper);
        let state = store.lock();
        let report = OpenReport {
            incarnation,
            recovered: found,
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

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// Whether data and record are flushed together from now on: where every program that may open this pdisk knows that the
    /// last group's bytes in the data file may be missing after a crash.
    pub fn flush_together(&self, together: bool) {
        self.store().flush_together.store(together, Ordering::Relaxed);
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
            index_bytes: state.index.memory() as u64,
            index_max: store.index_max,
            pending_bytes: state.index.pending_bytes() as u64,
            log_bytes: state.head.position - state.tail,
            log_capacity: store.files.label.log_bytes,
            incarnation: state.index.incarnation,
            log_position: state.head.position,
            checkpoints: state.checkpoint.1.number,
            short: state.short.as_ref().map(|short| short.1.clone()),
            failed: state.failed.clone(),
        }
    }

    /// The point up to which everything is durable, for somebody who keeps it and asks for it later.
    pub fn mark(&self) -> LogMark {
        let mut state = self.store().lock();
        let mark = state.head.mark();
        state.marks.tell(mark);
        mark
    }

    /// The point of this log at a position. `None`: the log does not reach it, no group ends there, or it is
    /// further back than what is remembered. Whoever kept another digest, or finds none, has seen content that
    /// is not here.
    pub fn mark_at(&self, position: u64) -> Option<LogMark> {
        self.store().lock().marks.at(position)
    }

    /// What [`Pdisk::mark`] told last is kept now: nothing from before will be asked for.
    pub fn confirm_marks(&self) {
        self.store().lock().marks.confirm();
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
}

/// Runs a thread of a pdisk. One that panics leaves nobody waiting for it: the pdisk is latched failed.
fn latched(store: &Store, run: impl FnOnce(&Store)) {
    struct Latch<'a>(&'a Store);
    impl Drop for Latch<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.fail(&mut self.0.lock(), "internal error: a thread of it panicked".into());
            }
        }
    }
    let latch = Latch(store);
    run(latch.0);
}

impl Running {
    fn stop(&self) {
        {
            let mut state = self.store.lock();
            state.stopping = true;
            state.room_waiters.clear();
            state.space_waiters.clear();
        }
        self.store.wake_all();
        for thread in self.threads.lock().drain(..) {
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
        let wanted = |state: &State| state.failed.is_none() && !state.marks.must_stay();
        if result.is_ok() && wanted(&store.lock()) {
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
        if is_thread_lent() {
            // The last handle went with an answer: this is a thread that would wait for itself.
            let threads = Mutex::new(std::mem::take(&mut *self.threads.lock()));
            let rest = Running { store: Arc::clone(&self.store), threads };
            std::thread::spawn(move || drop(rest));
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::IoConfig;

    #[test]
    fn a_thread_that_panics_latches_its_pdisk() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, number) = (ClusterId(1), PdiskId(1));
        Pdisk::create(dir.path(), CreateOptions::new(cluster, number, 16 << 20)).unwrap();
        let node = IoNode::start(IoConfig::default()).unwrap();
        let (pdisk, _) = Pdisk::open(dir.path(), OpenOptions::new(cluster, number), &node).unwrap();
        let store = Arc::clone(&pdisk.0.store);
        let panicking = || {
            latched(&store, |store| {
                let _state = store.lock();
                panic!("on purpose");
            })
        };
        assert!(std::thread::scope(|scope| scope.spawn(panicking).join()).is_err());
        let failed = store.lock().failed.clone();
        assert!(failed.is_some_and(|reason| reason.contains("panicked")));
        let (tx, rx) = std::sync::mpsc::channel();
        store.when_durable(store.lock(), u64::MAX, Box::new(move |ok| tx.send(ok).unwrap()));
        assert_eq!(rx.recv(), Ok(false), "nobody waits for ever");
    }

    #[test]
    fn the_last_handle_may_go_with_an_answer_of_its_own_committer() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, number) = (ClusterId(1), PdiskId(1));
        Pdisk::create(dir.path(), CreateOptions::new(cluster, number, 16 << 20)).unwrap();
        let node = IoNode::start(IoConfig::default()).unwrap();
        let (pdisk, report) = Pdisk::open(dir.path(), OpenOptions::new(cluster, number), &node).unwrap();
        let store = Arc::clone(&pdisk.0.store);
        let incarnation = Incarnation(report.incarnation.0 + 1);
        let mut state = store.lock();
        let (rsn, _) = store.append(&mut state, &Record::Open { incarnation }, Bytes::new(), false).unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let answer = move |_| {
            drop(pdisk);
            tx.send(is_thread_lent()).unwrap();
        };
        store.when_durable(state, rsn, Box::new(answer));
        assert_eq!(rx.recv(), Ok(true));
        let end = Instant::now() + Duration::from_secs(60);
        while Arc::strong_count(&store) > 1 {
            assert!(Instant::now() < end, "its threads wait for themselves");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(store.lock().failed, None);
    }
}
