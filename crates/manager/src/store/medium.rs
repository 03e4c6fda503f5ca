//! Where the journal and the mark are kept: files; in tests media that lose power.

use std::{fs::File, io, os::unix::fs::FileExt as _};

/// A fixed number of bytes that are written in place.
pub trait Medium: Send + Sync {
    /// Bytes there.
    fn size(&self) -> io::Result<u64>;
    /// Fills `out` from `offset`.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes within the size.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything written is durable.
    fn sync(&self) -> io::Result<()>;
}

impl Medium for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
