//! The client for programs that have threads instead of a runtime: paths and plain calls, each of which
//! returns when it is done. Deadlines and errors are those of [`Client`]: no call waits longer than the
//! client's deadline without progress.
//!
//! Paths are followed from the file system's root by names only: no symbolic links, no "..".

use std::{os::unix::ffi::OsStrExt, path::Path};

use base::InodeNo;
use bytes::Bytes;
use tokio::runtime::Handle as Runtime;
use wire::mgr::{Attr, FileKind};

use crate::{Access, Client, Errno, Handle, OpenFlags, ReadData};

/// A file system for threads. Clones are the same one.
///
/// ```no_run
/// # fn example(client: client::Client, runtime: &tokio::runtime::Runtime) -> Result<(), client::Errno> {
/// let fs = client::blocking::FileSystem::new(client, runtime.handle().clone());
/// let flags = client::OpenFlags { read: true, write: true, ..Default::default() };
/// let file = fs.create("/data/table".as_ref(), 0o644, flags)?;
/// file.write_at(0, b"rows")?;
/// file.sync(false)?;
/// assert_eq!(file.read_at(0, 4)?.to_vec(), b"rows");
/// file.close()
/// # }
/// ```
#[derive(Clone)]
pub struct FileSystem {
    client: Client,
    runtime: Runtime,
}

impl FileSystem {
    /// The blocking side of `client`. `runtime` is the one that drives its background work, with several
    /// threads; calls must come from other threads than those.
    pub fn new(client: Client, runtime: Runtime) -> FileSystem {
        FileSystem { client, runtime }
    }

    /// The asynchronous side.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Attributes of what a path leads to.
    pub fn lookup(&self, path: &Path) -> Result<Attr, Errno> {
        self.runtime.block_on(self.walk(path))
    }

    /// Opens a file that exists.
    pub fn open(&self, path: &Path, flags: OpenFlags) -> Result<File, Errno> {
        self.runtime.block_on(async {
            let ino = self.walk(path).await?.ino;
            self.opened(ino, flags).await
        })
    }

    /// Opens a file, made with this mode for user and group 0 if it is not there.
    pub fn create(&self, path: &Path, mode: u16, flags: OpenFlags) -> Result<File, Errno> {
        let (parent, name) = split(path)?;
        self.runtime.block_on(async {
            let parent = self.walk(parent).await?.ino;
            let made = self.client.create(parent, name, FileKind::File, mode, 0, 0, 0, b"", true).await?;
            self.opened(made.0.ino, flags).await
        })
    }

    /// Removes a file's name.
    pub fn remove(&self, path: &Path) -> Result<(), Errno> {
        let (parent, name) = split(path)?;
        self.runtime.block_on(async {
            let parent = self.walk(parent).await?.ino;
            self.client.unlink(parent, name, false).await
        })
    }

    async fn walk(&self, path: &Path) -> Result<Attr, Errno> {
        let mut attr = self.client.getattr(self.client.session().root).await?;
        for name in path.as_os_str().as_bytes().split(|&b| b == b'/') {
            if !name.is_empty() && name != b"." {
                attr = self.client.lookup(attr.ino, name).await?;
            }
        }
        Ok(attr)
    }

    async fn opened(&self, ino: InodeNo, flags: OpenFlags) -> Result<File, Errno> {
        let handle = self.client.open(ino, flags).await?;
        Ok(File { fs: self.clone(), ino, handle })
    }
}

fn split(path: &Path) -> Result<(&Path, &[u8]), Errno> {
    let name = path.file_name().ok_or(Errno::EINVAL)?;
    Ok((path.parent().unwrap_or(Path::new("")), name.as_bytes()))
}

/// An open file. Dropped without [`File::close`], it is closed all the same, and an error of writing
/// behind that nobody asked for is lost to the caller.
pub struct File {
    fs: FileSystem,
    ino: InodeNo,
    handle: Handle,
}

impl File {
    /// Bytes of the file.
    pub fn len(&self) -> Result<u64, Errno> {
        Ok(self.fs.runtime.block_on(self.fs.client.getattr(self.ino))?.size)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> Result<bool, Errno> {
        Ok(self.len()? == 0)
    }

    /// Up to `len` bytes from `offset`, as shared pieces of the page pool; short only at the end.
    pub fn read_at(&self, offset: u64, len: usize) -> Result<ReadData, Errno> {
        self.fs.runtime.block_on(self.fs.client.read(self.handle, offset, len))
    }

    /// Writes at `offset`; returns how much (all, unless an error came after a part).
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.fs.runtime.block_on(self.fs.client.write(self.handle, offset, data))
    }

    /// The same without a copy, if offset and length are multiples of 4 KiB: `data` becomes a page of the pool as it is. Its
    /// memory is kept as long as that, and all of it also for a part.
    pub fn write_shared_at(&self, offset: u64, data: &Bytes) -> Result<usize, Errno> {
        self.fs.runtime.block_on(self.fs.client.write_shared(self.handle, offset, data))
    }

    /// Everything written so far is durable when this returns; reports earlier errors of writing behind.
    pub fn sync(&self, data_only: bool) -> Result<(), Errno> {
        self.fs.runtime.block_on(self.fs.client.fsync_handle(self.handle, data_only))
    }

    /// What the caller knows of the reads to come.
    pub fn advise(&self, access: Access) -> Result<(), Errno> {
        self.fs.client.advise(self.handle, access)
    }

    /// Begins to load bytes that will be read soon.
    pub fn will_need(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.fs.runtime.block_on(self.fs.client.will_need(self.handle, offset, len))
    }

    /// Gives up the file's clean pages in the page pool; returns their bytes.
    pub fn uncache(&self) -> u64 {
        self.fs.client.uncache(self.ino)
    }

    /// Closes; reports an error of writing behind that nobody has been told of.
    pub fn close(self) -> Result<(), Errno> {
        self.fs.runtime.block_on(self.fs.client.flush(self.handle))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.fs.client.release(self.handle);
    }
}
