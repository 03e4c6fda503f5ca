//! The client as the mount calls it.

use base::InodeNo;
use client::{Client, Fallocate};
use wire::mgr::Attr;

use crate::calls::{Calls, Errno, Handle, Listing, NewInode, OpenFlags, ReadData, SetAttrs, StatFs};

fn errno(error: client::Errno) -> Errno {
    Errno(error.0)
}

fn handle(handle: Handle) -> client::Handle {
    client::Handle(handle.0)
}

/// fallocate(2) modes that make sense here.
fn fallocate_mode(mode: u32) -> Result<Fallocate, Errno> {
    let bit = |flag: libc::c_int| mode & flag as u32 != 0;
    let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    let keep_size = bit(libc::FALLOC_FL_KEEP_SIZE);
    match (bit(libc::FALLOC_FL_PUNCH_HOLE), bit(libc::FALLOC_FL_ZERO_RANGE)) {
        _ if mode & !(known as u32) != 0 => Err(Errno(libc::EOPNOTSUPP)),
        (false, false) => Ok(Fallocate::Allocate { keep_size }),
        (true, false) if keep_size => Ok(Fallocate::PunchHole),
        (false, true) => Ok(Fallocate::ZeroRange { keep_size }),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

impl Calls for Client {
    async fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        Client::lookup(self, parent, name).await.map_err(errno)
    }
    async fn getattr(&self, ino: InodeNo) -> Result<Attr, Errno> {
        Client::getattr(self, ino).await.map_err(errno)
    }
    async fn setattr(&self, ino: InodeNo, set: SetAttrs) -> Result<Attr, Errno> {
        let SetAttrs { mode, uid, gid, size, atime, mtime } = set;
        let set = client::SetAttrs { mode, uid, gid, size, atime, mtime, ctime: None };
        Client::setattr(self, ino, set).await.map_err(errno)
    }
    async fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>, Errno> {
        Client::readlink(self, ino).await.map_err(errno)
    }
    async fn create(&self, parent: InodeNo, name: &[u8], new: NewInode) -> Result<(Attr, bool), Errno> {
        let NewInode { kind, mode, uid, gid, rdev, target, existing_ok } = new;
        Client::create(self, parent, name, kind, mode, uid, gid, rdev, &target, existing_ok).await.map_err(errno)
    }
    async fn link(&self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        Client::link(self, ino, parent, name).await.map_err(errno)
    }
    async fn unlink(&self, parent: InodeNo, name: &[u8], directory: bool) -> Result<(), Errno> {
        Client::unlink(self, parent, name, directory).await.map_err(errno)
    }
    async fn rename(
        &self,
        parent: InodeNo,
        name: &[u8],
        new_parent: InodeNo,
        new_name: &[u8],
        no_replace: bool,
        exchange: bool,
    ) -> Result<(), Errno> {
        Client::rename(self, parent, name, new_parent, new_name, no_replace, exchange).await.map_err(errno)
    }
    async fn open(&self, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        let OpenFlags { read, write, append, direct, sync, dsync, truncate } = flags;
        let flags = client::OpenFlags { read, write, append, direct, sync, dsync, truncate };
        Client::open(self, ino, flags).await.map(|h| Handle(h.0)).map_err(errno)
    }
    async fn release(&self, h: Handle) -> Result<(), Errno> {
        Client::release(self, handle(h));
        Ok(())
    }
    async fn read(&self, h: Handle, offset: u64, len: u32) -> Result<ReadData, Errno> {
        if let Some(data) = self.try_read_cached(handle(h), offset, len as usize) {
            return Ok(data.into_pieces());
        }
        Client::read(self, handle(h), offset, len as usize).await.map(client::ReadData::into_pieces).map_err(errno)
    }
    async fn write(&self, h: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        Client::write(self, handle(h), offset, data).await.map_err(errno)
    }
    async fn flush(&self, h: Handle) -> Result<(), Errno> {
        Client::flush(self, handle(h)).await.map_err(errno)
    }
    async fn fsync(&self, ino: InodeNo, datasync: bool) -> Result<(), Errno> {
        Client::fsync(self, ino, datasync).await.map_err(errno)
    }
    async fn fallocate(&self, h: Handle, mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
        Client::fallocate(self, handle(h), fallocate_mode(mode)?, offset, len).await.map_err(errno)
    }
    async fn seek_data(&self, h: Handle, offset: u64) -> Result<u64, Errno> {
        Client::seek_data(self, handle(h), offset).await.map_err(errno)
    }
    async fn seek_hole(&self, h: Handle, offset: u64) -> Result<u64, Errno> {
        Client::seek_hole(self, handle(h), offset).await.map_err(errno)
    }
    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        Client::copy_range(self, handle(from), from_offset, handle(to), to_offset, len).await.map_err(errno)
    }
    async fn readdir(&self, ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> Result<Listing, Errno> {
        let listing = Client::readdir(self, ino, cookie, limit, plus).await.map_err(errno)?;
        Ok(Listing { entries: listing.entries, end: listing.end, parent: listing.parent })
    }
    async fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        Client::getxattr(self, ino, name).await.map_err(errno)
    }
    async fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>, Errno> {
        Client::listxattr(self, ino).await.map_err(errno)
    }
    async fn setxattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<(), Errno> {
        Client::setxattr(self, ino, name, value, create, replace).await.map_err(errno)
    }
    async fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<(), Errno> {
        Client::removexattr(self, ino, name).await.map_err(errno)
    }
    async fn statfs(&self) -> Result<StatFs, Errno> {
        let stat = Client::statfs(self).await.map_err(errno)?;
        Ok(StatFs { total: stat.total, free: stat.free, inodes: stat.inodes })
    }
    async fn sync_all(&self) -> Result<(), Errno> {
        Client::sync_all(self).await.map_err(errno)
    }
    fn forget(&self, ino: InodeNo, n: u64) {
        Client::forget(self, ino, n);
    }
}
