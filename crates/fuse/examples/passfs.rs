//! The ceiling of the mount's transport: a mount that hands reads and writes on to the files of one
//! directory (on tmpfs, say) and does nothing else. Files of that directory only, no subdirectories.
//! `ROPEWALK_FUSE_TRANSPORT=uring passfs /dev/shm/files /mnt/pass`, until unmounted or told to end.
#![allow(clippy::print_stderr)] // a program

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::{ffi::OsStrExt, fs::FileExt, fs::MetadataExt},
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use base::{BufPool, InodeNo};
use fuse::{
    Caching, Mount, MountOptions,
    calls::{
        Calls, Errno, Fallocate, Handle, Listing, NewInode, OpenFlags, Privileges, ReadData, SetAttrs,
        StatFs, WriteFlags,
    },
};
use tokio::signal::unix::{SignalKind, signal};
use wire::mgr::{Attr, DirEntry, FileKind, Timestamp};

struct Pass {
    dir: PathBuf,
    table: RwLock<Table>,
    buffers: BufPool,
}

#[derive(Default)]
struct Table {
    names: HashMap<u64, Vec<u8>>,
    files: HashMap<u64, Arc<File>>,
    next: u64,
}

fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

const NONE: Errno = Errno(libc::ENOSYS);

impl Pass {
    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(|e| e.into_inner())
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(|e| e.into_inner())
    }

    fn path(&self, name: &[u8]) -> PathBuf {
        self.dir.join(std::ffi::OsStr::from_bytes(name))
    }

    /// The inode number of a file is its number below; the root's is 1.
    fn attr(&self, name: &[u8]) -> Result<Attr, Errno> {
        let root = name.is_empty();
        let meta = fs::symlink_metadata(self.path(name)).map_err(errno)?;
        if !root && !meta.is_file() {
            return Err(Errno::ENOENT);
        }
        let ino = if root { InodeNo::ROOT.0 } else { meta.ino() + 1 };
        if !root {
            self.table_mut().names.insert(ino, name.to_vec());
        }
        let time = |secs: i64| Timestamp { secs, nanos: 0 };
        Ok(Attr {
            ino: InodeNo(ino),
            kind: if root { FileKind::Directory } else { FileKind::File },
            mode: (meta.mode() & 0o7777) as u16,
            nlink: meta.nlink() as u32,
            size: meta.len(),
            stored: meta.blocks() * 512,
            block_size: 1 << 20,
            atime: time(meta.atime()),
            mtime: time(meta.mtime()),
            ctime: time(meta.ctime()),
            ..Attr::default()
        })
    }

    fn name(&self, ino: InodeNo) -> Result<Vec<u8>, Errno> {
        if ino == InodeNo::ROOT {
            return Ok(Vec::new());
        }
        self.table().names.get(&ino.0).cloned().ok_or(Errno::ENOENT)
    }

    fn file(&self, handle: Handle) -> Result<Arc<File>, Errno> {
        self.table().files.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }
}

impl Calls for Pass {
    async fn lookup(&self, _parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        self.attr(name)
    }
    async fn getattr(&self, ino: InodeNo) -> Result<Attr, Errno> {
        self.attr(&self.name(ino)?)
    }
    async fn setattr(&self, ino: InodeNo, set: SetAttrs) -> Result<Attr, Errno> {
        let name = self.name(ino)?;
        if let Some(size) = set.size {
            let file = File::options().write(true).open(self.path(&name)).map_err(errno)?;
            file.set_len(size).map_err(errno)?;
        }
        self.attr(&name)
    }
    async fn readlink(&self, _ino: InodeNo) -> Result<Vec<u8>, Errno> {
        Err(NONE)
    }
    async fn create(&self, _parent: InodeNo, name: &[u8], new: NewInode) -> Result<(Attr, bool), Errno> {
        if new.kind != FileKind::File {
            return Err(Errno(libc::EPERM));
        }
        let there = self.path(name).exists();
        if there && !new.existing_ok {
            return Err(Errno(libc::EEXIST));
        }
        File::options().create(true).append(true).open(self.path(name)).map_err(errno)?;
        Ok((self.attr(name)?, !there))
    }
    async fn link(&self, _ino: InodeNo, _parent: InodeNo, _name: &[u8]) -> Result<Attr, Errno> {
        Err(NONE)
    }
    async fn unlink(&self, _parent: InodeNo, name: &[u8], _directory: bool) -> Result<(), Errno> {
        fs::remove_file(self.path(name)).map_err(errno)
    }
    async fn rename(
        &self,
        _parent: InodeNo,
        name: &[u8],
        _new_parent: InodeNo,
        new_name: &[u8],
        _no_replace: bool,
        _exchange: bool,
    ) -> Result<(), Errno> {
        fs::rename(self.path(name), self.path(new_name)).map_err(errno)
    }
    async fn open(&self, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        let path = self.path(&self.name(ino)?);
        let file = File::options().read(true).write(flags.write).open(path).map_err(errno)?;
        if flags.truncate {
            file.set_len(0).map_err(errno)?;
        }
        let mut table = self.table_mut();
        table.next += 1;
        let number = table.next;
        table.files.insert(number, Arc::new(file));
        Ok(Handle(number))
    }
    fn release(&self, handle: Handle) {
        self.table_mut().files.remove(&handle.0);
    }
    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<ReadData, Errno> {
        let file = self.file(handle)?;
        let mut buffer = self.buffers.get(len as usize);
        let got = file.read_at(&mut buffer, offset).map_err(errno)?;
        buffer.set_len(got);
        Ok(vec![buffer.freeze()])
    }
    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: Privileges,
    ) -> Result<usize, Errno> {
        self.write_page(handle, offset, data).await
    }
    async fn write_page(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.file(handle)?.write_all_at(data, offset).map_err(errno)?;
        Ok(data.len())
    }
    async fn flush(&self, _handle: Handle) -> Result<(), Errno> {
        Ok(())
    }
    async fn fsync(&self, _ino: InodeNo, handle: Option<Handle>, _datasync: bool) -> Result<(), Errno> {
        handle.map_or(Ok(()), |handle| self.file(handle)?.sync_data().map_err(errno))
    }
    async fn fallocate(
        &self,
        _h: Handle,
        _mode: Fallocate,
        _offset: u64,
        _len: u64,
        _: Privileges,
    ) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    async fn seek_data(&self, _handle: Handle, _offset: u64) -> Result<u64, Errno> {
        Err(NONE)
    }
    async fn seek_hole(&self, _handle: Handle, _offset: u64) -> Result<u64, Errno> {
        Err(NONE)
    }
    async fn copy_range(
        &self,
        _f: Handle,
        _fo: u64,
        _t: Handle,
        _to: u64,
        _len: u64,
        _: Privileges,
    ) -> Result<u64, Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    async fn readdir(&self, _ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> Result<Listing, Errno> {
        let mut entries = Vec::new();
        for (i, entry) in fs::read_dir(&self.dir).map_err(errno)?.flatten().enumerate() {
            let name = entry.file_name().as_bytes().to_vec();
            let Ok(attr) = self.attr(&name) else { continue };
            if i as u64 >= cookie && (entries.len() as u32) < limit {
                let (ino, kind) = (attr.ino, attr.kind);
                let attr = plus.then_some(attr);
                entries.push(DirEntry { name, ino, kind, cookie: i as u64 + 1, attr });
            }
        }
        let end = (entries.len() as u32) < limit;
        Ok(Listing { entries, end, parent: InodeNo::ROOT })
    }
    async fn getxattr(&self, _ino: InodeNo, _name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(NONE)
    }
    async fn listxattr(&self, _ino: InodeNo) -> Result<Vec<Vec<u8>>, Errno> {
        Err(NONE)
    }
    async fn setxattr(&self, _i: InodeNo, _n: &[u8], _v: &[u8], _c: bool, _r: bool) -> Result<(), Errno> {
        Err(NONE)
    }
    async fn removexattr(&self, _ino: InodeNo, _name: &[u8]) -> Result<(), Errno> {
        Err(NONE)
    }
    async fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs { total: 1 << 40, free: 1 << 39, inodes: 1 })
    }
    async fn sync_all(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn forget(&self, _ino: InodeNo, _n: u64) {}
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(dir), Some(mountpoint)) = (args.next(), args.next()) else {
        eprintln!("usage: passfs DIR MOUNTPOINT");
        return ExitCode::from(2);
    };
    let pass = Pass { dir, table: RwLock::default(), buffers: BufPool::new(256 << 20) };
    let mut options = MountOptions { caching: Caching::EXCLUSIVE, ..MountOptions::new(mountpoint, "passfs") };
    if let Ok(transport) = std::env::var("ROPEWALK_FUSE_TRANSPORT") {
        match transport.parse() {
            Ok(transport) => options.transport = transport,
            Err(bad) => {
                eprintln!("passfs: {bad}");
                return ExitCode::from(2);
            }
        }
    }
    let mount = match Mount::start(Arc::new(pass), options) {
        Ok(mount) => mount,
        Err(error) => {
            eprintln!("passfs: {error}");
            return ExitCode::FAILURE;
        }
    };
    eprintln!("mounted on {}, io_uring: {}", mount.path().display(), mount.status().agreed.is_over_uring());
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return ExitCode::FAILURE;
    };
    let end = tokio::select! {
        end = mount.unmounted() => end,
        _ = term.recv() => mount.end_on_signal().await,
        _ = int.recv() => mount.end_on_signal().await,
    };
    if end.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
