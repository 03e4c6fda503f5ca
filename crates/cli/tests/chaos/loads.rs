//! The loads: who writes, appends, renames and locks through which mount, each with what the checker knows of it. A worker
//! whose call fails rests until the round ends; then everybody fsyncs what is open, which says what is durable.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::{
    cells::{CELL, Seen, cells, record},
    checker::{Appended, Bytes, Class, Hold, NameOp, Names, Outcome, held_twice, violation},
    field::{Field, Mode},
    mapped,
};
use crate::common::Random;

/// Longest file of a writer, in cells: 2 MiB.
const CELLS_MAX: u32 = 4096;
/// The file that all append to.
const SHARED: &str = "shared";
const SHARED_FILE: u32 = 9000;
/// Names of one worker.
const SLOTS: u64 = 12;

/// A thread's work in a round.
pub trait Work: Send {
    /// Works until the round ends, and fsyncs.
    fn work(&mut self, field: &Field, random: Random);
    /// At rest: looks through each mount, and takes what is there for known.
    fn inspect(&mut self, field: &Field);
}

/// All workers of a cluster. Files with odd numbers lie in `dirs[1]`.
pub fn workers(dirs: [&str; 2]) -> (Vec<Box<dyn Work>>, std::sync::Arc<Shared>) {
    let shared = std::sync::Arc::new(Shared::default());
    let mut all: Vec<Box<dyn Work>> = Vec::new();
    for mount in 0..3 {
        let id = mount as u32;
        all.push(Box::new(Writer::new(id * 2, mount, dirs)));
        all.push(Box::new(Writer::new(id * 2 + 1, mount, dirs)));
        all.push(Box::new(Appender { id, mount, tag: 0, shared: shared.clone() }));
        all.push(Box::new(Namer {
            id,
            mount,
            tag: 0,
            names: Names::default(),
            burst: false,
            dir: dirs[0].into(),
        }));
        all.push(Box::new(Locker { id, mount, shared: shared.clone() }));
    }
    let names = Names::default();
    all.push(Box::new(Namer { id: 7, mount: 0, tag: 0, names, burst: true, dir: dirs[1].into() }));
    (all, shared)
}

/// What workers share.
#[derive(Default)]
pub struct Shared {
    appended: Mutex<Appended>,
    holds: Mutex<[Vec<Hold>; 2]>,
    /// Increments of the two counters: acknowledged, and perhaps done.
    counted: Mutex<[(u64, u64); 2]>,
}

impl Shared {
    /// At rest: the appended file, the locks, the counters.
    pub fn inspect(&self, field: &Field) {
        let mut appended = self.appended.lock();
        let mut last = None;
        for mount in 0..field.mounts.len() {
            let len = fs::metadata(field.path(mount, SHARED)).map_or(0, |m| m.len() as usize);
            if let Ok(seen) = field.read(mount, SHARED, mount == 1, 0, len.div_ceil(CELL)) {
                field.wrong(appended.check(SHARED_FILE, &seen));
                last = Some(seen);
            }
        }
        if let Some(seen) = last {
            appended.saw(&seen);
        }
        for holds in self.holds.lock().iter_mut() {
            field.wrong(held_twice(holds));
            holds.clear();
        }
        for (kind, (done, perhaps)) in self.counted.lock().iter_mut().enumerate() {
            let name = lock_name(kind);
            let read = || -> io::Result<u64> {
                let mut number = [0; 8];
                match File::open(field.path(1, name)) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
                    file => file?.read_at(&mut number, 0)?,
                };
                Ok(u64::from_le_bytes(number))
            };
            if let Ok(count) = field.call(1, format!("read {name}"), &[], read) {
                if !(*done..=*done + *perhaps).contains(&count) {
                    let text = format!("{name}: {count}, {done} acknowledged and {perhaps} perhaps");
                    field.wrong([violation(Class::Lock, text)]);
                }
                (*done, *perhaps) = (count, 0);
            }
        }
    }
}

fn lock_name(kind: usize) -> &'static str {
    ["flocked", "locked"][kind]
}

/// Overwrites, extends, cuts and maps files of its own, and reads them through every mount.
struct Writer {
    id: u32,
    mount: usize,
    tag: u32,
    name: String,
    bytes: Bytes,
    /// Its last steps, which are told with what is wrong.
    steps: VecDeque<String>,
}

/// As many steps of a writer are told.
const STEPS_TOLD: usize = 24;

impl Writer {
    fn new(id: u32, mount: usize, dirs: [&str; 2]) -> Writer {
        let name = format!("{}/file{id}", dirs[id as usize % 2]);
        Writer { id, mount, tag: 0, name, bytes: Bytes::new(id), steps: VecDeque::new() }
    }

    /// A step, which is noted.
    fn call(&mut self, field: &Field, what: String, step: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let from = field.now();
        let result = field.call(self.mount, what.clone(), &[], step);
        self.steps.truncate(STEPS_TOLD - 1);
        let (from, to) = (from.as_millis(), field.now().as_millis());
        self.steps.push_front(format!("{from} to {to} ms: {what}: {result:?}"));
        result
    }

    fn told(&self) -> String {
        let mut told = String::from("\n    its last steps, the latest first:");
        self.steps.iter().for_each(|step| told += &format!("\n      {step}"));
        told
    }

    fn write(&mut self, field: &Field, files: &[File; 3], random: &mut Random) -> io::Result<()> {
        self.tag += 1;
        let kind = random.below(10);
        let most = [8, 8, 8, 8, 8, 64, 64, 64, 600, 1400][kind as usize];
        let count = 1 + random.below(most) as u32;
        let mut first = random.below(u64::from(CELLS_MAX - count)) as u32;
        if random.below(2) == 0 {
            first = first.min(self.bytes.len()).min(CELLS_MAX - count); // not too many holes
        }
        let bytes = cells(self.id, first, count, self.tag);
        let offset = u64::from(first) * CELL as u64;
        let how = random.below(8);
        let mapped = how == 7 && first + count <= self.bytes.len();
        let (file, word) = match how {
            5 => (&files[1], "O_DIRECT"),
            6 => (&files[2], "O_DSYNC"),
            _ => (&files[0], if mapped { "mapped" } else { "" }),
        };
        let what = format!("write {} cells {first}+{count} {word} as {}", self.name, self.tag);
        let result = self.call(field, what, || match mapped {
            true => mapped::write(file, offset, &bytes),
            false => file.write_all_at(&bytes, offset),
        });
        self.bytes.wrote(first, count, self.tag, result.is_ok(), how == 6);
        result
    }

    fn step(&mut self, field: &Field, files: &[File; 3], random: &mut Random) -> io::Result<()> {
        match random.below(12) {
            0..6 => self.write(field, files, random),
            6..8 => {
                let what = format!("fsync {}", self.name);
                let result = self.call(field, what, || files[0].sync_all());
                self.bytes.synced(result.is_ok());
                result
            }
            8 if field.deletes => {
                let len = random.below(u64::from(self.bytes.len()) + 1) as u32;
                let what = format!("cut {} to {len} cells", self.name);
                let cut = || files[0].set_len(u64::from(len) * CELL as u64);
                let result = self.call(field, what, cut);
                self.bytes.truncated(len, result.is_ok());
                result
            }
            _ => {
                let reader = random.below(field.mounts.len() as u64) as usize;
                let first = random.below(u64::from(self.bytes.len()) + 1) as u32;
                let count = 1 + random.below(400) as usize;
                // Another mount may have its own trouble.
                let Ok(mut seen) = field.read(reader, &self.name, random.below(3) == 0, first, count) else {
                    return Ok(());
                };
                seen.resize(count, Seen::Zero);
                if !field.is_disturbed(reader) {
                    let wrong = self.bytes.check(first, &seen, false, field.when(self.mount, reader));
                    field.wrong(wrong.into_iter().take(3).enumerate().map(|(i, mut v)| {
                        v.text += &format!(" ({}, by mount {} read by {reader})", self.name, self.mount);
                        v.text += &if i == 0 { self.told() } else { String::new() };
                        v
                    }));
                }
                Ok(())
            }
        }
    }
}

impl Work for Writer {
    fn work(&mut self, field: &Field, mut random: Random) {
        let open = |mode| field.open(self.mount, &self.name, mode);
        let files =
            (|| Ok::<_, io::Error>([open(Mode::Buffered)?, open(Mode::Direct)?, open(Mode::Durable)?]))();
        let Ok(files) = files else { return };
        while !field.ended() && self.step(field, &files, &mut random).is_ok() {
            field.rest(random.below(25));
        }
        while !field.ended() {
            field.rest(20);
        }
        let what = format!("last fsync {}", self.name);
        let result = self.call(field, what, || files.iter().try_for_each(File::sync_all));
        self.bytes.synced(result.is_ok());
    }

    fn inspect(&mut self, field: &Field) {
        let mut last = None;
        for mount in 0..field.mounts.len() {
            let len = match fs::metadata(field.path(mount, &self.name)) {
                Ok(found) => found.len() as usize,
                Err(e) if e.kind() == io::ErrorKind::NotFound && self.bytes.len() == 0 => return,
                Err(e) => {
                    let text = format!("mount {mount}: {}: {e}", self.name);
                    return field.wrong([violation(Class::Name, text)]);
                }
            };
            let Ok(seen) = field.read(mount, &self.name, mount == 1, 0, len.div_ceil(CELL)) else { continue };
            let wrong = self.bytes.check(0, &seen, true, super::checker::When::Rest);
            let count = wrong.len();
            field.wrong(wrong.into_iter().take(4).enumerate().map(|(i, mut v)| {
                v.text +=
                    &format!(" ({}, by mount {}, seen by {mount}; {count} in all)", self.name, self.mount);
                v.text += &if i == 0 { self.told() } else { String::new() };
                v
            }));
            last = Some(seen);
        }
        if let Some(seen) = last {
            self.bytes.saw(&seen);
        }
    }
}

/// Appends records to one file, as do those of the other mounts.
struct Appender {
    id: u32,
    mount: usize,
    tag: u32,
    shared: std::sync::Arc<Shared>,
}

impl Work for Appender {
    fn work(&mut self, field: &Field, mut random: Random) {
        let Ok(file) = field.open(self.mount, SHARED, Mode::Append) else { return };
        let fsync = |this: &Appender| {
            let result = field.call(this.mount, "fsync shared", &[], || file.sync_all());
            if result.is_ok() {
                this.shared.appended.lock().synced(this.id);
            }
            result
        };
        while !field.ended() {
            self.tag += 1;
            let (tag, parts) = ((self.id + 1) << 24 | self.tag, 1 + random.below(8) as u32);
            let bytes = record(SHARED_FILE, tag, parts);
            let result = field.call(self.mount, format!("append {tag}"), &[], || {
                match io::Write::write(&mut &file, &bytes)? {
                    n if n == bytes.len() => Ok(()),
                    n => Err(io::Error::other(format!("{n} of {} bytes", bytes.len()))),
                }
            });
            self.shared.appended.lock().appended(self.id, tag, parts, result.is_ok());
            if result.is_err() || random.below(4) == 0 && fsync(self).is_err() {
                break;
            }
            field.rest(random.below(60));
        }
        while !field.ended() {
            field.rest(20);
        }
        let _ = fsync(self);
    }

    fn inspect(&mut self, _: &Field) {} // by `Shared`
}

/// Makes, renames, links and removes names.
struct Namer {
    id: u32,
    mount: usize,
    tag: u32,
    names: Names,
    /// Makes files of half a block and removes them by dozens, in rounds with deletes.
    burst: bool,
    dir: String,
}

impl Namer {
    fn slot(&self, random: &mut Random) -> String {
        format!("w{}-{}", self.id, random.below(if self.burst { 60 } else { SLOTS }))
    }

    fn fill(&self, field: &Field, file: &File) -> io::Result<()> {
        let count = if self.burst { 500 } else { 1 };
        let bytes = cells(1000 + self.id, 0, count, self.tag);
        field.call(self.mount, format!("fill and fsync {}", self.tag), &[], || {
            file.write_all_at(&bytes, 0)?;
            file.sync_all()
        })
    }

    fn step(&mut self, field: &Field, random: &mut Random) -> io::Result<()> {
        let (a, b) = (self.slot(random), self.slot(random));
        self.tag += 1;
        let making = field.now() < Duration::from_millis(2500);
        let op = match random.below(5) {
            _ if self.burst && making => NameOp::Create(a, self.tag),
            _ if self.burst => NameOp::Unlink(a),
            0 | 1 => NameOp::Create(a, self.tag),
            2 if a != b => NameOp::Rename(a, b),
            3 if a != b => NameOp::Link(a, b),
            _ => NameOp::Unlink(a),
        };
        let at = |name: &String| field.path(self.mount, &format!("{}/{name}", self.dir));
        let may = [libc::EEXIST, libc::ENOENT];
        let mut made = None;
        let result = field.call(self.mount, format!("{op:?}"), &may, || match &op {
            NameOp::Create(name, _) => File::create_new(at(name)).map(|file| made = Some(file)),
            NameOp::Rename(from, to) => fs::rename(at(from), at(to)),
            NameOp::Link(from, to) => fs::hard_link(at(from), at(to)),
            NameOp::Unlink(name) => fs::remove_file(at(name)),
        });
        let outcome = match &result {
            Ok(()) => Outcome::Done,
            // On a mount that may be dead the kernel may answer from what it remembers.
            Err(e)
                if e.raw_os_error().is_some_and(|n| may.contains(&n)) && !field.is_disturbed(self.mount) =>
            {
                Outcome::Refused
            }
            Err(_) => Outcome::Unknown,
        };
        field.wrong(self.names.did(&op, outcome));
        if let Some(file) = made
            && let Err(error) = self.fill(field, &file)
        {
            self.names.loosen(self.tag);
            return Err(error);
        }
        match outcome {
            Outcome::Unknown => result,
            _ => Ok(()),
        }
    }
}

impl Work for Namer {
    fn work(&mut self, field: &Field, mut random: Random) {
        if self.burst && !field.deletes {
            return;
        }
        while !field.ended() && self.names.is_certain() && self.step(field, &mut random).is_ok() {
            field.rest(random.below(if self.burst { 4 } else { 30 }));
        }
    }

    fn inspect(&mut self, field: &Field) {
        for mount in 0..field.mounts.len() {
            let (dir, prefix) = (field.path(mount, &self.dir), format!("w{}-", self.id));
            let list = || -> io::Result<Vec<String>> {
                let names = fs::read_dir(dir)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned()));
                names.collect()
            };
            let Ok(listed) = field.call(mount, format!("list {}", self.dir), &[], list) else { return };
            let mut seen = BTreeMap::new();
            for name in listed.into_iter().filter(|name| name.starts_with(&prefix)) {
                let path = format!("{}/{name}", self.dir);
                let found = match field.read(mount, &path, mount == 1, 0, 500) {
                    Ok(found) => found,
                    // Its name is there all the same.
                    Err(_) if field.beyond => {
                        self.names.loosen_named(&name);
                        seen.insert(name, None);
                        continue;
                    }
                    Err(_) => continue,
                };
                let tag = match found.first() {
                    Some(Seen::Cell { tag, file, .. }) if *file == 1000 + self.id => Some(*tag),
                    _ => None,
                };
                let whole = |(place, cell): (usize, &Seen)| match *cell {
                    Seen::Cell { tag: of, place: at, .. } => Some(of) == tag && at as usize == place,
                    _ => tag.is_none_or(|tag| self.names.is_loose(tag)),
                };
                if !found.iter().enumerate().all(whole) {
                    field.wrong([violation(Class::Lost, format!("mount {mount}: {path} is not whole"))]);
                }
                seen.insert(name, tag);
            }
            field.wrong(self.names.check(&seen).map(|mut v| {
                v.text = format!("worker {} seen by mount {mount}: {}", self.id, v.text);
                v
            }));
        }
    }
}

/// Counts under a lock, in turn with those of the other mounts.
struct Locker {
    id: u32,
    mount: usize,
    shared: std::sync::Arc<Shared>,
}

impl Locker {
    fn count(&self, field: &Field, kind: usize, file: &File) -> io::Result<()> {
        let lock = |operation| match kind {
            0 => flock(file, operation).map_err(io::Error::from),
            _ => fcntl_lock(file, operation).map_err(io::Error::from),
        };
        let name = lock_name(kind);
        loop {
            let busy = [libc::EAGAIN, libc::EACCES];
            let outcome = field.call(self.mount, format!("lock {name}"), &busy, || {
                lock(FlockOperation::NonBlockingLockExclusive)
            });
            match outcome {
                Ok(()) => break,
                Err(e) if e.raw_os_error().is_some_and(|n| busy.contains(&n)) && !field.ended() => {
                    field.rest(5)
                }
                Err(e) if e.raw_os_error().is_some_and(|n| busy.contains(&n)) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let from = field.now();
        let result = field.call(self.mount, format!("count in {name}"), &[], || {
            let mut number = [0; 8];
            let _ = file.read_at(&mut number, 0)?;
            // Noted before: when it fails it may have happened.
            self.shared.counted.lock()[kind].1 += 1;
            file.write_all_at(&(u64::from_le_bytes(number) + 1).to_le_bytes(), 0)?;
            file.sync_all()?;
            let mut counted = self.shared.counted.lock();
            counted[kind] = (counted[kind].0 + 1, counted[kind].1 - 1);
            Ok(())
        });
        let micros = |time: Duration| time.as_micros() as u64;
        // A mount in a fault may lose its session, and the lock with it.
        let to = field.disturbed_from(self.mount).map_or(field.now(), |fault| fault.min(field.now()));
        if from < to {
            let hold = Hold { worker: self.id, from: micros(from), to: micros(to) };
            self.shared.holds.lock()[kind].push(hold);
        }
        field.call(self.mount, format!("unlock {name}"), &[], || lock(FlockOperation::Unlock))?;
        result
    }
}

impl Work for Locker {
    fn work(&mut self, field: &Field, mut random: Random) {
        let open = |kind| field.open(self.mount, lock_name(kind), Mode::Buffered);
        let (Ok(a), Ok(b)) = (open(0), open(1)) else { return };
        while !field.ended() {
            let kind = random.below(2) as usize;
            if self.count(field, kind, [&a, &b][kind]).is_err() {
                break;
            }
            field.rest(random.below(80));
        }
    }

    fn inspect(&mut self, _: &Field) {} // by `Shared`
}
