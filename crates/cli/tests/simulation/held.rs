//! Names made ahead that count as told and are not: so a question finds what it finds if it does not wait for them.

use std::{sync::Arc, time::Duration};

use base::{InodeNo, SessionId};
use manager::Caller;
use tokio::time::{Instant, sleep};
use wire::mgr::{Change, MgrReply, MgrRequest, OpId};

use super::cluster::{Cluster, Without};
use crate::concerned::{LeftOut, concerns};

/// How long they are held back at most.
const HELD: Duration = Duration::from_millis(300);
/// What the manager may take for them.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is held back, of one session.
#[derive(Default)]
pub struct Held {
    session: SessionId,
    changes: Vec<(OpId, Change)>,
    /// Counts messages.
    number: u64,
}

/// The inode that a question is about.
fn asked_about(request: &MgrRequest) -> Option<InodeNo> {
    use MgrRequest::{Extents, GetAttr, GetXattr, ListXattr, ReadInline, ReadLink};
    match *request {
        GetAttr { ino }
        | ReadInline { ino }
        | ReadLink { ino }
        | Extents { ino, .. }
        | GetXattr { ino, .. }
        | ListXattr { ino } => Some(ino),
        _ => None,
    }
}

/// Whether it may be told of what was done ahead; other changes that are told together are of content.
fn is_of_names(change: &Change) -> bool {
    use Change::{CreateAs, Rename, SetAttr, Unlink};
    matches!(change, CreateAs { .. } | Rename { .. } | SetAttr { .. } | Unlink { .. })
}

/// Whether something else is asked that would find it missing, or after which it is refused.
fn ends_or_finds(request: &MgrRequest) -> bool {
    use MgrRequest::{
        Acquire, CloseSession, Lookup, Mutate, MutateMany, OpenSession, ReadDir, Release, Tell,
    };
    matches!(
        request,
        Acquire { .. }
            | CloseSession
            | Lookup { .. }
            | Mutate { .. }
            | MutateMany { .. }
            | OpenSession { .. }
            | ReadDir { .. }
            | Release { .. }
            | Tell { .. }
    )
}

impl Cluster {
    /// Where a rule about such questions is taken out: what is held back is carried out before anything else that could find it
    /// missing, but not before a question that would not wait for it. The answer to `request` if it is held back itself.
    pub async fn hold_back(self: &Arc<Cluster>, by: Caller, request: &MgrRequest) -> Option<MgrReply> {
        let left_out = match self.without {
            Without::Waiting | Without::Entry => None,
            Without::Told => Some(LeftOut::Nothing),
            Without::Directories => Some(LeftOut::Directories),
            Without::Target => Some(LeftOut::Target),
            Without::Replaced => Some(LeftOut::Replaced),
            _ => return None,
        };
        let about = asked_about(request);
        let finds = about.is_some() || ends_or_finds(request);
        if !finds {
            return None;
        }
        let mut held = self.held.lock().await;
        let all = held.changes.len();
        let first = match (about.filter(|_| held.session == by.session), left_out) {
            (None, _) => all,
            (Some(ino), Some(left_out)) => {
                let waits = |(_, change): &(OpId, Change)| concerns(change, ino, left_out);
                held.changes.iter().rposition(waits).map_or(0, |at| at + 1)
            }
            (Some(_), None) if self.without == Without::Entry => all.min(1),
            (Some(_), None) => 0,
        };
        self.carry_out(&mut held, first).await;
        let MgrRequest::MutateMany { changes } = request else { return None };
        if !changes.iter().any(|(_, change)| is_of_names(change)) {
            return None;
        }
        let number = held.number + 1;
        *held = Held { session: by.session, changes: changes.clone(), number };
        let cluster = self.clone();
        tokio::spawn(async move {
            sleep(HELD).await;
            let mut held = cluster.held.lock().await;
            if held.number == number {
                let all = held.changes.len();
                cluster.carry_out(&mut held, all).await;
            }
        });
        Some(MgrReply::Many(changes.iter().map(|_| Ok(MgrReply::Done)).collect()))
    }

    /// Tells the manager the first of what is held back; the next one, if it is killed.
    async fn carry_out(&self, held: &mut Held, count: usize) {
        let changes: Vec<(OpId, Change)> = held.changes.drain(..count).collect();
        while !changes.is_empty() {
            let expires = Instant::now() + PATIENCE;
            let by = Caller { session: held.session, member: base::MemberId(0), expires, build: None };
            let request = MgrRequest::MutateMany { changes: changes.clone() };
            if let Some((manager, process)) = self.manager()
                && process.spawn(async move { manager.handle(by, request).await }).await.is_ok()
            {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
