//! The client of one mounted file system, as FUSE and other users call it.
//!
//! All calls are cancel-safe: who drops a call's future forgets the answer, not the state. Every wait in
//! them, and each call as a whole ([`crate::waits`]), ends after the client's deadline without progress, with `EIO`
//! and an event. A change that the manager has not answered by then goes on ([`crate::changes`]).

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{BufPool, InodeNo};
use bytes::Bytes;
use tokio::sync::Notify;
use wire::{
    lock::Lock,
    mgr::{Attr, Change, FileKind, MgrReply, MgrRequest},
    token::Need,
};

use crate::{
    background,
    calls::{Calls, unexpected},
    config::{MemoryBound, Tunables},
    core::{Core, SessionInfo, now},
    error::Errno,
    files::{
        handle::{Handle, OpenFlags, ReadData, WriteFlags},
        inode::Inode,
        privileges::Privileges,
        set_attrs::SetAttrs,
    },
    names::{
        ahead,
        lookup::{Listing, check_name},
    },
    pages::{piece::Content, resize::Fallocate, streams::Access, usage::PoolUse},
    parts::{Blocks, Manager},
    sharing::{self, kernel::KernelCache},
    waits::Wait,
};

/// A mounted file system. Clones are the same mount.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

/// Capacity and use, as `statfs` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Bytes of file data that fit in all.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes of a block of new files.
    pub block_size: u32,
}

impl Client {
    /// A client over given parts, under a session that is already open. Must be called in a tokio
    /// runtime, which does all background work.
    pub fn with_parts(
        manager: Arc<dyn Manager>,
        blocks: Arc<dyn Blocks>,
        session: SessionInfo,
        tunables: Tunables,
    ) -> Client {
        Client::with_buffers(manager, blocks, session, tunables, BufPool::new(0))
    }

    /// The same with a store of freed buffers that others use too; the client bounds it.
    pub(crate) fn with_buffers(
        manager: Arc<dyn Manager>,
        blocks: Arc<dyn Blocks>,
        session: SessionInfo,
        tunables: Tunables,
        buffers: BufPool,
    ) -> Client {
        sharing::statistics::show();
        let calls = Calls::new(session.fs.id, manager, tunables.deadline, tunables.names_ahead);
        let core = Core::new(calls, blocks, session, tunables, buffers);
        core.runtime.spawn(background::run(Arc::downgrade(&core)));
        if tunables.names_ahead {
            core.runtime.spawn(ahead::tell(Arc::downgrade(&core), core.calls.ahead.clone()));
        }
        Client { core }
    }

    /// Gives the client the way to what the kernel caches of this mount.
    pub fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        self.core.set_kernel(kernel);
    }
    /// Whether the handle was opened while others had the file system mounted.
    pub fn is_shared(&self, handle: Handle) -> bool {
        self.core.file(handle).is_ok_and(|file| file.shared)
    }
    /// How long the kernel, which is about to be told these attributes, may believe them: until [`KernelCache::drop_attr`] takes them away.
    pub fn attr_ttl(&self, attr: &Attr) -> Duration {
        self.core.attr_ttl(attr)
    }
    /// The session.
    pub fn session(&self) -> &SessionInfo {
        &self.core.session
    }
    /// Who waits for what in this client, longest first. What is asked of servers and manager is listed by `net`.
    pub fn waits(&self) -> Vec<Wait> {
        self.core.pool.waits().list()
    }
    /// The most memory this client takes, by parts.
    pub fn memory_bound(&self) -> MemoryBound {
        let block_size = self.core.geometry(self.core.session.fs.pool).map_or(0, |g| g.block_size);
        self.core.live().memory_bound(block_size.into())
    }
    /// Files of which something is neither at the manager nor on the pdisks now, and whether names are: after [`Client::shutdown`] lost.
    pub fn unstored(&self) -> (Vec<InodeNo>, bool) {
        let inodes = self.core.unsettled.all();
        let unsettled = |inode: &&Arc<Inode>| {
            let state = inode.lock();
            state.unsettled() && !state.is_forsaken()
        };
        let left = inodes.iter().filter(unsettled).map(|inode| inode.ino);
        (left.collect(), self.core.calls.ahead.is_untold())
    }
    /// What is in the page pool.
    pub fn pool_use(&self) -> PoolUse {
        self.core.pool.usage()
    }

    // Names.

    /// The inode a name leads to.
    pub async fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        self.core.lookup(parent, name).await
    }

    /// Attributes.
    pub async fn getattr(&self, ino: InodeNo) -> Result<Attr, Errno> {
        self.core.getattr(ino).await
    }

    /// Changes attributes, size included; returns them.
    pub async fn setattr(&self, ino: InodeNo, set: SetAttrs) -> Result<Attr, Errno> {
        self.core.operation("set attributes", Some(ino), pin!(self.core.setattr(ino, set))).await
    }

    /// Target of a symlink.
    pub async fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>, Errno> {
        self.core.bytes("ReadLink", MgrRequest::ReadLink { ino }).await
    }

    /// A new inode under a name; with `existing_ok` a file that is there already. Tells whether it was made.
    #[expect(clippy::too_many_arguments, reason = "what mknod, mkdir, symlink and open have in common")]
    pub async fn create(
        &self,
        parent: InodeNo,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        uid: u32,
        gid: u32,
        rdev: u32,
        target: &[u8],
        existing_ok: bool,
    ) -> Result<(Attr, bool), Errno> {
        check_name(name)?;
        let (core, name, target) = (self.core.clone(), name.to_vec(), target.to_vec());
        let change =
            Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now: now(), existing_ok };
        if let Some(attr) = self.core.create_ahead(&change).await {
            return Ok((attr, true));
        }
        self.core.carry_out(async move { core.create_now(change).await }).await
    }

    /// A new file without a name, opened. Without one it goes with its last handle, or with the session; `linkable`: [`Client::link`]
    /// may give it one, as long as it has had none.
    pub async fn create_unnamed(
        &self,
        parent: InodeNo,
        mode: u16,
        uid: u32,
        gid: u32,
        linkable: bool,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle), Errno> {
        let (core, now) = (self.core.clone(), now());
        let change = Change::CreateUnnamed { parent, mode, uid, gid, now };
        let work = async move { core.create_unnamed_now(change, linkable, flags).await };
        let (attr, opening) = self.core.carry_out(work).await?;
        Ok((attr, opening.handle().ok_or(Errno::ENFILE)?))
    }

    /// Another name for a file, or the first one of a file made without.
    pub async fn link(&self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        check_name(name)?;
        let (core, name) = (self.core.clone(), name.to_vec());
        self.core.carry_out(async move { core.link_now(ino, parent, &name).await }).await
    }

    /// Removes a name: of a file, or with `directory` of an empty directory.
    pub async fn unlink(&self, parent: InodeNo, name: &[u8], directory: bool) -> Result<(), Errno> {
        check_name(name)?;
        if self.core.unlink_ahead(parent, name, directory).await {
            return Ok(());
        }
        let (core, name) = (self.core.clone(), name.to_vec());
        self.core.carry_out(async move { core.unlink_now(parent, &name, directory).await }).await
    }

    /// Moves a name; with `exchange` the two change places, with `no_replace` an existing one is an error.
    pub async fn rename(
        &self,
        parent: InodeNo,
        name: &[u8],
        new_parent: InodeNo,
        new_name: &[u8],
        no_replace: bool,
        exchange: bool,
    ) -> Result<(), Errno> {
        check_name(name)?;
        check_name(new_name)?;
        if !exchange {
            let (from, to) = ((parent, name), (new_parent, new_name));
            let first = pin!(self.core.content_first(from, to));
            self.core.operation("rename", Some(parent), first).await?;
            if self.core.rename_ahead(from, to, no_replace).await {
                return Ok(());
            }
        }
        let (core, from, to) = (self.core.clone(), (parent, name.to_vec()), (new_parent, new_name.to_vec()));
        let work =
            async move { core.rename_now((from.0, &from.1), (to.0, &to.1), no_replace, exchange).await };
        self.core.carry_out(work).await
    }

    /// Entries of a directory after `cookie` (0: from the start), with `plus` their attributes too.
    pub async fn readdir(&self, ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> Result<Listing, Errno> {
        self.core.readdir(ino, cookie, limit, plus).await
    }

    // Extended attributes.

    /// Value of an extended attribute.
    pub async fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.core.getxattr(ino, name).await
    }

    /// Names of extended attributes.
    pub async fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>, Errno> {
        self.core.listxattr(ino).await
    }

    /// Sets an extended attribute; `create` fails if it exists, `replace` if it does not.
    pub async fn setxattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<(), Errno> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.core.change_xattr(ino, Change::SetXattr { ino, name, value, create, replace, now: now() }).await
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<(), Errno> {
        self.core.change_xattr(ino, Change::RemoveXattr { ino, name: name.to_vec(), now: now() }).await
    }

    // Files.

    /// Opens a file.
    pub async fn open(&self, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        self.core.operation("open", Some(ino), pin!(self.core.open(ino, flags))).await
    }

    /// Closes a handle. Its data goes out in the background.
    pub fn release(&self, handle: Handle) {
        self.core.release_handle(handle);
    }

    /// Sets a lock, or gives it up with mode `None`. With `interrupted` it waits for the lock until that is
    /// notified (`EINTR`); without, `EAGAIN` says that another holds it. Waiting in a circle is `EDEADLK`.
    pub async fn lock(
        &self,
        handle: Handle,
        lock: Lock,
        interrupted: Option<Arc<Notify>>,
    ) -> Result<(), Errno> {
        let ino = self.core.file(handle)?.inode.ino;
        self.core.lock(ino, handle, lock, interrupted).await
    }

    /// A lock of another owner, here or elsewhere, that stands in the way of `lock`.
    pub async fn test_lock(&self, ino: InodeNo, lock: Lock) -> Result<Option<Lock>, Errno> {
        self.core.test_lock(ino, lock).await
    }

    /// A process closes a descriptor of the file: its fcntl locks on it are gone, as POSIX has it.
    pub async fn drop_locks(&self, ino: InodeNo, owner: u64) {
        self.core.drop_locks_of_owner(ino, owner).await;
    }

    /// Up to `len` bytes from `offset`; short only at the end of the file.
    pub async fn read(&self, handle: Handle, offset: u64, len: usize) -> Result<ReadData, Errno> {
        self.core.read_under_token(handle, offset, len).await
    }

    /// The same, if all of it is in memory; `None` otherwise. Waits for nothing.
    pub fn try_read_cached(&self, handle: Handle, offset: u64, len: usize) -> Option<ReadData> {
        self.core.try_read_under_token(handle, offset, len)
    }

    /// Writes at `offset`, or at the end for append handles; returns how much (all, unless an error came
    /// after a part).
    pub async fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let file = self.core.file_to_write(handle)?;
        let flags = file.flags.of_a_write();
        self.core.write_under_token(&file, offset, data.into(), flags, Privileges::Kept).await
    }

    /// The same by somebody who says what this one write does, and of whom it is known whether set-user-id and set-group-id bits stay.
    pub async fn write_with(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        privileges: Privileges,
    ) -> Result<usize, Errno> {
        let file = self.core.file_to_write(handle)?;
        self.core.write_under_token(&file, offset, data.into(), flags, privileges).await
    }

    /// The same without a copy, if offset and length are multiples of 4 KiB: `data` becomes a page of the pool as it is. Its
    /// memory is kept as long as that, and all of it also for a part.
    pub async fn write_shared(&self, handle: Handle, offset: u64, data: &Bytes) -> Result<usize, Errno> {
        let file = self.core.file_to_write(handle)?;
        let flags = file.flags.of_a_write();
        self.core.write_under_token(&file, offset, Content::shared(data), flags, Privileges::Kept).await
    }

    /// Writes at `offset`, whatever the handle: a page that the kernel has cached has its place.
    pub async fn write_page(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let file = self.core.file_to_write(handle)?;
        let flags = WriteFlags { append: false, ..file.flags.of_a_write() };
        self.core.write_under_token(&file, offset, data.into(), flags, Privileges::Kept).await
    }

    /// close(2) of a descriptor: reports an error of writing behind that nobody has been told of, and that names made here, or what is
    /// not stored of the file, are lost.
    pub async fn flush(&self, handle: Handle) -> Result<(), Errno> {
        let file = self.core.file(handle)?;
        self.core.note_flush(file.inode.ino, handle);
        let calls = &self.core.calls;
        if calls.ahead.is_lost() || calls.dead() && file.inode.lock().unsettled() {
            return Err(Errno::EIO);
        }
        self.core.report_error(&file)
    }

    /// Everything written so far is durable when this returns; with `data_only` attributes only where the
    /// data needs them.
    pub async fn fsync(&self, ino: InodeNo, data_only: bool) -> Result<(), Errno> {
        // Names in a directory, or the file's own with all that it stands in.
        self.core.calls.told().await?;
        let Some(inode) = self.core.inode_known(ino) else { return Ok(()) };
        self.fsync_inode(&inode, data_only).await
    }

    async fn fsync_inode(&self, inode: &Arc<Inode>, data_only: bool) -> Result<(), Errno> {
        let work = pin!(self.core.make_durable(inode, 0, u64::MAX, data_only));
        self.core.operation("fsync", Some(inode.ino), work).await
    }

    /// The same for a handle, which is also told of earlier errors of writing behind.
    pub async fn fsync_handle(&self, handle: Handle, data_only: bool) -> Result<(), Errno> {
        let file = self.core.file(handle)?;
        let done = async {
            self.core.calls.told().await?;
            self.fsync_inode(&file.inode, data_only).await
        };
        let done = done.await;
        let earlier = self.core.report_error(&file);
        done.and(earlier)
    }

    /// What the caller knows of the reads to come by this handle; what was found out so far is forgotten.
    /// (posix_fadvise cannot come here by a mount: the kernel keeps it to its own cache.)
    pub fn advise(&self, handle: Handle, access: Access) -> Result<(), Errno> {
        let file = self.core.file(handle)?;
        file.reader.lock().streams.advise(access);
        Ok(())
    }

    /// Begins to load bytes that will be read soon. Waits for nothing but the right to read; what finds no
    /// memory or no place among `prefetchThreads` is left out and loaded when it is read.
    pub async fn will_need(&self, handle: Handle, offset: u64, len: u64) -> Result<(), Errno> {
        self.core.will_need(handle, offset, len).await
    }

    /// Takes over the tunables that may change while a client runs: `pagepool` and its shares, the numbers of
    /// things done at once, thresholds. Changes of the others count at the next mount.
    pub fn retune(&self, cluster: &base::tunables::Tunables) {
        self.core.retune(cluster);
    }

    /// Gives up the clean pages of a file in the page pool; returns their bytes. What is dirty stays.
    pub fn uncache(&self, ino: InodeNo) -> u64 {
        self.core.inode_known(ino).map_or(0, |inode| inode.lock().drop_clean())
    }

    /// Room, holes and zeros: see [`Fallocate`]. By an O_SYNC or O_DSYNC handle it is durable when this returns, as a write is.
    pub async fn fallocate(
        &self,
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<(), Errno> {
        self.core.fallocate_under_token(handle, mode, offset, len, privileges).await
    }

    /// SEEK_DATA: the first position at or after `offset` that may hold data; `ENXIO` if there is none.
    pub async fn seek_data(&self, handle: Handle, offset: u64) -> Result<u64, Errno> {
        let file = self.core.file(handle)?;
        let work = pin!(async {
            let _hold = self.core.hold(&file.inode, Need::Read).await?;
            self.core.seek_data(&file.inode, offset).await
        });
        self.core.operation("seek", Some(file.inode.ino), work).await
    }

    /// SEEK_HOLE: the first position at or after `offset` in a hole; the end of the file is one.
    pub async fn seek_hole(&self, handle: Handle, offset: u64) -> Result<u64, Errno> {
        let file = self.core.file(handle)?;
        let work = pin!(async {
            let _hold = self.core.hold(&file.inode, Need::Read).await?;
            self.core.seek_hole(&file.inode, offset).await
        });
        self.core.operation("seek", Some(file.inode.ino), work).await
    }

    /// Copies bytes between files (or within one); returns how many: short only at the end of the source.
    pub async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<u64, Errno> {
        let range = (from, from_offset, to, to_offset, len);
        self.core.copy_range(range, privileges).await
    }

    // The file system.

    /// Capacity and use.
    pub async fn statfs(&self) -> Result<StatFs, Errno> {
        let fs = &self.core.session.fs;
        let block_size = self.core.geometry(fs.pool)?.block_size;
        match self.core.calls.ask(MgrRequest::StatFs { fs: fs.id }).await? {
            MgrReply::StatFs { total, free, inodes } => Ok(StatFs { total, free, inodes, block_size }),
            other => Err(unexpected("StatFs", &other)),
        }
    }

    /// sync(2): everything written so far, in all files, is durable when this returns.
    pub async fn sync_all(&self) -> Result<(), Errno> {
        self.core.sync_all().await
    }

    /// The same at the end, when nobody is there to try it again: it is tried until `deadline`, or until the session has ended.
    pub async fn sync_until(&self, deadline: Instant) -> Result<(), Errno> {
        self.core.sync_until(deadline).await
    }

    /// The kernel has dropped `count` references to an inode. Its pages stay: they are bounded by the
    /// page pool, its entry by `maxFilesToCache`.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        let _ = count;
        self.core.forget(ino);
    }

    /// Ends the session: everything written, adopted, told to the manager. What cannot be written before
    /// the deadline, or before the session is ended by the manager, is given up with the error; the session then ends
    /// uncleanly and is resolved later. So does one of which the manager does not hear in time that everything is durable: that
    /// is no error.
    pub async fn shutdown(&self, deadline: Instant) -> Result<(), Errno> {
        self.core.shutdown(deadline).await
    }
}
