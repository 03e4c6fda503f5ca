//! Handshakes that came to nothing: counted, logged, and told as an event.

use std::{net::SocketAddr, sync::atomic::Ordering};

use base::events::Severity;

use crate::{connections::handshake_error::HandshakeError, core::Core};

/// Failed handshakes logged as warnings; beyond, one in this many.
const LOG_EVERY: u64 = 1000;

/// Counts a handshake that came to nothing, and tells of it.
pub(crate) fn note(core: &Core, with: SocketAddr, error: &HandshakeError) {
    let help = "Handshakes that came to nothing: nothing could be asked.";
    base::stats::counter("net_refused_handshakes", help, &[("reason", error.kind())]).inc();
    // Attempts that another one has made needless end like these.
    match error {
        // After an outage dozens of them stand in the queue.
        HandshakeError::Io(_) => return tracing::debug!(peer = %with, "handshake: {error}"),
        _ => {}
    }
    let n = core.refused.fetch_add(1, Ordering::Relaxed) + 1;
    if n <= LOG_EVERY || n.is_multiple_of(LOG_EVERY) {
        tracing::warn!(peer = %with, failed = n, "handshake: {error}");
    }
    // Rarer and rarer: strangers must not push other events out.
    if n.is_power_of_two() {
        let text = format!("{n} connections were refused, the last with {with}: {error}");
        base::events::raise(Severity::Warning, "net_refused", &with.ip().to_string(), &text);
    }
}
