//! What fio says of its latencies, beside what the mount recorded of the same operations: from both sides.
//!
//! fio counts from its system call to that call's return, the mount from when it has the kernel's request to when it hands over the
//! answer. So no operation took longer at the mount than at fio. By how much it can have been shorter is measured as well, apart from
//! what both say of latencies: fio's thread was then on a CPU (the kernel's path), or it or a thread of the mount that takes requests waited for one, or
//! the machine itself stood still. The kernel counts all of these.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// USER_HZ is 100.
const TICK_US: f64 = 10_000.0;

/// What fio said.
pub struct Told {
    pub job: Value,
    /// What its operations together can have been shorter by at the mount than at fio, at most.
    pub apart_us: f64,
}

/// On a CPU, and waiting for one, microseconds.
fn scheduled(text: &str) -> (f64, f64) {
    let mut numbers = text.split_whitespace().map(|n| n.parse::<f64>().unwrap() / 1e3);
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// How long the threads by which a mount's process takes requests have waited for a CPU.
fn waited_us(pid: u64) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| thread.unwrap().path());
    let takes_requests =
        |of: &PathBuf| fs::read_to_string(of.join("comm")).is_ok_and(|name| name.starts_with("fuse"));
    let told: Vec<f64> = threads
        .filter(takes_requests)
        // One that has just ended waits no more.
        .filter_map(|thread| fs::read_to_string(thread.join("schedstat")).ok())
        .map(|text| scheduled(&text).1)
        .collect();
    assert!(!told.is_empty(), "the process {pid} has no thread that takes requests");
    told.iter().sum()
}

/// How long the machine's CPUs stood still, by ticks.
fn stolen_us() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let ticks: f64 = stat.lines().next().unwrap().split_whitespace().nth(8).unwrap().parse().unwrap();
    ticks * TICK_US
}

/// Runs fio on a file of the mount whose process that is.
pub fn run(file: &Path, mount_pid: u64, options: &[&str]) -> Told {
    let place = tempfile::tempdir().unwrap();
    let before = (waited_us(mount_pid), stolen_us());
    let output = Command::new("fio")
        .args(["--name=told", "--output-format=json", "--exec_postrun=cat /proc/$PPID/schedstat"])
        .args(options)
        .arg(format!("--filename={}", file.display()))
        .current_dir(place.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (own, waited) = scheduled(&fs::read_to_string(place.path().join("told.postrun.txt")).unwrap());
    let parts = (own, waited, waited_us(mount_pid) - before.0, stolen_us() - before.1 + TICK_US);
    println!("microseconds of fio on a CPU, waiting; of the mount waiting; stolen: {parts:?}");
    let apart_us = parts.0 + parts.1 + parts.2 + parts.3;
    // It says first where the output of the other command is.
    let json = output.stdout.iter().position(|byte| *byte == b'{').unwrap();
    let said: Value = serde_json::from_slice(&output.stdout[json..]).unwrap();
    Told { job: said["jobs"][0].clone(), apart_us }
}

impl Told {
    /// A figure of its writes (`write`), or of its fsyncs (`sync`).
    pub fn figure(&self, of: &str, name: &str) -> f64 {
        self.job[of][name].as_f64().unwrap()
    }

    /// The percentiles of its fsyncs beside ours, which are the ends of their buckets.
    pub fn fsyncs_took(&self, ours: impl Fn(&str) -> f64) {
        for (percentile, name) in [("50.000000", "p50_us"), ("99.000000", "p99_us")] {
            let fio = self.job["sync"]["lat_ns"]["percentile"][percentile].as_f64().unwrap() / 1e3;
            let (ours, apart) = (ours(name), self.apart_us);
            println!(
                "fsync {name}: fio {fio:.0} us, ours below {ours:.0} us; apart by {apart:.0} us at most"
            );
            // A bucket is at most half as long as where it begins; fio's own are a sixty-fourth of it.
            assert!(ours <= fio * 1.5 * 1.016, "{name}: fio says {fio} us, ours is below {ours} us");
            assert!(
                ours >= fio / 1.016 - apart,
                "{name}: fio says {fio} us, ours is below {ours} us: too low by more than {apart} us, all that can lie between"
            );
        }
    }
}
