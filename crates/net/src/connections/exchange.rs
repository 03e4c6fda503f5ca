//! What becomes of connections when the cluster's authority is exchanged.
//!
//! This process has got another certificate, or believes other authorities. The connections that it has made are made anew,
//! each new one standing before the old one is drained: no call is lost. Those of peers whose certificate is of an authority
//! that is believed no more end: the peers made theirs anew when they got their certificates, who has none is out.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use trust::Identity;

use crate::{
    connections::{
        conn::Conn,
        group::Group,
        groups::Groups,
        keeper::{self, USED_WITHIN},
    },
    error::CloseReason,
};

/// How long connections with peers that show a certificate of a former authority have to be made anew.
const GRACE: Duration = Duration::from_secs(5);
/// How often it is looked for such as could not be begun to be replaced: others of their group were.
const LOOK: Duration = Duration::from_millis(500);

/// Brings the connections that stand in line with what this process proves itself by from now on.
pub(crate) fn begin(groups: &Arc<Groups>, before: &Identity, now: &Identity) {
    if before.signer() == now.signer() && before.believed() == now.believed() {
        return;
    }
    let all = groups.all();
    for conn in all.iter().filter(|group| !group.dials()).flat_map(|group| group.conns()) {
        conn.close_if_of_former_authority();
    }
    groups.core.runtime.spawn(run(Arc::downgrade(groups)));
}

async fn run(groups: Weak<Groups>) {
    let until = Instant::now() + GRACE;
    loop {
        let Some(groups) = groups.upgrade().filter(|groups| !groups.is_shut()) else { return };
        let (all, over) = (groups.all(), Instant::now() >= until);
        drop(groups);
        all.iter().filter(|group| group.dials()).for_each(|group| group.make_anew());
        if over {
            all.iter().flat_map(|group| group.conns()).for_each(|conn| conn.close_if_of_former_authority());
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl Group {
    pub(crate) fn conns(&self) -> Vec<Arc<Conn>> {
        self.lock().conns.clone()
    }

    /// Connections for which a former certificate was shown, and to peers whose authority is believed no more, give way to others.
    fn make_anew(&self) {
        let own = self.core.identity().signer();
        let is_old = |conn: &&Arc<Conn>| !conn.have().leaving && (conn.own != own || !conn.is_believed());
        let old: Vec<u64> = self.conns().iter().filter(is_old).map(|conn| conn.id).collect();
        if old.is_empty() {
            return;
        }
        // Nobody makes connections anew that nobody uses.
        if self.idle() > USED_WITHIN && !self.lock().table.is_busy() {
            old.iter().for_each(|&conn| keeper::drain(self, conn));
        } else {
            self.lock_plan().replace(&old);
        }
        self.keeper.notify_one();
    }
}

impl Conn {
    /// Whether the peer's certificate is of an authority that this process believes.
    pub(crate) fn is_believed(&self) -> bool {
        self.peer.shown.signer(&self.core.identity()).is_some()
    }

    /// Ends it, if the peer's certificate is of an authority that this process has believed and does no more.
    pub(crate) fn close_if_of_former_authority(&self) {
        if self.core.has_dropped_authorities() && !self.is_believed() {
            self.close(CloseReason::FormerAuthority);
        }
    }
}
