//! Gives tokens to those who wait, and recalls what stands in their way.

use std::{collections::BTreeMap, time::Duration};

use base::{Grant, InodeNo, SessionId};
use wire::token::{Need, RUNS_MAX, Token, TokenMode};

use super::{
    Acts, NextGrant, Tokens,
    notice::Notice,
    rules::{Demand, demand, go_together, goes_with, granted, widened, writes},
    table::{Change, Entry, Holder, Member, Wait},
};

/// Inodes kept in the table because they are resolved, beside those that are used: one that is forgotten is only
/// resolved once more.
pub(super) const RESOLVED_MAX: usize = 1 << 18;

/// Runs that one grant may add to a token.
const RUNS_SPLIT: usize = 4;

impl Tokens {
    pub(super) fn settle_all(&mut self, now: Duration, next: NextGrant<'_>, acts: &mut Acts) {
        debug_assert!(self.inodes.iter().all(|(ino, e)| !e.is_wanted() || self.wanted.contains(ino)));
        for ino in self.wanted.clone() {
            self.settle(ino, now, next, acts);
        }
        let unresolved = self.unresolved;
        self.inodes.retain(|_, e| e.is_used() || e.resolved && unresolved);
    }

    /// Gives what can be given on one inode, and recalls what stands in the way of the rest. Nobody is given
    /// what somebody before it waits for.
    pub(super) fn settle(&mut self, ino: InodeNo, now: Duration, next: NextGrant<'_>, acts: &mut Acts) {
        self.give(ino, now, next, acts);
        match self.inodes.get(&ino).is_some_and(Entry::is_wanted) {
            true => self.wanted.insert(ino),
            false => self.wanted.remove(&ino),
        };
    }

    fn give(&mut self, ino: InodeNo, now: Duration, next: NextGrant<'_>, acts: &mut Acts) {
        let ready = self.ready();
        // Who only looks waits for no claims of sessions that make no names ahead.
        if ready || !self.unclear().names {
            self.settle_changes(ino, ready, now, next, acts);
        }
        if !ready {
            if self.inodes.get(&ino).is_some_and(Entry::is_wanted) {
                self.ask_to_share(now, |_| true);
            }
            return;
        }
        while self.settle_once(ino, now, next, acts) {}
        let kept = self.inodes.len() <= RESOLVED_MAX;
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        for holder in &entry.holders {
            if let Some(member) = self.members.get_mut(&holder.session)
                && member.recalls.get(&ino).is_some_and(|notice| holder.token.is_within(&notice.what))
            {
                member.recalls.remove(&ino);
            }
        }
        if !(entry.is_used() || entry.resolved && self.unresolved && kept) {
            self.inodes.remove(&ino);
        }
    }

    /// Lets changes go, or only looks, that nobody's token is in the way of.
    fn settle_changes(
        &mut self,
        ino: InodeNo,
        all: bool,
        now: Duration,
        next: NextGrant<'_>,
        acts: &mut Acts,
    ) {
        let Some(Entry { holders, changes, .. }) = self.inodes.get_mut(&ino) else { return };
        changes.retain(|&Change { ticket, session, need, expires }| {
            if !all && need != Need::Names {
                return true;
            }
            let (tickets, published) = (Vec::new(), Vec::new());
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
            let resolve = unresolved && !matches!(wait.need, Need::Names | Need::Make);
            if resolve && members.get(&wait.session).is_some_and(|member| member.guest) {
                // Somebody else resolves it; meanwhile it stands in nobody's way.
                return true;
            }
            let recalled = members.get(&wait.session).is_some_and(|member| member.recalls.contains_key(&ino));
            let kept =
                |holder: &Holder| holder.session != wait.session && holder.token.mode >= TokenMode::Part;
            let need = match wait.need {
                _ if resolve => Need::Write,
                // Nobody gives anything up for it, or waits for who got it just before.
                Need::Make if before > 1 || recalled || holders.iter().any(kept) => Need::Names,
                need if runs + RUNS_SPLIT > RUNS_MAX => widened(need),
                need => need,
            };
            // Who is ahead may wait for what this session holds, and its giving up for this answer: it has pages of the kernel
            // locked that go with it. It asks for nothing else until that is done.
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
                holders.push(Holder { session: wait.session, token, at: 0, resolves: false });
                member.held += 1;
            }
            for holder in holders.iter_mut().filter(|holder| holder.session == wait.session) {
                let own = holder.token.clone();
                holder.token = Token { serial: next(), ..granted(&holder.token, &others, need) };
                holder.resolves = resolve;
                // Claims may contradict each other; what is given does not.
                debug_assert!(
                    others.iter().all(|other| goes_with(&holder.token, other))
                        || !go_together(&[&others[..], &[own]].concat()),
                    "{:?} was given beside {others:?}",
                    holder.token
                );
                if let Need::Blocks(span, _) = wait.need {
                    holder.at = span.first;
                }
                if let Some(recall) = member.recalls.get_mut(&ino) {
                    recall.what = holder.token.clone();
                }
                let tickets = wait.tickets.drain(..);
                acts.granted.extend(tickets.map(|ticket| (ticket, holder.token.clone(), resolve)));
            }
            acts.touched.insert(ino);
            false
        });
        waiting.len() < before
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
        match demand(&holder.token, holder.at, &own, need) {
            Demand::Nothing => {}
            Demand::Publish if wait.published.contains(&holder.session) => {}
            Demand::Publish => {
                free = false;
                let number = *wait.publish.get_or_insert_with(&mut *next);
                if let Some(member) = member {
                    member.publish.entry(ino).or_insert(Notice::new(number, now));
                }
            }
            Demand::Keep(wanted) => {
                free = false;
                let Some(member) = member else { continue };
                let notice = member.recalls.entry(ino).or_insert_with(|| Notice::new(wanted.clone(), now));
                let both = wanted.meet(&notice.what);
                if both != notice.what {
                    *notice = Notice { since: notice.since, ..Notice::new(both, now) };
                }
            }
        }
    }
    free
}
