//! Story: the queues of live servers are told other things while they run.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs,
    time::{Duration, Instant},
};

use common::{Cluster, ok};
use serde_json::Value;

fn events(cluster: &Cluster, name: &str) -> Vec<Value> {
    let all = cluster.json(&["pdisk", "events"]);
    all.as_array().unwrap().iter().filter(|e| e["name"] == name).cloned().collect()
}

fn until(what: &str, cluster: &Cluster, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}\n{}", cluster.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn queues_are_changed_live_and_too_little_memory_is_told() {
    let cluster = Cluster::up(&["--pdisk-size", "256m"]);
    let dir = cluster.dir();
    let set = |pairs: &[&str]| {
        let words = [&["config", "set", "--dir", dir.to_str().unwrap()], pairs].concat();
        ok(&words);
    };
    let log = |text: &str| fs::read_to_string(dir.join("log/n1.log")).unwrap().contains(text);
    fs::write(cluster.mnt().join("f"), vec![7; 3_000_000]).unwrap();
    set(&["io_coalesce_count=4", "io_coalesce_us=50", "queue_depth_max=2"]);
    until("the queues take the change", &cluster, || log("coalesce 4/50 us, depth 2"));
    fs::write(cluster.mnt().join("g"), vec![8; 3_000_000]).unwrap();
    assert_eq!(fs::read(cluster.mnt().join("g")).unwrap(), vec![8; 3_000_000]);

    set(&["num_io_queues=16", "io_dma_mib=64"]);
    assert!(events(&cluster, "io_one_queue").is_empty());
    cluster.kill(|name| name == "n1");
    cluster.start_server("n1");
    cluster.wait_all_ok(Duration::from_secs(120));
    let told = events(&cluster, "io_one_queue");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0]["text"].as_str().unwrap().contains("io_dma_mib=128"), "{told:?}");
    assert_eq!(fs::read(cluster.mnt().join("f")).unwrap(), vec![7; 3_000_000]);
}
