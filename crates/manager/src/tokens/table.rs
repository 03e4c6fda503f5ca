//! The table: who takes part, and of each inode who holds what and who waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use base::{Grant, InodeNo, SessionId};
use wire::{
    mgr::TokenReport,
    token::{Need, Token},
};

use super::notice::Notice;
use crate::ticket::Ticket;

#[derive(Debug, Default, Clone)]
pub(super) struct Member {
    /// It may hold anything: it began alone, or has not claimed since the manager's start.
    pub whole: bool,
    /// While it has not claimed since the manager's start it may have names that it has not told.
    pub ahead: bool,
    /// It resolves nothing, and waits for who does.
    pub guest: bool,
    /// It is to be fenced: it gets and says nothing more, its tokens stay until then.
    pub ending: bool,
    pub share: Option<Notice<()>>,
    /// It is alone and has everything again, under this grant. Told once.
    pub whole_again: Option<Grant>,
    /// It goes over everything. The number is a grant: what is said of another pass, of this life of the manager or of one
    /// before, says nothing of this one.
    pub pass: Option<Notice<Grant>>,
    pub recalls: BTreeMap<InodeNo, Notice<Token>>,
    pub publish: BTreeMap<InodeNo, Notice<Grant>>,
    /// A waiting question for what is wanted.
    pub poll: Option<(Ticket, Duration)>,
    pub held: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub session: SessionId,
    pub token: Token,
    /// The block for which it was granted last.
    pub at: u64,
    /// It was told to resolve first, and has not said that it has: what it holds proves nothing.
    pub resolves: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Wait {
    /// The question, and those that it took the place of: which of them somebody still waits for is not known.
    pub tickets: Vec<Ticket>,
    pub session: SessionId,
    pub need: Need,
    pub since: Duration,
    pub expires: Duration,
    /// Number of the question for times, once it was put, and who has answered.
    pub publish: Option<Grant>,
    pub published: Vec<SessionId>,
}

/// A change at the manager that waits until no other session keeps what it changes (its need is `Write`), or a look at names and
/// attributes that waits until none is changing them ahead of the manager (`Names`).
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub ticket: Ticket,
    pub session: SessionId,
    pub need: Need,
    pub expires: Duration,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Entry {
    pub holders: Vec<Holder>,
    pub waiting: VecDeque<Wait>,
    /// They go before all who wait for tokens.
    pub changes: Vec<Change>,
    /// Nothing that an unclean end left is undecided here.
    pub resolved: bool,
}

impl Entry {
    pub fn is_wanted(&self) -> bool {
        !self.waiting.is_empty() || !self.changes.is_empty()
    }

    pub fn is_used(&self) -> bool {
        !self.holders.is_empty() || self.is_wanted()
    }
}

impl Member {
    /// It is told nothing, and nothing of it ends.
    fn is_content(&self) -> bool {
        !self.ending && self.whole_again.is_none() && self.pass.is_none() && self.oldest_notice().is_none()
    }

    /// Since when it has not obeyed, if it has not.
    pub fn oldest_notice(&self) -> Option<Duration> {
        let recalls = self.recalls.values().map(|notice| notice.since);
        let publish = self.publish.values().map(|notice| notice.since);
        recalls.chain(publish).chain(self.share.iter().map(|notice| notice.since)).min()
    }
}

/// What sessions have not said yet since the manager's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unclear {
    /// Who holds what.
    pub tokens: bool,
    /// Which names are there: some may be made ahead of the manager.
    pub names: bool,
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
    pub(super) members: BTreeMap<SessionId, Member>,
    pub(super) inodes: HashMap<InodeNo, Entry>,
    /// Those of them on which somebody waits: nobody goes over all to find these.
    pub(super) wanted: BTreeSet<InodeNo>,
    /// A session ended uncleanly and what it left is not all resolved.
    pub(super) unresolved: bool,
}

impl Tokens {
    /// Of a file system whose last sessions ended so.
    pub fn new(unresolved: bool) -> Tokens {
        Tokens { unresolved, ..Tokens::default() }
    }

    /// Whether no session is there, not even one that is to be fenced.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// What is not known while several sessions are there.
    pub fn unclear(&self) -> Unclear {
        let several = self.members.len() > 1;
        let untold = |member: &Member| member.whole && member.ahead;
        Unclear { tokens: several && !self.ready(), names: several && self.members.values().any(untold) }
    }

    /// Whether who holds what is known in full.
    pub fn ready(&self) -> bool {
        self.members.values().all(|member| !member.whole)
    }

    /// Whether a session holds as many tokens as it may, and `ino` would be one more.
    pub fn is_full(&self, session: SessionId, ino: InodeNo, held_max: u64) -> bool {
        let holds = |entry: &Entry| entry.holders.iter().any(|holder| holder.session == session);
        self.members.get(&session).is_some_and(|member| member.held >= held_max)
            && !self.inodes.get(&ino).is_some_and(holds)
    }

    /// Sessions that are to be fenced.
    pub fn ending(&self) -> Vec<SessionId> {
        self.members.iter().filter(|(_, m)| m.ending).map(|(&id, _)| id).collect()
    }

    /// Until when nothing comes of time alone: then a question ends that waits for news. None: something may at any moment.
    pub fn rest_until(&self) -> Option<Duration> {
        let rests = self.wanted.is_empty()
            && !self.unresolved
            && (self.ready() || self.members.len() == 1)
            && self.members.values().all(Member::is_content);
        let polls = self.members.values().filter_map(|member| member.poll.map(|(_, expires)| expires));
        rests.then(|| polls.min().unwrap_or(Duration::MAX))
    }

    /// Sessions that have not obeyed since before `since`.
    pub fn overdue(&self, since: Duration) -> Vec<SessionId> {
        let late = |member: &Member| {
            let oldest = member.oldest_notice();
            !member.ending && oldest.is_some_and(|at| at <= since)
        };
        self.members.iter().filter(|(_, member)| late(member)).map(|(&id, _)| id).collect()
    }

    /// Whether somebody waits for something that this session holds.
    pub fn is_wanted(&self, session: SessionId) -> bool {
        self.members.get(&session).is_some_and(|member| member.oldest_notice().is_some())
    }

    /// Whether a session that resolves nothing waits for one who does: it asks nobody by name.
    pub fn guest_waits(&self) -> bool {
        let guest = |session: &SessionId| self.members.get(session).is_some_and(|member| member.guest);
        let waits = |entry: &Entry| {
            !entry.resolved && entry.waiting.iter().any(|w| w.need != Need::Names && guest(&w.session))
        };
        self.unresolved && self.wanted.iter().filter_map(|ino| self.inodes.get(ino)).any(waits)
    }

    /// Whether nobody resolves while a session, one of those that have `lapsed`, is there: it is to do so, or may hold anything,
    /// or there is nobody else who could.
    pub fn is_resolver(&self, session: SessionId, lapsed: &[SessionId]) -> bool {
        let may =
            |(id, member): (&SessionId, &Member)| !member.guest && !member.ending && !lapsed.contains(id);
        let alone = !self.members.iter().any(may);
        let is_it = |member: &Member| !member.guest && (alone || member.pass.is_some() || member.whole);
        self.members.get(&session).is_some_and(is_it)
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
            // It waits for no more than that, and older programs do not know it.
            let need = |wait: &Wait| if wait.need == Need::Make { Need::Names } else { wait.need };
            Some(TokenReport {
                ino,
                holders: entry.holders.iter().map(|h| (h.session, h.token.clone())).collect(),
                waiting: entry.waiting.iter().map(|w| (w.session, need(w), age(w))).collect(),
            })
        });
        (reports.collect(), more)
    }

    /// What is known of a session.
    pub fn member(&self, session: SessionId) -> MemberReport {
        let Some(member) = self.members.get(&session) else { return MemberReport::default() };
        let count = member.recalls.len() + member.publish.len() + usize::from(member.share.is_some());
        let count = count as u64;
        MemberReport { whole: member.whole, tokens: member.held, recalls: (count, member.oldest_notice()) }
    }
}
