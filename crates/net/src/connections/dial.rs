//! One attempt to connect: socket, handshake, and the connection that comes of it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use thiserror::Error;
use tokio::{net::TcpStream, task::JoinSet};
use wire::hello::Lane;

use crate::{
    calls::services::Services,
    connections::{
        group::Group,
        handshake::{self, Accepted},
        handshake_error::HandshakeError,
        plan::Failed,
        refused,
        socket::{self, Socket},
        start,
    },
};

/// A rail that was left is asked with shorter attempts: one hanging in a dead network must not delay the next.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// After these pauses so many further attempts begin beside those that hang: on other ports, which may take another way. Where
/// one of two ways is dead one in four gets through, there and back; all twenty hang in 3 cases of 1000.
const BESIDE: [(Duration, usize); 5] = [
    (Duration::from_millis(250), 1),
    (Duration::from_millis(150), 2),
    (Duration::from_millis(150), 4),
    (Duration::from_millis(150), 4),
    (Duration::from_millis(150), 8),
];

/// Why a connection could not be made.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("connect to {at}: {source}")]
    Connect { at: String, source: std::io::Error },
    #[error("connect to {at}: no answer within {limit:.1?}")]
    Timeout { at: String, limit: Duration },
    #[error("handshake with {at}: {source}")]
    Handshake { at: String, source: HandshakeError },
    #[error("{at} refuses this process: {reason}")]
    Refused { at: String, reason: String },
    /// It was to be made together with one that failed.
    #[error("{text}")]
    Beside { text: String },
}

/// A socket whose handshake is done.
pub(crate) struct Dialed {
    pub socket: Socket,
    pub accepted: Accepted,
}

/// The time until a socket is connected; `again`: on a rail that was left. A handshake that has begun has `connect_timeout` from the
/// attempt's begin.
pub(crate) fn limit(group: &Group, again: bool) -> Duration {
    let limit = group.core.config.connect_timeout;
    if again { limit.min(RETRY_TIMEOUT) } else { limit }
}

/// One attempt on `rail`; the group is told how it ended.
pub(crate) async fn attempt(
    services: Arc<Services>,
    group: Arc<Group>,
    lane: Lane,
    rail: usize,
    addr: SocketAddr,
    again: bool,
) {
    let result = race(&group, lane, addr, limit(&group, again)).await;
    if let Err(error) = &result {
        tell(&group, rail, error);
    }
    let result = result.map(|(socket, accepted)| Dialed { socket, accepted });
    ended(&services, &group, lane, rail, result);
}

/// Logs why an attempt failed: a refusal, which needs a person, as a warning, and again only when it is another one.
pub(crate) fn tell(group: &Group, rail: usize, error: &DialError) {
    let text = error.to_string();
    let known = || group.lock_plan().rails().get(rail).is_some_and(|rail| rail.error.as_ref() == Some(&text));
    match error {
        DialError::Refused { .. } if known() => tracing::debug!("{text}"),
        DialError::Refused { .. } => tracing::warn!("{text}"),
        _ => tracing::info!("{text}"),
    }
}

/// Connects from whatever port. Where several ways lead to the peer and one is dead, an attempt on it hangs
/// and another one does not: the first that succeeds counts. A socket that is connected has found a way, there and back: the
/// handshake is a matter of CPUs, and the peer's are not given twenty of them to do where one is late already.
pub(crate) async fn race(
    group: &Arc<Group>,
    lane: Lane,
    addr: SocketAddr,
    limit: Duration,
) -> Result<(Socket, Accepted), DialError> {
    let began = Instant::now();
    let timeout = || DialError::Timeout { at: group.core.names.at(addr), limit };
    let (mut attempts, shaking) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    let found = || shaking.load(Ordering::Relaxed) > 0;
    let (mut beside, mut begin) = (BESIDE.into_iter(), 1);
    loop {
        let left = limit.saturating_sub(began.elapsed());
        for _ in 0..begin {
            let (group, shaking) = (Arc::clone(group), Arc::clone(&shaking));
            attempts.spawn(async move {
                let stream = open(&group, addr, None, left).await?;
                shaking.fetch_add(1, Ordering::Relaxed);
                let left = group.core.config.connect_timeout.saturating_sub(began.elapsed());
                let made = shake(&group, lane, addr, stream, left).await;
                shaking.fetch_sub(1, Ordering::Relaxed);
                made
            });
        }
        let (pause, next) = beside.next().unwrap_or((limit, 0));
        let mut error = None;
        // Cancelling it loses nothing: the attempts go on.
        let first = tokio::time::timeout(pause, async {
            while let Some(ended) = attempts.join_next().await {
                match ended {
                    Ok(Ok(made)) => return Some(made),
                    Ok(Err(e)) => error = Some(e),
                    // An attempt that was aborted: the runtime ends.
                    Err(_) => {}
                }
            }
            None
        });
        match (first.await, error) {
            (Ok(Some(made)), _) => return Ok(made),
            // All have ended: it is refused, or gone.
            (Ok(None), Some(error)) => return Err(error),
            (Ok(None), None) => return Err(timeout()),
            (Err(_), _) if found() => begin = 0,
            (Err(_), _) if began.elapsed() >= limit => return Err(timeout()),
            (Err(_), _) => begin = next,
        }
    }
}

/// Connects, from a given source port if `from` says so, and does the handshake.
pub(crate) async fn connect(
    group: &Group,
    lane: Lane,
    addr: SocketAddr,
    from: Option<SocketAddr>,
    limit: Duration,
) -> Result<(Socket, Accepted), DialError> {
    let began = Instant::now();
    let stream = open(group, addr, from, limit).await?;
    shake(group, lane, addr, stream, limit.saturating_sub(began.elapsed())).await
}

/// The socket.
async fn open(
    group: &Group,
    addr: SocketAddr,
    from: Option<SocketAddr>,
    limit: Duration,
) -> Result<TcpStream, DialError> {
    let core = &group.core;
    let connected = tokio::time::timeout(limit, socket::connect(addr, from)).await;
    let at = || core.names.at(addr);
    let failed = |source| DialError::Connect { at: at(), source };
    let stream = connected.map_err(|_| DialError::Timeout { at: at(), limit })?.map_err(failed)?;
    socket::configure(&stream, core.config.heartbeat_timeout).map_err(failed)?;
    Ok(stream)
}

/// The handshake; it has at least a tenth of a second.
async fn shake(
    group: &Group,
    lane: Lane,
    addr: SocketAddr,
    stream: TcpStream,
    left: Duration,
) -> Result<(Socket, Accepted), DialError> {
    let core = &group.core;
    let at = || core.names.at(addr);
    let left = left.max(Duration::from_millis(100));
    handshake::connect(core, stream, lane, left).await.map_err(|source| match source {
        HandshakeError::Refused(reason) => DialError::Refused { at: at(), reason },
        HandshakeError::OtherVersion | HandshakeError::NoCommonVersion(_) => {
            let reason = source.to_string();
            refused::note(core, addr, &source);
            DialError::Refused { at: at(), reason }
        }
        source => {
            if matches!(
                source,
                HandshakeError::Stranger | HandshakeError::Expired(_) | HandshakeError::Refusing(_)
            ) {
                refused::note(core, addr, &source);
            }
            DialError::Handshake { at: at(), source }
        }
    })
}

/// An attempt to connect has ended.
pub(crate) fn ended(
    services: &Arc<Services>,
    group: &Arc<Group>,
    lane: Lane,
    rail: usize,
    result: Result<Dialed, DialError>,
) {
    // Held until the connection is in the group, so that it is counted once and not missed.
    let mut plan = group.lock_plan();
    let started = result.and_then(|Dialed { socket, accepted }| {
        let remote = socket.as_ref().peer_addr();
        plan.dialed(lane, rail);
        let remote_is_loopback = remote.is_ok_and(|a| a.ip().is_loopback());
        let passable = |a: &&SocketAddr| {
            a.port() != 0 && !a.ip().is_unspecified() && a.ip().is_loopback() == remote_is_loopback
        };
        accepted.addresses.iter().filter(passable).for_each(|&a| plan.add_rail(a));
        start::run(services, group, socket, Some(rail), &accepted).map_err(|source| {
            let addr = plan.rails().get(rail).map_or(group.addrs[0], |r| r.addr);
            DialError::Connect { at: group.core.names.at(addr), source }
        })
    });
    if let Err(error) = started {
        let alive = group.lock().conns.iter().any(|c| c.rail == rail && !c.have().leaving);
        let refused = matches!(error, DialError::Refused { .. });
        let text = error.to_string();
        let failure = Failed { now: Instant::now(), alive, refused, error: text.clone() };
        plan.failed(lane, rail, failure, group.core.jitter_factor());
        let all_down = plan.rails().iter().all(|r| r.down);
        drop(plan);
        let mut state = group.lock();
        state.last_error = Some(text);
        if let (DialError::Refused { reason, .. }, true) = (error, all_down || !alive) {
            state.refused = Some(reason);
        }
    } else {
        drop(plan);
    }
    group.notify_all();
    group.keeper.notify_one();
}
