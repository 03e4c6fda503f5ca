//! What a process counts: the one registry of counters, gauges and latency histograms, operations one by one
//! ([`Recorder`]), and the last hour of both by second ([`keep`]). What there is stands in one table ([`STATISTICS`]).
//! A handle is looked up once and kept; after that an event costs one or two relaxed atomic additions:
//! no lock, no allocation. What is registered is bounded: a family that has too many label sets counts
//! the further ones under the label value `other`.
//! No I/O here: [`Registry::snapshot`] and [`Registry::prometheus_text`] give values, others send them.
//! A name that is wrong, or not in the table, is a mistake in our own code: it gives a handle that counts unseen, is listed under
//! `refused` in every snapshot, and stops a debug build.

mod cells;
mod cost;
mod counted;
mod histogram;
mod history;
mod operations;
mod prometheus;
mod registry;
mod table;

use std::sync::LazyLock;

pub use cells::{Counter, Gauge, Utilisation};
pub use cost::{spend, thread_cpu};
pub use counted::{Amount, Key, offset_octave, size_octave};
pub use histogram::{HistSnapshot, Histogram, LATENCY_BUCKETS, latency_bucket, latency_start};
pub use history::{
    Brought, Gain, Kept, ROWS_MAX, SECONDS_MAX, Second, UTILISATION_BUCKETS, bring_up_to_date,
    first as first_second, keep, kept, memory_max as history_memory_max, now, seconds, set_history_bytes,
    utilisation_bucket,
};
pub use operations::{Names, Operations, Recorder, Row, Set, names_of, recorder, set_recording};
pub use prometheus::Form;
pub use registry::{
    FamilySnapshot, HISTOGRAM_SERIES_PER_FAMILY_MAX, HISTOGRAMS_MAX, HistSummary, Kind, OTHER, Registry,
    SERIES_MAX, SERIES_PER_FAMILY_MAX, SeriesSnapshot, SeriesValue, Snapshot, StatsError,
};
pub use table::{Measure, STATISTICS, Source, Statistic, markdown};

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

/// The registry of this process.
pub fn registry() -> &'static Registry {
    &REGISTRY
}

/// The counter of this name and these labels, made at the first call. Names are `[a-z][a-z0-9_]*`
/// without the prefix `ropewalk_` and the ending `_total`, which are added
/// when it is shown; the unit stands last (`net_sent_bytes`).
pub fn counter(name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
    or_detached(declared(name, Kind::Counter, labels).and_then(|help| REGISTRY.counter(name, help, labels)))
}

/// The gauge of this name and these labels, made at the first call.
pub fn gauge(name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
    or_detached(declared(name, Kind::Gauge, labels).and_then(|help| REGISTRY.gauge(name, help, labels)))
}

/// The latency histogram of this name and these labels, made at the first call. The name ends in
/// `_seconds`.
pub fn histogram(name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
    or_detached(
        declared(name, Kind::Histogram, labels).and_then(|help| REGISTRY.histogram(name, help, labels)),
    )
}

/// How much of its time the thing of these labels was in use, made at the first call.
pub fn utilisation(name: &'static str, labels: &[(&'static str, &str)]) -> Utilisation {
    or_detached(
        declared(name, Kind::Utilisation, labels).and_then(|help| REGISTRY.utilisation(name, help, labels)),
    )
}

fn declared(
    name: &'static str,
    kind: Kind,
    labels: &[(&'static str, &str)],
) -> Result<&'static str, StatsError> {
    let undeclared = || StatsError::Undeclared { name, kind, labels: labels.iter().map(|l| l.0).collect() };
    table::declared(name, kind, labels).ok_or_else(undeclared)
}

fn or_detached<T: Default>(handle: Result<T, StatsError>) -> T {
    handle.unwrap_or_else(|error| {
        REGISTRY.refuse(&error);
        debug_assert!(false, "{error}");
        T::default()
    })
}
