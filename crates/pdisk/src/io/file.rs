//! A file of a pdisk as the queues know it: number, lane, where it lies. When it is closed the rings are told, or the kernel
//! would keep it open in their tables.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use base::PdiskId;

use super::mapped::Map;

/// Which file of a pdisk a request goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileKind {
    /// `data`
    Data,
    /// `crc`
    Crc,
    /// `log`, wherever it is
    Log,
    /// `index.0`
    Index0,
    /// `index.1`
    Index1,
}

impl FileKind {
    /// By the file's name; the log may have any.
    pub(crate) fn of(path: &Path) -> FileKind {
        match path.file_name().and_then(|n| n.to_str()) {
            Some("data") => FileKind::Data,
            Some("crc") => FileKind::Crc,
            Some("index.0") => FileKind::Index0,
            Some("index.1") => FileKind::Index1,
            _ => FileKind::Log,
        }
    }
}

/// A pdisk that is opened, as the queues know it.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    pub(super) number: u64,
    pub(super) pdisk: PdiskId,
}

/// Whose rings have files registered.
pub(super) trait Rings: Send + Sync {
    /// The file of this number is closed.
    fn forget(&self, file: u64);
}

/// A file that requests go to.
pub(crate) struct IoFile {
    pub file: File,
    pub path: PathBuf,
    /// Names it for the rings; never used again.
    pub(super) number: u64,
    /// Its pdisk's lane in the queues.
    pub(super) lane: u64,
    /// Whose it is; none: it is used on no queue.
    pub(super) pdisk: Option<PdiskId>,
    /// The node whose rings may have it registered.
    home: Option<Weak<dyn Rings>>,
    /// It is on a file system in memory: nothing happens there but a copy.
    pub(super) in_memory: bool,
    /// Made at the first use; `None`: it cannot be had.
    map: OnceLock<Option<Arc<Map>>>,
}

/// What statfs says of a tmpfs.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

impl IoFile {
    /// A file that is used on no queue.
    pub fn new(file: File, path: &Path) -> IoFile {
        IoFile::on(None, file, path)
    }

    /// A file used on the queues of `home`, in its pdisk's lane there.
    pub(super) fn on(home: Option<(Weak<dyn Rings>, Lane)>, file: File, path: &Path) -> IoFile {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let in_memory = rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type == TMPFS);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (home, of) = home.unzip();
        let (lane, pdisk) = (of.map_or(0, |of| of.number), of.map(|of| of.pdisk));
        IoFile { file, path: path.into(), number, lane, pdisk, home, in_memory, map: OnceLock::new() }
    }

    pub(super) fn map(&self) -> Option<&Arc<Map>> {
        let make = || match Map::of(&self.file) {
            Ok(map) => Some(Arc::new(map)),
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "not mapped: reads are copied");
                None
            }
        };
        self.map.get_or_init(make).as_ref()
    }
}

impl Drop for IoFile {
    fn drop(&mut self) {
        if let Some(rings) = self.home.as_ref().and_then(Weak::upgrade) {
            rings.forget(self.number);
        }
    }
}
