//! What the manager counts: requests by kind and session, commits, tokens. Handles are looked up once.

use std::{sync::LazyLock, time::Duration};

use base::stats::{self, Counter, Histogram, Key, Names, Recorder, Set};
use net::Request;
use wire::mgr::MgrRequest;

use crate::tokens::Acts;

/// What requests of the manager are called.
pub const NAMES: Names = Names { op: MgrRequest::name_of, class: |_| "request" };

static REQUESTS: LazyLock<&Recorder> = LazyLock::new(|| stats::recorder(Set::Manager, NAMES));

static COMMITS: LazyLock<Histogram> = LazyLock::new(|| stats::histogram("manager_commit_seconds", &[]));

static TOKENS: LazyLock<[Counter; 3]> = LazyLock::new(|| {
    ["granted", "recalled", "late"].map(|event| stats::counter("manager_tokens", &[("event", event)]))
});

/// A request of the network has its answer.
pub fn answered(request: &Request) {
    // The number of its kind: there are fewer than 128.
    let op = request.body.first().copied().unwrap_or_default();
    let key = Key { session: request.header.session.0, op, ..Key::default() };
    REQUESTS.record(&key, request.body.len() as u64, request.received.elapsed());
}

/// A commit is durable.
pub fn committed(took: Duration) {
    COMMITS.record(took);
}

/// Tokens went from hand to hand.
pub fn tokens(acts: &Acts) {
    let [granted, recalled, late] = &*TOKENS;
    granted.add(acts.granted.len() as u64);
    recalled.add(acts.told.iter().map(|(_, recalls)| recalls.len() as u64).sum());
    late.add(acts.late.len() as u64);
}
