//! The last two minutes of every series, one point a tick. Owns a ring of totals for each series; rates
//! and means are computed when it is read.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::registry::{Cell, HISTORY_SECONDS, Kind};

/// One interval of one series: a counter's or histogram's events a second, a gauge's value.
#[derive(Clone, Copy)]
struct Point {
    value: f64,
    mean_seconds: f64,
}

/// The history of one series.
#[derive(Default)]
pub(super) struct Ring {
    points: VecDeque<Point>,
    /// (events, sum) at the last tick; none before the first.
    last: Option<(u64, u64)>,
}

impl Ring {
    /// Adds the interval that ends now. The first tick of a counter only sets where it starts.
    pub(super) fn tick(&mut self, cell: &Cell, elapsed: Duration) {
        let (events, sum) = match cell {
            Cell::Gauge(gauge) => return self.push(Point { value: gauge.get() as f64, mean_seconds: 0.0 }),
            Cell::Counter(counter) => (counter.get(), 0),
            Cell::Histogram(histogram) => histogram.totals(),
        };
        let Some((events_before, sum_before)) = self.last.replace((events, sum)) else { return };
        let n = events.wrapping_sub(events_before) as f64;
        let ns = sum.wrapping_sub(sum_before) as f64;
        self.push(Point {
            value: n / elapsed.as_secs_f64().max(1e-9),
            mean_seconds: if n > 0.0 { ns / n / 1e9 } else { 0.0 },
        });
    }

    fn push(&mut self, point: Point) {
        if self.points.len() == HISTORY_SECONDS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// (values, mean seconds of histograms), oldest first.
    pub(super) fn points(&self, kind: Kind) -> (Vec<f64>, Vec<f64>) {
        let values = self.points.iter().map(|p| p.value).collect();
        let means = match kind {
            Kind::Histogram => self.points.iter().map(|p| p.mean_seconds).collect(),
            Kind::Counter | Kind::Gauge => Vec::new(),
        };
        (values, means)
    }
}

/// The last intervals of some series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The end of each interval, counted back from the newest, oldest first.
    pub seconds_ago: Vec<f64>,
    /// One entry a series.
    pub series: Vec<SeriesHistory>,
}

/// The last intervals of one series. It may have fewer points than there are intervals: they are the newest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeriesHistory {
    /// The family.
    pub name: String,
    /// Label keys and values.
    pub labels: BTreeMap<String, String>,
    /// What it holds.
    pub kind: Kind,
    /// Counters and histograms: events a second. Gauges: the value at the end of the interval.
    pub values: Vec<f64>,
    /// Histograms: the mean latency of the interval's events, 0 without events. Others: empty.
    pub mean_seconds: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::HISTORY_SECONDS;
    use crate::stats::Registry;

    #[test]
    fn rates_levels_and_means_by_interval() {
        let registry = Registry::new();
        let counter = registry.counter("sent", "", &[]).unwrap();
        let gauge = registry.gauge("queue", "", &[]).unwrap();
        let histogram = registry.histogram("op_seconds", "", &[]).unwrap();
        registry.tick(Duration::from_secs(100));
        counter.add(30);
        gauge.set(4);
        histogram.record(Duration::from_millis(2));
        histogram.record(Duration::from_millis(4));
        registry.tick(Duration::from_secs(102));
        registry.tick(Duration::from_secs(102));
        registry.tick(Duration::from_secs(101));
        registry.tick(Duration::from_secs(103));

        let history = registry.history("");
        assert_eq!(history.seconds_ago, [3.0, 1.0, 0.0]);
        let of = |name: &str| history.series.iter().find(|s| s.name == name).unwrap();
        assert_eq!(of("sent").values, [15.0, 0.0]);
        assert_eq!(of("queue").values, [0.0, 4.0, 4.0]);
        assert_eq!(of("op_seconds").values, [1.0, 0.0]);
        assert_eq!(of("op_seconds").mean_seconds, [0.003, 0.0]);
        assert_eq!(registry.history("se").series.len(), 1);
    }

    #[test]
    fn old_intervals_go() {
        let registry = Registry::new();
        let counter = registry.counter("x", "", &[]).unwrap();
        for second in 1..500u64 {
            counter.add(second);
            registry.tick(Duration::from_secs(second));
        }
        let history = registry.history("x");
        assert_eq!(
            (history.seconds_ago.len(), history.series[0].values.len()),
            (HISTORY_SECONDS, HISTORY_SECONDS)
        );
        assert_eq!(history.series[0].values[HISTORY_SECONDS - 1], 499.0);
    }
}
