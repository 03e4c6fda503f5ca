//! Every statistic: its name in queries, where its figures come from, its unit and dimensions. A family of the registry
//! that does not stand here is refused (a debug build stops); `docs/statistics.md` is what this table makes.

use std::fmt::Write;

use super::{Kind, operations::Set, prometheus::sample_name};

/// What of an operation is summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// How many.
    Operations,
    /// Their bytes.
    Bytes,
}

/// Where the figures come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Operations one by one.
    Operations(Set, Measure),
    /// A family of the registry.
    Family,
}

/// One statistic.
#[derive(Debug)]
pub struct Statistic {
    /// In queries.
    pub name: &'static str,
    /// Its family in the registry; Prometheus gets it with the prefix `ropewalk_`.
    pub family: &'static str,
    /// What the family holds.
    pub kind: Kind,
    /// Where a query looks.
    pub source: Source,
    /// Of its value; of a counter and of operations the rate's is this a second.
    pub unit: &'static str,
    /// What it can be broken down by and filtered by, beside `process` and, of latencies, `latency`.
    pub dimensions: &'static [&'static str],
    /// The labels of the family.
    pub labels: &'static [&'static str],
    /// What it counts.
    pub meaning: &'static str,
}

impl Statistic {
    /// The statistic of this name.
    pub fn find(name: &str) -> Option<&'static Statistic> {
        STATISTICS.iter().find(|statistic| statistic.name == name)
    }

    /// The dimension of which every second holds a distribution, if there is one.
    pub fn distribution(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Histogram => Some("latency"),
            Kind::Utilisation => Some("utilisation"),
            Kind::Counter | Kind::Gauge => None,
        }
    }

    /// Whether its figures are not summed over time: of some seconds their mean is shown.
    pub fn is_level(&self) -> bool {
        matches!(self.kind, Kind::Gauge | Kind::Utilisation)
    }

    /// All of its dimensions.
    pub fn all_dimensions(&self) -> impl Iterator<Item = &'static str> + use<> {
        let derived = DERIVED.iter().map(|(name, _)| *name).filter(|name| self.derived_from(name).is_some());
        let derived: Vec<&'static str> = derived.collect();
        self.dimensions.iter().copied().chain(derived).chain(["process"]).chain(self.distribution())
    }

    /// From which of its recorded dimensions one is derived, if it is.
    pub fn derived_from(&self, dimension: &str) -> Option<&'static str> {
        let recorded = |name: &str| self.dimensions.contains(&name);
        let of = |(name, from): &&(&str, &str)| *name == dimension && recorded(from) && !recorded(name);
        DERIVED.iter().find(of).map(|(_, from)| *from)
    }
}

/// Dimensions that are not recorded, and from which recorded one who asks derives them: by a file's path, by what the map
/// says of a pdisk, by where and on what a client is mounted.
const DERIVED: &[(&str, &str)] =
    &[("directory", "file"), ("pool", "pdisk"), ("node", "pdisk"), ("host", "client"), ("mount", "client")];

/// The family that operations are rolled up into.
pub(super) fn family_of(set: Set, measure: Measure) -> Option<&'static str> {
    let of = STATISTICS.iter().find(|s| s.source == Source::Operations(set, measure));
    of.map(|statistic| statistic.family).filter(|family| !family.is_empty())
}

/// Whether a family only repeats what the operations say.
pub(super) fn is_rolled_up(family: &str) -> bool {
    STATISTICS.iter().any(|s| s.family == family && s.source != Source::Family)
}

/// The meaning of a family, if it stands here so.
pub(super) fn declared(family: &str, kind: Kind, labels: &[(&'static str, &str)]) -> Option<&'static str> {
    let of = STATISTICS.iter().find(|s| s.family == family && s.kind == kind)?;
    let same = of.labels.len() == labels.len() && labels.iter().all(|(key, _)| of.labels.contains(key));
    same.then_some(of.meaning)
}

const fn operations(
    (set, measure): (Set, Measure),
    name: &'static str,
    family: &'static str,
    dimensions: &'static [&'static str],
    meaning: &'static str,
) -> Statistic {
    let (kind, unit) = match measure {
        Measure::Operations => (Kind::Histogram, "operations"),
        Measure::Bytes => (Kind::Counter, "bytes"),
    };
    let source = Source::Operations(set, measure);
    Statistic { name, family, kind, source, unit, dimensions, labels: &["op"], meaning }
}

const fn family(
    kind: Kind,
    name: &'static str,
    family: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    meaning: &'static str,
) -> Statistic {
    Statistic { name, family, kind, source: Source::Family, unit, dimensions: labels, labels, meaning }
}

use Kind::{Counter, Gauge, Histogram, Utilisation};
use Measure::{Bytes, Operations};

const FILE: &[&str] = &["client", "fs", "file", "user", "class", "op", "size", "offset"];
const STRIP: &[&str] = &["client", "fs", "file", "pdisk", "class", "op", "size"];

/// The whole table, in the order of the documentation.
#[rustfmt::skip]
pub static STATISTICS: &[Statistic] = &[
    operations((Set::File, Operations), "file.ops", "file_op_seconds", FILE, "What programs asked of a mount, from the kernel's request to its answer"),
    operations((Set::File, Bytes), "file.bytes", "file_op_bytes", FILE, "Bytes that programs read and wrote through a mount, without what the kernel had cached"),
    operations((Set::Strip, Operations), "strip.ops", "", STRIP, "Requests to NSD servers, from the request's last byte to its answer"),
    operations((Set::Strip, Bytes), "strip.bytes", "", STRIP, "Payload of requests to NSD servers and of their answers"),
    operations((Set::Manager, Operations), "manager.ops", "manager_op_seconds", &["client", "op"], "Requests to the manager, with what they waited for"),
    family(Histogram, "manager.commits", "manager_commit_seconds", "commits", &[], "Commits of the manager's store, from the first byte to the flush"),
    family(Counter, "manager.tokens", "manager_tokens", "tokens", &["event"], "Tokens of files: granted, recalled, or waited for too long (late)"),
    family(Histogram, "tokens.waits", "token_wait_seconds", "waits", &["need"], "Waits of a mount for a token that it does not hold: asked of the manager, or given up by itself just then"),
    family(Histogram, "tokens.given_up", "token_give_up_seconds", "tokens", &["what"], "Tokens that a mount was asked to give up: from the manager's wish to the answer, what is dirty written out; at once where nothing was to be done"),
    family(Histogram, "locks.waits", "lock_wait_seconds", "locks", &["kind", "outcome"], "Locks that programs asked a mount for, from the request to the answer, waits for others included"),
    family(Counter, "file.errors", "file_op_errors", "operations", &["op", "error"], "Operations of programs that ended with an error, by its name"),
    family(Counter, "nsd.received_bytes", "nsd_received_bytes", "bytes", &["op"], "Payload bytes of requests to the NSD server"),
    family(Counter, "nsd.sent_bytes", "nsd_sent_bytes", "bytes", &["op"], "Payload bytes of the NSD server's answers"),
    family(Histogram, "nsd.ops", "nsd_op_seconds", "operations", &["op"], "From a request's last byte to its answer"),
    family(Counter, "nsd.cache_bytes", "nsd_cache_bytes", "bytes", &["how"], "Bytes that reads found in the server's memory or not"),
    family(Counter, "nsd.cache_misses", "nsd_cache_miss_bytes", "bytes", &["reason"], "Bytes that reads had to get from pdisks, by why: first (not read for as long as is remembered), second (kept from now on), changed (an older version was there), far (more was read since than the cache holds), large (more than a quarter of it), off (it holds nothing)"),
    family(Counter, "nsd.damaged_strips", "nsd_damaged_strips", "strips", &["outcome"], "Damaged strips: found, made anew (repaired), found whole when looked at again (sound), not repairable when tried (failed)"),
    family(Counter, "nsd.rebuilt_bytes", "nsd_rebuilt_bytes", "bytes", &["pdisk"], "Bytes of strips made anew on a pdisk, or moved to it: rebuild, drain, rebalance, catching up"),
    family(Counter, "nsd.scrubbed_bytes", "nsd_scrubbed_bytes", "bytes", &[], "Bytes that scrub read and compared"),
    family(Counter, "nsd.scrubbed_stripes", "nsd_scrubbed_stripes", "stripes", &["outcome"], "Stripes that scrub looked at (proved), what it found wrong with them (found), strips it made anew (repaired)"),
    family(Utilisation, "pdisk.utilisation", "pdisk_utilisation", "pdisks", &["pdisk"], "How many pdisks had a batch to do for that share of a second"),
    family(Counter, "pdisk.busy_us", "pdisk_busy_microseconds", "microseconds", &["pdisk"], "Time in which a pdisk had a batch to do: a million a second is always"),
    family(Gauge, "pdisk.queued", "pdisk_queued", "batches", &["pdisk"], "Batches that are begun and not answered, at the end of the second"),
    family(Histogram, "pdisk.ops", "pdisk_op_seconds", "batches", &["pdisk", "op"], "Latency of batches, by operation"),
    family(Counter, "pdisk.strips", "pdisk_op_strips", "strips", &["pdisk", "op"], "Strips in batches, by operation"),
    family(Counter, "pdisk.bytes", "pdisk_op_bytes", "bytes", &["pdisk", "op"], "Bytes of payload, by operation"),
    family(Histogram, "queue.requests", "queue_request_seconds", "requests", &["queue", "pdisk", "op"], "Requests to files of pdisks that went through an I/O queue, from being put there to their end; a queue is called as its threads are. What is done where it is asked for (little, of files in memory) goes through none"),
    family(Gauge, "queue.under_way", "queue_under_way", "requests", &["queue"], "Requests in an I/O queue that have not ended, at the end of the second"),
    family(Histogram, "pdisk.commits", "pdisk_commit_seconds", "commits", &["pdisk"], "Time of group commits"),
    family(Counter, "pdisk.commit_records", "pdisk_commit_records", "records", &["pdisk"], "Records made durable by group commits"),
    family(Counter, "pdisk.commit_bytes", "pdisk_commit_bytes", "bytes", &["pdisk"], "Bytes written to the log"),
    family(Histogram, "pdisk.checkpoints", "pdisk_checkpoint_seconds", "checkpoints", &["pdisk"], "Time of checkpoints"),
    family(Gauge, "pdisk.failed", "pdisk_failed", "1 or 0", &["pdisk"], "1 if the pdisk has latched itself failed"),
    family(Counter, "pdisk.failures", "pdisk_failures", "failures", &["pdisk"], "Times a pdisk latched itself failed"),
    family(Gauge, "pdisk.index_bytes", "pdisk_index_bytes", "bytes", &["pdisk"], "Memory that the index takes, at most"),
    family(Gauge, "pdisk.short", "pdisk_short", "1 or 0", &["pdisk"], "1 while the host's file system has no room"),
    family(Counter, "pdisk.lost_strips", "pdisk_lost_strips", "strips", &["pdisk"], "Strips found unreadable or not matching their CRCs"),
    family(Counter, "pdisk.unregistered_buffers", "pdisk_unregistered_buffers", "buffers", &[], "I/O buffers that did not come from the registered memory"),
    family(Counter, "pagepool.read_bytes", "pagepool_read_bytes", "bytes", &["how"], "Bytes that reads found in the page pool (hit), that were on their way (coming), that had to be asked for (miss); bytes read ahead (ahead), and of these what was given up before anybody asked for it: wasted (ahead_unused)"),
    family(Counter, "pagepool.misses", "pagepool_miss_bytes", "bytes", &["reason"], "Bytes that reads had to ask servers for, by why: first (not there for as long as is remembered), evicted (gone for room), given_up (another mount wanted them), part (the rest of the block is there)"),
    family(Counter, "stripe.decoded_reads", "stripe_decoded_reads", "reads", &[], "Reads that were decoded: strips were absent, damaged, late or out of reach"),
    family(Counter, "stripe.hedged_strips", "stripe_hedged_strips", "strips", &[], "Strips that were late when read: others were asked for beside them"),
    family(Counter, "stripe.retries", "stripe_retries", "times", &["what"], "Reads of stripes that began again, strips that were sent again"),
    family(Histogram, "net.calls", "net_call_seconds", "calls", &["service"], "Time from a call's sending to its reply"),
    family(Counter, "net.sent_bytes", "net_sent_bytes", "bytes", &["peer", "lane"], "Bytes sent, headers included"),
    family(Counter, "net.received_bytes", "net_received_bytes", "bytes", &["peer", "lane"], "Bytes received, headers included"),
    family(Counter, "net.connection_sent_bytes", "net_connection_sent_bytes", "bytes", &["peer", "rail", "connection"], "Bytes sent, by rail (the address of who was called) and by the number of the connection to that peer"),
    family(Counter, "net.connection_received_bytes", "net_connection_received_bytes", "bytes", &["peer", "rail", "connection"], "Bytes received, by rail and by the number of the connection to that peer"),
    family(Histogram, "net.round_trips", "net_round_trip_seconds", "calls", &["peer", "rail", "connection"], "Latency of connections, and so of rails and links: from a call's sending to its reply, without the time that the peer says it took"),
    family(Counter, "net.sent_messages", "net_sent_messages", "frames", &["peer", "lane"], "Frames sent"),
    family(Counter, "net.received_messages", "net_received_messages", "frames", &["peer", "lane"], "Frames received"),
    family(Gauge, "net.connections", "net_connections", "connections", &["peer", "lane"], "Connections that stand"),
    family(Counter, "net.lost_connections", "net_lost_connections", "connections", &["peer", "lane"], "Connections that ended unasked"),
    family(Counter, "net.replaced_connections", "net_replaced_connections", "connections", &["peer", "lane"], "Connections replaced because they were much slower than others"),
    family(Counter, "net.refused_handshakes", "net_refused_handshakes", "handshakes", &["reason"], "Handshakes that came to nothing: nothing could be asked"),
    family(Counter, "net.tampered_connections", "net_tampered_connections", "connections", &[], "Connections that ended because what came on them was not what the peer had sealed"),
    family(Counter, "process.cpu_us", "process_cpu_microseconds", "microseconds", &["mode"], "CPU time of the process"),
    family(Gauge, "process.memory_bytes", "process_memory_bytes", "bytes", &["what"], "Memory of the process that is backed, and its swap"),
    family(Counter, "host.cpu_us", "host_cpu_microseconds", "microseconds", &["host", "mode"], "CPU time of all CPUs of a host; one process of each host counts it"),
    family(Utilisation, "host.cpu_utilisation", "host_cpu_utilisation", "CPUs", &["host", "cpu"], "How many CPUs of hosts were at work for that share of a second; one process of each host tells it"),
    family(Utilisation, "host.net_utilisation", "host_net_utilisation", "directions of links", &["host", "interface", "direction"], "How many network interfaces were used, in each direction, to that share of the speed that they tell; those that tell none are left out"),
    family(Gauge, "host.memory_bytes", "host_memory_bytes", "bytes", &["host", "what"], "Memory of a host; one process of each host tells it"),
    family(Counter, "host.net_bytes", "host_net_bytes", "bytes", &["host", "interface", "direction"], "Bytes through a host's network interfaces, of all programs; one process of each host counts them"),
    family(Counter, "log.lost_lines", "log_lost_lines", "lines", &[], "Lines of the log that could not be written"),
    family(Gauge, "analytics.cost", "analytics_cost_millionths", "millionths of a CPU", &[], "CPU time that counting operations and keeping history, on disk too, took in the last second; the counting by a sample of one in 1,024"),
    family(Gauge, "analytics.history_bytes", "analytics_history_bytes", "bytes", &[], "Memory of the seconds that are kept"),
    family(Gauge, "analytics.history_depth", "analytics_history_depth_seconds", "seconds", &[], "How many seconds are kept"),
];

const INTRODUCTION: &str = "\
# Statistics

What `ropewalk analytics query` can be asked, and what the metrics endpoint shows ([analytics](analytics.md)). Made from the table in
`crates/base/src/stats/table.rs`; not written by hand (`ROPEWALK_UPDATE_DOCS=1 cargo test -p ropewalk-base --test statistics_doc`).

Every statistic can be broken down and filtered by `process` as well, and by `latency` or `utilisation` where the dimensions name it. Prometheus gets the names of the
third column; of operations it gets the label `op` only.

| statistic | unit | Prometheus | dimensions | what it counts |
|---|---|---|---|---|
";

/// `docs/statistics.md`.
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for s in STATISTICS {
        let prometheus = match (s.family, s.kind) {
            ("", _) | (_, Utilisation) => "-".to_owned(),
            (family, kind) => format!("`{}`", sample_name(family, kind)),
        };
        let dimensions: Vec<&str> = s.all_dimensions().filter(|d| *d != "process").collect();
        let (name, unit, meaning) = (s.name, s.unit, s.meaning);
        let _ =
            writeln!(text, "| `{name}` | {unit} | {prometheus} | {} | {meaning} |", dimensions.join(", "));
    }
    text
}
