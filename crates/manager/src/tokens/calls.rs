//! What sessions ask of the table and tell it, and what time does to their questions.

use std::time::Duration;

use base::{Grant, InodeNo, SessionId};
use wire::token::{Need, Recall, TOKENS_MAX, Token, TokenMode};

use super::{
    Acts, NextGrant, Tokens,
    rules::writes,
    table::{Change, Holder, Wait},
};
use crate::ticket::Ticket;

/// Questions of one session for one inode that are answered together; of more the oldest are told to be late.
pub(super) const TICKETS_MAX: usize = 8;
impl Tokens {
    /// A session wants a token; another question of it for the same inode is answered with this one. Questions may overtake each other where
    /// they are sent again, so the later need not be the one that is waited for: what both are answered with is what a reader asks, if one
    /// of them is one. Whoever wanted to write asks again; a reader may be what its session waits for to give something up.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub fn acquire(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        need: Need,
        ticket: Ticket,
        expires: Duration,
        now: Duration,
        next: NextGrant<'_>,
    ) -> Acts {
        let mut acts = Acts::default();
        let entry = self.inodes.entry(ino).or_default();
        let mut tickets = vec![ticket];
        let (mut need, mut expires) = (need, expires);
        let old = entry.waiting.iter().position(|wait| wait.session == session);
        if let Some(old) = old.and_then(|at| entry.waiting.remove(at)) {
            if writes(need) && !writes(old.need) {
                (need, expires) = (old.need, expires.max(old.expires));
            }
            tickets.extend(old.tickets);
            acts.late.extend(tickets.drain(TICKETS_MAX.min(tickets.len())..));
        }
        let (publish, published) = (None, Vec::new());
        entry.waiting.push_back(Wait { tickets, session, need, since: now, expires, publish, published });
        self.settle(ino, now, next, &mut acts);
        self.tell(now, &mut acts);
        acts
    }

    /// A session changes an inode, or a name in it, at the manager: all others give up what they keep of it first. What
    /// is granted afterwards is the caller's to hold back until the change is made.
    pub fn change(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        ticket: Ticket,
        expires: Duration,
        now: Duration,
        next: NextGrant<'_>,
    ) -> Acts {
        self.announce(Change { ticket, session, need: Need::Write, expires }, ino, now, next)
    }

    /// A session looks at names in a directory, or at attributes of what is no file: whoever changes them ahead of the manager tells
    /// first, and does so no more. It is answered before anybody may do so again.
    pub fn look(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        ticket: Ticket,
        expires: Duration,
        now: Duration,
        next: NextGrant<'_>,
    ) -> Acts {
        self.announce(Change { ticket, session, need: Need::Names, expires }, ino, now, next)
    }

    fn announce(&mut self, change: Change, ino: InodeNo, now: Duration, next: NextGrant<'_>) -> Acts {
        let mut acts = Acts::default();
        self.inodes.entry(ino).or_default().changes.push(change);
        self.settle(ino, now, next, &mut acts);
        self.tell(now, &mut acts);
        acts
    }

    /// A session is about to tell of inodes that it has made: it holds them for `Write` from before anybody can see them. None: it may
    /// hold everything. Of an inode that is not its own any more it gets nothing: then its message is a late copy.
    pub fn made(
        &mut self,
        session: SessionId,
        inos: &[InodeNo],
        next: NextGrant<'_>,
    ) -> (Acts, Option<Vec<Option<Token>>>) {
        let mut acts = Acts::default();
        let Some(member) = self.members.get_mut(&session).filter(|m| !m.whole && !m.ending) else {
            return (acts, None);
        };
        let mut hold = |ino: InodeNo| {
            let entry = self.inodes.entry(ino).or_default();
            let own = entry.holders.iter().find(|holder| holder.session == session);
            if let Some(Holder { token, .. }) = own {
                return (token.mode == TokenMode::Write).then(|| token.clone());
            }
            if entry.is_used() {
                return None;
            }
            let token = Token::new(ino, TokenMode::Write, next());
            entry.holders.push(Holder { session, token: token.clone(), at: 0, resolves: false });
            // It is new: nobody can have left anything of it.
            entry.resolved = true;
            member.held += 1;
            acts.touched.insert(ino);
            Some(token)
        };
        let tokens = inos.iter().map(|&ino| hold(ino)).collect();
        (acts, Some(tokens))
    }

    /// A session says what it now holds of some inodes. What is about an earlier grant than the present one
    /// is late and means nothing.
    pub fn release(
        &mut self,
        session: SessionId,
        tokens: &[Token],
        now: Duration,
        next: NextGrant<'_>,
    ) -> Acts {
        let mut acts = Acts::default();
        for token in tokens {
            self.give_up(session, token, &mut acts);
            self.settle(token.ino, now, next, &mut acts);
        }
        self.tell(now, &mut acts);
        acts
    }

    pub(super) fn give_up(&mut self, session: SessionId, left: &Token, acts: &mut Acts) {
        let Some(entry) = self.inodes.get_mut(&left.ino) else { return };
        let Some(at) = entry.holders.iter().position(|holder| holder.session == session) else { return };
        let holder = &mut entry.holders[at];
        let late = left.serial < holder.token.serial;
        if !late {
            holder.token = holder.token.meet(left);
        }
        if let Some(member) = self.members.get_mut(&session) {
            match member.recalls.get_mut(&left.ino) {
                Some(notice) if holder.token.is_within(&notice.what) => {
                    drop(member.recalls.remove(&left.ino))
                }
                // It answered something else: it is told again at once.
                Some(notice) => {
                    notice.what.serial = holder.token.serial;
                    notice.told = None;
                }
                None => {}
            }
            if holder.token.mode == TokenMode::None {
                member.held = member.held.saturating_sub(1);
            }
        }
        if holder.token.mode == TokenMode::None {
            entry.holders.swap_remove(at);
            acts.left.push((session, left.ino));
        }
        acts.touched.insert(left.ino);
    }

    /// A session has committed the times of an inode, as question `number` wanted.
    pub fn published(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        number: Grant,
        now: Duration,
        next: NextGrant<'_>,
    ) -> Acts {
        let mut acts = Acts::default();
        if let Some(member) = self.members.get_mut(&session)
            && member.publish.get(&ino).is_some_and(|notice| notice.what == number)
        {
            member.publish.remove(&ino);
        }
        let waiting = self.inodes.get_mut(&ino).map(|entry| &mut entry.waiting);
        let asked = waiting.into_iter().flatten().filter(|wait| wait.publish == Some(number));
        asked.for_each(|wait| wait.published.push(session));
        self.settle(ino, now, next, &mut acts);
        self.tell(now, &mut acts);
        acts
    }

    /// A session asks what is wanted of it.
    pub fn poll(&mut self, session: SessionId, ticket: Ticket, expires: Duration, now: Duration) -> Acts {
        let mut acts = Acts::default();
        let member = self.members.get_mut(&session);
        if let Some((old, _)) = member.and_then(|member| member.poll.replace((ticket, expires))) {
            acts.late.push(old);
        }
        self.tell(now, &mut acts);
        acts
    }

    /// Time has passed. `alone`: nobody else is about to come.
    pub fn tick(&mut self, alone: bool, now: Duration, next: NextGrant<'_>) -> Acts {
        let mut acts = Acts::default();
        for ino in self.wanted.clone() {
            let Some(entry) = self.inodes.get_mut(&ino) else { continue };
            let before = entry.waiting.len() + entry.changes.len();
            entry.waiting.retain_mut(|wait| {
                let keep = now < wait.expires;
                if !keep {
                    acts.late.append(&mut wait.tickets);
                }
                keep
            });
            let gone = entry.changes.extract_if(.., |change| now >= change.expires);
            acts.late.extend(gone.map(|change| change.ticket));
            if entry.waiting.len() + entry.changes.len() != before {
                self.settle(ino, now, next, &mut acts);
            }
        }
        for member in self.members.values_mut() {
            if member.poll.is_some_and(|(_, expires)| now >= expires)
                && let Some((ticket, _)) = member.poll.take()
            {
                acts.told.push((ticket, Vec::new()));
            }
        }
        self.give_all(alone, next, &mut acts);
        self.begin_pass(now, next);
        self.tell(now, &mut acts);
        acts
    }

    /// Answers waiting questions.
    pub(super) fn tell(&mut self, now: Duration, acts: &mut Acts) {
        for member in self.members.values_mut() {
            if member.poll.is_none() || member.ending {
                continue;
            }
            let mut list = Vec::new();
            if member.share.as_mut().is_some_and(|notice| notice.tell(now)) {
                list.push(Recall::Share);
            }
            if let Some(grant) = member.whole_again.take() {
                list.push(Recall::Whole(grant));
            }
            if let Some(notice) = &mut member.pass
                && notice.tell(now)
            {
                list.push(Recall::Resolve(notice.what.0));
            }
            let mut room = TOKENS_MAX;
            for notice in member.recalls.values_mut() {
                let size = 1 + notice.what.blocks.runs().len();
                if size <= room && notice.tell(now) {
                    room -= size;
                    list.push(Recall::Token(notice.what.clone()));
                }
            }
            let due = member
                .publish
                .iter_mut()
                .filter_map(|(&ino, notice)| notice.tell(now).then_some(Recall::Publish(ino, notice.what)));
            list.extend(due.take(room));
            if !list.is_empty()
                && let Some((ticket, _)) = member.poll.take()
            {
                acts.told.push((ticket, list));
            }
        }
    }
}
