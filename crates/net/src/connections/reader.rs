//! The receiving side of a connection: bytes to frames, payloads straight into their places.
//!
//! Small frames are read many at a time into a read-ahead buffer, small payloads with them: they are copied, and save a system
//! call each (docs/path.md). A larger payload must not land there, so on a connection that carries such the read takes exactly
//! what belongs together: the rest of one frame and, behind it in the same vectored read, the next frame's header. Which of both
//! is decided by what came last and what is expected; payload bytes caught in the read-ahead are counted.
//!
//! Nothing from outside is believed before the header is validated; a body grows as its bytes arrive; a
//! payload's buffer is taken only from the bound all requests share, and only when the payload has begun to come. Any error
//! ends the connection. A peer that always has more to read takes no more than its turn of the runtime's threads, of which a
//! small process has one: each frame and each read is counted against the task's budget.

use std::{
    io::{self, IoSliceMut},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::{AlignedBuf, units::UNIT};
use bytes::Bytes;
use tokio::{
    sync::OwnedSemaphorePermit,
    task::{coop, yield_now},
};
use wire::{
    crc::{crc32c, unit_crcs},
    frame::{FrameError, FrameKind, HEADER_LEN, Header, Service, Status},
    hello::Lane,
};

use crate::{
    calls::{
        dispatch,
        payload::{Destination, ReplyPayload},
        pending::{Failure, ReplyTo},
        services::Services,
    },
    connections::conn::Conn,
    core::share_units,
    error::CloseReason,
};

/// Bytes of the read-ahead buffer.
const READ_AHEAD: usize = 16 << 10;
/// Small frames in a row after which a bulk connection is read ahead.
const QUIET_FRAMES: u32 = 8;
/// Payloads up to this many bytes are read ahead: one page, the request that small random reads are made of.
const SMALL_PAYLOAD: u32 = 4 << 10;
/// A body is read in steps of at most this, so that its memory follows its bytes.
const BODY_STEP: usize = 256 << 10;
/// Requests up to this many bytes need no share of `inbound_bytes_max`; the window bounds them.
const SMALL_REQUEST: usize = 16 << 10;
/// How long a payload waits in the socket for a share before its request is answered `Busy`.
const SHARE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Bytes of a payload read before their CRCs are computed: few enough to be in the CPU's cache still.
const CRC_STEP: usize = 256 << 10;
/// Scratch for payloads nobody wants.
const DISCARD_STEP: usize = 64 << 10;

pub(crate) async fn run(conn: Arc<Conn>, services: Arc<Services>) {
    let mut reader = Reader::new(Arc::clone(&conn), services);
    let reason = loop {
        if let Err(reason) = reader.frame().await {
            break reason;
        }
        take_turns(&conn).await;
    };
    conn.finish(reason);
}

/// Lets others go first when this task has done enough: while there are bytes it waits for nothing else. What was corked is sent
/// before.
async fn take_turns(conn: &Conn) {
    if !coop::has_budget_remaining() {
        conn.flush();
    }
    coop::consume_budget().await;
}

struct Reader {
    conn: Arc<Conn>,
    services: Arc<Services>,
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    quiet: u32,
    /// The peer that made the connection has sent nothing but probes on it.
    on_trial: bool,
}

/// Where a payload goes.
enum Sink {
    /// With the CRCs of its units so far, if they are wanted.
    Buffer(AlignedBuf, Option<Vec<u32>>),
    Destination(Destination),
    Discard,
}

impl Reader {
    fn new(conn: Arc<Conn>, services: Arc<Services>) -> Reader {
        let quiet = if conn.lane == Lane::Control { QUIET_FRAMES } else { 0 };
        let on_trial = !conn.dialed && conn.lane == Lane::Bulk;
        Reader {
            conn,
            services,
            on_trial,
            ahead: vec![0; READ_AHEAD].into_boxed_slice(),
            start: 0,
            end: 0,
            quiet,
        }
    }

    /// Whether a read may go beyond the present frame's next header.
    fn reads_ahead(&self) -> bool {
        self.quiet >= QUIET_FRAMES && self.conn.expecting.load(Ordering::Relaxed) == 0
    }

    /// Bytes of the read-ahead buffer that a read may use.
    fn room(&self) -> usize {
        if self.reads_ahead() { READ_AHEAD } else { HEADER_LEN }
    }

    async fn frame(&mut self) -> Result<(), CloseReason> {
        let header = Header::decode(&self.header().await?, self.conn.socket.version())?;
        self.conn.counters.frames_received.fetch_add(1, Ordering::Relaxed);
        self.conn.stats.received_messages.inc();
        let has_payload = header.payload_len > 0;
        let is_large = header.payload_len > SMALL_PAYLOAD;
        match header.kind {
            // They say nothing of what is asked: a connection at rest is not one of small requests.
            FrameKind::Ping | FrameKind::Pong => {}
            _ if is_large && self.conn.lane == Lane::Bulk => self.quiet = 0,
            _ => self.quiet = self.quiet.saturating_add(1),
        }
        match header.kind {
            FrameKind::Request => self.request(header).await,
            FrameKind::Reply => self.reply(header).await,
            FrameKind::Cancel | FrameKind::Ping | FrameKind::Pong | FrameKind::Drain
                if has_payload || header.body_len > 0 =>
            {
                Err(CloseReason::Protocol("a cancel, drain or heartbeat with a body"))
            }
            FrameKind::Drain => {
                self.conn.drain_received();
                Ok(())
            }
            FrameKind::Cancel => {
                self.conn.inbound.cancel(header.request_id);
                Ok(())
            }
            FrameKind::Ping => {
                // A peer that pings and does not read gets no more pongs than this.
                if self.conn.outbox.bytes() <= self.conn.core.config.outbound_bytes_max as u64 {
                    let _ = self.conn.cork(self.conn.bare(FrameKind::Pong, header.request_id));
                }
                Ok(())
            }
            FrameKind::Pong => Ok(()),
            FrameKind::Introduction | FrameKind::Welcome => Err(CloseReason::Protocol("a second handshake")),
        }
    }

    async fn request(&mut self, header: Header) -> Result<(), CloseReason> {
        let total = header.body_len as usize + header.payload_len as usize;
        if self.on_trial && header.service != Service::Net {
            self.on_trial = false;
            self.conn.group.proven(&self.conn);
        }
        let Some(admitted) = self.conn.inbound.admit(&header, self.conn.core.config.window) else {
            return Err(CloseReason::Protocol("more requests than the window allows"));
        };
        let share = if total > SMALL_REQUEST {
            match self.share(total).await {
                Some(share) => {
                    let frame = self.conn.counters.frames_received.load(Ordering::Relaxed);
                    self.conn.incoming.begin(frame, total as u64);
                    Some(share)
                }
                None => {
                    self.body(&header).await?;
                    self.payload(header.payload_len as usize, &mut Sink::Discard).await?;
                    dispatch::refuse(&self.conn, &header, Status::Busy, "inbound_bytes_max is reached");
                    return Ok(());
                }
            }
        } else {
            None
        };
        let body = self.body(&header).await?;
        let payload = if header.payload_len > 0 {
            self.begun(total).await?;
            let wanted = self.services.get(header.service).is_some_and(|h| h.wants_unit_crcs());
            let buffer = self.conn.core.pool.get(header.payload_len as usize);
            let mut sink = Sink::Buffer(buffer, wanted.then(Vec::new));
            self.payload(header.payload_len as usize, &mut sink).await?;
            sink.into_bytes()
        } else {
            (Bytes::new(), Vec::new())
        };
        if share.is_some() {
            self.conn.incoming.end();
        }
        dispatch::dispatch(&self.services, &self.conn, admitted, header, body, payload, share);
        Ok(())
    }

    /// Waits until something of a large payload is there: a length alone takes no memory.
    async fn begun(&mut self, total: usize) -> Result<(), CloseReason> {
        if total > SMALL_REQUEST && self.buffered() == 0 {
            self.conn.flush();
            self.conn.socket.peek().await?;
        }
        Ok(())
    }

    /// A share of the memory all requests have in common. Replies behind this request wait with it, so
    /// the wait is short; `None` is "busy".
    async fn share(&mut self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let core = &self.conn.core;
        let units = share_units(bytes);
        if let Ok(share) = Arc::clone(&core.inbound_share).try_acquire_many_owned(units) {
            return Some(share);
        }
        self.conn.flush();
        self.conn.paused.store(true, Ordering::Relaxed);
        core.share_missed();
        let wait = Arc::clone(&core.inbound_share).acquire_many_owned(units);
        let share = tokio::time::timeout(SHARE_WAIT_MAX, wait).await;
        self.conn.heard();
        self.conn.paused.store(false, Ordering::Relaxed);
        share.ok().and_then(Result::ok)
    }

    async fn reply(&mut self, header: Header) -> Result<(), CloseReason> {
        let id = header.request_id;
        let len = header.payload_len as usize;
        let Some(to) = self.conn.group.begin_reply(&self.conn, id) else {
            return Err(CloseReason::Protocol("a reply to no request"));
        };
        let body = match self.body(&header).await {
            Ok(body) => body,
            Err(reason) => {
                if let ReplyTo::Destination(destination) = to {
                    self.conn.group.put_back(id, destination);
                }
                return Err(reason);
            }
        };
        if matches!(to, ReplyTo::Pool { .. }) {
            self.begun(len).await?;
        }
        let mut too_long = None;
        let mut sink = match to {
            ReplyTo::Destination(d) if d.room() < len => {
                too_long = Some(Failure::TooLong { len, room: d.room() });
                Sink::Discard
            }
            ReplyTo::Destination(d) => Sink::Destination(d),
            ReplyTo::Pool { unit_crcs } if len > 0 => {
                Sink::Buffer(self.conn.core.pool.get(len), unit_crcs.then(Vec::new))
            }
            ReplyTo::Pool { .. } | ReplyTo::Nobody => Sink::Discard,
        };
        if let Err(reason) = self.payload(len, &mut sink).await {
            if let Sink::Destination(destination) = sink {
                self.conn.group.put_back(id, destination);
            }
            return Err(reason);
        }
        let payload = match sink {
            Sink::Buffer(buf, crcs) => (ReplyPayload::Pooled(buf.freeze()), crcs.unwrap_or_default()),
            Sink::Destination(destination) => (ReplyPayload::Received { destination, len }, Vec::new()),
            Sink::Discard => (ReplyPayload::None, Vec::new()),
        };
        self.conn.group.end_reply(&self.conn, header, body, payload, too_long);
        Ok(())
    }

    /// The next 128 bytes.
    async fn header(&mut self) -> Result<[u8; HEADER_LEN], CloseReason> {
        while self.end - self.start < HEADER_LEN {
            if self.start > 0 {
                self.ahead.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            let (end, room) = (self.end, self.room());
            self.conn.flush();
            let n = read(&self.conn, &mut [IoSliceMut::new(&mut self.ahead[end..room])], 0).await?;
            self.end += n;
        }
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(&self.ahead[self.start..self.start + HEADER_LEN]);
        self.start += HEADER_LEN;
        Ok(bytes)
    }

    fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// Moves up to `out.len()` buffered bytes to `out`; returns how many.
    fn take(&mut self, out: &mut [u8]) -> usize {
        let n = out.len().min(self.buffered());
        out[..n].copy_from_slice(&self.ahead[self.start..self.start + n]);
        self.start += n;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        n
    }

    async fn body(&mut self, header: &Header) -> Result<Vec<u8>, CloseReason> {
        let (len, payload_len) = (header.body_len as usize, header.payload_len);
        let mut body = Vec::new();
        let mut done = 0;
        while done < len {
            let step = (len - done).min(BODY_STEP);
            body.reserve_exact(step);
            body.resize(done + step, 0);
            done += self.take(&mut body[done..]);
            while done < body.len() {
                // The buffer is empty here; what follows a body without payload is the next header. A large payload is none of its business.
                let small = payload_len == 0 || payload_len <= SMALL_PAYLOAD && self.reads_ahead();
                let ahead = if small && body.len() == len { self.room() } else { 0 };
                let wanted = body.len() - done;
                let mut slices =
                    [IoSliceMut::new(&mut body[done..]), IoSliceMut::new(&mut self.ahead[..ahead])];
                let n = read(&self.conn, &mut slices, 0).await?;
                done += n.min(wanted);
                self.end = n.saturating_sub(wanted);
            }
        }
        if crc32c(&body) == header.body_crc { Ok(body) } else { Err(FrameError::BodyCrc.into()) }
    }

    async fn payload(&mut self, len: usize, sink: &mut Sink) -> Result<(), CloseReason> {
        let mut done = 0;
        while done < len && self.buffered() > 0 {
            let n = sink.take_buffered(done, len - done, &self.ahead[self.start..self.end]);
            self.conn.counters.payload_copied.fetch_add(n as u64, Ordering::Relaxed);
            self.start += n;
            done += n;
            sink.count(done);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        while done < len {
            let room = self.room();
            let n = sink.read(&self.conn, done, len - done, &mut self.ahead[..room]).await?;
            let own = n.min(len - done);
            self.conn.counters.payload_direct.fetch_add(own as u64, Ordering::Relaxed);
            done += own;
            sink.count(done);
            self.end = n - own;
        }
        Ok(())
    }
}

impl Sink {
    /// The payload and the CRCs of its units.
    fn into_bytes(self) -> (Bytes, Vec<u32>) {
        match self {
            Sink::Buffer(buf, crcs) => (buf.freeze(), crcs.unwrap_or_default()),
            Sink::Destination(_) | Sink::Discard => (Bytes::new(), Vec::new()),
        }
    }

    /// `done` bytes are here: takes the CRCs of the units that are whole now.
    fn count(&mut self, done: usize) {
        if let Sink::Buffer(buf, Some(crcs)) = self {
            crcs.extend(unit_crcs(&buf[crcs.len() * UNIT..done / UNIT * UNIT]));
        }
    }

    /// Copies read-ahead bytes to place `done`; returns how many.
    fn take_buffered(&mut self, done: usize, left: usize, from: &[u8]) -> usize {
        let from = &from[..from.len().min(left)];
        let mut slices = Vec::new();
        match self {
            Sink::Discard => return from.len(),
            Sink::Buffer(buf, _) => slices.push(&mut buf[done..]),
            Sink::Destination(d) => d.slices(done, &mut slices),
        }
        let mut n = 0;
        for slice in slices {
            let m = slice.len().min(from.len() - n);
            slice[..m].copy_from_slice(&from[n..n + m]);
            n += m;
        }
        n
    }

    /// Reads into place `done`, at most `left` bytes and then into `next`. Returns the bytes read; those
    /// beyond `left` are in `next`.
    async fn read(
        &mut self,
        conn: &Conn,
        done: usize,
        left: usize,
        next: &mut [u8],
    ) -> Result<usize, CloseReason> {
        let mut scratch = Vec::new();
        let mut slices = Vec::with_capacity(8);
        match self {
            Sink::Buffer(buf, crcs) => {
                let step = if crcs.is_some() { CRC_STEP } else { left };
                slices.push(&mut buf[done..done + left.min(step)]);
            }
            Sink::Destination(d) => d.slices(done, &mut slices),
            Sink::Discard => {
                scratch.resize(left.min(DISCARD_STEP), 0);
                slices.push(&mut scratch[..]);
            }
        }
        let (mut slices, offered) = limit(slices, left);
        if offered == 0 {
            return Err(CloseReason::Protocol("a destination without memory"));
        }
        if offered == left {
            slices.push(IoSliceMut::new(next));
        }
        read(conn, &mut slices, left).await
    }
}

/// Cuts the slices to `max` bytes in all; returns the bytes that remain.
fn limit<'a>(slices: Vec<&'a mut [u8]>, max: usize) -> (Vec<IoSliceMut<'a>>, usize) {
    let mut total = 0;
    let mut out = Vec::with_capacity(slices.len() + 1);
    for slice in slices {
        let n = slice.len().min(max - total);
        if n > 0 {
            out.push(IoSliceMut::new(&mut slice[..n]));
            total += n;
        }
    }
    (out, total)
}

/// Reads at least one byte. What was corked is sent before waiting. `payload`: so many bytes, at first, are due of a payload.
async fn read(conn: &Conn, slices: &mut [IoSliceMut<'_>], payload: usize) -> Result<usize, CloseReason> {
    loop {
        match conn.socket.try_readv(slices, payload) {
            Ok(0) => return Err(CloseReason::Eof),
            Ok(n) => {
                conn.count_received(n as u64);
                conn.heard();
                take_turns(conn).await;
                return Ok(n);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                conn.flush();
                yield_now().await;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                conn.flush();
                conn.socket.readable().await?;
            }
            Err(e) => return Err(e.into()),
        }
    }
}
