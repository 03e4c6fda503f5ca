//! A file system in memory behind the mount: what a correct client would answer, without one.
//! One lock; sparse files in 4 KiB pages. Work can be held at a gate, to look at what waits.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use base::InodeNo;
use bytes::Bytes;
use fuse::calls::{
    Calls, Errno, Fallocate, Handle, KernelCache, Listing, NewInode, OpenFlags, Privileges, ReadData,
    SetAttrs, StatFs, WriteFlags,
};
use tokio::sync::watch;
use wire::mgr::{Attr, DirEntry, FileKind, Timestamp};

const PAGE: u64 = 4096;

#[derive(Default)]
struct Node {
    attr: Attr,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    names: BTreeMap<Vec<u8>, (u64, InodeNo)>,
    linkable: bool,
    parent: InodeNo,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    references: u64,
    handles: u64,
}

#[derive(Default)]
struct State {
    nodes: HashMap<InodeNo, Node>,
    files: HashMap<Handle, (InodeNo, OpenFlags)>,
    last_ino: u64,
    last_handle: u64,
    last_cookie: u64,
}

/// The file system.
pub struct Model {
    state: Mutex<State>,
    gate: watch::Sender<bool>,
    /// What the kernel caches of the mount.
    kernel: OnceLock<Arc<dyn KernelCache>>,
    /// Listings asked for so far.
    pub listings: AtomicU64,
    /// fsyncs and sync_alls so far.
    pub syncs: AtomicU64,
    /// Reads so far.
    pub reads: AtomicU64,
    /// Where reads began that were to fail, all those since this was set.
    pub failing: Mutex<Option<Vec<u64>>>,
    /// Writes so far.
    pub writes: AtomicU64,
    /// What every fsync, flush and sync_all answers, if not 0.
    pub sync_errno: AtomicU64,
    /// So many bytes of one write are taken.
    pub write_most: AtomicUsize,
}

type Res<T> = Result<T, Errno>;

fn now() -> Timestamp {
    let d = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp { secs: d.as_secs() as i64, nanos: d.subsec_nanos() }
}

fn err<T>(errno: i32) -> Res<T> {
    Err(Errno(errno))
}

impl Node {
    fn touch(&mut self) {
        let t = now();
        (self.attr.mtime, self.attr.ctime) = (t, t);
    }

    fn drop_privileges(&mut self, drop: bool) {
        if drop && self.attr.kind == FileKind::File {
            self.attr.mode = wire::mgr::without_privileges(self.attr.mode);
        }
    }

    fn store(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (page, inside) = (at / PAGE, (at % PAGE) as usize);
            let n = (data.len() - done).min(PAGE as usize - inside);
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[inside..inside + n].copy_from_slice(&data[done..done + n]);
            done += n;
        }
        self.attr.size = self.attr.size.max(offset + data.len() as u64);
        self.account();
    }

    fn fetch(&self, offset: u64, len: u64) -> ReadData {
        let end = self.attr.size.min(offset.saturating_add(len));
        let mut parts = Vec::new();
        let mut at = offset;
        while at < end {
            let (page, inside) = (at / PAGE, at % PAGE);
            let n = (end - at).min(PAGE - inside) as usize;
            let range = inside as usize..inside as usize + n;
            parts.push(match self.pages.get(&page) {
                Some(page) => Bytes::copy_from_slice(&page[range]),
                None => Bytes::from(vec![0; n]),
            });
            at += n as u64;
        }
        parts
    }

    fn zero(&mut self, offset: u64, end: u64) {
        let keys: Vec<u64> = self.pages.range(offset / PAGE..end.div_ceil(PAGE)).map(|(k, _)| *k).collect();
        for key in keys {
            let (from, to) = (offset.max(key * PAGE), end.min((key + 1) * PAGE));
            if to - from == PAGE {
                self.pages.remove(&key);
            } else if let Some(page) = self.pages.get_mut(&key) {
                page[(from % PAGE) as usize..(from % PAGE + to - from) as usize].fill(0);
            }
        }
        self.account();
    }

    fn resize(&mut self, size: u64) {
        if size < self.attr.size {
            self.zero(size, self.attr.size.next_multiple_of(PAGE));
        }
        self.attr.size = size;
        self.account();
    }

    fn account(&mut self) {
        self.attr.stored = self.pages.len() as u64 * PAGE;
    }
}

impl State {
    fn node(&mut self, ino: InodeNo) -> Res<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno(libc::ENOENT))
    }

    fn dir(&mut self, ino: InodeNo) -> Res<&mut Node> {
        let node = self.node(ino)?;
        if node.attr.kind == FileKind::Directory { Ok(node) } else { err(libc::ENOTDIR) }
    }

    fn child(&mut self, parent: InodeNo, name: &[u8]) -> Res<InodeNo> {
        let dir = self.dir(parent)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(dir.parent),
            _ => dir.names.get(name).map(|(_, ino)| *ino).ok_or(Errno(libc::ENOENT)),
        }
    }

    fn referred(&mut self, ino: InodeNo) -> Res<Attr> {
        let node = self.node(ino)?;
        node.references += 1;
        Ok(node.attr.clone())
    }

    fn insert(&mut self, parent: InodeNo, name: &[u8], ino: InodeNo) -> Res<()> {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let is_dir = self.node(ino)?.attr.kind == FileKind::Directory;
        let dir = self.dir(parent)?;
        dir.names.insert(name.to_vec(), (cookie, ino));
        dir.touch();
        if is_dir {
            dir.attr.nlink += 1;
            self.node(ino)?.parent = parent;
        }
        Ok(())
    }

    fn remove(&mut self, parent: InodeNo, name: &[u8]) -> Res<InodeNo> {
        let dir = self.dir(parent)?;
        let (_, ino) = dir.names.remove(name).ok_or(Errno(libc::ENOENT))?;
        dir.touch();
        if self.node(ino)?.attr.kind == FileKind::Directory {
            self.dir(parent)?.attr.nlink -= 1;
        }
        Ok(ino)
    }

    fn drop_link(&mut self, ino: InodeNo) -> Res<()> {
        let node = self.node(ino)?;
        node.attr.ctime = now();
        node.attr.nlink = if node.attr.kind == FileKind::Directory { 0 } else { node.attr.nlink - 1 };
        self.reclaim(ino);
        Ok(())
    }

    fn reclaim(&mut self, ino: InodeNo) {
        // As a client does: what the kernel alone refers to is gone.
        let gone = |n: &Node| n.attr.nlink == 0 && n.handles == 0;
        if self.nodes.get(&ino).is_some_and(gone) {
            self.nodes.remove(&ino);
        }
    }

    fn is_below(&mut self, mut ino: InodeNo, top: InodeNo) -> bool {
        loop {
            if ino == top {
                return true;
            }
            match self.node(ino) {
                Ok(node) if node.parent != ino => ino = node.parent,
                _ => return false,
            }
        }
    }

    fn file(&mut self, handle: Handle) -> Res<(&mut Node, OpenFlags)> {
        let (ino, flags) = *self.files.get(&handle).ok_or(Errno(libc::EBADF))?;
        Ok((self.node(ino)?, flags))
    }
}

impl Model {
    /// An empty file system.
    pub fn new() -> Model {
        let t = now();
        let attr = Attr {
            ino: InodeNo::ROOT,
            kind: FileKind::Directory,
            mode: 0o755,
            nlink: 2,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            block_size: 1 << 20,
            ..Attr::default()
        };
        let root = Node { attr, parent: InodeNo::ROOT, ..Node::default() };
        let state = State { nodes: HashMap::from([(InodeNo::ROOT, root)]), last_ino: 1, ..State::default() };
        Model {
            state: Mutex::new(state),
            gate: watch::Sender::new(true),
            kernel: OnceLock::new(),
            listings: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            failing: Mutex::new(None),
            writes: AtomicU64::new(0),
            sync_errno: AtomicU64::new(0),
            write_most: AtomicUsize::new(usize::MAX),
        }
    }

    /// What the kernel caches of the mount.
    pub fn kernel(&self) -> &dyn KernelCache {
        &**self.kernel.get().unwrap()
    }

    /// While closed, reads, writes, listings, fsyncs and syncs wait.
    pub fn set_gate(&self, open: bool) {
        self.gate.send_replace(open);
    }

    /// References and handles not given back, of all inodes but the root.
    pub fn leaks(&self) -> (u64, u64) {
        let state = self.lock();
        let nodes = state.nodes.values().filter(|n| n.attr.ino != InodeNo::ROOT);
        nodes.fold((0, 0), |(r, h), n| (r + n.references, h + n.handles))
    }

    /// Inodes there are, the root included.
    pub fn inodes(&self) -> usize {
        self.lock().nodes.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn pass_gate(&self) {
        let mut gate = self.gate.subscribe();
        gate.wait_for(|open| *open).await.unwrap();
    }

    fn synced(&self) -> Res<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        match self.sync_errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => err(errno as i32),
        }
    }
}

impl Calls for Model {
    fn attach(&self, kernel: Arc<dyn KernelCache>) {
        assert!(self.kernel.set(kernel).is_ok(), "it is attached once");
    }

    async fn lookup(&self, parent: InodeNo, name: &[u8]) -> Res<Attr> {
        assert_ne!(name, b"panic", "a fault of the file system below");
        let mut state = self.lock();
        let ino = state.child(parent, name)?;
        state.referred(ino)
    }

    async fn getattr(&self, ino: InodeNo) -> Res<Attr> {
        Ok(self.lock().node(ino)?.attr.clone())
    }

    async fn setattr(&self, ino: InodeNo, set: SetAttrs) -> Res<Attr> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        if let Some(size) = set.size {
            if node.attr.kind != FileKind::File {
                return err(libc::EINVAL);
            }
            node.resize(size);
            node.touch();
        }
        node.drop_privileges(set.drop_privileges || set.uid.is_some() || set.gid.is_some());
        let attr = &mut node.attr;
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.unwrap_or(attr.atime);
        attr.mtime = set.mtime.unwrap_or(attr.mtime);
        attr.ctime = now();
        Ok(attr.clone())
    }

    async fn readlink(&self, ino: InodeNo) -> Res<Vec<u8>> {
        Ok(self.lock().node(ino)?.target.clone())
    }

    async fn create(&self, parent: InodeNo, name: &[u8], new: NewInode) -> Res<(Attr, bool)> {
        let mut state = self.lock();
        match state.child(parent, name) {
            Ok(ino) if new.existing_ok && state.node(ino)?.attr.kind == FileKind::File => {
                return Ok((state.referred(ino)?, false));
            }
            Ok(_) => return err(libc::EEXIST),
            Err(Errno(libc::ENOENT)) => {}
            Err(error) => return Err(error),
        }
        let dir = state.dir(parent)?.attr.clone();
        if dir.nlink == 0 {
            return err(libc::ENOENT);
        }
        state.last_ino += 1;
        let ino = InodeNo(state.last_ino);
        let t = now();
        let directory = new.kind == FileKind::Directory;
        let inherits = dir.mode & 0o2000 != 0;
        let attr = Attr {
            ino,
            kind: new.kind,
            mode: new.mode | if inherits && directory { 0o2000 } else { 0 },
            uid: new.uid,
            gid: if inherits { dir.gid } else { new.gid },
            nlink: if directory { 2 } else { 1 },
            size: new.target.len() as u64,
            rdev: new.rdev,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            block_size: 1 << 20,
            ..Attr::default()
        };
        state.nodes.insert(ino, Node { attr, target: new.target, parent, ..Node::default() });
        state.insert(parent, name, ino)?;
        Ok((state.referred(ino)?, true))
    }

    async fn create_unnamed(
        &self,
        parent: InodeNo,
        new: NewInode,
        linkable: bool,
        flags: OpenFlags,
    ) -> Res<(Attr, Handle)> {
        let (attr, _) = self.create(parent, b"about to lose it", new).await?;
        let handle = self.open(attr.ino, flags).await?;
        let mut state = self.lock();
        state.remove(parent, b"about to lose it")?;
        state.drop_link(attr.ino)?;
        let node = state.node(attr.ino)?;
        node.linkable = linkable;
        Ok((node.attr.clone(), handle))
    }

    async fn link(&self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Res<Attr> {
        let mut state = self.lock();
        if state.child(parent, name).is_ok() {
            return err(libc::EEXIST);
        }
        let node = state.node(ino)?;
        if node.attr.nlink == 0 && !node.linkable {
            return err(libc::ENOENT);
        }
        node.linkable = false;
        node.attr.nlink += 1;
        node.attr.ctime = now();
        state.insert(parent, name, ino)?;
        state.referred(ino)
    }

    async fn unlink(&self, parent: InodeNo, name: &[u8], directory: bool) -> Res<()> {
        let mut state = self.lock();
        let ino = state.child(parent, name)?;
        let node = state.node(ino)?;
        match (directory, node.attr.kind == FileKind::Directory) {
            (true, false) => return err(libc::ENOTDIR),
            (false, true) => return err(libc::EISDIR),
            (true, true) if !node.names.is_empty() => return err(libc::ENOTEMPTY),
            _ => {}
        }
        state.remove(parent, name)?;
        state.drop_link(ino)
    }

    async fn rename(
        &self,
        parent: InodeNo,
        name: &[u8],
        new_parent: InodeNo,
        new_name: &[u8],
        no_replace: bool,
        exchange: bool,
    ) -> Res<()> {
        let mut state = self.lock();
        let ino = state.child(parent, name)?;
        let old = state.child(new_parent, new_name).ok();
        if no_replace && old.is_some() {
            return err(libc::EEXIST);
        }
        if exchange && old.is_none() {
            return err(libc::ENOENT);
        }
        if old == Some(ino) {
            return Ok(());
        }
        let is_dir = state.node(ino)?.attr.kind == FileKind::Directory;
        if is_dir && state.is_below(new_parent, ino) {
            return err(libc::EINVAL);
        }
        if let (Some(old), false) = (old, exchange) {
            let node = state.node(old)?;
            match (is_dir, node.attr.kind == FileKind::Directory) {
                (true, false) => return err(libc::ENOTDIR),
                (false, true) => return err(libc::EISDIR),
                (true, true) if !node.names.is_empty() => return err(libc::ENOTEMPTY),
                _ => {}
            }
            state.remove(new_parent, new_name)?;
            state.drop_link(old)?;
        }
        state.remove(parent, name)?;
        if let (Some(old), true) = (old, exchange) {
            state.remove(new_parent, new_name)?;
            state.insert(parent, name, old)?;
            state.node(old)?.attr.ctime = now();
        }
        state.insert(new_parent, new_name, ino)?;
        state.node(ino)?.attr.ctime = now();
        Ok(())
    }

    async fn open(&self, ino: InodeNo, flags: OpenFlags) -> Res<Handle> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        node.handles += 1;
        if flags.truncate {
            node.resize(0);
            node.touch();
            node.drop_privileges(flags.drop_privileges);
        }
        state.last_handle += 1;
        let handle = Handle(state.last_handle);
        state.files.insert(handle, (ino, flags));
        Ok(handle)
    }

    fn release(&self, handle: Handle) {
        let mut state = self.lock();
        let (ino, _) = state.files.remove(&handle).unwrap();
        state.node(ino).unwrap().handles -= 1;
        state.reclaim(ino);
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Res<ReadData> {
        self.pass_gate().await;
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(failing) = &mut *self.failing.lock().unwrap() {
            failing.push(offset);
            return err(libc::EIO);
        }
        Ok(self.lock().file(handle)?.0.fetch(offset, u64::from(len)))
    }

    async fn write_page(&self, handle: Handle, offset: u64, data: &[u8]) -> Res<usize> {
        let mut state = self.lock();
        let (node, _) = state.file(handle)?;
        let data = &data[..data.len().min(self.write_most.load(Ordering::Relaxed))];
        node.store(offset, data);
        node.touch();
        Ok(data.len())
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        now: WriteFlags,
        privileges: Privileges,
    ) -> Res<usize> {
        self.pass_gate().await;
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let (node, flags) = state.file(handle)?;
        let offset = if now.append && !flags.caller_appends { node.attr.size } else { offset };
        node.drop_privileges(privileges == Privileges::Dropped);
        let data = &data[..data.len().min(self.write_most.load(Ordering::Relaxed))];
        if offset + data.len() as u64 > i64::MAX as u64 {
            return err(libc::EFBIG);
        }
        node.store(offset, data);
        node.touch();
        Ok(data.len())
    }

    async fn flush(&self, _handle: Handle) -> Res<()> {
        match self.sync_errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => err(errno as i32),
        }
    }

    async fn fsync(&self, _ino: InodeNo, _handle: Option<Handle>, _datasync: bool) -> Res<()> {
        self.pass_gate().await;
        self.synced()
    }

    async fn fallocate(
        &self,
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Res<()> {
        let mut state = self.lock();
        let (node, _) = state.file(handle)?;
        node.drop_privileges(privileges == Privileges::Dropped);
        let end = offset.checked_add(len).filter(|e| *e <= i64::MAX as u64).ok_or(Errno(libc::EFBIG))?;
        if !matches!(mode, Fallocate::Allocate { .. }) {
            node.zero(offset, end);
        }
        if matches!(
            mode,
            Fallocate::Allocate { keep_size: false } | Fallocate::ZeroRange { keep_size: false }
        ) {
            node.attr.size = node.attr.size.max(end);
        }
        node.touch();
        Ok(())
    }

    async fn seek_data(&self, handle: Handle, offset: u64) -> Res<u64> {
        let mut state = self.lock();
        let (node, _) = state.file(handle)?;
        let page = node.pages.range(offset / PAGE..).next().map(|(k, _)| offset.max(k * PAGE));
        page.filter(|at| *at < node.attr.size).ok_or(Errno(libc::ENXIO))
    }

    async fn seek_hole(&self, handle: Handle, offset: u64) -> Res<u64> {
        let mut state = self.lock();
        let (node, _) = state.file(handle)?;
        if offset >= node.attr.size {
            return err(libc::ENXIO);
        }
        let mut page = offset / PAGE;
        while node.pages.contains_key(&page) {
            page += 1;
        }
        Ok(offset.max(page * PAGE).min(node.attr.size))
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_at: u64,
        to: Handle,
        to_at: u64,
        len: u64,
        privileges: Privileges,
    ) -> Res<u64> {
        let mut state = self.lock();
        let data = state.file(from)?.0.fetch(from_at, len.min(1 << 30));
        let (node, _) = state.file(to)?;
        node.drop_privileges(privileges == Privileges::Dropped);
        let mut at = to_at;
        for part in data {
            node.store(at, &part);
            at += part.len() as u64;
        }
        node.touch();
        Ok(at - to_at)
    }

    async fn readdir(&self, ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> Res<Listing> {
        self.listings.fetch_add(1, Ordering::Relaxed);
        self.pass_gate().await;
        let mut state = self.lock();
        let dir = state.dir(ino)?;
        let parent = dir.parent;
        let mut found: Vec<_> = dir.names.iter().map(|(name, (c, i))| (*c, *i, name.clone())).collect();
        found.retain(|(c, ..)| *c > cookie);
        found.sort();
        let end = found.len() <= limit as usize;
        found.truncate(limit as usize);
        let mut entries = Vec::new();
        for (cookie, ino, name) in found {
            let kind = state.node(ino)?.attr.kind;
            let attr = if plus { Some(state.referred(ino)?) } else { None };
            entries.push(DirEntry { name, ino, kind, cookie, attr });
        }
        Ok(Listing { entries, end, parent })
    }

    async fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Res<Vec<u8>> {
        self.lock().node(ino)?.xattrs.get(name).cloned().ok_or(Errno(libc::ENODATA))
    }

    async fn listxattr(&self, ino: InodeNo) -> Res<Vec<Vec<u8>>> {
        Ok(self.lock().node(ino)?.xattrs.keys().cloned().collect())
    }

    async fn setxattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Res<()> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        match node.xattrs.contains_key(name) {
            true if create => return err(libc::EEXIST),
            false if replace => return err(libc::ENODATA),
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.attr.ctime = now();
        Ok(())
    }

    async fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Res<()> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        node.xattrs.remove(name).ok_or(Errno(libc::ENODATA))?;
        node.attr.ctime = now();
        Ok(())
    }

    async fn statfs(&self) -> Res<StatFs> {
        let state = self.lock();
        let used: u64 = state.nodes.values().map(|n| n.attr.stored).sum();
        Ok(StatFs {
            total: 16 << 30,
            free: (16u64 << 30).saturating_sub(used),
            inodes: state.nodes.len() as u64,
        })
    }

    async fn sync_all(&self) -> Res<()> {
        self.pass_gate().await;
        self.synced()
    }

    fn forget(&self, ino: InodeNo, n: u64) {
        let mut state = self.lock();
        if let Some(node) = state.nodes.get_mut(&ino) {
            if ino != InodeNo::ROOT {
                assert!(node.references >= n, "{ino}: {n} of {} references forgotten", node.references);
            }
            node.references = node.references.saturating_sub(n);
        }
        state.reclaim(ino);
    }
}
