//! The families and series of a process, and the tree that `status --json` shows.
//! The lock is taken when a handle is looked up and when all are shown, never when an event is counted.
//! Memory is bounded: SERIES_MAX series, HISTOGRAMS_MAX of them histograms, FAMILIES_MAX families with one
//! series each beyond that (`other`, or the only one of a family without labels).

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    cells::{Counter, Gauge, Utilisation},
    histogram::Histogram,
    history::{Gain, Last},
    prometheus::{self, Form},
    table,
};

/// Label sets of one counter or gauge family; further ones are counted together under [`OTHER`].
pub const SERIES_PER_FAMILY_MAX: usize = 1024;
/// Label sets of one histogram family (a histogram takes 9 KiB).
pub const HISTOGRAM_SERIES_PER_FAMILY_MAX: usize = 128;
/// Series of a process.
pub const SERIES_MAX: usize = 8192;
/// Histograms of a process.
pub const HISTOGRAMS_MAX: usize = 1024;
/// The label value of the series that takes what is beyond a bound.
pub const OTHER: &str = "other";

const FAMILIES_MAX: usize = 512;
const LABELS_MAX: usize = 6;
const LABEL_VALUE_BYTES_MAX: usize = 128;
const REFUSED_MAX: usize = 16;

/// What a family holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Grows only.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Latencies.
    Histogram,
    /// Shares of their time, or of their rate, in which things were in use: kept by second, and seen in the history alone.
    Utilisation,
}

/// Why a handle was refused: always a mistake in our own code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StatsError {
    /// The name of a family does not follow the rules.
    #[error("bad statistic name {name:?}: {reason}")]
    BadName {
        /// As given.
        name: &'static str,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A label key does not follow the rules.
    #[error("bad label {label:?} of statistic {name}: {reason}")]
    BadLabel {
        /// The family.
        name: &'static str,
        /// The key as given.
        label: &'static str,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// The name is taken by a family of another kind or with other label keys.
    #[error(
        "statistic {name} exists as {existing_kind:?} with labels {existing_labels:?}, not {kind:?} with {labels:?}"
    )]
    Clash {
        /// The family.
        name: &'static str,
        /// Its kind.
        existing_kind: Kind,
        /// Its label keys.
        existing_labels: Vec<&'static str>,
        /// The kind asked for.
        kind: Kind,
        /// The label keys asked for.
        labels: Vec<&'static str>,
    },
    /// The family does not stand in the table.
    #[error("statistic {name}, {kind:?} with labels {labels:?}, does not stand so in stats/table.rs")]
    Undeclared {
        /// The family.
        name: &'static str,
        /// The kind asked for.
        kind: Kind,
        /// The label keys asked for.
        labels: Vec<&'static str>,
    },
    /// The process has as many families as it may.
    #[error("statistic {name} refused: a process has at most {FAMILIES_MAX} families")]
    TooManyFamilies {
        /// The family.
        name: &'static str,
    },
}

pub(super) enum Cell {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
    Utilisation(Utilisation),
}

impl Cell {
    fn new(kind: Kind) -> Cell {
        match kind {
            Kind::Counter => Cell::Counter(Counter::default()),
            Kind::Gauge => Cell::Gauge(Gauge::default()),
            Kind::Histogram => Cell::Histogram(Histogram::default()),
            Kind::Utilisation => Cell::Utilisation(Utilisation::default()),
        }
    }
}

pub(super) struct Series {
    pub(super) cell: Cell,
    /// In the order in which they were made.
    number: u32,
    last: Last,
}

pub(super) struct Family {
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    /// Label keys, sorted.
    pub(super) keys: Vec<&'static str>,
    /// By label values, in the order of the keys.
    pub(super) series: BTreeMap<Vec<String>, Series>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) families: BTreeMap<&'static str, Family>,
    series: usize,
    histograms: usize,
    refused: VecDeque<String>,
}

/// The families of a process. There is one, [`super::registry`]; tests make their own.
#[derive(Default)]
pub struct Registry(RwLock<Inner>);

impl Registry {
    /// An empty registry.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// The counter of this name and these labels, made at the first call.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Result<Counter, StatsError> {
        self.look_up(Kind::Counter, name, help, labels, |cell| match cell {
            Cell::Counter(counter) => Some(counter.clone()),
            _ => None,
        })
    }

    /// The gauge of this name and these labels, made at the first call. In the series [`OTHER`], where
    /// several share one gauge, `add` and `sub` stay meaningful, `set` does not.
    pub fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Result<Gauge, StatsError> {
        self.look_up(Kind::Gauge, name, help, labels, |cell| match cell {
            Cell::Gauge(gauge) => Some(gauge.clone()),
            _ => None,
        })
    }

    /// The latency histogram of this name (it ends in `_seconds`) and these labels, made at the first call.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Result<Histogram, StatsError> {
        self.look_up(Kind::Histogram, name, help, labels, |cell| match cell {
            Cell::Histogram(histogram) => Some(histogram.clone()),
            _ => None,
        })
    }

    /// How much of its time the thing of these labels was in use.
    pub fn utilisation(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Result<Utilisation, StatsError> {
        self.look_up(Kind::Utilisation, name, help, labels, |cell| match cell {
            Cell::Utilisation(utilisation) => Some(utilisation.clone()),
            _ => None,
        })
    }

    /// Everything as it stands, for `status --json`.
    pub fn snapshot(&self) -> Snapshot {
        let inner = self.read();
        let families = inner.families.iter().filter(|(_, family)| family.kind != Kind::Utilisation);
        let families = families.map(|(name, family)| ((*name).to_owned(), family.snapshot()));
        Snapshot { families: families.collect(), refused: inner.refused.iter().cloned().collect() }
    }

    /// Everything as text for Prometheus. Names get the prefix `ropewalk_`, counters the ending `_total`; units are base
    /// units.
    pub fn prometheus_text(&self, form: Form) -> String {
        prometheus::text(&self.read(), form)
    }

    /// What each series gained since this was asked last, by the number of the series. What is rolled up from
    /// operations is left out: these are in the history themselves.
    pub fn gains(&self) -> Vec<(u32, Gain)> {
        let inner = &mut *self.write();
        let families = inner.families.iter_mut().filter(|(name, _)| !table::is_rolled_up(name));
        let series = families.flat_map(|(_, family)| family.series.values_mut());
        series.filter_map(|s| Some((s.number, s.last.gain(&s.cell)?))).collect()
    }

    /// Name and labels of every series, by its number.
    pub fn series(&self) -> HashMap<u32, (&'static str, BTreeMap<String, String>)> {
        let inner = self.read();
        let all = inner.families.iter().flat_map(|(&name, family)| {
            family.series.iter().map(move |(values, s)| (s.number, (name, family.labels(values))))
        });
        all.collect()
    }

    /// Remembers a refused handle, so that it is seen in `status`.
    pub(super) fn refuse(&self, error: &StatsError) {
        let mut inner = self.write();
        let text = error.to_string();
        if !inner.refused.contains(&text) {
            if inner.refused.len() == REFUSED_MAX {
                inner.refused.pop_front();
            }
            inner.refused.push_back(text);
        }
    }

    fn look_up<T>(
        &self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        handle: impl Fn(&Cell) -> Option<T>,
    ) -> Result<T, StatsError> {
        let mut labels: Vec<_> = labels.iter().map(|&(key, value)| (key, shortened(value))).collect();
        labels.sort_unstable();
        let keys: Vec<&'static str> = labels.iter().map(|l| l.0).collect();
        let values: Vec<String> = labels.iter().map(|l| l.1.to_owned()).collect();
        let clash = |family: &Family| StatsError::Clash {
            name,
            existing_kind: family.kind,
            existing_labels: family.keys.clone(),
            kind,
            labels: keys.clone(),
        };

        let mut inner = self.write();
        let inner = &mut *inner;
        if !inner.families.contains_key(name) {
            check_name(kind, name)?;
            check_keys(name, &keys)?;
            if inner.families.len() == FAMILIES_MAX {
                return Err(StatsError::TooManyFamilies { name });
            }
        }
        let family = inner.families.entry(name).or_insert_with(|| Family {
            kind,
            help,
            keys: keys.clone(),
            series: BTreeMap::new(),
        });
        if family.kind != kind || family.keys != keys {
            return Err(clash(family));
        }
        let per_family_max = match kind {
            Kind::Histogram => HISTOGRAM_SERIES_PER_FAMILY_MAX,
            Kind::Counter | Kind::Gauge | Kind::Utilisation => SERIES_PER_FAMILY_MAX,
        };
        let full = family.series.len() >= per_family_max
            || inner.series >= SERIES_MAX
            || (kind == Kind::Histogram && inner.histograms >= HISTOGRAMS_MAX);
        let values = if full && !family.series.contains_key(&values) {
            vec![OTHER.to_owned(); keys.len()]
        } else {
            values
        };
        let series = family.series.entry(values).or_insert_with(|| {
            let number = inner.series as u32;
            inner.series += 1;
            inner.histograms += usize::from(kind == Kind::Histogram);
            Series { cell: Cell::new(kind), number, last: Last::default() }
        });
        handle(&series.cell).ok_or_else(|| clash(family))
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.0.read()
    }
    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write()
    }
}

fn identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn check_name(kind: Kind, name: &'static str) -> Result<(), StatsError> {
    let reason = if !identifier(name) {
        "write it as [a-z][a-z0-9_]*"
    } else if name.starts_with("ropewalk_") {
        "the prefix ropewalk_ is added when it is shown"
    } else if ["_total", "_bucket", "_sum", "_count"].iter().any(|ending| name.ends_with(ending)) {
        "the endings _total, _bucket, _sum and _count are added when it is shown"
    } else if kind == Kind::Histogram && !name.ends_with("_seconds") {
        "the name of a latency histogram ends in _seconds"
    } else {
        return Ok(());
    };
    Err(StatsError::BadName { name, reason })
}

fn check_keys(name: &'static str, keys: &[&'static str]) -> Result<(), StatsError> {
    for (at, &label) in keys.iter().enumerate() {
        let reason = if !identifier(label) {
            "write it as [a-z][a-z0-9_]*"
        } else if label == "le" || label == "quantile" {
            "this label belongs to the exposition format"
        } else if at > 0 && keys[at - 1] == label {
            "it is given twice"
        } else if at == LABELS_MAX {
            "a statistic has at most 6 labels"
        } else {
            continue;
        };
        return Err(StatsError::BadLabel { name, label, reason });
    }
    Ok(())
}

/// The value, cut at a character boundary to what a label may hold.
fn shortened(value: &str) -> &str {
    &value[..value.floor_char_boundary(LABEL_VALUE_BYTES_MAX)]
}

impl Family {
    pub(super) fn labels(&self, values: &[String]) -> BTreeMap<String, String> {
        self.keys.iter().map(|k| (*k).to_owned()).zip(values.iter().cloned()).collect()
    }

    fn snapshot(&self) -> FamilySnapshot {
        let series = self.series.iter().filter_map(|(values, series)| {
            let value = match &series.cell {
                Cell::Counter(counter) => SeriesValue::Counter(counter.get()),
                Cell::Gauge(gauge) => SeriesValue::Gauge(gauge.get()),
                Cell::Histogram(histogram) => SeriesValue::Histogram(histogram.into()),
                Cell::Utilisation(_) => return None,
            };
            Some(SeriesSnapshot { labels: self.labels(values), value })
        });
        FamilySnapshot { kind: self.kind, help: self.help.to_owned(), series: series.collect() }
    }
}

/// Everything a registry held at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// By name, without the prefix `ropewalk_`.
    pub families: BTreeMap<String, FamilySnapshot>,
    /// Handles that were refused: each a mistake in the program.
    pub refused: Vec<String>,
}

/// One family: one name, one kind, one set of label keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FamilySnapshot {
    /// What it holds.
    pub kind: Kind,
    /// What it means.
    pub help: String,
    /// In the order of their label values.
    pub series: Vec<SeriesSnapshot>,
}

/// One series of a family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeriesSnapshot {
    /// Label keys and values.
    pub labels: BTreeMap<String, String>,
    /// What it held.
    pub value: SeriesValue,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeriesValue {
    /// Of a counter.
    Counter(u64),
    /// Of a gauge.
    Gauge(i64),
    /// Of a histogram.
    Histogram(HistSummary),
}

/// A histogram in figures; all but `count` in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it; p99 is the latency that 99 % did not exceed")]
pub struct HistSummary {
    pub count: u64,
    pub sum: f64,
    pub min: f64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl From<&Histogram> for HistSummary {
    fn from(histogram: &Histogram) -> HistSummary {
        let snapshot = histogram.snapshot();
        let quantile = |q| snapshot.quantile(q).as_secs_f64();
        HistSummary {
            count: snapshot.count(),
            sum: snapshot.sum().as_secs_f64(),
            min: snapshot.min().as_secs_f64(),
            mean: snapshot.mean().as_secs_f64(),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: snapshot.max().as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn handles_of_one_series_share_its_cell() {
        let registry = Registry::new();
        let one = registry.counter("net_sent_bytes", "sent", &[("peer", "n1"), ("rail", "0")]).unwrap();
        let same = registry.counter("net_sent_bytes", "sent", &[("rail", "0"), ("peer", "n1")]).unwrap();
        let other = registry.counter("net_sent_bytes", "sent", &[("rail", "1"), ("peer", "n1")]).unwrap();
        one.add(3);
        same.inc();
        assert_eq!((one.get(), other.get()), (4, 0));
        let snapshot = registry.snapshot();
        let family = &snapshot.families["net_sent_bytes"];
        assert_eq!(family.series.len(), 2);
        assert_eq!(family.series[0].labels["rail"], "0");
        assert_eq!(family.series[0].value, SeriesValue::Counter(4));
    }

    #[test]
    fn bad_names_labels_and_clashes_are_refused() {
        let registry = Registry::new();
        for name in ["", "Net", "9a", "a-b", "_a", "a b", "ropewalk_x", "x_total", "op_seconds_sum", "é"] {
            let error = registry.counter(name, "", &[]).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
        assert!(registry.histogram("op_latency", "", &[]).is_err());
        for keys in [&["le"][..], &["Peer"], &["a", "a"], &["a", "b", "c", "d", "e", "f", "g"]] {
            let labels: Vec<_> = keys.iter().map(|k| (*k, "1")).collect();
            assert!(
                matches!(registry.counter("x", "", &labels), Err(StatsError::BadLabel { .. })),
                "{keys:?}"
            );
        }
        registry.counter("x", "", &[("a", "1")]).unwrap();
        assert!(matches!(registry.gauge("x", "", &[("a", "1")]), Err(StatsError::Clash { .. })));
        assert!(matches!(registry.counter("x", "", &[]), Err(StatsError::Clash { .. })));
        assert_eq!(registry.snapshot().families.len(), 1);
    }

    #[test]
    fn labels_beyond_the_bound_are_counted_as_other() {
        let registry = Registry::new();
        for peer in 0..SERIES_PER_FAMILY_MAX + 10 {
            registry.counter("x", "", &[("peer", &peer.to_string())]).unwrap().inc();
        }
        registry.counter("x", "", &[("peer", "0")]).unwrap().inc();
        let snapshot = registry.snapshot();
        let series = &snapshot.families["x"].series;
        assert_eq!(series.len(), SERIES_PER_FAMILY_MAX + 1);
        let other = series.iter().find(|s| s.labels["peer"] == OTHER).unwrap();
        assert_eq!(other.value, SeriesValue::Counter(10));
        let first = series.iter().find(|s| s.labels["peer"] == "0").unwrap();
        assert_eq!(first.value, SeriesValue::Counter(2));
    }

    #[test]
    fn histograms_and_families_of_a_process_are_bounded() {
        let registry = Registry::new();
        let name = |i: usize| -> &'static str { Box::leak(format!("f{i}_seconds").into_boxed_str()) };
        for family in 0..FAMILIES_MAX {
            for series in ["a", "b", "c"] {
                registry.histogram(name(family), "", &[("s", series)]).unwrap();
            }
        }
        assert!(matches!(registry.counter("late", "", &[]), Err(StatsError::TooManyFamilies { .. })));
        let histograms: usize = registry.snapshot().families.values().map(|f| f.series.len()).sum();
        assert!(histograms <= HISTOGRAMS_MAX + FAMILIES_MAX, "{histograms}");
    }

    #[test]
    fn long_label_values_are_cut_between_characters() {
        let registry = Registry::new();
        registry.gauge("x", "", &[("path", &"ä".repeat(500))]).unwrap().set(-7);
        let snapshot = registry.snapshot();
        let series = &snapshot.families["x"].series[0];
        assert_eq!((series.labels["path"].chars().count(), &series.value), (64, &SeriesValue::Gauge(-7)));
    }

    #[test]
    fn snapshots_travel() {
        let registry = Registry::new();
        registry.gauge("x", "help", &[]).unwrap().set(5);
        registry.histogram("y_seconds", "", &[("op", "read")]).unwrap().record(Duration::from_millis(3));
        registry.refuse(&StatsError::TooManyFamilies { name: "z" });
        let snapshot = registry.snapshot();
        let json = serde_json::to_string(&snapshot).unwrap();
        assert!(json.contains(r#""value":{"gauge":5}"#), "{json}");
        assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
        let bytes = postcard::to_stdvec(&snapshot).unwrap();
        assert_eq!(postcard::from_bytes::<Snapshot>(&bytes).unwrap(), snapshot);
    }
}
