//! What this crate counts in the process's registry, by peer node and lane, and by connection.

use std::{collections::HashMap, net::IpAddr, sync::LazyLock};

use base::{
    NodeId,
    stats::{Counter, Gauge, Histogram, counter, gauge, histogram},
};
use parking_lot::Mutex;
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
        let peer = peer_label(node);
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

/// Clients that are no cluster nodes are many, and all have number 0: they count together.
fn peer_label(node: NodeId) -> String {
    if node == NodeId(0) { "clients".to_owned() } else { node.to_string() }
}

/// Numbers of connections to each node that are taken, a bit each.
static NUMBERS: LazyLock<Mutex<HashMap<NodeId, u64>>> = LazyLock::new(Mutex::default);

/// The lowest number that no other connection to the node has, while it stands: so that a connection that takes the place of
/// another goes on with its figures.
#[derive(Debug)]
struct Number(NodeId, u32);

impl Number {
    /// None: there are 64 already, and it counts with the last.
    fn take(node: NodeId) -> Option<Number> {
        let mut all = NUMBERS.lock();
        let taken = all.entry(node).or_default();
        let free = taken.trailing_ones();
        *taken |= 1_u64.checked_shl(free)?;
        Some(Number(node, free))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut all = NUMBERS.lock();
        let left = all.get_mut(&self.0).map(|taken| {
            *taken &= !(1 << self.1);
            *taken
        });
        if left == Some(0) {
            all.remove(&self.0);
        }
    }
}

/// What is counted of one connection.
#[derive(Debug)]
pub(crate) struct ConnStats {
    /// What the connection is called in statistics: its number to the peer, `control`, or `others`.
    pub name: String,
    pub sent_bytes: Counter,
    pub received_bytes: Counter,
    /// Of calls, without what the peer says that it took for them.
    pub round_trips: Histogram,
    _number: Option<Number>,
}

impl ConnStats {
    pub(crate) fn of(node: NodeId, lane: Lane, rail: IpAddr) -> ConnStats {
        // Of clients, which are many, only the rail is told.
        let number = (lane == Lane::Bulk && node != NodeId(0)).then(|| Number::take(node)).flatten();
        let connection = match (&number, lane) {
            (Some(number), _) => (number.1 + 1).to_string(),
            (None, Lane::Control) => "control".to_owned(),
            (None, Lane::Bulk) => "others".to_owned(),
        };
        let (peer, rail) = (peer_label(node), rail.to_string());
        let labels = [("peer", peer.as_str()), ("rail", rail.as_str()), ("connection", connection.as_str())];
        ConnStats {
            sent_bytes: counter("net_connection_sent_bytes", &labels),
            received_bytes: counter("net_connection_received_bytes", &labels),
            round_trips: histogram("net_round_trip_seconds", &labels),
            name: connection,
            _number: number,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_takes_over_the_number_of_the_one_that_ended() {
        let (node, other) = (NodeId(901), NodeId(902));
        let mut all: Vec<Number> = (0..64).filter_map(|_| Number::take(node)).collect();
        assert_eq!(all.iter().map(|number| number.1).collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
        assert!(Number::take(node).is_none());
        all.remove(5);
        assert_eq!(Number::take(node).unwrap().1, 5);
        assert_eq!(Number::take(other).unwrap().1, 0);
        drop(all);
        assert!(NUMBERS.lock().get(&node).is_none());
    }
}
