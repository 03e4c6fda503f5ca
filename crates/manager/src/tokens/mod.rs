//! The token table of one file system: which session may keep or change what (docs/tokens.md).
//!
//! A plain state machine: calls come with the time and return [`Acts`]. It holds no promise across a
//! restart: sessions claim what they hold ([`Recall::Share`]), and until all have claimed or are gone
//! nothing is granted.
//!
//! Invariants: of one inode one session holds `Write`, or any number hold `Read`, or any number hold `Part` with
//! blocks that exclude each other ([`rules`]). A session's tokens stay, whatever it does, until it gives them up
//! or [`Tokens::drop_session`] says that it is fenced or ended cleanly. After an unclean end an inode that the
//! ended session may have written is granted only with the duty to resolve, and whole.

mod rules;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use base::{Grant, InodeNo, SessionId};
use wire::{
    mgr::TokenReport,
    token::{Need, RUNS_MAX, Recall, TOKENS_MAX, Token, TokenMode},
};

use self::rules::{Way, give, way, widened, writes};
use crate::ticket::Ticket;

/// Questions of one session for one inode that are answered together; of more the oldest are told to be late.
const TICKETS_MAX: usize = 8;
/// A recall that was told and not obeyed is told again after this.
const RETELL: Duration = Duration::from_secs(2);

/// Inodes kept in the table because they are resolved, beside those that are used: one that is forgotten is only
/// resolved once more.
const RESOLVED_MAX: usize = 1 << 18;

/// Runs that one grant may add to a token.
const RUNS_SPLIT: usize = 4;

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
    /// Changes that nobody else's memory stands in the way of.
    pub cleared: Vec<Ticket>,
    /// Sessions that gave up the last right on an inode.
    pub left: Vec<(SessionId, InodeNo)>,
}

/// Gives the numbers of grants: each above all before, restarts included.
pub type NextGrant<'a> = &'a mut dyn FnMut() -> Grant;

/// Something a session is to be told until it obeys.
#[derive(Debug, Clone)]
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
    /// It goes over everything. The number is a grant: what is said of another pass, of this life of the manager or of one
    /// before, says nothing of this one.
    pass: Option<Wish<Grant>>,
    recalls: BTreeMap<InodeNo, Wish<Token>>,
    publish: BTreeMap<InodeNo, Wish<Grant>>,
    /// A waiting question for what is wanted.
    poll: Option<(Ticket, Duration)>,
    held: u64,
}

#[derive(Debug, Clone)]
struct Holder {
    session: SessionId,
    token: Token,
    /// The block for which it was granted last.
    at: u64,
}

#[derive(Debug, Clone)]
struct Wait {
    /// The question, and those that it took the place of: which of them somebody still waits for is not known.
    tickets: Vec<Ticket>,
    session: SessionId,
    need: Need,
    since: Duration,
    expires: Duration,
    /// Number of the question for times, once it was put, and who has answered.
    publish: Option<Grant>,
    published: Vec<SessionId>,
}

/// A change at the manager that waits until no other session keeps what it changes.
#[derive(Debug, Clone)]
struct Change {
    ticket: Ticket,
    session: SessionId,
    expires: Duration,
}

#[derive(Debug, Default, Clone)]
struct Entry {
    holders: Vec<Holder>,
    waiting: VecDeque<Wait>,
    /// They go before all who wait for tokens.
    changes: Vec<Change>,
    /// Nothing that an unclean end left is undecided here.
    resolved: bool,
}

impl Entry {
    fn is_wanted(&self) -> bool {
        !self.waiting.is_empty() || !self.changes.is_empty()
    }
    fn is_used(&self) -> bool {
        !self.holders.is_empty() || self.is_wanted()
    }
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
        self.ask_to_share(now, |_| true);
        self.tell(now, acts);
    }

    /// Whether a session holds as many tokens as it may, and `ino` would be one more.
    pub fn is_full(&self, session: SessionId, ino: InodeNo, held_max: u64) -> bool {
        let holds = |entry: &Entry| entry.holders.iter().any(|holder| holder.session == session);
        self.members.get(&session).is_some_and(|member| member.held >= held_max)
            && !self.inodes.get(&ino).is_some_and(holds)
    }

    /// A session wants a token; an earlier wish of it for the same inode is answered with this one. A question that
    /// is sent again may overtake its first copy, so the later is not always the one that is waited for.
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
        if let Some(old) = entry.waiting.iter().position(|wait| wait.session == session) {
            tickets.extend(entry.waiting.remove(old).into_iter().flat_map(|old| old.tickets));
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
        let mut acts = Acts::default();
        self.inodes.entry(ino).or_default().changes.push(Change { ticket, session, expires });
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
            self.give_up(session, token, &mut acts);
            self.settle(token.ino, now, next, &mut acts);
        }
        self.tell(now, &mut acts);
        acts
    }

    fn give_up(&mut self, session: SessionId, left: &Token, acts: &mut Acts) {
        let Some(entry) = self.inodes.get_mut(&left.ino) else { return };
        let Some(at) = entry.holders.iter().position(|holder| holder.session == session) else { return };
        let holder = &mut entry.holders[at];
        let late = left.serial < holder.token.serial;
        if !late {
            holder.token = holder.token.meet(left);
        }
        if let Some(member) = self.members.get_mut(&session) {
            match member.recalls.get_mut(&left.ino) {
                Some(wish) if holder.token.is_within(&wish.what) => drop(member.recalls.remove(&left.ino)),
                // It answered something else: it is told again at once.
                Some(wish) => {
                    wish.what.serial = holder.token.serial;
                    wish.told = None;
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
            && member.publish.get(&ino).is_some_and(|wish| wish.what == number)
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
            entry.holders.push(Holder { session, token: token.clone(), at: 0 });
            // What it holds was resolved when it got it.
            entry.resolved |= token.mode >= TokenMode::Part;
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
        if member.pass.as_ref().is_none_or(|wish| wish.what.0 != pass) {
            return false;
        }
        member.pass = None;
        self.all_resolved();
        true
    }

    /// Nothing is unresolved any more.
    pub fn all_resolved(&mut self) {
        self.unresolved = false;
        self.inodes.retain(|_, entry| entry.is_used());
    }

    /// A session ends uncleanly: its tokens stay until it is fenced.
    pub fn end(&mut self, session: SessionId) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let (whole, unresolved) = (member.whole, self.unresolved);
        *member = Member { whole, held: member.held, ending: true, ..Member::default() };
        for entry in self.inodes.values_mut() {
            entry.waiting.retain(|wait| wait.session != session);
            let held = |mode| move |h: &Holder| h.session != session && h.token.mode >= mode;
            let part = |h: &Holder| h.session == session && h.token.mode == TokenMode::Part;
            // Beside a reader or a writer it has written nothing; beside others who held a part it may have.
            let partly = whole || entry.holders.iter().any(part);
            let known = !partly && (entry.resolved || !unresolved);
            let least = if known { TokenMode::Part } else { TokenMode::Read };
            entry.resolved = entry.holders.iter().any(held(least));
        }
        self.unresolved = true;
        // They may have gone by what it left: begun anew.
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
        self.begin_pass(now, next);
        self.tell(now, &mut acts);
        acts
    }

    /// Who is alone gets everything back.
    fn give_all(&mut self, alone: bool, next: NextGrant<'_>, acts: &mut Acts) {
        let idle = !self.unresolved && !self.inodes.values().any(Entry::is_wanted);
        if !alone || self.members.len() != 1 || !idle {
            return;
        }
        for member in self.members.values_mut().filter(|m| !m.whole && !m.ending && m.poll.is_some()) {
            member.whole = true;
            member.held = 0;
            member.recalls.clear();
            member.publish.clear();
            member.gift = Some(next());
            acts.touched.extend(self.inodes.drain().map(|(ino, _)| ino));
        }
    }

    /// One live session resolves what is left, in the background. For that all say first what they hold: they may be
    /// idle, and after a restart of the manager nobody else would ask them.
    fn begin_pass(&mut self, now: Duration, next: NextGrant<'_>) {
        let fencing = self.members.values().any(|member| member.ending);
        let under_way = self.members.values().any(|member| member.pass.is_some());
        if !self.unresolved || fencing || under_way {
            return;
        }
        // Who began alone resolves before it asks what is wanted of it.
        self.ask_to_share(now, |member| member.poll.is_some());
        if self.ready()
            && let Some(member) = self.members.values_mut().find(|member| member.poll.is_some())
        {
            member.pass = Some(Wish::new(next(), now));
        }
    }

    fn ask_to_share(&mut self, now: Duration, whom: impl Fn(&Member) -> bool) {
        for member in self.members.values_mut().filter(|m| m.whole && !m.ending && whom(m)) {
            member.gift = None;
            member.share.get_or_insert(Wish::new((), now));
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
            self.inodes.iter().filter(|(_, e)| e.is_wanted()).map(|(&ino, _)| ino).collect();
        for ino in waiting {
            self.settle(ino, now, next, acts);
        }
        let unresolved = self.unresolved;
        self.inodes.retain(|_, e| e.is_used() || e.resolved && unresolved);
    }

    /// Gives what can be given on one inode, and recalls what stands in the way of the rest. Nobody is given
    /// what somebody before it waits for.
    fn settle(&mut self, ino: InodeNo, now: Duration, next: NextGrant<'_>, acts: &mut Acts) {
        if !self.ready() {
            if self.inodes.get(&ino).is_some_and(Entry::is_wanted) {
                self.ask_to_share(now, |_| true);
            }
            return;
        }
        self.settle_changes(ino, now, next, acts);
        while self.settle_once(ino, now, next, acts) {}
        let kept = self.inodes.len() <= RESOLVED_MAX;
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        for holder in &entry.holders {
            if let Some(member) = self.members.get_mut(&holder.session)
                && member.recalls.get(&ino).is_some_and(|wish| holder.token.is_within(&wish.what))
            {
                member.recalls.remove(&ino);
            }
        }
        if !(entry.is_used() || entry.resolved && self.unresolved && kept) {
            self.inodes.remove(&ino);
        }
    }

    /// Lets changes go that nobody's token is in the way of.
    fn settle_changes(&mut self, ino: InodeNo, now: Duration, next: NextGrant<'_>, acts: &mut Acts) {
        let Some(Entry { holders, changes, .. }) = self.inodes.get_mut(&ino) else { return };
        changes.retain(|&Change { ticket, session, expires }| {
            let (tickets, published) = (Vec::new(), Vec::new());
            let need = Need::Write;
            let mut wait = Wait { tickets, session, need, since: now, expires, publish: None, published };
            let free = clear(&mut self.members, holders, ino, &mut wait, need, false, now, next);
            acts.cleared.extend(free.then_some(ticket));
            !free
        });
    }

    /// One look at all who wait; true if somebody was given something.
    fn settle_once(&mut self, ino: InodeNo, now: Duration, next: NextGrant<'_>, acts: &mut Acts) -> bool {
        let Some(Entry { holders, waiting, changes, resolved }) = self.inodes.get_mut(&ino) else {
            return false;
        };
        if !changes.is_empty() {
            return false;
        }
        let (unresolved, members) = (self.unresolved && !*resolved, &mut self.members);
        let before = waiting.len();
        let mut ahead: Vec<Need> = Vec::new();
        waiting.retain_mut(|wait| {
            let runs: usize = holders.iter().map(|holder| holder.token.blocks.runs().len()).sum();
            // What is no file has nothing on the pdisks.
            let resolve = unresolved && wait.need != Need::Names;
            let need = match wait.need {
                _ if resolve => Need::Write,
                need if runs + RUNS_SPLIT > RUNS_MAX => widened(need),
                need => need,
            };
            // Who is ahead may wait for what this session holds, and its giving up for this answer: it has pages of the kernel
            // locked that go with it. It asks for nothing else until that is done.
            let recalled = members.get(&wait.session).is_some_and(|member| member.recalls.contains_key(&ino));
            let first = recalled && !writes(need);
            let behind = !first && ahead.iter().any(|before| before.excludes(need));
            if behind || !clear(members, holders, ino, wait, need, resolve, now, next) {
                ahead.push(need);
                return true;
            }
            let Some(member) = members.get_mut(&wait.session).filter(|m| !m.ending) else {
                return false;
            };
            let others = holders.iter().filter(|holder| holder.session != wait.session);
            let others: Vec<Token> = others.map(|holder| holder.token.clone()).collect();
            if !holders.iter().any(|holder| holder.session == wait.session) {
                let token = Token::new(ino, TokenMode::None, Grant(0));
                holders.push(Holder { session: wait.session, token, at: 0 });
                member.held += 1;
            }
            for holder in holders.iter_mut().filter(|holder| holder.session == wait.session) {
                holder.token = Token { serial: next(), ..give(&holder.token, &others, need) };
                if let Need::Blocks(span, _) = wait.need {
                    holder.at = span.first;
                }
                if let Some(wish) = member.recalls.get_mut(&ino) {
                    wish.what = holder.token.clone();
                }
                let tickets = wait.tickets.drain(..);
                acts.granted.extend(tickets.map(|ticket| (ticket, holder.token.clone(), resolve)));
            }
            acts.touched.insert(ino);
            false
        });
        waiting.len() < before
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
                list.push(Recall::Resolve(wish.what.0));
            }
            let mut room = TOKENS_MAX;
            for wish in member.recalls.values_mut() {
                let size = 1 + wish.what.blocks.runs().len();
                if size <= room && wish.tell(now) {
                    room -= size;
                    list.push(Recall::Token(wish.what.clone()));
                }
            }
            let due = member
                .publish
                .iter_mut()
                .filter_map(|(&ino, wish)| wish.tell(now).then_some(Recall::Publish(ino, wish.what)));
            list.extend(due.take(room));
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
        entry.map(|e| e.holders.iter().map(|h| (h.session, h.token.clone())).collect()).unwrap_or_default()
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
                holders: entry.holders.iter().map(|h| (h.session, h.token.clone())).collect(),
                waiting: entry.waiting.iter().map(|w| (w.session, w.need, age(w))).collect(),
            })
        });
        (reports.collect(), more)
    }

    /// What is known of a session.
    pub fn member(&self, session: SessionId) -> MemberReport {
        let Some(member) = self.members.get(&session) else { return MemberReport::default() };
        let count = member.recalls.len() + member.publish.len() + usize::from(member.share.is_some());
        let count = count as u64;
        MemberReport { whole: member.whole, tokens: member.held, recalls: (count, oldest_wish(member)) }
    }
}

/// Whether nobody stands in the way of a wait; who does is asked to make room. Who resolves gives up the part
/// it holds first, so that nothing of it is under way meanwhile.
#[expect(clippy::too_many_arguments, reason = "parts of the table")]
fn clear(
    members: &mut BTreeMap<SessionId, Member>,
    holders: &[Holder],
    ino: InodeNo,
    wait: &mut Wait,
    need: Need,
    resolve: bool,
    now: Duration,
    next: NextGrant<'_>,
) -> bool {
    let own = holders.iter().find(|holder| holder.session == wait.session).map(|holder| holder.token.clone());
    let own = own.unwrap_or_default();
    let mut free = true;
    for holder in holders {
        if holder.session == wait.session && !(resolve && holder.token.mode == TokenMode::Part) {
            continue;
        }
        let member = members.get_mut(&holder.session).filter(|member| !member.ending);
        match way(&holder.token, holder.at, &own, need) {
            Way::Free => {}
            Way::Publish if wait.published.contains(&holder.session) => {}
            Way::Publish => {
                free = false;
                let number = *wait.publish.get_or_insert_with(&mut *next);
                if let Some(member) = member {
                    member.publish.entry(ino).or_insert(Wish::new(number, now));
                }
            }
            Way::Keep(wanted) => {
                free = false;
                let Some(member) = member else { continue };
                let wish = member.recalls.entry(ino).or_insert_with(|| Wish::new(wanted.clone(), now));
                let both = wanted.meet(&wish.what);
                if both != wish.what {
                    *wish = Wish { since: wish.since, ..Wish::new(both, now) };
                }
            }
        }
    }
    free
}

fn oldest_wish(member: &Member) -> Option<Duration> {
    let recalls = member.recalls.values().map(|wish| wish.since);
    let publish = member.publish.values().map(|wish| wish.since);
    recalls.chain(publish).chain(member.share.iter().map(|wish| wish.since)).min()
}
