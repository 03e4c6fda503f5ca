//! Sessions come and go, claim what they hold, and resolve what others left.

use std::{collections::BTreeSet, time::Duration};

use base::{InodeNo, SessionId};
use wire::token::{Token, TokenMode};

use super::{
    Acts, NextGrant, Tokens,
    notice::Notice,
    table::{Entry, Holder, Member},
};

impl Tokens {
    /// A session begins: `whole` if it is alone or, after a restart of the manager, has not claimed.
    pub fn begin(&mut self, session: SessionId, whole: bool, guest: bool) {
        self.members.insert(session, Member { whole, guest, ..Member::default() });
    }

    /// A session that has not claimed since the manager's start has inode numbers to make names ahead with.
    pub fn may_be_ahead(&mut self, session: SessionId) {
        if let Some(member) = self.members.get_mut(&session) {
            member.ahead = true;
        }
    }

    /// Asks every session that holds all to share; it answers by [`Tokens::claim`].
    pub fn share(&mut self, now: Duration, acts: &mut Acts) {
        self.ask_to_share(now, |_| true);
        self.tell(now, acts);
    }

    pub(super) fn ask_to_share(&mut self, now: Duration, whom: impl Fn(&Member) -> bool) {
        for member in self.members.values_mut().filter(|m| m.whole && !m.ending && whom(m)) {
            member.whole_again = None;
            member.share.get_or_insert(Notice::new((), now));
        }
    }

    /// A session that is asked to share says what it holds. Claims of others are late and mean nothing.
    pub fn claim(
        &mut self,
        session: SessionId,
        tokens: &[Token],
        last: bool,
        now: Duration,
        next: NextGrant<'_>,
    ) -> Acts {
        let mut acts = Acts::default();
        let Some(member) = self.members.get_mut(&session).filter(|m| m.whole && !m.ending) else {
            return acts;
        };
        for token in tokens {
            let entry = self.inodes.entry(token.ino).or_default();
            let before = entry.holders.len();
            entry.holders.retain(|holder| holder.session != session);
            member.held += u64::from(before == entry.holders.len());
            // What it only reads was resolved when it got it. Of a part that says nothing: beside it one that has
            // died meanwhile may have written. Whoever may write may be resolving just now, and fail.
            let resolves = self.unresolved && token.mode == TokenMode::Write;
            entry.resolved |= token.mode >= TokenMode::Read && !resolves && !member.guest;
            entry.holders.push(Holder { session, token: token.clone(), at: 0, resolves });
            acts.touched.insert(token.ino);
        }
        if last {
            member.whole = false;
            member.share = None;
            self.settle_all(now, next, &mut acts);
        }
        self.tell(now, &mut acts);
        acts
    }

    /// An inode was resolved by the session that was told to.
    pub fn resolved(&mut self, session: SessionId, ino: InodeNo, now: Duration, next: NextGrant<'_>) -> Acts {
        let mut acts = Acts::default();
        if let Some(entry) = self.inodes.get_mut(&ino)
            && let Some(holder) =
                entry.holders.iter_mut().find(|h| h.session == session && h.token.mode == TokenMode::Write)
        {
            (holder.resolves, entry.resolved) = (false, true);
            // Those who only read have waited for it.
            self.settle(ino, now, next, &mut acts);
            self.tell(now, &mut acts);
        }
        acts
    }

    /// A pass over everything has ended; true if it was the one under way: nothing is unresolved then.
    pub fn pass_done(&mut self, session: SessionId, pass: u64) -> bool {
        let Some(member) = self.members.get_mut(&session) else { return false };
        if member.pass.as_ref().is_none_or(|notice| notice.what.0 != pass) {
            return false;
        }
        member.pass = None;
        true
    }

    /// Nothing is unresolved any more.
    pub fn all_resolved(&mut self, now: Duration, next: NextGrant<'_>) -> Acts {
        let mut acts = Acts::default();
        self.unresolved = false;
        for holder in self.inodes.values_mut().flat_map(|entry| &mut entry.holders) {
            holder.resolves = false;
        }
        self.settle_all(now, next, &mut acts);
        self.tell(now, &mut acts);
        acts
    }

    /// A session ends uncleanly: its tokens stay until it is fenced.
    pub fn end(&mut self, session: SessionId) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let (unresolved, whole) = (self.unresolved, member.whole);
        let Member { ahead, guest, held, .. } = *member;
        *member = Member { whole, ahead, guest, held, ending: true, ..Member::default() };
        let ending: BTreeSet<SessionId> = self.ending().into_iter().collect();
        for entry in self.inodes.values_mut() {
            entry.waiting.retain(|wait| wait.session != session);
            let part = |h: &Holder| h.session == session && h.token.mode == TokenMode::Part;
            // Beside a reader or a writer it has written nothing; beside others who held a part it may have.
            let partly = whole || entry.holders.iter().any(part);
            let known = !partly && (entry.resolved || !unresolved);
            let least = if known { TokenMode::Part } else { TokenMode::Read };
            // One that is dead too proves nothing by what it holds, nor one that has still to resolve.
            let proves = |h: &Holder| !ending.contains(&h.session) && !h.resolves && h.token.mode >= least;
            entry.resolved = entry.holders.iter().any(proves);
        }
        self.wanted.retain(|ino| self.inodes.get(ino).is_some_and(Entry::is_wanted));
        self.unresolved = true;
        // They may have gone by what it left: begun anew.
        self.members.values_mut().for_each(|member| member.pass = None);
    }

    /// A session is gone: it ended cleanly, or is fenced. Its tokens are free.
    pub fn drop_session(&mut self, session: SessionId, now: Duration, next: NextGrant<'_>) -> Acts {
        let mut acts = Acts::default();
        if self.members.remove(&session).is_none() {
            return acts;
        }
        for (&ino, entry) in &mut self.inodes {
            let before = entry.holders.len() + entry.waiting.len();
            entry.holders.retain(|holder| holder.session != session);
            entry.waiting.retain(|wait| wait.session != session);
            let gone = entry.changes.extract_if(.., |change| change.session == session);
            acts.late.extend(gone.map(|change| change.ticket));
            if before != entry.holders.len() + entry.waiting.len() {
                acts.touched.insert(ino);
            }
        }
        self.settle_all(now, next, &mut acts);
        self.tell(now, &mut acts);
        acts
    }

    /// Who is alone gets everything back.
    pub(super) fn give_all(&mut self, alone: bool, next: NextGrant<'_>, acts: &mut Acts) {
        if !alone || self.members.len() != 1 || self.unresolved || !self.wanted.is_empty() {
            return;
        }
        for member in self.members.values_mut().filter(|m| !m.whole && !m.ending && m.poll.is_some()) {
            member.whole = true;
            member.held = 0;
            member.recalls.clear();
            member.publish.clear();
            member.whole_again = Some(next());
            acts.touched.extend(self.inodes.drain().map(|(ino, _)| ino));
        }
    }

    /// One live session resolves what is left, in the background. For that all say first what they hold: they may be
    /// idle, and after a restart of the manager nobody else would ask them.
    pub(super) fn begin_pass(&mut self, now: Duration, next: NextGrant<'_>) {
        let fencing = self.members.values().any(|member| member.ending);
        let under_way = self.members.values().any(|member| member.pass.is_some());
        if !self.unresolved || fencing || under_way {
            return;
        }
        // Who began alone resolves before it asks what is wanted of it.
        self.ask_to_share(now, |member| member.poll.is_some());
        if self.ready()
            && let Some(member) =
                self.members.values_mut().find(|member| member.poll.is_some() && !member.guest)
        {
            member.pass = Some(Notice::new(next(), now));
        }
    }
}
