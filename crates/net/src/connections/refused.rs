//! Handshakes that came to nothing, and connections on which something else came than their peers had sealed: counted, logged,
//! and told as events.

use std::{io, net::SocketAddr, sync::atomic::Ordering};

use base::events::Severity;

use crate::{connections::handshake_error::HandshakeError, core::Core};

/// So many of a kind are logged as warnings; beyond, one in this many.
const LOG_EVERY: u64 = 1000;

/// Shows what is counted here from now on, with nothing counted: who looks from outside sees the first as one.
pub(crate) fn show() {
    for reason in HandshakeError::KINDS {
        base::stats::counter("net_refused_handshakes", &[("reason", reason)]);
    }
    base::stats::counter("net_tampered_connections", &[]);
}

/// Counts a handshake that came to nothing, and tells of it.
pub(crate) fn note(core: &Core, with: SocketAddr, error: &HandshakeError) {
    base::stats::counter("net_refused_handshakes", &[("reason", error.kind())]).inc();
    // Attempts that another one has made needless end like these.
    if let HandshakeError::Io(_) = error {
        // After an outage dozens of them stand in the queue.
        return tracing::debug!(peer = %with, "handshake: {error}");
    }
    let n = core.refused.fetch_add(1, Ordering::Relaxed) + 1;
    if is_logged(n) {
        tracing::warn!(peer = %with, failed = n, "handshake: {error}");
    }
    let text = || format!("{n} connections were refused, the last with {with}: {error}");
    raise(n, "net_refused", with, text);
}

/// Counts a connection that ended because what came on it was not what its peer had sealed, and tells of it.
pub(crate) fn note_tampered(core: &Core, with: SocketAddr, name: &str, error: &io::Error) {
    base::stats::counter("net_tampered_connections", &[]).inc();
    let n = core.tampered.fetch_add(1, Ordering::Relaxed) + 1;
    if is_logged(n) {
        tracing::warn!(peer = %name, failed = n, "connection ended: {error}");
    }
    let text = || format!("{n} connections were meddled with, the last with {name}: {error}");
    raise(n, "net_tampered", with, text);
}

fn is_logged(n: u64) -> bool {
    n <= LOG_EVERY || n.is_multiple_of(LOG_EVERY)
}

/// Rarer and rarer: strangers must not push other events out.
fn raise(n: u64, event: &'static str, with: SocketAddr, text: impl FnOnce() -> String) {
    if n.is_power_of_two() {
        base::events::raise(Severity::Warning, event, &with.ip().to_string(), &text());
    }
}
