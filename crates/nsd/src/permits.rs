//! Files that sessions may use that are bound to a subtree: the manager says which, and it holds for a while.
//!
//! So a file that is moved out of a subtree is still in reach for [`HOLDS`] of who used it until then. Nothing else than this asks
//! the manager on the way to data, and only for such sessions.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use base::{InodeNo, SessionId};
use parking_lot::Mutex;
use stripe::Membership;
use wire::{
    mgr::{MgrReply, MgrRequest},
    nsd::{NsdRefusal, NsdRequest},
};

/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(10);
/// Answers kept; beyond it all are forgotten.
const KEPT_MAX: usize = 1 << 16;

/// See the module.
pub struct Permits {
    membership: Membership,
    given: Mutex<HashMap<(SessionId, InodeNo), Instant>>,
}

impl Permits {
    /// Asks in the name of this session.
    pub fn new(membership: Membership) -> Permits {
        Permits { membership, given: Mutex::default() }
    }

    /// Whether a session may use the files that a request names. `NoMap` where the manager does not say: as with a map that is not
    /// there yet, the caller asks again.
    pub async fn check(
        &self,
        session: SessionId,
        request: &NsdRequest,
        expires: Instant,
    ) -> Result<(), NsdRefusal> {
        let files = {
            let view = self.membership.view();
            let Some(client) = view.map.client(session) else { return Ok(()) };
            let limits = view.map.limits_of(client.member);
            if limits.is_none_or(|limits| limits.subtree.is_none()) {
                return Ok(());
            }
            request.files_of(client.fs).ok_or(NsdRefusal::NotAllowed)?
        };
        let asked = Instant::now();
        let files: Vec<InodeNo> = {
            let given = self.given.lock();
            let holds = |file: &InodeNo| given.get(&(session, *file)).is_some_and(|until| asked < *until);
            files.into_iter().filter(|file| !holds(file)).collect()
        };
        if files.is_empty() {
            return Ok(());
        }
        let question = MgrRequest::MayUse { session, files: files.clone() };
        match self.membership.call(question, expires).await {
            Ok(MgrReply::MayUse(true)) => {}
            Ok(MgrReply::MayUse(false)) => return Err(NsdRefusal::NotAllowed),
            _ => return Err(NsdRefusal::NoMap),
        }
        let mut given = self.given.lock();
        if given.len() + files.len() > KEPT_MAX {
            given.clear();
        }
        given.extend(files.into_iter().map(|file| ((session, file), asked + HOLDS)));
        Ok(())
    }
}
