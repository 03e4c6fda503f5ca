//! The files of a pdisk that is not in use, opened for reading. Holds the pdisk's lock, so that nobody
//! opens it meanwhile; changes nothing.

use std::{
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    error::PdiskError,
    files::{Label, open_direct, read_label},
    io::IoFile,
    lock::{Lock, take_lock},
    log::{LOG_RING, ReadAt},
    recover::Image,
};

pub(super) struct Plain(pub IoFile);

impl ReadAt for Plain {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.file.read_exact_at(buf, offset)
    }
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.file.metadata()?.len())
    }
}

pub(super) struct Offline {
    pub label: Label,
    pub data: Plain,
    pub log: Plain,
    crc: Plain,
    index: [Plain; 2],
    _lock: Lock,
}

impl Offline {
    /// `log_dir`: where the log is, if not where the label says.
    pub fn open(dir: &Path, log_dir: Option<&Path>) -> Result<Offline, PdiskError> {
        let label = read_label(dir)?;
        let lock = take_lock(dir)?;
        let plain = |path: PathBuf| open_direct(&path, false, None).map(Plain);
        Ok(Offline {
            data: plain(dir.join("data"))?,
            log: plain(label.log_path(dir, log_dir))?,
            crc: plain(dir.join("crc"))?,
            index: [plain(dir.join("index.0"))?, plain(dir.join("index.1"))?],
            label,
            _lock: lock,
        })
    }

    pub fn image(&self) -> Image<'_> {
        fn pair(file: &Plain) -> (&dyn ReadAt, &Path) {
            (file, &file.0.path)
        }
        Image {
            label: &self.label,
            log: pair(&self.log),
            data: &self.data,
            crc: pair(&self.crc),
            index: [pair(&self.index[0]), pair(&self.index[1])],
        }
    }

    /// Files with the size each must have at least.
    pub fn sizes(&self) -> [(&Plain, u64); 3] {
        let label = &self.label;
        [
            (&self.data, label.units * base::units::UNIT as u64),
            (&self.crc, label.crc_bytes()),
            (&self.log, LOG_RING + label.log_bytes),
        ]
    }
}
