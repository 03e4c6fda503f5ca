//! Tokens within the cluster: their requests, and what follows when sessions do not obey.

use std::time::Duration;

use base::{FsId, Grant, InodeNo, SessionId};
use libc::{EINVAL, ENFILE, ETIMEDOUT};
use wire::{
    mgr::{MgrError, MgrReply},
    token::{Need, Span, TOKENS_MAX, Token, Use},
};

use super::{Cluster, Question, Step, Ticket, state::Client};
use crate::{
    keys, statistics,
    tokens::{Acts, NextGrant, Tokens, Unclear},
};

/// How long a session that renews its lease may take to claim its locks before it is fenced.
const CLAIM_DEADLINE: Duration = Duration::from_secs(60);
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
    pub fn unclear(&self) -> Vec<(FsId, Unclear)> {
        let unclear = self.tokens.iter().map(|(&fs, tokens)| (fs, tokens.unclear()));
        unclear.filter(|(_, unclear)| unclear.tokens).collect()
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
        statistics::tokens(&acts);
        if tokens.unclear() != unclear {
            step.unclear.push((fs, tokens.unclear()));
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

    /// The file system of the session that asks; who has no session is refused.
    fn fs_of_asker(&self, question: Question, step: &mut Step) -> Option<FsId> {
        let fs = self.fs_of(question.session);
        if fs.is_none() {
            step.refuse(question.ticket, MgrError::NoSession);
        }
        fs
    }

    pub(super) fn acquire(
        &mut self,
        question: Question,
        ino: InodeNo,
        need: Need,
        now: Duration,
        step: &mut Step,
    ) {
        let Question { ticket, session, expires, .. } = question;
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        if self.tokens.get(&fs).is_some_and(|tokens| tokens.is_full(session, ino, self.tokens_max)) {
            return step.refuse(ticket, MgrError::Errno(ENFILE));
        }
        if let Need::Blocks(Span { first, end }, what) = need
            && (first >= end || what == Use::None)
        {
            return step.refuse(ticket, MgrError::Errno(EINVAL));
        }
        self.with_tokens(fs, step, |tokens, next| {
            tokens.acquire(session, ino, need, ticket, expires, now, next)
        });
    }

    /// A change of an inode, at the manager, waits until nobody else keeps anything of it.
    pub(super) fn change(&mut self, question: Question, ino: InodeNo, now: Duration, step: &mut Step) {
        let Question { ticket, session, expires, .. } = question;
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        self.with_tokens(fs, step, |tokens, next| tokens.change(session, ino, ticket, expires, now, next));
    }

    /// A look at names or attributes waits until nobody else changes them ahead of the manager.
    pub(super) fn look(&mut self, question: Question, ino: InodeNo, now: Duration, step: &mut Step) {
        let Question { ticket, session, expires, .. } = question;
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        self.with_tokens(fs, step, |tokens, next| tokens.look(session, ino, ticket, expires, now, next));
    }

    /// What a session has made it holds, before it is there.
    pub(super) fn made(&mut self, question: Question, inos: &[InodeNo], step: &mut Step) {
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        let mut made = None;
        self.with_tokens(fs, step, |tokens, next| {
            let (acts, tokens) = tokens.made(question.session, inos, next);
            made = tokens;
            acts
        });
        let held = |token: Option<Token>| match token {
            Some(token) => Ok(MgrReply::Token { token, resolve: false, attr: None, empty: false }),
            None => Ok(MgrReply::Done),
        };
        let reply = match made {
            Some(tokens) => MgrReply::Many(tokens.into_iter().map(held).collect()),
            None => MgrReply::Done,
        };
        step.reply(question.ticket, reply);
    }

    pub(super) fn wait_recalls(&mut self, question: Question, now: Duration, step: &mut Step) {
        let Question { ticket, session, expires, .. } = question;
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        if let Some(recall) = self.lock_recall(session) {
            return step.reply(ticket, recall);
        }
        self.with_tokens(fs, step, |tokens, _| tokens.poll(session, ticket, expires, now));
    }

    pub(super) fn release(&mut self, question: Question, left: &[Token], now: Duration, step: &mut Step) {
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        if !are_valid(left) {
            return step.refuse(question.ticket, MgrError::Errno(EINVAL));
        }
        self.with_tokens(fs, step, |tokens, next| tokens.release(question.session, left, now, next));
        step.reply(question.ticket, MgrReply::Done);
    }

    pub(super) fn claim(
        &mut self,
        question: Question,
        held: &[Token],
        last: bool,
        now: Duration,
        step: &mut Step,
    ) {
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        if !are_valid(held) {
            return step.refuse(question.ticket, MgrError::Errno(EINVAL));
        }
        self.with_tokens(fs, step, |tokens, next| tokens.claim(question.session, held, last, now, next));
        step.reply(question.ticket, MgrReply::Done);
    }

    pub(super) fn published(
        &mut self,
        question: Question,
        ino: InodeNo,
        number: Grant,
        now: Duration,
        step: &mut Step,
    ) {
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        self.with_tokens(fs, step, |tokens, next| tokens.published(question.session, ino, number, now, next));
        step.reply(question.ticket, MgrReply::Done);
    }

    pub(super) fn resolved(&mut self, question: Question, ino: InodeNo, now: Duration, step: &mut Step) {
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        self.with_tokens(fs, step, |tokens, next| tokens.resolved(question.session, ino, now, next));
        step.reply(question.ticket, MgrReply::Done);
    }

    pub(super) fn pass_done(&mut self, question: Question, pass: u64, now: Duration, step: &mut Step) {
        let Some(fs) = self.fs_of_asker(question, step) else { return };
        if self.tokens.entry(fs).or_default().pass_done(question.session, pass) {
            self.with_tokens(fs, step, |tokens, next| tokens.all_resolved(now, next));
            self.set_resolved(fs, step);
        }
        step.reply(question.ticket, MgrReply::Done);
    }

    pub(super) fn list_tokens(
        &self,
        ticket: Ticket,
        fs: FsId,
        after: InodeNo,
        now: Duration,
        step: &mut Step,
    ) {
        let list = self.tokens.get(&fs).map(|tokens| tokens.list(after, LIST_MAX, now));
        let (inodes, more) = list.unwrap_or_default();
        step.reply(ticket, MgrReply::Tokens { inodes, more });
    }

    /// Ends clients that do not answer while others wait for what they hold, and those not heard of for long.
    pub(super) fn lapse_clients(&mut self, now: Duration, step: &mut Step) {
        let mut gone: Vec<(SessionId, &str)> = Vec::new();
        for (fs, tokens) in &self.tokens {
            let locks = self.locks.get(fs);
            let lapsed = self
                .clients
                .iter()
                .filter(|(_, client)| client.record.fs == *fs && now > client.renewed + self.lease);
            let lapsed: Vec<SessionId> = lapsed.map(|(&id, _)| id).collect();
            // While it is there nobody resolves in its place.
            let resolver = |id| tokens.is_resolver(id, &lapsed) && tokens.guest_waits();
            for &id in &lapsed {
                if tokens.is_wanted(id) || locks.is_some_and(|locks| locks.is_wanted(id)) {
                    gone.push((id, "its lease has run out and what it holds is wanted"));
                } else if resolver(id) {
                    gone.push((id, "its lease has run out and somebody waits for who resolves"));
                }
            }
            if let Some(since) = self.overdue_since(now) {
                let late = tokens.overdue(since).into_iter();
                gone.extend(late.map(|id| (id, "it did not give up a token in time")));
            }
            if let Some(since) = now.checked_sub(CLAIM_DEADLINE) {
                let silent = locks.map(|locks| locks.overdue(since)).unwrap_or_default().into_iter();
                gone.extend(silent.map(|id| (id, "it did not claim its locks in time")));
            }
        }
        let silent = |client: &Client| now > client.renewed + self.lease * GONE_LEASES;
        let dead = self.clients.iter().filter(|(_, client)| silent(client));
        gone.extend(dead.map(|(&id, _)| (id, "it has not been heard of for several leases")));
        for (session, why) in gone {
            step.notes.push(format!("{} is ended: {why}", self.mount_called(session)));
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
