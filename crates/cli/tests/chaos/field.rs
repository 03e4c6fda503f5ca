//! What the loads of one round share: the mounts, which of them a fault concerns, and what went wrong. Every call into a mount
//! is made here, so that its time and its error are judged.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    cells::{CELL, Seen, read},
    checker::{Class, Violation, When, violation},
    plan::Round,
};

/// A call may take so long: the deadline of operations, and what a loaded machine adds.
pub const CALL_MAX: Duration = Duration::from_secs(90);

/// How a file is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Buffered,
    Direct,
    Durable,
    Append,
}

/// One round's field.
pub struct Field {
    pub mounts: Vec<PathBuf>,
    /// When the first fault on each mount begins.
    disturbed: Vec<Option<Duration>>,
    /// Errors are allowed: more is lost than can be made good.
    pub beyond: bool,
    /// Files are removed and cut.
    pub deletes: bool,
    begun: Instant,
    stop: AtomicBool,
    /// Workers that have ended.
    done: AtomicUsize,
    wrong: Mutex<Vec<Violation>>,
    longest: Mutex<(Duration, String)>,
    /// Calls that have not returned, by number.
    open: Mutex<Vec<(u64, String, Instant)>>,
}

impl Field {
    pub fn new(mounts: Vec<PathBuf>, round: &Round) -> Field {
        let disturbed = (0..mounts.len() as u64).map(|m| round.disturbed_from(m)).collect();
        Field {
            mounts,
            disturbed,
            beyond: !round.is_within(),
            deletes: round.has(super::plan::Kind::Deletes),
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            wrong: Mutex::default(),
            longest: Mutex::default(),
            open: Mutex::default(),
        }
    }

    /// Time since the round's begin.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }
    /// When a fault on this mount begins.
    pub fn disturbed_from(&self, mount: usize) -> Option<Duration> {
        self.disturbed[mount]
    }
    pub fn is_disturbed(&self, mount: usize) -> bool {
        self.disturbed[mount].is_some()
    }
    /// How reads through `reader` of what `writer` writes are judged.
    pub fn when(&self, writer: usize, reader: usize) -> When {
        if self.is_disturbed(writer) || self.is_disturbed(reader) || self.beyond {
            When::Doubt
        } else {
            When::Live
        }
    }

    pub fn end(&self) {
        self.stop.store(true, SeqCst);
    }
    pub fn ended(&self) -> bool {
        self.stop.load(SeqCst)
    }
    pub fn worker_ended(&self) {
        self.done.fetch_add(1, SeqCst);
    }
    pub fn workers_ended(&self) -> usize {
        self.done.load(SeqCst)
    }
    /// Between two operations.
    pub fn rest(&self, millis: u64) {
        std::thread::sleep(Duration::from_millis(millis));
    }

    pub fn wrong(&self, violations: impl IntoIterator<Item = Violation>) {
        let mut wrong = self.wrong.lock();
        for violation in violations {
            if wrong.len() < 50 {
                println!("  !! {:6} ms {:?}: {}", self.now().as_millis(), violation.class, violation.text);
            }
            wrong.push(violation);
        }
    }
    pub fn take_wrong(&self) -> Vec<Violation> {
        std::mem::take(&mut *self.wrong.lock())
    }
    /// The longest call.
    pub fn longest(&self) -> (Duration, String) {
        self.longest.lock().clone()
    }
    /// Calls that are under way, and since when.
    pub fn under_way(&self) -> Vec<String> {
        let open = self.open.lock();
        open.iter().map(|(_, what, since)| format!("{what} since {:?}", since.elapsed())).collect()
    }

    /// A call through a mount. An error on a mount that no fault concerns is wrong, but for those in `may`.
    pub fn call<T>(
        &self,
        mount: usize,
        what: impl Into<String>,
        may: &[i32],
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let (what, since) = (what.into(), Instant::now());
        let number = {
            let mut open = self.open.lock();
            let number = open.iter().map(|(n, ..)| n + 1).max().unwrap_or(0);
            open.push((number, format!("mount {mount}: {what}"), since));
            number
        };
        let result = call();
        let took = since.elapsed();
        self.open.lock().retain(|(n, ..)| *n != number);
        if !self.is_disturbed(mount) {
            let mut longest = self.longest.lock();
            if took > longest.0 {
                *longest = (took, format!("mount {mount}: {what}"));
            }
            drop(longest);
            let expected = |e: &io::Error| e.raw_os_error().is_some_and(|n| may.contains(&n)) || self.beyond;
            if let Some(error) = result.as_ref().err().filter(|e| !expected(e)) {
                let text = format!("mount {mount}: {what}: {error} after {took:?}");
                self.wrong([violation(Class::Error, text)]);
            }
        }
        if took > CALL_MAX {
            self.wrong([violation(Class::Wait, format!("mount {mount}: {what} took {took:?}"))]);
        }
        result
    }

    pub fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts[mount].join(name)
    }

    pub fn open(&self, mount: usize, name: &str, mode: Mode) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        match mode {
            Mode::Buffered => {}
            Mode::Direct => _ = options.custom_flags(libc::O_DIRECT),
            Mode::Durable => _ = options.custom_flags(libc::O_DSYNC),
            Mode::Append => _ = options.append(true),
        }
        self.call(mount, format!("open {name} {mode:?}"), &[], || options.open(self.path(mount, name)))
    }

    /// Reads cells of a file as it is on a mount; fewer where it ends.
    pub fn read(
        &self,
        mount: usize,
        name: &str,
        direct: bool,
        first: u32,
        count: usize,
    ) -> io::Result<Vec<Seen>> {
        let mut options = OpenOptions::new();
        options.read(true);
        if direct {
            options.custom_flags(libc::O_DIRECT);
        }
        let what = format!("read {name} cells {first}+{count}{}", if direct { " O_DIRECT" } else { "" });
        let path = self.path(mount, name);
        let bytes = self.call(mount, what, &[], || {
            let file = options.open(path)?;
            let (mut bytes, mut done) = (vec![0; count * CELL], 0);
            while done < bytes.len() {
                match file.read_at(&mut bytes[done..], u64::from(first) * CELL as u64 + done as u64) {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            bytes.truncate(done);
            Ok(bytes)
        })?;
        Ok(bytes.chunks(CELL).map(read).collect())
    }
}
