//! What the kernel knows of our inodes: references per inode (nlookup), owner and permissions last told
//! to it, how many handles are open by which way, and whether its cache may hold pages.
//! Invariant: an inode's count is the number of answers the kernel took that carried its number, less
//! what it forgot; at 0 the entry goes. Counts are raised before the answer leaves and lowered again
//! if nobody took it.

use std::collections::HashMap;

use base::InodeNo;
use parking_lot::{Mutex, MutexGuard};
use wire::mgr::{Attr, FileKind, Timestamp, without_privileges};

use crate::calls::SetAttrs;

const SHARDS: usize = 64;

/// Access, modification and change time.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
struct Times([Timestamp; 3]);

#[derive(Default, Clone, Debug, PartialEq, Eq)]
struct Known {
    references: u64,
    buffered_handles: u32,
    /// Handles that go round the page cache for the sake of parallel durable writes.
    durable_handles: u32,
    /// Counts what may have brought pages into the kernel's cache; 0: it has none.
    pages: u64,
    /// READs with us that fill such pages.
    filling: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    kind: FileKind,
    /// Of what has no name any more, as they were last told or set.
    times: Option<Box<Times>>,
}

impl Known {
    fn learn(&mut self, attr: &Attr) {
        (self.uid, self.gid, self.mode, self.kind) = (attr.uid, attr.gid, attr.mode, attr.kind);
        if attr.nlink == 0 && self.outlives_its_name() {
            self.times = Some(Box::new(Times([attr.atime, attr.mtime, attr.ctime])));
        }
    }

    /// Whether it is still described here when the file system below has it no more: what the kernel opens without us.
    fn outlives_its_name(&self) -> bool {
        matches!(self.kind, FileKind::Directory | FileKind::Fifo)
    }

    fn attr(&self, ino: InodeNo) -> Attr {
        let Times([atime, mtime, ctime]) = self.times.as_deref().copied().unwrap_or_default();
        let Known { uid, gid, mode, kind, .. } = *self;
        Attr { ino, kind, mode, uid, gid, nlink: 0, atime, mtime, ctime, ..Attr::default() }
    }

    fn is_idle(&self) -> bool {
        self.references == 0 && self.buffered_handles == 0 && self.durable_handles == 0
    }
}

/// How a handle's reads and writes come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Through the kernel's page cache.
    Buffered,
    /// Round it.
    Direct,
    /// Round it, because durable writes are then in parallel. Counted: it bars others from the page cache.
    Durable,
}

/// What the kernel's cache may have of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Nothing.
    None,
    /// What was left there; nobody has it open through the cache. The number is for [`Inodes::dropped`].
    Left(u64),
    /// What somebody is using.
    InUse,
}

/// See [`Inodes::filling`].
pub struct Filling<'a> {
    inodes: &'a Inodes,
    ino: InodeNo,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(known) = self.inodes.shard(self.ino).get_mut(&self.ino) {
            known.filling = known.filling.saturating_sub(1);
        }
    }
}

/// The table. One lock a shard, never two at once.
#[derive(Default)]
pub struct Inodes {
    shards: Vec<Mutex<HashMap<InodeNo, Known>>>,
}

impl Inodes {
    /// An empty table.
    pub fn new() -> Inodes {
        Inodes { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: InodeNo) -> MutexGuard<'_, HashMap<InodeNo, Known>> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    /// The kernel is about to get one more reference, and these attributes.
    pub fn refer(&self, attr: &Attr) {
        let mut shard = self.shard(attr.ino);
        let known = shard.entry(attr.ino).or_default();
        known.references += 1;
        known.learn(attr);
    }

    /// The kernel is about to get these attributes.
    pub fn note(&self, attr: &Attr) {
        if let Some(known) = self.shard(attr.ino).get_mut(&attr.ino) {
            known.learn(attr);
        }
    }

    /// What can be said of a directory or fifo that the file system below has no more, while the kernel still
    /// refers to it: a process may stand in it, or have it open.
    pub fn removed(&self, ino: InodeNo) -> Option<Attr> {
        let shard = self.shard(ino);
        let known = shard.get(&ino).filter(|k| k.references > 0 && k.outlives_its_name())?;
        Some(known.attr(ino))
    }

    /// Sets attributes of one; who has it open sees them, and nobody else can. As they are then.
    pub fn set_removed(&self, ino: InodeNo, set: &SetAttrs, now: Timestamp) -> Option<Attr> {
        let mut shard = self.shard(ino);
        let known = shard.get_mut(&ino).filter(|k| k.references > 0 && k.outlives_its_name())?;
        known.mode = set.mode.unwrap_or(known.mode);
        known.uid = set.uid.unwrap_or(known.uid);
        known.gid = set.gid.unwrap_or(known.gid);
        let Times([atime, mtime, _]) = known.times.as_deref().copied().unwrap_or_default();
        known.times = Some(Box::new(Times([set.atime.unwrap_or(atime), set.mtime.unwrap_or(mtime), now])));
        Some(known.attr(ino))
    }

    /// The kernel gave up `n` references. More than it had is a fault of ours or the kernel's: it is
    /// logged, and counts as all.
    pub fn forget(&self, ino: InodeNo, n: u64) {
        let mut shard = self.shard(ino);
        let Some(known) = shard.get_mut(&ino) else {
            if ino != InodeNo::ROOT {
                tracing::warn!(%ino, n, "kernel forgets an inode it had no reference to");
            }
            return;
        };
        if known.references < n && ino != InodeNo::ROOT {
            tracing::warn!(%ino, n, had = known.references, "kernel forgets more references than it had");
        }
        known.references = known.references.saturating_sub(n);
        if known.is_idle() {
            shard.remove(&ino);
        }
    }

    /// Whether the kernel has, or is about to get, a reference.
    pub fn is_referred(&self, ino: InodeNo) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.references > 0)
    }

    /// Chooses the way of a handle that is being opened, and counts it. `wanted`: what its flags alone would
    /// give. O_DSYNC writes go round the page cache, where they are not one after the other, if nobody
    /// reads through it; and as long as they do, nobody does: an append in between would show as zeros.
    pub fn open_way(&self, ino: InodeNo, wanted: Way) -> Way {
        let mut shard = self.shard(ino);
        let known = shard.entry(ino).or_default();
        let way = match wanted {
            Way::Durable if known.buffered_handles > 0 => Way::Buffered,
            Way::Buffered if known.durable_handles > 0 => Way::Durable,
            way => way,
        };
        match way {
            Way::Buffered => {
                (known.buffered_handles, known.pages) = (known.buffered_handles + 1, known.pages + 1)
            }
            Way::Durable => known.durable_handles += 1,
            Way::Direct => {}
        }
        if known.is_idle() {
            shard.remove(&ino);
        }
        way
    }

    /// A handle that went this way is closed.
    pub fn closed(&self, ino: InodeNo, way: Way) {
        let mut shard = self.shard(ino);
        let Some(known) = shard.get_mut(&ino) else { return };
        match way {
            Way::Buffered => known.buffered_handles = known.buffered_handles.saturating_sub(1),
            Way::Durable => known.durable_handles = known.durable_handles.saturating_sub(1),
            Way::Direct => {}
        }
        if known.is_idle() {
            shard.remove(&ino);
        }
    }

    /// A READ fills pages of the kernel's cache, until what is given back is dropped. It need not come by a handle that
    /// goes through the cache: mappings and splice use it by any.
    pub fn filling(&self, ino: InodeNo) -> Filling<'_> {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            (known.pages, known.filling) = (known.pages + 1, known.filling + 1);
        }
        Filling { inodes: self, ino }
    }

    /// Whether a READ that fills pages of the inode is with us.
    pub fn is_filling(&self, ino: InodeNo) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.filling > 0)
    }

    /// What the kernel's cache may have of the inode. Pages stay when the handles that brought them are closed.
    pub fn pages(&self, ino: InodeNo) -> Pages {
        match self.shard(ino).get(&ino) {
            None | Some(Known { pages: 0, .. }) => Pages::None,
            Some(Known { buffered_handles: 0, pages, .. }) => Pages::Left(*pages),
            Some(_) => Pages::InUse,
        }
    }

    /// All pages of the inode have been dropped since [`Inodes::pages`] said that these were left.
    pub fn dropped(&self, ino: InodeNo, left: u64) {
        if let Some(known) = self.shard(ino).get_mut(&ino)
            && known.pages == left
        {
            known.pages = 0;
        }
    }

    /// An unprivileged process has changed a file's content. Whether the kernel was last told a mode that this made untrue.
    pub fn drop_privileges(&self, ino: InodeNo) -> bool {
        let mut shard = self.shard(ino);
        let known = shard.get_mut(&ino).filter(|known| known.kind == FileKind::File);
        known.is_some_and(|known| {
            let told = known.mode;
            known.mode = without_privileges(told);
            told != known.mode
        })
    }

    /// Inodes with references, and references in all.
    pub fn totals(&self) -> (u64, u64) {
        let mut totals = (0, 0);
        for shard in &self.shards {
            for known in shard.lock().values() {
                totals.0 += u64::from(known.references > 0);
                totals.1 += known.references;
            }
        }
        totals
    }

    /// Every inode the kernel refers to.
    pub fn all(&self) -> Vec<(InodeNo, FileKind)> {
        let mut all = vec![(InodeNo::ROOT, FileKind::Directory)];
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|(ino, known)| (*ino, known.kind)));
        }
        all
    }

    /// Every reference left, at the end of a mount: (inode, count).
    pub fn drain(&self) -> Vec<(InodeNo, u64)> {
        let mut left = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            left.extend(shard.drain().filter(|(_, k)| k.references > 0).map(|(i, k)| (i, k.references)));
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u64, mode: u16) -> Attr {
        Attr { ino: InodeNo(ino), mode, ..Attr::default() }
    }

    #[test]
    fn references_are_counted_exactly() {
        let inodes = Inodes::new();
        for _ in 0..1000 {
            (2..=65).for_each(|i| inodes.refer(&file(i, 0o644)));
        }
        assert_eq!(inodes.totals(), (64, 64_000));
        (2..=65).for_each(|i| inodes.forget(InodeNo(i), 999));
        assert_eq!(inodes.totals(), (64, 64));
        (2..=65).for_each(|i| inodes.forget(InodeNo(i), 1));
        assert_eq!(inodes.totals(), (0, 0));
        assert!(inodes.shards.iter().all(|s| s.lock().is_empty()));
    }

    #[test]
    fn a_removed_directory_is_described_while_it_is_referred_to() {
        let inodes = Inodes::new();
        inodes.refer(&file(8, 0o640));
        assert_eq!(inodes.removed(InodeNo(8)), None);
        inodes.refer(&Attr { uid: 5, kind: FileKind::Directory, ..file(7, 0o640) });
        let removed = inodes.removed(InodeNo(7)).unwrap();
        assert_eq!((removed.uid, removed.mode, removed.nlink), (5, 0o640, 0));
        let (set, now) =
            (SetAttrs { mode: Some(0o700), ..SetAttrs::default() }, Timestamp { secs: 9, nanos: 1 });
        assert_eq!(inodes.set_removed(InodeNo(8), &set, now), None);
        let set = inodes.set_removed(InodeNo(7), &set, now);
        assert_eq!(set, Some(Attr { mode: 0o700, ctime: now, ..removed }));
        assert_eq!(inodes.removed(InodeNo(7)), set);
        inodes.forget(InodeNo(7), 1);
        assert_eq!(inodes.removed(InodeNo(7)), None);
    }

    #[test]
    fn forgetting_too_much_is_not_fatal() {
        let inodes = Inodes::new();
        inodes.refer(&file(7, 0o644));
        inodes.forget(InodeNo(7), 5);
        inodes.forget(InodeNo(7), 1);
        assert_eq!(inodes.totals(), (0, 0));
    }

    #[test]
    fn an_open_handle_keeps_the_entry() {
        let inodes = Inodes::new();
        inodes.refer(&file(7, 0o644));
        assert_eq!(inodes.open_way(InodeNo(7), Way::Buffered), Way::Buffered);
        inodes.forget(InodeNo(7), 1);
        assert_eq!(inodes.pages(InodeNo(7)), Pages::InUse);
        inodes.closed(InodeNo(7), Way::Buffered);
        assert_eq!(inodes.pages(InodeNo(7)), Pages::None);
        assert_eq!(inodes.drain(), []);
    }

    #[test]
    fn pages_outlive_the_handles_that_brought_them() {
        let (inodes, ino) = (Inodes::new(), InodeNo(7));
        inodes.refer(&file(7, 0o644));
        assert_eq!(inodes.pages(ino), Pages::None);
        inodes.open_way(ino, Way::Buffered);
        inodes.closed(ino, Way::Buffered);
        let Pages::Left(left) = inodes.pages(ino) else { panic!() };
        // A mapping of a handle that goes round the cache; it may bring back what is just being dropped.
        let filling = inodes.filling(ino);
        assert!(inodes.is_filling(ino));
        inodes.dropped(ino, left);
        drop(filling);
        assert!(!inodes.is_filling(ino));
        let Pages::Left(again) = inodes.pages(ino) else { panic!() };
        inodes.dropped(ino, again);
        assert_eq!(inodes.pages(ino), Pages::None);
        inodes.forget(ino, 1);
        assert!(inodes.shards.iter().all(|s| s.lock().is_empty()));
    }

    #[test]
    fn durable_writes_and_the_page_cache_are_never_both_in_use() {
        let (inodes, ino) = (Inodes::new(), InodeNo(7));
        assert_eq!(inodes.open_way(ino, Way::Buffered), Way::Buffered);
        assert_eq!(inodes.open_way(ino, Way::Durable), Way::Buffered);
        inodes.closed(ino, Way::Buffered);
        assert_eq!(inodes.open_way(ino, Way::Durable), Way::Buffered, "one is still open");
        (0..2).for_each(|_| inodes.closed(ino, Way::Buffered));
        assert_eq!(inodes.open_way(ino, Way::Durable), Way::Durable);
        assert_eq!(inodes.open_way(ino, Way::Buffered), Way::Durable);
        assert_eq!(inodes.open_way(ino, Way::Direct), Way::Direct);
        (0..2).for_each(|_| inodes.closed(ino, Way::Durable));
        assert_eq!(inodes.open_way(ino, Way::Buffered), Way::Buffered);
        inodes.closed(ino, Way::Buffered);
        assert!(inodes.shards.iter().all(|s| s.lock().is_empty()));
    }

    #[test]
    fn setgid_without_group_execution_stays() {
        assert_eq!(without_privileges(0o6755), 0o755);
        assert_eq!(without_privileges(0o2745), 0o2745);
        assert_eq!(without_privileges(0o6745), 0o2745);
        assert_eq!(without_privileges(0o1777), 0o1777);
    }
}
