//! Stories of arrays: pdisks and nodes that go, data that moves, with load on the mount all the time, every
//! byte compared and every stripe proved. Short here; `ROPEWALK_SOAK=1` goes through all of it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/load.rs"]
mod load;

mod common;

use std::time::{Duration, Instant};

use common::{Cluster, Random, ok, refused, seed};
use load::{Load, same};

const PATIENCE: Duration = Duration::from_secs(120);

fn soak() -> bool {
    std::env::var_os("ROPEWALK_SOAK").is_some()
}

fn small(options: &[&str]) -> Cluster {
    let mut all = vec!["--pdisk-size", "192m", "--block-size", "256k"];
    all.extend(options);
    let cluster = Cluster::up(&all);
    set(&cluster, &["missingRebuildDelay=1s", "rebuild_aggressiveness=100"]);
    cluster
}

fn set(cluster: &Cluster, pairs: &[&str]) {
    let dir = cluster.dir();
    let mut args = vec!["config", "set", "--dir", dir.to_str().unwrap()];
    args.extend(pairs);
    ok(&args);
}

fn command(cluster: &Cluster, words: &[&str]) {
    let dir = cluster.dir();
    let mut args: Vec<&str> = words[..2].to_vec();
    args.extend(["--dir", dir.to_str().unwrap()]);
    args.extend(&words[2..]);
    println!("{}", ok(&args).trim());
}

fn state(cluster: &Cluster, pdisk: &str) -> String {
    let list = cluster.json(&["pdisk", "list"]);
    let found = list.as_array().unwrap().iter().find(|p| p["name"] == *pdisk);
    found.map_or("gone".to_owned(), |p| p["state"].as_str().unwrap().to_owned())
}

/// Waits until nothing is to move and no group lacks a strip.
fn whole(cluster: &Cluster) {
    let end = Instant::now() + PATIENCE;
    loop {
        let pools = cluster.json(&["pool", "status"]);
        let good = |p: &serde_json::Value| p["moving"] == 0 && p["by_missing"][0] == p["groups"];
        if pools.as_array().unwrap().iter().all(good) {
            return;
        }
        assert!(
            Instant::now() < end,
            "not whole after {PATIENCE:?}: {pools:#}\n{:#}\n{}",
            cluster.json(&["rebuild", "status"]),
            cluster.logs()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Every stripe is proved; how many there are.
fn proved(cluster: &Cluster) -> u64 {
    let verified = cluster.json(&["pool", "verify"]);
    assert_eq!(verified["away"], 0, "{verified:#}");
    verified["stripes"].as_u64().unwrap()
}

#[test]
fn drained_added_replaced_removed_under_load() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let load = Load::start(&cluster.mnt(), 2, seed(), false);
    load.goes_on();

    command(&cluster, &["pdisk", "drain", "n1p1"]);
    whole(&cluster);
    assert_eq!(state(&cluster, "n1p1"), "replace");
    load.goes_on();
    command(&cluster, &["pdisk", "add", "n2"]);
    whole(&cluster);
    assert_eq!(state(&cluster, "n2p3"), "ok");
    command(&cluster, &["pdisk", "replace", "n3p2"]);
    whole(&cluster);
    command(&cluster, &["pdisk", "remove", "n3p2"]);
    assert_eq!(state(&cluster, "n3p2"), "gone");
    command(&cluster, &["pdisk", "keep", "n1p1"]);
    whole(&cluster);
    assert_eq!(state(&cluster, "n1p1"), "ok");
    load.goes_on();

    let dir = cluster.dir();
    let said = refused(&["pdisk", "remove", "--dir", dir.to_str().unwrap(), "n1p1"]);
    assert!(said.contains("still holds"), "{said}");
    let said = refused(&["pdisk", "drain", "--dir", dir.to_str().unwrap(), "n9p9"]);
    assert!(said.contains("there is no pdisk n9p9"), "{said}");
    let events = cluster.json(&["events"]);
    let texts: Vec<&str> = events.as_array().unwrap().iter().map(|e| e["text"].as_str().unwrap()).collect();
    assert!(texts.iter().any(|t| t.contains("is drained")), "{texts:?}");

    let models = load.end();
    same(&models);
    assert!(proved(&cluster) > 0);
    cluster.down();
    cluster.start();
    same(&models);
}

/// Pairs of pdisks, and whole nodes, one after the other, with rebuild in between.
#[test]
fn pairs_of_pdisks_and_nodes_are_lost_and_rebuilt_under_load() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let mut random = Random(seed());
    let names: Vec<String> = (1..=4).flat_map(|n| (1..=2).map(move |p| format!("n{n}p{p}"))).collect();
    let mut pairs: Vec<(usize, usize)> = (0..8).flat_map(|a| (0..a).map(move |b| (b, a))).collect();
    let mut nodes = vec![1, 2, 3, 4];
    if !soak() {
        let keep = random.below(28) as usize;
        pairs = vec![pairs[keep]];
        nodes = vec![1 + random.below(4)];
    }
    let load = Load::start(&cluster.mnt(), 2, random.next(), false);
    load.goes_on();
    for (a, b) in pairs {
        println!("{} and {} are lost", names[a], names[b]);
        command(&cluster, &["pdisk", "fail", &names[a]]);
        command(&cluster, &["pdisk", "fail", &names[b]]);
        load.goes_on();
        whole(&cluster);
        proved(&cluster);
        command(&cluster, &["pdisk", "keep", &names[a]]);
        command(&cluster, &["pdisk", "keep", &names[b]]);
        cluster.wait_all_ok(PATIENCE);
        whole(&cluster);
    }
    for node in nodes {
        let name = format!("n{node}");
        println!("{name} is lost");
        cluster.kill(|process| process == name);
        load.goes_on();
        // Missing, then rebuilt on the other six.
        let end = Instant::now() + PATIENCE;
        while cluster.json(&["pool", "status"])[0]["pdisks_counting"] != 6 {
            assert!(Instant::now() < end, "{name} is not missed");
            std::thread::sleep(Duration::from_millis(100));
        }
        whole(&cluster);
        load.goes_on();
        proved(&cluster);
        cluster.start_server(&name);
        cluster.wait_all_ok(PATIENCE);
        whole(&cluster);
    }
    let models = load.end();
    same(&models);
    proved(&cluster);
    println!("health: {}", cluster.json(&["health"]));
}
