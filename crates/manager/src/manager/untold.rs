//! Inodes that another session may have made ahead of the manager and not told of, asked for by number.
//!
//! A name has a directory, and who looks there takes it from whoever makes names in it. A number has none. But the numbers that each
//! session may still use are known ([`NumbersRecord`]), and what it has not told is below a directory that it holds for `Write`. So
//! one of these is looked at: before it is given up everything is told.
//!
//! Telling waits for nobody, so this ends, by the deadline of who asks at the latest.

use std::collections::BTreeSet;

use base::{FsId, InodeNo, SessionId};
use wire::mgr::{FileKind, MgrError};

use super::{Caller, Manager, read_refusal};
use crate::keys::{self, Inode, NumbersRecord};

impl Manager {
    /// Returns when another session that may have made an inode of this number, which was not there, has told what it had made
    /// by now.
    pub(super) async fn untold(&self, caller: Caller, ino: InodeNo) -> Result<(), MgrError> {
        let fs = self.fs_of(caller.session)?;
        if self.maker(fs, ino, caller.session)?.is_none() {
            return Ok(());
        }
        // After a restart of the manager its maker claims, once all is told; and it may be telling of this one just now.
        self.look(caller, ino).await?;
        let Some(maker) = self.maker(fs, ino, caller.session)? else { return Ok(()) };
        match self.led_by(fs, maker).await? {
            Some(dir) => self.look(caller, dir).await,
            None => Ok(()),
        }
    }

    /// The session other than `session` that may make an inode of this number.
    fn maker(&self, fs: FsId, ino: InodeNo, session: SessionId) -> Result<Option<SessionId>, MgrError> {
        let others: Vec<SessionId> = {
            let map = self.inner.map.borrow();
            let others = map.clients.iter().filter(|client| client.fs == fs && client.session != session);
            others.map(|client| client.session).collect()
        };
        let snapshot = self.snapshot();
        for other in others {
            let numbers = keys::read::<NumbersRecord>(&*snapshot, &keys::numbers_key(other));
            let numbers = numbers.map_err(read_refusal)?.unwrap_or_default();
            if (numbers.next..numbers.end).contains(&ino) {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// A directory that a session holds for `Write`: of those that it has begun to use last, since it is likely at work there.
    async fn led_by(&self, fs: FsId, session: SessionId) -> Result<Option<InodeNo>, MgrError> {
        let held: BTreeSet<InodeNo> = self.inner.holders.written_by(fs, session).into_iter().collect();
        let snapshot = self.snapshot();
        // Most are files, and may be many.
        let find = move || {
            for &ino in held.iter().rev() {
                let Some(inode) = keys::read::<Inode>(&*snapshot, &keys::inode_key(fs, ino))? else {
                    continue;
                };
                let dir = if inode.kind == FileKind::Directory { ino } else { inode.parent };
                if held.contains(&dir) {
                    return Ok(Some(dir));
                }
            }
            Ok(None)
        };
        self.inner.writer.aside(find).await?.map_err(read_refusal)
    }
}
