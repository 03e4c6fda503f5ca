//! Directories made here, and which names are certainly not in them.

use std::sync::Arc;

use base::InodeNo;

use super::made::NewNames;
use crate::{core::Core, files::inode::Inode, sharing::state::Moment};

impl Core {
    /// A directory was made. Its names are all known, unless somebody was faster in it.
    pub fn begin_names(self: &Arc<Core>, dir: InodeNo, asked: Moment) {
        let inode = self.inode(dir);
        let mut state = inode.lock();
        let disturbed = self.sharing.named_elsewhere_since(asked) || self.sharing.claimed_since(asked);
        if !disturbed && self.whole().is_some() {
            state.names.made = Some(NewNames::new(asked.claim(), self.names.made.clone()));
        }
    }

    /// A name will be made at the manager: to be told before it is.
    pub fn note_name(&self, dir: InodeNo, name: &[u8]) {
        let inode = self.inode_known(dir);
        let mut state = inode.as_ref().map(|inode| inode.lock());
        let Some(names) = state.as_mut().and_then(|state| state.names.made.as_mut()) else {
            self.sharing.note_name_elsewhere();
            return;
        };
        if !names.doubt(name)
            && let Some(state) = &mut state
        {
            state.names.made = None;
        }
    }

    /// A name will be moved or removed at the manager: to be told before it is.
    pub fn doubt_name(&self, dir: InodeNo, name: &[u8]) {
        let Some(inode) = self.inode_known(dir) else { return };
        let mut state = inode.lock();
        if state.names.made.as_mut().is_some_and(|names| !names.doubt(name)) {
            state.names.made = None;
        }
    }

    /// Where a name leads that was made here, and that nobody is changing at the manager.
    pub fn surely_leads(&self, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
        let inode = self.inode_known(dir)?;
        let state = inode.lock();
        let names = state.names.made.as_ref()?;
        names.leads(name).filter(|_| self.sharing.same_claim(names.claim()))
    }

    /// Whether a directory made here has certainly no name.
    pub fn surely_empty(&self, dir: &Inode) -> bool {
        let state = dir.lock();
        state
            .names
            .made
            .as_ref()
            .is_some_and(|names| names.is_empty() && self.sharing.same_claim(names.claim()))
    }

    /// Whether a name is certainly not there. "." and ".." always are: by them the kernel finds its way from a handle.
    pub fn surely_absent(&self, dir: InodeNo, name: &[u8]) -> bool {
        if name == b"." || name == b".." {
            return false;
        }
        let Some(inode) = self.inode_known(dir) else { return false };
        let state = inode.lock();
        let Some(names) = &state.names.made else { return false };
        let ours = self.whole().is_some() && self.sharing.same_claim(names.claim());
        ours && self.calls.lease_valid() && !names.may_hold(name)
    }
}
