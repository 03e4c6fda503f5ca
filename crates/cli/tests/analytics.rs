//! Analytics against what is known to have been done: operations on two mounts are counted exactly and drilled into; a pdisk
//! that is slow is found; a process that is gone is named; `top` in a terminal.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "common/ahead.rs"]
mod ahead;
mod common;
#[path = "analytics/crowd.rs"]
mod crowd;
#[path = "analytics/every.rs"]
mod every;
#[path = "common/fio.rs"]
mod fio;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "analytics/odd_names.rs"]
mod odd_names;
#[path = "analytics/slow.rs"]
mod slow;

use std::{
    fs,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    process::Command,
    time::Duration,
};

use common::{Cluster, ROPEWALK, ok, refused, until};
use mounts::Mounts;
use serde_json::Value;

/// Writes so many times so many bytes, each as one request of the kernel.
fn write_direct(path: &Path, times: u64, bytes: usize) {
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap();
    let buffer = vec![7; bytes + 4096];
    let aligned = buffer.as_ptr().align_offset(4096);
    for n in 0..times {
        file.write_all_at(&buffer[aligned..aligned + bytes], n * bytes as u64).unwrap();
    }
    file.sync_all().unwrap();
}

/// What a query finds in the last hour.
fn query(cluster: &Cluster, text: &str) -> Value {
    cluster.json(&["analytics", "query", text, "--from", "-59m", "--rows", "1000"])
}

fn total(cluster: &Cluster, text: &str) -> f64 {
    query(cluster, text)["rows"].as_array().unwrap().iter().map(|row| row["total"].as_f64().unwrap()).sum()
}

/// The values of a breakdown, heaviest first.
fn values(found: &Value, dimension: &str) -> Vec<String> {
    let rows = found["rows"].as_array().unwrap().iter();
    rows.map(|row| row["key"][dimension].as_str().unwrap().to_owned()).collect()
}

/// Waits until every process has closed the second in which this is called: what was done before is in whatever is asked then. One that
/// is being closed now can be about less.
fn closed(cluster: &Cluster) {
    let kept = || -> Option<Vec<u64>> {
        let all = cluster.json(&["analytics", "history"]);
        all.as_array().unwrap().iter().map(|process| process["history"]["kept"].as_u64()).collect()
    };
    let mut before = None;
    until("every process answers", || {
        before = kept();
        before.is_some()
    });
    let before = before.unwrap();
    until("every process closes its second", || {
        kept().is_some_and(|now| now.iter().zip(&before).all(|(now, before)| *now >= before + 2))
    });
}

#[test]
fn known_operations_are_counted_exactly_and_drilled_into() {
    let mounts = Mounts::in_memory(2);
    let cluster = &mounts.cluster;
    write_direct(&mounts.at(0, "heavy"), 300, 64 << 10);
    write_direct(&mounts.at(1, "light"), 40, 4096);
    fs::create_dir(mounts.at(0, "logs")).unwrap();
    write_direct(&mounts.at(1, "logs/deep"), 5, 4096);
    let (first, second) = (mounts.all[0].to_str().unwrap(), mounts.all[1].to_str().unwrap());

    // From client to file to latency.
    until("the seconds of the writes are closed", || {
        total(cluster, "file.ops[op=write]") >= 345.0 && total(cluster, "file.ops[op=fsync]") >= 3.0
    });
    // Those of the servers and of the manager too.
    closed(cluster);
    let clients = query(cluster, "file.ops[op=write][client]");
    assert_eq!(values(&clients, "client"), [first, second]);
    let files = query(cluster, &format!("file.ops[op=write][client={first}][file]"));
    assert_eq!(values(&files, "file"), ["/heavy"]);
    assert_eq!((&files["total"], &files["told_apart_percent"]), (&300.0.into(), &100.0.into()));
    assert_eq!(total(cluster, "file.ops[op=write][file=/light]"), 40.0);

    // By what follows from a file: its directory, as far as it has a path, and its file system.
    let directories = query(cluster, "file.ops[op=write][directory]");
    assert_eq!(values(&directories, "directory"), ["/", "/logs"]);
    assert_eq!(directories["rows"][0]["total"], 340.0);
    assert_eq!(total(cluster, "file.ops[op=write][directory=/logs]"), 5.0);
    assert_eq!(values(&query(cluster, "file.ops[directory=/logs][op=write][file]"), "file"), ["/logs/deep"]);
    assert_eq!(values(&query(cluster, "strip.ops[op=prepare][fs]"), "fs"), ["fs1"]);
    assert_eq!(total(cluster, "file.ops[op=write][fs=fs1]"), 345.0);
    // By the machine on which a client is: here all are on one.
    let hosts = query(cluster, "file.ops[op=write][host]");
    let host = &values(&hosts, "host")[..];
    assert_eq!((host.len(), hosts["rows"][0]["total"].as_f64()), (1, Some(345.0)));
    assert_eq!(total(cluster, &format!("file.ops[op=write][host={}][client={first}]", host[0])), 300.0);
    // A machine's name among clients means all that are there.
    assert_eq!(total(cluster, &format!("file.ops[op=write][client={}]", host[0])), 345.0);
    assert_eq!(total(cluster, &format!("file.ops[op=write][client!={}]", host[0])), 0.0);
    assert_eq!(values(&query(cluster, "file.ops[op=write][mount]"), "mount"), [first, second]);
    assert_eq!(total(cluster, &format!("file.ops[op=write][mount={first}]")), 300.0);
    let of_host = format!("strip.ops[op=prepare][host={}]", host[0]);
    assert_eq!(total(cluster, &of_host), total(cluster, "strip.ops[op=prepare]"));
    let latencies = format!("file.ops[client={first}][file=/heavy][op=write][latency]");
    assert_eq!(total(cluster, &latencies), 300.0);
    let slowest = values(&query(cluster, &latencies), "latency").pop().unwrap();
    assert!(
        total(cluster, &format!("file.ops[client={first}][file=/heavy][op=write][latency>={slowest}]")) > 0.0
    );

    // Bytes and sizes; the sum is the same however it is broken down.
    assert_eq!(total(cluster, "file.bytes[file=/heavy]"), f64::from(300 * (64 << 10)));
    assert_eq!(values(&query(cluster, "file.ops[file=/heavy][op=write][size]"), "size"), ["64k"]);
    let written = "file.bytes[class=write]";
    for breakdown in ["", "[client]", "[file]", "[user][op]", "[size]", "[process]"] {
        assert_eq!(total(cluster, &format!("{written}{breakdown}")), f64::from(300 * (64 << 10) + 45 * 4096));
    }

    // By the second it is as much.
    let (dir, text) = (cluster.dir(), "file.ops[op=write][file=/heavy]");
    let dir = dir.to_str().unwrap();
    let by_second =
        cluster.json(&["analytics", "query", text, "--from", "-30min", "--step", "1s", "--rows", "5"]);
    let steps = by_second["rows"][0]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1800);
    assert_eq!(steps.iter().filter_map(Value::as_f64).sum::<f64>(), 300.0);
    assert!(steps[0].is_null(), "nothing was recorded before the cluster");

    let exported = cluster.dir().join("exported.csv");
    let out = exported.to_str().unwrap();
    ok(&["analytics", "export", "file.ops[op=write][file]", "--dir", dir, "--from", "-30min", "--out", out]);
    let lines = fs::read_to_string(&exported).unwrap();
    assert!(lines.starts_with("end_s,file,operations\n"), "{lines}");
    let of_heavy = lines.lines().filter(|line| line.contains(",/heavy,"));
    let figures = of_heavy.filter_map(|line| line.rsplit_once(',')?.1.parse::<f64>().ok());
    assert_eq!(figures.sum::<f64>(), 300.0);

    // As Parquet it is the same lines; as HTML nothing is loaded.
    let file = |name: &str| {
        let path = cluster.dir().join(name);
        let out = path.to_str().unwrap();
        ok(&[
            "analytics",
            "export",
            "file.ops[op=write][file]",
            "--dir",
            dir,
            "--from",
            "-30min",
            "--out",
            out,
        ]);
        fs::read(path).unwrap()
    };
    let parquet = file("exported.parquet");
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    for (engine, sums) in read_by_others(&cluster.dir().join("exported.parquet")) {
        assert_eq!(sums["/heavy"].as_f64(), Some(300.0), "{engine}: {sums}");
    }
    let html = String::from_utf8(file("exported.html")).unwrap();
    assert!(html.contains("/heavy") && html.starts_with("<!doctype html>") && !html.contains("src="));

    // Servers saw the same files, of the same client, on every pdisk; and half as much again as parity.
    let strips = format!("strip.bytes[client={first}][file=/heavy][op=prepare]");
    let bytes = total(cluster, &strips);
    assert!((29_491_200.0..60e6).contains(&bytes), "{bytes}");
    assert_eq!(query(cluster, &format!("{strips}[pdisk]"))["rows"].as_array().unwrap().len(), 3);
    assert!(total(cluster, "manager.commits") > 0.0);
    assert!(total(cluster, "manager.tokens[event=granted]") > 0.0, "two mounts take tokens one by one");
    assert!(
        values(&query(cluster, &format!("manager.ops[client={first}][op]")), "op").contains(&"mutate".into())
    );

    by_place(cluster);
    beside_operations(cluster, &mounts);
    every::by_any_to_any_depth(cluster);

    // A file that is gone, and one whose directory is gone as well, are known by their last paths; one that has another name by that.
    fs::remove_file(mounts.at(1, "light")).unwrap();
    fs::rename(mounts.at(1, "logs/deep"), mounts.at(1, "logs/deeper")).unwrap();
    assert_eq!(total(cluster, "file.ops[op=write][file=/logs/deeper]"), 5.0);
    fs::remove_file(mounts.at(0, "logs/deeper")).unwrap();
    fs::remove_dir(mounts.at(0, "logs")).unwrap();
    let files = values(&query(cluster, "file.ops[op=write][file]"), "file");
    assert_eq!(files, ["/heavy", "/light (removed)", "/logs/deeper (removed)"]);
    assert_eq!(total(cluster, "file.ops[op=write][file=/light (removed)]"), 40.0);
    assert_eq!(total(cluster, "file.ops[op=write][directory=/logs]"), 5.0);

    // What cannot be asked is told with what can.
    for (text, says) in [
        ("file.ops[client=nobody]", first),
        ("file.ops[file=/nothing]", "/heavy"),
        ("file.ops[directory=/nothing]", "/logs"),
        ("strip.ops[pool=none]", "possible: "),
        ("strip.ops[node=n9]", "possible: n1, n2, n3"),
        ("file.ops[fs=none]", "possible: fs1"),
        ("file.ops[host=none]", "there is no client on a host \"none\"; possible: "),
        ("file.ops[colour]", "possible: client, fs, file"),
        ("file.ops[op=wriet]", "there is no op \"wriet\""),
        ("file.ops[op=wriet]", "there are: write, "),
        ("file.ops[op=read|wriet]", "\"wriet\""),
        ("file.ops[class!=none]", "metadata"),
        ("file.ops[user=4294967294]", "there are: uid 0"),
        ("file.ops[fs=99]", "there are: fs1"),
        ("strip.ops[pdisk=pdisk99]", "there are: pdisk1, pdisk2, pdisk3"),
        ("strip.ops[client=session 7 (ended)]", "there are: "),
        ("pdisk.bytes[op=reed]", "there are: read"),
        ("net.sent_bytes[peer=n9]", "there are: n1, n2, n3"),
        ("file.errors[error=EIEIO]", "EIO"),
        ("manager.tokens[event=grant]", "there are: granted"),
        ("file.ops[file=(others)]", "not kept apart"),
        ("file.opps", "possible: file.ops"),
    ] {
        // What there is is told of those who answered in time.
        until(&format!("{text} is refused by {says:?}"), || {
            let said = refused(&["analytics", "query", text, "--dir", dir, "--from", "-59m"]);
            println!("{text}: {said}");
            said.contains(says)
        });
    }
    // What is known and was idle is no mistake.
    for text in [
        "file.ops[op=copy_file_range]",
        "file.errors[op=read][error=EIO]",
        "pdisk.bytes[node=(unknown)]",
        "net.refused_handshakes[reason=stranger]",
    ] {
        assert_eq!(total(cluster, text), 0.0, "{text}");
    }
    // Nor are these, of which a machine that stands still for a while has some.
    for text in ["stripe.retries[what=write]", "manager.tokens[event=late]"] {
        total(cluster, text);
    }
    assert!(total(cluster, "pdisk.bytes[node!=(unknown)]") > 0.0);
    let table = ok(&["analytics", "query", "file.ops[file][op]", "--dir", dir, "--from", "-59m"]);
    assert!(table.contains("/heavy") && table.contains("P99<"), "{table}");

    // Every statistic that a process counts stands in the table.
    let mut status = Value::Null;
    until("every process answers", || {
        status = cluster.json(&["status"]);
        status["processes"].as_array().unwrap().iter().all(|process| process["status"].is_object())
    });
    for process in status["processes"].as_array().unwrap() {
        let refused = process["status"]["statistics"]["refused"].as_array();
        assert!(refused.is_some_and(Vec::is_empty), "{process}");
    }

    // Recording can be turned off, and on again.
    ok(&["config", "set", "--dir", dir, "analytics=no"]);
    until("nothing is counted one by one", || {
        let before = total(cluster, "file.ops");
        fs::metadata(mounts.at(0, "nothing")).unwrap_err();
        std::thread::sleep(Duration::from_millis(1100));
        total(cluster, "file.ops") == before
    });
    ok(&["config", "set", "--dir", dir, "analytics=yes"]);
    until("it is counted again", || {
        let before = total(cluster, "file.ops");
        fs::metadata(mounts.at(0, "nothing")).unwrap_err();
        std::thread::sleep(Duration::from_millis(1100));
        total(cluster, "file.ops") > before
    });

    // The same, live: it looks at the last minutes, and they may have been long.
    write_direct(&mounts.at(0, "heavy"), 40, 64 << 10);
    let once = ok(&["top", "--dir", dir, "--over", "59m", "--once", "--view", "files"]);
    assert!(once.contains("/heavy"), "{once}");
    assert!(once.lines().all(|line| line.chars().count() <= 80), "{once}");
    let lines = cluster.json(&["top", "--over", "59m", "--view", "clients"]);
    let of_first = lines["lines"].as_array().unwrap().iter().find(|line| line["name"] == *first).unwrap();
    assert!(of_first["operations"].as_f64() >= Some(300.0), "{lines}");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/top.py");
    let live = Command::new("python3").args([script, ROPEWALK, dir]).output().unwrap();
    assert!(live.status.success(), "{}", String::from_utf8_lossy(&live.stderr));
    odd_names::find_themselves(cluster, &mounts);
    crowd::of_files(cluster, &mounts);
}

/// The operations of each file, by what finds them in a Parquet file: a reader that follows the format's description; and DuckDB and
/// pyarrow, where Python (or that of ROPEWALK_PYTHON) has them.
fn read_by_others(file: &Path) -> serde_json::Map<String, Value> {
    let python = std::env::var("ROPEWALK_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/parquet.py");
    let output = Command::new(python).arg(script).arg(file).args(["file", "operations"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let engines = found.as_object().unwrap().clone();
    assert!(engines.contains_key("the format's description"), "{found}");
    println!("{} was read by: {:?}", file.display(), engines.keys().collect::<Vec<_>>());
    engines
}

/// By where in the file, in which pool, on which node.
fn by_place(cluster: &Cluster) {
    assert_eq!(total(cluster, "file.ops[op=write][file=/heavy][offset>=16m]"), 44.0);
    assert_eq!(total(cluster, "file.ops[op=write][file=/heavy][offset=0]"), 1.0);
    let offsets = query(cluster, "file.ops[op=write][file=/heavy][offset]");
    let shown = values(&offsets, "offset");
    assert!(shown.contains(&"0".into()) && shown.contains(&"16m".into()), "{shown:?}");
    let prepares = total(cluster, "strip.ops[op=prepare]");
    let pools = query(cluster, "strip.ops[op=prepare][pool]");
    let pool = &values(&pools, "pool")[0];
    assert_eq!(pools["rows"].as_array().map(Vec::len), Some(1));
    assert_eq!(pools["total"].as_f64(), Some(prepares));
    assert_eq!(total(cluster, &format!("strip.ops[op=prepare][pool={pool}]")), prepares);
    let mut nodes = values(&query(cluster, "strip.ops[op=prepare][node]"), "node");
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    for node in nodes {
        let of = |dimension: &str| total(cluster, &format!("strip.ops[op=prepare][{dimension}={node}]"));
        assert_eq!(of("node"), of("process"), "each pdisk is served by its node");
    }
}

/// What is counted beside operations: errors, locks, tokens, misses by reason, connections, pdisks at work.
fn beside_operations(cluster: &Cluster, mounts: &Mounts) {
    // A name that is not there is an answer; this is an error.
    fs::remove_dir(mounts.at(0, "logs")).unwrap_err();
    let heavy = mounts.at(1, "heavy");
    let locked = Command::new("flock").arg(&heavy).arg("true").status().unwrap();
    assert!(locked.success());
    // Read by one mount, written by the other, read again.
    let whole = || assert_eq!(fs::read(&heavy).unwrap().len(), 300 * (64 << 10));
    whole();
    write_direct(&mounts.at(0, "heavy"), 300, 64 << 10);
    whole();
    for counted in [
        "file.errors[op=rmdir][error=ENOTEMPTY]",
        "locks.waits[kind=flock][outcome=set]",
        "tokens.waits[need=read]",
        "tokens.given_up[what=cleaned]",
        "pagepool.misses[reason=first]",
        "pagepool.misses[reason=given_up]",
        "pagepool.read_bytes[how=ahead]",
        "net.connection_sent_bytes[connection=1]",
        "net.connection_received_bytes[connection=control]",
        "net.round_trips[connection=control]",
        "net.round_trips[rail=127.0.0.1][latency]",
        "nsd.cache_misses[reason=first]",
        "pdisk.busy_us[pdisk=pdisk1]",
    ] {
        until(counted, || total(cluster, counted) > 0.0);
    }
    closed(cluster);
    let misses = |reason: &str| total(cluster, &format!("pagepool.misses[reason={reason}]"));
    let all = total(cluster, "pagepool.misses");
    assert!(misses("first") + misses("given_up") + misses("part") + misses("evicted") == all, "{all}");
    let by_why = query(cluster, "nsd.cache_misses[reason]");
    assert_eq!(by_why["total"].as_f64(), Some(total(cluster, "nsd.cache_bytes[how=miss]")), "{by_why}");
    the_same_elsewhere(cluster);
}

/// The same figures as `/proc` and `status --json` have.
fn the_same_elsewhere(cluster: &Cluster) {
    let status = || cluster.json(&["status"]);
    let of = |status: &Value, name: &str| {
        let all = status["processes"].as_array().unwrap().iter();
        all.filter(|process| process["name"] == name).map(|process| process["pid"].as_u64().unwrap()).next()
    };
    let pid = of(&status(), "n1").unwrap_or_else(|| panic!("{:#}", status()));
    let cpu_us = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) * 1e4
    };
    // It is looked at once a second, by a clock of hundredths, and from a moment after the process's start on.
    until("the CPU time of n1 is that of /proc", || {
        let (before, ours, after) = (cpu_us(), total(cluster, "process.cpu_us[process=n1]"), cpu_us());
        ours <= after && ours >= before - 500_000.0
    });
    // Whole counts of the registry and the sums of seconds are the same.
    let records = || {
        let all = status();
        let n1 = all["processes"].as_array().unwrap().iter().find(|process| process["name"] == "n1").unwrap();
        // None: it does not answer in time.
        let series = n1["status"]["statistics"]["families"]["pdisk_commit_records"]["series"].as_array()?;
        Some(series.iter().map(|series| series["value"]["counter"].as_f64().unwrap()).sum::<f64>())
    };
    until("status --json has the same records of commits", || {
        let (before, ours, after) =
            (records(), total(cluster, "pdisk.commit_records[process=n1]"), records());
        before == after && Some(ours) == after
    });
    // Every CPU has a share in each second, by one of the processes here.
    let cpus = fs::read_to_string("/proc/stat").unwrap();
    let cpus = cpus.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let shares = query(cluster, "host.cpu_utilisation[cpu]");
    assert_eq!(shares["rows"].as_array().map(Vec::len), Some(cpus), "{shares:#}");
    for row in shares["rows"].as_array().unwrap() {
        let (half, most) = (row["p50_percent"].as_f64(), row["most_percent"].as_f64());
        assert!(half > Some(0.0) && half <= most && most <= Some(100.0) && row["p50_us"].is_null(), "{row}");
        assert!(row["total"].as_f64() <= Some(1.0), "{row}");
    }
    until("its memory is what /proc says", || {
        let resident = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = resident.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident = line.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1024.0;
        let asked =
            ["analytics", "query", "process.memory_bytes[process=n1][what=resident]", "--from", "-3s"];
        let ours = cluster.json(&asked)["rows"][0]["total"].as_f64();
        println!("{ours:?} of memory, /proc says {resident}");
        ours.is_some_and(|ours| (ours / resident - 1.0).abs() < 0.2)
    });
}
