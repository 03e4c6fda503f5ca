//! Accepting connections: bounded in number, and in the number whose handshake is not done.
//!
//! A burst of connects that say nothing must not keep a real peer out: when the bound is reached the
//! oldest unfinished handshake is dropped for the newest. What is refused is counted, and told as an event.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::{TcpListener, TcpStream};

use crate::connections::{
    groups::Groups,
    handshake::{self, Came},
    handshake_error::HandshakeError,
    refused, socket, start,
};

/// Pause after accept fails for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves one listening socket until the endpoint is shut down.
pub(crate) async fn run(groups: Arc<Groups>, listener: TcpListener) {
    let core = &groups.core;
    loop {
        // Made before looking, so that the end is not missed.
        let shutting = groups.shutting.notified();
        if groups.is_shut() {
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
                let task = tokio::spawn(greet(Arc::clone(&groups), stream, from)).abort_handle();
                groups.handshakes.add(task, core.config.handshakes_max);
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

async fn greet(groups: Arc<Groups>, stream: TcpStream, from: SocketAddr) {
    let core = &groups.core;
    let greeted = async {
        socket::configure(&stream, core.config.heartbeat_timeout)?;
        handshake::accept(core, stream).await
    };
    let result = match greeted.await {
        Ok(Came::Member(socket, accepted)) => {
            let group = groups.accepted(&accepted.peer);
            start::run(&groups.services, &group, socket, None, &accepted).map_err(HandshakeError::from)
        }
        Ok(Came::Visitor(socket, said)) => match groups.visitors.get() {
            Some(receive) => {
                let answer = receive(from, said).await;
                handshake::answer_visitor(core, &socket, &answer).await
            }
            None => Err(HandshakeError::Stranger),
        },
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        refused::note(core, from, &error);
    }
}
