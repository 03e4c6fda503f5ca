//! Tokens within the cluster: their events, and what follows when sessions do not obey.

use std::time::Duration;

use base::{FsId, Grant, SessionId};
use libc::{EINVAL, ENFILE, ETIMEDOUT};
use wire::{
    mgr::{MgrError, MgrReply},
    token::{Need, Span, TOKENS_MAX, Token, Use},
};

use super::{Cluster, Event, Step, state::Client};
use crate::{
    keys,
    tokens::{Acts, NextGrant, Tokens},
};

/// How long a session that renews its lease may take to give up a token before it is fenced.
const RECALL_DEADLINE: Duration = Duration::from_secs(60);
/// A client that nobody waits for may come back for so many leases, and loses nothing. Then it is taken for dead,
/// so that what it left half done is resolved and holds up no rebuild.
const GONE_LEASES: u32 = 6;
/// Inodes in one listing.
const LIST_MAX: usize = 1024;

/// Whether a message names tokens as it must.
fn are_valid(tokens: &[Token]) -> bool {
    let count: usize = tokens.iter().map(|token| 1 + token.blocks.runs().len()).sum();
    count <= TOKENS_MAX && tokens.iter().all(Token::is_valid)
}

impl Cluster {
    /// The next grant; what is stored is ahead of it before anybody hears of it.
    pub(super) fn next_grant(&mut self, step: &mut Step) -> Grant {
        let grant = self.grants.next();
        self.store_grants(step);
        grant
    }

    fn store_grants(&mut self, step: &mut Step) {
        if let Some(stored) = self.grants.number_ahead() {
            self.counters.grant = stored;
            step.put(keys::counter_key(), &self.counters);
        }
    }

    /// File systems of which it is not known in full who holds what.
    pub fn unclear(&self) -> Vec<FsId> {
        self.tokens.iter().filter(|(_, tokens)| tokens.unclear()).map(|(&fs, _)| fs).collect()
    }

    fn fs_of(&self, session: SessionId) -> Option<FsId> {
        self.clients.get(&session).map(|client| client.record.fs)
    }

    /// Calls the table of a file system and takes over what follows.
    pub(super) fn with_tokens(
        &mut self,
        fs: FsId,
        step: &mut Step,
        call: impl FnOnce(&mut Tokens, NextGrant<'_>) -> Acts,
    ) {
        let tokens = self.tokens.entry(fs).or_default();
        let unclear = tokens.unclear();
        let grants = &mut self.grants;
        let acts = call(tokens, &mut || grants.next());
        if tokens.unclear() != unclear {
            step.unclear.push((fs, !unclear));
        }
        for ino in acts.touched {
            step.holders.push((fs, ino, tokens.holders(ino)));
        }
        for (ticket, token, resolve) in acts.granted {
            step.reply(ticket, MgrReply::Token { token, resolve, attr: None, empty: false });
        }
        for (ticket, recalls) in acts.told {
            step.reply(ticket, MgrReply::Recalls(recalls));
        }
        for ticket in acts.cleared {
            step.reply(ticket, MgrReply::Done);
        }
        for ticket in acts.late {
            step.refuse(ticket, MgrError::Errno(ETIMEDOUT));
        }
        step.left.extend(acts.left.into_iter().map(|(session, ino)| (session, fs, ino)));
        self.store_grants(step);
    }

    /// Asks all who may hold anything what they hold.
    pub(super) fn share_tokens(&mut self, fs: FsId, now: Duration, step: &mut Step) {
        self.with_tokens(fs, step, |tokens, _| {
            let mut acts = Acts::default();
            tokens.share(now, &mut acts);
            acts
        });
    }

    pub(super) fn token_event(&mut self, event: Event, now: Duration, step: &mut Step) {
        let (ticket, session) = match &event {
            Event::Acquire { ticket, session, .. }
            | Event::Change { ticket, session, .. }
            | Event::Release { ticket, session, .. }
            | Event::WaitRecalls { ticket, session, .. }
            | Event::Claim { ticket, session, .. }
            | Event::Resolved { ticket, session, .. }
            | Event::Published { ticket, session, .. }
            | Event::ResolvePassDone { ticket, session, .. } => (*ticket, *session),
            Event::ListTokens { ticket, fs, after } => {
                let list = self.tokens.get(fs).map(|tokens| tokens.list(*after, LIST_MAX, now));
                let (inodes, more) = list.unwrap_or_default();
                return step.reply(*ticket, MgrReply::Tokens { inodes, more });
            }
            _ => return,
        };
        let Some(fs) = self.fs_of(session) else { return step.refuse(ticket, MgrError::NoSession) };
        if matches!(event, Event::WaitRecalls { .. })
            && let Some(recall) = self.lock_recall(session)
        {
            return step.reply(ticket, recall);
        }
        let bad = match &event {
            Event::Release { tokens, .. } | Event::Claim { tokens, .. } => !are_valid(tokens),
            Event::Acquire { need: Need::Blocks(Span { first, end }, what), .. } => {
                first >= end || *what == Use::None
            }
            _ => false,
        };
        if let Event::Acquire { ino, .. } = event
            && self.tokens.get(&fs).is_some_and(|tokens| tokens.is_full(session, ino, self.tokens_max))
        {
            return step.refuse(ticket, MgrError::Errno(ENFILE));
        }
        if bad {
            return step.refuse(ticket, MgrError::Errno(EINVAL));
        }
        let pass = match &event {
            Event::ResolvePassDone { pass, .. } => Some(*pass),
            _ => None,
        };
        let mut done = true;
        self.with_tokens(fs, step, |tokens, next| match event {
            Event::Acquire { ticket, expires, session, ino, need } => {
                done = false;
                tokens.acquire(session, ino, need, ticket, expires, now, next)
            }
            Event::Change { ticket, expires, session, ino } => {
                done = false;
                tokens.change(session, ino, ticket, expires, now, next)
            }
            Event::WaitRecalls { ticket, expires, session } => {
                done = false;
                tokens.poll(session, ticket, expires, now)
            }
            Event::Release { session, tokens: left, .. } => tokens.release(session, &left, now, next),
            Event::Claim { session, tokens: held, last, .. } => tokens.claim(session, &held, last, now, next),
            Event::Published { session, ino, number, .. } => {
                tokens.published(session, ino, number, now, next)
            }
            Event::Resolved { session, ino, .. } => {
                tokens.resolved(session, ino);
                Acts::default()
            }
            _ => Acts::default(),
        });
        if let Some(pass) = pass
            && self.tokens.get_mut(&fs).is_some_and(|tokens| tokens.pass_done(session, pass))
        {
            self.set_resolved(fs, step);
        }
        if done {
            step.reply(ticket, MgrReply::Done);
        }
    }

    /// Ends clients that do not answer while others wait for what they hold, and those not heard of for long.
    pub(super) fn lapse_clients(&mut self, now: Duration, step: &mut Step) {
        let mut gone: Vec<(SessionId, &str)> = Vec::new();
        for (fs, tokens) in &self.tokens {
            let locks = self.locks.get(fs);
            let lapsed = self.clients.iter().filter(|(id, client)| {
                let wanted = tokens.is_wanted(**id) || locks.is_some_and(|locks| locks.is_wanted(**id));
                client.record.fs == *fs && now > client.renewed + self.lease && wanted
            });
            gone.extend(lapsed.map(|(&id, _)| (id, "its lease has run out and what it holds is wanted")));
            if let Some(since) = now.checked_sub(RECALL_DEADLINE) {
                let late = tokens.overdue(since).into_iter();
                gone.extend(late.map(|id| (id, "it did not give up a token in time")));
                let silent = locks.map(|locks| locks.overdue(since)).unwrap_or_default().into_iter();
                gone.extend(silent.map(|id| (id, "it did not claim its locks in time")));
            }
        }
        let silent = |client: &Client| now > client.renewed + self.lease * GONE_LEASES;
        let dead = self.clients.iter().filter(|(_, client)| silent(client));
        gone.extend(dead.map(|(&id, _)| (id, "it has not been heard of for several leases")));
        for (session, why) in gone {
            step.notes.push(format!("{session} is ended: {why}"));
            self.end_uncleanly(session, step);
        }
    }

    /// Drops fenced sessions, gives what can be given.
    pub(super) fn settle_tokens(&mut self, now: Duration, step: &mut Step) {
        self.settle_fences(step);
        let all: Vec<FsId> = self.tokens.keys().copied().collect();
        for fs in all {
            if self.endings.get(&fs).is_none_or(|ending| ending.fence.is_none()) {
                let ending = self.tokens.get(&fs).map(Tokens::ending).unwrap_or_default();
                for session in ending {
                    self.with_tokens(fs, step, |tokens, next| tokens.drop_session(session, now, next));
                }
            }
            let alone = !self.opens.iter().any(|open| open.fs == fs);
            self.with_tokens(fs, step, |tokens, next| tokens.tick(alone, now, next));
        }
    }
}
