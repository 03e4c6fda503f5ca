//! Another process, as users of the transport hold it.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use base::NodeId;

use crate::{
    calls::call::{Call, Reply},
    connections::group::{Group, User},
    error::CallError,
};

/// Another process, reached over one connection group. Cheap to clone; clones share the group.
#[derive(Clone)]
pub struct Peer {
    group: Arc<Group>,
    /// The group is kept as long as somebody has this.
    _user: User,
}

impl Peer {
    pub(crate) fn from_group(group: Arc<Group>) -> Peer {
        let user = group.user();
        Peer { group, _user: user }
    }

    /// Of a group that is kept for `user`.
    pub(crate) fn of_user(group: Arc<Group>, user: User) -> Peer {
        Peer { group, _user: user }
    }

    /// Sends one request and waits for its reply, until the call's deadline at most. A reply whose status
    /// is not `Ok` is an error, but `Busy` is tried again until the deadline. Dropping the future tells
    /// the peer that nobody waits.
    pub async fn call(&self, call: Call) -> Result<Reply, CallError> {
        call.check_lengths()?;
        let (deadline, now) = (call.deadline, Instant::now());
        if deadline <= now {
            return Err(CallError::Deadline);
        }
        match tokio::time::timeout_at(deadline.into(), self.group.call(call, now)).await {
            Ok(result) => result,
            Err(_) => Err(CallError::Deadline),
        }
    }

    /// Node and process number, once a handshake has told them.
    pub fn identity(&self) -> Option<(NodeId, u64)> {
        self.group.lock().identity.as_ref().map(|i| (i.node, i.process))
    }

    /// Whether a connection stands now.
    pub fn is_connected(&self) -> bool {
        !self.group.lock().conns.is_empty()
    }

    /// The addresses this peer is connected to; empty for a peer that connected to us.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.group.addrs
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({})", self.group.name())
    }
}
