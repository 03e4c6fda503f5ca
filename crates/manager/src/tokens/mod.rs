//! The token table of one file system: which session may keep or change what (docs/tokens.md).
//!
//! A plain state machine: calls come with the time and return [`Acts`]. It holds no promise across a
//! restart: sessions claim what they hold ([`Recall::Share`]), and until all have claimed or are gone
//! nothing is granted.
//!
//! Invariants: of one inode either one session holds `Write`, or any number hold `Read`. A session's tokens
//! stay, whatever it does, until it gives them up or [`Tokens::drop_session`] says that it is fenced or
//! ended cleanly. After an unclean end an inode that nobody held is granted only with the duty to resolve.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use base::{Grant, InodeNo, SessionId};
use wire::{
    mgr::TokenReport,
    token::{Recall, TOKENS_MAX, Token, TokenMode},
};

use crate::cluster::Ticket;

/// A recall that was told and not obeyed is told again after this.
const RETELL: Duration = Duration::from_secs(2);

/// What follows from a call.
#[derive(Debug, Default, PartialEq)]
pub struct Acts {
    /// Tokens given: answer, token, and whether the inode is to be resolved first.
    pub granted: Vec<(Ticket, Token, bool)>,
    /// What waiting sessions are told.
    pub told: Vec<(Ticket, Vec<Recall>)>,
    /// Waited too long.
    pub late: Vec<Ticket>,
    /// Inodes whose holders may have changed.
    pub touched: BTreeSet<InodeNo>,
    /// Sessions that gave up the last right on an inode.
    pub left: Vec<(SessionId, InodeNo)>,
}

/// Gives the numbers of grants: each above all before, restarts included.
pub type NextGrant<'a> = &'a mut dyn FnMut() -> Grant;

/// Something a session is to be told until it obeys.
#[derive(Debug, Clone, Copy)]
struct Wish<T> {
    what: T,
    since: Duration,
    told: Option<Duration>,
}

impl<T> Wish<T> {
    fn new(what: T, since: Duration) -> Wish<T> {
        Wish { what, since, told: None }
    }
    /// Whether it is to be told now; notes that it is.
    fn tell(&mut self, now: Duration) -> bool {
        let due = self.told.is_none_or(|told| now >= told + RETELL);
        if due {
            self.told = Some(now);
        }
        due
    }
}

#[derive(Debug, Default, Clone)]
struct Member {
    /// It may hold anything: it began alone, or has not claimed since the manager's start.
    whole: bool,
    /// It is to be fenced: it gets and says nothing more, its tokens stay until then.
    ending: bool,
    share: Option<Wish<()>>,
    /// Told once.
    gift: Option<Grant>,
    pass: Option<Wish<u64>>,
    recalls: BTreeMap<InodeNo, Wish<Token>>,
    /// A waiting question for what is wanted.
    poll: Option<(Ticket, Duration)>,
    held: u64,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    session: SessionId,
    token: Token,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    ticket: Ticket,
    session: SessionId,
    mode: TokenMode,
    since: Duration,
    expires: Duration,
}

#[derive(Debug, Default, Clone)]
struct Entry {
    holders: Vec<Holder>,
    waiting: VecDeque<Wait>,
    /// Nothing that an unclean end left is undecided here.
    resolved: bool,
}

/// What is known of one session, for listings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemberReport {
    /// All tokens of the file system.
    pub whole: bool,
    /// Tokens one by one.
    pub tokens: u64,
    /// Recalls not obeyed yet, and since when the oldest.
    pub recalls: (u64, Option<Duration>),
}

/// See the module.
#[derive(Debug, Default, Clone)]
pub struct Tokens {
    members: BTreeMap<SessionId, Member>,
    inodes: HashMap<InodeNo, Entry>,
    /// A session ended uncleanly and what it left is not all resolved.
    unresolved: bool,
    /// Number of the present resolution; a later unclean end begins another.
    pass: u64,
}

impl Tokens {
    /// Of a file system whose last sessions ended so.
    pub fn new(unresolved: bool) -> Tokens {
        Tokens { unresolved, ..Tokens::default() }
    }

    /// A session begins: `whole` if it is alone or, after a restart of the manager, has not claimed.
    pub fn begin(&mut self, session: SessionId, whole: bool) {
        self.members.insert(session, Member { whole, ..Member::default() });
    }

    /// Whether no session is there, not even one that is to be fenced.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether several sessions are there and it is not known in full who holds what.
    pub fn unclear(&self) -> bool {
        self.members.len() > 1 && !self.ready()
    }

    /// Whether who holds what is known in full.
    pub fn ready(&self) -> bool {
        self.members.values().all(|member| !member.whole)
    }

    /// Asks every session that holds all to share; it answers by [`Tokens::claim`].
    pub fn share(&mut self, now: Duration, acts: &mut Acts) {
        for member in self.members.values_mut().filter(|m| m.whole && !m.ending) {
            member.gift = None;
            member.share.get_or_insert(Wish::new((), now));
        }
        self.tell(now, acts);
    }

    /// A session wants a token; an earlier wish of it for the same inode is forgotten.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub fn acquire(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        mode: TokenMode,
        ticket: Ticket,
        expires: Duration,
        now: Duration,
        next: NextGrant<'_>,
    ) -> Acts {
        let mut acts = Acts::default();
        let entry = self.inodes.entry(ino).or_default();
        if let Some(old) = entry.waiting.iter().position(|wait| wait.session == session) {
            entry.waiting.remove(old);
        }
        entry.waiting.push_back(Wait { ticket, session, mode, since: now, expires });
        self.settle(ino, now, next, &mut acts);
        self.tell(now, &mut acts);
        acts
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
            self.give_up(session, *token, &mut acts);
            self.settle(token.ino, now, next, &mut acts);
        }
        self.tell(now, &mut acts);
        acts
    }

    fn give_up(&mut self, session: SessionId, left: Token, acts: &mut Acts) {
        let Some(entry) = self.inodes.get_mut(&left.ino) else { return };
        let Some(at) = entry.holders.iter().position(|holder| holder.session == session) else { return };
        let holder = &mut entry.holders[at];
        if left.serial < holder.token.serial {
            return;
        }
        holder.token.mode = holder.token.mode.min(left.mode);
        let mode = holder.token.mode;
        if let Some(member) = self.members.get_mut(&session) {
            if member.recalls.get(&left.ino).is_some_and(|wish| mode <= wish.what.mode) {
                member.recalls.remove(&left.ino);
            }
            if mode == TokenMode::None {
                member.held = member.held.saturating_sub(1);
            }
        }
        if mode == TokenMode::None {
            entry.holders.swap_remove(at);
            acts.left.push((session, left.ino));
        }
        acts.touched.insert(left.ino);
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
            entry.holders.push(Holder { session, token: *token });
            // What it holds was resolved when it got it.
            entry.resolved |= token.mode >= TokenMode::Read;
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
    pub fn resolved(&mut self, session: SessionId, ino: InodeNo) {
        if let Some(entry) = self.inodes.get_mut(&ino)
            && entry.holders.iter().any(|h| h.session == session && h.token.mode == TokenMode::Write)
        {
            entry.resolved = true;
        }
    }

    /// A pass over everything has ended; true if nothing is unresolved now.
    pub fn pass_done(&mut self, session: SessionId, pass: u64) -> bool {
        let Some(member) = self.members.get_mut(&session) else { return false };
        if member.pass.is_none_or(|wish| wish.what != pass) || pass != self.pass {
            return false;
        }
        member.pass = None;
        self.all_resolved();
        true
    }

    /// Nothing is unresolved any more.
    pub fn all_resolved(&mut self) {
        self.unresolved = false;
        self.inodes.retain(|_, entry| !entry.holders.is_empty() || !entry.waiting.is_empty());
    }

    /// A session ends uncleanly: its tokens stay until it is fenced.
    pub fn end(&mut self, session: SessionId) {
        let Some(member) = self.members.get_mut(&session) else { return };
        *member = Member { whole: member.whole, held: member.held, ending: true, ..Member::default() };
        for entry in self.inodes.values_mut() {
            entry.waiting.retain(|wait| wait.session != session);
            let live = |h: &Holder| h.session != session && h.token.mode >= TokenMode::Read;
            entry.resolved = entry.holders.iter().any(live);
        }
        self.unresolved = true;
        self.pass += 1;
        self.members.values_mut().for_each(|member| member.pass = None);
    }

    /// Sessions that are to be fenced.
    pub fn ending(&self) -> Vec<SessionId> {
        self.members.iter().filter(|(_, m)| m.ending).map(|(&id, _)| id).collect()
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
            if before != entry.holders.len() + entry.waiting.len() {
                acts.touched.insert(ino);
            }
        }
        self.settle_all(now, next, &mut acts);
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
        let mut late = Vec::new();
        for (&ino, entry) in &mut self.inodes {
            let before = entry.waiting.len();
            entry.waiting.retain(|wait| {
                let keep = now < wait.expires;
                if !keep {
                    acts.late.push(wait.ticket);
                }
                keep
            });
            if entry.waiting.len() != before {
                late.push(ino);
            }
        }
        for ino in late {
            self.settle(ino, now, next, &mut acts);
        }
        for member in self.members.values_mut() {
            if member.poll.is_some_and(|(_, expires)| now >= expires)
                && let Some((ticket, _)) = member.poll.take()
            {
                acts.told.push((ticket, Vec::new()));
            }
        }
        self.give_all(alone, next, &mut acts);
        self.begin_pass(now);
        self.tell(now, &mut acts);
        acts
    }

    /// Who is alone gets everything back.
    fn give_all(&mut self, alone: bool, next: NextGrant<'_>, acts: &mut Acts) {
        let idle = !self.unresolved && self.inodes.values().all(|entry| entry.waiting.is_empty());
        if !alone || self.members.len() != 1 || !idle {
            return;
        }
        for member in self.members.values_mut().filter(|m| !m.whole && !m.ending && m.poll.is_some()) {
            member.whole = true;
            member.held = 0;
            member.recalls.clear();
            member.gift = Some(next());
            acts.touched.extend(self.inodes.drain().map(|(ino, _)| ino));
        }
    }

    /// One live session resolves what is left, in the background.
    fn begin_pass(&mut self, now: Duration) {
        let fencing = self.members.values().any(|member| member.ending);
        let under_way = self.members.values().any(|member| member.pass.is_some());
        if self.unresolved && !fencing && !under_way && self.ready() {
            let pass = self.pass;
            if let Some(member) = self.members.values_mut().find(|member| member.poll.is_some()) {
                member.pass = Some(Wish::new(pass, now));
            }
        }
    }

    /// Sessions that have not obeyed since before `since`.
    pub fn overdue(&self, since: Duration) -> Vec<SessionId> {
        let late = |member: &Member| {
            let oldest = oldest_wish(member);
            !member.ending && oldest.is_some_and(|at| at <= since)
        };
        self.members.iter().filter(|(_, member)| late(member)).map(|(&id, _)| id).collect()
    }

    /// Whether somebody waits for something that this session holds.
    pub fn is_wanted(&self, session: SessionId) -> bool {
        self.members.get(&session).is_some_and(|member| oldest_wish(member).is_some())
    }

    fn settle_all(&mut self, now: Duration, next: NextGrant<'_>, acts: &mut Acts) {
        let waiting: Vec<InodeNo> =
            self.inodes.iter().filter(|(_, e)| !e.waiting.is_empty()).map(|(&ino, _)| ino).collect();
        for ino in waiting {
            self.settle(ino, now, next, acts);
        }
        let unresolved = self.unresolved;
        self.inodes.retain(|_, e| !e.holders.is_empty() || !e.waiting.is_empty() || e.resolved && unresolved);
    }

    /// Gives what can be given on one inode, in the order in which it was asked for, and recalls what stands
    /// in the way of the first that cannot be.
    fn settle(&mut self, ino: InodeNo, now: Duration, next: NextGrant<'_>, acts: &mut Acts) {
        if !self.ready() {
            if self.inodes.get(&ino).is_some_and(|entry| !entry.waiting.is_empty()) {
                for member in self.members.values_mut().filter(|m| m.whole && !m.ending) {
                    member.gift = None;
                    member.share.get_or_insert(Wish::new((), now));
                }
            }
            return;
        }
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        while let Some(wait) = entry.waiting.front().copied() {
            let resolve = self.unresolved && !entry.resolved;
            let mode = if resolve { TokenMode::Write } else { wait.mode };
            let leaves = mode.leaves();
            let mut blocked = false;
            for holder in &entry.holders {
                if holder.session == wait.session || holder.token.mode <= leaves {
                    continue;
                }
                blocked = true;
                let Some(member) = self.members.get_mut(&holder.session).filter(|m| !m.ending) else {
                    continue;
                };
                let wanted = Token { ino, mode: leaves, serial: holder.token.serial };
                let wish = member.recalls.entry(ino).or_insert(Wish::new(wanted, now));
                if wish.what.mode > leaves || wish.what.serial < wanted.serial {
                    *wish = Wish { since: wish.since, ..Wish::new(wanted, now) };
                }
            }
            if blocked {
                break;
            }
            entry.waiting.pop_front();
            let Some(member) = self.members.get_mut(&wait.session).filter(|m| !m.ending) else { continue };
            let mut token = Token { ino, mode, serial: next() };
            match entry.holders.iter_mut().find(|holder| holder.session == wait.session) {
                Some(holder) => {
                    token.mode = mode.max(holder.token.mode);
                    holder.token = token;
                }
                None => {
                    entry.holders.push(Holder { session: wait.session, token });
                    member.held += 1;
                }
            }
            member.recalls.remove(&ino);
            acts.granted.push((wait.ticket, token, resolve));
            acts.touched.insert(ino);
        }
        if entry.holders.is_empty() && entry.waiting.is_empty() && !(entry.resolved && self.unresolved) {
            self.inodes.remove(&ino);
        }
    }

    /// Answers waiting questions.
    fn tell(&mut self, now: Duration, acts: &mut Acts) {
        for member in self.members.values_mut() {
            if member.poll.is_none() || member.ending {
                continue;
            }
            let mut list = Vec::new();
            if member.share.as_mut().is_some_and(|wish| wish.tell(now)) {
                list.push(Recall::Share);
            }
            if let Some(grant) = member.gift.take() {
                list.push(Recall::Whole(grant));
            }
            if let Some(wish) = &mut member.pass
                && wish.tell(now)
            {
                list.push(Recall::Resolve(wish.what));
            }
            let due = member.recalls.values_mut().filter_map(|wish| wish.tell(now).then_some(wish.what));
            list.extend(due.take(TOKENS_MAX).map(Recall::Token));
            if !list.is_empty()
                && let Some((ticket, _)) = member.poll.take()
            {
                acts.told.push((ticket, list));
            }
        }
    }

    /// Who holds an inode.
    pub fn holders(&self, ino: InodeNo) -> Vec<(SessionId, Token)> {
        let entry = self.inodes.get(&ino);
        entry.map(|e| e.holders.iter().map(|h| (h.session, h.token)).collect()).unwrap_or_default()
    }

    /// Tokens of inodes above `after`, at most `limit`, and whether there are more.
    pub fn list(&self, after: InodeNo, limit: usize, now: Duration) -> (Vec<TokenReport>, bool) {
        let mut inos: Vec<InodeNo> = self.inodes.keys().copied().filter(|ino| *ino > after).collect();
        inos.sort_unstable();
        let more = inos.len() > limit;
        let reports = inos.into_iter().take(limit).filter_map(|ino| {
            let entry = self.inodes.get(&ino)?;
            let age = |wait: &Wait| now.saturating_sub(wait.since).as_millis() as u64;
            Some(TokenReport {
                ino,
                holders: entry.holders.iter().map(|h| (h.session, h.token)).collect(),
                waiting: entry.waiting.iter().map(|w| (w.session, w.mode, age(w))).collect(),
            })
        });
        (reports.collect(), more)
    }

    /// What is known of a session.
    pub fn member(&self, session: SessionId) -> MemberReport {
        let Some(member) = self.members.get(&session) else { return MemberReport::default() };
        let count = member.recalls.len() as u64 + u64::from(member.share.is_some());
        MemberReport { whole: member.whole, tokens: member.held, recalls: (count, oldest_wish(member)) }
    }
}

fn oldest_wish(member: &Member) -> Option<Duration> {
    let recalls = member.recalls.values().map(|wish| wish.since);
    recalls.chain(member.share.map(|wish| wish.since)).min()
}
