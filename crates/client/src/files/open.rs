//! Opening and closing files.

use std::sync::{Arc, atomic::AtomicU64};

use base::InodeNo;
use wire::token::{Need, Token, TokenMode};

use super::handle::{Handle, OpenFile, OpenFlags};
use crate::{core::Core, error::Errno};

/// A file that counts as open and has no handle yet. Without one it is closed again, also if who opens it goes away.
struct Opening<'a> {
    core: &'a Arc<Core>,
    file: Arc<OpenFile>,
    has_handle: bool,
}

impl Opening<'_> {
    /// Gives it its handle; none if there are as many as may be.
    fn handle(mut self) -> Option<Handle> {
        let max = self.core.tunables.handles_max as usize;
        let handle = self.core.handles.add(self.file.clone(), max);
        self.has_handle = handle.is_some();
        handle
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if !self.has_handle {
            self.core.closed(&self.file);
        }
    }
}

impl Core {
    /// See [`crate::Client::open`].
    pub async fn open(self: &Arc<Core>, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        Core::check_file(self.getattr(ino).await?.kind)?;
        let inode = self.inode(ino);
        let shared = self.whole().is_none();
        let mappable = flags.read && flags.write;
        let need = if flags.truncate || mappable { Need::Write } else { Need::Size };
        let _hold = self.hold(&inode, need).await?;
        let failures_seen = AtomicU64::new(inode.lock().failures.count());
        let file = OpenFile { inode, flags, shared, failures_seen, reader: Default::default() };
        let inode = file.inode.clone();
        let opening = {
            // From here on the inode stays in memory, and unlinked until the handle is released.
            let mut state = inode.lock();
            if state.gone && !state.opens.any() {
                // It was removed since it was looked for; whoever did that may forget it any moment.
                return Err(Errno::ENOENT);
            }
            state.opens.add(file.is_wide());
            Opening { core: self, file: Arc::new(file), has_handle: false }
        };
        if flags.truncate {
            self.truncate(&inode, 0).await?;
        }
        if flags.truncate && flags.drop_privileges {
            self.drop_privileges(&inode);
        }
        opening.handle().ok_or(Errno::ENFILE)
    }

    /// See [`crate::Client::release`].
    pub fn release_handle(self: &Arc<Core>, handle: Handle) {
        let file = self.handles.remove(handle);
        if let Some(file) = file {
            self.drop_locks_of_handle(file.inode.ino, handle);
            self.closed(&file);
        }
    }

    fn closed(self: &Arc<Core>, file: &OpenFile) {
        let inode = &file.inode;
        let (gone, left) = {
            let mut state = inode.lock();
            state.opens.remove(file.is_wide());
            if state.opens.any() {
                return;
            }
            state.due.soon = state.unsettled();
            (state.gone, state.token.closed(inode.ino))
        };
        self.release_soon(left.into_iter().collect());
        if gone {
            self.give_up(inode, true);
        }
        self.unsettled.wake.notify_one();
    }

    /// The file of a handle.
    pub fn file(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        self.handles.get(handle).ok_or(Errno::EBADF)
    }

    /// The same, if it may be written.
    pub fn file_to_write(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        self.file(handle).and_then(|f| if f.flags.write { Ok(f) } else { Err(Errno::EBADF) })
    }

    /// See [`crate::Client::forget`].
    pub fn forget(self: &Arc<Core>, ino: InodeNo) {
        if let Some(inode) = self.inode_known(ino) {
            let state = inode.lock();
            let unused = state.gone && !state.opens.any() && !state.unsettled() && state.token.users() == 0;
            let left = state.token.token(ino).filter(|_| unused);
            let written = left.as_ref().is_some_and(|token| token.mode > TokenMode::Open) && !state.unshared;
            drop(state);
            if written {
                // What was written under the token need not be adopted.
                self.give_up(&inode, false);
            } else if unused {
                self.release_soon(
                    left.map(|t| Token::new(ino, TokenMode::None, t.serial)).into_iter().collect(),
                );
                self.drop_inode(ino);
            }
        }
    }
}
