//! What this crate counts in the process's registry, by peer node and lane.

use base::{
    NodeId,
    stats::{Counter, Gauge, Histogram, counter, gauge, histogram},
};
use wire::{frame::Service, hello::Lane};

/// Counters of all connections of one lane to one node.
#[derive(Clone, Debug)]
pub(crate) struct LaneStats {
    pub sent_bytes: Counter,
    pub received_bytes: Counter,
    pub sent_messages: Counter,
    pub received_messages: Counter,
    pub connections: Gauge,
    /// Ended other than by drain or shutdown.
    pub lost: Counter,
    pub replaced: Counter,
}

impl LaneStats {
    pub(crate) fn of(node: NodeId, lane: Lane) -> LaneStats {
        // Clients that are no cluster nodes are many, and all have number 0: they count together.
        let peer = if node == NodeId(0) { "clients".to_owned() } else { node.to_string() };
        let labels = [("peer", peer.as_str()), ("lane", lane_name(lane))];
        LaneStats {
            sent_bytes: counter("net_sent_bytes", &labels),
            received_bytes: counter("net_received_bytes", &labels),
            sent_messages: counter("net_sent_messages", &labels),
            received_messages: counter("net_received_messages", &labels),
            connections: gauge("net_connections", &labels),
            lost: counter("net_lost_connections", &labels),
            replaced: counter("net_replaced_connections", &labels),
        }
    }
}

pub(crate) fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Control => "control",
        Lane::Bulk => "bulk",
    }
}

/// Times from a call's sending to its reply, by service.
#[derive(Debug)]
pub(crate) struct CallTimes([Histogram; 6]);

impl CallTimes {
    pub(crate) fn new() -> CallTimes {
        let names = ["net", "manager", "nsd", "admin", "lab", "callback"];
        CallTimes(names.map(|service| histogram("net_call_seconds", &[("service", service)])))
    }
    pub(crate) fn of(&self, service: Service) -> &Histogram {
        // Services are numbered from 0 without gaps.
        &self.0[(service as usize).min(self.0.len() - 1)]
    }
}
