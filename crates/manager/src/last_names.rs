//! Under which name that is gone inodes were known last: for who asks afterwards which file it was. Kept for people alone: nothing
//! of the namespace depends on it, nobody waits for it, and it may be a name more (of a change that was not committed) or, after a
//! crash, some names less. The newest [`NAMES_MAX`] are remembered; a file beside the store lets them outlive the process.
//! A manager that follows another one remembers what it sees that one remove: whoever takes over knows the names.
//!
//! The file: for each name a CRC-32C of what follows, the length of the name (2 bytes), file system (4), inode (8), directory (8), the
//! name; numbers are little-endian. What does not fit ends it. A full file becomes the old one, of which there is one.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use base::{FsId, InodeNo};
use crc_fast::{CrcAlgorithm, checksum};
use parking_lot::{Condvar, Mutex};

use crate::{
    keys::EntryRecord,
    store::{Changes, Read, open_record},
};

/// Names that are remembered: some 10 MiB.
const NAMES_MAX: usize = 1 << 16;
/// A file is full.
const FILE_MAX: u64 = 4 << 20;
/// Bytes that wait to be written; beyond they are left out.
const WAITING_MAX: usize = 1 << 20;
const EVERY: Duration = Duration::from_secs(1);
const HEAD: usize = 4 + 2 + 4 + 8 + 8;
const FILE: &str = "last-names";
const OLD: &str = "last-names.old";

type Inode = (FsId, InodeNo);

#[derive(Default)]
struct LastNames {
    names: HashMap<Inode, (InodeNo, Vec<u8>)>,
    order: VecDeque<Inode>,
    /// To be written; none: there is no file.
    waiting: Option<Vec<u8>>,
}

static LAST: LazyLock<Mutex<LastNames>> = LazyLock::new(Mutex::default);
/// Something is to be written where nothing was.
static SOME: Condvar = Condvar::new();

impl LastNames {
    fn note(&mut self, of: Inode, dir: InodeNo, name: &[u8]) {
        if self.names.insert(of, (dir, name.to_vec())).is_none() {
            self.order.push_back(of);
        }
        if self.order.len() > NAMES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }

    /// Takes over what a file says.
    fn read(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((of, dir, name, after)) = decode(rest) {
            self.note(of, dir, name);
            rest = after;
        }
    }
}

fn encode(into: &mut Vec<u8>, (fs, ino): Inode, dir: InodeNo, name: &[u8]) {
    let mut body = Vec::with_capacity(HEAD + name.len());
    body.extend_from_slice(&(name.len() as u16).to_le_bytes());
    body.extend_from_slice(&fs.0.to_le_bytes());
    body.extend_from_slice(&ino.0.to_le_bytes());
    body.extend_from_slice(&dir.0.to_le_bytes());
    body.extend_from_slice(name);
    into.extend_from_slice(&(checksum(CrcAlgorithm::Crc32Iscsi, &body) as u32).to_le_bytes());
    into.extend_from_slice(&body);
}

fn decode(bytes: &[u8]) -> Option<(Inode, InodeNo, &[u8], &[u8])> {
    let (crc, rest) = bytes.split_first_chunk::<4>()?;
    let (len, after) = rest.split_first_chunk::<2>()?;
    let (fs, after) = after.split_first_chunk::<4>()?;
    let (ino, after) = after.split_first_chunk::<8>()?;
    let (dir, after) = after.split_first_chunk::<8>()?;
    let (name, after) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
    let body = &rest[..rest.len() - after.len()];
    let of = (FsId(u32::from_le_bytes(*fs)), InodeNo(u64::from_le_bytes(*ino)));
    let whole = checksum(CrcAlgorithm::Crc32Iscsi, body) as u32 == u32::from_le_bytes(*crc);
    whole.then_some((of, InodeNo(u64::from_le_bytes(*dir)), name, after))
}

/// An inode has no name any more; its last one was this.
pub(crate) fn note(fs: FsId, ino: InodeNo, dir: InodeNo, name: &[u8]) {
    let mut last = LAST.lock();
    last.note((fs, ino), dir, name);
    if let Some(waiting) = last.waiting.as_mut().filter(|waiting| waiting.len() < WAITING_MAX) {
        if waiting.is_empty() {
            SOME.notify_all();
        }
        encode(waiting, (fs, ino), dir, name);
    }
}

/// What another manager, which this one follows, has removed: entries whose inode the changes give no other.
pub(crate) fn note_followed(before: &dyn Read, changes: &Changes) {
    let of = |key: &[u8]| {
        let fs = u32::from_be_bytes(*key.strip_prefix(b"d")?.first_chunk()?);
        let dir = u64::from_be_bytes(*key.get(5..)?.first_chunk()?);
        Some((FsId(fs), InodeNo(dir)))
    };
    let entries = || changes.iter().filter_map(|(key, value)| Some((of(key)?, key, value)));
    let decoded = |key: &[u8], value: &[u8]| open_record::<EntryRecord>(key, value).ok();
    let named = entries().filter_map(|(_, key, value)| Some(decoded(key, value.as_ref()?)?.ino));
    let named: HashSet<InodeNo> = named.collect();
    for ((fs, dir), key, _) in entries() {
        // What cannot be read is not known.
        let Some(entry) = before.get(key).ok().flatten().and_then(|value| decoded(key, &value)) else {
            continue;
        };
        if !named.contains(&entry.ino) {
            note(fs, entry.ino, dir, &entry.name);
        }
    }
}

/// The last name of an inode that has none, and the directory that it was in.
pub(crate) fn of(fs: FsId, ino: InodeNo) -> Option<(InodeNo, Vec<u8>)> {
    LAST.lock().names.get(&(fs, ino)).cloned()
}

/// Remembers what was known in a former life of the manager whose data lies here, and keeps what comes.
pub fn keep(place: &Path) {
    if let Err(error) = cut(place) {
        tracing::warn!("names of removed files: {error}");
    }
    let mut last = LastNames { waiting: Some(Vec::new()), ..LastNames::default() };
    for file in [OLD, FILE] {
        // What cannot be read is not known.
        last.read(&fs::read(place.join(file)).unwrap_or_default());
    }
    *LAST.lock() = last;
    let place = place.to_owned();
    let begun = std::thread::Builder::new().name("last-names".to_owned()).spawn(move || run(&place));
    if let Err(error) = begun {
        tracing::warn!("names of removed files do not outlive this process: start a thread: {error}");
        LAST.lock().waiting = None;
    }
}

fn run(place: &Path) {
    loop {
        let mut last = LAST.lock();
        while last.waiting.as_ref().is_none_or(Vec::is_empty) {
            SOME.wait(&mut last);
        }
        drop(last);
        // More may come, and is written with it.
        std::thread::sleep(EVERY);
        let waiting = LAST.lock().waiting.as_mut().map(std::mem::take).unwrap_or_default();
        if let Err(error) = append(place, &waiting) {
            tracing::warn!("names of removed files do not outlive this process any more: {error}");
            LAST.lock().waiting = None;
            return;
        }
    }
}

/// Adds to the file. A torn end, which is all that a crash leaves, is cut first: nothing behind it could be read.
fn append(place: &Path, bytes: &[u8]) -> io::Result<()> {
    let path: PathBuf = place.join(FILE);
    if fs::metadata(&path).is_ok_and(|file| file.len() >= FILE_MAX) {
        fs::rename(&path, place.join(OLD))?;
    }
    let mut options = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(options.create(true).append(true), 0o600);
    options.open(&path)?.write_all(bytes)
}

/// Cuts what does not fit off the file of a former life.
fn cut(place: &Path) -> io::Result<()> {
    let path = place.join(FILE);
    let Ok(bytes) = fs::read(&path) else { return Ok(()) };
    let mut rest = &bytes[..];
    while let Some((_, _, _, after)) = decode(rest) {
        rest = after;
    }
    match rest.is_empty() {
        true => Ok(()),
        false => fs::OpenOptions::new().write(true).open(&path)?.set_len((bytes.len() - rest.len()) as u64),
    }
}

#[cfg(test)]
mod tests {
    use wire::mgr::FileKind;

    use super::*;
    use crate::{
        keys::entry_key,
        store::{RedbStore, Store as _, seal_record},
    };

    #[test]
    fn who_follows_remembers_what_another_one_removes() {
        let (fs, dir) = (FsId(4011), InodeNo(1));
        let entry = |cookie, ino, name: &str| {
            let record =
                EntryRecord { name: name.as_bytes().to_vec(), ino: InodeNo(ino), kind: FileKind::File };
            let key = entry_key(fs, dir, cookie);
            let value = seal_record(&key, &record);
            (key, Some(value))
        };
        let place = tempfile::tempdir().unwrap();
        let store = RedbStore::create(&place.path().join("table"), 1 << 20).unwrap();
        let before =
            [entry(1, 71, "kept"), entry(2, 72, "gone"), entry(3, 73, "moved"), entry(4, 74, "lost")];
        store.commit(&before.into()).unwrap();
        let changes = [
            (entry_key(fs, dir, 2), None),
            (entry_key(fs, dir, 3), None),
            entry(4, 73, "lost"), // the moved one has its place
            entry(5, 75, "new"),
            (entry_key(fs, dir, 6), None),
            (b"d".to_vec(), None),
            (b"i1".to_vec(), None),
        ];
        note_followed(&*store.snapshot().unwrap(), &changes.into());
        let name = |ino| of(fs, InodeNo(ino)).map(|(_, name)| String::from_utf8(name).unwrap());
        assert_eq!(
            [71, 72, 73, 74, 75].map(name),
            [None, Some("gone".into()), None, Some("lost".into()), None]
        );
    }

    #[test]
    fn names_outlive_a_torn_end_and_the_oldest_go() {
        let place = tempfile::tempdir().unwrap();
        let (fs, dir) = (FsId(3), InodeNo(1));
        let mut bytes = Vec::new();
        for ino in 10..20u64 {
            encode(&mut bytes, (fs, InodeNo(ino)), dir, format!("file {ino}").as_bytes());
        }
        append(place.path(), &bytes).unwrap();
        append(place.path(), &bytes[..HEAD + 3]).unwrap();
        cut(place.path()).unwrap();
        append(place.path(), &bytes[..bytes.len() / 10]).unwrap();
        let kept = fs::read(place.path().join(FILE)).unwrap();
        assert_eq!(kept.len(), bytes.len() / 10 * 11);

        let mut last = LastNames::default();
        last.read(&kept);
        assert_eq!(last.names[&(fs, InodeNo(19))], (dir, b"file 19".to_vec()));
        assert_eq!((last.names.len(), last.order.len()), (10, 10));
        for ino in 0..NAMES_MAX as u64 {
            last.note((fs, InodeNo(1000 + ino)), dir, b"x");
        }
        assert!(!last.names.contains_key(&(fs, InodeNo(19))));
        assert_eq!((last.names.len(), last.order.len()), (NAMES_MAX, NAMES_MAX));

        // Whatever a byte is changed to: what is read was written.
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x41;
            let mut last = LastNames::default();
            last.read(&changed);
            assert!(last.names.len() < 10 && last.names.values().all(|(_, name)| name.starts_with(b"file ")));
        }
    }
}
