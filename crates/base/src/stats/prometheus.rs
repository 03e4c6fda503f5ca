//! The Prometheus text exposition format 0.0.4, and OpenMetrics 1.0.0 for who asks for it.
//! Units are base units, as is the convention: what the registry counts in microseconds is shown in seconds, what it holds in
//! millionths as a ratio. Histograms have fixed `le` bounds, one each power of two nanoseconds from 1 µs to 137 s; they are ends
//! of our own buckets, so the counts are exact.

use std::fmt::Write;

use super::registry::{Cell, Family, Inner, Kind};

/// Bounds are 2^k - 1 nanoseconds for these k: `le` includes its bound.
const BOUND_BITS: std::ops::RangeInclusive<u32> = 10..=37;

/// A form of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `text/plain; version=0.0.4`
    Prometheus,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
}

pub(super) fn text(inner: &Inner, form: Form) -> String {
    let mut out = String::new();
    // Utilisation is the rate of a counter that is there: whoever asks Prometheus has it.
    for (name, family) in inner.families.iter().filter(|(_, family)| family.kind != Kind::Utilisation) {
        // Writing to a String cannot fail.
        let _ = write_family(&mut out, name, family, form);
    }
    if form == Form::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

/// The name of a family in base units, and by how much its figures are divided.
fn in_base_units(family: &str) -> (String, u32) {
    let millionths = [("_microseconds", "_seconds"), ("_millionths", "_ratio")];
    let found = millionths.iter().find_map(|(ours, base)| Some((family.strip_suffix(ours)?, base)));
    match found {
        Some((stem, base)) => (format!("ropewalk_{stem}{base}"), 1_000_000),
        None => (format!("ropewalk_{family}"), 1),
    }
}

/// The name of a family's samples.
pub(super) fn sample_name(family: &str, kind: Kind) -> String {
    in_base_units(family).0 + if kind == Kind::Counter { "_total" } else { "" }
}

fn write_family(out: &mut String, name: &str, family: &Family, form: Form) -> std::fmt::Result {
    let kind = match family.kind {
        Kind::Counter => "counter",
        Kind::Gauge | Kind::Utilisation => "gauge",
        Kind::Histogram => "histogram",
    };
    let (stem, divisor) = in_base_units(name);
    let name = sample_name(name, family.kind);
    let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
    let (of, help) = match form {
        Form::Prometheus => (&name, help),
        Form::OpenMetrics => (&stem, help.replace('"', "\\\"")),
    };
    writeln!(out, "# HELP {of} {help}")?;
    writeln!(out, "# TYPE {of} {kind}")?;
    for (values, series) in &family.series {
        let labels: Vec<String> = family
            .keys
            .iter()
            .zip(values)
            .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
            .collect();
        let labels = labels.join(",");
        match &series.cell {
            Cell::Counter(counter) => {
                let figure = divided(counter.get().into(), divisor);
                writeln!(out, "{name}{} {figure}", braced(&labels))?;
            }
            Cell::Gauge(gauge) => {
                writeln!(out, "{name}{} {}", braced(&labels), divided(gauge.get().into(), divisor))?;
            }
            Cell::Utilisation(_) => {}
            Cell::Histogram(histogram) => {
                let snapshot = histogram.snapshot();
                let comma = if labels.is_empty() { "" } else { "," };
                for bits in BOUND_BITS {
                    let bound = seconds((1 << bits) - 1);
                    let n = snapshot.count_below_power(bits);
                    writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {n}")?;
                }
                writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}", snapshot.count())?;
                writeln!(out, "{name}_sum{} {}", braced(&labels), seconds(snapshot.sum().as_nanos()))?;
                writeln!(out, "{name}_count{} {}", braced(&labels), snapshot.count())?;
            }
        }
    }
    Ok(())
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A figure, or millionths of it as decimals: exact.
fn divided(figure: i128, divisor: u32) -> String {
    if divisor == 1 {
        return figure.to_string();
    }
    let (sign, whole) = (if figure < 0 { "-" } else { "" }, figure.unsigned_abs());
    let divisor = u128::from(divisor);
    format!("{sign}{}.{:06}", whole / divisor, whole % divisor)
}

/// Nanoseconds as seconds with nine decimals: exact, where a float is not.
fn seconds(ns: u128) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use proptest::prelude::*;

    use super::Form;
    use crate::stats::Registry;

    /// (name, labels) -> value.
    type Samples = BTreeMap<(String, Vec<(String, String)>), f64>;

    /// A strict reader of the format; `None` where the text breaks its grammar.
    fn parse(text: &str) -> Option<Samples> {
        let mut samples = BTreeMap::new();
        let mut family = String::new();
        for line in text.strip_suffix('\n')?.split('\n') {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ')?;
                assert!(["counter", "gauge", "histogram"].contains(&kind));
                family = name.to_owned();
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let name_end = line.find(['{', ' '])?;
            let (name, mut rest) = line.split_at(name_end);
            assert!(name.starts_with(&family), "{name} outside its family {family}");
            let mut labels = Vec::new();
            if let Some(inside) = rest.strip_prefix('{') {
                rest = inside;
                loop {
                    let (key, after) = rest.split_once("=\"")?;
                    assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{key:?}");
                    let (mut value, mut chars) = (String::new(), after.char_indices());
                    let end = loop {
                        match chars.next()? {
                            (at, '"') => break at,
                            (_, '\\') => value.push(match chars.next()?.1 {
                                'n' => '\n',
                                c @ ('"' | '\\') => c,
                                _ => return None,
                            }),
                            (_, c) => value.push(c),
                        }
                    };
                    labels.push((key.to_owned(), value));
                    rest = &after[end + 1..];
                    match rest.strip_prefix(',') {
                        Some(more) => rest = more,
                        None => break rest = rest.strip_prefix('}')?,
                    }
                }
            }
            let value = rest.strip_prefix(' ')?.parse().ok()?;
            assert!(samples.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
        }
        Some(samples)
    }

    #[test]
    fn text_as_documented() {
        let registry = Registry::new();
        registry
            .counter("net_sent_bytes", "Bytes sent.\nAll rails \\ peers.", &[("peer", "n\"1\"")])
            .unwrap()
            .add(7);
        registry.gauge("queue_depth", "In flight.", &[]).unwrap().set(-2);
        registry.histogram("op_seconds", "Latency.", &[]).unwrap().record(Duration::from_nanos(1023));
        let text = registry.prometheus_text(Form::Prometheus);
        let expected = "# HELP ropewalk_net_sent_bytes_total Bytes sent.\\nAll rails \\\\ peers.\n\
                        # TYPE ropewalk_net_sent_bytes_total counter\n\
                        ropewalk_net_sent_bytes_total{peer=\"n\\\"1\\\"\"} 7\n\
                        # HELP ropewalk_op_seconds Latency.\n\
                        # TYPE ropewalk_op_seconds histogram\n\
                        ropewalk_op_seconds_bucket{le=\"0.000001023\"} 1\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("ropewalk_op_seconds_bucket{le=\"137.438953471\"} 1\n"), "{text}");
        let end = "ropewalk_op_seconds_bucket{le=\"+Inf\"} 1\n\
                   ropewalk_op_seconds_sum 0.000001023\n\
                   ropewalk_op_seconds_count 1\n";
        assert!(text.contains(end), "{text}");
        assert!(text.ends_with("# TYPE ropewalk_queue_depth gauge\nropewalk_queue_depth -2\n"), "{text}");
        assert!(parse(&text).is_some());
    }

    #[test]
    fn base_units_and_openmetrics() {
        let registry = Registry::new();
        registry.counter("cpu_microseconds", "CPU \"time\".", &[]).unwrap().add(1_500_001);
        registry.gauge("cost_millionths", "Cost.", &[]).unwrap().set(-20);
        let expected = "# HELP ropewalk_cost_ratio Cost.\n# TYPE ropewalk_cost_ratio gauge\nropewalk_cost_ratio -0.000020\n\
                        # HELP ropewalk_cpu_seconds CPU \\\"time\\\".\n# TYPE ropewalk_cpu_seconds counter\n\
                        ropewalk_cpu_seconds_total 1.500001\n# EOF\n";
        assert_eq!(registry.prometheus_text(Form::OpenMetrics), expected);
    }

    proptest! {
        #[test]
        fn any_label_and_latency_is_well_formed(
            labels in prop::collection::vec("(?s).{0,20}", 1..5),
            help in prop::sample::select(vec!["plain", "two\nlines", "back\\slash \"quoted\""]),
            ns in prop::collection::vec(0u64..1 << 39, 0..20),
        ) {
            let registry = Registry::new();
            for value in &labels {
                registry.counter("events", help, &[("who", value)]).unwrap().inc();
                let histogram = registry.histogram("op_seconds", help, &[("who", value)]).unwrap();
                ns.iter().for_each(|&ns| histogram.record(Duration::from_nanos(ns)));
            }
            let samples = parse(&registry.prometheus_text(Form::Prometheus)).expect("well formed");
            let events = samples.iter().filter(|((n, _), _)| n == "ropewalk_events_total");
            let counted: f64 = events.map(|(_, v)| v).sum();
            prop_assert_eq!(counted, labels.len() as f64);
            for value in &labels {
                let who = ("who".to_owned(), value.clone());
                let mut buckets: Vec<(f64, f64)> = samples.iter()
                    .filter(|((n, l), _)| n == "ropewalk_op_seconds_bucket" && l[0] == who)
                    .map(|((_, l), v)| (l[1].1.replace("+Inf", "inf").parse().unwrap(), *v))
                    .collect();
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                prop_assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
                let count = samples[&("ropewalk_op_seconds_count".to_owned(), vec![who])];
                prop_assert_eq!(buckets.last().unwrap().1, count);
                let times = labels.iter().filter(|l| *l == value).count() * ns.len();
                prop_assert_eq!(count, times as f64);
            }
        }
    }
}
