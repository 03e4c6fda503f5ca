//! The one registry of counters, gauges and latency histograms of a process.
//! A handle is looked up once and kept; after that an event costs one or two relaxed atomic additions:
//! no lock, no allocation. What is registered is bounded: a family that has too many label sets counts
//! the further ones under the label value `other`.
//! No I/O here: [`Registry::snapshot`] and [`Registry::prometheus_text`] give values, others send them.
//! A wrong name is a mistake in our own code: it gives a handle that counts unseen, is listed under
//! `refused` in every snapshot, and stops a debug build.

mod cells;
mod histogram;
mod history;
mod prometheus;
mod registry;

use std::sync::LazyLock;

pub use cells::{Counter, Gauge};
pub use histogram::{HistSnapshot, Histogram};
pub use history::{History, SeriesHistory};
pub use registry::{
    FamilySnapshot, HISTOGRAM_SERIES_PER_FAMILY_MAX, HISTOGRAMS_MAX, HISTORY_SECONDS, HistSummary, Kind,
    OTHER, Registry, SERIES_MAX, SERIES_PER_FAMILY_MAX, SeriesSnapshot, SeriesValue, Snapshot, StatsError,
};

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

/// The registry of this process.
pub fn registry() -> &'static Registry {
    &REGISTRY
}

/// The counter of this name and these labels, made at the first call. Names are `[a-z][a-z0-9_]*`
/// without the prefix `ropewalk_` and the ending `_total`, which are added
/// when it is shown; the unit stands last (`net_sent_bytes`).
pub fn counter(name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Counter {
    or_detached(REGISTRY.counter(name, help, labels))
}

/// The gauge of this name and these labels, made at the first call.
pub fn gauge(name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
    or_detached(REGISTRY.gauge(name, help, labels))
}

/// The latency histogram of this name and these labels, made at the first call. The name ends in
/// `_seconds`.
pub fn histogram(name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
    or_detached(REGISTRY.histogram(name, help, labels))
}

fn or_detached<T: Default>(handle: Result<T, StatsError>) -> T {
    handle.unwrap_or_else(|error| {
        REGISTRY.refuse(&error);
        debug_assert!(false, "{error}");
        T::default()
    })
}
