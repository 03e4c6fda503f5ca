//! Story: pdisks of live servers go bad and slow; their queues are told other things while they run.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs,
    time::{Duration, Instant},
};

use common::{Cluster, Random, ok, same_tree, write_tree};
use serde_json::Value;

fn events(cluster: &Cluster, name: &str) -> Vec<Value> {
    let all = cluster.json(&["events"]);
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
fn a_pdisk_fails_and_another_is_slow_under_load() {
    let mut random = Random(common::seed());
    let cluster = Cluster::up(&["--pdisk-size", "256m"]);
    let local = tempfile::tempdir().unwrap();
    write_tree(local.path(), 40, &mut random);
    let copy = |to: &str| {
        let to = cluster.mnt().join(to);
        let status = std::process::Command::new("cp").arg("-a").arg(local.path()).arg(&to).status().unwrap();
        assert!(status.success(), "cp to {}", to.display());
        rustix::fs::syncfs(fs::File::open(&to).unwrap()).unwrap();
    };
    copy("before");
    cluster.kill(|name| name == "n2" || name == "n3");
    let fault = "ROPEWALK_PDISK_FAULT";
    cluster.start_server_with("n2", &[(fault, "eio on=write file=data path=pdisk3 after=20")]);
    cluster.start_server_with("n3", &[(fault, "delay 5ms on=any p=0.2")]);
    cluster.wait_all_ok(Duration::from_secs(120));
    copy("during");
    for tree in ["before", "during"] {
        same_tree(local.path(), &cluster.mnt().join(tree));
    }
    let failed = events(&cluster, "pdisk_failed");
    assert_eq!(failed.len(), 1, "told once: {failed:?}");
    assert_eq!((failed[0]["process"].as_str(), failed[0]["severity"].as_str()), (Some("n2"), Some("error")));
    assert!(failed[0]["text"].as_str().unwrap().contains("write data"), "{failed:?}");
    let list = cluster.json(&["pdisk", "list"]);
    let bad: Vec<&Value> = list.as_array().unwrap().iter().filter(|p| p["state"] != "ok").collect();
    assert_eq!(bad.len(), 1, "that one counts no more, the slow ones do: {list}");
    // Whole without the process that has it, as well.
    cluster.kill(|name| name == "n2");
    same_tree(local.path(), &cluster.mnt().join("during"));
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
