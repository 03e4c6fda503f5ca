//! Every statistic there is, by all of its dimensions at once, and from the whole down to one of what is found so.

use base::stats::{STATISTICS, Statistic};
use serde_json::{Map, Value};

use super::{
    closed,
    common::{Cluster, until},
};

/// What the issue asks for by name, and some statistic that has it.
const ASKED_FOR: &[(&str, &str)] = &[
    ("client", "file.ops"),
    ("mount", "strip.ops"),
    ("user", "file.bytes"),
    ("file", "strip.bytes"),
    ("directory", "file.ops"),
    ("fs", "strip.ops"),
    ("pool", "pdisk.bytes"),
    ("pdisk", "queue.requests"),
    ("queue", "queue.requests"),
    ("node", "strip.ops"),
    ("op", "manager.ops"),
    ("size", "strip.ops"),
    ("offset", "file.ops"),
    ("latency", "net.round_trips"),
    ("connection", "net.round_trips"),
    ("rail", "net.connection_sent_bytes"),
    ("peer", "net.sent_bytes"),
];

/// A filter for what is shown.
fn filter((dimension, value): (&String, &Value)) -> String {
    let value = value.as_str().unwrap().replace('\\', "\\\\").replace('"', "\\\"");
    format!("[{dimension}=\"{value}\"]")
}

/// Whether something is known of each dimension.
fn is_told_apart(key: &Map<String, Value>) -> bool {
    key.values().all(|value| !matches!(value.as_str(), Some("(others)" | "(unknown)") | None))
}

/// Each by all of its dimensions, then within what was found by one after the other: the sums agree on every level.
pub fn by_any_to_any_depth(cluster: &Cluster) {
    for (dimension, name) in ASKED_FOR {
        let statistic = STATISTICS.iter().find(|statistic| statistic.name == *name).unwrap();
        assert!(statistic.all_dimensions().any(|own| own == *dimension), "{name} has no {dimension}");
    }
    // One time for all, whose seconds all are closed: what goes on meanwhile is not in it.
    let first = cluster.json(&["analytics", "query", "file.ops", "--from", "-59m"]);
    let at = |of: &str| base::when::date_time(first[of].as_u64().unwrap() / 1_000_000).replace(' ', "T");
    let (from, to) = (at("from_at_us"), at("to_at_us"));
    closed(cluster);
    let ask = |text: &str| {
        let span = ["--from", &from, "--to", &to, "--rows", "200"];
        cluster.json(&[&["analytics", "query", text][..], &span].concat())
    };
    let mut met = 0;
    for statistic in STATISTICS {
        let name = statistic.name;
        // Each question finds out anew, to a second, how far a clock is ahead: an answer that took long is of other seconds.
        until(&format!("the sums of {name} agree on every level"), || {
            match agree(statistic, &ask) {
                Ok(found) => met += usize::from(found),
                Err(wrong) => {
                    println!("{wrong}");
                    return false;
                }
            }
            true
        });
    }
    assert!(met > STATISTICS.len() / 2, "only {met} statistics have counted anything");
}

/// The sums of a statistic by all of its dimensions, and within what was found by one after the other. False: it has counted nothing.
fn agree(statistic: &Statistic, ask: &impl Fn(&str) -> Value) -> Result<bool, String> {
    let name = statistic.name;
    let dimensions: Vec<&str> = statistic.all_dimensions().collect();
    let all: String = dimensions.iter().map(|dimension| format!("[{dimension}]")).collect();
    let found = ask(&format!("{name}{all}"));
    let mut rows = found["rows"].as_array().unwrap().iter();
    let Some(row) = rows.find(|row| is_told_apart(row["key"].as_object().unwrap())) else {
        println!("{name}: nothing was counted");
        return Ok(false);
    };
    let key = row["key"].as_object().unwrap();
    assert_eq!(key.len(), dimensions.len(), "{name}: {key:?}");
    let (mut text, mut before) = (name.to_owned(), f64::INFINITY);
    for one in key {
        text += &filter(one);
        let total = ask(&text)["total"].as_f64().unwrap();
        if total > before * 1.000_001 {
            return Err(format!("{text}: {total} of {before}"));
        }
        before = total;
    }
    let whole = row["total"].as_f64().unwrap();
    match (before - whole).abs() <= whole.abs() * 1e-6 {
        true => Ok(true),
        false => Err(format!("{text}: {before}, and by {all} {whole}")),
    }
}
