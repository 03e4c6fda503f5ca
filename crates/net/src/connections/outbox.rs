//! What waits to be sent on one connection, and its sending by vectored writes.
//!
//! Whoever queues a frame while nobody is writing writes at once, from its own task (no hop to another);
//! frames queued meanwhile go with the next write. What the socket does not take is left to the
//! connection's writer task. The lengths are bounded by their senders: requests by the peer's window,
//! replies by ours, one pong, one cancel for each request.
//! Lock order: `batch`, then `state`; neither is held across an await.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::{Notify, futures::Notified};
use wire::frame::HEADER_LEN;

use crate::{
    calls::payload::Payload,
    connections::{shared::WRITE_MAX, socket::Socket},
};

/// Slices of one vectored write (the kernel takes 1024).
const SLICES_MAX: usize = 256;
/// Frames taken from the queue at a time.
const BATCH_MAX: usize = 64;
/// Frames without payload that are together no longer than this are sent from one place: cheaper for the kernel than many.
const SMALL: usize = 512;
/// Bytes after which whoever writes lets others have the thread: a caller leaves the rest to the writer task, and that takes turns.
const TURN_BYTES_MAX: usize = 4 << 20;

/// One frame to send.
pub(crate) struct OutFrame {
    pub header: [u8; HEADER_LEN],
    pub body: Bytes,
    pub payload: Payload,
    /// Set on requests: what to say of it if it was never begun.
    pub request: Option<u64>,
}

impl OutFrame {
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.body.len() + self.payload.len()
    }
}

/// The connection takes no more frames.
#[derive(Debug)]
pub(crate) struct Closed;

/// How a flush ended.
pub(crate) enum Flushed {
    /// Nothing is left.
    All,
    /// The socket takes no more now; the writer task goes on when it does.
    Blocked,
    /// It may take more, and others have their turn; the writer task goes on.
    Later,
    /// The socket is dead.
    Failed(io::Error),
}

#[derive(Default)]
struct State {
    queue: VecDeque<OutFrame>,
    /// Somebody is in `flush`.
    flushing: bool,
    /// Frames are left in the batch, or sealed bytes, because the socket was full.
    blocked: bool,
    closed: bool,
}

#[derive(Default)]
struct Batch {
    frames: VecDeque<OutFrame>,
    /// Bytes of the first frame that are written.
    written: usize,
}

#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    batch: Mutex<Batch>,
    /// The writer task's call to work.
    pub wake: Notify,
    /// Bytes queued and not yet taken by the socket, or sealed for it.
    bytes: AtomicU64,
    /// Told when the bytes fall and somebody waits for that.
    drained: Notify,
    drained_wanted: AtomicBool,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Outbox {
    /// Bytes queued and not yet taken by the socket, or sealed for it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Whether all that was queued is with the kernel: what is sealed is out of the bytes, and may still wait for the socket.
    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        !state.flushing && !state.blocked && self.bytes() == 0
    }

    /// Ends when the bytes have fallen, or the outbox was closed, since this was called.
    pub(crate) fn drained(&self) -> Notified<'_> {
        let drained = self.drained.notified();
        self.drained_wanted.store(true, Ordering::SeqCst);
        drained
    }

    fn tell_drained(&self) {
        // Sequentially consistent with the bytes: who waits has said so before it looked at them.
        if self.drained_wanted.load(Ordering::SeqCst) && self.drained_wanted.swap(false, Ordering::SeqCst) {
            self.drained.notify_waiters();
        }
    }

    /// Queues a frame. `Ok(true)`: the caller must `flush`. With `cork` it never must: it, or the writer
    /// task it wakes, starts that later. `Err`: closed.
    pub(crate) fn push(&self, frame: OutFrame, cork: bool) -> Result<bool, Closed> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(Closed);
        }
        self.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        state.queue.push_back(frame);
        let mine = !cork && !state.flushing && !state.blocked;
        state.flushing |= mine;
        Ok(mine)
    }

    /// Takes the duty to flush if there is something to flush and nobody has it. The writer task passes
    /// `writer`: it also goes on where the socket was full.
    pub(crate) fn begin_flush(&self, writer: bool) -> bool {
        let mut state = lock(&self.state);
        if state.flushing || state.closed || (state.blocked && !writer) {
            return false;
        }
        state.flushing = state.blocked || !state.queue.is_empty();
        state.flushing
    }

    /// Writes until nothing is left, the socket is full, or it was a turn's bytes. The caller has the duty to flush, and loses it.
    pub(crate) fn flush(&self, socket: &Socket) -> Flushed {
        let mut batch = lock(&self.batch);
        let mut total = 0;
        loop {
            if batch.frames.len() < BATCH_MAX / 2 {
                let mut state = lock(&self.state);
                let n = state.queue.len().min(BATCH_MAX - batch.frames.len());
                batch.frames.extend(state.queue.drain(..n));
                if batch.frames.is_empty() {
                    drop(state);
                    // What is sealed is out of the queue, and may still wait for the socket.
                    let flushed = socket.try_flush();
                    let mut state = lock(&self.state);
                    return match flushed {
                        Ok(()) if !state.queue.is_empty() => {
                            drop(state);
                            continue;
                        }
                        Ok(()) => {
                            (state.flushing, state.blocked) = (false, false);
                            Flushed::All
                        }
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            (state.flushing, state.blocked) = (false, true);
                            Flushed::Blocked
                        }
                        Err(e) => {
                            state.flushing = false;
                            Flushed::Failed(e)
                        }
                    };
                }
            }
            let mut small = [0; SMALL];
            let (asked, result) = if let Some(n) = batch.gather(&mut small) {
                (n, socket.try_write(&small[..n]))
            } else {
                let room = (batch.frames.len() * 4).min(SLICES_MAX);
                let (mut slices, mut payload) = (Vec::with_capacity(room), Vec::with_capacity(room));
                batch.slices(&mut slices, &mut payload);
                (slices.iter().map(|s| s.len()).sum::<usize>(), socket.try_writev(&slices, &payload))
            };
            match result {
                Ok(n) => {
                    total += n;
                    batch.advance(n);
                    self.bytes.fetch_sub(n as u64, Ordering::SeqCst);
                    self.tell_drained();
                    let full = n < asked;
                    if full || total >= TURN_BYTES_MAX {
                        let mut state = lock(&self.state);
                        if !(batch.frames.is_empty() && state.queue.is_empty()) {
                            (state.flushing, state.blocked) = (false, true);
                            return if full { Flushed::Blocked } else { Flushed::Later };
                        }
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let mut state = lock(&self.state);
                    (state.flushing, state.blocked) = (false, true);
                    return Flushed::Blocked;
                }
                Err(e) => {
                    lock(&self.state).flushing = false;
                    return Flushed::Failed(e);
                }
            }
        }
    }

    /// Refuses further frames and drops those waiting. Returns the requests whose first byte was never
    /// given to the socket.
    pub(crate) fn close(&self) -> Vec<u64> {
        let mut batch = lock(&self.batch);
        let mut state = lock(&self.state);
        state.closed = true;
        let begun = usize::from(batch.written > 0);
        let unsent = batch.frames.iter().skip(begun).chain(&state.queue).filter_map(|f| f.request).collect();
        batch.frames.clear();
        state.queue.clear();
        self.bytes.store(0, Ordering::SeqCst);
        self.tell_drained();
        unsent
    }
}

impl Batch {
    /// Copies the batch to one place if it is small and without payloads, which are never copied; returns its length.
    fn gather(&self, to: &mut [u8; SMALL]) -> Option<usize> {
        let len = self.frames.iter().try_fold(0, |sum, frame| {
            let sum = sum + frame.len();
            (frame.payload.is_empty() && sum <= SMALL).then_some(sum)
        })?;
        let mut at = 0;
        for part in self.frames.iter().flat_map(|f| [&f.header[..], &f.body[..]]) {
            to[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        to.copy_within(self.written..len, 0);
        Some(len - self.written)
    }

    /// What is next, as much as one write may move, and which of it is payload.
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>, payload: &mut Vec<bool>) {
        let (mut skip, mut left) = (self.written, WRITE_MAX);
        for frame in &self.frames {
            let parts = [(&frame.header[..], false), (&frame.body[..], false)];
            for (part, of_payload) in
                parts.into_iter().chain(frame.payload.parts().iter().map(|p| (&p[..], true)))
            {
                if skip >= part.len() {
                    skip -= part.len();
                    continue;
                }
                if out.len() == SLICES_MAX || left == 0 {
                    return;
                }
                let len = left.min(part.len() - skip);
                out.push(IoSlice::new(&part[skip..skip + len]));
                payload.push(of_payload);
                (left, skip) = (left - len, 0);
            }
        }
    }

    fn advance(&mut self, n: usize) {
        self.written += n;
        while let Some(first) = self.frames.front() {
            if self.written < first.len() {
                break;
            }
            self.written -= first.len();
            self.frames.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(request: u64, body: &'static [u8], parts: &[&'static [u8]]) -> OutFrame {
        OutFrame {
            header: [request as u8; HEADER_LEN],
            body: Bytes::from_static(body),
            payload: parts.iter().map(|p| Bytes::from_static(p)).collect(),
            request: Some(request),
        }
    }

    /// What is sent when each write takes at most `step` bytes.
    fn sent_in_steps(frames: VecDeque<OutFrame>, step: usize) -> Vec<u8> {
        let mut batch = Batch { frames, written: 0 };
        let mut sent = Vec::new();
        while !batch.frames.is_empty() {
            let (mut small, mut slices) = ([0; SMALL], Vec::new());
            let offered = match batch.gather(&mut small) {
                Some(n) => small[..n].to_vec(),
                None => {
                    batch.slices(&mut slices, &mut Vec::new());
                    slices.iter().flat_map(|s| s.iter().copied()).collect()
                }
            };
            let n = step.min(offered.len());
            sent.extend_from_slice(&offered[..n]);
            batch.advance(n);
        }
        sent
    }

    #[test]
    fn every_split_of_a_batch_yields_the_same_bytes() {
        let with = || [frame(1, b"abc", &[b"defg", b"h"]), frame(2, b"", &[]), frame(3, b"i", &[])];
        let without = || [frame(1, b"abc", &[]), frame(2, b"", &[]), frame(3, b"i", &[])];
        for frames in [with, without] {
            let mut whole = Vec::new();
            for f in frames() {
                whole.extend_from_slice(&f.header);
                whole.extend_from_slice(&f.body);
                f.payload.parts().iter().for_each(|p| whole.extend_from_slice(p));
            }
            for step in 1..whole.len() {
                assert_eq!(sent_in_steps(frames().into(), step), whole, "step {step}");
            }
        }
    }

    #[test]
    fn what_is_written_is_the_callers_memory() {
        let part = Bytes::from(vec![7u8; 1 << 20]);
        let payload: Payload = [part.slice(..5000), part.slice(70_000..)].into_iter().collect();
        let body = Bytes::from_static(b"body");
        let sent = OutFrame { header: [0; HEADER_LEN], body, payload: payload.clone(), request: None };
        let batch = Batch { frames: VecDeque::from([sent]), written: 0 };
        assert_eq!(batch.gather(&mut [0; SMALL]), None);
        let (mut slices, mut of_payload) = (Vec::new(), Vec::new());
        batch.slices(&mut slices, &mut of_payload);
        assert_eq!(of_payload, [false, false, true, true]);
        let seen: Vec<(*const u8, usize)> = slices[2..].iter().map(|s| (s.as_ptr(), s.len())).collect();
        let base = part.as_ptr() as usize;
        let there = |at: usize, len: usize| ((base + at) as *const u8, len);
        assert_eq!(seen, [there(0, 5000), there(70_000, (1 << 20) - 70_000)]);
        assert_eq!(payload.parts()[0].as_ptr(), part.as_ptr());
    }

    /// However much waits, a write is asked for no more than it may move; what follows is offered after it.
    #[test]
    fn a_write_is_asked_for_no_more_than_it_may_move() {
        let body: &'static [u8] = &[7; 5000];
        let large: &'static [u8] = (0..3 * WRITE_MAX).map(|i| (i / 4096) as u8).collect::<Vec<_>>().leak();
        let mut batch = Batch {
            frames: VecDeque::from([frame(1, body, &[large]), frame(2, body, &[large])]),
            written: 0,
        };
        let mut sent = Vec::new();
        while !batch.frames.is_empty() {
            let (mut slices, mut of_payload) = (Vec::new(), Vec::new());
            batch.slices(&mut slices, &mut of_payload);
            let offered: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
            assert!(offered.len() <= WRITE_MAX && slices.len() == of_payload.len());
            sent.extend_from_slice(&offered);
            batch.advance(offered.len());
        }
        let whole = |request: u8| [&[request; HEADER_LEN][..], body, large].concat();
        assert!(sent == [whole(1), whole(2)].concat());
    }

    #[test]
    fn a_closed_outbox_names_what_was_never_begun() {
        let outbox = Outbox::default();
        assert!(matches!(outbox.push(frame(1, b"x", &[]), true), Ok(false)));
        assert!(matches!(outbox.push(frame(2, b"x", &[]), true), Ok(false)));
        {
            let mut batch = lock(&outbox.batch);
            let first = lock(&outbox.state).queue.pop_front().unwrap();
            batch.frames.push_back(first);
            batch.written = 1;
        }
        assert_eq!(outbox.close(), [2]);
        assert!(outbox.push(frame(3, b"x", &[]), false).is_err());
    }

    /// What is sealed and waits for the socket is a reply's end: who closes then cuts it off.
    #[tokio::test]
    async fn an_outbox_is_idle_when_the_socket_has_everything() {
        let (from, to) = crate::connections::records::tests::connected().await;
        let (outbox, mut queued) = (Outbox::default(), 0);
        assert!(outbox.is_idle());
        let sealed = loop {
            let f = frame(1, &[7; 50_000], &[]);
            queued += f.len();
            assert!(outbox.push(f, false).unwrap() && !outbox.is_idle());
            match outbox.flush(&from) {
                Flushed::All => assert!(outbox.is_idle()),
                Flushed::Blocked => break from.records().unwrap().seal.lock().pending().len(),
                Flushed::Later => panic!("not for so little"),
                Flushed::Failed(e) => panic!("{e}"),
            }
        };
        assert!(outbox.bytes() == 0 && sealed > 0 && !outbox.is_idle());
        let mut received = vec![0; queued];
        let receiving = to.read_exact(&mut received);
        let sending = async {
            while !outbox.is_idle() {
                from.writable().await.unwrap();
                assert!(outbox.begin_flush(true));
                assert!(!matches!(outbox.flush(&from), Flushed::Failed(_)));
            }
        };
        tokio::join!(receiving, sending).0.unwrap();
    }
}
