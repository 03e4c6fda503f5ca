//! A pdisk that is slow, a clock that is ahead, a server that is gone.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use serde_json::Value;

use super::{
    ahead, closed,
    common::{Cluster, ok, ports::Ports, ropewalk, until},
    fio, query, total, values, write_direct,
};

/// 20 writes of 1 MiB, and fsync after each second one, on the cluster's mount.
fn load(cluster: &Cluster) -> fio::Told {
    let pid = cluster.json(&["clients", "list"])[0]["pid"].as_u64().unwrap();
    let options = ["--rw=write", "--bs=1m", "--size=20m", "--direct=1", "--fsync=2"];
    fio::run(&cluster.mnt().join("f0"), pid, &options)
}

/// As many operations and bytes as fio counted; the latencies that half and 99 % of its fsyncs took at most lie in the same
/// bucket, but for what lies between fio and the mount.
fn agrees_with_fio(cluster: &Cluster, told: &fio::Told) {
    let fsyncs = told.figure("sync", "total_ios");
    until("fio's operations are counted", || total(cluster, "file.ops[op=fsync][file=/f0]") >= fsyncs);
    assert_eq!(total(cluster, "file.ops[op=fsync][file=/f0]"), fsyncs);
    assert_eq!(total(cluster, "file.bytes[op=write][file=/f0]"), told.figure("write", "io_bytes"));
    let found = query(cluster, "file.ops[op=fsync][file=/f0]");
    told.fsyncs_took(|name| found["rows"][0][name].as_f64().unwrap());

    // All of them together: what lies between is there once, and not for each.
    let all_of_fio = told.job["sync"]["lat_ns"]["mean"].as_f64().unwrap() / 1e3 * fsyncs;
    let found = query(cluster, "file.ops[op=fsync][file=/f0][latency]");
    let rows = found["rows"].as_array().unwrap().iter();
    let ends: f64 = rows.map(|row| row["p50_us"].as_f64().unwrap() * row["total"].as_f64().unwrap()).sum();
    println!(
        "fsyncs in all: fio {all_of_fio:.0} us, ours below {ends:.0}; apart by {:.0} at most",
        told.apart_us
    );
    assert!(
        ends / 1.5 <= all_of_fio,
        "too long by more than a bucket: fio {all_of_fio} us, ours below {ends}"
    );
    assert!(ends >= all_of_fio - told.apart_us, "too short: fio {all_of_fio} us, ours below {ends}");
}

/// So many files are written, at most, to compare seconds.
const LOOKS: usize = 8;

/// Each block has a strip on each of the three pdisks: by the second n1 and n3, whose clock is ahead, have done the same. Where a process
/// stood still for seconds meanwhile, or was asked twice, it has not; then another file is written. A clock that was not seen through would
/// be half a minute off each time.
fn a_clock_that_is_ahead_is_seen_through(cluster: &Cluster) {
    let busy = |node: &str, file: &str| -> Option<(usize, usize, f64)> {
        let text = format!("strip.ops[op=prepare][process={node}][file=/{file}]");
        let found = cluster.json(&["analytics", "query", &text, "--from", "-10min", "--step", "1s"]);
        let row = &found["rows"][0];
        let steps: Vec<f64> = row["steps"].as_array()?.iter().map(|n| n.as_f64().unwrap_or(0.0)).collect();
        let ends = (steps.iter().position(|n| *n > 0.0)?, steps.iter().rposition(|n| *n > 0.0)?);
        Some((ends.0, ends.1, row["total"].as_f64()?))
    };
    let are_alike = |file: &str| {
        // What was written is in what both answer.
        closed(cluster);
        // The window moves on between the questions, and what a clock is ahead is rounded anew in each.
        (0..3).any(|_| {
            let both = (busy("n1", file), busy("n3", file));
            println!("{file}: first and last second, and prepares, of n1 and n3: {both:?}");
            // A second of the one lies across two of the other, and one passes between the questions.
            matches!(both, (Some(a), Some(b)) if a.2 == b.2 && a.0.abs_diff(b.0) <= 2 && a.1.abs_diff(b.1) <= 2 && a.1 > a.0)
        })
    };
    let found = (0..LOOKS).any(|look| {
        let file = format!("look{look}");
        (0..5).for_each(|_| write_direct(&cluster.mnt().join(&file), 2, 1 << 20));
        are_alike(&file)
    });
    assert!(found, "n3's seconds are those of n1");
}

/// Ends the writers, also of a test that fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Of the pdisks one is always at work, and is found by that alone. Several files are written at once: between two writes of one a
/// machine may do something else.
fn is_found_by_its_work(cluster: &Cluster) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for n in 1..5 {
            let (path, done) = (cluster.mnt().join(format!("f{n}")), &done);
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    write_direct(&path, 2, 1 << 20);
                }
            });
        }
        until("the slow pdisk is always at work", || {
            let full = query(cluster, "pdisk.utilisation[utilisation>=95%][pdisk][node]");
            let most = &full["rows"][0]["key"];
            most["pdisk"] == "pdisk2" && most["node"] == "n2"
        });
    });
}

#[test]
fn a_slow_pdisk_is_found_and_a_server_that_is_gone_is_named() {
    let ports = Ports::take();
    let first = ports.first;
    let metrics = format!("127.0.0.1:{first}");
    let cluster = Cluster::three(&["--pdisk-size", "256m", "--block-size", "1m", "--metrics", &metrics]);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    cluster.kill(|name| name == "n2");
    cluster.start_server_with("n2", &[("ROPEWALK_PDISK_FAULT", "delay 300ms on=write")]);
    cluster.kill(|name| name == "n3");
    let shim = ahead::clock(&cluster.dir(), 30);
    cluster.start_server_with("n3", &[("LD_PRELOAD", shim.to_str().unwrap())]);
    // They are back: nobody may have noticed yet that they were gone.
    cluster.wait_reported(Duration::from_secs(60));
    cluster.wait_all_ok(Duration::from_secs(60));
    let told = load(&cluster);
    agrees_with_fio(&cluster, &told);
    a_clock_that_is_ahead_is_seen_through(&cluster);
    // Manager, nodes (one of them begun anew) and mount, each on its port.
    for (at, family) in [
        "manager_commit_seconds",
        "pdisk_commit_seconds",
        "pdisk_busy_seconds_total",
        "pdisk_queued",
        "file_op_seconds",
    ]
    .iter()
    .enumerate()
    {
        let address = format!("http://127.0.0.1:{}/metrics", usize::from(first) + at);
        until(&format!("{address} shows {family}"), || {
            let said = Command::new("curl").args(["-s", "--max-time", "10", &address]).output().unwrap();
            String::from_utf8(said.stdout).unwrap().contains(&format!("ropewalk_{family}"))
        });
    }
    let prepares = "strip.ops[op=prepare][pdisk][process]";
    until("the prepares are counted", || total(&cluster, prepares) >= 60.0);
    let found = query(&cluster, prepares);
    let rows = found["rows"].as_array().unwrap();
    let slowest =
        rows.iter().max_by(|a, b| a["p50_us"].as_f64().unwrap().total_cmp(&b["p50_us"].as_f64().unwrap()));
    let slowest = slowest.unwrap();
    assert_eq!(slowest["key"]["process"], "n2", "{found:#}");
    assert!(slowest["p50_us"].as_f64().unwrap() >= 300_000.0, "{found:#}");
    is_found_by_its_work(&cluster);
    let shown = ok(&["analytics", "query", "pdisk.utilisation[utilisation]", "--dir", dir, "--from", "-59m"]);
    assert!(
        shown.contains("UTILISATION>=") && shown.contains("95%") && shown.contains("MEAN PDISKS"),
        "{shown}"
    );
    // All that n2 will have counted is in it.
    closed(&cluster);
    let drilled = query(&cluster, "strip.ops[process=n2][latency>=300ms][file]");
    assert!(values(&drilled, "file").iter().any(|file| file.starts_with("/f")), "{drilled:#}");

    // Killed: what it had counted lies beside its pdisks still. Without that it is named.
    cluster.kill(|name| name == "n2");
    let told = query(&cluster, "strip.ops[process=n2][latency>=300ms][file]");
    // But for its last second, perhaps.
    let (told, before) = (values(&told, "file"), values(&drilled, "file"));
    assert!(!told.is_empty() && told.iter().all(|file| before.contains(file)), "{told:?} of {before:?}");
    fs::remove_dir_all(cluster.dir().join("analytics/n2")).unwrap();
    let mut found = Value::Null;
    until("it is named", || {
        let output = ropewalk(&["analytics", "query", "strip.ops[process]", "--dir", dir, "--json"]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        // On a busy machine others may be late as well, or the manager.
        let is_named = said.split_once("do not answer: ").is_some_and(|(_, who)| who.contains("n2"));
        found = serde_json::from_slice(&output.stdout).unwrap_or_default();
        is_named
    });
    let silent = found["processes"].as_array().unwrap().iter().find(|p| p["process"] == "n2").unwrap();
    assert_eq!((&silent["answers"], &silent["recorded_s"]), (&false.into(), &Value::Null));
}
