//! Directories of which all names are known ([`super::all`]): those made here, and those that are listed for it. Which names are certainly
//! not in them, and where the others lead.

use std::sync::Arc;

use base::InodeNo;
use wire::{
    mgr::{MgrReply, MgrRequest},
    token::TokenMode,
};

use super::all::AllNames;
use crate::{core::Core, files::inode::Inode, sharing::state::Moment};

/// Names listed at once: as many as one change of a name may cost. More of a directory are listed with the changes that follow.
const PAGE: u32 = 1024;

impl Core {
    /// A directory was made. Its names are all known, unless somebody was faster in it.
    pub fn begin_names(self: &Arc<Core>, dir: InodeNo, asked: Moment) {
        let inode = self.inode(dir);
        let mut state = inode.lock();
        let disturbed = self.sharing.named_elsewhere_since(asked) || self.sharing.claimed_since(asked);
        let claim = asked.claim();
        // Somebody may have found it already, and made something in it.
        let known = state.names.all.as_ref().is_some_and(|names| names.claim() == claim);
        let ours = self.whole().is_some() || state.token.mode() == TokenMode::Write && state.keeps();
        if !disturbed && !known && ours {
            state.names.all = Some(AllNames::of_new(claim, self.names.all.clone()));
        }
    }

    /// A name is about to be changed in a directory that was there before: lists a part of it, so that what follows can be done
    /// ahead of the manager. If that fails less is known.
    pub async fn learn_names(self: &Arc<Core>, dir: InodeNo) {
        let Some((inode, number, cookie)) = self.begin_listing(dir) else { return };
        let ask = MgrRequest::ReadDir { ino: dir, cookie, limit: PAGE, plus: false };
        if let Ok(MgrReply::Entries { entries, end, .. }) = self.calls.ask(ask).await
            && let Some(names) = &mut inode.lock().names.all
            && names.number() == number
        {
            names.list(cookie, &entries, end);
        }
    }

    /// Where a listing of all names begins or goes on. The manager is asked afterwards, and knows all that was made here by then.
    fn begin_listing(self: &Arc<Core>, dir: InodeNo) -> Option<(Arc<Inode>, u64, u64)> {
        // Read before it is looked whether nobody else can change it.
        let claim = self.sharing.now().claim();
        let inode = self.inode(dir);
        let mut state = inode.lock();
        self.may_work(&state)?;
        if state.gone || state.names.all.as_ref().is_none_or(|names| names.claim() != claim) {
            // What is under way would not be noted.
            if state.gone || !state.names.kept.is_still() || state.names.kept.is_spoiled() {
                return None;
            }
            state.names.all = Some(AllNames::of_old(claim, self.names.all.clone()));
        }
        let names = state.names.all.as_ref()?;
        let (number, cookie) = (names.number(), names.goes_on()?);
        drop(state);
        Some((inode, number, cookie))
    }

    /// Where a name leads, if that is certain and nobody is changing it at the manager.
    pub fn surely_leads(&self, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
        let inode = self.inode_known(dir)?;
        let state = inode.lock();
        let names = state.names.all.as_ref()?;
        names.leads(name).filter(|_| self.sharing.same_claim(names.claim()))
    }

    /// Whether that is certainly no directory.
    pub fn surely_no_directory(&self, dir: InodeNo, name: &[u8]) -> bool {
        let Some(inode) = self.inode_known(dir) else { return false };
        let state = inode.lock();
        let names = state.names.all.as_ref().filter(|names| self.sharing.same_claim(names.claim()));
        names.is_some_and(|names| names.leads_to_no_directory(name))
    }

    /// Whether a directory has certainly no name.
    pub fn surely_empty(&self, dir: &Inode) -> bool {
        let state = dir.lock();
        state
            .names
            .all
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
        let Some(names) = &state.names.all else { return false };
        let ours = (self.whole().is_some() || state.keeps()) && self.sharing.same_claim(names.claim());
        ours && self.calls.lease_valid() && !names.may_hold(name)
    }
}
