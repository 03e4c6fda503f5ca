//! What a session may reach that is bound to a subtree: the directory, and what names lead to from there.
//!
//! A directory is below it if its parents lead there. A file says in which directory its last name was made; one with several names
//! may be reached by another. So what a look into a directory of the subtree shows, and what does not say that it is there itself,
//! is remembered for the session: until it ends, or the manager does. Then the file is to be looked up again.

use base::{FsId, InodeNo, SessionId};
use libc::{EACCES, ENOENT, ENOTDIR};
use wire::{
    lock::LockRequest,
    map::{Limits, Subtree},
    mgr::{FileKind, MgrError, MgrReply, MgrRequest},
};

use super::{Manager, read_refusal, refusal::refusal};
use crate::{
    keys::{self, Inode},
    namespace,
    store::Read,
};

/// Most files remembered for a session; beyond it all are forgotten, and looked up again.
const LED_MAX: usize = 1 << 16;
/// Deepest directory; beyond it the tree is damaged.
const DEPTH_MAX: usize = 1 << 20;

fn inode(from: &dyn Read, fs: FsId, ino: InodeNo) -> Result<Option<Inode>, MgrError> {
    keys::read(from, &keys::inode_key(fs, ino)).map_err(read_refusal)
}

/// Whether an inode's parents lead to a directory, or it is that.
fn is_below(from: &dyn Read, fs: FsId, root: InodeNo, mut at: InodeNo) -> Result<bool, MgrError> {
    for _ in 0..DEPTH_MAX {
        if at == root {
            return Ok(true);
        }
        match inode(from, fs, at)? {
            Some(inode) if at != InodeNo::ROOT => at = inode.parent,
            _ => return Ok(false),
        }
    }
    Ok(false)
}

impl Manager {
    /// The file system of a session, and the directory that it is bound to.
    fn bound(&self, session: SessionId) -> Option<(FsId, InodeNo)> {
        let map = self.inner.map.borrow();
        let client = map.client(session)?;
        let subtree = map.limits_of(client.member)?.subtree.as_ref()?;
        Some((client.fs, subtree.root))
    }

    /// Whether a session may use inodes; one that is bound to no subtree may use all of its file system. Those that are not there
    /// it may use if `absent` says so.
    pub(super) fn may_use(
        &self,
        session: SessionId,
        inos: &[InodeNo],
        absent: bool,
    ) -> Result<bool, MgrError> {
        let Some((fs, root)) = self.bound(session) else { return Ok(true) };
        let snapshot = self.snapshot();
        for &ino in inos {
            let led = || self.inner.led.lock().get(&session).is_some_and(|led| led.contains(&ino));
            let allowed = match inode(&*snapshot, fs, ino)? {
                Some(_) => is_below(&*snapshot, fs, root, ino)? || led(),
                None => absent,
            };
            if !allowed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Why a session's request is about what it may not reach.
    pub(crate) fn beyond_subtree(&self, session: SessionId, asked: &MgrRequest) -> Option<MgrError> {
        let (_, root) = self.bound(session)?;
        let up = matches!(asked, MgrRequest::Lookup { parent, name } if *parent == root && name == b"..");
        match self.may_use(session, &asked.inodes(), true) {
            Ok(true) if !up => None,
            Ok(_) => Some(MgrError::Errno(EACCES)),
            Err(error) => Some(error),
        }
    }

    /// What a session says that it holds, without what it may not reach. It may have held that until it was moved away.
    pub(crate) fn drop_foreign_claims(&self, session: SessionId, asked: &mut MgrRequest) {
        if self.bound(session).is_none() {
            return;
        }
        let may = |ino: &InodeNo| self.may_use(session, &[*ino], true).unwrap_or(false);
        match asked {
            MgrRequest::Claim { tokens, .. } => tokens.retain(|token| may(&token.ino)),
            MgrRequest::Lock(LockRequest::Claim { locks, .. }) => locks.retain(|(ino, _)| may(ino)),
            _ => {}
        }
    }

    /// A session that is bound to a subtree has looked into a directory of it: it may use what is there.
    pub(super) fn lead(&self, session: SessionId, dir: InodeNo, reply: &MgrReply) -> Result<(), MgrError> {
        let Some((fs, _)) = self.bound(session) else { return Ok(()) };
        let shown: Vec<InodeNo> = match reply {
            MgrReply::Attr(attr) if attr.kind != FileKind::Directory => vec![attr.ino],
            MgrReply::Entries { entries, .. } => {
                let files = entries.iter().filter(|entry| entry.kind != FileKind::Directory);
                files.map(|entry| entry.ino).collect()
            }
            _ => return Ok(()),
        };
        let snapshot = self.snapshot();
        for ino in shown {
            if inode(&*snapshot, fs, ino)?.is_some_and(|inode| inode.parent != dir) {
                let mut led = self.inner.led.lock();
                led.retain(|session, _| self.inner.map.borrow().client(*session).is_some());
                let its = led.entry(session).or_default();
                if its.len() >= LED_MAX {
                    its.clear();
                }
                its.insert(ino);
            }
        }
        Ok(())
    }

    /// Finds the directory that an invitation is to be bound to.
    pub(super) fn find_subtree(&self, limits: &mut Limits) -> Result<(), MgrError> {
        let (Some(Subtree { path, root }), [fs]) = (&mut limits.subtree, &limits.filesystems[..]) else {
            return Ok(());
        };
        let contexts = self.inner.writer.contexts();
        let Some(context) = contexts.iter().find(|context| context.fs == *fs) else {
            return Err(MgrError::Errno(ENOENT));
        };
        let snapshot = self.snapshot();
        *root = InodeNo::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
            let ask = MgrRequest::Lookup { parent: *root, name: name.as_bytes().to_vec() };
            match namespace::query(&*snapshot, context, &ask).map_err(refusal)? {
                MgrReply::Attr(attr) if attr.kind == FileKind::Directory => *root = attr.ino,
                _ => return Err(MgrError::Errno(ENOTDIR)),
            }
        }
        Ok(())
    }
}
