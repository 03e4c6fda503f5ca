//! Load from several threads, with a model of what was acknowledged: overwrites, appends, truncates, each
//! thread on files of its own; and the comparison of every byte.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use crate::common::{Random, rest, until};

/// Files of one thread.
const FILES: u64 = 4;
/// Longest file.
const LEN_MAX: u64 = 5 << 20;

/// What a file may hold: what was last fsynced, and what was done since.
#[derive(Clone, Default)]
pub struct Model {
    /// Content at the last fsync that returned.
    pub synced: Vec<u8>,
    /// Changes since, in order: (offset, bytes), or a truncation to offset.
    since: Vec<(u64, Option<Vec<u8>>)>,
}

impl Model {
    fn now(&self) -> Vec<u8> {
        let mut content = self.synced.clone();
        self.since.iter().for_each(|change| apply(&mut content, change));
        content
    }

    /// Whether `found` can be after a crash: every 4 KiB of it is of one of the states between the last
    /// fsync and the last change, and its length of one of them, or of a part of one write.
    pub fn may_be(&self, found: &[u8]) -> Result<(), String> {
        let mut states = vec![self.synced.clone()];
        for change in &self.since {
            let mut next = states.last().cloned().unwrap_or_default();
            apply(&mut next, change);
            states.push(next);
        }
        // The kernel hands a long write on in parts that end with pages: some of them may have come. What they
        // added is of that write or a later one, not zeros.
        let in_parts = |i: usize| {
            let (old, new) = (states[i].len(), states[i + 1].len());
            let tail = found.get(old..).unwrap_or_default();
            let written = |at: usize, part: &[u8]| {
                states[i + 1..].iter().any(|s| s.get(at..at + part.len()) == Some(part))
            };
            let head = tail.len().min(old.next_multiple_of(4096) - old);
            let (first, rest) = tail.split_at(head);
            found.len().is_multiple_of(4096)
                && (old..=new).contains(&found.len())
                && written(old, first)
                && rest.chunks(4096).enumerate().all(|(n, unit)| written(old + head + n * 4096, unit))
        };
        let last = states.len() - 1;
        if !states.iter().any(|s| s.len() == found.len()) && !(0..last).any(in_parts) {
            let lens: Vec<usize> = states.iter().map(Vec::len).collect();
            return Err(format!("{} bytes, never one of {lens:?}", found.len()));
        }
        for (i, unit) in found.chunks(4096).enumerate() {
            let at = i * 4096;
            let of = |state: &Vec<u8>| {
                let mut bytes = state.get(at..).unwrap_or_default().to_vec();
                bytes.resize(bytes.len().max(unit.len()), 0);
                bytes[..unit.len()] == *unit
            };
            if !states.iter().any(of) {
                return Err(format!("the 4 KiB at {at} were never there"));
            }
        }
        Ok(())
    }
}

fn apply(content: &mut Vec<u8>, (at, bytes): &(u64, Option<Vec<u8>>)) {
    let at = *at as usize;
    match bytes {
        None => content.resize(at, 0),
        Some(bytes) => {
            content.resize(content.len().max(at + bytes.len()), 0);
            content[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Threads that change files until they are told to stop, or a change fails.
pub struct Load {
    stop: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<(PathBuf, Model)>>>,
}

impl Load {
    /// `threads` threads below `dir`. With `may_fail` an error ends a thread quietly (its mount is killed).
    pub fn start(dir: &Path, threads: u64, seed: u64, may_fail: bool) -> Load {
        let (stop, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let one = |thread: u64| {
            let (dir, stop, changes) =
                (dir.join(format!("t{thread}")), Arc::clone(&stop), Arc::clone(&changes));
            std::thread::spawn(move || {
                let mut random = Random(seed ^ (thread + 1) << 32);
                let mut models: Vec<(PathBuf, Model)> =
                    (0..FILES).map(|f| (dir.join(format!("f{f}")), Model::default())).collect();
                if fs::create_dir_all(&dir).is_err() {
                    assert!(may_fail, "create {}", dir.display());
                    return models;
                }
                while !stop.load(Ordering::Relaxed) {
                    let (at, begun) = (random.below(FILES) as usize, Instant::now());
                    let (path, model) = &mut models[at];
                    if let Err(error) = change(path, model, &mut random) {
                        assert!(may_fail, "{}: {error}", path.display());
                        break;
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                    rest(begun);
                }
                models
            })
        };
        let threads = (0..threads).map(one).collect();
        Load { stop, changes, threads }
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits until some more changes were made: the load is not stuck.
    pub fn goes_on(&self) {
        let want = self.changes() + 5;
        until("the load goes on", || self.changes() >= want);
    }

    /// Ends it; what each file should hold.
    pub fn end(self) -> Vec<(PathBuf, Model)> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|t| t.join().expect("a thread of the load failed")).collect()
    }
}

fn change(path: &Path, model: &mut Model, random: &mut Random) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let len = model.now().len() as u64;
    let change = match random.below(10) {
        0 => (random.below(len + 1), None),
        kind => {
            let mut bytes = vec![0; 1 + random.below(if kind < 5 { 9000 } else { 1 << 20 }) as usize];
            random.fill(&mut bytes);
            let append = kind >= 7 && len < LEN_MAX;
            let at = if append { len } else { random.below(len + 1) };
            (at, Some(bytes))
        }
    };
    // Noted first: a change that fails half way may have happened.
    model.since.push(change);
    match model.since.last() {
        Some((at, None)) => file.set_len(*at)?,
        Some((at, Some(bytes))) => {
            file.seek(SeekFrom::Start(*at))?;
            file.write_all(bytes)?;
        }
        None => {}
    }
    if random.below(3) == 0 {
        file.sync_all()?;
        model.synced = model.now();
        model.since.clear();
    }
    Ok(())
}

/// Every byte of every file is what was acknowledged last.
pub fn same(models: &[(PathBuf, Model)]) {
    for (path, model) in models {
        let mut found = Vec::new();
        match File::open(path) {
            Ok(mut file) => {
                file.read_to_end(&mut found).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
            Err(error) => assert!(model.now().is_empty(), "{}: {error}", path.display()),
        }
        assert!(found == model.now(), "{} differs", path.display());
    }
}

/// After a crash: every file is what an fsync left, or later. What does not hold, if something does not.
pub fn survived(models: &[(PathBuf, Model)]) -> Result<(), String> {
    for (path, model) in models {
        let found = match fs::read(path) {
            Ok(found) => found,
            Err(_) if model.synced.is_empty() => continue,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        model.may_be(&found).map_err(|reason| format!("{}: {reason}", path.display()))?;
    }
    Ok(())
}
