//! Where names lead, and which there are.

use std::sync::Arc;

use base::InodeNo;
use wire::{
    mgr::{Attr, DirEntry, FileKind, MgrReply, MgrRequest, NAME_LEN_MAX},
    token::Need,
};

use super::hint::Hint;
use crate::{calls::unexpected, core::Core, error::Errno, sharing::guards::TokenHold};

/// How often names are looked up again that other sessions change at the same time.
pub(super) const STALE_TRIES: u32 = 64;

/// One listing of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Entries in cookie order, without "." and "..".
    pub entries: Vec<DirEntry>,
    /// Whether nothing follows.
    pub end: bool,
    /// The directory's parent.
    pub parent: InodeNo,
}

impl Core {
    /// The inode a name leads to.
    pub async fn lookup(self: &Arc<Core>, parent: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
        check_name(name)?;
        if self.surely_absent(parent, name) {
            return Err(Errno::ENOENT);
        }
        for _ in 0..STALE_TRIES {
            if let Some(attr) = self.look_up(parent, name).await? {
                return Ok(attr);
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// The same, if what the name led to was still there when its attributes were asked for: another session may lead
    /// the name elsewhere meanwhile, and then it never was absent.
    async fn look_up(self: &Arc<Core>, parent: InodeNo, name: &[u8]) -> Result<Option<Attr>, Errno> {
        let mut known = self.known_name(parent, name);
        if known.is_none() {
            self.want_names(parent).await;
            self.list_ahead(parent).await;
            known = self.known_name(parent, name);
        }
        match known {
            Some(Hint { ino: InodeNo(0), .. }) => return Err(Errno::ENOENT),
            Some(hint) => match self.getattr_of(hint).await {
                Ok(attr) if attr.nlink > 0 => return Ok(Some(attr)),
                // Removed since it was looked for.
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            },
            None => {}
        }
        let question = self.question(parent, name);
        let asked = self.sharing.now();
        let reply = self.calls.ask(MgrRequest::Lookup { parent, name: name.to_vec() }).await;
        match question {
            Some(question) => question.answered(Hint::of(&reply)),
            None if self.whole().is_none() => {
                // While others are there the kernel asks for a name before it changes it.
                Hint::of(&reply).into_iter().for_each(|hint| self.names.hints.note(parent, name, hint));
            }
            None => {}
        }
        let ino = match reply? {
            MgrReply::Attr(attr) => match (attr.ino, self.seen_attr(*attr, asked)) {
                (_, Some(attr)) => return Ok(Some(attr)),
                (ino, None) => ino,
            },
            MgrReply::Held(attr) => attr.ino,
            other => return Err(unexpected("Lookup", &other)),
        };
        match self.attr_under_token(ino).await {
            Err(Errno::ENOENT) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Attributes of what a name leads to. That it is a file is told first: then its token is asked for with them.
    async fn getattr_of(self: &Arc<Core>, hint: Hint) -> Result<Attr, Errno> {
        if hint.is_file {
            self.inode(hint.ino).lock().learn_kind(FileKind::File);
        }
        self.getattr(hint.ino).await
    }

    /// The write tokens of the files that names lead to, and these as a change expects them (0: no such
    /// name). Nothing while everything is held. What the kernel asked for just before is believed once: the manager
    /// refuses a change that expects something else.
    pub async fn hold_names(
        self: &Arc<Core>,
        names: &[(InodeNo, &[u8])],
    ) -> Result<(Vec<TokenHold>, Option<Vec<InodeNo>>), Errno> {
        if self.whole().is_some() {
            return Ok((Vec::new(), None));
        }
        let (mut inos, mut files) = (Vec::new(), Vec::new());
        for (parent, name) in names {
            let known = self.known_name(*parent, name);
            let hint = match known.or_else(|| self.names.hints.take(*parent, name)) {
                Some(hint) => hint,
                None => {
                    let ask = MgrRequest::Lookup { parent: *parent, name: name.to_vec() };
                    let reply = self.calls.ask(ask).await;
                    match Hint::of(&reply) {
                        Some(hint) => hint,
                        None => return Err(unexpected("Lookup", &reply?)),
                    }
                }
            };
            inos.push(hint.ino);
            files.extend(hint.is_file.then_some(hint.ino));
        }
        // Always in the same order: two who want the same two do not wait for each other.
        files.sort_unstable();
        files.dedup();
        let mut holds = Vec::new();
        for ino in files {
            match self.hold(&self.inode(ino), Need::Write).await {
                Ok(hold) => holds.push(hold),
                // Removed meanwhile: the change will find the name changed.
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((holds, Some(inos)))
    }

    /// Entries of a directory after `cookie` (0: from the start), with `plus` their attributes too.
    pub async fn readdir(
        self: &Arc<Core>,
        ino: InodeNo,
        cookie: u64,
        limit: u32,
        plus: bool,
    ) -> Result<Listing, Errno> {
        let limit = limit.clamp(1, 4096);
        if let Some(listing) = self.listed_just_now(ino, cookie, limit, plus) {
            return Ok(listing);
        }
        let asked = self.sharing.now();
        let listed = self.before_listing(ino, cookie);
        match self.calls.ask(MgrRequest::ReadDir { ino, cookie, limit, plus }).await? {
            MgrReply::Entries { mut entries, end, parent } => {
                listed.into_iter().for_each(|listed| self.listed(listed, &entries, end, parent));
                for entry in &mut entries {
                    // What may be behind is asked for when it is wanted.
                    entry.attr = entry.attr.take().and_then(|attr| self.seen_attr(attr, asked));
                }
                Ok(Listing { entries, end, parent })
            }
            other => Err(unexpected("ReadDir", &other)),
        }
    }

    /// What the manager would answer to the same question, if that is known.
    fn listed_just_now(&self, ino: InodeNo, cookie: u64, limit: u32, plus: bool) -> Option<Listing> {
        let dir = self.inode_known(ino).filter(|_| self.uses_names())?;
        let (entries, parent) = {
            let state = dir.lock();
            let position = state.keeps().then(|| state.names.kept.position())?;
            self.names.recent.of(&dir, position)?
        };
        let rest = &entries[entries.partition_point(|entry| entry.cookie <= cookie)..];
        let page = &rest[..rest.len().min(limit as usize)];
        let known = |entry: &DirEntry| {
            let attr = if plus { Some(self.attr_at_hand(entry.ino)?) } else { None };
            Some(DirEntry { name: entry.name.clone(), attr, ..*entry })
        };
        let entries = page.iter().map(known).collect::<Option<Vec<_>>>()?;
        Some(Listing { entries, end: page.len() == rest.len(), parent })
    }

    fn attr_at_hand(&self, ino: InodeNo) -> Option<Attr> {
        let inode = self.inode_known(ino)?;
        let state = inode.lock();
        (self.has_attr(&state) && !state.gone).then(|| state.visible())
    }
}

/// Refuses what cannot be a name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_LEN_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
