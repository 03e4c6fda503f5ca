//! Writes what each second held behind the process that counts: a thread takes the seconds from memory once they are closed.
//! So nobody who counts ever waits for a disk. A disk that is full or fails ends the recording, with an event; it is tried again,
//! and goes on with what memory still has. A process that is killed loses the second that was not closed; a
//! machine that loses power, what its kernel had not written yet.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base::{
    events::{self, Severity},
    stats::{self, Operations, Second},
};

use super::{
    ended,
    merge::Merging,
    reader,
    record::{self, Entry, MAGIC, Origin, Records},
    tier::{self, Tier},
};
use crate::legend::{Labels, Legend};

/// How long after a second's end it is written.
const LAG: Duration = Duration::from_millis(250);
/// Time between attempts while the disk does not take it.
const RETRY: Duration = Duration::from_secs(10);
/// Minutes and hours that wait for the disk, at most.
const WAITING_MAX: usize = 256;
/// Of the host's file system this much stays free: so many bytes, or a twentieth if that is less.
const FREE_MIN: u64 = 1 << 30;

/// The history of this process on disk.
pub struct Store {
    dir: PathBuf,
    bytes_max: Arc<AtomicU64>,
}

impl Store {
    /// Begins to write to a directory, which is made. Fails if another process writes there.
    pub fn begin(dir: &Path, origin: Origin, bytes_max: u64) -> io::Result<Store> {
        let held = ended::claim(dir)?;
        let bytes_max = Arc::new(AtomicU64::new(bytes_max));
        let store = Store { dir: dir.to_owned(), bytes_max: Arc::clone(&bytes_max) };
        let dir = dir.to_owned();
        std::thread::Builder::new().name("history".to_owned()).spawn(move || {
            Writer::new(dir, origin, bytes_max).run();
            drop(held);
        })?;
        Ok(store)
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes that it may take from now on; 0: nothing more is written.
    pub fn set_bytes(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Relaxed);
    }

    /// Bytes that it takes now.
    pub fn bytes(&self) -> u64 {
        ended::bytes(&self.dir)
    }

    /// Bytes that it may take.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Relaxed)
    }

    /// Where it begins, seconds since 1970.
    pub fn first(&self) -> Option<u64> {
        let first = |tier: &Tier| Some(tier::files(&self.dir, *tier).ok()?.first()?.begin);
        Tier::ALL.iter().filter_map(first).min()
    }
}

/// A file that is written, and what was said in it already.
struct Open {
    file: File,
    path: PathBuf,
    begin: u64,
    bytes: u64,
    said: Legend,
}

/// One tier of the writer.
struct Part {
    tier: Tier,
    open: Option<Open>,
    waiting: VecDeque<Second>,
}

/// Numbers of series that hold for all that this writer writes, whichever life they come from.
#[derive(Default)]
struct Numbers {
    known: HashMap<(String, Labels), u32>,
    legend: Legend,
    /// This process's numbers.
    own: HashMap<u32, u32>,
}

impl Numbers {
    fn number(&mut self, name: &str, labels: &Labels) -> u32 {
        let next = self.known.len() as u32;
        let key = (name.to_owned(), labels.clone());
        let legend = &mut self.legend.series;
        *self.known.entry(key).or_insert_with_key(|key| {
            legend.insert(next, key.clone());
            next
        })
    }

    /// A second of this process with these numbers.
    fn own(&mut self, mut second: Second) -> Second {
        if second.series.iter().any(|(number, _)| !self.own.contains_key(number)) {
            for (number, (name, labels)) in stats::registry().series() {
                let ours = self.number(name, &labels);
                self.own.insert(number, ours);
            }
            self.legend.learn_names();
        }
        second.series.retain_mut(|(number, _)| match self.own.get(number) {
            Some(ours) => {
                *number = *ours;
                true
            }
            None => false,
        });
        second
    }

    /// A second that was written before. None: its program called operations otherwise.
    fn before(&mut self, second: &Second, legend: &Legend) -> Option<Second> {
        let mut second = second.clone();
        let own = Legend::own();
        for (key, name) in &legend.ops {
            if own.ops.get(key).is_some_and(|own| own != name) {
                return None;
            }
            self.legend.ops.insert(*key, name.clone());
        }
        for (key, name) in &legend.classes {
            self.legend.classes.entry(*key).or_insert_with(|| name.clone());
        }
        second.series.retain_mut(|(number, _)| match legend.series.get(number) {
            Some((name, labels)) => {
                *number = self.number(name, labels);
                true
            }
            None => false,
        });
        Some(second)
    }
}

struct Writer {
    dir: PathBuf,
    origin: Origin,
    bytes_max: Arc<AtomicU64>,
    parts: [Part; 3],
    minute: Merging,
    hour: Merging,
    numbers: Numbers,
    /// The end of the last second that was taken over.
    last: u64,
    failed: bool,
}

impl Writer {
    fn new(dir: PathBuf, origin: Origin, bytes_max: Arc<AtomicU64>) -> Writer {
        let part = |tier| Part { tier, open: None, waiting: VecDeque::new() };
        Writer {
            dir,
            origin,
            bytes_max,
            parts: Tier::ALL.map(part),
            minute: Merging::new(60),
            hour: Merging::new(3600),
            numbers: Numbers::default(),
            last: 0,
            failed: false,
        }
    }

    fn run(mut self) {
        if let Err(error) = self.take_up() {
            tracing::warn!(
                "what was recorded before in {} is left out of the minutes that follow: {error}",
                self.dir.display()
            );
        }
        let mut before = stats::thread_cpu();
        loop {
            let cpu = stats::thread_cpu();
            stats::spend(cpu - std::mem::replace(&mut before, cpu));
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let to_next = Duration::from_nanos(1_000_000_000 - u64::from(since.subsec_nanos()));
            std::thread::sleep(if self.failed { RETRY } else { to_next + LAG });
            if self.bytes_max.load(Relaxed) > 0 {
                let written = self.take_over();
                self.tell(written);
            }
        }
    }

    /// Says once that nothing is recorded, and once that it is again.
    fn tell(&mut self, written: io::Result<()>) {
        let failed = written.is_err();
        if let (Err(error), false) = (written, self.failed) {
            let text = format!(
                "history is no longer recorded in {} ({error}); it is tried again every {} s: make room there, or lower analyticsDisk",
                self.dir.display(),
                RETRY.as_secs()
            );
            tracing::warn!("{text}");
            events::raise(Severity::Warning, "analytics_history_stopped", &self.origin.name, &text);
        } else if self.failed && !failed {
            let text = format!("history is recorded again in {}", self.dir.display());
            tracing::info!("{text}");
            events::raise(Severity::Info, "analytics_history_recorded", &self.origin.name, &text);
        }
        self.failed = failed;
    }

    /// Cuts torn ends, and goes on with the minute and the hour that were not whole.
    fn take_up(&mut self) -> io::Result<()> {
        for tier in Tier::ALL {
            if let Some(newest) = tier::files(&self.dir, tier)?.last() {
                cut(&newest.path)?;
            }
        }
        let now = stats::now();
        let end_of = |tier: Tier| -> io::Result<u64> {
            let mut end = 0;
            // What a clock that was ahead has left says nothing of the present.
            if let Some(newest) = tier::files(&self.dir, tier)?.iter().rfind(|file| file.begin < now) {
                reader::file(&newest.path, &mut |second, _| {
                    end = end.max(if second.at <= now { second.at } else { 0 });
                })?;
            }
            Ok(end)
        };
        let (minutes, hours) = (end_of(Tier::Minute)?, end_of(Tier::Hour)?);
        let mut whole = Vec::new();
        let (numbers, hour, minute) = (&mut self.numbers, &mut self.hour, &mut self.minute);
        reader::tier(&self.dir, Tier::Minute, hours, now, &mut |second, legend| {
            whole.extend(numbers.before(second, legend).and_then(|second| hour.add(&second)));
        })?;
        let mut of_minutes = Vec::new();
        reader::tier(&self.dir, Tier::Second, minutes, now, &mut |second, legend| {
            of_minutes.extend(numbers.before(second, legend).and_then(|second| minute.add(&second)));
        })?;
        self.parts[2].waiting.extend(whole);
        of_minutes.into_iter().for_each(|minute| self.minute_is_whole(minute));
        Ok(())
    }

    fn minute_is_whole(&mut self, minute: Second) {
        let hour = self.hour.add(&minute);
        self.parts[1].waiting.push_back(minute);
        self.parts[2].waiting.extend(hour);
        for part in &mut self.parts[1..] {
            while part.waiting.len() > WAITING_MAX {
                part.waiting.pop_front();
            }
        }
    }

    /// Writes what was closed since.
    fn take_over(&mut self) -> io::Result<()> {
        let all = self.bytes_max.load(Relaxed);
        room(&self.dir)?;
        let now = stats::now();
        if now < self.last {
            // The clock was set back.
            self.last = now;
        }
        for second in stats::seconds(self.last, now) {
            let second = self.numbers.own(second);
            self.take(second, all)?;
        }
        self.write_whole(all)
    }

    /// Writes a second, and adds it to its minute.
    fn take(&mut self, second: Second, all: u64) -> io::Result<()> {
        let at = second.at;
        self.parts[0].waiting.push_back(second);
        self.parts[0].write(&self.dir, &self.origin, &self.numbers.legend, all).inspect_err(|_| {
            // Memory has it still.
            self.parts[0].waiting.clear();
        })?;
        self.last = at;
        self.merge_last();
        Ok(())
    }

    /// Writes the minutes and hours that are whole.
    fn write_whole(&mut self, all: u64) -> io::Result<()> {
        for part in &mut self.parts[1..] {
            part.write(&self.dir, &self.origin, &self.numbers.legend, all)?;
        }
        Ok(())
    }

    /// Adds the second that was written last to its minute.
    fn merge_last(&mut self) {
        if let Some(second) = self.parts[0].waiting.pop_front()
            && let Some(minute) = self.minute.add(&second)
        {
            self.minute_is_whole(minute);
        }
    }
}

impl Part {
    /// Writes all that waits. Of seconds the last stays, for who adds it to its minute.
    fn write(&mut self, dir: &Path, origin: &Origin, legend: &Legend, all: u64) -> io::Result<()> {
        let written = self.write_all(dir, origin, legend, all);
        if written.is_err()
            // Its end may be torn: nothing goes behind it.
            && let Some(open) = self.open.take()
            && open.bytes == 0
        {
            // Nothing in it is whole.
            let _ = fs::remove_file(open.path);
        }
        written
    }

    fn write_all(&mut self, dir: &Path, origin: &Origin, legend: &Legend, all: u64) -> io::Result<()> {
        let (bytes_max, seconds_max) = (self.tier.file_bytes(all), self.tier.file_seconds());
        while let Some(second) = self.waiting.front() {
            let begin = second.at - self.tier.resolution().min(second.at);
            let fits = |open: &Open| {
                open.bytes < bytes_max && (open.begin..open.begin + seconds_max).contains(&begin)
            };
            if !self.open.as_ref().is_some_and(fits) {
                if let Some(before) = self.open.take() {
                    before.file.sync_data()?;
                }
                tier::make_room(dir, self.tier, all, bytes_max, begin)?;
                ended::keep_within(dir, all)?;
                self.open = Some(Open::make(dir, self.tier, begin)?);
            }
            if let Some(open) = &mut self.open {
                open.add(second, legend, origin)?;
            }
            if self.tier == Tier::Second {
                return Ok(());
            }
            self.waiting.pop_front();
        }
        Ok(())
    }
}

impl Open {
    fn make(dir: &Path, tier: Tier, begin: u64) -> io::Result<Open> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut nth = 0;
        let (path, file) = loop {
            let path = tier::path(dir, tier, begin, nth);
            match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && nth < 1000 => nth += 1,
                opened => break (path, opened?),
            }
        };
        Ok(Open { file, path, begin, bytes: 0, said: Legend::default() })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn add(&mut self, second: &Second, legend: &Legend, origin: &Origin) -> io::Result<()> {
        let mut bytes = Vec::new();
        if self.bytes == 0 {
            bytes.extend(MAGIC);
            record::put(&mut bytes, &Entry::Origin(origin.clone()));
        }
        explain(&mut bytes, second, legend, &mut self.said);
        record::put(&mut bytes, &Entry::Second(second.clone()));
        self.append(&bytes)
    }
}

/// Says what the numbers in a second mean, as far as that was not said before.
pub fn explain(into: &mut Vec<u8>, second: &Second, legend: &Legend, said: &mut Legend) {
    for (number, _) in &second.series {
        let Some(series) = legend.series.get(number) else { continue };
        if said.series.get(number) != Some(series) {
            said.series.insert(*number, series.clone());
            let (number, (name, labels)) = (*number, series.clone());
            record::put(into, &Entry::Series { number, name, labels });
        }
    }
    for Operations { set, rows, other } in &second.operations {
        let set = *set;
        for number in rows.iter().map(|row| row.key.op).chain(other.iter().map(|other| other.0)) {
            let name = legend.op(set, number).to_owned();
            if said.ops.get(&(set, number)) != Some(&name) {
                said.ops.insert((set, number), name.clone());
                record::put(into, &Entry::Op { set, number, name });
            }
        }
        for number in rows.iter().map(|row| row.key.class) {
            let name = legend.class(set, number).to_owned();
            if said.classes.get(&(set, number)) != Some(&name) {
                said.classes.insert((set, number), name.clone());
                record::put(into, &Entry::Class { set, number, name });
            }
        }
    }
}

/// Fails while the host's file system has too little room left: what is kept there beside the history matters more.
fn room(dir: &Path) -> io::Result<()> {
    let fs = rustix::fs::statvfs(dir)?;
    let (free, all) = (fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize);
    let least = FREE_MIN.min(all / 20);
    if free < least {
        let text =
            format!("only {} MiB of its file system are free, {} MiB stay free", free >> 20, least >> 20);
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    Ok(())
}

/// Cuts off what is torn or damaged at a file's end.
fn cut(path: &Path) -> io::Result<()> {
    let bytes = fs::read(path)?;
    let mut records = Records::of(&bytes);
    records.by_ref().for_each(drop);
    if records.good() < bytes.len() {
        tracing::warn!(
            "{} of {} bytes of {} are cut off: torn or damaged",
            bytes.len() - records.good(),
            bytes.len(),
            path.display()
        );
        OpenOptions::new().write(true).open(path)?.set_len(records.good() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
