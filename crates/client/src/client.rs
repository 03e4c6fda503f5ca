//! The client of one mounted file system, as FUSE and other users call it.
//!
//! All calls are cancel-safe: who drops a call's future forgets the answer, not the state. Every wait in
//! them, and each call as a whole ([`crate::waits`]), ends after the client's deadline without progress, with `EIO`
//! and an event. A change that the manager has not answered by then goes on ([`crate::changes`]).

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};

use base::{BufPool, InodeNo};
use bytes::Bytes;
use tokio::sync::Notify;
use wire::{
    lock::Lock,
    mgr::{
        Attr, Change, DirEntry, FileKind, MgrReply, MgrRequest, NAME_LEN_MAX, Timestamp, XATTR_NAMESPACES,
    },
    token::{Need, Token, TokenMode},
};

use crate::{
    background,
    calls::{Calls, unexpected},
    config::{MemoryBound, Tunables},
    core::{Core, SessionInfo, now},
    error::Errno,
    files::{
        handle::{Handle, OpenFile, OpenFlags, ReadData},
        inode::FileState,
        privileges::Privileges,
        set_attrs::SetAttrs,
        touch::Touched,
    },
    names::{changing::Newest, hint::Hint},
    pages::{block::Content, resize::Fallocate, streams::Access, usage::PoolUse},
    parts::{Blocks, Manager},
    sharing::{guards::TokenHold, kernel::KernelCache},
    waits::Wait,
};

/// How often names are looked up again that other sessions change at the same time.
const STALE_TRIES: u32 = 64;

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

/// One listing of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Entries in cookie order, without "." and "..".
    pub entries: Vec<DirEntry>,
    /// Whether nothing follows.
    pub end: bool,
    /// The directory's parent.
    pub parent: InodeNo,
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
        let calls = Calls::new(manager, tunables.deadline);
        let core = Core::new(calls, blocks, session, tunables, buffers);
        core.runtime.spawn(background::run(Arc::downgrade(&core)));
        Client { core }
    }

    /// Gives the client the way to what the kernel caches of this mount.
    pub fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        self.core.set_kernel(kernel);
    }
    /// Whether the handle was opened while others had the file system mounted.
    pub fn is_shared(&self, handle: Handle) -> bool {
        self.file(handle).is_ok_and(|file| file.shared)
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
    /// What is in the page pool.
    pub fn pool_use(&self) -> PoolUse {
        self.core.pool.usage()
    }

    // Names.

    /// The inode a name leads to.
    pub async fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        check_name(name)?;
        if self.core.surely_absent(parent, name) {
            return Err(Errno::ENOENT);
        }
        for _ in 0..STALE_TRIES {
            if let Some(attr) = self.look(parent, name).await? {
                return Ok(attr);
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// The same, if what the name led to was still there when its attributes were asked for: another session may lead
    /// the name elsewhere meanwhile, and then it never was absent.
    async fn look(&self, parent: InodeNo, name: &[u8]) -> Result<Option<Attr>, Errno> {
        let mut known = self.core.known_name(parent, name);
        if known.is_none() {
            self.core.want_names(parent).await;
            known = self.core.known_name(parent, name);
        }
        match known {
            Some(Hint { ino: InodeNo(0), .. }) => return Err(Errno::ENOENT),
            Some(hint) => match self.core.getattr(hint.ino).await {
                Ok(attr) if attr.nlink > 0 => return Ok(Some(attr)),
                // Removed since it was looked for.
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            },
            None => {}
        }
        let question = self.core.question(parent, name);
        let asked = self.core.sharing.now();
        let reply = self.core.calls.ask(MgrRequest::Lookup { parent, name: name.to_vec() }).await;
        match question {
            Some(question) => question.answered(Hint::of(&reply)),
            None if self.core.whole().is_none() => {
                // While others are there the kernel asks for a name before it changes it.
                Hint::of(&reply).into_iter().for_each(|hint| self.core.names.hints.note(parent, name, hint));
            }
            None => {}
        }
        let ino = match reply? {
            MgrReply::Attr(attr) if attr.kind == FileKind::File && self.core.is_behind(attr.ino, asked) => {
                attr.ino
            }
            MgrReply::Attr(attr) => return Ok(Some(self.core.seen_attr(*attr, asked))),
            MgrReply::Held(attr) => attr.ino,
            other => return Err(unexpected("Lookup", &other)),
        };
        match self.core.attr_under_token(ino).await {
            Err(Errno::ENOENT) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// The write tokens of the files that names lead to, and these as a change expects them (0: no such
    /// name). Nothing while everything is held. What the kernel asked for just before is believed once: the manager
    /// refuses a change that expects something else.
    async fn hold_names(
        &self,
        names: &[(InodeNo, &[u8])],
    ) -> Result<(Vec<TokenHold>, Option<Vec<InodeNo>>), Errno> {
        if self.core.whole().is_some() {
            return Ok((Vec::new(), None));
        }
        let (mut inos, mut files) = (Vec::new(), Vec::new());
        for (parent, name) in names {
            let known = self.core.known_name(*parent, name);
            let hint = match known.or_else(|| self.core.names.hints.take(*parent, name)) {
                Some(hint) => hint,
                None => {
                    let ask = MgrRequest::Lookup { parent: *parent, name: name.to_vec() };
                    let reply = self.core.calls.ask(ask).await;
                    match Hint::of(&reply) {
                        Some(hint) => hint,
                        None => return Err(unexpected("Lookup", &reply?)),
                    }
                }
            };
            inos.push(hint.ino);
            files.extend(hint.is_file.then_some(hint.ino));
        }
        // Always in the same order: two who want the same two do not wait for each other.
        files.sort_unstable();
        files.dedup();
        let mut holds = Vec::new();
        for ino in files {
            match self.core.hold(&self.core.inode(ino), Need::Write).await {
                Ok(hold) => holds.push(hold),
                // Removed meanwhile: the change will find the name changed.
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((holds, Some(inos)))
    }

    /// Attributes.
    pub async fn getattr(&self, ino: InodeNo) -> Result<Attr, Errno> {
        self.core.getattr(ino).await
    }

    /// Changes attributes, size included; returns them.
    pub async fn setattr(&self, ino: InodeNo, set: SetAttrs) -> Result<Attr, Errno> {
        self.core.operation("set attributes", Some(ino), self.core.setattr(ino, set)).await
    }

    /// Target of a symlink.
    pub async fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>, Errno> {
        self.bytes("ReadLink", MgrRequest::ReadLink { ino }).await
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
        let (client, name, target) = (self.clone(), name.to_vec(), target.to_vec());
        let change =
            Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now: now(), existing_ok };
        self.core.carry_out(async move { client.make(change).await }).await
    }

    /// What [`Change::Create`] says.
    async fn make(&self, change: Change) -> Result<(Attr, bool), Errno> {
        let Change::Create { parent, ref name, kind, now, .. } = change else { return Err(Errno::EINVAL) };
        let name = &name.clone()[..];
        self.core.note_name(parent, name);
        let asked = self.core.sharing.now();
        let changing = self.core.change(&[(parent, name)], &[]);
        let hold = kind == FileKind::File && self.core.whole().is_none();
        let reply = self.core.calls.mutate_and_hold(change, hold).await;
        let touched = match reply {
            Ok(MgrReply::Created { new: false, .. }) => Touched::Nothing,
            _ => Touched::At(now, i32::from(kind == FileKind::Directory)),
        };
        let newest = changing.end(&reply, &[Hint::of(&reply)], touched);
        match reply? {
            MgrReply::Created { attr, new: false } if self.core.whole().is_none() => {
                Ok((self.core.getattr(attr.ino).await?, false))
            }
            MgrReply::Created { attr, new: false } => Ok((self.core.seen_attr(*attr, asked), false)),
            MgrReply::Created { attr, new: true } => {
                if kind == FileKind::Directory {
                    self.core.begin_names(attr.ino, asked);
                    self.core.made_directory(attr.ino);
                }
                Ok((self.made(self.core.changed_attr(*attr, newest)), true))
            }
            MgrReply::CreatedHeld { attr, token, resolve } => {
                self.core.take_made(Attr::clone(&attr), &token, resolve, asked);
                Ok((self.made(*attr), true))
            }
            other => Err(unexpected("Create", &other)),
        }
    }

    /// Nothing of what was made here and is held can be on the pdisks that is not known here.
    fn made(&self, attr: Attr) -> Attr {
        let inode = self.core.inode(attr.ino);
        let mut state = inode.lock();
        state.born_here = state.token.mode() == TokenMode::Write;
        attr
    }

    /// Another name for a file.
    pub async fn link(&self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        check_name(name)?;
        let (client, name) = (self.clone(), name.to_vec());
        self.core.carry_out(async move { client.link_now(ino, parent, &name).await }).await
    }

    async fn link_now(&self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        let inode = self.core.inode(ino);
        let _hold = match self.core.getattr(ino).await?.kind {
            FileKind::File => Some(self.core.hold(&inode, Need::Write).await?),
            _ => None,
        };
        self.core.note_name(parent, name);
        let now = now();
        let change = Change::Link { ino, parent, name: name.to_vec(), now };
        let changing = self.core.change(&[(parent, name)], &[ino]);
        let reply = self.core.calls.mutate(change).await;
        let newest = changing.end(&reply, &[Hint::of(&reply)], Touched::At(now, 0));
        match reply? {
            MgrReply::Attr(attr) => Ok(self.core.changed_attr(*attr, newest)),
            other => Err(unexpected("Link", &other)),
        }
    }

    /// Removes a name: of a file, or with `directory` of an empty directory.
    pub async fn unlink(&self, parent: InodeNo, name: &[u8], directory: bool) -> Result<(), Errno> {
        check_name(name)?;
        let (client, name) = (self.clone(), name.to_vec());
        self.core.carry_out(async move { client.unlink_now(parent, &name, directory).await }).await
    }

    async fn unlink_now(&self, parent: InodeNo, name: &[u8], directory: bool) -> Result<(), Errno> {
        // `open` in any case: whether it is open here, or has data in flight, is known when the inode is;
        // what is not, is given up right after.
        for _ in 0..STALE_TRIES {
            let (holds, inos) = self.hold_names(&[(parent, name)]).await?;
            let (lost, now) = (inos.as_ref().map(|inos| inos[0]), now());
            let change = Change::Unlink {
                parent,
                name: name.to_vec(),
                directory,
                open: true,
                highest: self.core.any_version(),
                expect: lost,
                now,
            };
            let changing = self.core.change(&[(parent, name)], lost.as_slice());
            let reply = self.core.calls.mutate(change).await;
            let newest =
                changing.end(&reply, &[Some(Hint::NOTHING)], Touched::At(now, -i32::from(directory)));
            match reply {
                // Another session was faster with this name.
                Err(Errno(libc::ESTALE)) => drop(holds),
                reply => return self.unlinked("Unlink", reply?, newest).await,
            }
        }
        Err(Errno(libc::EAGAIN))
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
        let (client, from, to) = (self.clone(), (parent, name.to_vec()), (new_parent, new_name.to_vec()));
        let work =
            async move { client.rename_now((from.0, &from.1), (to.0, &to.1), no_replace, exchange).await };
        self.core.carry_out(work).await
    }

    async fn rename_now(
        &self,
        (parent, name): (InodeNo, &[u8]),
        (new_parent, new_name): (InodeNo, &[u8]),
        no_replace: bool,
        exchange: bool,
    ) -> Result<(), Errno> {
        self.core.note_name(new_parent, new_name);
        if exchange {
            self.core.note_name(parent, name);
        }
        let places = [(parent, name), (new_parent, new_name)];
        for _ in 0..STALE_TRIES {
            let (holds, inos) = self.hold_names(&places).await?;
            let (expect, now) = (inos.map(|inos| (inos[0], inos[1])), now());
            let change = Change::Rename {
                parent,
                name: name.to_vec(),
                new_parent,
                new_name: new_name.to_vec(),
                no_replace,
                exchange,
                open: true,
                highest: self.core.any_version(),
                expect,
                now,
            };
            let (moved, replaced) = expect.unwrap_or_default();
            let changing = self.core.change(&places, &[moved, replaced]);
            let reply = self.core.calls.mutate(change).await;
            // The change times of what was moved are the manager's.
            let mut seen = Vec::new();
            for (parent, name) in places.iter().skip(usize::from(!exchange)).filter(|_| reply.is_ok()) {
                let ask = MgrRequest::Lookup { parent: *parent, name: name.to_vec() };
                seen.push(self.core.calls.ask(ask).await);
            }
            let mut leads: Vec<Option<Hint>> = seen.iter().map(Hint::of).collect();
            if !exchange {
                // Two names of one inode both stay.
                leads.insert(0, (moved != replaced).then_some(Hint::NOTHING));
            }
            let same = expect.is_some() && moved == replaced;
            let touched = match same || !changing.is_alone() {
                true => Touched::Unknown,
                false => touched_by_rename(&seen, now),
            };
            let newest = changing.end(&reply, &leads, touched);
            match reply {
                // Another session was faster with these names.
                Err(Errno(libc::ESTALE)) => {}
                reply => {
                    self.unlinked("Rename", reply?, newest).await?;
                    for seen in seen {
                        if let Ok(MgrReply::Attr(attr)) = seen {
                            self.core.changed_attr(*attr, newest);
                        }
                    }
                    return Ok(());
                }
            }
            drop(holds);
        }
        Err(Errno(libc::ESTALE))
    }

    async fn unlinked(&self, what: &'static str, reply: MgrReply, newest: Newest) -> Result<(), Errno> {
        match reply {
            MgrReply::Unlinked { attr: Some(attr) } => self.core.name_lost(*attr, newest).await,
            MgrReply::Unlinked { attr: None } | MgrReply::Done => {}
            other => return Err(unexpected(what, &other)),
        }
        Ok(())
    }

    /// Entries of a directory after `cookie` (0: from the start), with `plus` their attributes too.
    pub async fn readdir(&self, ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> Result<Listing, Errno> {
        let limit = limit.clamp(1, 4096);
        let asked = self.core.sharing.now();
        let listed = self.core.before_listing(ino, cookie);
        match self.core.calls.ask(MgrRequest::ReadDir { ino, cookie, limit, plus }).await? {
            MgrReply::Entries { mut entries, end, parent } => {
                listed.into_iter().for_each(|listed| self.core.listed(listed, &entries, end));
                for entry in &mut entries {
                    // What may be behind is asked for when it is wanted.
                    let behind =
                        |attr: &Attr| attr.kind == FileKind::File && self.core.is_behind(attr.ino, asked);
                    if let Some(attr) = entry.attr.take().filter(|attr| !behind(attr)) {
                        entry.attr = Some(self.core.seen_attr(attr, asked));
                    }
                }
                Ok(Listing { entries, end, parent })
            }
            other => Err(unexpected("ReadDir", &other)),
        }
    }

    // Extended attributes.

    /// Value of an extended attribute.
    pub async fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if XATTR_NAMESPACES.iter().any(|space| name.starts_with(space)) && self.core.is_plain(ino) {
            // The kernel asks for file capabilities before the first write to every file, `ls -l` for a label of each.
            return Err(Errno(libc::ENODATA));
        }
        self.bytes("GetXattr", MgrRequest::GetXattr { ino, name: name.to_vec() }).await
    }

    /// Names of extended attributes.
    pub async fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>, Errno> {
        if self.core.is_plain(ino) {
            return Ok(Vec::new());
        }
        match self.core.calls.ask(MgrRequest::ListXattr { ino }).await? {
            MgrReply::Names(names) => Ok(names),
            other => Err(unexpected("ListXattr", &other)),
        }
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
        self.change_xattr(ino, Change::SetXattr { ino, name, value, create, replace, now: now() }).await
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<(), Errno> {
        self.change_xattr(ino, Change::RemoveXattr { ino, name: name.to_vec(), now: now() }).await
    }

    async fn change_xattr(&self, ino: InodeNo, change: Change) -> Result<(), Errno> {
        let client = self.clone();
        self.core.carry_out(async move { client.change_xattr_now(ino, change).await }).await
    }

    async fn change_xattr_now(&self, ino: InodeNo, change: Change) -> Result<(), Errno> {
        let inode = self.core.inode(ino);
        let _hold = match self.core.getattr(ino).await?.kind {
            FileKind::File => Some(self.core.hold(&inode, Need::Write).await?),
            _ => None,
        };
        inode.lock().attr.plain = false;
        let changing = self.core.change(&[], &[ino]);
        let reply = self.core.calls.mutate(change).await;
        let newest = changing.end(&reply, &[], Touched::Unknown);
        match reply? {
            MgrReply::Attr(attr) => {
                self.core.changed_attr(*attr, newest);
            }
            MgrReply::Done => {
                if let Some(inode) = self.core.inode_known(ino) {
                    inode.lock().attr.ctime = now();
                }
            }
            other => return Err(unexpected("change of an extended attribute", &other)),
        }
        Ok(())
    }

    async fn bytes(&self, what: &'static str, request: MgrRequest) -> Result<Vec<u8>, Errno> {
        match self.core.calls.ask(request).await? {
            MgrReply::Bytes(bytes) => Ok(bytes),
            other => Err(unexpected(what, &other)),
        }
    }

    // Files.

    /// Opens a file.
    pub async fn open(&self, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        self.core.operation("open", Some(ino), self.open_now(ino, flags)).await
    }

    async fn open_now(&self, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        Core::check_file(self.core.getattr(ino).await?.kind)?;
        let inode = self.core.inode(ino);
        let shared = self.core.whole().is_none();
        let mappable = flags.read && flags.write;
        let need = if flags.truncate || mappable { Need::Write } else { Need::Size };
        let _hold = self.core.hold(&inode, need).await?;
        let failures_seen = AtomicU64::new(inode.lock().failures);
        let file = OpenFile { inode, flags, shared, failures_seen, reader: Default::default() };
        let inode = file.inode.clone();
        {
            // From here on the inode stays in memory, and unlinked until the handle is released.
            let mut state = inode.lock();
            if state.gone && state.opens == 0 {
                // It was removed since it was looked for; whoever did that may forget it any moment.
                return Err(Errno::ENOENT);
            }
            state.opens += 1;
            state.wide_opens += u32::from(file.is_wide());
        }
        if flags.truncate
            && let Err(error) = self.core.truncate(&inode, 0).await
        {
            self.closed(&file);
            return Err(error);
        }
        if flags.truncate && flags.drop_privileges {
            self.core.drop_privileges(&file.inode);
        }
        let file = Arc::new(file);
        let added = self.core.handles.add(file.clone(), self.core.tunables.handles_max as usize);
        added.ok_or_else(|| {
            self.closed(&file);
            Errno::ENFILE
        })
    }

    /// Closes a handle. Its data goes out in the background.
    pub fn release(&self, handle: Handle) {
        let file = self.core.handles.remove(handle);
        if let Some(file) = file {
            self.core.drop_locks_of_handle(file.inode.ino, handle);
            self.closed(&file);
        }
    }

    /// Sets a lock, or gives it up with mode `None`. With `interrupted` it waits for the lock until that is
    /// notified (`EINTR`); without, `EAGAIN` says that another holds it. Waiting in a circle is `EDEADLK`.
    pub async fn lock(
        &self,
        handle: Handle,
        lock: Lock,
        interrupted: Option<Arc<Notify>>,
    ) -> Result<(), Errno> {
        let ino = self.file(handle)?.inode.ino;
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

    fn closed(&self, file: &OpenFile) {
        let inode = &file.inode;
        let (gone, left) = {
            let mut state = inode.lock();
            state.opens = state.opens.saturating_sub(1);
            state.wide_opens = state.wide_opens.saturating_sub(u32::from(file.is_wide()));
            if state.opens > 0 {
                return;
            }
            state.soon = state.unsettled();
            (state.gone, state.token.closed(inode.ino))
        };
        self.core.release_soon(left.into_iter().collect());
        if gone {
            self.core.give_up(inode);
        }
        self.core.unsettled.wake.notify_one();
    }

    fn file(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        self.core.handles.get(handle).ok_or(Errno::EBADF)
    }

    fn file_to_write(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        self.file(handle).and_then(|f| if f.flags.write { Ok(f) } else { Err(Errno::EBADF) })
    }

    /// Up to `len` bytes from `offset`; short only at the end of the file.
    pub async fn read(&self, handle: Handle, offset: u64, len: usize) -> Result<ReadData, Errno> {
        let file = self.file(handle)?;
        if !file.flags.read {
            return Err(Errno::EBADF);
        }
        let range = (offset, len as u64);
        let need = |state: &FileState| state.read_need(range.0, range.1);
        let work = async {
            let _hold = self.core.hold_for(&file.inode, Some(range), need).await?;
            self.core.read(&file, offset, len).await
        };
        self.core.operation("read", Some(file.inode.ino), work).await
    }

    /// The same, if all of it is in memory; `None` otherwise. Waits for nothing.
    pub fn try_read_cached(&self, handle: Handle, offset: u64, len: usize) -> Option<ReadData> {
        let file = self.file(handle).ok().filter(|f| f.flags.read)?;
        if self.core.calls.dead() || !self.core.calls.lease_valid() {
            return None;
        }
        {
            let state = file.inode.lock();
            if !state.token.allows(state.read_need(offset, len as u64)) || state.token.is_giving() {
                return None;
            }
        }
        self.core.try_read_cached(&file, offset, len)
    }

    /// Writes at `offset`, or at the end for append handles; returns how much (all, unless an error came
    /// after a part).
    pub async fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.write_with(handle, offset, data, Privileges::Kept).await
    }

    /// The same by somebody of whom it is known whether set-user-id and set-group-id bits stay.
    pub async fn write_with(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        privileges: Privileges,
    ) -> Result<usize, Errno> {
        let file = self.file_to_write(handle)?;
        self.write_under_token(&file, offset, data.into(), false, privileges).await
    }

    /// The same without a copy, if offset and length are multiples of 4 KiB: `data` becomes a page of the pool as it is. Its
    /// memory is kept as long as that, and all of it also for a part.
    pub async fn write_shared(&self, handle: Handle, offset: u64, data: &Bytes) -> Result<usize, Errno> {
        let file = self.file_to_write(handle)?;
        self.write_under_token(&file, offset, Content::shared(data), false, Privileges::Kept).await
    }

    /// Writes at `offset`, whatever the handle: a page that the kernel has cached has its place.
    pub async fn write_page(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let file = self.file_to_write(handle)?;
        self.write_under_token(&file, offset, data.into(), true, Privileges::Kept).await
    }

    /// At `offset` if the data is `placed`, or the handle is none that writes at the end.
    async fn write_under_token(
        &self,
        file: &OpenFile,
        offset: u64,
        data: Content<'_>,
        placed: bool,
        privileges: Privileges,
    ) -> Result<usize, Errno> {
        let len = data.len() as u64;
        let work = async {
            loop {
                let at = (placed || !self.core.appends(file)).then_some(offset);
                let need = |state: &FileState| state.write_need(at, len);
                let range = Some((offset, len));
                let _hold = self.core.hold_to_change(&file.inode, range, privileges, need).await?;
                // Others may have come meanwhile: then the end is found here.
                if at.is_none() || placed || !self.core.appends(file) {
                    return self.core.write_at(file, at, data).await;
                }
            }
        };
        self.core.operation("write", Some(file.inode.ino), work).await
    }

    /// close(2) of a descriptor: reports an error of writing behind that nobody has been told of.
    pub async fn flush(&self, handle: Handle) -> Result<(), Errno> {
        let file = self.file(handle)?;
        self.core.note_flush(file.inode.ino, handle);
        self.core.report_error(&file)
    }

    /// Everything written so far is durable when this returns; with `data_only` attributes only where the
    /// data needs them.
    pub async fn fsync(&self, ino: InodeNo, data_only: bool) -> Result<(), Errno> {
        let Some(inode) = self.core.inode_known(ino) else { return Ok(()) };
        let work = self.core.make_durable(&inode, 0, u64::MAX, data_only);
        self.core.operation("fsync", Some(ino), work).await
    }

    /// The same for a handle, which is also told of earlier errors of writing behind.
    pub async fn fsync_handle(&self, handle: Handle, data_only: bool) -> Result<(), Errno> {
        let file = self.file(handle)?;
        let done = self.fsync(file.inode.ino, data_only).await;
        let earlier = self.core.report_error(&file);
        done.and(earlier)
    }

    /// What the caller knows of the reads to come by this handle; what was found out so far is forgotten.
    /// (posix_fadvise cannot come here by a mount: the kernel keeps it to its own cache.)
    pub fn advise(&self, handle: Handle, access: Access) -> Result<(), Errno> {
        let file = self.file(handle)?;
        file.reader.lock().streams.advise(access);
        Ok(())
    }

    /// Begins to load bytes that will be read soon. Waits for nothing but the right to read; what finds no
    /// memory or no place among `prefetchThreads` is left out and loaded when it is read.
    pub async fn will_need(&self, handle: Handle, offset: u64, len: u64) -> Result<(), Errno> {
        let file = self.file(handle)?;
        let need = |state: &FileState| state.read_need(offset, len);
        let _hold = self.core.hold_for(&file.inode, None, need).await?;
        self.core.ensure_alloc(&file.inode).await?;
        let end = offset.saturating_add(len).min(file.inode.lock().attr.size);
        self.core.load_ahead(&file.inode, offset.min(end), end);
        Ok(())
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

    /// Room, holes and zeros: see [`Fallocate`].
    pub async fn fallocate(
        &self,
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<(), Errno> {
        let file = self.file_to_write(handle)?;
        let work = async {
            let _hold = self.core.hold_to_change(&file.inode, None, privileges, |_| Need::Write).await?;
            self.core.fallocate(&file.inode, mode, offset, len).await
        };
        self.core.operation("fallocate", Some(file.inode.ino), work).await
    }

    /// SEEK_DATA: the first position at or after `offset` that may hold data; `ENXIO` if there is none.
    pub async fn seek_data(&self, handle: Handle, offset: u64) -> Result<u64, Errno> {
        let file = self.file(handle)?;
        let work = async {
            let _hold = self.core.hold(&file.inode, Need::Read).await?;
            self.core.seek_data(&file.inode, offset).await
        };
        self.core.operation("seek", Some(file.inode.ino), work).await
    }

    /// SEEK_HOLE: the first position at or after `offset` in a hole; the end of the file is one.
    pub async fn seek_hole(&self, handle: Handle, offset: u64) -> Result<u64, Errno> {
        let file = self.file(handle)?;
        let work = async {
            let _hold = self.core.hold(&file.inode, Need::Read).await?;
            self.core.seek_hole(&file.inode, offset).await
        };
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
        let mut done = 0;
        while done < len {
            let step = (len - done).min(4 << 20) as usize;
            let copied = async {
                let data = self.read(from, from_offset + done, step).await?;
                let mut at = to_offset + done;
                for piece in data.pieces() {
                    at += self.write_with(to, at, piece, privileges).await? as u64;
                }
                Ok(data.len())
            };
            match copied.await {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
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
        let inodes = self.core.unsettled.all();
        let mut first = Ok(());
        // All data first, so that the blocks of all files are in flight together.
        for batch in inodes.chunks(self.core.live().syncs_max as usize) {
            let stores: Vec<_> = batch
                .iter()
                .map(|inode| {
                    let (core, inode) = (self.core.clone(), inode.clone());
                    self.core
                        .runtime
                        .spawn(async move { core.make_durable(&inode, 0, u64::MAX, false).await })
                })
                .collect();
            for store in stores {
                first = first.and(store.await.unwrap_or(Err(Errno::EIO)));
            }
        }
        first
    }

    /// The kernel has dropped `count` references to an inode. Its pages stay: they are bounded by the
    /// page pool, its entry by `maxFilesToCache`.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        let _ = count;
        if let Some(inode) = self.core.inode_known(ino) {
            let state = inode.lock();
            let unused = state.gone && state.opens == 0 && !state.unsettled() && state.token.users() == 0;
            let left = state.token.token(ino).filter(|_| unused);
            drop(state);
            if unused {
                self.core.release_soon(
                    left.map(|t| Token::new(ino, TokenMode::None, t.serial)).into_iter().collect(),
                );
                self.core.drop_inode(ino);
            }
        }
    }

    /// Ends the session: everything written, adopted, told to the manager. What cannot be written before
    /// the deadline, or before the session is ended by the manager, is given up with the error; the session then ends
    /// uncleanly and is resolved later.
    pub async fn shutdown(&self, deadline: Instant) -> Result<(), Errno> {
        let end = async {
            self.sync_all().await?;
            while self.core.send_forgets().await > 0 {}
            let adopted = self.core.blocks.adopt_all(deadline).await;
            adopted.map_err(|error| {
                tracing::error!(%error, "adopt stripes at the end of the session");
                Errno::EIO
            })?;
            self.core.calls.set_leaving();
            match self.core.calls.ask(MgrRequest::CloseSession).await? {
                MgrReply::Done => Ok(()),
                other => Err(unexpected("CloseSession", &other)),
            }
        };
        let end = tokio::time::timeout_at(deadline.into(), self.core.calls.alive(end));
        let result = end.await.unwrap_or(Err(Errno::EIO)).and_then(|done| done);
        self.core.calls.set_closed();
        result
    }
}

/// What a rename did to its directories: no link count of theirs changes where no directory was moved, and names were
/// moved if they do not lead to one inode.
fn touched_by_rename(seen: &[Result<MgrReply, Errno>], now: Timestamp) -> Touched {
    let plain = |seen: &Result<MgrReply, Errno>| match seen {
        Ok(MgrReply::Attr(attr) | MgrReply::Held(attr)) => {
            attr.kind != FileKind::Directory && attr.nlink == 1
        }
        _ => false,
    };
    if seen.iter().all(plain) { Touched::At(now, 0) } else { Touched::Unknown }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_LEN_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
