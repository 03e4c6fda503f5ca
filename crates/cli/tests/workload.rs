//! The mixed analytics workload on a mounted cluster, with the engines that need no environment: every result is right, one wrong byte
//! of an input fails it, a stop ends every job, and what is missing is refused before anything is made. Client nodes that stand in are
//! hosts, each with a link, CPUs and memory of its own for its mount and its jobs.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "common/laid_out.rs"]
mod laid_out;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{Cluster, ROPEWALK, ok, refused, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const ENGINES: [&str; 10] = [
    "--engine",
    "data-step",
    "--engine",
    "sort",
    "--engine",
    "gzip",
    "--engine",
    "zstd",
    "--engine",
    "sqlite",
];
/// How long a short run may take on a machine that is full of other work.
const RUN_MAX: Duration = Duration::from_secs(1200);
/// Jobs of those engines in one round of the 20-test form.
const JOBS: usize = 24;

fn run<'a>(dirs: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words =
        vec!["lab", "workload", "analytics-20", "--short", "--scale", "0", "--dir", dirs, "--out", out];
    words.extend(ENGINES);
    words.extend(more);
    words
}

/// Right jobs and all jobs of each test.
fn jobs(out: &str) -> BTreeMap<String, (u64, u64)> {
    let report: Value = serde_json::from_str(&ok(&["lab", "report", out, "--format", "json"])).unwrap();
    let tests = report["plans"][0]["series"][0]["jobs"][0]["summary"]["tests"].as_array().unwrap().clone();
    let count = |test: &Value, key: &str| test[key].as_u64().unwrap();
    tests
        .iter()
        .map(|test| (test["test"].as_str().unwrap().into(), (count(test, "right"), count(test, "jobs"))))
        .collect()
}

fn entries(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_wrong_byte_fails_the_workload_and_right_ones_do_not() {
    let cluster = Cluster::up(&["--nodes", "3", "--code", "2+1p", "--pdisk-size", "512m"]);
    let place = tempfile::Builder::new().prefix("ropewalk-workload-").tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let pools = ["data", "work", "util"].map(|name| cluster.mnt().join(name));
    pools.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let dirs = pools.each_ref().map(|dir| dir.to_str().unwrap()).join(",");

    let (good, bad) = (path("good"), path("bad"));
    let said = ok(&run(&dirs, &good, &[]));
    assert!(said.contains(&format!("{JOBS} jobs, {JOBS} of them right")), "{said}");
    assert_eq!(jobs(&good).values().map(|(right, _)| *right).sum::<u64>(), JOBS as u64);
    assert!(jobs(&good).len() == 6, "six tests: {:?}", jobs(&good));
    // One plan, and one cell of it.
    let mut logs = Path::new(&good).join("logs");
    for _ in 0..2 {
        let within = entries(&logs);
        assert_eq!(within.len(), 1, "{within:?}");
        logs.extend(within);
    }
    assert_eq!(entries(&logs).len(), JOBS);
    let log = fs::read_to_string(logs.join("n1-gsort-1.log")).unwrap();
    assert!(log.starts_with("NOTE: sort gsort used (Total process time):\n      real time "), "{log}");
    let page = fs::read_to_string(Path::new(&good).join("report.html")).unwrap();
    assert!(
        page.contains("cumulative real time") && page.contains(">gsort<") && !page.contains(">dim_50mil<"),
        "the table of tests"
    );
    laid_out::laid_out(&Path::new(&good).join("report.html"), "workload");
    // What jobs made is gone; the inputs stay.
    assert_eq!(entries(&pools[0]), ["ropewalk-workload".to_owned()].into());
    assert!(entries(&pools[1]).is_empty() && entries(&pools[2]).is_empty());
    ok(&["lab", "compare", &good, &good]);

    // One byte of one input, through the mount: within the last column, so that no engine refuses it.
    let input = pools[0].join("ropewalk-workload/focus");
    let file = fs::OpenOptions::new().read(true).write(true).open(&input).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 64 * 1000 + 50).unwrap();
    file.write_all_at(&[if byte[0] == b'0' { b'1' } else { b'0' }], 64 * 1000 + 50).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let values = format!("{good}/values.json");
    let said = refused(&run(&dirs, &bad, &["--values", &values]));
    assert!(said.contains("1 cells failed"), "{said}");
    for (test, (right, all)) in jobs(&bad) {
        assert_eq!(right, if test == "focus2" { 0 } else { all }, "{test}");
    }
    let markdown = ok(&["lab", "report", &bad, "--format", "md"]);
    assert!(
        markdown.contains("n1-focus2-1: wrong: again.") && markdown.contains("1 of 24 jobs are not right"),
        "{markdown}"
    );
}

#[test]
fn what_is_missing_is_refused_and_a_stop_ends_every_job() {
    let place = tempfile::Builder::new().prefix("ropewalk-workload-").tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (dir, out) = (path("dir"), path("out"));
    fs::create_dir(&dir).unwrap();
    let words = ["lab", "workload", "analytics-20", "--short", "--dir", &dir, "--out", &out];
    let with = |more: &[&str]| refused(&[&words[..], more].concat());
    // Nobody has made an environment in this home.
    let mut command = Command::new(ROPEWALK);
    let output = command.args(words).env("HOME", place.path()).env_remove("XDG_DATA_HOME").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("`ropewalk lab workload setup`"), "{said}");
    assert!(with(&["--env", &dir]).contains("is no environment"));
    assert!(with(&["--engine", "abacus"]).contains("data-step"));
    assert!(with(&["--engine", "sort", "--scale", "1000"]).contains("--scale"));
    assert!(with(&["--dir", &format!("{dir},{dir}")]).contains("DATA,WORK,UTIL"));
    assert!(with(&["--dir", &path("gone")]).contains("gone is no directory"));
    assert_eq!((entries(place.path()), entries(Path::new(&dir)).len()), (["dir".to_owned()].into(), 0));

    // Rounds enough to be stopped in.
    let mut words = run(&dir, &out, &["--rounds", "200", "--concurrency", "4"]);
    let mut child = Command::new(ROPEWALK)
        .args(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let own = Path::new(&dir).join(format!("ropewalk-workload-{}", child.id()));
    // It makes its inputs first, and finds out what is right.
    let end = Instant::now() + RUN_MAX;
    while !fs::read_dir(&own).is_ok_and(|jobs| jobs.count() > 1) {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < end, "no job runs");
        thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success(), "a stopped run is not done");
    assert_eq!(entries(Path::new(&dir)), ["ropewalk-workload".to_owned()].into());
    // No job goes on: none has its programs on its command line.
    let programs = format!("{out}/work/programs");
    let runs = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&programs)
        })
        .count()
    };
    until("no job is left", || runs() == 0);
    // The inputs that are there are taken by a new run; the same directory of results is not.
    words.truncate(words.len() - 4);
    assert!(refused(&words).contains("is not empty"));
    let again = path("again");
    let made = fs::metadata(Path::new(&dir).join("ropewalk-workload/gsort")).unwrap().modified().unwrap();
    ok(&run(&dir, &again, &["--values", &format!("{out}/values.json")]));
    assert_eq!(
        fs::metadata(Path::new(&dir).join("ropewalk-workload/gsort")).unwrap().modified().unwrap(),
        made
    );
}

/// Of a process: its network namespace, its control groups, its command line. One that ends loses its command line before it goes to the
/// outermost group: where there is a command line, which is read last, the group is the one that it was in.
fn process(pid: &Path) -> Option<(fs::File, String, Vec<String>)> {
    let groups = fs::read_to_string(pid.join("cgroup")).ok()?;
    let space = fs::File::open(pid.join("ns/net")).ok()?;
    let line = fs::read(pid.join("cmdline")).ok()?;
    let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    Some((space, groups, words.collect()))
}

fn number(space: &fs::File) -> u64 {
    space.metadata().unwrap().ino()
}

#[test]
fn client_nodes_that_stand_in_are_hosts_with_limits_of_their_own() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: network namespaces and control groups need root");
        return;
    }
    let place = tempfile::Builder::new().prefix("ropewalk-workload-").tempdir().unwrap();
    let out = place.path().join("out").to_str().unwrap().to_owned();
    let words =
        ["lab", "workload", "analytics-nodes", "--short", "--scale", "0", "--rounds", "2", "--out", &out];
    let mut child = Command::new(ROPEWALK)
        .args([&words[..], &ENGINES].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Of each mount and of each job that was met: its network namespace, and whether it is in the group of node n.
    let id = child.id();
    let group = |node: usize| format!("/ropewalk-lab-{id}-n{node}");
    let (mut mounts, mut jobs) = (BTreeMap::new(), BTreeSet::new());
    // The servers' processes, each where it was seen last: what starts them is not there from its first moment.
    let mut servers = BTreeMap::new();
    // Held, so that no other namespace gets their numbers when they have gone.
    let mut held = BTreeMap::new();
    let (point, programs) = (format!("{out}/work/mnt"), format!("{out}/work/programs/"));
    let end = Instant::now() + RUN_MAX;
    let ended = loop {
        for pid in fs::read_dir("/proc").unwrap().flatten() {
            let Some((held_space, groups, words)) = process(&pid.path()) else { continue };
            let space = number(&held_space);
            let word = |sign: &str| words.iter().any(|word| word == sign);
            let within =
                (1..=2).find(|node| groups.lines().filter(|line| line.ends_with(&group(*node))).count() > 0);
            if word("--foreground")
                && let Some(mount) = words.iter().find_map(|word| word.strip_prefix(&point))
            {
                mounts.insert(mount.to_owned(), (space, within));
                held.insert(space, held_space);
            } else if word("serve") && words.iter().any(|word| word.starts_with(&out)) {
                servers.insert(pid.file_name(), space);
                held.insert(space, held_space);
            } else if words.iter().any(|word| word.starts_with(&programs) && word.ends_with("_tests.py"))
                && words.iter().any(|word| word.starts_with(&point))
            {
                // Not one that computes on the local disk what is expected.
                // The supervisor is in its group before it starts the job, whose command line is its own's end.
                let supervised = words.iter().any(|word| word.ends_with("supervise.py"));
                jobs.extend((!supervised).then_some((space, within)));
            }
        }
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        assert!(Instant::now() < end, "the run does not end");
        // Most jobs last longer.
        thread::sleep(Duration::from_millis(20));
    };
    assert!(ended.success(), "every result is right");
    let home = fs::metadata("/proc/self/ns/net").unwrap().ino();
    let servers: BTreeSet<u64> = servers.into_values().collect();
    let spaces: BTreeSet<u64> =
        mounts.values().map(|(space, _)| *space).chain(servers.clone()).chain([home]).collect();
    assert_eq!((mounts.len(), servers.len(), spaces.len()), (2, 1, 4), "{mounts:?} {servers:?}");
    assert_eq!((mounts["1"].1, mounts["2"].1), (Some(1), Some(2)));
    assert_eq!(jobs, mounts.values().copied().collect(), "jobs run where the mount of their node does");

    let report = ok(&["lab", "report", &out, "--format", "json"]);
    for node in [1, 2] {
        let told = format!(
            "node {node}: its mount and its jobs share a link of 40000 Mbit/s, 1 CPU and 8g of memory"
        );
        assert!(report.contains(&told), "{told}");
    }
    // Nothing of it is left.
    for hierarchy in ["", "cpu", "memory"].map(|name| Path::new("/sys/fs/cgroup").join(name)) {
        assert!((1..=2).all(|node| !hierarchy.join(&group(node)[1..]).exists()), "{}", hierarchy.display());
    }
    let left = fs::read_dir("/proc").unwrap().flatten();
    let left = left.filter_map(|pid| process(&pid.path())).find(|(space, ..)| {
        let space = number(space);
        space != home && spaces.contains(&space)
    });
    assert!(left.is_none(), "a process is left in a namespace: {left:?}");
}
