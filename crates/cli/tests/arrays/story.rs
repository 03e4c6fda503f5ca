//! What the stories of arrays have in common: small clusters, commands, and waiting until all is well.

#![allow(dead_code)] // each test file uses a part

use std::time::{Duration, Instant};

use crate::common::{Cluster, heard, ok, ropewalk, succeeded, until};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Whether the long forms are asked for.
pub fn soak() -> bool {
    std::env::var_os("ROPEWALK_SOAK").is_some()
}

/// A cluster of small pdisks and blocks that rebuilds at once.
pub fn small(options: &[&str]) -> Cluster {
    let mut all = vec!["--block-size", "256k"];
    if !options.contains(&"--pdisk-size") {
        all.extend(["--pdisk-size", "192m"]);
    }
    all.extend(options);
    let cluster = Cluster::up(&all);
    set(&cluster, &["missingRebuildDelay=1s", "rebuild_aggressiveness=100"]);
    cluster
}

/// Changes tunables.
pub fn set(cluster: &Cluster, pairs: &[&str]) {
    let dir = cluster.dir();
    let mut args = vec!["config", "set", "--dir", dir.to_str().unwrap()];
    args.extend(pairs);
    ok(&args);
}

/// Runs a command of two words on the cluster, with arguments.
pub fn command(cluster: &Cluster, words: &[&str]) {
    let dir = cluster.dir();
    let mut args: Vec<&str> = words[..2].to_vec();
    args.extend(["--dir", dir.to_str().unwrap()]);
    args.extend(&words[2..]);
    println!("{}", ok(&args).trim());
}

/// A pdisk's state as listed.
pub fn state(cluster: &Cluster, pdisk: &str) -> String {
    let list = cluster.json(&["pdisk", "list"]);
    let found = list.as_array().unwrap().iter().find(|p| p["name"] == *pdisk);
    found.map_or("gone".to_owned(), |p| p["state"].as_str().unwrap().to_owned())
}

/// Waits until a pdisk is listed in this state.
pub fn becomes(cluster: &Cluster, pdisk: &str, wanted: &str) {
    until(&format!("{pdisk} is shown as {wanted}"), || state(cluster, pdisk) == wanted);
}

/// Waits until these pdisks do not count.
pub fn missed(cluster: &Cluster, pdisks: &[&str]) {
    let end = Instant::now() + PATIENCE;
    while pdisks.iter().any(|pdisk| state(cluster, pdisk) == "ok") {
        assert!(Instant::now() < end, "{pdisks:?} are still ok: {}", cluster.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until this pdisk is no longer missing: it returns, or is `ok` already.
pub fn returns(cluster: &Cluster, pdisk: &str) {
    let end = Instant::now() + PATIENCE;
    while state(cluster, pdisk) == "missing" {
        assert!(Instant::now() < end, "{pdisk} does not return: {}", cluster.logs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until nothing is to move and no group lacks a strip.
pub fn whole(cluster: &Cluster) {
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

/// Waits until nothing is left to be removed where it can be.
pub fn removed(cluster: &Cluster) {
    let end = Instant::now() + PATIENCE;
    while cluster.json(&["status"])["deletes_pending"] != 0 {
        assert!(Instant::now() < end, "deletes are left: {}", cluster.json(&["status"]));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Every stripe is proved, and nothing of inodes that are gone is there; how many there are.
pub fn proved(cluster: &Cluster) -> u64 {
    let end = Instant::now() + PATIENCE;
    let dir = cluster.dir();
    let verify = ["pool", "verify", "--json", "--dir", dir.to_str().unwrap()];
    loop {
        let output = heard(|| ropewalk(&verify));
        let verified: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        // What came back is taken away by the command: it must not be there at all.
        assert_eq!(verified["removed"].as_u64().unwrap_or(0), 0, "{verified:#}");
        // Who does not answer in time proves nothing.
        if verified["away"] == 0 {
            assert!(verified["absent"] == 0 && verified["unowned"] == 0, "{verified:#}");
            succeeded(&verify, output);
            return verified["stripes"].as_u64().unwrap();
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(Instant::now() < end, "not all can be asked: {verified:#} {said}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
