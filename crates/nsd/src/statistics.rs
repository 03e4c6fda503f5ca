//! What the server counts: requests by operation, with bytes and latency, in the process's one registry; and each one by
//! session, file, pdisk and class.

use std::{collections::HashMap, time::Instant};

use base::{
    OpClass,
    stats::{self, Counter, Histogram, Key, Names, Recorder, Set},
};
use net::Request;
use wire::nsd::NsdRequest;

/// Counters of one operation.
struct OpStatistics {
    received: Counter,
    sent: Counter,
    seconds: Histogram,
}

/// Counters of all operations, looked up once.
pub(crate) struct Statistics {
    by_op: HashMap<u8, OpStatistics>,
    one_by_one: &'static Recorder,
}

/// What requests and classes of a server are called.
pub const NAMES: Names = Names { op: op_name, class: |class| OpClass::from_u8(class).name() };

fn op_name(op: u8) -> &'static str {
    NsdRequest::NAMES.get(usize::from(op).wrapping_sub(1)).copied().unwrap_or("other")
}

/// Who asked, and for what.
pub(crate) fn key(request: &Request, message: &NsdRequest) -> Key {
    let (fs, file) = message.first_file().unwrap_or_default();
    Key {
        session: request.header.session.0,
        inode: file.0,
        fs: fs.0,
        place: message.pdisk().0,
        op: message.op(),
        class: request.header.class as u8,
        ..Key::default()
    }
}

impl Statistics {
    pub fn new() -> Statistics {
        let of = |(number, name): (u8, &'static str)| {
            let labels = [("op", name)];
            let statistics = OpStatistics {
                received: stats::counter("nsd_received_bytes", &labels),
                sent: stats::counter("nsd_sent_bytes", &labels),
                seconds: stats::histogram("nsd_op_seconds", &labels),
            };
            (number, statistics)
        };
        let all = NsdRequest::NAMES.iter().enumerate().map(|(i, name)| (i as u8 + 1, *name));
        Statistics { by_op: all.map(of).collect(), one_by_one: stats::recorder(Set::Strip, NAMES) }
    }

    /// A request is answered.
    pub fn done(&self, key: &Key, received_at: Instant, received: usize, sent: usize) {
        let took = received_at.elapsed();
        self.one_by_one.record(key, (received + sent) as u64, took);
        let Some(counted) = self.by_op.get(&key.op) else { return };
        counted.received.add(received as u64);
        counted.sent.add(sent as u64);
        counted.seconds.record(took);
    }
}
