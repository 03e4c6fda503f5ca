//! What programs on several clients do at once to the same files, what was answered to them, and whether all of it holds in
//! the end: bytes are linearizable, appends are whole, names are made once, a lock has one owner.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use base::InodeNo;
use client::{Client, Errno, Handle, OpenFlags, SetAttrs};
use tokio::{
    sync::{Notify, RwLock},
    time::{Instant, sleep},
};
use wire::{
    lock::{Lock, LockKind, LockMode},
    mgr::FileKind,
};

use super::cluster::Who;
use crate::{
    common::Random,
    linear::{Act, Done, is_linearizable},
};

/// A file that lives in its inode, and one of two blocks.
const FILES: [(&str, u64); 2] = [("small", 64), ("large", 512 << 10)];
/// Where values of eight bytes stand: file, offset.
const PLACES: [(usize, u64); 5] = [(0, 0), (0, 8), (1, 0), (1, 5000), (1, (256 << 10) + 16)];
/// Names in two directories, each a place after those above: its value is the number of the inode it leads to.
const SHARED: [&str; 3] = ["one", "two", "three"];
const RECORD: usize = 16;
/// Blocks of a program's own file, and where its value stands in each.
const BLOCKS: u64 = 3;
const BLOCK: u64 = 256 << 10;
const AT: u64 = 4096;
pub const RW: OpenFlags = OpenFlags {
    read: true,
    write: true,
    append: false,
    direct: false,
    sync: false,
    dsync: false,
    truncate: false,
    drop_privileges: false,
    caller_appends: false,
};

/// A write or read of a value.
struct Value {
    who: Who,
    place: usize,
    act: Act,
    start: u64,
    /// Not yet answered: the end of time.
    end: u64,
    synced: bool,
}

/// A record at the end of the log.
struct Appended {
    who: Who,
    bytes: [u8; RECORD],
    answered: bool,
    synced: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    There,
    Gone,
    Unknown,
}

#[derive(Default)]
struct Book {
    values: Vec<Value>,
    log: Vec<Appended>,
    names: BTreeMap<String, Name>,
    prizes: BTreeMap<String, u32>,
    /// Files that one program alone has, while they are there.
    own: BTreeMap<String, Own>,
    /// Times that the counter was raised, and times that nobody knows.
    counted: u64,
    perhaps: u64,
}

/// What a program's own file may have in each block: what is synced, and then what is not, the last written last.
struct Own {
    who: Who,
    blocks: Vec<Vec<u64>>,
}

/// What was answered, and when.
pub struct Ledger {
    book: Mutex<Book>,
    began: Instant,
    dir: InodeNo,
    other: InodeNo,
    /// Of each client: held by who reads, and by who cuts off what others may read. A read that is under way on the same
    /// mount can end with an error then.
    reads: Mutex<BTreeMap<Who, Arc<RwLock<()>>>>,
}

async fn make(client: &Client, parent: InodeNo, name: &str, kind: FileKind) -> Result<InodeNo, Errno> {
    let made = client.create(parent, name.as_bytes(), kind, 0o755, 0, 0, 0, &[], false).await?;
    Ok(made.0.ino)
}

async fn open(client: &Client, name: &str, flags: OpenFlags) -> Result<Handle, Errno> {
    let ino = client.lookup(InodeNo::ROOT, name.as_bytes()).await?.ino;
    client.open(ino, flags).await
}

async fn put(client: &Client, handle: Handle, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    assert_eq!(client.write(handle, offset, bytes).await?, bytes.len(), "a short write");
    Ok(())
}

async fn leads_to(client: &Client, dir: InodeNo, name: &str) -> Result<u64, Errno> {
    match client.lookup(dir, name.as_bytes()).await {
        Ok(attr) => Ok(attr.ino.0),
        Err(Errno::ENOENT) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Beyond the end all is 0.
async fn number_at(client: &Client, handle: Handle, offset: u64) -> Result<u64, Errno> {
    let mut bytes = client.read(handle, offset, 8).await?.to_vec();
    bytes.resize(8, 0);
    Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

async fn resize(client: &Client, ino: InodeNo, size: u64) -> Result<(), Errno> {
    client.setattr(ino, SetAttrs { size: Some(size), ..SetAttrs::default() }).await.map(drop)
}

impl Ledger {
    /// Makes what the programs work on.
    pub async fn begin(client: &Client) -> Result<Arc<Ledger>, Errno> {
        for (name, size) in FILES.into_iter().chain([("log", 0), ("counter", 8)]) {
            make(client, InodeNo::ROOT, name, FileKind::File).await?;
            let handle = open(client, name, RW).await?;
            if size > 0 {
                put(client, handle, size - 8, &[0; 8]).await?;
            }
            client.fsync_handle(handle, false).await?;
            client.release(handle);
        }
        let dir = make(client, InodeNo::ROOT, "names", FileKind::Directory).await?;
        let other = make(client, InodeNo::ROOT, "other", FileKind::Directory).await?;
        Ok(Arc::new(Ledger {
            book: Mutex::default(),
            began: Instant::now(),
            dir,
            other,
            reads: Mutex::default(),
        }))
    }

    fn reads(&self, who: Who) -> Arc<RwLock<()>> {
        self.reads.lock().unwrap().entry(who).or_default().clone()
    }

    /// Where a shared name is.
    fn home(&self, name: usize) -> InodeNo {
        [self.dir, self.other][name % 2]
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// Compares what a client finds now with what was answered. `lost`: clients whose last changes nobody has to have.
    pub async fn check(&self, client: &Client, lost: &HashSet<Who>) -> Result<(), String> {
        let failed = |what: &'static str| move |error: Errno| format!("{what}: {error:?}");
        for (place, (file, offset)) in PLACES.into_iter().enumerate() {
            let handle = open(client, FILES[file].0, RW).await.map_err(failed("open in the end"))?;
            let start = self.now();
            let seen = number_at(client, handle, offset).await.map_err(failed("read in the end"))?;
            client.release(handle);
            let (act, end) = (Act::Read(seen), self.now());
            self.book().values.push(Value { who: Who::MAX, place, act, start, end, synced: true });
        }
        for (number, name) in SHARED.iter().enumerate() {
            let start = self.now();
            let seen = leads_to(client, self.home(number), name).await.map_err(failed("look up"))?;
            let (place, act, end) = (PLACES.len() + number, Act::Read(seen), self.now());
            self.book().values.push(Value { who: Who::MAX, place, act, start, end, synced: true });
        }
        self.check_values(lost)?;
        let log = open(client, "log", RW).await.map_err(failed("open the log"))?;
        let bytes = client.read(log, 0, 1 << 20).await.map_err(failed("read the log"))?.to_vec();
        client.release(log);
        self.check_log(&bytes, lost)?;
        let listing = client.readdir(self.dir, 0, 4096, false).await.map_err(failed("list"))?;
        let found: HashSet<String> =
            listing.entries.into_iter().map(|e| String::from_utf8(e.name).expect("ours")).collect();
        self.check_names(&found)?;
        self.check_own(client, lost).await?;
        let counter = open(client, "counter", RW).await.map_err(failed("open the counter"))?;
        let count = number_at(client, counter, 0).await.map_err(failed("read the counter"))?;
        client.release(counter);
        let book = self.book();
        match (book.counted..=book.counted + book.perhaps).contains(&count) {
            true => Ok(()),
            false => Err(format!("{} counted, {} perhaps, {count} found", book.counted, book.perhaps)),
        }
    }

    async fn check_own(&self, client: &Client, lost: &HashSet<Who>) -> Result<(), String> {
        let files: Vec<(String, Who, Vec<Vec<u64>>)> = {
            let own = &self.book().own;
            own.iter().map(|(name, own)| (name.clone(), own.who, own.blocks.clone())).collect()
        };
        for (name, who, blocks) in files {
            let failed = |error: Errno| format!("{name} in the end: {error:?}");
            let ino = client.lookup(self.dir, name.as_bytes()).await.map_err(failed)?.ino;
            let handle = client.open(ino, RW).await.map_err(failed)?;
            for (block, may) in (0..).zip(&blocks) {
                let seen = number_at(client, handle, block * BLOCK + AT).await.map_err(failed)?;
                let known = if lost.contains(&who) { &may[..] } else { &may[may.len() - 1..] };
                if !known.contains(&seen) {
                    return Err(format!(
                        "{seen} is in block {block} of {name}, and one of {known:?} should be"
                    ));
                }
            }
            client.release(handle);
        }
        Ok(())
    }

    fn check_values(&self, lost: &HashSet<Who>) -> Result<(), String> {
        let book = self.book();
        for place in 0..PLACES.len() + SHARED.len() {
            // A name that was answered is made; files may lack what was not synced.
            let made = |value: &Value| place >= PLACES.len() && value.end < u64::MAX;
            let unsure = |value: &&Value| lost.contains(&value.who) && !value.synced && !made(value);
            let here = || book.values.iter().filter(|value| value.place == place);
            // Who reads what only itself had written sees what may be lost with it.
            let own: HashSet<u64> = here()
                .filter(unsure)
                .filter_map(|value| if let Act::Write(n) = value.act { Some(n) } else { None })
                .collect();
            let history = here().filter_map(|value| {
                let (act, start, end) = (value.act, value.start, value.end);
                let maybe = unsure(&value);
                match act {
                    Act::Read(n) if maybe && (end == u64::MAX || own.contains(&n)) => None,
                    Act::Read(_) => Some(Done { act, start, end, maybe: false }),
                    Act::Write(_) => Some(Done { act, start, end, maybe }),
                }
            });
            let history: Vec<Done> = history.collect();
            if !is_linearizable(&history) {
                return Err(format!("no order explains place {place}: {history:?}"));
            }
        }
        Ok(())
    }

    fn check_log(&self, bytes: &[u8], lost: &HashSet<Who>) -> Result<(), String> {
        let book = self.book();
        let mut left: BTreeMap<[u8; RECORD], &Appended> =
            book.log.iter().map(|record| (record.bytes, record)).collect();
        let mut last: BTreeMap<[u8; 8], u64> = BTreeMap::new();
        for (at, record) in bytes.chunks(RECORD).enumerate() {
            let known = record.try_into().ok().and_then(|record: [u8; RECORD]| left.remove(&record));
            let known =
                known.ok_or_else(|| format!("record {at} of the log is torn, or there twice: {record:?}"))?;
            let writer = known.bytes[..8].try_into().expect("eight");
            let number = u64::from_le_bytes(known.bytes[8..].try_into().expect("eight"));
            if last.insert(writer, number).is_some_and(|before| before > number) {
                return Err(format!("record {at} of the log comes too late"));
            }
        }
        let must = |record: &&&Appended| record.answered && (record.synced || !lost.contains(&record.who));
        match left.values().find(must) {
            Some(record) => {
                Err(format!("a record of client {} is not in the log: {:?}", record.who, record.bytes))
            }
            None => Ok(()),
        }
    }

    fn check_names(&self, found: &HashSet<String>) -> Result<(), String> {
        let book = self.book();
        for (name, state) in &book.names {
            if *state != Name::Unknown && found.contains(name) != (*state == Name::There) {
                return Err(format!("{name} should be {state:?}"));
            }
        }
        let strange = found.iter().find(|name| {
            !book.names.contains_key(*name)
                && !book.prizes.contains_key(*name)
                && !SHARED.contains(&name.as_str())
        });
        if let Some(name) = strange {
            return Err(format!("{name} was never made"));
        }
        match book.prizes.iter().find(|(_, winners)| **winners > 1) {
            Some((name, winners)) => Err(format!("{name} was made by {winners}")),
            None => Ok(()),
        }
    }
}

/// One program.
pub struct Program {
    pub client: Client,
    pub who: Who,
    pub number: u32,
    pub ledger: Arc<Ledger>,
    pub random: Random,
}

/// Its open files: of each file one to write and one to read, which may be the same.
struct Open {
    files: Vec<(Handle, Handle)>,
    inodes: Vec<InodeNo>,
    log: Handle,
    counter: Handle,
    /// Its own, if there is one now.
    own: Option<(String, InodeNo, Handle)>,
}

impl Program {
    /// So many steps. A reader mostly reads one file, which needs nobody as long as nobody writes. An error ends it, and is told with what was done.
    pub async fn run(mut self, steps: u64) -> Result<(), (&'static str, Errno)> {
        let mut open = self.open().await.map_err(|error| ("open", error))?;
        let reads = (self.random.below(3) == 0).then(|| self.random.below(FILES.len() as u64) as usize);
        for step in 0..steps {
            let act = if reads.is_some() && self.random.below(50) > 0 { 30 } else { self.random.below(130) };
            let (what, done) = match act {
                0..30 => ("write", self.write_value(&open).await),
                30..58 => ("read", self.read_value(&open, reads).await),
                58..66 => ("fsync", self.sync(&open).await),
                66..76 => ("append", self.append(&open, step).await),
                76..82 => ("names", self.names(step).await),
                82..87 => ("move", self.move_name(step).await),
                87..91 => ("look up", self.look_up().await),
                91..100 => ("count", self.count(&open).await),
                100..105 => ("cut", self.cut(&open).await),
                _ => ("own", self.own(&mut open, step).await),
            };
            done.map_err(|error| (what, error))?;
            sleep(Duration::from_millis(self.random.below(if reads.is_some() { 1500 } else { 400 }))).await;
        }
        Ok(())
    }

    async fn open(&mut self) -> Result<Open, Errno> {
        let (mut files, mut inodes) = (Vec::new(), Vec::new());
        for (name, _) in FILES {
            inodes.push(self.client.lookup(InodeNo::ROOT, name.as_bytes()).await?.ino);
            let both = open(&self.client, name, RW).await?;
            files.push(match self.random.below(2) {
                0 => (both, both),
                _ => {
                    self.client.release(both);
                    let write = open(&self.client, name, OpenFlags { read: false, ..RW }).await?;
                    (write, open(&self.client, name, OpenFlags { write: false, ..RW }).await?)
                }
            });
        }
        let log = open(&self.client, "log", OpenFlags { read: false, append: true, ..RW }).await?;
        Ok(Open { files, inodes, log, counter: open(&self.client, "counter", RW).await?, own: None })
    }

    fn begin(&self, place: usize, act: Act) -> usize {
        let start = self.ledger.now();
        let mut book = self.ledger.book();
        book.values.push(Value { who: self.who, place, act, start, end: u64::MAX, synced: false });
        book.values.len() - 1
    }

    fn end(&self, at: usize, act: Act) {
        let now = self.ledger.now();
        let mut book = self.ledger.book();
        (book.values[at].act, book.values[at].end) = (act, now);
    }

    async fn write_value(&mut self, open: &Open) -> Result<(), Errno> {
        let place = self.random.below(PLACES.len() as u64) as usize;
        let (file, offset) = PLACES[place];
        let value = 1 + self.random.next() / 2;
        let at = self.begin(place, Act::Write(value));
        put(&self.client, open.files[file].0, offset, &value.to_le_bytes()).await?;
        self.end(at, Act::Write(value));
        Ok(())
    }

    async fn read_value(&mut self, open: &Open, only: Option<usize>) -> Result<(), Errno> {
        let places: Vec<usize> =
            (0..PLACES.len()).filter(|&place| only.is_none_or(|file| PLACES[place].0 == file)).collect();
        let place = places[self.random.below(places.len() as u64) as usize];
        let (file, offset) = PLACES[place];
        let at = self.begin(place, Act::Read(0));
        let reads = self.ledger.reads(self.who);
        let _reads = reads.read().await;
        let value = number_at(&self.client, open.files[file].1, offset).await?;
        self.end(at, Act::Read(value));
        Ok(())
    }

    async fn sync(&mut self, open: &Open) -> Result<(), Errno> {
        let (file, data_only) = (self.random.below(3) as usize, self.random.below(2) == 0);
        let began = self.ledger.now();
        let logged = self.ledger.book().log.len();
        let handle = open.files.get(file).map_or(open.log, |(write, _)| *write);
        self.client.fsync_handle(handle, data_only).await?;
        let mut book = self.ledger.book();
        if file == FILES.len() {
            let own =
                book.log[..logged].iter_mut().filter(|record| record.who == self.who && record.answered);
            own.for_each(|record| record.synced = true);
        }
        let of_file = |value: &&mut Value| PLACES.get(value.place).is_some_and(|place| place.0 == file);
        for value in book.values.iter_mut().filter(of_file) {
            value.synced |= value.who == self.who && value.end < began;
        }
        Ok(())
    }

    async fn append(&mut self, open: &Open, step: u64) -> Result<(), Errno> {
        let mut bytes = [0; RECORD];
        bytes[..4].copy_from_slice(&(self.who + 1).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&step.to_le_bytes());
        let at = {
            let mut book = self.ledger.book();
            book.log.push(Appended { who: self.who, bytes, answered: false, synced: false });
            book.log.len() - 1
        };
        put(&self.client, open.log, 0, &bytes).await?;
        self.ledger.book().log[at].answered = true;
        Ok(())
    }

    fn name(&self, name: &str, state: Name) {
        self.ledger.book().names.insert(name.to_owned(), state);
    }

    /// A file made, moved, perhaps removed again, under names that nobody else uses; and one name that all want.
    async fn names(&mut self, step: u64) -> Result<(), Errno> {
        let dir = self.ledger.dir;
        let (first, second) = (
            format!("a{}-{}-{step}", self.who, self.number),
            format!("b{}-{}-{step}", self.who, self.number),
        );
        self.name(&first, Name::Unknown);
        make(&self.client, dir, &first, FileKind::File).await?;
        self.name(&second, Name::Unknown);
        self.client.rename(dir, first.as_bytes(), dir, second.as_bytes(), true, false).await?;
        self.name(&first, Name::Gone);
        self.name(&second, Name::There);
        if self.random.below(2) == 0 {
            self.name(&second, Name::Unknown);
            self.client.unlink(dir, second.as_bytes(), false).await?;
            self.name(&second, Name::Gone);
        }
        let prize = format!("prize{}", step / 8);
        self.ledger.book().prizes.entry(prize.clone()).or_default();
        match make(&self.client, dir, &prize, FileKind::File).await {
            Ok(_) => *self.ledger.book().prizes.entry(prize).or_default() += 1,
            Err(Errno(libc::EEXIST)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A shared name is led to a new file, or is removed.
    async fn move_name(&mut self, step: u64) -> Result<(), Errno> {
        let name = self.random.below(SHARED.len() as u64) as usize;
        let (home, place) = (self.ledger.home(name), PLACES.len() + name);
        if self.random.below(3) == 0 {
            let at = self.begin(place, Act::Write(0));
            match self.client.unlink(home, SHARED[name].as_bytes(), false).await {
                Ok(()) => self.end(at, Act::Write(0)),
                Err(Errno::ENOENT) => self.end(at, Act::Read(0)),
                Err(error) => return Err(error),
            }
            return Ok(());
        }
        let fresh = format!("c{}-{}-{step}", self.who, self.number);
        self.name(&fresh, Name::Unknown);
        let from = self.ledger.dir;
        let ino = make(&self.client, from, &fresh, FileKind::File).await?;
        let at = self.begin(place, Act::Write(ino.0));
        self.client.rename(from, fresh.as_bytes(), home, SHARED[name].as_bytes(), false, false).await?;
        self.end(at, Act::Write(ino.0));
        self.name(&fresh, Name::Gone);
        Ok(())
    }

    /// The second block of the large file is cut off, and is zeros again.
    async fn cut(&mut self, open: &Open) -> Result<(), Errno> {
        let place = PLACES.len() - 1;
        let (file, offset) = PLACES[place];
        let at = self.begin(place, Act::Write(0));
        let (ino, reads) = (open.inodes[file], self.ledger.reads(self.who));
        let _alone = reads.write().await;
        resize(&self.client, ino, offset / BLOCK * BLOCK).await?;
        resize(&self.client, ino, FILES[file].1).await?;
        self.end(at, Act::Write(0));
        Ok(())
    }

    /// A file of several blocks that nobody else uses: made, written, synced, cut, read, removed.
    async fn own(&mut self, open: &mut Open, step: u64) -> Result<(), Errno> {
        let dir = self.ledger.dir;
        let Some((name, ino, handle)) = open.own.clone() else {
            let name = format!("own{}-{}-{step}", self.who, self.number);
            self.name(&name, Name::Unknown);
            let ino = make(&self.client, dir, &name, FileKind::File).await?;
            let handle = self.client.open(ino, RW).await?;
            let own = Own { who: self.who, blocks: vec![vec![0]; BLOCKS as usize] };
            self.ledger.book().own.insert(name.clone(), own);
            self.name(&name, Name::There);
            open.own = Some((name, ino, handle));
            return self.fill(open).await;
        };
        match self.random.below(10) {
            0..4 => self.fill(open).await,
            4..6 => {
                let block = self.random.below(BLOCKS);
                self.may_be(&name, block..BLOCKS, 0);
                resize(&self.client, ino, block * BLOCK).await?;
                self.is_as_of(&name, &vec![usize::MAX; BLOCKS as usize][block as usize..], block);
                Ok(())
            }
            6..8 => {
                let block = self.random.below(BLOCKS);
                let seen = number_at(&self.client, handle, block * BLOCK + AT).await?;
                let last = self.ledger.book().own[&name].blocks[block as usize].last().copied();
                assert_eq!(Some(seen), last, "block {block} of {name}");
                Ok(())
            }
            _ => {
                open.own = None;
                self.name(&name, Name::Unknown);
                self.ledger.book().own.remove(&name);
                self.client.unlink(dir, name.as_bytes(), false).await?;
                self.name(&name, Name::Gone);
                self.client.release(handle);
                Ok(())
            }
        }
    }

    /// Writes a value into some blocks of its own file, and mostly syncs them.
    async fn fill(&mut self, open: &Open) -> Result<(), Errno> {
        let Some((name, _, handle)) = &open.own else { return Ok(()) };
        for block in 0..BLOCKS {
            if self.random.below(3) == 0 {
                continue;
            }
            let value = 1 + self.random.next() / 2;
            self.may_be(name, block..block + 1, value);
            put(&self.client, *handle, block * BLOCK + AT, &value.to_le_bytes()).await?;
        }
        if self.random.below(4) > 0 {
            let written: Vec<usize> =
                self.ledger.book().own[name].blocks.iter().map(|may| may.len() - 1).collect();
            self.client.fsync_handle(*handle, true).await?;
            self.is_as_of(name, &written, 0);
        }
        Ok(())
    }

    fn may_be(&self, name: &str, blocks: std::ops::Range<u64>, value: u64) {
        let mut book = self.ledger.book();
        let own = book.own.get_mut(name).expect("its own");
        blocks.for_each(|block| own.blocks[block as usize].push(value));
    }

    /// From the block `first` on nothing is left of what came before an entry.
    fn is_as_of(&self, name: &str, entries: &[usize], first: u64) {
        let mut book = self.ledger.book();
        let own = book.own.get_mut(name).expect("its own");
        for (may, entry) in own.blocks[first as usize..].iter_mut().zip(entries) {
            may.drain(..(*entry).min(may.len() - 1));
        }
    }

    /// Where shared names lead: several times, so that answers are kept and used.
    async fn look_up(&mut self) -> Result<(), Errno> {
        for _ in 0..4 {
            let name = self.random.below(SHARED.len() as u64) as usize;
            let at = self.begin(PLACES.len() + name, Act::Read(0));
            let seen = leads_to(&self.client, self.ledger.home(name), SHARED[name]).await?;
            self.end(at, Act::Read(seen));
            self.client.getattr(self.ledger.home(name)).await?;
        }
        Ok(())
    }

    /// One more, under a lock.
    async fn count(&mut self, open: &Open) -> Result<(), Errno> {
        let (owner, pid) = (u64::from(self.number) + 1, 1);
        let lock = |mode| Lock { kind: LockKind::Fcntl, mode, owner, pid, start: 0, end: 0 };
        let counter = open.counter;
        self.client.lock(counter, lock(LockMode::Exclusive), Some(Arc::new(Notify::new()))).await?;
        let number = number_at(&self.client, counter, 0).await?;
        self.ledger.book().perhaps += 1;
        put(&self.client, counter, 0, &(number + 1).to_le_bytes()).await?;
        self.client.fsync_handle(counter, true).await?;
        {
            let mut book = self.ledger.book();
            book.perhaps -= 1;
            book.counted += 1;
        }
        self.client.lock(counter, lock(LockMode::None), None).await
    }
}
