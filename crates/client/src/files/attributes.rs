//! Attributes, between the inodes in memory and the manager.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use base::InodeNo;
use wire::{
    mgr::{Attr, Change, FileKind, MgrReply, MgrRequest},
    token::{Need, Token, TokenMode},
};

use super::{inode::Inode, set_attrs::SetAttrs, state::FileState, touch::Touched};
use crate::{
    calls::unexpected,
    core::{Core, now},
    error::Errno,
    names::changing::Newest,
    sharing::state::Moment,
};

/// Inodes that are given back at once because there are too many.
const GIVEN_BACK_AT_ONCE: usize = 16;

impl Core {
    /// All inodes in memory.
    pub fn all_inodes(&self) -> Vec<Arc<Inode>> {
        self.table.all()
    }

    /// The entry of an inode, made if it is not there.
    pub fn inode(self: &Arc<Core>, ino: InodeNo) -> Arc<Inode> {
        let max = self.tunables.files_to_cache_max as usize;
        let make = || Inode::new(ino, self.pool.clone(), self.first_token(), self.tunables.record_runs_max);
        let (inode, holding) = self.table.entry(ino, max, &self.sharing, make);
        self.give_back_idle(holding);
        inode
    }

    /// Nothing is under way: no more inodes stay than are to be kept.
    pub fn keep_few_inodes(self: &Arc<Core>) {
        let max = self.tunables.files_to_cache_max as usize;
        self.give_back_idle(self.table.settle_down(max, &self.sharing));
    }

    /// A few at a time: the kernel is asked for its pages of each, on a thread of its own.
    fn give_back_idle(self: &Arc<Core>, mut holding: Vec<Arc<Inode>>) {
        let share = holding.len().div_ceil(GIVEN_BACK_AT_ONCE);
        while !holding.is_empty() {
            let part = holding.split_off(holding.len().saturating_sub(share));
            let core = self.clone();
            self.runtime.spawn(async move {
                for inode in part {
                    // It may be used again by now.
                    if inode.used.load(Relaxed) {
                        core.table.given_back(inode, &core.sharing);
                        continue;
                    }
                    let token = Token::new(inode.ino, TokenMode::None, inode.lock().token.serial());
                    core.clone().give_back(token).await;
                    core.table.given_back(inode, &core.sharing);
                }
            });
        }
    }

    /// The entry of an inode, if there is one.
    pub fn inode_known(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        self.table.get(ino)
    }

    /// Drops the entry of an inode that does not exist any more.
    pub fn drop_inode(&self, ino: InodeNo) {
        self.table.remove(ino);
    }

    /// Takes in attributes that the manager gave as the result of a change: of a file, whose token is held, the newest.
    pub fn changed_attr(self: &Arc<Core>, attr: Attr, newest: Newest) -> Attr {
        let inode = self.inode(attr.ino);
        self.set_geometry(&inode, &attr);
        let mut state = inode.lock();
        state.learn_kind(attr.kind);
        if state.special {
            let newest = newest.is_some_and(|change| self.sharing.is_newest(change));
            state.take_changed(&attr, newest, self.whole().is_some());
            return attr;
        }
        state.told = self.sharing.note_told();
        if state.token.mode() < TokenMode::Read {
            state.gone |= attr.nlink == 0;
            return attr;
        }
        state.merge(attr);
        state.visible()
    }

    /// Takes in attributes that the manager gave as an answer to a question put at the moment `asked`; none if what was known
    /// here meanwhile may have been newer.
    pub fn seen_attr(self: &Arc<Core>, attr: Attr, asked: Moment) -> Option<Attr> {
        if attr.kind == FileKind::File && self.is_behind(attr.ino, asked) {
            return None;
        }
        let inode = self.inode(attr.ino);
        // Of a file whose entry was there all the time what was told is known.
        let dropped =
            attr.kind == FileKind::File && !inode.lock().attr_known && self.sharing.dropped_since(asked);
        (!dropped).then(|| self.seen_attr_of(&inode, attr, asked))
    }

    /// The same of an inode whose entry was there when it was asked for. What is known here is newer.
    pub fn seen_attr_of(&self, inode: &Arc<Inode>, attr: Attr, asked: Moment) -> Attr {
        self.set_geometry(inode, &attr);
        let mut state = inode.lock();
        state.learn_kind(attr.kind);
        if state.token.mode() < TokenMode::Read || state.special && self.whole().is_none() {
            return attr;
        }
        if !state.attr_known {
            let settled = !self.sharing.changed_since(asked) && state.settled_since(state.attr_generation);
            if state.special && !(settled && state.keeps_attr(self.whole().is_some())) {
                return attr;
            }
            state.merge(attr);
        } else if state.links_unsure {
            state.attr.nlink = attr.nlink;
            state.gone |= attr.nlink == 0;
            state.links_unsure = self.sharing.changed_since(asked);
        }
        state.visible()
    }

    pub fn set_geometry(&self, inode: &Inode, attr: &Attr) {
        let geometry = self.blocks.geometry(attr.pool);
        if geometry.is_some() {
            let _ = inode.home.set(attr.pool); // the same each time
        }
        let strips = geometry.map_or(1, |g| u32::from(g.data_strips.max(1)));
        inode.lock().strip_units = (attr.block_size / base::units::UNIT as u32 / strips).max(1);
    }

    /// Attributes, from here or from the manager.
    pub async fn getattr(self: &Arc<Core>, ino: InodeNo) -> Result<Attr, Errno> {
        let inode = self.inode(ino);
        let asked = self.sharing.now();
        let generation = {
            let state = inode.lock();
            if self.has_attr(&state) {
                return if state.gone && !state.opens.any() {
                    Err(Errno::ENOENT)
                } else {
                    Ok(state.visible())
                };
            }
            state.attr_generation
        };
        if let Some(answer) = self.attr_with_token(&inode).await {
            return answer;
        }
        if let Some(answer) = self.file_attr_with_token(&inode).await {
            return answer;
        }
        match self.calls.ask(MgrRequest::GetAttr { ino }).await {
            Ok(MgrReply::Attr(attr)) if attr.kind == FileKind::File && self.is_behind(ino, asked) => {
                self.attr_under_token(ino).await
            }
            Ok(MgrReply::Attr(attr)) if attr.kind == FileKind::File => {
                let same = inode.lock().attr_generation == generation;
                Ok(if same { self.seen_attr_of(&inode, *attr, asked) } else { *attr })
            }
            Ok(MgrReply::Attr(attr)) => {
                self.set_geometry(&inode, &attr);
                let mut state = inode.lock();
                state.learn_kind(attr.kind);
                if state.settled_since(generation) && state.keeps_attr(self.whole().is_some()) {
                    state.merge(Attr::clone(&attr));
                }
                Ok(*attr)
            }
            Ok(MgrReply::Held(_)) => self.attr_under_token(ino).await,
            Ok(other) => Err(unexpected("GetAttr", &other)),
            Err(error) => {
                if error == Errno::ENOENT && !inode.lock().opens.any() {
                    self.drop_inode(ino);
                }
                Err(error)
            }
        }
    }

    /// Changes attributes; the size first, by itself. Those of files go to the manager with the next commit:
    /// by age, after the last close, with fsync, or before the token is given up. On a squashed machine the manager says first
    /// whether this program may.
    pub async fn setattr(self: &Arc<Core>, ino: InodeNo, set: SetAttrs) -> Result<Attr, Errno> {
        let before = self.getattr(ino).await?;
        let kind = before.kind;
        let inode = self.inode(ino);
        let _hold = match kind {
            FileKind::File => Some(self.hold(&inode, Need::Write).await?),
            _ => None,
        };
        if let Some(size) = set.size {
            if kind != FileKind::File {
                Core::check_file(kind)?;
            }
            self.truncate(&inode, size).await?;
        }
        let others = SetAttrs { size: None, ctime: None, ..set };
        if others == SetAttrs::default() {
            return Ok(if kind == FileKind::File { inode.lock().visible() } else { before });
        }
        let ctime = set.ctime.unwrap_or_else(now);
        let change = Change::SetAttr {
            ino,
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: None,
            atime: set.atime,
            mtime: set.mtime,
            ctime,
            highest: self.any_version(),
        };
        if kind == FileKind::File {
            // Privileges that go with a change of content go whoever made it.
            let asks = SetAttrs { drop_privileges: false, ..others } != SetAttrs::default();
            let mut others = others;
            if self.session.squash.is_any() && asks {
                let (core, inode) = (self.clone(), inode.clone());
                let told = self.carry_out(async move { core.set_at_manager(&inode, change).await }).await?;
                // It may have taken the bit of a group away that the program is not in.
                others.mode = others.mode.map(|_| told.mode);
            }
            self.throttle_files(&inode).await?;
            let attr = inode.lock().set(&others, ctime);
            self.note_unsettled(&inode);
            return Ok(attr);
        }
        if let Some(attr) = self.set_ahead(&inode, &change) {
            return Ok(attr);
        }
        let core = self.clone();
        self.carry_out(async move { core.set_at_manager(&inode, change).await }).await
    }

    /// Attributes of what is no file are the manager's. Returns them as it has them.
    async fn set_at_manager(self: &Arc<Core>, inode: &Arc<Inode>, change: Change) -> Result<Attr, Errno> {
        let _commit = self.patient("an inode's commit", Some(inode.ino), inode.commit.lock()).await?;
        let changing = self.change(&[], &[inode.ino]);
        let reply = self.calls.mutate(change).await;
        let newest = changing.end(&reply, &[], Touched::Unknown);
        match reply? {
            MgrReply::Attr(attr) => {
                self.changed_attr(Attr::clone(&attr), newest);
                Ok(*attr)
            }
            other => Err(unexpected("SetAttr", &other)),
        }
    }

    /// Whether its attributes are known here, and nobody else can change them.
    pub(crate) fn has_attr(&self, state: &FileState) -> bool {
        let held = match state.special && self.whole().is_none() {
            true => state.keeps(),
            false => state.token.mode() >= TokenMode::Read,
        };
        let exact = !state.links_unsure || state.gone;
        state.attr_known && exact && held && self.calls.lease_valid()
    }

    /// Whether it is known here that an inode, of whatever kind, has no extended attribute.
    pub fn is_plain(&self, ino: InodeNo) -> bool {
        let Some(inode) = self.inode_known(ino) else { return false };
        let state = inode.lock();
        state.attr.plain && self.has_attr(&state)
    }

    /// What follows when an inode lost a name ([`crate::names::changing::Changing::file_changed`] was told of a file's): without names and handles it is given up.
    /// `in_use`: others have it open.
    pub async fn name_lost(self: &Arc<Core>, attr: Attr, in_use: bool, newest: Newest) {
        let (ino, last) = (attr.ino, attr.nlink == 0);
        if attr.kind != FileKind::File {
            self.changed_attr(attr, newest);
        }
        let inode = self.inode(ino);
        let unused = {
            let mut state = inode.lock();
            state.unshared |= last && !in_use;
            state.gone && !state.opens.any()
        };
        if unused {
            self.give_up(&inode, true);
        }
    }
}
