//! A change of names and attributes, from before the manager hears of it until its answer is taken in.
//!
//! Invariant: while it is under way nothing is kept of what it changes; a change of which it is not known whether it was
//! made, or will be by a late copy, ends what is kept of its inodes.

use std::sync::Arc;

use base::InodeNo;
use wire::{
    mgr::{Attr, FileKind, MgrReply},
    token::{Token, TokenMode},
};

use super::hint::Hint;
use crate::{
    core::Core,
    error::Errno,
    files::{inode::Inode, touch::Touched},
    sharing::state::{ChangeAlone, ChangeBegun},
};

/// Set when a change was answered and no other was under way since it began.
pub(crate) type Newest = Option<ChangeAlone>;

/// A change of names and attributes that is under way; dropped without an end it is not known whether it was made.
pub(crate) struct Changing {
    core: Arc<Core>,
    names: Vec<(Arc<Inode>, Vec<u8>, u64)>,
    /// All that are changed, each once.
    inodes: Vec<Arc<Inode>>,
    begun: ChangeBegun,
    /// What is known of all names has it already.
    ahead: bool,
    ended: bool,
}

impl Core {
    /// A change of names, and of the attributes of their directories and of `others`, begins at the manager: to be told before it hears
    /// of it.
    pub fn change(self: &Arc<Core>, names: &[(InodeNo, &[u8])], others: &[InodeNo]) -> Changing {
        self.begin_change(names, others, false)
    }

    /// The same of one that is made ahead of the manager.
    pub fn change_ahead(self: &Arc<Core>, names: &[(InodeNo, &[u8])], others: &[InodeNo]) -> Changing {
        self.begin_change(names, others, true)
    }

    fn begin_change(
        self: &Arc<Core>,
        names: &[(InodeNo, &[u8])],
        others: &[InodeNo],
        ahead: bool,
    ) -> Changing {
        let begun = self.sharing.begin_change();
        let dirs: Vec<Arc<Inode>> = names.iter().map(|(dir, _)| self.inode(*dir)).collect();
        let others = others.iter().filter_map(|ino| self.inode_known(*ino));
        let mut inodes: Vec<Arc<Inode>> = dirs.iter().cloned().chain(others).collect();
        inodes.sort_unstable_by_key(|inode| inode.ino);
        inodes.dedup_by_key(|inode| inode.ino);
        // First: who begins to list all names sees that, or what is noted below.
        inodes.iter().for_each(|inode| inode.lock().names.kept.begin_change());
        let names = names.iter().zip(dirs).map(|((_, name), inode)| {
            let mut state = inode.lock();
            let generation = state.names.kept.begin_name_change(&self.names.kept, name);
            match &mut state.names.all {
                _ if ahead => state.names.worth.made(),
                Some(names) => names.doubt(name),
                None => self.sharing.note_name_elsewhere(),
            }
            if !ahead {
                state.names.worth.changed();
            }
            drop(state);
            (inode, name.to_vec(), generation)
        });
        let names = names.collect();
        Changing { core: self.clone(), names, inodes, begun, ahead, ended: false }
    }

    /// It is not known any more whether what is kept is true, or stays so.
    fn spoil(self: &Arc<Core>, inode: &Arc<Inode>) {
        let mut state = inode.lock();
        // Of a file too: whether it has another name is not known.
        state.names.kept.spoil();
        if state.special {
            state.outdate_attr();
            let token = Token::new(inode.ino, TokenMode::None, state.token.serial());
            if state.token.mode() > TokenMode::None && self.whole().is_none() {
                self.runtime.spawn(self.clone().give_back(token));
            }
            drop(state);
            self.kernel_attr_changed(inode);
        }
    }
}

impl Changing {
    /// Whether no other change of this client is under way, or was since this one began.
    pub fn is_alone(&self) -> bool {
        self.core.sharing.is_alone(self.begun)
    }

    /// Takes in the attributes of a file that came with the answer. Before the change ends: nobody is to believe an older count of
    /// its names.
    pub fn file_changed(&self, reply: &Result<MgrReply, Errno>) {
        let attr = match reply {
            Ok(MgrReply::Attr(attr) | MgrReply::Unlinked { attr: Some(attr) }) => attr,
            Ok(MgrReply::UnlinkedInUse(attr)) => attr,
            _ => return,
        };
        if attr.kind != FileKind::File {
            return;
        }
        let noted = self.inodes.iter().any(|inode| inode.ino == attr.ino);
        self.core.changed_attr(Attr::clone(attr), None);
        if !noted {
            // Another change may have been under way, and its answer the newer one.
            self.core.inode(attr.ino).lock().links_unsure = true;
        }
    }

    /// The change was answered: `leads` says where the names lead by it, as far as that is known, and `touched` what it
    /// did to the attributes of the directories.
    pub fn end(
        mut self,
        reply: &Result<MgrReply, Errno>,
        leads: &[Option<Hint>],
        touched: Touched,
    ) -> Newest {
        if matches!(reply, Err(Errno(libc::EIO | libc::ETIMEDOUT))) {
            return None; // nobody knows
        }
        self.ended = true;
        for (at, (inode, name, generation)) in self.names.iter().enumerate() {
            let mut state = inode.lock();
            let hint = leads.get(at).copied().flatten().filter(|_| reply.is_ok());
            if let Some(names) = state.names.all.as_mut().filter(|_| !self.ahead) {
                names.settle(name, reply.is_ok(), hint);
            }
            let hint = hint.filter(|_| state.keeps());
            state.names.kept.end_name_change(name, *generation, hint);
        }
        for inode in &self.inodes {
            let mut state = inode.lock();
            let alone = state.names.kept.end_change();
            let named = self.names.iter().any(|(dir, ..)| dir.ino == inode.ino);
            if named && alone && reply.is_ok() {
                state.touched(touched, self.core.whole().is_some());
            } else if named || state.special {
                state.outdate_attr();
            } else if !alone {
                state.links_unsure = true;
            }
            drop(state);
            if reply.is_ok() {
                self.core.kernel_attr_changed(inode);
            }
        }
        self.core.sharing.end_change(self.begun)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        for inode in &self.inodes {
            _ = inode.lock().names.kept.end_change();
            self.core.spoil(inode);
        }
        _ = self.core.sharing.end_change(self.begun);
    }
}
