//! Keeping a dialed group's connections: one task for each connection it should have.
//!
//! A slot connects when its group is used, waits until the connection ends, and connects again with
//! growing pauses. It sleeps while nobody uses the group, and ends with it.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use thiserror::Error;
use wire::hello::Lane;

use crate::{
    conn::Conn,
    group::Group,
    handshake::{self, HandshakeError},
    socket::{self, Socket},
};

const BACKOFF_FIRST: Duration = Duration::from_millis(10);
/// A connection that held this long was no failed attempt.
const HELD: Duration = Duration::from_secs(1);
/// A group not used for this long is not reconnected until it is.
const USED_WITHIN: Duration = Duration::from_secs(30);
/// A refused peer is asked again after this.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// A sleeping slot looks this often whether its group still exists.
const SLEEP: Duration = Duration::from_secs(10);

/// Why a connection could not be made.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("connect to {addr}: {source}")]
    Connect { addr: SocketAddr, source: std::io::Error },
    #[error("connect to {addr}: no answer within {limit:?}")]
    Timeout { addr: SocketAddr, limit: Duration },
    #[error("handshake with {addr}: {source}")]
    Handshake { addr: SocketAddr, source: HandshakeError },
    #[error("{addr} refuses this node: {reason}")]
    Refused { addr: SocketAddr, reason: String },
}

/// One slot's life. `number` counts the connections of its lane.
pub(crate) async fn slot(group: Weak<Group>, lane: Lane, number: u8) {
    let mut backoff = BACKOFF_FIRST;
    let mut attempt = 0usize;
    loop {
        let Some(group) = group.upgrade() else { return };
        if group.is_shut() {
            return;
        }
        let wanted = lane == Lane::Control || number < group.effective.load(Ordering::Relaxed).max(1);
        if !wanted || group.idle() > USED_WITHIN {
            let demand = group.demand.notified();
            // Woken by a call, by the first handshake, or to see whether the group is still there.
            let _ = tokio::time::timeout(SLEEP, demand).await;
            continue;
        }
        let addr = group.addrs[(number as usize + attempt) % group.addrs.len()];
        let began = Instant::now();
        let mut pause = match dial(&group, lane, addr).await {
            Ok(conn) => {
                conn.ended.notified().await;
                Duration::ZERO
            }
            Err(error) => {
                tracing::info!("{error}");
                group.dial_failed(&error);
                attempt += 1;
                if matches!(error, DialError::Refused { .. }) { REFUSED_PAUSE } else { backoff }
            }
        };
        if began.elapsed() >= HELD {
            backoff = BACKOFF_FIRST;
        } else {
            pause = pause.max(backoff);
            backoff = (backoff * 2).min(group.core.config.backoff_max);
        }
        let pause = group.core.jitter(pause);
        drop(group);
        tokio::time::sleep(pause).await;
    }
}

async fn dial(group: &Arc<Group>, lane: Lane, addr: SocketAddr) -> Result<Arc<Conn>, DialError> {
    let core = &group.core;
    let limit = core.config.connect_timeout;
    let connected = tokio::time::timeout(limit, socket::connect(addr)).await;
    let failed = |source| DialError::Connect { addr, source };
    let mut stream = connected.map_err(|_| DialError::Timeout { addr, limit })?.map_err(failed)?;
    socket::configure(&stream, core.config.heartbeat_timeout).map_err(failed)?;
    let accepted = handshake::connect(core, &mut stream, lane).await.map_err(|source| match source {
        HandshakeError::Refused(reason) => {
            tracing::warn!(peer = %addr, "the peer refuses this node: {reason}");
            DialError::Refused { addr, reason }
        }
        HandshakeError::Frame(e @ wire::frame::FrameError::Version { .. }) => {
            let reason = format!("{e}; install the same version of ropewalk on both nodes");
            tracing::warn!(peer = %addr, "{reason}");
            DialError::Refused { addr, reason }
        }
        source => DialError::Handshake { addr, source },
    })?;
    Conn::start(core, group, Socket::new(stream), true, &accepted).map_err(failed)
}
