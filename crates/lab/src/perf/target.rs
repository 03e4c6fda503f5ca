//! Where a job runs: a file by its path (a mount, or any other file system), or a file of the client
//! library, without FUSE and without the kernel's page cache.

use std::{
    fs, io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use client::{Errno, OpenFlags, blocking};

use super::job::Job;

/// The attribute whose setting makes a ropewalk mount give up what its page pool has of the file.
const UNCACHE_ATTRIBUTE: &str = "ropewalk.uncache";

/// One open file; every thread has its own.
pub trait PerfFile: Send {
    /// Reads a record; `out` need not be filled unless `look`: the bytes are then looked at.
    fn read(&self, offset: u64, out: &mut [u8], look: bool) -> io::Result<usize>;
    /// Writes a record.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<usize>;
    /// Writes a record that is shared with the file, if it takes such: without a copy.
    fn write_shared(&self, offset: u64, data: &Bytes) -> io::Result<usize> {
        self.write(offset, data)
    }
    /// Whether it does.
    fn takes_shared(&self) -> bool {
        false
    }
    /// Makes everything written durable.
    fn sync(&self) -> io::Result<()>;
    /// Gives up what is cached of the file here.
    fn uncache(&self) -> io::Result<()>;
}

/// A place for jobs.
pub trait Target: Sync {
    /// Bytes of the file; `None` if it is not there.
    fn len(&self, path: &Path) -> io::Result<Option<u64>>;
    /// The record length the file system likes.
    fn block_size(&self, path: &Path) -> u64;
    /// Opens the file for the job; with `make` it is made or emptied first.
    fn open(&self, path: &Path, job: &Job, make: bool) -> io::Result<Box<dyn PerfFile>>;
}

/// Files by their path.
pub struct Mounted;

impl Target for Mounted {
    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        match fs::metadata(path) {
            Ok(meta) => Ok(Some(meta.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn block_size(&self, path: &Path) -> u64 {
        let meta = fs::metadata(path).or_else(|_| fs::metadata(path.parent().unwrap_or(Path::new("/"))));
        meta.map_or(1 << 20, |meta| meta.blksize())
    }

    fn open(&self, path: &Path, job: &Job, make: bool) -> io::Result<Box<dyn PerfFile>> {
        let mut flags = 0;
        flags |= if job.spec.direct { libc::O_DIRECT } else { 0 };
        flags |= if job.spec.sync_writes { libc::O_DSYNC } else { 0 };
        let file = fs::OpenOptions::new()
            .read(true)
            .write(job.writes())
            .create(make)
            .truncate(make)
            .custom_flags(flags)
            .open(path)?;
        Ok(Box::new(MountedFile { file, path: path.to_owned() }))
    }
}

struct MountedFile {
    file: fs::File,
    path: PathBuf,
}

impl PerfFile for MountedFile {
    fn read(&self, offset: u64, out: &mut [u8], _look: bool) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(data, offset).map(|()| data.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn uncache(&self) -> io::Result<()> {
        // What is dirty cannot be given up; on a file opened for reading that is nobody's here.
        self.file.sync_all()?;
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)?;
        // Other file systems do not know the attribute: there the kernel's cache is all there is.
        let _ = rustix::fs::setxattr(&self.path, UNCACHE_ATTRIBUTE, &[], rustix::fs::XattrFlags::empty());
        Ok(())
    }
}

/// Files of the client library.
pub struct Direct {
    fs: blocking::FileSystem,
}

impl Direct {
    /// Over a mounted client.
    pub fn new(fs: blocking::FileSystem) -> Direct {
        Direct { fs }
    }
}

fn io_error(Errno(errno): Errno) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Target for Direct {
    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        match self.fs.lookup(path) {
            Ok(attr) => Ok(Some(attr.size)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(io_error(error)),
        }
    }

    fn block_size(&self, path: &Path) -> u64 {
        self.fs.lookup(path).map_or(1 << 20, |attr| u64::from(attr.block_size).max(4096))
    }

    fn open(&self, path: &Path, job: &Job, make: bool) -> io::Result<Box<dyn PerfFile>> {
        let flags = OpenFlags {
            read: true,
            write: job.writes(),
            direct: job.spec.direct,
            dsync: job.spec.sync_writes,
            truncate: make,
            ..OpenFlags::default()
        };
        let file = if make { self.fs.create(path, 0o644, flags) } else { self.fs.open(path, flags) };
        Ok(Box::new(DirectFile { file: file.map_err(io_error)? }))
    }
}

struct DirectFile {
    file: blocking::File,
}

impl PerfFile for DirectFile {
    fn read(&self, offset: u64, out: &mut [u8], look: bool) -> io::Result<usize> {
        // The library gives the pool's own pages: a copy is the caller's affair.
        let data = self.file.read_at(offset, out.len()).map_err(io_error)?;
        if look {
            data.copy_to(out);
        }
        Ok(data.len())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.file.write_at(offset, data).map_err(io_error)
    }

    fn write_shared(&self, offset: u64, data: &Bytes) -> io::Result<usize> {
        self.file.write_shared_at(offset, data).map_err(io_error)
    }

    fn takes_shared(&self) -> bool {
        true
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync(true).map_err(io_error)
    }

    fn uncache(&self) -> io::Result<()> {
        self.file.sync(false).map_err(io_error)?;
        self.file.uncache();
        Ok(())
    }
}
