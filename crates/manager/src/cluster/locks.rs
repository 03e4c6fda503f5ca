//! Programs' locks within the cluster: their requests, whose sessions are ended for them, what listings say.

use std::time::Duration;

use base::{FsId, InodeNo, SessionId};
use libc::EINVAL;
use wire::{
    lock::{CLAIM_MAX, LockAnswer, LockRequest},
    mgr::{MgrError, MgrReply},
    token::Recall,
};

use super::{Cluster, Question, Step, Ticket};
use crate::locks::{Answers, Locks};

/// Locks in one listing; those of one inode stay together.
const LIST_MAX: usize = 1024;

impl Cluster {
    /// The number under which sessions claim their locks: another one in every life of the manager.
    pub(super) fn begin_locks(&mut self, life: u64) {
        for fs in &self.map.filesystems {
            let mut locks = Locks::new(life);
            let here = self.clients.iter().filter(|(_, client)| client.record.fs == fs.id);
            here.for_each(|(&session, client)| {
                locks.begin(session, &client.record.process.scope, false);
            });
            self.locks.insert(fs.id, locks);
        }
    }

    /// Calls the table of a file system and passes its answers on.
    pub(super) fn with_locks(&mut self, fs: FsId, step: &mut Step, call: impl FnOnce(&mut Locks) -> Answers) {
        for (ticket, answer) in call(self.locks.entry(fs).or_default()) {
            step.reply(ticket, MgrReply::Lock(answer));
        }
    }

    pub(super) fn lock(&mut self, question: Question, request: LockRequest, now: Duration, step: &mut Step) {
        let Question { ticket, session, expires, .. } = question;
        let Some(client) = self.clients.get(&session) else {
            return step.refuse(ticket, MgrError::NoSession);
        };
        let fs = client.record.fs;
        let bad = match &request {
            LockRequest::Set { lock, .. } | LockRequest::Test { lock, .. } => !lock.is_valid(),
            LockRequest::Claim { locks, .. } => locks.len() > CLAIM_MAX,
            LockRequest::Cancel { .. } => false,
        };
        if bad {
            return step.refuse(ticket, MgrError::Errno(EINVAL));
        }
        self.with_locks(fs, step, |locks| match request {
            LockRequest::Set { ino, seq, lock, wait } => {
                locks.set(session, ino, seq, lock, wait, ticket, expires, now)
            }
            LockRequest::Test { ino, lock } => locks.test(session, ino, lock, ticket, expires, now),
            LockRequest::Cancel { ino, seq, wait } => {
                let mut answers = locks.cancel(session, ino, seq, wait, now);
                answers.push((ticket, LockAnswer::Done));
                answers
            }
            LockRequest::Claim { life, locks: held, last } => {
                let mut answers = locks.claim(session, life, &held, last, now);
                answers.push((ticket, LockAnswer::Done));
                answers
            }
        });
    }

    /// What a session that asks what is wanted of it is told about locks: that is not kept waiting.
    pub(super) fn lock_recall(&self, session: SessionId) -> Option<MgrReply> {
        let fs = self.clients.get(&session)?.record.fs;
        let life = self.locks.get(&fs)?.to_claim(session)?;
        Some(MgrReply::Recalls(vec![Recall::Locks(life)]))
    }

    /// Gives what can be given; those whose fence is in force hold nothing any more.
    pub(super) fn settle_locks(&mut self, now: Duration, step: &mut Step) {
        let all: Vec<FsId> = self.locks.keys().copied().collect();
        for fs in all {
            let fenced = self.endings.get(&fs).is_none_or(|ending| ending.fence.is_none());
            self.with_locks(fs, step, |locks| {
                let mut answers = Vec::new();
                for session in if fenced { locks.ending() } else { Vec::new() } {
                    answers.append(&mut locks.drop_session(session, now));
                }
                answers.append(&mut locks.tick(now));
                answers
            });
        }
    }

    pub(super) fn list_locks(
        &self,
        ticket: Ticket,
        fs: FsId,
        after: InodeNo,
        now: Duration,
        step: &mut Step,
    ) {
        let list = self.locks.get(&fs).map(|locks| locks.list(after, LIST_MAX, now));
        let (locks, more) = list.unwrap_or_default();
        step.reply(ticket, MgrReply::Locks { locks, more });
    }
}
