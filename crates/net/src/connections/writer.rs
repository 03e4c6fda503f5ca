//! The sending side of a connection, for what the queueing tasks could not send at once; it also judges whether the peer lives,
//! takes what it is sent, and sends what it has begun to.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use base::beat;
use wire::frame::FrameKind;

use crate::{
    connections::{conn::Conn, outbox::Flushed, records::KEPT, trickle::Trickle},
    error::CloseReason,
};

/// A connection by memory on which something waits and nothing is read is closed after this many times `heartbeat_timeout`, whatever the
/// peer says meanwhile: what waits holds memory, and on tmpfs the space of pdisks. An honest reader pauses for two seconds at most. By
/// TCP the kernel does this: `TCP_USER_TIMEOUT` holds for a peer that has no room, too.
const UNREAD_TIMEOUTS: u64 = 3;

/// Sends what could not be sent at once; probes an idle peer; closes a silent one.
pub(crate) async fn run(conn: Arc<Conn>) {
    let mut blocked = false;
    let mut watch = Watch::new(&conn);
    let tick = tokio::time::sleep_until(watch.next(&conn).into());
    tokio::pin!(tick);
    loop {
        // All four are safe to cancel: they only wait, and `notified` keeps its permit.
        tokio::select! {
            biased;
            () = conn.closing.notified() => return,
            () = &mut tick => {
                watch.tick(&conn);
                tick.as_mut().reset(watch.next(&conn).into());
            }
            result = conn.socket.writable(), if blocked => {
                if let Err(e) = result {
                    conn.close(e.into());
                    return;
                }
                blocked = flush(&conn);
            }
            () = conn.outbox.wake.notified(), if !blocked => {
                // Others that are about to queue do so first, and their frames go with these.
                tokio::task::yield_now().await;
                blocked = flush(&conn);
            }
        }
    }
}

/// Returns whether frames are left because the socket is full.
fn flush(conn: &Conn) -> bool {
    if !conn.outbox.begin_flush(true) {
        return false;
    }
    match conn.outbox.flush(&conn.socket) {
        Flushed::All => false,
        Flushed::Blocked => true,
        Flushed::Later => {
            conn.outbox.wake.notify_one();
            false
        }
        Flushed::Failed(e) => {
            conn.close(e.into());
            false
        }
    }
}

/// Judges at each tick whether the peer still lives.
struct Watch {
    last_tick_us: u64,
    /// The last tick with a sign of life before it.
    heard_us: u64,
    sent_then: u64,
    unread: Unread,
    trickle: Trickle,
}

/// Judges at each tick whether the peer takes what it is sent.
#[derive(Default)]
struct Unread {
    /// The last tick at which nothing waited, or the peer had read more than at the one before.
    since_us: u64,
    /// How far it was, if something waited.
    read: Option<u64>,
}

impl Unread {
    /// For how long the peer has read nothing though something waits, microseconds. `read`: how far it is, if something waits; `slept`:
    /// this process may have been stopped, and says nothing of others.
    fn tick(&mut self, now: u64, read: Option<u64>, slept: bool) -> u64 {
        if slept || read.is_none() || read != self.read {
            (self.since_us, self.read) = (now, read);
        }
        now.saturating_sub(self.since_us)
    }
}

impl Watch {
    fn new(conn: &Conn) -> Watch {
        let now = conn.core.now_us();
        Watch {
            last_tick_us: now,
            heard_us: now,
            sent_then: 0,
            unread: Unread::default(),
            trickle: Trickle::new(&conn.core.config),
        }
    }

    /// When to tick next: with the other connections, and whatever else this process does now and then; and when the peer has been
    /// silent for too long.
    fn next(&self, conn: &Conn) -> Instant {
        let (now, config) = (Instant::now(), &conn.core.config);
        let silent = Duration::from_micros(conn.core.now_us().saturating_sub(self.heard_us));
        let left = config.heartbeat_timeout.saturating_sub(silent).max(Duration::from_millis(1));
        beat::by(now, config.heartbeat_interval).min(now + left)
    }

    fn tick(&mut self, conn: &Conn) {
        let config = &conn.core.config;
        let us = |d: Duration| d.as_micros() as u64;
        let now = conn.core.now_us();
        conn.socket.beat();
        let queued = conn.outbox.bytes();
        let sent = conn.counters.bytes_sent.load(Ordering::Relaxed).saturating_sub(queued);
        if sent.saturating_sub(self.sent_then) <= KEPT as u64 && conn.outbox.is_idle() {
            conn.socket.give_back();
        }
        // Bytes that the socket takes while more wait are a sign of life; and a process that was itself
        // stopped must first look into its sockets before it judges others.
        let progress = queued > 0 && sent != self.sent_then;
        let slept = now - self.last_tick_us > 2 * us(config.heartbeat_interval);
        (self.last_tick_us, self.sent_then) = (now, sent);
        let shared = conn.socket.shared().filter(|_| !conn.outbox.is_idle());
        let unread = self.unread.tick(now, shared.map(|shared| shared.read_by_peer()), slept);
        if unread >= us(config.heartbeat_timeout) * UNREAD_TIMEOUTS {
            return conn.close(CloseReason::Unread(Duration::from_micros(unread)));
        }
        let received = conn.counters.bytes_received.load(Ordering::Relaxed);
        let slow = self.trickle.tick(now, conn.incoming.now(), received, conn.core.share_missed_us(), slept);
        if let Some((bytes, span)) = slow {
            tracing::warn!(peer = %conn.peer_name(), conn = conn.id,
                "{bytes} bytes of a request in {span:?}, and others wait for the memory: closing it");
            return conn.close(CloseReason::Trickles(bytes, span));
        }
        let heard = conn.heard.swap(false, Ordering::Relaxed);
        if heard || progress || slept || conn.paused.load(Ordering::Relaxed) {
            self.heard_us = now;
            return;
        }
        let silent = now.saturating_sub(self.heard_us);
        if silent >= us(config.heartbeat_timeout) {
            conn.close(CloseReason::Silent(Duration::from_micros(silent)));
        } else if silent >= us(config.heartbeat_interval) / 2 && queued == 0 {
            let _ = conn.send(conn.bare(FrameKind::Ping, 0), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte in that time is enough, and nothing that waits; a process that was stopped itself begins anew.
    #[test]
    fn only_what_waits_and_does_not_move_is_unread() {
        let (mut unread, mut now) = (Unread::default(), 50);
        let mut tick = |read, slept| {
            now += 10;
            unread.tick(now, read, slept)
        };
        assert_eq!([None, None, Some(7), Some(7), Some(7)].map(|d| tick(d, false)), [0, 0, 0, 10, 20]);
        assert_eq!([Some(8), Some(8), Some(9), Some(9)].map(|d| tick(d, false)), [0, 10, 0, 10]);
        assert_eq!([None, Some(9), Some(9)].map(|d| tick(d, false)), [0, 0, 10]);
        assert_eq!([(Some(9), true), (Some(9), false)].map(|(d, slept)| tick(d, slept)), [0, 10]);
    }
}
