//! One disk, through the file system it carries: sequential, O_DIRECT, 1 MiB a transfer, several in flight.
//! The test file has no name from its first moment on, so nothing remains of it, whatever ends the process.
//! Where O_DIRECT is refused the page cache takes part, and the result says so.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use base::{AlignedBuf, ByteSize};
use serde::Serialize;

use super::rate::{CeilingError, Part, Rate, TRANSFER_BYTES, joined, timed};

/// The largest test file.
pub const DISK_BYTES_MAX: u64 = 64 << 30;
/// After this time a measurement ends with what it has moved.
pub const DISK_TIME_MAX: Duration = Duration::from_secs(60);

/// Transfers in flight, one thread each.
const IN_FLIGHT: usize = 8;
const TRANSFER: u64 = TRANSFER_BYTES as u64;

/// A disk's rate.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct DiskRate {
    /// What was moved. Written bytes are on the disk: the final fdatasync is inside the time.
    pub rate: Rate,
    /// Whether it was moved with O_DIRECT; otherwise the page cache took part.
    pub direct: bool,
}

/// Writes `bytes` (rounded up to 1 MiB) in directory `dir`. Space is allocated before the clock starts, as
/// pdisks do it.
pub fn disk_write(dir: &Path, bytes: u64) -> Result<DiskRate, CeilingError> {
    let file = TestFile::create(dir, bytes)?;
    file.write()
}

/// Reads `bytes` (rounded up to 1 MiB) that were written in directory `dir` just before.
pub fn disk_read(dir: &Path, bytes: u64) -> Result<DiskRate, CeilingError> {
    disk(dir, bytes).map(|(_, read)| read)
}

/// Writes `bytes` in directory `dir` and reads them: (write, read).
pub fn disk(dir: &Path, bytes: u64) -> Result<(DiskRate, DiskRate), CeilingError> {
    let file = TestFile::create(dir, bytes)?;
    let write = file.write()?;
    let read = file.read(write.rate.bytes)?;
    Ok((write, read))
}

struct TestFile<'a> {
    dir: &'a Path,
    file: File,
    bytes: u64,
    direct: bool,
}

impl<'a> TestFile<'a> {
    fn create(dir: &'a Path, bytes: u64) -> Result<TestFile<'a>, CeilingError> {
        if bytes == 0 || bytes > DISK_BYTES_MAX {
            return Err(CeilingError::BadParameter {
                name: "bytes",
                value: ByteSize(bytes).to_string(),
                allowed: format!("1 to {}", ByteSize(DISK_BYTES_MAX)),
            });
        }
        let bytes = bytes.next_multiple_of(TRANSFER);
        let failed = |action| move |source| CeilingError::Disk { dir: dir.to_owned(), action, source };
        let space = rustix::fs::statvfs(dir).map_err(|e| failed("look for free space")(e.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if bytes > free {
            return Err(CeilingError::NoSpace {
                dir: dir.to_owned(),
                need: ByteSize(bytes),
                free: ByteSize(free),
            });
        }
        let (file, direct) = nameless(dir).map_err(failed("create a test file"))?;
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(failed("allocate the test file")(error.into())),
        }
        Ok(TestFile { dir, file, bytes, direct })
    }

    fn write(&self) -> Result<DiskRate, CeilingError> {
        let start = Instant::now();
        let mut rate = self.move_all("write the test file", start, self.bytes, |buffer, offset| {
            // No two transfers are the same, for disks that look for that.
            buffer[..8].copy_from_slice(&offset.to_le_bytes());
            self.file.write_all_at(buffer, offset)
        })?;
        let flush =
            timed(|| self.file.sync_data().map(|()| 0)).map_err(|e| self.failed("flush the test file", e))?;
        rate.elapsed_seconds = (flush.ended - start).as_secs_f64();
        rate.cpu_seconds += flush.cpu_seconds;
        Ok(DiskRate { rate, direct: self.direct })
    }

    fn read(&self, bytes: u64) -> Result<DiskRate, CeilingError> {
        let rate = self.move_all("read the test file", Instant::now(), bytes, |buffer, offset| {
            self.file.read_exact_at(buffer, offset)?;
            if buffer[..8] != offset.to_le_bytes() {
                return Err(io::Error::other(format!(
                    "the disk returned other bytes than were written at {offset}"
                )));
            }
            Ok(())
        })?;
        Ok(DiskRate { rate, direct: self.direct })
    }

    /// Calls `transfer` for every 1 MiB of `bytes`, in order, IN_FLIGHT at once.
    fn move_all(
        &self,
        action: &'static str,
        start: Instant,
        bytes: u64,
        transfer: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
    ) -> Result<Rate, CeilingError> {
        let next = &AtomicU64::new(0);
        let transfer = &transfer;
        let parts = thread::scope(|scope| {
            let work = move || {
                let mut buffer = noise();
                timed(|| {
                    let mut moved = 0;
                    while start.elapsed() < DISK_TIME_MAX {
                        let offset = next.fetch_add(TRANSFER, Relaxed);
                        if offset >= bytes {
                            break;
                        }
                        transfer(&mut buffer, offset)?;
                        moved += TRANSFER;
                    }
                    Ok(moved)
                })
            };
            let threads: Vec<_> = (0..IN_FLIGHT).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(joined).collect::<Vec<io::Result<Part>>>()
        });
        let parts = parts.into_iter().collect::<io::Result<Vec<_>>>().map_err(|e| self.failed(action, e))?;
        let end = parts.iter().map(|part| part.ended).max().unwrap_or(start);
        Ok(Rate {
            bytes: parts.iter().map(|part| part.bytes).sum(),
            elapsed_seconds: (end - start).as_secs_f64(),
            cpu_seconds: parts.iter().map(|part| part.cpu_seconds).sum(),
        })
    }

    fn failed(&self, action: &'static str, source: io::Error) -> CeilingError {
        CeilingError::Disk { dir: self.dir.to_owned(), action, source }
    }
}

/// A new file in `dir` whose name is removed at once, and whether it is O_DIRECT.
fn nameless(dir: &Path) -> io::Result<(File, bool)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!(".ropewalk-ceiling-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = dir.join(name);
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(flags);
        options.open(&path)
    };
    let (file, direct) = match open(libc::O_DIRECT) {
        Ok(file) => (Ok(file), true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // Some file systems have made the file when they refuse the flag.
            let _ = fs::remove_file(&path);
            (open(0), false)
        }
        Err(error) => (Err(error), false),
    };
    let file = file?;
    fs::remove_file(&path)?;
    Ok((file, direct))
}

/// One transfer's buffer, filled with what does not compress.
fn noise() -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(TRANSFER_BYTES);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for word in buffer.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_and_reads_all_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = 20 * TRANSFER - 5;
        let (write, read) = disk(dir.path(), bytes).unwrap();
        assert_eq!((write.rate.bytes, read.rate.bytes), (20 * TRANSFER, 20 * TRANSFER));
        assert!(write.rate.elapsed_seconds > 0.0 && read.rate.elapsed_seconds > 0.0);
        assert_eq!(disk_write(dir.path(), 1).unwrap().rate.bytes, TRANSFER);
        assert_eq!(disk_read(dir.path(), 1).unwrap().rate.bytes, TRANSFER);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let json = serde_json::to_string(&write).unwrap();
        assert!(json.contains("\"bytes\":20971520") && json.contains("\"direct\":"), "{json}");
    }

    #[test]
    fn the_file_has_no_name_while_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = TestFile::create(dir.path(), 1).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(file.write().unwrap().rate.bytes, TRANSFER);
    }

    #[test]
    fn errors_name_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error = disk_write(&missing, 1).unwrap_err().to_string();
        assert!(error.contains(missing.to_str().unwrap()), "{error}");
        let error = disk_read(&missing, 1).unwrap_err().to_string();
        assert!(error.contains(missing.to_str().unwrap()), "{error}");
        assert!(disk_write(dir.path(), 0).is_err() && disk_write(dir.path(), DISK_BYTES_MAX + 1).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_not_written_is_not_a_reading() {
        let dir = tempfile::tempdir().unwrap();
        let file = TestFile::create(dir.path(), 2 * TRANSFER).unwrap();
        file.write().unwrap();
        file.file.write_all_at(&AlignedBuf::zeroed(4096), TRANSFER).unwrap();
        assert!(matches!(
            file.read(2 * TRANSFER),
            Err(CeilingError::Disk { action: "read the test file", .. })
        ));
    }
}
