//! The client as the file system below a mount.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::InodeNo;
use client::Client;
use tokio::sync::Notify;
use wire::{lock::Lock, mgr::Attr};

use crate::calls::{
    Calls, Errno, Fallocate, Handle, KernelCache, Listing, NewInode, OpenFlags, Privileges, ReadData,
    SetAttrs, StatFs, UNCACHE_ATTRIBUTE, WriteFlags,
};

impl Calls for Client {
    fn attach(&self, kernel: Arc<dyn KernelCache>) {
        self.set_kernel(kernel);
    }

    fn is_shared(&self, handle: Handle) -> bool {
        Client::is_shared(self, handle)
    }

    async fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        if name != b"." {
            return Client::lookup(self, parent, name).await;
        }
        let attr = Client::getattr(self, parent).await?;
        if attr.nlink > 0 { Ok(attr) } else { Err(Errno::ENOENT) }
    }

    async fn getattr(&self, ino: InodeNo) -> Result<Attr, Errno> {
        Client::getattr(self, ino).await
    }

    async fn setattr(&self, ino: InodeNo, set: SetAttrs) -> Result<Attr, Errno> {
        Client::setattr(self, ino, set).await
    }

    async fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>, Errno> {
        Client::readlink(self, ino).await
    }

    async fn create(&self, parent: InodeNo, name: &[u8], new: NewInode) -> Result<(Attr, bool), Errno> {
        let NewInode { kind, mode, uid, gid, rdev, target, existing_ok } = new;
        Client::create(self, parent, name, kind, mode, uid, gid, rdev, &target, existing_ok).await
    }

    async fn create_unnamed(
        &self,
        parent: InodeNo,
        new: NewInode,
        linkable: bool,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle), Errno> {
        Client::create_unnamed(self, parent, new.mode, new.uid, new.gid, linkable, flags).await
    }

    async fn link(&self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        Client::link(self, ino, parent, name).await
    }

    async fn unlink(&self, parent: InodeNo, name: &[u8], directory: bool) -> Result<(), Errno> {
        Client::unlink(self, parent, name, directory).await
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
        Client::rename(self, parent, name, new_parent, new_name, no_replace, exchange).await
    }

    async fn open(&self, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        Client::open(self, ino, flags).await
    }

    fn release(&self, handle: Handle) {
        Client::release(self, handle);
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<ReadData, Errno> {
        // What is in memory is there at the first poll. The pieces are shared, not copied.
        Ok(Client::read(self, handle, offset, len as usize).await?.into_pieces())
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        privileges: Privileges,
    ) -> Result<usize, Errno> {
        Client::write_with(self, handle, offset, data, flags, privileges).await
    }

    async fn write_page(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        Client::write_page(self, handle, offset, data).await
    }

    async fn flush(&self, handle: Handle) -> Result<(), Errno> {
        Client::flush(self, handle).await
    }

    fn keeps_locks(&self) -> bool {
        true
    }

    async fn lock(&self, handle: Handle, lock: Lock, interrupted: Option<Arc<Notify>>) -> Result<(), Errno> {
        Client::lock(self, handle, lock, interrupted).await
    }

    async fn test_lock(&self, ino: InodeNo, lock: Lock) -> Result<Option<Lock>, Errno> {
        Client::test_lock(self, ino, lock).await
    }

    async fn drop_locks(&self, ino: InodeNo, owner: u64) {
        Client::drop_locks(self, ino, owner).await;
    }

    async fn fsync(&self, ino: InodeNo, handle: Option<Handle>, datasync: bool) -> Result<(), Errno> {
        match handle {
            Some(handle) => self.fsync_handle(handle, datasync).await,
            None => Client::fsync(self, ino, datasync).await,
        }
    }

    async fn fallocate(
        &self,
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<(), Errno> {
        Client::fallocate(self, handle, mode, offset, len, privileges).await
    }

    async fn seek_data(&self, handle: Handle, offset: u64) -> Result<u64, Errno> {
        Client::seek_data(self, handle, offset).await
    }

    async fn seek_hole(&self, handle: Handle, offset: u64) -> Result<u64, Errno> {
        Client::seek_hole(self, handle, offset).await
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<u64, Errno> {
        Client::copy_range(self, from, from_offset, to, to_offset, len, privileges).await
    }

    async fn readdir(&self, ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> Result<Listing, Errno> {
        Client::readdir(self, ino, cookie, limit, plus).await
    }

    async fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        Client::getxattr(self, ino, name).await
    }

    async fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>, Errno> {
        Client::listxattr(self, ino).await
    }

    async fn setxattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<(), Errno> {
        if name == UNCACHE_ATTRIBUTE {
            self.uncache(ino);
            return Ok(());
        }
        Client::setxattr(self, ino, name, value, create, replace).await
    }

    async fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<(), Errno> {
        Client::removexattr(self, ino, name).await
    }

    async fn statfs(&self) -> Result<StatFs, Errno> {
        let client::StatFs { total, free, inodes, .. } = Client::statfs(self).await?;
        Ok(StatFs { total, free, inodes })
    }

    async fn sync_all(&self) -> Result<(), Errno> {
        Client::sync_all(self).await
    }

    async fn sync_until(&self, deadline: Instant) -> Result<(), Errno> {
        Client::sync_until(self, deadline).await
    }

    fn attr_ttl(&self, attr: &Attr) -> Duration {
        Client::attr_ttl(self, attr)
    }

    fn forget(&self, ino: InodeNo, n: u64) {
        Client::forget(self, ino, n);
    }
}
