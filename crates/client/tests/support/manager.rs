//! A manager with directories. What it answers is durable; deletes happen at once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use base::{BlockIndex, FsId, InodeNo, PoolId, StripeId, Version};
use client::{BoxFuture, CallError, Manager};
use wire::mgr::{Attr, Change, DirEntry, Extent, FileKind, MgrError, MgrReply, MgrRequest, OpId, Timestamp};

use super::{FakeBlocks, Rng};

const INLINE_MAX: u64 = 16 << 10;

#[derive(Default)]
struct Node {
    attr: Attr,
    inline: Vec<u8>,
    blocks: BTreeMap<u64, ()>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<(InodeNo, Vec<u8>), InodeNo>,
    nodes: BTreeMap<InodeNo, Node>,
    next: u64,
    replies: BTreeMap<(u64, u16), (u64, MgrReply)>,
    pub reserved: u64,
    /// Inode numbers granted and not used.
    numbers: std::ops::Range<u64>,
    /// Names made ahead, and with a minus in front those removed, in the order in which they were told.
    told: Vec<Vec<u8>>,
}

pub struct FakeManager {
    blocks: Arc<FakeBlocks>,
    block_size: u32,
    state: Mutex<State>,
    below: AtomicU64,
    pub room: AtomicU64,
    /// Of room that is not all there, what is there is granted.
    pub grants_part: AtomicBool,
    /// What the last question for room said that is held.
    pub held: AtomicU64,
    pub calls: AtomicU64,
    pub mutations: AtomicU64,
    /// Extents in one answer.
    pub extents_most: AtomicU64,
    /// So many of the next answers to changes get lost: before the change is applied for even numbers, after it for odd ones.
    pub lose: AtomicU64,
    /// A change in this many loses its answer; 0: none.
    pub lossy: AtomicU64,
    /// What never comes to it.
    pub unheard: Mutex<fn(&MgrRequest) -> bool>,
    rng: Mutex<Rng>,
    /// Lost requests, which come once more, later.
    late: Mutex<Vec<(u64, MgrRequest)>>,
    /// Who has it exclusively keeps answers to links, already given, from arriving.
    pub links_on_their_way: tokio::sync::RwLock<()>,
    /// The same for what `which` says.
    pub on_their_way: tokio::sync::RwLock<()>,
    pub which: Mutex<fn(&MgrRequest) -> bool>,
    /// How many answers are kept from arriving.
    pub kept_back: AtomicU64,
    /// The version of the protocol that it speaks.
    pub speaks: AtomicU16,
}

/// One session's way to it.
pub struct Session {
    pub number: u64,
    pub manager: Arc<FakeManager>,
}

impl Manager for Session {
    fn call(&self, request: MgrRequest, _: Instant) -> BoxFuture<'_, Result<MgrReply, CallError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            if request.since() > self.manager.speaks.load(SeqCst) {
                return Err(CallError::TooOld("too old".into()));
            }
            let link = matches!(request, MgrRequest::Mutate { change: Change::Link { .. }, .. });
            let unheard = (self.manager.unheard.lock().unwrap())(&request);
            if unheard || self.manager.loses(self.number, &request) {
                return Err(CallError::Deadline("lost".into()));
            }
            let late = (self.manager.which.lock().unwrap())(&request);
            let reply = self.manager.answer(self.number, request);
            tokio::task::yield_now().await;
            if link {
                drop(self.manager.links_on_their_way.read().await);
            }
            if late {
                self.manager.kept_back.fetch_add(1, SeqCst);
                drop(self.manager.on_their_way.read().await);
            }
            Ok(reply)
        })
    }
}

fn errno(number: i32) -> MgrReply {
    MgrReply::Error(MgrError::Errno(number))
}

impl FakeManager {
    pub fn new(blocks: Arc<FakeBlocks>, block_size: u32) -> FakeManager {
        FakeManager {
            blocks,
            block_size,
            state: Mutex::new(State { next: 2, ..State::default() }),
            below: AtomicU64::new(0),
            room: AtomicU64::new(u64::MAX / 2),
            grants_part: AtomicBool::new(false),
            held: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            mutations: AtomicU64::new(0),
            extents_most: AtomicU64::new(3),
            lose: AtomicU64::new(0),
            lossy: AtomicU64::new(0),
            unheard: Mutex::new(|_| false),
            rng: Mutex::new(Rng(0x5eed)),
            late: Mutex::default(),
            links_on_their_way: tokio::sync::RwLock::new(()),
            on_their_way: tokio::sync::RwLock::new(()),
            which: Mutex::new(|_| false),
            kept_back: AtomicU64::new(0),
            speaks: AtomicU16::new(wire::version::PROTOCOL_VERSION),
        }
    }

    /// Whether the answer to a request does not come; then it may have been applied, and may come once more later.
    fn loses(&self, session: u64, request: &MgrRequest) -> bool {
        if !matches!(request, MgrRequest::Mutate { .. } | MgrRequest::MutateMany { .. }) {
            return false;
        }
        let lossy = self.lossy.load(SeqCst);
        let (random, applied, late) = {
            let mut rng = self.rng.lock().unwrap();
            (lossy > 0 && rng.below(lossy) == 0, rng.below(2) == 0, rng.below(3) == 0)
        };
        if lossy > 0 && late && !self.late.lock().unwrap().is_empty() {
            let (session, request) = self.late.lock().unwrap().remove(0);
            self.answer(session, request);
        }
        let counted = self.lose.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        let applied = if lossy > 0 { applied } else { counted.is_ok_and(|left| left % 2 == 1) };
        if counted.is_err() && !random {
            return false;
        }
        if applied {
            self.answer(session, request.clone());
        }
        if lossy > 0 {
            self.late.lock().unwrap().push((session, request.clone()));
        }
        true
    }

    pub fn fence_below(&self, session: u64) {
        self.below.store(session, SeqCst);
        // Orphans of ended sessions.
        let mut state = self.state.lock().unwrap();
        let orphans: Vec<_> =
            state.nodes.iter().filter(|(_, n)| n.attr.nlink == 0).map(|(&i, _)| i).collect();
        for ino in orphans {
            self.reclaim(&mut state, ino, Version::MAX);
        }
    }

    /// The record of a file: size, whether it is inline, allocated blocks.
    pub fn record(&self, ino: InodeNo) -> Option<(u64, bool, Vec<u64>)> {
        let state = self.state.lock().unwrap();
        let node = state.nodes.get(&ino)?;
        Some((node.attr.size, node.attr.inline, node.blocks.keys().copied().collect()))
    }

    /// Attributes of an inode.
    pub fn attr_of(&self, ino: InodeNo) -> Attr {
        self.state.lock().unwrap().nodes[&ino].attr.clone()
    }

    /// How many inodes there are.
    pub fn inodes(&self) -> usize {
        self.state.lock().unwrap().nodes.len()
    }

    /// Names that were made ahead, and with a minus in front removed, in the order in which they were told.
    pub fn told(&self) -> Vec<Vec<u8>> {
        self.state.lock().unwrap().told.clone()
    }

    /// What was told so far is not listed.
    pub fn forget_told(&self) {
        self.state.lock().unwrap().told.clear();
    }

    /// A file of this size with these blocks, as if it had been written.
    pub fn make(&self, name: &[u8], size: u64, blocks: impl Iterator<Item = u64>) -> InodeNo {
        let mut state = self.state.lock().unwrap();
        let ino = InodeNo(state.next);
        state.next += 1;
        let blocks: BTreeMap<u64, ()> = blocks.map(|block| (block, ())).collect();
        let (pool, block_size) = (PoolId(1), self.block_size);
        let stored = blocks.len() as u64 * u64::from(block_size);
        let (kind, mode, nlink) = (FileKind::File, 0o644, 1);
        let attr = Attr { ino, kind, mode, nlink, size, stored, pool, block_size, ..Attr::default() };
        state.names.insert((InodeNo::ROOT, name.to_vec()), ino);
        state.nodes.insert(ino, Node { attr, blocks, ..Node::default() });
        ino
    }

    fn answer(&self, session: u64, request: MgrRequest) -> MgrReply {
        self.calls.fetch_add(1, SeqCst);
        if session < self.below.load(SeqCst) {
            return MgrReply::Error(MgrError::NoSession);
        }
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        let node = |ino| state.nodes.get(&ino);
        match request {
            MgrRequest::Lookup { parent, name } => {
                match state.names.get(&(parent, name)).and_then(|i| node(*i)) {
                    Some(n) => MgrReply::Attr(Box::new(n.attr.clone())),
                    None => errno(2),
                }
            }
            MgrRequest::GetAttr { ino } => match node(ino) {
                Some(n) => MgrReply::Attr(Box::new(n.attr.clone())),
                None if ino == InodeNo::ROOT => {
                    let (kind, mode, nlink) = (FileKind::Directory, 0o755, 2);
                    let (pool, block_size) = (PoolId(1), self.block_size);
                    MgrReply::Attr(Box::new(Attr {
                        ino,
                        kind,
                        mode,
                        nlink,
                        pool,
                        block_size,
                        ..Attr::default()
                    }))
                }
                None => errno(2),
            },
            MgrRequest::ReadInline { ino } => match node(ino) {
                Some(n) if n.attr.inline => MgrReply::Bytes(n.inline.clone()),
                _ => errno(22),
            },
            MgrRequest::Extents { ino, from, limit } => {
                let Some(n) = node(ino) else { return errno(2) };
                let all = n.blocks.range(from.0..).map(|(&b, _)| Extent { first: BlockIndex(b), count: 1 });
                let limit = (limit as usize).min(self.extents_most.load(SeqCst) as usize);
                let extents: Vec<_> = all.clone().take(limit).collect();
                MgrReply::Extents { more: all.clone().nth(extents.len()).is_some(), extents }
            }
            MgrRequest::ReadDir { ino: dir, plus, cookie, limit } => {
                let names = state.names.iter().filter(|((parent, _), ino)| *parent == dir && ino.0 > cookie);
                let entries = names.map(|((_, name), &ino)| DirEntry {
                    name: name.clone(),
                    ino,
                    kind: node(ino).map_or(FileKind::File, |n| n.attr.kind),
                    cookie: ino.0,
                    attr: node(ino).filter(|_| plus).map(|n| n.attr.clone()),
                });
                let mut entries: Vec<_> = entries.collect();
                entries.sort_by_key(|entry| entry.cookie);
                let end = entries.len() <= limit as usize;
                entries.truncate(limit as usize);
                MgrReply::Entries { entries, end, parent: InodeNo::ROOT }
            }
            MgrRequest::Reserve { bytes, held, .. } => {
                self.held.store(held, SeqCst);
                let left = self.room.load(SeqCst).saturating_sub(state.reserved);
                let part = self.grants_part.load(SeqCst) && left > 0;
                if bytes > left && !part {
                    return errno(28);
                }
                let bytes = bytes.min(left);
                state.reserved += bytes;
                MgrReply::Reserved { bytes }
            }
            MgrRequest::CloseSession => MgrReply::Done,
            MgrRequest::Mutate { op, change, .. } => self.once(state, session, op, change),
            MgrRequest::MutateMany { changes } => MgrReply::Many(
                changes.into_iter().map(|(op, change)| Ok(self.once(state, session, op, change))).collect(),
            ),
            other => panic!("not asked in these tests: {other:?}"),
        }
    }

    fn once(&self, state: &mut State, session: u64, op: OpId, change: Change) -> MgrReply {
        if let Some((seq, reply)) = state.replies.get(&(session, op.slot)) {
            if op.seq < *seq {
                return MgrReply::Error(MgrError::Superseded);
            }
            if op.seq == *seq {
                return reply.clone();
            }
        }
        self.mutations.fetch_add(1, SeqCst);
        let reply = self.apply(state, change);
        state.replies.insert((session, op.slot), (op.seq, reply.clone()));
        reply
    }

    fn apply(&self, state: &mut State, change: Change) -> MgrReply {
        let least = u32::from(!matches!(change, Change::LinkUnnamed { .. }));
        match change {
            Change::Create { parent, name, kind, mode, uid, gid, now, existing_ok, .. } => {
                if let Some(ino) = state.names.get(&(parent, name.clone())) {
                    if !existing_ok {
                        return errno(17);
                    }
                    return MgrReply::Created { attr: Box::new(state.nodes[ino].attr.clone()), new: false };
                }
                let ino = InodeNo(state.next);
                state.next += 1;
                self.add(state, ino, Some((parent, name)), (kind, mode, uid, gid, now))
            }
            Change::Numbers { count } => {
                let first = InodeNo(state.next);
                state.next += u64::from(count);
                state.numbers = first.0..state.next;
                MgrReply::Numbers { first, count }
            }
            Change::CreateAs { ino, parent, name, kind, mode, uid, gid, now, .. } => {
                assert!(state.numbers.contains(&ino.0), "{ino} was not granted, or one above it was used");
                let there = parent == InodeNo::ROOT || state.nodes.contains_key(&parent);
                assert!(there, "{ino} has no directory");
                assert!(!state.names.contains_key(&(parent, name.clone())), "{ino} is made twice");
                state.numbers.start = ino.0 + 1;
                state.told.push(name.clone());
                self.add(state, ino, Some((parent, name)), (kind, mode, uid, gid, now))
            }
            Change::CreateUnnamed { mode, uid, gid, now, .. } => {
                let ino = InodeNo(state.next);
                state.next += 1;
                self.add(state, ino, None, (FileKind::File, mode, uid, gid, now))
            }
            Change::Link { ino, parent, name, now } | Change::LinkUnnamed { ino, parent, name, now } => {
                let Some(node) = state.nodes.get_mut(&ino).filter(|node| node.attr.nlink >= least) else {
                    return errno(2);
                };
                if state.names.contains_key(&(parent, name.clone())) {
                    return errno(17);
                }
                state.names.insert((parent, name), ino);
                node.attr.nlink += 1;
                node.attr.ctime = now;
                self.attr(node)
            }
            Change::Unlink { parent, name, open, highest, expect, directory, .. } => {
                let found = state.names.get(&(parent, name.clone())).copied();
                if expect.is_some_and(|expect| Some(expect) != found) {
                    return errno(libc::ESTALE);
                }
                let Some(ino) = found else { return errno(2) };
                if directory && state.names.keys().any(|(parent, _)| *parent == ino) {
                    return errno(libc::ENOTEMPTY);
                }
                if expect.is_some() {
                    state.told.push([b"-", &name[..]].concat());
                }
                state.names.remove(&(parent, name));
                let node = state.nodes.get_mut(&ino).unwrap();
                node.attr.nlink -= if directory { 2 } else { 1 };
                let attr = Box::new(node.attr.clone());
                if !open && attr.nlink == 0 {
                    self.reclaim(state, ino, highest);
                }
                MgrReply::Unlinked { attr: Some(attr) }
            }
            Change::Rename { parent, name, new_parent, new_name, expect, open, highest, now, .. } => {
                let found = |dir, name: &Vec<u8>| state.names.get(&(dir, name.clone())).copied();
                let (moved, old) = (found(parent, &name), found(new_parent, &new_name));
                if expect.is_some_and(|(from, to)| Some(from) != moved || to != old.unwrap_or_default()) {
                    return errno(libc::ESTALE);
                }
                let Some(moved) = moved else { return errno(2) };
                if expect.is_some() {
                    state.told.push([&name[..], b">", &new_name[..]].concat());
                }
                state.names.remove(&(parent, name));
                state.names.insert((new_parent, new_name), moved);
                state.nodes.get_mut(&moved).unwrap().attr.ctime = now;
                let Some(old) = old else { return MgrReply::Unlinked { attr: None } };
                let node = state.nodes.get_mut(&old).unwrap();
                node.attr.nlink -= 1;
                let attr = Box::new(node.attr.clone());
                if !open && attr.nlink == 0 {
                    self.reclaim(state, old, highest);
                }
                MgrReply::Unlinked { attr: Some(attr) }
            }
            Change::Forget { ino, highest } => {
                if state.nodes.get(&ino).is_some_and(|node| node.attr.nlink == 0) {
                    self.reclaim(state, ino, highest);
                }
                MgrReply::Done
            }
            Change::SetAttr { ino, mode, size, mtime, ctime, highest, .. } => {
                let Some(node) = state.nodes.get_mut(&ino) else { return errno(2) };
                if let Some(size) = size {
                    assert!(size <= node.attr.size, "growth goes by CommitWrite");
                    let first = size.div_ceil(self.block_size.into());
                    self.blocks.delete(stripe(ino, first), u64::MAX, highest);
                    node.blocks.retain(|&b, _| b < first);
                    node.inline.truncate(size as usize);
                    node.attr.size = size;
                }
                node.attr.mode = mode.unwrap_or(node.attr.mode);
                node.attr.mtime = mtime.unwrap_or(node.attr.mtime);
                node.attr.ctime = ctime;
                self.attr(node)
            }
            Change::CommitWrite { ino, size, allocated, inline, mtime, ctime, mode, atime, .. } => {
                let Some(node) = state.nodes.get_mut(&ino) else { return errno(2) };
                for extent in &allocated {
                    for block in extent.first.0..extent.first.0 + extent.count {
                        assert!(self.blocks.exists(stripe(ino, block)), "{ino} block {block} is not stored");
                        node.blocks.insert(block, ());
                    }
                }
                if let Some(content) = inline {
                    assert!(allocated.is_empty() && node.blocks.is_empty());
                    assert!(content.len() as u64 == size && size <= INLINE_MAX);
                    node.inline = content;
                } else if !allocated.is_empty() {
                    if node.attr.inline && !node.inline.is_empty() {
                        assert!(node.blocks.contains_key(&0), "{ino}: content left behind in the inode");
                    }
                    node.inline.clear();
                } else if node.blocks.is_empty() && size < node.attr.size {
                    return errno(22);
                }
                node.attr.size = size;
                node.attr.mode = mode.unwrap_or(node.attr.mode);
                node.attr.atime = atime.unwrap_or(node.attr.atime);
                node.attr.mtime = mtime;
                node.attr.ctime = ctime;
                self.attr(node)
            }
            Change::Deallocate { ino, blocks, highest, .. } => {
                let Some(node) = state.nodes.get_mut(&ino) else { return errno(2) };
                let end = blocks.first.0 + blocks.count;
                self.blocks.delete(stripe(ino, blocks.first.0), end, highest);
                node.blocks.retain(|&b, _| !(blocks.first.0..end).contains(&b));
                self.attr(node)
            }
            other => panic!("not asked in these tests: {other:?}"),
        }
    }

    fn add(
        &self,
        state: &mut State,
        ino: InodeNo,
        name: Option<(InodeNo, Vec<u8>)>,
        (kind, mode, uid, gid, now): (FileKind, u16, u32, u32, Timestamp),
    ) -> MgrReply {
        let directory = kind == FileKind::Directory;
        let attr = Attr {
            ino,
            kind,
            mode,
            uid,
            gid,
            nlink: if directory { 2 } else { name.iter().count() as u32 },
            mtime: now,
            ctime: now,
            pool: PoolId(1),
            block_size: self.block_size,
            inline: !directory,
            plain: true,
            ..Attr::default()
        };
        state.names.extend(name.map(|name| (name, ino)));
        state.nodes.insert(ino, Node { attr: attr.clone(), ..Node::default() });
        MgrReply::Created { attr: Box::new(attr), new: true }
    }

    fn attr(&self, node: &mut Node) -> MgrReply {
        node.attr.inline = node.blocks.is_empty();
        node.attr.stored = if node.attr.inline {
            node.inline.len() as u64
        } else {
            node.blocks.len() as u64 * u64::from(self.block_size)
        };
        MgrReply::Attr(Box::new(node.attr.clone()))
    }

    fn reclaim(&self, state: &mut State, ino: InodeNo, highest: Version) {
        if state.nodes.remove(&ino).is_some() {
            self.blocks.delete(stripe(ino, 0), u64::MAX, highest);
        }
    }
}

fn stripe(ino: InodeNo, block: u64) -> StripeId {
    StripeId { fs: FsId(1), inode: ino, block: BlockIndex(block) }
}
