//! Accepting connections: bounded in number, and in the number whose handshake is not done.
//!
//! A burst of connects that say nothing must not keep a real peer out: when the bound is reached the
//! oldest unfinished handshake is dropped for the newest. What is refused is counted, and told as an event.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::events::Severity;
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use crate::{
    conn::Conn,
    endpoint::Core,
    handshake::{self, HandshakeError},
    socket::{self, Socket},
};

/// Pause after accept fails for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Failed handshakes logged as warnings; beyond, one in this many.
const LOG_EVERY: u64 = 1000;

/// Unfinished handshakes, oldest first.
#[derive(Default)]
pub(crate) struct Handshakes {
    tasks: Mutex<VecDeque<AbortHandle>>,
    failed: AtomicU64,
}

impl Handshakes {
    fn add(&self, task: AbortHandle, max: usize) {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        if tasks.len() >= max {
            tasks.retain(|t| !t.is_finished());
        }
        while tasks.len() >= max {
            if let Some(oldest) = tasks.pop_front() {
                oldest.abort();
            }
        }
        tasks.push_back(task);
    }

    pub(crate) fn abort_all(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        tasks.drain(..).for_each(|t| t.abort());
    }
}

/// Serves one listening socket until the endpoint is shut down.
pub(crate) async fn run(core: Arc<Core>, listener: TcpListener) {
    loop {
        // Made before looking, so that the end is not missed.
        let shutting = core.shutting.notified();
        if core.is_shut() {
            return;
        }
        // Safe to cancel: accept has no state of its own.
        let accepted = tokio::select! {
            () = shutting => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                if core.accepted_count() >= core.config.accepted_max {
                    tracing::warn!(peer = %from, "accepted_max ({}) is reached", core.config.accepted_max);
                    continue;
                }
                let task = tokio::spawn(greet(Arc::clone(&core), stream, from)).abort_handle();
                core.handshakes.add(task, core.config.handshakes_max);
            }
            Err(e) if transient(&e) => {}
            Err(e) => {
                tracing::warn!("accept: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Errors that are the connecting side's.
fn transient(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(e.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

async fn greet(core: Arc<Core>, mut stream: TcpStream, from: SocketAddr) {
    let greeted = async {
        socket::configure(&stream, core.config.heartbeat_timeout)?;
        handshake::accept(&core, &mut stream).await
    };
    let result = greeted.await.and_then(|accepted| {
        let group = core.accepted_group(accepted.peer.node, accepted.peer.process);
        Ok(Conn::start(&core, &group, Socket::new(stream), None, &accepted)?)
    });
    if let Err(error) = result {
        note(&core, from, &error);
    }
}

/// Counts a handshake that came to nothing, and tells of it.
pub(crate) fn note(core: &Core, with: SocketAddr, error: &HandshakeError) {
    let help = "Handshakes that came to nothing: nothing could be asked.";
    base::stats::counter("net_refused_handshakes", help, &[("reason", error.kind())]).inc();
    // Attempts that another one has made needless end like these.
    match error {
        // After an outage dozens of them stand in the queue.
        HandshakeError::Io(_) => return tracing::debug!(peer = %with, "handshake: {error}"),
        HandshakeError::Left => return tracing::info!(peer = %with, "handshake: {error}"),
        _ => {}
    }
    let n = core.handshakes.failed.fetch_add(1, Ordering::Relaxed) + 1;
    if n <= LOG_EVERY || n.is_multiple_of(LOG_EVERY) {
        tracing::warn!(peer = %with, failed = n, "handshake: {error}");
    }
    // Rarer and rarer: strangers must not push other events out.
    if n.is_power_of_two() {
        let text = format!("{n} connections were refused, the last with {with}: {error}");
        base::events::raise(Severity::Warning, "net_refused", &with.ip().to_string(), &text);
    }
}
