//! The check of a store whose manager does not run: its files, every page, every record, and what records say of each
//! other. Changes nothing. Memory grows with the inodes (some 100 bytes each).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
};

use base::{FsId, InodeNo};
use wire::{
    map::{Limits, PoolEntry},
    mgr::FileKind,
};

use crate::{
    ManagerError, format,
    keys::{
        self, BYTES_VERSION, ConfigRecord, CounterRecord, DeleteQueueRecord, DeleteRecord, EndingRecord,
        EntryRecord, ExtentRecord, FsRecord, Inode, LeapRecord, MapRecord, NodeRecord, OrphanRecord,
        RemovedFsRecord, ReplyRecord, SessionRecord, XATTR_KEY_HEAD, last_u64,
    },
    losses,
    namespace::DirHash,
    store::{BadRecord, KeyText, Look, Record, StoreError, is_whole, open_bytes, open_record, salvage},
};

/// Problems that are named, at most.
const NAMED_MAX: usize = 1000;
const CACHE_BYTES: usize = 64 << 20;

/// What a check found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Records read.
    pub records: u64,
    /// Number of the last commit.
    pub last: u64,
    /// What is wrong, for people; the first 1,000.
    pub problems: Vec<String>,
    /// How many more there are.
    pub more: u64,
}

impl Found {
    fn add(&mut self, text: String) {
        if self.problems.len() < NAMED_MAX { self.problems.push(text) } else { self.more += 1 }
    }
}

/// What is known of an inode when its records have been read.
#[derive(Default)]
struct Seen {
    inode: Option<Inode>,
    /// Names that lead to it.
    names: u32,
    /// What these say it is.
    named: Option<FileKind>,
    /// Of a directory: entries, and directories among them.
    entries: u64,
    directories: u32,
    /// Blocks of its extents, and where the last one ends.
    blocks: u64,
    end: u64,
    xattr_names: u64,
    xattr_values: u64,
    body: bool,
}

#[derive(Default)]
struct State {
    found: Found,
    hash: Option<DirHash>,
    inodes: HashMap<(FsId, InodeNo), Seen>,
    counts: BTreeMap<FsId, FsRecord>,
    removed: HashSet<FsId>,
    orphans: HashSet<(FsId, InodeNo)>,
    map: Option<MapRecord>,
    pools: HashSet<base::PoolId>,
    deletes: DeleteQueueRecord,
    queue: Option<DeleteQueueRecord>,
}

/// Checks the store in a manager's directory. Fails if there is none that can be opened.
pub fn check(dir: &Path) -> Result<Found, ManagerError> {
    let path = format::store_path(dir);
    if !path.exists() {
        return Err(ManagerError::NotFormatted { path: dir.to_owned() });
    }
    let mut look = Look::open(&path, CACHE_BYTES)?;
    let mut state = State::default();
    state.found.last = look.last;
    look.problems.iter().for_each(|problem| state.found.add(problem.clone()));
    {
        let snapshot = look.snapshot()?;
        // Entries are checked with the key of their hash, which stands in the first record.
        let gaps = salvage(&*snapshot, &mut |key, value| {
            state.found.records += 1;
            if let Err(error) = state.record(key, value) {
                state.found.add(error.to_string());
            }
            std::ops::ControlFlow::Continue(())
        })?;
        for gap in gaps {
            state.found.add(format!("the table cannot be read: {gap}"));
        }
    }
    state.compare();
    if !verified(&mut look)? {
        state.found.add("pages of the table are not what the engine wrote".into());
    }
    let damaged = look.damage();
    if let Some(first) = damaged.first() {
        let text = format!(
            "{} blocks of the table do not match their CRCs, the first is block {first}",
            damaged.len()
        );
        state.found.add(text);
    }
    Ok(state.found)
}

fn verified(look: &mut Look) -> Result<bool, StoreError> {
    // What is damaged the engine may refuse to go over.
    match look.verify() {
        Err(_) if !look.damage().is_empty() => Ok(false),
        outcome => outcome,
    }
}

/// The file system and the inode of a key that begins with them.
fn place(key: &[u8]) -> (FsId, InodeNo) {
    let fs = key.get(1..5).and_then(|fs| fs.try_into().ok()).map(u32::from_be_bytes);
    (FsId(fs.unwrap_or_default()), InodeNo(key.get(5..13).map(last_u64).unwrap_or_default()))
}

impl State {
    fn seen(&mut self, key: &[u8]) -> &mut Seen {
        self.inodes.entry(place(key)).or_default()
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
        fn is<T: Record>(key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
            open_record::<T>(key, value).map(drop)
        }
        let text = || KeyText(key.to_vec());
        match key.first().copied().unwrap_or_default() {
            b'!' => self.hash = Some(DirHash::new(open_record::<keys::FormatRecord>(key, value)?.hash_key)),
            b'm' => self.map = Some(keys::open_map(key, value)?),
            b'l' => drop(self.pools.insert(open_record::<PoolEntry>(key, value)?.id)),
            b'h' => is::<keys::LeaseRecord>(key, value)?,
            b'n' => is::<CounterRecord>(key, value)?,
            b'p' => drop(keys::open_pdisk(key, value)?),
            b'v' => is::<keys::InvitationRecord>(key, value)?,
            b'j' => drop(keys::open_member(key, value)?),
            b'a' => is::<Limits>(key, value)?,
            b'c' => is::<keys::BuildRecord>(key, value)?,
            b'w' => is::<NodeRecord>(key, value)?,
            b'g' => is::<keys::RackRecord>(key, value)?,
            b'L' => drop(losses::open(key, value)?),
            b'@' => is::<keys::ManagerRecord>(key, value)?,
            b's' => is::<SessionRecord>(key, value)?,
            b'r' => is::<ReplyRecord>(key, value)?,
            b'N' => is::<keys::NumbersRecord>(key, value)?,
            b'u' => is::<EndingRecord>(key, value)?,
            b'k' => is::<ConfigRecord>(key, value)?,
            b'f' => drop(self.counts.insert(place(key).0, open_record(key, value)?)),
            b'z' => {
                is::<RemovedFsRecord>(key, value)?;
                self.removed.insert(place(key).0);
            }
            b'i' => self.seen(key).inode = Some(open_record(key, value)?),
            b'b' => {
                open_bytes("body", key, BYTES_VERSION, value)?;
                self.seen(key).body = true;
            }
            b'x' => {
                let len = open_bytes("extended attribute", key, BYTES_VERSION, value)?.len() as u64;
                let seen = self.seen(key);
                seen.xattr_names += key.len().saturating_sub(XATTR_KEY_HEAD) as u64 + 1;
                seen.xattr_values += len;
            }
            b'd' => self.entry(key, open_record(key, value)?),
            b'e' => {
                let (first, end) = (open_record::<ExtentRecord>(key, value)?.first, last_u64(key));
                let seen = self.seen(key);
                let fits = first < end && (first > seen.end || (seen.blocks == 0 && first == 0));
                seen.blocks = seen.blocks.saturating_add(end.saturating_sub(first));
                seen.end = end;
                if !fits {
                    self.found.add(format!(
                        "extent {}: blocks {first} to {end} overlap another, or touch it",
                        text()
                    ));
                }
            }
            b'y' => is::<LeapRecord>(key, value)?,
            b'o' => {
                is::<OrphanRecord>(key, value)?;
                let of = key.get(8..).unwrap_or_default();
                self.orphans.insert(place(of));
            }
            b't' => self.queue = Some(open_record(key, value)?),
            b'q' => {
                let record: DeleteRecord = open_record(key, value)?;
                self.deletes.entries += 1;
                self.deletes.blocks = self.deletes.blocks.saturating_add(record.blocks);
                self.deletes.last = last_u64(key);
            }
            _ if !is_whole(key, value) => self.found.add(format!("record {} is damaged", text())),
            _ => self.found.add(format!("record {}: no such kind is known", text())),
        }
        Ok(())
    }

    fn entry(&mut self, key: &[u8], entry: EntryRecord) {
        let (fs, dir) = place(key);
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let first = self.hash.map(|hash| hash.first_cookie(&entry.name));
        if first.is_some_and(|first| last_u64(key) & !127 != first) {
            self.found
                .add(format!("entry {name:?} of directory {dir} ({fs}) stands under another name's key"));
        }
        let directory = entry.kind == FileKind::Directory;
        let parent = self.seen(key);
        parent.entries += 1;
        parent.directories += u32::from(directory);
        let seen = self.inodes.entry((fs, entry.ino)).or_default();
        seen.names += 1;
        if seen.named.is_some_and(|kind| kind != entry.kind) || (directory && seen.names > 1) {
            self.found.add(format!(
                "entry {name:?} of directory {dir} ({fs}): {} has other names, of another kind",
                entry.ino
            ));
        }
        seen.named = Some(entry.kind);
    }

    /// What the records say of each other.
    fn compare(&mut self) {
        let mut inodes: BTreeMap<(FsId, InodeNo), Seen> =
            std::mem::take(&mut self.inodes).into_iter().collect();
        // What is on its way out is not compared.
        inodes.retain(|(fs, _), _| !self.removed.contains(fs));
        let mut in_use: BTreeMap<FsId, (u64, InodeNo)> = BTreeMap::new();
        for (&(fs, ino), seen) in &inodes {
            let Some(inode) = &seen.inode else {
                self.found.add(format!("{ino} ({fs}) is not there: {}", what_is_left(seen)));
                continue;
            };
            let counted = in_use.entry(fs).or_default();
            *counted = (counted.0 + 1, ino);
            for wrong in wrong(ino, inode, seen, self.orphans.contains(&(fs, ino))) {
                self.found.add(format!("{ino} ({fs}): {wrong}"));
            }
        }
        for (fs, ino) in &self.orphans {
            if !self.removed.contains(fs) && inodes.get(&(*fs, *ino)).is_none_or(|seen| seen.inode.is_none())
            {
                self.found.add(format!("{ino} ({fs}) is held open, and not there"));
            }
        }
        let Some(map) = &self.map else { return self.found.add("the cluster map is not there".into()) };
        if self.hash.is_none() {
            self.found.add("the record that says what this store is, is not there".into());
        }
        for fs in &map.filesystems {
            let (count, last) = in_use.get(&fs.id).copied().unwrap_or_default();
            let recorded = self.counts.get(&fs.id).cloned().unwrap_or_default();
            if recorded.inodes != count {
                self.found.add(format!("{}: {count} inodes, and {} are recorded", fs.name, recorded.inodes));
            }
            if recorded.last_ino < last {
                self.found.add(format!(
                    "{}: inode {last} was given, and the last recorded is {}",
                    fs.name, recorded.last_ino
                ));
            }
            if inodes.get(&(fs.id, InodeNo::ROOT)).is_none_or(|seen| seen.inode.is_none()) {
                self.found.add(format!("{}: the root directory is not there", fs.name));
            }
            if !self.pools.contains(&fs.pool) {
                self.found.add(format!("{}: its {} is not there", fs.name, fs.pool));
            }
        }
        let known: HashSet<FsId> = map.filesystems.iter().map(|fs| fs.id).collect();
        for fs in in_use.keys().filter(|fs| !known.contains(fs)) {
            self.found.add(format!("{fs} has inodes, and is not in the cluster map"));
        }
        let queue = self.queue.clone().unwrap_or_default();
        let of = &self.deletes;
        if (queue.entries, queue.blocks) != (of.entries, of.blocks) || queue.last < of.last {
            self.found.add(format!(
                "the delete queue has {} entries with {} blocks up to number {}, and says {}, {}, {}",
                of.entries, of.blocks, of.last, queue.entries, queue.blocks, queue.last
            ));
        }
    }
}

fn what_is_left(seen: &Seen) -> String {
    let mut left = Vec::new();
    let mut has = |count: u64, what: &str| {
        if count > 0 {
            left.push(format!("{count} {what}"))
        }
    };
    has(u64::from(seen.names), "names lead to it");
    has(seen.entries, "entries are in it");
    has(seen.blocks, "blocks are recorded for it");
    has(seen.xattr_names, "bytes of extended attributes are");
    has(u64::from(seen.body), "content is");
    left.join(", ")
}

fn wrong(ino: InodeNo, inode: &Inode, seen: &Seen, orphan: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let directory = inode.kind == FileKind::Directory;
    if seen.named.is_some_and(|kind| kind != inode.kind) {
        wrong.push(format!("is a {:?}, and its name says {:?}", inode.kind, seen.named.unwrap_or_default()));
    }
    let links = match (directory, seen.names) {
        (true, 0) if ino != InodeNo::ROOT => 0,
        (true, _) => 2 + seen.directories,
        (false, names) => names,
    };
    if inode.nlink != links {
        wrong.push(format!("{links} links, and {} are recorded", inode.nlink));
    }
    if inode.nlink == 0 && !orphan {
        wrong.push("has no name, and nobody holds it open".into());
    }
    if inode.entries != seen.entries {
        wrong.push(format!("{} entries, and {} are recorded", seen.entries, inode.entries));
    }
    if inode.blocks != seen.blocks {
        wrong.push(format!("extents with {} blocks, and {} are recorded", seen.blocks, inode.blocks));
    }
    let names = (seen.xattr_names, seen.xattr_values);
    if names != (inode.xattr_names.into(), inode.xattr_values.into()) {
        wrong.push("its extended attributes are not those that are recorded".into());
    }
    wrong
}

#[cfg(test)]
#[path = "tests/changed.rs"]
mod changed;
