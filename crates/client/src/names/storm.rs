//! Many names of one directory are asked for, one after the other (`git status`, a tree opened by its index): the directory is
//! listed beside, a page at a time, and most of the questions need not be put. With the names come attributes, as long as nobody
//! else is there; with others these are good under a token each.
//!
//! Invariant: what is listed is kept by the rules of every listing ([`super::directory`]).
//!
//! On failure the question itself is put, as ever.

use std::sync::Arc;

use base::InodeNo;

use crate::{core::Core, files::inode::Inode};

/// A page that is being listed from a cookie on; ends also when who asked for it goes away.
struct Page {
    dir: Arc<Inode>,
    from: u64,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.dir.lock().names.kept.end_page(self.from);
    }
}

impl Core {
    /// Somebody is about to ask where a name leads: lists a page of the directory, if many ask.
    pub(super) async fn list_ahead(self: &Arc<Core>, dir: InodeNo) {
        let Some(inode) = self.inode_known(dir).filter(|_| self.uses_names()) else { return };
        let page = {
            let mut state = inode.lock();
            if state.keeps() { state.names.kept.begin_page(&self.names.kept) } else { None }
        };
        if let Some((from, names)) = page {
            let _page = Page { dir: inode, from };
            let _ = self.readdir(dir, from, names, self.whole().is_some()).await;
        }
    }
}
