//! What the server counts: requests by operation, with bytes and latency, in the process's one registry.

use std::{collections::HashMap, time::Instant};

use base::stats::{self, Counter, Histogram};
use wire::nsd::NsdRequest;

/// Counters of one operation.
#[derive(Clone)]
pub(crate) struct OpStatistics {
    received: Counter,
    sent: Counter,
    seconds: Histogram,
}

/// Counters of all operations, looked up once.
pub(crate) struct Statistics(HashMap<u8, OpStatistics>);

impl Statistics {
    pub fn new() -> Statistics {
        let of = |(number, name): (u8, &'static str)| {
            let labels = [("op", name)];
            let statistics = OpStatistics {
                received: stats::counter(
                    "nsd_received_bytes",
                    "Payload bytes of requests to the NSD server",
                    &labels,
                ),
                sent: stats::counter("nsd_sent_bytes", "Payload bytes of the NSD server's answers", &labels),
                seconds: stats::histogram(
                    "nsd_op_seconds",
                    "From a request's last byte to its answer",
                    &labels,
                ),
            };
            (number, statistics)
        };
        Statistics(
            NsdRequest::NAMES.iter().enumerate().map(|(i, name)| (i as u8 + 1, *name)).map(of).collect(),
        )
    }

    /// The counters of a request's operation.
    pub fn of(&self, request: &NsdRequest) -> Option<OpStatistics> {
        self.0.get(&request.op()).cloned()
    }
}

impl OpStatistics {
    /// A request is answered.
    pub fn done(&self, received_at: Instant, received: usize, sent: usize) {
        self.received.add(received as u64);
        self.sent.add(sent as u64);
        self.seconds.record(received_at.elapsed());
    }
}
