//! Requests given to their handlers, and answered.
//!
//! A handler is polled once by the receiver; if it is not ready it goes on when it is woken: on the thread that wakes it, if that
//! has nothing better to do (`base::start::lend_thread`), or as a task of its own. Its reply
//! is always sent, also to a caller that gave up: the reply is what returns the window's room.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use base::start::{Work, start as start_work, take_thread};
use bytes::Bytes;
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit};
use wire::{
    crc::crc32c,
    frame::{BODY_LEN_MAX, FrameKind, Header, PAYLOAD_LEN_MAX, Service, Status},
    hello::{Lane, NetRequest},
};

use crate::{
    calls::{
        call::{Call, check_len},
        handler::{BoxFuture, PeerId, Request},
        inbound::Admitted,
        once::Begin,
        response::Response,
        services::Services,
    },
    connections::{conn::Conn, outbox::OutFrame},
    core::share_units,
    peer::Peer,
};

/// Gives a complete request to its handler.
pub(crate) fn dispatch(
    services: &Services,
    conn: &Arc<Conn>,
    admitted: Admitted,
    header: Header,
    body: Vec<u8>,
    (payload, unit_crcs): (Bytes, Vec<u32>),
    share: Option<OwnedSemaphorePermit>,
) {
    let Admitted { since, expires, cancel } = admitted;
    let Some(handler) = services.get(header.service) else {
        let text = format!("{:?} is not served by this process (yet)", header.service);
        return refuse(conn, &header, Status::NoService, &text);
    };
    if header.once && !begin_once(conn, &header, since) {
        return;
    }
    let peer = PeerId {
        node: conn.peer.node,
        process: conn.peer.process,
        role: conn.peer.role,
        member: conn.peer.member,
        addr: conn.remote,
        session: conn.peer.session,
        build: conn.peer.build,
        group: Arc::clone(&conn.group),
    };
    let received = Instant::now();
    let body = Bytes::from(body);
    let request =
        Request { header, body, payload, unit_crcs, peer, expires, received, cancel, _share: share };
    let limit = conn.core.config.outbound_bytes_max as u64;
    // A peer that does not read its replies as fast as it asks: nothing more is begun for it.
    let congested = conn.outbox.bytes() > limit;
    if congested || header.offered > 0 {
        let conn = Arc::clone(conn);
        let runtime = conn.core.runtime.clone();
        runtime.spawn(async move {
            let response = if congested && !outbox_below(&conn, limit, expires).await {
                Response::error(Status::Expired, "the connection did not take earlier replies")
            } else {
                match fetch(&conn, request, handler.wants_unit_crcs()).await {
                    Ok(request) => Caught(start(|| handler.handle(request))).await,
                    Err(response) => response,
                }
            };
            reply(&conn, &header, since, response, true);
        });
        return;
    }
    if received >= expires || request.is_cancelled() {
        let late = Response::error(Status::Expired, "the deadline passed before it was begun");
        return reply(conn, &header, since, late, false);
    }
    let handling = Caught(start(|| handler.handle(request)));
    let runtime = conn.core.runtime.clone();
    let answering = Answering { handling, conn: Arc::clone(conn), header, since, waited: false };
    start_work(Box::pin(answering), move |work| go_on(work, &runtime));
}

/// A handler that waited has been woken: it goes on where it was, if that thread is lent, and as a task otherwise.
fn go_on(work: Work, runtime: &Handle) {
    if !take_thread() {
        return drop(runtime.spawn(work));
    }
    let _context = runtime.enter();
    let again = runtime.clone();
    let on = AssertUnwindSafe(|| start_work(work, move |work| drop(again.spawn(work))));
    if catch_unwind(on).is_err() {
        tracing::error!("a request could not be answered: a panic");
    }
}

/// A request being carried out, and answered at its end.
struct Answering {
    handling: Caught,
    conn: Arc<Conn>,
    header: Header,
    since: Instant,
    /// The receiver has gone on, and flushes nothing for it any more.
    waited: bool,
}

impl Future for Answering {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Poll::Ready(response) = Pin::new(&mut self.handling).poll(cx) else {
            self.waited = true;
            return Poll::Pending;
        };
        reply(&self.conn, &self.header, self.since, response, self.waited);
        Poll::Ready(())
    }
}

/// Whether a request that must take effect once is to be carried out now; if not it has been answered, or
/// will be when its first copy is.
fn begin_once(conn: &Arc<Conn>, header: &Header, since: Instant) -> bool {
    let (process, id) = (conn.peer.process, header.request_id);
    let begin = conn.group.lock_once().begin(Instant::now(), process, id, header.settled, Arc::clone(conn));
    match begin {
        Begin::New => return true,
        Begin::Attached => {}
        Begin::Done(response) => send_reply(conn, header, since, response, false),
        Begin::Stale => {
            let text = "a late copy of a request that was answered";
            send_reply(conn, header, since, Response::error(Status::Expired, text), false);
        }
        Begin::Forgotten => {
            let text = "it may have been carried out before; too many requests came since to know";
            send_reply(conn, header, since, Response::error(Status::Forgotten, text), false);
        }
        Begin::Former => {
            let text = "another process has taken the place of the one that asks";
            send_reply(conn, header, since, Response::error(Status::Expired, text), false);
        }
    }
    false
}

/// Gets the payload that a request offers, if it offers one; the error is the answer to the request.
async fn fetch(conn: &Conn, mut request: Request, unit_crcs: bool) -> Result<Request, Response> {
    let len = request.header.offered as usize;
    if len == 0 {
        return Ok(request);
    }
    let room = Arc::clone(&conn.core.inbound_share).acquire_many_owned(share_units(len));
    let room = tokio::time::timeout_at(request.expires.into(), room).await;
    let Ok(Ok(room)) = room else {
        return Err(Response::error(Status::Expired, "no memory for its payload before its deadline"));
    };
    let body = wire::frame::encode(&NetRequest::Fetch(request.header.request_id));
    let call = Call::new(Service::Net, 0, body, request.expires);
    let call = Call { lane: Lane::Bulk, idempotent: true, class: request.header.class, unit_crcs, ..call };
    let fetched = Peer::from_group(Arc::clone(&conn.group)).call(call).await;
    match fetched {
        Ok(reply) if reply.payload.len() == len => {
            request.payload = reply.payload.into_bytes();
            request.unit_crcs = reply.unit_crcs;
            request._share = Some(room);
            Ok(request)
        }
        Ok(reply) => {
            let text = format!("{} bytes were offered, {} came", len, reply.payload.len());
            Err(Response::error(Status::BadRequest, text))
        }
        Err(error) => {
            Err(Response::error(Status::Expired, format!("its payload could not be fetched: {error}")))
        }
    }
}

/// Waits until the connection has room for replies; false if that does not come before `expires`.
async fn outbox_below(conn: &Conn, limit: u64, expires: Instant) -> bool {
    let wait = async {
        loop {
            let drained = conn.outbox.drained();
            if conn.outbox.bytes() <= limit {
                return;
            }
            drained.await;
        }
    };
    tokio::time::timeout_at(expires.into(), wait).await.is_ok()
}

/// Answers without a handler. Corked: the receiver flushes.
pub(crate) fn refuse(conn: &Conn, header: &Header, status: Status, text: &str) {
    send_reply(conn, header, Instant::now(), Response::error(status, text), false);
}

/// Answers a request that was to be carried out.
fn reply(conn: &Conn, request: &Header, since: Instant, response: Response, flush: bool) {
    if request.once {
        let expires = since + Duration::from_micros(request.deadline_us.into());
        let id = request.request_id;
        let to = conn.group.lock_once().end(conn.peer.process, id, &response, expires);
        // Copies may have come on other connections meanwhile: the peer waits on one of them, and the others are lost.
        for other in to.iter().filter(|to| to.id != conn.id) {
            send_reply(other, request, since, response.clone(), true);
        }
    }
    send_reply(conn, request, since, response, flush);
}

fn send_reply(conn: &Conn, request: &Header, since: Instant, mut response: Response, flush: bool) {
    let fits = check_len("body_len", response.body.len(), BODY_LEN_MAX)
        .and_then(|()| check_len("payload_len", response.payload.len(), PAYLOAD_LEN_MAX));
    if let Err(e) = fits {
        tracing::error!(service = ?request.service, op = request.op, "a reply cannot be sent: {e}");
        response = Response::error(Status::Internal, e);
    }
    let header = Header {
        version: conn.socket.version(),
        kind: FrameKind::Reply,
        status: response.status,
        body_len: response.body.len() as u32,
        payload_len: response.payload.len() as u32,
        body_crc: crc32c(&response.body),
        deadline_us: 0,
        offered: 0,
        once: false,
        settled: 0,
        server_us: u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX),
        epoch: conn.core.epoch(),
        ..*request
    };
    // Before the frame is on its way: the peer may use the room as soon as it has the reply.
    conn.inbound.answered(request.request_id);
    let frame = OutFrame {
        header: header.encode(),
        body: Bytes::from(response.body),
        payload: response.payload,
        request: None,
    };
    // A closed connection has nobody to answer.
    let _ = if flush { conn.send(frame, false) } else { conn.cork(frame) };
    conn.inbound.queued();
}

/// The handler's future, or what it answers if it panicked before there was one.
fn start(handle: impl FnOnce() -> BoxFuture<'static, Response>) -> BoxFuture<'static, Response> {
    catch_unwind(AssertUnwindSafe(handle)).unwrap_or_else(|_| Box::pin(std::future::ready(panicked())))
}

fn panicked() -> Response {
    tracing::error!("a request handler panicked");
    Response::error(Status::Internal, "the handler panicked; see the log of this process")
}

/// Turns a panic of the handler into a reply: its caller must not wait for the deadline.
struct Caught(BoxFuture<'static, Response>);

impl Future for Caught {
    type Output = Response;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(panicked()))
    }
}
