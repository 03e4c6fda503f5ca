//! Making, linking, moving and removing names. Each is carried to its end also when nobody waits for it any more
//! ([`crate::changes`]).

use std::sync::Arc;

use base::InodeNo;
use wire::{
    mgr::{Attr, Change, FileKind, MgrReply, MgrRequest, Timestamp},
    token::{Need, TokenMode},
};

use super::{changing::Newest, hint::Hint, lookup::STALE_TRIES};
use crate::{
    calls::unexpected,
    core::{Core, now},
    error::Errno,
    files::{handle::OpenFlags, touch::Touched},
};

impl Core {
    /// What [`Change::Create`] says.
    pub async fn create_now(self: &Arc<Core>, change: Change) -> Result<(Attr, bool), Errno> {
        for _ in 0..STALE_TRIES {
            if let Some(made) = self.create_once(&change).await? {
                return Ok(made);
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// The same, if what was there already is still there when its attributes are asked for.
    async fn create_once(self: &Arc<Core>, change: &Change) -> Result<Option<(Attr, bool)>, Errno> {
        let Change::Create { parent, ref name, kind, now, .. } = *change else { return Err(Errno::EINVAL) };
        let hold = self.whole().is_none()
            && match kind {
                FileKind::File => true,
                // With its token names are made in it ahead.
                FileKind::Directory => self.may_be_ahead() && self.have_numbers(parent).await.is_ok(),
                _ => false,
            };
        let changing = self.change(&[(parent, name)], &[]);
        let asked = self.sharing.now();
        let reply = self.calls.mutate_and_hold(change.clone(), hold).await;
        let touched = match reply {
            Ok(MgrReply::Created { new: false, .. }) => Touched::Nothing,
            _ => Touched::At(now, i32::from(kind == FileKind::Directory)),
        };
        let newest = changing.end(&reply, &[Hint::of(&reply)], touched);
        match reply? {
            MgrReply::Created { attr, new: false } => {
                let ino = attr.ino;
                let seen = self.whole().and_then(|_| self.seen_attr(*attr, asked));
                match seen {
                    Some(attr) => Ok(Some((attr, false))),
                    None => match self.getattr(ino).await {
                        Err(Errno::ENOENT) => Ok(None),
                        attr => Ok(Some((attr?, false))),
                    },
                }
            }
            MgrReply::Created { attr, new: true } => {
                if kind == FileKind::Directory {
                    self.begin_names(attr.ino, asked);
                    self.made_directory(attr.ino);
                }
                // An answer that came by a repetition only may be older than what others did to the file here.
                let old = kind == FileKind::File && self.sharing.dropped_since(asked);
                let attr = match old {
                    true => match self.getattr(attr.ino).await {
                        // It was made, and has been removed since.
                        Err(Errno::ENOENT) => *attr,
                        newer => newer?,
                    },
                    false => self.changed_attr(*attr, newest),
                };
                Ok(Some((self.made(attr), true)))
            }
            MgrReply::CreatedHeld { attr, token, resolve } => {
                self.take_made(Attr::clone(&attr), &token, resolve, asked);
                if kind == FileKind::Directory {
                    self.begin_names(attr.ino, asked);
                }
                Ok(Some((self.made(*attr), true)))
            }
            other => Err(unexpected("Create", &other)),
        }
    }

    /// Nothing of what was made here and is held can be on the pdisks that is not known here.
    pub fn made(self: &Arc<Core>, attr: Attr) -> Attr {
        let inode = self.inode(attr.ino);
        let mut state = inode.lock();
        state.born_here = state.token.mode() == TokenMode::Write;
        attr
    }

    pub async fn link_now(
        self: &Arc<Core>,
        ino: InodeNo,
        parent: InodeNo,
        name: &[u8],
    ) -> Result<Attr, Errno> {
        let inode = self.inode(ino);
        let _hold = match self.getattr(ino).await?.kind {
            FileKind::File => Some(self.hold(&inode, Need::Write).await?),
            _ => None,
        };
        // Made without a name it is open until the answer is here: what is closed without one is given up.
        let (flags, shared) = (OpenFlags::default(), self.whole().is_none());
        let unnamed = self.opening(&inode, flags, shared, |state| state.unnamed && state.opens.any());
        let (now, name_kept) = (now(), name.to_vec());
        let change = match unnamed {
            Some(_) => Change::LinkUnnamed { ino, parent, name: name_kept, now },
            None => Change::Link { ino, parent, name: name_kept, now },
        };
        let changing = self.change(&[(parent, name)], &[ino]);
        let reply = self.calls.mutate(change).await;
        match reply {
            _ if unnamed.is_none() => {}
            Ok(_) => inode.lock().named(),
            // It may have its name: what was written is made durable before it is given up.
            Err(Errno(libc::EIO | libc::ETIMEDOUT)) => inode.lock().unshared = false,
            Err(_) => {}
        }
        changing.file_changed(&reply);
        let newest = changing.end(&reply, &[Hint::of(&reply)], Touched::At(now, 0));
        match reply? {
            MgrReply::Attr(attr) if attr.kind == FileKind::File => {
                let state = inode.lock();
                let held = state.attr_known && state.token.mode() >= TokenMode::Read;
                Ok(if held { state.visible() } else { *attr })
            }
            MgrReply::Attr(attr) => Ok(self.changed_attr(*attr, newest)),
            other => Err(unexpected("Link", &other)),
        }
    }

    pub async fn unlink_now(
        self: &Arc<Core>,
        parent: InodeNo,
        name: &[u8],
        directory: bool,
    ) -> Result<(), Errno> {
        // `open` in any case: whether it is open here, or has data in flight, is known when the inode is;
        // what is not, is given up right after.
        for _ in 0..STALE_TRIES {
            let (holds, inos) = self.hold_names(&[(parent, name)]).await?;
            let (lost, now) = (inos.as_ref().map(|inos| inos[0]), now());
            let change = Change::Unlink {
                parent,
                name: name.to_vec(),
                directory,
                open: true,
                highest: self.any_version(),
                expect: lost,
                now,
            };
            let noted = lost.or_else(|| self.leads_by(parent, name));
            let changing = self.change(&[(parent, name)], noted.as_slice());
            let reply = self.calls.mutate(change).await;
            changing.file_changed(&reply);
            let newest =
                changing.end(&reply, &[Some(Hint::NOTHING)], Touched::At(now, -i32::from(directory)));
            match reply {
                // Another session was faster with this name.
                Err(Errno(libc::ESTALE)) => drop(holds),
                reply => return self.unlinked("Unlink", reply?, newest).await,
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    pub async fn rename_now(
        self: &Arc<Core>,
        (parent, name): (InodeNo, &[u8]),
        (new_parent, new_name): (InodeNo, &[u8]),
        no_replace: bool,
        exchange: bool,
    ) -> Result<(), Errno> {
        let places = [(parent, name), (new_parent, new_name)];
        let mut settled = false;
        for _ in 0..STALE_TRIES {
            let (holds, inos) = self.hold_names(&places).await?;
            let (expect, now) = (inos.map(|inos| (inos[0], inos[1])), now());
            // Most of it is durable by now (`content_first`), unless it was not known there where the names lead. It may be
            // much then: not under tokens that others may want.
            if let Some((moved, InodeNo(1..))) = expect.filter(|_| !exchange) {
                let unsettled =
                    || self.inode_known(moved).is_some_and(|inode| inode.lock().content_unsettled());
                if !std::mem::replace(&mut settled, true) && unsettled() {
                    drop(holds);
                    self.content_durable(moved).await?;
                    continue;
                }
                self.content_durable(moved).await?;
            }
            let change = Change::Rename {
                parent,
                name: name.to_vec(),
                new_parent,
                new_name: new_name.to_vec(),
                no_replace,
                exchange,
                open: true,
                highest: self.any_version(),
                expect,
                now,
            };
            let known = || places.map(|(dir, name)| self.leads_by(dir, name).unwrap_or_default()).into();
            let (moved, replaced) = expect.unwrap_or_else(known);
            let apart = expect.is_some_and(|(moved, replaced)| moved != replaced);
            let changing = self.change(&places, &[moved, replaced]);
            let reply = self.calls.mutate(change).await;
            changing.file_changed(&reply);
            // The change times of what was moved are the manager's.
            let mut seen = Vec::new();
            for (parent, name) in places.iter().skip(usize::from(!exchange)).filter(|_| reply.is_ok()) {
                let ask = MgrRequest::Lookup { parent: *parent, name: name.to_vec() };
                seen.push(self.calls.ask(ask).await);
            }
            seen.iter().for_each(|seen| changing.file_changed(seen));
            let mut leads: Vec<Option<Hint>> = seen.iter().map(Hint::of).collect();
            if !exchange {
                // Two names of one inode both stay.
                leads.insert(0, apart.then_some(Hint::NOTHING));
            }
            let same = expect.is_some() && !apart;
            let touched = match same || !changing.is_alone() {
                true => Touched::Unknown,
                false => touched_by_rename(&seen, now),
            };
            let newest = changing.end(&reply, &leads, touched);
            match reply {
                // Another session was faster with these names.
                Err(Errno(libc::ESTALE)) => {}
                reply => {
                    self.unlinked("Rename", reply?, newest).await?;
                    for seen in seen {
                        if let Ok(MgrReply::Attr(attr)) = seen
                            && attr.kind != FileKind::File
                        {
                            let moved = self.changed_attr(*attr, newest);
                            if let Some(inode) = self.inode_known(moved.ino) {
                                self.kernel_attr_changed(&inode);
                            }
                        }
                    }
                    return Ok(());
                }
            }
            drop(holds);
        }
        Err(Errno(libc::ESTALE))
    }

    /// The inode that a name leads to as far as is known here.
    fn leads_by(&self, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
        let known = || self.known_name(dir, name).map(|hint| hint.ino).filter(|ino| ino.0 > 0);
        self.surely_leads(dir, name).or_else(known)
    }

    async fn unlinked(
        self: &Arc<Core>,
        what: &'static str,
        reply: MgrReply,
        newest: Newest,
    ) -> Result<(), Errno> {
        match reply {
            MgrReply::Unlinked { attr: Some(attr) } => self.name_lost(*attr, false, newest).await,
            MgrReply::UnlinkedInUse(attr) => self.name_lost(*attr, true, newest).await,
            MgrReply::Unlinked { attr: None } | MgrReply::Done => {}
            other => return Err(unexpected(what, &other)),
        }
        Ok(())
    }
}

/// What a rename did to its directories: no link count of theirs changes where no directory was moved, and names were
/// moved if they do not lead to one inode.
fn touched_by_rename(seen: &[Result<MgrReply, Errno>], now: Timestamp) -> Touched {
    let plain = |seen: &Result<MgrReply, Errno>| match seen {
        Ok(MgrReply::Attr(attr) | MgrReply::Held(attr)) => {
            attr.kind != FileKind::Directory && attr.nlink == 1
        }
        _ => false,
    };
    if seen.iter().all(plain) { Touched::At(now, 0) } else { Touched::Unknown }
}
