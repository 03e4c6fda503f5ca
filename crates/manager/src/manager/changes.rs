//! Changes of names and attributes: whoever else keeps what they change gives it up first.

use base::{FsId, InodeNo, SessionId};
use libc::ETIMEDOUT;
use tokio::time::Instant;
use wire::{
    credentials::Credentials,
    mgr::{Change, MgrError, MgrReply, MgrRequest, OpId},
};

use super::{Caller, Manager, TICK};
use crate::{
    apply::Outcome,
    cluster::{Ask, Event},
};

impl Manager {
    /// Carries changes out. Whoever else keeps what they change in memory gives that up first. Those that take names
    /// away need to know who else has the inodes open; the caller's write tokens on them see to it that nobody
    /// opens them meanwhile.
    pub(super) async fn mutate(
        &self,
        caller: Caller,
        by: Option<&Credentials>,
        mut changes: Vec<(OpId, Change)>,
    ) -> Result<Vec<Outcome>, MgrError> {
        let (fs, session) = (self.fs_of(caller.session)?, caller.session);
        if self.inner.holders.is_shared() {
            changes.iter_mut().for_each(|(_, change)| self.expect(session, change));
        }
        for (_, change) in &changes {
            if let Change::CreateUnnamed { parent, .. } = change {
                self.look(caller, *parent).await?;
            }
        }
        let inos = all_kept(&changes);
        let under_way = self.inner.holders.begin(fs, inos.clone());
        self.clear(caller, fs, inos).await?;
        let losers = losers(&changes);
        if !losers.is_empty() {
            let end = caller.expires;
            if self.inner.holders.unclear(fs) {
                self.inner.tell(Event::Unclear { fs }, None).await?;
            }
            while self.inner.holders.unclear(fs) {
                // Sessions are about to say what they have open.
                if Instant::now() + TICK >= end {
                    return Err(MgrError::Errno(ETIMEDOUT));
                }
                tokio::time::sleep(TICK / 4).await;
            }
        }
        let openers = self.openers(fs, session, losers);
        let outcomes =
            self.inner.writer.mutate(session, self.who(caller, by), changes, openers, under_way).await?;
        self.inner.deletes.notify_one();
        Ok(outcomes)
    }

    /// Carries out what a session has done under tokens that it holds. It waits for nobody: whoever wants one of these waits for it, and
    /// after a restart it says what it holds only when all is told. What it makes it holds, from before anybody can see it.
    pub(super) async fn tell(
        &self,
        caller: Caller,
        changes: Vec<(OpId, Change)>,
    ) -> Result<Vec<Outcome>, MgrError> {
        let (fs, session) = (self.fs_of(caller.session)?, caller.session);
        let inos = all_kept(&changes);
        let under_way = self.inner.holders.begin(fs, inos.clone());
        let made: Vec<Option<InodeNo>> = changes.iter().map(|(_, change)| made(change)).collect();
        let tokens = match self.ask(caller, Ask::Made(made.iter().flatten().copied().collect())).await? {
            MgrReply::Error(error) => return Err(error),
            MgrReply::Many(tokens) => {
                // Should it hold less than it believes.
                self.clear(caller, fs, inos).await?;
                tokens
            }
            // It may hold everything.
            _ => Vec::new(),
        };
        let openers = self.openers(fs, session, losers(&changes));
        let mut outcomes =
            self.inner.writer.mutate(session, self.who(caller, None), changes, openers, under_way).await?;
        self.inner.deletes.notify_one();
        let new = outcomes.iter_mut().zip(made).filter(|(_, made)| made.is_some());
        for ((outcome, _), token) in new.zip(tokens) {
            if let (Ok(MgrReply::Created { attr, new: true }), Ok(MgrReply::Token { token, resolve, .. })) =
                (&*outcome, token)
            {
                *outcome = Ok(MgrReply::CreatedHeld { attr: attr.clone(), token, resolve });
            }
        }
        Ok(outcomes)
    }

    /// Returns when nobody else keeps anything of these inodes.
    async fn clear(&self, caller: Caller, fs: FsId, inos: Vec<InodeNo>) -> Result<(), MgrError> {
        for ino in inos {
            if self.inner.holders.kept_by_other(fs, ino, caller.session)
                && let MgrReply::Error(error) = self.ask(caller, Ask::Change(ino)).await?
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Who else has inodes open that lose a name.
    fn openers(&self, fs: FsId, session: SessionId, losers: Vec<InodeNo>) -> Vec<(InodeNo, SessionId)> {
        let others = |ino: InodeNo| {
            let sessions = self.inner.holders.openers(fs, ino).into_iter();
            sessions.filter(move |other| *other != session).map(move |other| (ino, other))
        };
        losers.into_iter().flat_map(others).collect()
    }

    /// A change from the time when its session had everything names no inodes that lose a name. Here they are found,
    /// so that it is known whose memory they are in; if it finds others then, it is refused and comes again.
    fn expect(&self, session: SessionId, change: &mut Change) {
        let leads_to = |parent: InodeNo, name: &[u8]| {
            let ask = MgrRequest::Lookup { parent, name: name.to_vec() };
            match self.read_now(session, &ask) {
                Ok(MgrReply::Attr(attr)) if name != b"." && name != b".." => attr.ino,
                _ => InodeNo(0),
            }
        };
        match change {
            Change::Unlink { parent, name, expect: expect @ None, .. } => {
                *expect = Some(leads_to(*parent, name));
            }
            Change::Rename { parent, name, new_parent, new_name, expect: expect @ None, .. } => {
                *expect = Some((leads_to(*parent, name), leads_to(*new_parent, new_name)));
            }
            _ => {}
        }
    }
}

/// The inode that a change makes, under a number of its session's own.
fn made(change: &Change) -> Option<InodeNo> {
    match change {
        Change::CreateAs { ino, .. } => Some(*ino),
        _ => None,
    }
}

/// The inodes that changes take a name from, as far as they say so.
fn losers(changes: &[(OpId, Change)]) -> Vec<InodeNo> {
    let loser = |(_, change): &(OpId, Change)| match change {
        Change::Unlink { expect: Some(ino), .. } => Some(*ino),
        Change::Rename { expect: Some((_, ino)), .. } => Some(*ino),
        _ => None,
    };
    changes.iter().filter_map(loser).collect()
}

/// See [`kept`], each once.
fn all_kept(changes: &[(OpId, Change)]) -> Vec<InodeNo> {
    let mut inos: Vec<InodeNo> = changes.iter().flat_map(|(_, change)| kept(change)).collect();
    inos.sort_unstable();
    inos.dedup();
    inos
}

/// Inodes of which sessions may keep in memory what a change changes. What is committed of a file is changed under
/// tokens of its own.
fn kept(change: &Change) -> Vec<InodeNo> {
    let mut inos = match change {
        Change::Create { parent, .. } | Change::CreateAs { parent, .. } => vec![*parent],
        Change::Link { ino, parent, .. } | Change::LinkUnnamed { ino, parent, .. } => vec![*ino, *parent],
        Change::Unlink { parent, expect, .. } => vec![*parent, expect.unwrap_or_default()],
        Change::Rename { parent, new_parent, expect, .. } => {
            let (from, to) = expect.unwrap_or_default();
            vec![*parent, *new_parent, from, to]
        }
        Change::SetAttr { ino, .. } | Change::SetXattr { ino, .. } | Change::RemoveXattr { ino, .. } => {
            vec![*ino]
        }
        Change::CommitWrite { .. }
        | Change::Deallocate { .. }
        | Change::Forget { .. }
        | Change::CreateUnnamed { .. }
        | Change::Numbers { .. } => Vec::new(),
    };
    inos.retain(|ino| ino.0 > 0);
    inos
}
