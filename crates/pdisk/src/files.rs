//! The files of a pdisk: names, the label that says whose they are, making and opening them.
//! The label gets its name last when a pdisk is made, so that a directory is a pdisk as a whole or not. It is written first:
//! what an interrupted run made, its log in another directory as well, is known by it (`unfinished.rs`).
//!
//! Label, 4096 bytes (docs/format-pdisk.md "Label"); the same bytes open the log file:
//! ```text
//! 0 "RWPDISK1"  8 u16 format  10 u16 0  12 u32 unit bytes  16 cluster[16]  32 u32 pdisk  36 u32 0
//! 40 uuid[16]  56 u64 data units  64 u64 log bytes (ring)  72 u16 n, n bytes log directory (0: here)
//! 4092 u32 CRC-32C of bytes 0..4092
//! ```

use std::{
    fs::{DirBuilder, File, OpenOptions as FileOptions},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{DirBuilderExt, FileExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use base::{
    AlignedBuf, ClusterId, PdiskId,
    units::{MIB, UNIT},
};
use parking_lot::Mutex;
use wire::crc::crc32c;

use crate::{
    checkpoint::{PAGE, PAGE_USED},
    codec::{FORMAT, Reader, Writer},
    crcmap::ENTRIES_PER_PAGE,
    error::PdiskError,
    io::{IoFile, IoNode, Lane},
    lock::{LOCK, Lock, release_file, take_file, take_lock},
    log::LOG_RING,
    options::{CreateOptions, OpenOptions},
};

const MAGIC: &[u8; 8] = b"RWPDISK1";
const LABEL: &str = "label";
pub(crate) const LABEL_NEW: &str = "label.new";

/// Whose pdisk this is and how its files are laid out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub cluster: ClusterId,
    pub pdisk: PdiskId,
    pub uuid: [u8; 16],
    pub units: u64,
    pub log_bytes: u64,
    pub log_dir: Option<PathBuf>,
}

impl Label {
    pub fn encode(&self) -> AlignedBuf {
        let mut out = Vec::with_capacity(UNIT);
        let mut w = Writer(&mut out);
        w.bytes(MAGIC);
        w.u16(FORMAT);
        w.u16(0);
        w.u32(UNIT as u32);
        w.bytes(&self.cluster.0.to_le_bytes());
        w.u32(self.pdisk.0);
        w.u32(0);
        w.bytes(&self.uuid);
        w.u64(self.units);
        w.u64(self.log_bytes);
        let dir = self.log_dir.as_ref().map_or(&b""[..], |d| d.as_os_str().as_bytes());
        w.len(dir.len());
        w.bytes(dir);
        let mut buf = AlignedBuf::zeroed(UNIT);
        buf[..out.len()].copy_from_slice(&out);
        let crc = crc32c(&buf[..UNIT - 4]);
        buf[UNIT - 4..].copy_from_slice(&crc.to_le_bytes());
        buf
    }

    pub fn decode(bytes: &[u8], path: &Path) -> Result<Label, PdiskError> {
        let damaged = |what: &str| PdiskError::damaged(path, what);
        if bytes.len() != UNIT {
            return Err(damaged("the label has not 4096 bytes"));
        }
        if &bytes[..8] != MAGIC {
            return Err(damaged("no pdisk label"));
        }
        let found = u16::from_le_bytes([bytes[8], bytes[9]]);
        let crc = u32::from_le_bytes([bytes[UNIT - 4], bytes[UNIT - 3], bytes[UNIT - 2], bytes[UNIT - 1]]);
        if crc32c(&bytes[..UNIT - 4]) != crc {
            return Err(damaged("the label's CRC does not match"));
        }
        if found != FORMAT {
            return Err(PdiskError::Format { path: path.into(), found, supported: FORMAT });
        }
        let mut r = Reader(&bytes[12..UNIT - 4]);
        let parse = |r: &mut Reader<'_>| {
            let unit = r.u32()?;
            let cluster = ClusterId(u128::from_le_bytes(r.array()?));
            let pdisk = PdiskId(r.u32()?);
            r.u32()?;
            let (uuid, units, log_bytes) = (r.array()?, r.u64()?, r.u64()?);
            let n = r.u16()?;
            let dir = r.take(n.into())?;
            let log_dir =
                (!dir.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(dir.to_vec())));
            Ok((unit, Label { cluster, pdisk, uuid, units, log_bytes, log_dir }))
        };
        let (unit, label) = parse(&mut r).map_err(|_: crate::codec::Malformed| damaged("label fields"))?;
        let sane = unit as usize == UNIT
            && (1..=crate::extent::UNITS_MAX).contains(&label.units)
            && label.log_bytes.is_multiple_of(UNIT as u64)
            && label.log_bytes > 0;
        if sane { Ok(label) } else { Err(damaged("label values out of range")) }
    }

    pub fn log_path(&self, dir: &Path, options: Option<&Path>) -> PathBuf {
        match options.or(self.log_dir.as_deref()) {
            None => dir.join("log"),
            Some(log_dir) => {
                let uuid: String = self.uuid.iter().map(|b| format!("{b:02x}")).collect();
                log_dir.join(format!("pdisk-{uuid}.log"))
            }
        }
    }

    /// What is set aside for each index file: the strips of a pdisk that holds strips of 64 KiB, and what the log
    /// leaves pending. More is taken when it is needed.
    pub fn index_reserve(&self) -> u64 {
        index_bytes(self.units * UNIT as u64 / 512 + self.log_bytes / 4)
    }

    pub fn crc_bytes(&self) -> u64 {
        self.units.div_ceil(ENTRIES_PER_PAGE as u64) * UNIT as u64
    }
}

/// The open files of a pdisk. Holds the lock on the directory, and those on the files.
pub(crate) struct Files {
    pub dir: PathBuf,
    pub label: Label,
    pub data: Arc<IoFile>,
    pub crc: Arc<IoFile>,
    pub log: Arc<IoFile>,
    pub index: [Arc<IoFile>; 2],
    /// Bytes set aside for each of them in this life.
    index_room: Mutex<[u64; 2]>,
    lock: Mutex<Option<Lock>>,
}

/// Bytes of an index file with so many bytes of strips.
pub(crate) fn index_bytes(strips: u64) -> u64 {
    UNIT as u64 + strips.div_ceil(PAGE_USED as u64) * PAGE as u64
}

impl Files {
    /// What a new pdisk has set aside for its indexes; one of an older version gets it at its next open.
    pub fn set_aside(&self) {
        for (slot, index) in self.index.iter().enumerate() {
            if let Err(error) = self.make_room(slot, self.label.index_reserve()) {
                // A checkpoint that lacks room says so.
                tracing::warn!(file = %index.path.display(), %error, "no room is set aside");
            }
        }
    }

    /// Sees to it that an index file has room for `bytes` in all. An error changes nothing.
    pub fn make_room(&self, slot: usize, bytes: u64) -> io::Result<()> {
        let mut allocated = self.index_room.lock();
        if allocated[slot] >= bytes {
            return Ok(());
        }
        // Seldom again: an index grows slowly.
        let wanted = (bytes + bytes / 4).max(self.label.index_reserve());
        let file = &self.index[slot].file;
        let made = preallocate(file, wanted).map(|()| wanted);
        let made = made.or_else(|_| preallocate(file, bytes).map(|()| bytes))?;
        allocated[slot] = made;
        Ok(())
    }

    /// All that is written to.
    pub fn written(&self) -> [&Arc<IoFile>; 5] {
        [&self.data, &self.crc, &self.log, &self.index[0], &self.index[1]]
    }

    /// Lets another open have the directory, though this value lives on. Nothing may be under way any more.
    pub fn unlock(&self) {
        if let Some(lock) = self.lock.lock().take() {
            self.written().into_iter().for_each(|file| release_file(file));
            drop(lock); // last: who has it need not wait for the others
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// A directory that only its owner may look into, whatever the umask.
fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Makes the files of a new pdisk. `first_checkpoint` is the content of `index.0`.
pub(crate) fn create(
    dir: &Path,
    options: &CreateOptions,
    first_checkpoint: impl FnOnce(&Label) -> AlignedBuf,
) -> Result<(), PdiskError> {
    let (units, log_bytes) = (options.units()?, options.log_bytes()?);
    make_dir(dir).map_err(PdiskError::io("create", dir))?;
    refuse_used(dir)?;
    let _lock = take_lock(dir)?;
    refuse_used(dir)?;
    let log_dir = match &options.log_dir {
        None => None,
        Some(d) => {
            make_dir(d).map_err(PdiskError::io("create", d))?;
            let full = std::fs::canonicalize(d).map_err(PdiskError::io("resolve", d))?;
            if full.as_os_str().len() > 3000 {
                return Err(PdiskError::BadOption {
                    name: "log_dir length",
                    value: full.as_os_str().len() as u64,
                    rule: "at most 3000 bytes",
                });
            }
            Some(full)
        }
    };
    let uuid = random_uuid()?;
    let label = Label { cluster: options.cluster, pdisk: options.pdisk, uuid, units, log_bytes, log_dir };
    let (new, path) = (dir.join(LABEL_NEW), dir.join(LABEL));
    let mut file = make(&new)?;
    file.write_all(&label.encode()).map_err(PdiskError::io("write", &new))?;
    file.sync_all().map_err(PdiskError::io("flush", &new))?;
    sync_dir(dir)?;

    let log_path = label.log_path(dir, None);
    let log = make(&log_path)?;
    // Zeros, not only space: a file system that converts unwritten extents at the first write would
    // make every flush of the first lap a metadata commit.
    let zeros = vec![0u8; MIB as usize];
    let mut at = 0;
    while at < LOG_RING + log_bytes {
        let n = zeros.len().min((LOG_RING + log_bytes - at) as usize);
        log.write_all_at(&zeros[..n], at).map_err(PdiskError::io("write", &log_path))?;
        at += n as u64;
    }
    log.write_all_at(&label.encode(), 0).map_err(PdiskError::io("write", &log_path))?;
    log.sync_all().map_err(PdiskError::io("flush", &log_path))?;
    if let Some(d) = &label.log_dir {
        sync_dir(d)?;
    }

    for (name, bytes) in [("data", units * UNIT as u64), ("crc", label.crc_bytes())] {
        let path = dir.join(name);
        let file = make(&path)?;
        preallocate(&file, bytes).map_err(PdiskError::io("allocate", &path))?;
        file.sync_all().map_err(PdiskError::io("flush", &path))?;
    }
    for (name, content) in [("index.0", Some(first_checkpoint(&label))), ("index.1", None)] {
        let path = dir.join(name);
        let file = make(&path)?;
        preallocate(&file, label.index_reserve()).map_err(PdiskError::io("allocate", &path))?;
        if let Some(content) = content {
            file.write_all_at(&content, 0).map_err(PdiskError::io("write", &path))?;
        }
        file.sync_all().map_err(PdiskError::io("flush", &path))?;
    }

    sync_dir(dir)?;
    std::fs::rename(&new, &path).map_err(PdiskError::io("rename", &new))?;
    sync_dir(dir)
}

/// Reads the label of a pdisk, without opening it.
pub(crate) fn read_label(dir: &Path) -> Result<Label, PdiskError> {
    let path = dir.join(LABEL);
    let mut bytes = Vec::new();
    match File::open(&path) {
        Ok(f) => f.take(2 * UNIT as u64).read_to_end(&mut bytes).map_err(PdiskError::io("read", &path))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(PdiskError::NoPdisk { dir: dir.into() }),
        Err(e) => return Err(PdiskError::io("open", &path)(e)),
    };
    Label::decode(&bytes, &path)
}

/// Opens the files of a pdisk, which must be the expected one, and locks it.
pub(crate) fn open(dir: &Path, options: &OpenOptions, node: &IoNode) -> Result<Files, PdiskError> {
    let label = read_label(dir)?;
    if (label.cluster, label.pdisk) != (options.cluster, options.pdisk) {
        return Err(PdiskError::WrongPdisk {
            dir: dir.into(),
            found: label.pdisk,
            found_cluster: label.cluster,
            expected: options.pdisk,
            expected_cluster: options.cluster,
        });
    }
    let lock = take_lock(dir)?;
    let until = Instant::now() + options.left_wait;
    let lane = node.lane(options.pdisk);
    let sized = |path: PathBuf, bytes: u64| -> Result<Arc<IoFile>, PdiskError> {
        let file = open_direct(&path, true, Some((node, lane)))?;
        take_file(&file, until)?;
        let found = file.file.metadata().map_err(PdiskError::io("stat", &path))?.len();
        if found < bytes {
            return Err(PdiskError::damaged(path, format!("it has {found} bytes, it must have {bytes}")));
        }
        Ok(Arc::new(file))
    };
    let log_path = label.log_path(dir, options.log_dir.as_deref());
    let log = sized(log_path.clone(), LOG_RING + label.log_bytes)?;
    let mut first = AlignedBuf::zeroed(UNIT);
    log.file.read_exact_at(&mut first, 0).map_err(PdiskError::io("read", &log_path))?;
    if Label::decode(&first, &log_path)?.uuid != label.uuid {
        return Err(PdiskError::damaged(log_path, "it is the log of another pdisk"));
    }
    Ok(Files {
        dir: dir.into(),
        data: sized(dir.join("data"), label.units * UNIT as u64)?,
        crc: sized(dir.join("crc"), label.crc_bytes())?,
        log,
        index: [sized(dir.join("index.0"), 0)?, sized(dir.join("index.1"), 0)?],
        label,
        index_room: Mutex::default(),
        lock: Mutex::new(Some(lock)),
    })
}

pub(crate) fn refuse_used(dir: &Path) -> Result<(), PdiskError> {
    match read_label(dir) {
        Ok(label) => {
            return Err(PdiskError::InUse { dir: dir.into(), pdisk: label.pdisk, cluster: label.cluster });
        }
        Err(PdiskError::NoPdisk { .. }) => {}
        Err(e) => return Err(e),
    }
    for entry in std::fs::read_dir(dir).map_err(PdiskError::io("list", dir))? {
        let name = entry.map_err(PdiskError::io("list", dir))?.file_name();
        if name != LOCK && name != "lost+found" {
            return Err(PdiskError::NotEmpty { dir: dir.into(), found: name.to_string_lossy().into_owned() });
        }
    }
    Ok(())
}

fn make(path: &Path) -> Result<File, PdiskError> {
    FileOptions::new()
        .create_new(true)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(PdiskError::io("create", path))
}

fn preallocate(file: &File, bytes: u64) -> io::Result<()> {
    let len = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: fallocate takes no pointers; the descriptor is open.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    // A file system without fallocate: a sparse file, whose writes may fail for lack of space.
    if e.raw_os_error() != Some(libc::EOPNOTSUPP) {
        return Err(e);
    }
    if file.metadata()?.len() < bytes { file.set_len(bytes) } else { Ok(()) }
}

/// O_DIRECT, or buffered where the file system refuses that.
pub(crate) fn open_direct(
    path: &Path,
    write: bool,
    node: Option<(&IoNode, Lane)>,
) -> Result<IoFile, PdiskError> {
    let open = |flags| FileOptions::new().read(true).write(write).custom_flags(flags).open(path);
    let file = match open(libc::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            tracing::info!(file = %path.display(), "no O_DIRECT here: buffered");
            open(0)
        }
        other => other,
    };
    let file = file.map_err(PdiskError::io("open", path))?;
    Ok(match node {
        Some((node, lane)) => node.file(lane, file, path),
        None => IoFile::new(file, path),
    })
}

pub(crate) fn sync_dir(dir: &Path) -> Result<(), PdiskError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(PdiskError::io("flush", dir))
}

fn random_uuid() -> Result<[u8; 16], PdiskError> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut uuid))
        .map_err(PdiskError::io("read", "/dev/urandom"))?;
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            cluster: ClusterId(0x0102),
            pdisk: PdiskId(7),
            uuid: [9; 16],
            units: 1000,
            log_bytes: 1 << 20,
            log_dir: Some("/x".into()),
        }
    }

    #[test]
    fn golden_label() {
        let bytes = label().encode();
        let hex: String = bytes[..76].iter().map(|b| format!("{b:02x}")).collect();
        let expected = concat!(
            "5257504449534b31",
            "0100",
            "0000",
            "00100000",
            "02010000000000000000000000000000",
            "07000000",
            "00000000",
            "09090909090909090909090909090909",
            "e803000000000000",
            "0000100000000000",
            "0200",
            "2f78",
        );
        assert_eq!(hex, expected);
        assert_eq!(Label::decode(&bytes, Path::new("label")).unwrap(), label());
    }

    #[test]
    fn every_flipped_bit_of_a_label_is_found() {
        let good = label().encode();
        let mut bytes = good.to_vec();
        for bit in (0..80 * 8).chain(4092 * 8..4096 * 8) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Label::decode(&bytes, Path::new("label")).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Labels that are damaged, and yet match their CRC.
    #[test]
    fn changed_labels_are_refused_or_mean_something() {
        let label = Label {
            cluster: ClusterId(1),
            pdisk: PdiskId(2),
            uuid: [9; 16],
            units: 256,
            log_bytes: 1 << 20,
            log_dir: Some("/logs".into()),
        };
        let path = Path::new("label");
        assert_eq!(Label::decode(&label.encode(), path).unwrap(), label);
        crate::mutate::mutated(&[label.encode().to_vec()], 50_000, |bytes| {
            let _ = Label::decode(bytes, path);
            let mut good = bytes.to_vec();
            good.resize(UNIT, 0);
            let crc = crc32c(&good[..UNIT - 4]);
            good[UNIT - 4..].copy_from_slice(&crc.to_le_bytes());
            if let Ok(label) = Label::decode(&good, path) {
                assert_eq!(Label::decode(&label.encode(), path).unwrap(), label);
            }
        });
    }
}
