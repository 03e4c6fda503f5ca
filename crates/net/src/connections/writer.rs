//! The sending side of a connection, for what the queueing tasks could not send at once; it also judges whether the peer lives.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use wire::frame::FrameKind;

use crate::{
    connections::{conn::Conn, outbox::Flushed, records::KEPT},
    error::CloseReason,
};

/// Sends what could not be sent at once; probes an idle peer; closes a silent one.
pub(crate) async fn run(conn: Arc<Conn>) {
    let config = &conn.core.config;
    let mut tick = tokio::time::interval(config.heartbeat_interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut blocked = false;
    let mut watch = Watch::new(&conn);
    loop {
        // All four are safe to cancel: they only wait, and `notified` keeps its permit.
        tokio::select! {
            biased;
            () = conn.closing.notified() => return,
            _ = tick.tick() => watch.tick(&conn),
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
}

impl Watch {
    fn new(conn: &Conn) -> Watch {
        let now = conn.core.now_us();
        Watch { last_tick_us: now, heard_us: now, sent_then: 0 }
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
