//! Story: `ropewalk perf` on a real cluster, through the mount and through the client library: what one
//! wrote the other reads, gpfsperf's options and lines are there, and what cannot be done is refused.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use common::{Cluster, ok, refused, until};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[args, &["--json"]].concat())).unwrap()
}

#[test]
fn perf_through_the_mount_and_through_the_client_library() {
    let cluster = Cluster::up(&["--pdisk-size", "256m"]);
    let (file, dir) = (cluster.mnt().join("f"), cluster.dir());
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());

    let create = ["perf", "create", "seq", file, "-r", "256k", "-n", "32m", "-th", "2", "-fsync", "-V"];
    let mut made = String::new();
    until("all servers tell in time what CPU they took", || {
        made = ok(&create);
        !made.contains("servers unknown")
    });
    assert!(made.contains("  recSize 256K nBytes 32M fileSize 32M\n"), "{made}");
    assert!(
        made.contains("  nProcesses 1 nThreadsPerProcess 2\n") && made.contains("  fsync at end of test\n")
    );
    assert!(
        made.contains("bytesTransferred 33554432") && made.contains("CPU-seconds per GB: client "),
        "{made}"
    );
    assert!(made.contains(", servers "), "{made}");

    let read =
        json(&["perf", "read", "strided", file, "-r", "64k", "-s", "1m", "-th", "4", "-V", "-repeat", "2"]);
    assert_eq!(read["runs"].as_array().unwrap().len(), 2);
    for run in read["runs"].as_array().unwrap() {
        assert_eq!((run["bytes"].as_u64(), run["reads"]["operations"].as_u64()), (Some(32 << 20), Some(512)));
        let counted = run["reads"]["latency"]["histogram"].as_array().unwrap();
        assert_eq!(counted.iter().map(|c| c[1].as_u64().unwrap()).sum::<u64>(), 512);
    }
    let mixed = json(&["perf", "mixrw", "rand", file, "-r", "4k", "-n", "1000R", "-readratio", "70", "-dio"]);
    assert_eq!(mixed["runs"][0]["reads"]["operations"].as_u64(), Some(700));
    assert!(ok(&["perf", "uncache", "seq", file]).contains("file cache flushed"));

    // What says that it begins uncached loads every byte again; what does not, none.
    let pool = || {
        let mut found = Value::Null;
        until("the mount answers", || {
            let all = json(&["pagepool", "--dir", dir]);
            let all = all.as_array().unwrap();
            found = all.iter().map(|one| one["pagepool"].clone()).find(Value::is_object).unwrap_or_default();
            found.is_object()
        });
        found
    };
    let loaded = || pool()["miss_bytes"].as_u64().unwrap() + pool()["ahead_bytes"].as_u64().unwrap();
    for round in 0..2 {
        let before = loaded();
        assert_eq!(
            json(&["perf", "read", "seq", file, "-r", "1m"])["runs"][0]["bytes"].as_u64(),
            Some(32 << 20)
        );
        assert!(
            loaded() - before >= 32 << 20,
            "round {round}: {} bytes came from the servers",
            loaded() - before
        );
    }
    let before = loaded();
    ok(&["perf", "read", "seq", file, "-r", "1m", "-noinv"]);
    assert_eq!(loaded(), before);
    until("mount and servers tell of their memory", || {
        let table = ok(&["pagepool", "--dir", dir]);
        ["PAGEPOOL", "CACHE", "n1"].iter().all(|word| table.contains(word))
    });

    // Half the cluster's page pool, at once; what follows from a master knob is marked.
    ok(&["config", "set", "--dir", dir, "pagepool=512m", "workerThreads=96"]);
    until("the mount follows", || pool()["max_bytes"].as_u64() == Some(512 << 20));
    let shown = ok(&["config", "show", "--dir", dir]);
    let line = shown.lines().find(|line| line.contains("prefetchThreads")).unwrap();
    assert!(line.trim_start().starts_with(". ") && line.contains(" 32 "), "{line}");

    let missing = refused(&["perf", "read", "seq", &format!("{file}-missing"), "-r", "1m"]);
    assert!(missing.contains("make it first"), "{missing}");
    assert!(refused(&["perf", "create", "seq", file, "-r", "1m"]).contains("-n is needed"));
    assert!(refused(&["perf", "scan", "seq", file]).contains("known are create, read"));

    ok(&["umount", cluster.mnt().to_str().unwrap()]);
    let direct = ["--direct-client", "--dir", dir];
    let other =
        [&["perf", "create", "rand", "/g", "-r", "4k", "-n", "8m", "-osync", "-th", "8"], &direct[..]]
            .concat();
    assert_eq!(json(&other)["runs"][0]["writes"]["operations"].as_u64(), Some(2048));
    let again =
        [&["perf", "create", "seq", "/h", "-r", "1m", "-n", "16m", "-V", "-fsync"], &direct[..]].concat();
    assert!(ok(&again).contains("bytesTransferred 16777216"));
    let back =
        [&["perf", "read", "rand", "/h", "-r", "4k", "-n", "4000R", "-V", "-th", "16"], &direct[..]].concat();
    until("all servers tell in time what CPU they took", || {
        let back = json(&back);
        assert_eq!(back["runs"][0]["reads"]["operations"].as_u64(), Some(4000));
        back["runs"][0]["cpu"]["server_s"].is_number()
    });
    cluster.down();
}
