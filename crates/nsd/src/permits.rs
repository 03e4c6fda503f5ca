//! Files that sessions may use that may not use all, and whether to write them: the manager says which, and it holds for a while.
//!
//! So a file that is moved out of a subtree, or that gets another mode, is still in reach for [`HOLDS`] of who used it until then. Nothing else than this asks
//! the manager on the way to data, and only for such sessions.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use base::{InodeNo, SessionId};
use parking_lot::Mutex;
use stripe::Membership;
use wire::{
    map::Limits,
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
    given: Mutex<HashMap<(SessionId, InodeNo, bool), Instant>>,
}

impl Permits {
    /// Asks in the name of this session.
    pub fn new(membership: Membership) -> Permits {
        Permits { membership, given: Mutex::default() }
    }

    /// Whether a session may use the files that a request names; `Ok(false)` if the map here does not know the session (yet), and so
    /// says nothing of it. `NoMap` where the manager does not say: as with a map that is not there yet, the caller asks again.
    pub async fn check(
        &self,
        session: SessionId,
        request: &NsdRequest,
        expires: Instant,
    ) -> Result<bool, NsdRefusal> {
        let write = request.changes();
        let files = {
            let view = self.membership.view();
            let Some(client) = view.map.client(session) else {
                return Ok(session == SessionId(0) || view.map.has_session(session));
            };
            let limits = view.map.limits_of(client.member);
            if !limits.is_some_and(Limits::is_checked) {
                return Ok(true);
            }
            request.files_of(client.fs).ok_or(NsdRefusal::NotAllowed)?
        };
        let asked = Instant::now();
        let files: Vec<InodeNo> = {
            let given = self.given.lock();
            let holds =
                |file: &InodeNo| given.get(&(session, *file, write)).is_some_and(|until| asked < *until);
            files.into_iter().filter(|file| !holds(file)).collect()
        };
        if files.is_empty() {
            return Ok(true);
        }
        let question = MgrRequest::MayUse { session, files: files.clone(), write };
        match self.membership.call(question, expires).await {
            Ok(MgrReply::MayUse(true)) => {}
            Ok(MgrReply::MayUse(false)) => return Err(NsdRefusal::NotAllowed),
            _ => return Err(NsdRefusal::NoMap),
        }
        let mut given = self.given.lock();
        if given.len() + files.len() > KEPT_MAX {
            given.clear();
        }
        given.extend(files.into_iter().map(|file| ((session, file, write), asked + HOLDS)));
        Ok(true)
    }
}
