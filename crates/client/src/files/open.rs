//! Opening and closing files; and making them without a name.

use std::sync::Arc;

use base::InodeNo;
use wire::{
    mgr::{Attr, Change, MgrReply},
    token::{Need, Token, TokenMode},
};

use super::{
    handle::{Handle, OpenFile, OpenFlags},
    inode::Inode,
    state::FileState,
};
use crate::{calls::unexpected, core::Core, error::Errno};

/// A file that counts as open and has no handle yet. Without one it is closed again, also if who opens it goes away.
pub(crate) struct Opening {
    core: Arc<Core>,
    file: Arc<OpenFile>,
    has_handle: bool,
}

impl Opening {
    /// Gives it its handle; none if there are as many as may be.
    pub fn handle(mut self) -> Option<Handle> {
        let max = self.core.tunables.handles_max as usize;
        let handle = self.core.handles.add(self.file.clone(), max);
        self.has_handle = handle.is_some();
        handle
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.has_handle {
            self.core.closed(&self.file);
        }
    }
}

/// What is held while it is being opened. What can be mapped for writing is held whole or not at all.
fn need_to_open(flags: OpenFlags) -> Need {
    if flags.truncate || flags.read && flags.write { Need::Write } else { Need::Size }
}

impl Core {
    /// See [`crate::Client::open`].
    pub async fn open(self: &Arc<Core>, ino: InodeNo, flags: OpenFlags) -> Result<Handle, Errno> {
        Core::check_file(self.getattr(ino).await?.kind)?;
        let inode = self.inode(ino);
        let shared = self.whole().is_none();
        let _hold = self.hold(&inode, need_to_open(flags)).await?;
        // Else it was removed since it was looked for; whoever did that may forget it any moment.
        let usable = |state: &mut FileState| !state.gone || state.opens.any();
        let opening = self.opening(&inode, flags, shared, usable).ok_or(Errno::ENOENT)?;
        if flags.truncate {
            self.truncate(&inode, 0).await?;
        }
        if flags.truncate && flags.drop_privileges {
            self.drop_privileges(&inode);
        }
        opening.handle().ok_or(Errno::ENFILE)
    }

    /// Makes what [`Change::CreateUnnamed`] says.
    pub async fn create_unnamed_now(
        self: &Arc<Core>,
        change: Change,
        linkable: bool,
        flags: OpenFlags,
    ) -> Result<(Attr, Opening), Errno> {
        let inode = match self.calls.mutate(change).await? {
            MgrReply::Created { attr, .. } => self.inode(self.changed_attr(*attr, None).ino),
            other => return Err(unexpected("CreateUnnamed", &other)),
        };
        let begin = |state: &mut FileState| {
            state.made_unnamed(linkable);
            true
        };
        // Before its token is asked for: what is given back of that does not end it. If it fails it is closed, and given up.
        let shared = self.whole().is_none();
        let opening = self.opening(&inode, flags, shared, begin).ok_or(Errno::EIO)?;
        let _hold = self.hold(&inode, need_to_open(flags)).await?;
        let attr = inode.lock().visible();
        Ok((self.made(attr), opening))
    }

    /// Counts an inode as open, if `may` says so: from then on it stays in memory, and if unlinked, there, until it is closed.
    pub fn opening(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        flags: OpenFlags,
        shared: bool,
        may: impl FnOnce(&mut FileState) -> bool,
    ) -> Option<Opening> {
        let mut state = inode.lock();
        let failures_seen = state.failures.count().into();
        let file =
            OpenFile { inode: inode.clone(), flags, shared, failures_seen, reader: Default::default() };
        may(&mut state).then(|| {
            state.opens.add(file.is_wide());
            Opening { core: self.clone(), file: Arc::new(file), has_handle: false }
        })
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
                // With others': for each message all that is made ahead is told first.
                if let Some(token) = left.filter(|_| self.whole().is_none()) {
                    self.orphans.add_token(Token::new(ino, TokenMode::None, token.serial));
                    self.unsettled.wake.notify_one();
                }
                self.drop_inode(ino);
            }
        }
    }
}
