//! `ropewalk lab testbed`, `ropewalk netperf` and `ropewalk lab net-figures` as people call them. Needs root.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "common/beds.rs"]
mod beds;
mod common;

use beds::{Bed, serve};
use common::{ROPEWALK, heard, refused};
use serde_json::Value;

#[test]
fn netperf_between_two_hosts_of_a_testbed() {
    let bed = Bed::up("np", &["--rate", "200m"]);
    let addr = bed.addr(1);
    let (mut server, addr) =
        serve(bed.exec("h2", &[ROPEWALK, "netperf", "server", "--listen", &format!("{addr}:0")]));
    let run = |args: &[&str]| {
        let command = [&[ROPEWALK, "netperf"][..], args, &["--server", &addr, "--ttime", "0.6"]].concat();
        let output = bed.exec("h1", &command).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(&["test", "write", "rw", "--buffsize", "64k", "--parallel", "2", "--hist", "--verify"]);
    for part in [
        "1-1 write ",
        "1-1 rw ",
        "parallel 2, verify",
        "network delay times",
        "nevents",
        "CPU seconds per GB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let reports: Value =
        serde_json::from_str(&run(&["rr", "--connections", "1,3", "--sizes", "1,4k", "--json"])).unwrap();
    let cells: Vec<(u64, u64)> = reports
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["buffsize"].as_u64().unwrap(), r["connections"].as_u64().unwrap()))
        .collect();
    assert_eq!(cells, [(1, 1), (1, 3), (4096, 1), (4096, 3)]);
    assert!(reports.as_array().unwrap().iter().all(|r| r["messages"].as_u64().unwrap() > 0));
    let ended = bed.exec("h1", &[ROPEWALK, "netperf", "quit", "--server", &addr]).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(server.0.wait().unwrap().success(), "it ended because it was told to");
}

/// A cluster on one host, and on another a client that has a copy of `cluster.toml` and nothing else.
#[test]
fn a_client_on_another_host() {
    let bed = Bed::up("cl", &[]);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (cluster, client, mnt) = (path("cluster"), path("client"), path("mnt"));
    let on = |host: &str, command: &[&str]| {
        let output = heard(|| bed.exec(host, command).output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let shape = ["--nodes", "1", "--pdisks", "3", "--code", "2+1p", "--pdisk-size", "64m", "--detach"];
    let up = [ROPEWALK, "up", "--dir", &cluster, "--listen", &bed.addr(0)];
    on("h1", &[&up[..], &shape].concat());
    std::fs::create_dir(&client).unwrap();
    std::fs::create_dir(&mnt).unwrap();
    std::fs::copy(path("cluster/cluster.toml"), path("client/cluster.toml")).unwrap();
    // One command: each `exec` sees mounts of its own only. Who does not answer in time is asked once more.
    let work = "$0 mount --dir $1 fs1 $2 && head -c 4096 $0 > $2/file || exit
        for time in 1 2 3 4 5 6 7 8 9 10; do said=$($0 pagepool --dir $1) && case $said in *$2*) break; esac; done
        echo \"$said\" && $0 umount $2";
    let said = on("h2", &["sh", "-c", work, ROPEWALK, &client, &mnt]);
    assert!(said.contains(&mnt), "the servers' side reaches the mount: {said}");
    assert!(!std::path::Path::new(&mnt).join("file").exists(), "it was on the mount");
    let read = ["perf", "read", "seq", "/file", "-r", "4k", "-n", "1R", "--direct-client", "--dir", &client];
    on("h2", &[&[ROPEWALK][..], &read].concat());
    on("h1", &[ROPEWALK, "down", "--dir", &cluster]);
}

#[test]
fn wrong_words_are_refused_with_the_remedy() {
    let none = refused(&["netperf", "test", "write", "--server", "127.0.0.1:1", "--ttime", "1"]);
    assert!(none.contains("127.0.0.1:1 does not answer") && none.contains("netperf server"), "{none}");
    assert!(refused(&["netperf", "test", "wrote", "--server", "127.0.0.1"]).contains("nwrite"));
    assert!(refused(&["netperf", "test", "--server", "no such host"]).contains("no address"));
    assert!(refused(&["lab", "testbed", "down", "nosuchbed"]).contains("there is no testbed nosuchbed"));
    assert!(refused(&["lab", "testbed", "up", "--links", "99"]).contains("links 99: allowed are 1 to 8"));
    assert!(refused(&["lab", "testbed", "up", "--rate", "quick"]).contains("bad rate"));
    assert!(refused(&["lab", "net-figures", "links3"]).contains("links2, links4, drawn"));
}

/// The figures' commands in short: what counters show; rates are for the long form. Links and seeds are drawn, so a fault that always
/// shows would show each time; a link that a busy machine lets wait for most of a run has less than its share once.
#[test]
fn figures_in_short() {
    let mut figures = Value::Null;
    let shows = (0..3).any(|_| {
        figures = figures_of(&["drawn", "policy0", "sizing", "--runs", "2", "--seconds", "3"]);
        is_shown(&figures)
    });
    assert!(shows, "{figures:#}");
    let of = |group: &str| -> Vec<Value> {
        figures.as_array().unwrap().iter().filter(|f| f["group"] == group).cloned().collect()
    };
    assert_eq!((of("drawn")[0]["runs"].as_array().unwrap().len(), of("policy0").len()), (2, 4));
    assert!(of("sizing").iter().all(|f| f["reached"] != false));
}

/// Every link that can be used is used, nothing fails, and where connections cannot be placed it is said why.
fn is_shown(figures: &Value) -> bool {
    figures.as_array().unwrap().iter().all(|figure| {
        let told =
            figure["group"] != "policy0" || figure["case"].as_str().unwrap().ends_with(" 1 connections");
        figure["runs"].as_array().unwrap().iter().all(|run| {
            (run["drawn"] == "" || run["links_used"] == usable(run))
                && run["seen"].as_f64().unwrap() > 0.0
                && run["errors"] == 0
                && (told || !run["says"].as_str().unwrap().is_empty())
        })
    })
}

/// What the command measured. One that a busy machine keeps waiting for its helpers measures nothing, and is given again.
fn figures_of(words: &[&str]) -> Value {
    let mut said = String::new();
    for _ in 0..3 {
        let output = common::ropewalk(&[&["lab", "net-figures", "--json"][..], words].concat());
        match serde_json::from_slice(&output.stdout) {
            Ok(figures) => return figures,
            Err(error) => said = format!("{error}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    panic!("{said}")
}

#[test]
fn a_run_is_repeated_by_its_seed() {
    let drawn = |seed: &[&str]| {
        // Whether so short a run reaches its figure is not asked.
        let figures = figures_of(&[&["drawn", "--runs", "2", "--seconds", "0.2"][..], seed].concat());
        let runs = figures[0]["runs"].as_array().unwrap().iter();
        runs.map(|run| run["drawn"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = drawn(&[]);
    let seed = first[0].rsplit_once("seed ").unwrap().1;
    assert_eq!(drawn(&["--seed", seed]), first);
    assert_ne!(first[0], first[1]);
}

/// How many links a run can use, by the name of what was drawn.
fn usable(run: &Value) -> u64 {
    let drawn = run["drawn"].as_str().unwrap();
    if drawn.contains("policy 0") { 1 } else { drawn[..1].parse().unwrap() }
}
