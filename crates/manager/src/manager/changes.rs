//! Changes of names and attributes: whoever else keeps what they change gives it up first.

use base::{InodeNo, SessionId};
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
        let mut inos: Vec<InodeNo> = changes.iter().flat_map(|(_, change)| kept(change)).collect();
        inos.sort_unstable();
        inos.dedup();
        let under_way = self.inner.holders.begin(fs, inos.clone());
        for ino in inos {
            if self.inner.holders.kept_by_other(fs, ino, session)
                && let MgrReply::Error(error) = self.ask(caller, Ask::Change(ino)).await?
            {
                return Err(error);
            }
        }
        let mut losers: Vec<InodeNo> = Vec::new();
        for (_, change) in &changes {
            match change {
                Change::Unlink { expect: Some(ino), .. } => losers.push(*ino),
                Change::Rename { expect: Some((_, ino)), .. } => losers.push(*ino),
                _ => {}
            }
        }
        let mut openers = Vec::new();
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
            for ino in losers {
                let sessions = self.inner.holders.openers(fs, ino);
                openers.extend(sessions.into_iter().filter(|s| *s != caller.session).map(|s| (ino, s)));
            }
        }
        let outcomes =
            self.inner.writer.mutate(session, self.who(caller, by), changes, openers, under_way).await?;
        self.inner.deletes.notify_one();
        Ok(outcomes)
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
