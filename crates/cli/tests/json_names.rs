//! `--json` of every command that a cluster answers: it parses, and the names of durations, times and bytes follow the rule of
//! docs/json.md.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::fs;

use common::{Cluster, ok, ropewalk};
use serde_json::Value;

/// Names that say nothing of their unit, or not in the way of the others.
fn broken(at: &str, key: &str, value: &Value) -> bool {
    const ENDS: [&str; 6] = ["_ms", "_ns", "_secs", "_millis", "_nanos", "_at"];
    const BARE: [&str; 12] = [
        "secs", "nanos", "age", "elapsed", "duration", "size", "capacity", "used", "free", "resident",
        "dirty", "rate",
    ];
    // A rate may have its unit in the middle: `bytes_per_second`.
    let seconds = key.ends_with("seconds");
    let bytes =
        key.split('_').any(|word| word == "bytes") && !key.ends_with("bytes") && !key.contains("_per_");
    // Latencies of `perf`, as gpfsperf prints them; the keys of a plan.
    if key.ends_with("_ms") && at.starts_with("perf") || key == "seconds" && at.starts_with("lab list") {
        return false;
    }
    value.is_number()
        && (BARE.contains(&key) || ENDS.iter().any(|end| key.ends_with(end)) || seconds || bytes)
}

/// All names that break the rule. Statistics have the names that metrics have.
fn walk(at: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter().filter(|(key, _)| *key != "statistics") {
                if broken(at, key, value) {
                    found.push(format!("{at}.{key}"));
                }
                walk(&format!("{at}.{key}"), value, found);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| walk(&format!("{at}[]"), value, found)),
        _ => {}
    }
}

#[test]
fn names_say_their_unit() {
    let cluster = Cluster::up(&["--nodes", "3", "--code", "2+1p", "--pdisk-size", "128m"]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let (dir, mnt) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    fs::write(cluster.mnt().join("file"), vec![1; 3 << 20]).unwrap();
    ok(&["config", "set", "--dir", dir, "pagepool=256m"]);
    let of_cluster = [
        "status",
        "health",
        "events",
        "waiters",
        "pagepool",
        "tokens",
        "locks",
        "clients list",
        "config show",
        "fs list",
        "fs df",
        "pdisk list",
        "pdisk events",
        "pool list",
        "pool status",
        "pool lost",
        "pool verify",
        "rebuild status",
        "net status",
    ];
    let mut found = Vec::new();
    let mut look = |words: &[&str]| {
        let output = ropewalk(&[words, &["--json"]].concat());
        // `health` and `pool verify` may say by their status that something is on its way.
        let text = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{words:?}: {e}: {text}{said}"));
        walk(&words[..words.len().min(2)].join(" "), &value, &mut found);
    };
    for command in of_cluster {
        let words: Vec<&str> = command.split(' ').chain(["--dir", dir]).collect();
        look(&words);
    }
    let file = format!("{mnt}/perf");
    look(&["perf", "create", "seq", &file, "-r", "1m", "-n", "2m"]);
    look(&["net", "sizing", "--nodes", "3"]);
    look(&["advise"]);
    look(&["lab", "list"]);
    look(&["lab", "array", "--nodes", "4", "--pdisks", "2", "--code", "4+2p"]);
    look(&["lab", "ceilings", "--dir", cluster.dir().to_str().unwrap(), "--size", "16m"]);
    ok(&["umount", mnt]);
    cluster.down();
    look(&["manager", "check", "--dir", dir]);
    look(&["pdisk", "verify", &format!("{dir}/nodes/n1/pdisk1")]);
    assert!(found.is_empty(), "{found:#?}");
}
