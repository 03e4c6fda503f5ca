//! The transport's own requests: answered on every endpoint, for other endpoints.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use bytes::Bytes;
use wire::{
    frame::{Service, Status},
    hello::{NetRequest, PROBE_BYTES_MAX},
};

use crate::{
    calls::{
        call::Call,
        handler::{Handler, Request, handler_fn},
        response::Response,
    },
    links,
    peer::Peer,
};

/// How long a peer is tried to be told of a change; a new connection tells it as well.
const TELL_FOR: Duration = Duration::from_secs(5);

/// What probes are answered with: the same bytes for all.
static ZEROS: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0; PROBE_BYTES_MAX as usize]));

pub(crate) fn handler() -> Arc<dyn Handler> {
    handler_fn(|request| async move { answer(&request) })
}

/// `len` bytes for a probe, at most `PROBE_BYTES_MAX`.
pub(crate) fn zeros(len: u32) -> Bytes {
    ZEROS.slice(..len.min(PROBE_BYTES_MAX) as usize)
}

fn answer(request: &Request) -> Response {
    let links = || wire::frame::encode(&links::read(request.peer.addr.ip()));
    match wire::frame::decode(&request.body) {
        Ok(NetRequest::ConnsMax(n)) if (1..=16).contains(&n) => {
            request.peer.group.set_peer_conns_max(n);
            Response::ok(Vec::new())
        }
        Ok(NetRequest::ConnsMax(n)) => {
            Response::error(Status::BadRequest, format!("conns_max {n} is not within 1 to 16"))
        }
        Ok(NetRequest::Probe(n)) if n <= PROBE_BYTES_MAX => Response::with_payload(links(), zeros(n)),
        Ok(NetRequest::Probe(n)) => {
            Response::error(Status::BadRequest, format!("a probe of {n} bytes is above {PROBE_BYTES_MAX}"))
        }
        Ok(NetRequest::Fetch(id)) => match request.peer.group.offered(id) {
            Some(payload) => Response::with_payload(Vec::new(), payload),
            None => Response::error(Status::Expired, "the call that offered it has ended"),
        },
        Ok(NetRequest::Links) => Response::ok(links()),
        Err(e) => Response::error(Status::BadRequest, e),
    }
}

/// Tells a peer that connects to us how many connections we take.
pub(crate) async fn tell_conns_max(peer: Peer, n: u8) {
    let body = wire::frame::encode(&NetRequest::ConnsMax(n));
    let call = Call::new(Service::Net, 0, body, Instant::now() + TELL_FOR);
    if let Err(e) = peer.call(Call { idempotent: true, ..call }).await {
        tracing::debug!(?peer, "conns_max could not be told: {e}");
    }
}
