//! Making and removing names ahead of the manager (docs/names-ahead.md): while this session has the file system alone, or holds the
//! directory for `Write`, what it makes in a directory of which it knows all names is made in memory, with an inode number granted before, and
//! told in batches; so is that it is moved or removed.
//!
//! Invariants: a name is made here only if it is certainly absent, and removed only if it is certainly the last one of its inode, and
//! nothing else could refuse it, so the manager refuses nothing that was acknowledged. Nobody else can look meanwhile: before another session begins this one says what it holds,
//! and before a directory is given up, and tells all that it has made first ([`Core::share`], [`crate::sharing::give`]). What is made beside
//! others is held for `Write` from the beginning, at the manager from the transaction that makes it.
//!
//! On failure of anything before the name is made, it is made at the manager, as ever.

use std::sync::{Arc, Weak};

use base::{Grant, InodeNo, PoolId};
use wire::{
    mgr::{Attr, Change, FileKind, MgrReply, SYMLINK_LEN_MAX, Timestamp, without_privileges},
    token::{Need, Token, TokenMode},
};

use super::{all::AllNames, hint::Hint};
use crate::{
    ahead::Log,
    calls::{MANY_MAX, unexpected},
    core::{Core, now},
    error::Errno,
    files::{
        inode::Inode,
        state::FileState,
        touch::{Touched, Unused},
    },
};

/// Inode numbers asked for at once. The next are asked for when all before is told, so with few at a time a program rests often; a store
/// that is nearly full refuses none that was granted, so they are not many more.
const NUMBERS: u32 = 16_384;
/// What a directory shows as its size, bytes.
const DIRECTORY_SIZE: u64 = 4096;
const S_ISGID: u16 = 0o2000;

/// By what something may be done ahead of the manager.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// Everything is held.
    Whole,
    /// The directory is, under this grant.
    Held(Grant),
}

/// What a new inode has of its directory.
struct Inherited {
    pool: PoolId,
    block_size: u32,
    mode: u16,
    gid: u32,
}

impl Core {
    /// What [`Change::Create`] says, if it may be made ahead of the manager; it is made then.
    pub async fn create_ahead(self: &Arc<Core>, change: &Change) -> Option<Attr> {
        let Change::Create { parent, ref name, kind, now, ref target, .. } = *change else { return None };
        let plain = kind != FileKind::Symlink
            || (1..=SYMLINK_LEN_MAX).contains(&target.len()) && !target.contains(&0);
        if !self.may_be_ahead() || !plain {
            return None;
        }
        self.want_making(parent).await;
        self.may_work_in(parent)?;
        self.learn_names(parent).await;
        if !self.surely_absent(parent, name) {
            return None;
        }
        self.have_numbers(parent).await.ok()?;
        self.calls.room_ahead().await;
        self.dir_attr_known(parent).await?;
        let asked = self.sharing.now();
        let mut made = None;
        self.calls.ahead.append(|ino| {
            let (right, inherited) = (self.may_work_in(parent)?, self.inherited(parent)?);
            self.claim_name(parent, name, ino, kind != FileKind::Directory).then(|| {
                if let Right::Held(grant) = right {
                    let inode = self.inode(ino);
                    let mut state = inode.lock();
                    state.learn_kind(kind);
                    state.token.made(grant);
                }
                made = Some((new_attr(ino, change, &inherited), self.change_ahead(&[(parent, name)], &[])));
                create_as(ino, change)
            })
        })?;
        let (attr, changing) = made?;
        let reply = Ok(MgrReply::Created { attr: Box::new(attr.clone()), new: true });
        let directory = kind == FileKind::Directory;
        let newest = changing.end(&reply, &[Hint::of(&reply)], Touched::At(now, i32::from(directory)));
        if directory {
            self.begin_names(attr.ino, asked);
            self.made_directory(attr.ino);
        }
        Some(self.made(self.changed_attr(attr, newest)))
    }

    /// Removes the last name of what is known here, or an empty directory, if that may be done ahead of the manager. False: nothing
    /// is done.
    pub async fn unlink_ahead(self: &Arc<Core>, parent: InodeNo, name: &[u8], directory: bool) -> bool {
        if self.may_work_in(parent).is_none() {
            return false;
        }
        self.learn_names(parent).await;
        self.calls.room_ahead().await;
        let now = now();
        let mut done = None;
        let appended = self.calls.ahead.append_change(|| {
            let alone = self.may_work_in(parent)? == Right::Whole;
            let ino = self.surely_leads(parent, name)?;
            let inode = self.inode_known(ino);
            let may = match &inode {
                Some(inode) => !directory || self.surely_empty(inode),
                // Of what is kept no more nothing is open or under way here, nor elsewhere, since nobody else is there. Whether it has
                // other names the manager sees.
                None => alone && !directory && self.surely_no_directory(parent, name),
            };
            if !may {
                return None;
            }
            let changing = self.change_ahead(&[(parent, name)], &[]);
            let unused = match &inode {
                Some(inode) => inode.lock().lose_last_name(directory, now, alone),
                None => {
                    // An answer that is under way says that it is there still.
                    self.sharing.note_dropped(self.sharing.note_told());
                    Some(Unused::Settled)
                }
            };
            let Some(unused) = unused else {
                changing.end(&Err(Errno(libc::EAGAIN)), &[], Touched::Nothing);
                return None;
            };
            self.with_names(parent, |names| names.remove(name, ino));
            // Where nothing of it is under way the manager need not be told once more that it may go.
            let open = unused != Unused::Settled;
            done = Some((inode, unused, changing));
            let (name, highest) = (name.to_vec(), self.any_version());
            Some(Change::Unlink { parent, name, directory, open, highest, expect: Some(ino), now })
        });
        let Some((inode, unused, changing)) = done.filter(|_| appended) else { return false };
        let reply = Ok(MgrReply::Done);
        changing.end(&reply, &[Some(Hint::NOTHING)], Touched::At(now, -i32::from(directory)));
        if let Some(inode) = inode.filter(|_| unused != Unused::Open) {
            self.give_up(&inode, unused != Unused::Settled);
        }
        true
    }

    /// Moves a name, over what it replaces, if that may be done ahead of the manager. False: nothing is done.
    pub async fn rename_ahead(
        self: &Arc<Core>,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        no_replace: bool,
    ) -> bool {
        if self.may_work_in(from.0).and(self.may_work_in(to.0)).is_none() {
            return false;
        }
        self.learn_names(from.0).await;
        self.learn_names(to.0).await;
        self.calls.room_ahead().await;
        let now = now();
        let mut done = None;
        let appended = self.calls.ahead.append_change(|| {
            let rights = [self.may_work_in(from.0)?, self.may_work_in(to.0)?];
            let alone = rights == [Right::Whole; 2];
            let ino = self.surely_leads(from.0, from.1)?;
            let inode = self.inode_known(ino)?;
            let replaced = match self.surely_absent(to.0, to.1) {
                true => None,
                false => Some(self.inode_known(self.surely_leads(to.0, to.1)?)?),
            };
            if no_replace && replaced.is_some()
                || replaced.as_ref().is_some_and(|replaced| replaced.ino == ino)
                || self.inode_known(to.0).is_none_or(|dir| {
                    let state = dir.lock();
                    state.gone || !state.names.kept.is_still()
                })
                || !inode.lock().may_move(from.0 == to.0, replaced.is_some(), alone)
            {
                return None;
            }
            let changing = self.change_ahead(&[from, to], &[]);
            let unused = match &replaced {
                Some(replaced) => replaced.lock().lose_last_name(false, now, alone),
                None => {
                    let no_directory = inode.lock().attr.kind != FileKind::Directory;
                    self.claim_name(to.0, to.1, ino, no_directory).then_some(Unused::Open)
                }
            };
            let Some(unused) = unused else {
                changing.end(&Err(Errno(libc::EAGAIN)), &[], Touched::Nothing);
                return None;
            };
            let mut lost = InodeNo(0);
            if let Some(replaced) = &replaced {
                lost = replaced.ino;
                self.with_names(to.0, |names| names.replace(to.1, lost, ino));
            }
            self.with_names(from.0, |names| names.remove(from.1, ino));
            let is_file = {
                let mut state = inode.lock();
                state.told = self.sharing.note_told();
                state.moved(now)
            };
            done = Some((replaced, unused, changing, Hint { ino, is_file }));
            Some(Change::Rename {
                parent: from.0,
                name: from.1.to_vec(),
                new_parent: to.0,
                new_name: to.1.to_vec(),
                no_replace,
                exchange: false,
                open: unused != Unused::Settled,
                highest: self.any_version(),
                expect: Some((ino, lost)),
                now,
            })
        });
        let Some((replaced, unused, changing, hint)) = done.filter(|_| appended) else { return false };
        let moved = self.inode_known(hint.ino);
        changing.end(&Ok(MgrReply::Done), &[Some(Hint::NOTHING), Some(hint)], Touched::At(now, 0));
        if let Some(moved) = moved {
            self.kernel_attr_changed(&moved);
        }
        if let Some(replaced) = replaced.filter(|_| unused != Unused::Open) {
            self.give_up(&replaced, unused != Unused::Settled);
        }
        true
    }

    /// A name is about to be moved, perhaps over another: what was written to it is made durable first, so that after a crash the
    /// other name has its old content or all of the new one.
    pub async fn content_first(
        self: &Arc<Core>,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
    ) -> Result<(), Errno> {
        let shared = self.whole().is_none();
        let known = |(dir, name): (InodeNo, &[u8])| {
            let asked = || self.names.hints.last(dir, name).filter(|_| shared);
            self.known_name(dir, name).or_else(asked).map(|hint| hint.ino)
        };
        if self.surely_absent(to.0, to.1) || known(to) == Some(InodeNo(0)) {
            return Ok(());
        }
        match self.surely_leads(from.0, from.1).or_else(|| known(from)) {
            Some(ino) => self.content_durable(ino).await,
            None => Ok(()),
        }
    }

    /// What was written here to an inode is durable when this returns.
    pub(super) async fn content_durable(self: &Arc<Core>, ino: InodeNo) -> Result<(), Errno> {
        match self.inode_known(ino).filter(|inode| inode.lock().content_unsettled()) {
            Some(inode) => self.make_durable(&inode, 0, u64::MAX, true).await,
            None => Ok(()),
        }
    }

    fn with_names(&self, dir: InodeNo, change: impl FnOnce(&mut AllNames)) {
        if let Some(inode) = self.inode_known(dir)
            && let Some(names) = &mut inode.lock().names.all
        {
            change(names);
        }
    }

    /// What [`Change::SetAttr`] says of what is no file, if it may be done ahead of the manager; it is done then. Trees are copied so:
    /// each directory gets its owner, mode and times.
    pub fn set_ahead(self: &Arc<Core>, inode: &Arc<Inode>, change: &Change) -> Option<Attr> {
        if !self.may_be_ahead() {
            return None;
        }
        let mut done = None;
        self.calls.ahead.append_change(|| {
            let attr = self.attr_set(inode, change)?;
            done = Some((attr, self.change_ahead(&[], &[inode.ino])));
            Some(change.clone())
        });
        let (attr, changing) = done?;
        let newest = changing.end(&Ok(MgrReply::Done), &[], Touched::Unknown);
        Some(self.changed_attr(attr, newest))
    }

    /// Attributes as a change leaves them, of what nobody else is changing.
    fn attr_set(&self, inode: &Inode, change: &Change) -> Option<Attr> {
        let Change::SetAttr { mode, uid, gid, size: None, atime, mtime, ctime, .. } = *change else {
            return None;
        };
        let mut attr = {
            let state = inode.lock();
            self.may_work(&state)?;
            let known =
                state.attr_known && state.special && state.keeps_attr(true) && state.names.kept.is_still();
            (known && !state.gone && state.attr.nlink > 0).then(|| state.attr.clone())?
        };
        if uid.is_some() || gid.is_some() {
            attr.mode =
                if attr.kind == FileKind::Directory { attr.mode } else { without_privileges(attr.mode) };
        }
        attr.mode = mode.map_or(attr.mode, |mode| mode & 0o7777);
        attr.uid = uid.unwrap_or(attr.uid);
        attr.gid = gid.unwrap_or(attr.gid);
        attr.atime = atime.unwrap_or(attr.atime);
        attr.mtime = mtime.unwrap_or(attr.mtime);
        attr.ctime = ctime;
        Some(attr)
    }

    /// By what it may change names in a directory ahead now.
    fn may_work_in(&self, dir: InodeNo) -> Option<Right> {
        match self.inode_known(dir) {
            Some(inode) => self.may_work(&inode.lock()),
            None => self.whole().filter(|_| self.may_be_ahead()).map(|_| Right::Whole),
        }
    }

    /// The same, of its state; of what is no directory: whether its attributes may be.
    pub(super) fn may_work(&self, dir: &FileState) -> Option<Right> {
        if !self.may_be_ahead() {
            return None;
        }
        let held = dir.token.mode() == TokenMode::Write && dir.keeps() && !self.sharing.is_claiming();
        match self.whole() {
            Some(_) => Some(Right::Whole),
            None => held.then(|| Right::Held(dir.token.serial())),
        }
    }

    /// Gets a directory to make names in it ahead of the manager, beside others, if that is worth it.
    async fn want_making(self: &Arc<Core>, dir: InodeNo) {
        let Some(inode) = self.inode_known(dir).filter(|_| self.asks_tokens()) else { return };
        if !inode.lock().names.worth.is_due() {
            return;
        }
        // The manager gives it only to who has numbers.
        if self.have_numbers(dir).await.is_err() {
            return inode.lock().names.worth.asked(false);
        }
        if inode.lock().wants_making() {
            // Without it the name is made at the manager.
            let _ = self.ask_names(&inode, Need::Make).await;
            let mut state = inode.lock();
            let got = state.token.mode() == TokenMode::Write;
            state.names.worth.asked(got);
        }
    }

    /// Whether this session does anything ahead at all. On a squashed machine the manager says who may what, and of a subtree
    /// it looks whether the directory is in it: both need the directory to be there.
    pub(super) fn may_be_ahead(&self) -> bool {
        self.tunables.names_ahead
            && !self.session.is_guest()
            && self.calls.lease_valid()
            && !self.calls.dead()
            && self.calls.given_up.is_none()
    }

    /// Numbers for what is made in a directory, asked for by a task of its own: it is not given up in the middle.
    pub(super) async fn have_numbers(self: &Arc<Core>, dir: InodeNo) -> Result<(), Errno> {
        if !self.calls.ahead.wants_numbers() {
            return Ok(());
        }
        let core = self.clone();
        let asked = self.runtime.spawn(async move { core.ask_numbers().await });
        self.patient("inode numbers", Some(dir), asked).await?.unwrap_or(Err(Errno::EIO))
    }

    /// New numbers, when all with the old ones is told.
    async fn ask_numbers(self: &Arc<Core>) -> Result<(), Errno> {
        let _asking = self.calls.ahead.asking.lock().await;
        if !self.calls.ahead.wants_numbers() {
            return Ok(());
        }
        match self.calls.mutate(Change::Numbers { count: NUMBERS }).await? {
            MgrReply::Numbers { first, count } => {
                self.calls.ahead.add_numbers(first, count);
                Ok(())
            }
            other => Err(unexpected("Numbers", &other)),
        }
    }

    /// Asks for the attributes of a directory where they are not known.
    async fn dir_attr_known(self: &Arc<Core>, dir: InodeNo) -> Option<()> {
        let known = self.inode_known(dir)?.lock().attr_known;
        if !known {
            self.getattr(dir).await.ok()?;
        }
        Some(())
    }

    /// None if the directory is not one to make anything in.
    fn inherited(&self, dir: InodeNo) -> Option<Inherited> {
        let inode = self.inode_known(dir)?;
        let alone = self.whole().is_some();
        let state = inode.lock();
        // Who is changing it knows better.
        let usable = state.attr_known && !state.gone && state.attr.nlink < i32::MAX as u32;
        let Attr { kind, pool, block_size, mode, gid, .. } = state.attr;
        let usable =
            usable && kind == FileKind::Directory && state.keeps_attr(alone) && state.names.kept.is_still();
        usable.then_some(Inherited { pool, block_size, mode, gid })
    }

    /// What was made here is told: from now on it is held under tokens that the manager has given, if it was made beside others.
    fn hold_told(self: &Arc<Core>, told: impl Iterator<Item = (InodeNo, MgrReply)>) {
        let mut left = Vec::new();
        for (ino, reply) in told {
            let (inode, none) = (self.inode_known(ino), |serial| Token::new(ino, TokenMode::None, serial));
            match (inode, reply) {
                (Some(inode), MgrReply::CreatedHeld { token, .. }) => {
                    left.extend(inode.lock().token.told(&token));
                }
                // It is removed already.
                (None, MgrReply::CreatedHeld { token, .. }) => left.push(none(token.serial)),
                (Some(inode), _) => {
                    let mut state = inode.lock();
                    // Others may have got it since, if this is said once more.
                    if state.token.told_without() && self.whole().is_none() {
                        let serial = state.token.serial();
                        self.runtime.spawn(self.clone().give_back(none(serial)));
                    }
                }
                (None, _) => {}
            }
        }
        self.release_soon(left);
    }

    /// Notes a name that is made now; false if somebody else has.
    fn claim_name(&self, dir: InodeNo, name: &[u8], ino: InodeNo, no_directory: bool) -> bool {
        let Some(inode) = self.inode_known(dir) else { return false };
        let mut state = inode.lock();
        let gone = state.gone;
        // What was known when it was looked at may be of a time before others were there.
        let names = state.names.all.as_mut().filter(|names| self.sharing.same_claim(names.claim()));
        let Some(names) = names.filter(|_| !gone) else { return false };
        names.make(name, ino, no_directory)
    }
}

/// The attributes of what is made, as the manager will have them.
fn new_attr(ino: InodeNo, change: &Change, dir: &Inherited) -> Attr {
    let Change::Create { kind, mode, uid, gid, rdev, ref target, now, .. } = *change else {
        return Attr::default();
    };
    let (is_dir, set_gid) = (kind == FileKind::Directory, dir.mode & S_ISGID != 0);
    let mode = if kind == FileKind::Symlink { 0o777 } else { mode & 0o7777 };
    let times: [Timestamp; 4] = [now; 4];
    let [atime, mtime, ctime, btime] = times;
    Attr {
        ino,
        kind,
        mode: if set_gid && is_dir { mode | S_ISGID } else { mode },
        uid,
        gid: if set_gid { dir.gid } else { gid },
        nlink: if is_dir { 2 } else { 1 },
        size: if is_dir { DIRECTORY_SIZE } else { target.len() as u64 },
        stored: 0,
        rdev,
        atime,
        mtime,
        ctime,
        btime,
        pool: dir.pool,
        block_size: dir.block_size,
        inline: kind == FileKind::File,
        plain: true,
    }
}

/// What the manager is told.
fn create_as(ino: InodeNo, change: &Change) -> Change {
    match change.clone() {
        Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now, .. } => {
            Change::CreateAs { ino, parent, name, kind, mode, uid, gid, rdev, target, now }
        }
        other => other,
    }
}

/// Tells the manager what was made, until the client is gone or the session has ended.
pub(crate) async fn tell(core: Weak<Core>, log: Arc<Log>) {
    while let Some(changes) = log.due(MANY_MAX).await {
        let Some(core) = core.upgrade() else { return };
        let made = |change: &Change| match change {
            Change::CreateAs { ino, .. } => Some(*ino),
            _ => None,
        };
        let made: Vec<Option<InodeNo>> = changes.iter().map(made).collect();
        let outcomes = core.calls.tell_ahead(changes, core.whole().is_none()).await;
        let told = made.into_iter().zip(outcomes.unwrap_or_default());
        core.hold_told(told.filter_map(|(made, reply)| Some((made?, reply))));
    }
}
