//! `--json` of every command, of a cluster and of the lab: it parses, and the names of durations, times and bytes follow the rule of
//! docs/json.md.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

#[path = "common/beds.rs"]
mod beds;
mod common;

use std::{fs, process::Command};

use beds::{Bed, serve};
use common::{Cluster, ROPEWALK, heard, ok, ropewalk};
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
    // Latencies, as gpfsperf and nsdperf print them; what the lab keeps in files, by the names it has there.
    let kept = ["seconds", "wall_seconds", "started_ms", "size", "rate"];
    let of = |commands: &[&str]| commands.iter().any(|command| at.starts_with(command));
    if key.ends_with("_ms") && of(&["perf", "netperf"])
        || kept.contains(&key) && of(&["lab list", "lab report", "lab testbed"])
    {
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

/// Runs commands for scripts, and gathers the names that break the rule.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn look(&mut self, words: &[&str]) {
        self.look_at(&[words, &["--json"]].concat());
    }

    /// For a command that says otherwise that it is for scripts.
    fn look_at(&mut self, words: &[&str]) {
        let output = heard(|| ropewalk(words));
        // `health` and `pool verify` may say by their status that something is on its way.
        let text = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
        let values = values.unwrap_or_else(|e| panic!("{words:?}: {e}: {text}{said}"));
        assert!(!values.is_empty(), "{words:?}: nothing is said: {said}");
        values.iter().for_each(|value| walk(&words[..words.len().min(2)].join(" "), value, &mut self.0));
    }

    fn all_say_their_unit(&self) {
        assert!(self.0.is_empty(), "{:#?}", self.0);
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
        "top",
        "analytics history",
        "tokens",
        "locks",
        "clients list",
        "config show",
        "fs list",
        "fs df",
        "cluster version",
        "cluster authority show",
        "node list",
        "node show n1",
        "pdisk list",
        "pdisk events",
        "pool list",
        "pool status",
        "pool lost",
        "pool verify",
        "rebuild status",
        "net status",
    ];
    let mut names = Names::default();
    let mut look = |words: &[&str]| names.look(words);
    for command in of_cluster {
        let words: Vec<&str> = command.split(' ').chain(["--dir", dir]).collect();
        look(&words);
    }
    let file = format!("{mnt}/perf");
    look(&["perf", "create", "seq", &file, "-r", "1m", "-n", "2m"]);
    look(&["net", "sizing", "--nodes", "3"]);
    look(&["advise"]);
    look(&["analytics", "statistics"]);
    look(&["analytics", "query", "file.ops[file][latency]", "--step", "1s", "--dir", dir]);
    ok(&["umount", mnt]);
    cluster.down();
    look(&["manager", "check", "--dir", dir]);
    look(&["pdisk", "verify", &format!("{dir}/nodes/n1/pdisk1")]);
    look(&["pdisk", "dump", &format!("{dir}/nodes/n1/pdisk1")]);
    names.all_say_their_unit();
}

/// Short of everything: what is measured does not matter here.
const PLAN: &str = "\
name = 'short'
title = 'a small plan'
step = 'devices'
steps = [1]
seconds = 0.5
repeats = 2
[[series]]
name = 'r'
engine = 'fio'
figure = 'operations'
set = { rw = 'randread', bs = '4k', ioengine = 'psync', direct = false }
";

#[test]
fn the_labs_names_say_their_unit() {
    let place = tempfile::Builder::new().prefix("ropewalk-json-").tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let here = place.path().to_str().unwrap();
    let mut names = Names::default();
    names.look(&["lab", "list"]);
    names.look(&["lab", "workload", "list"]);
    names.look(&["lab", "array", "--nodes", "4", "--pdisks", "2", "--code", "4+2p"]);
    names.look(&["lab", "ceilings", "--dir", here, "--size", "16m"]);
    names.look(&["lab", "net-figures", "sizing"]);
    let (plan, device, out) = (path("plan.toml"), path("device"), path("out"));
    fs::write(&plan, PLAN).unwrap();
    fs::write(&device, vec![9; 4 << 20]).unwrap();
    ok(&["lab", "run", &plan, "--device", &device, "--out", &out]);
    names.look_at(&["lab", "report", &out, "--format", "json"]);
    names.look(&["lab", "compare", &out, &out]);
    let short = ["--no-fio", "--size", "256m", "--seconds", "1", "--rounds", "1"];
    names.look(&[&["pdisk", "bench", here, "--strips", "1000"], &short[..]].concat());
    names.look(&[&["pdisk", "bench", here, "--load", "read"], &short[..]].concat());
    names.all_say_their_unit();
}

#[test]
fn the_networks_names_say_their_unit() {
    let mut names = Names::default();
    let bed = Bed::up("json", &[]);
    names.look(&["lab", "testbed", "status"]);
    drop(bed);
    let mut command = Command::new(ROPEWALK);
    command.args(["netperf", "server", "--listen", "127.0.0.1:0"]);
    let (mut server, addr) = serve(command);
    for test in [
        &["test", "write"][..],
        &["stream", "--connections", "1", "--sizes", "4k"],
        &["rr", "--connections", "1", "--sizes", "1"],
    ] {
        names.look(&[&["netperf"], test, &["--server", &addr, "--ttime", "0.5"]].concat());
    }
    ok(&["netperf", "quit", "--server", &addr]);
    assert!(server.0.wait().unwrap().success());
    names.all_say_their_unit();
}
