//! Stories of pdisks in live servers: they fail, are slow, are full; their queues are told other things; their
//! logs stand elsewhere.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{fs, io::Write, os::unix::fs::MetadataExt, path::Path, process::Command, time::Duration};

use common::{Cluster, Random, copy_tree, ok, refused, same_tree, seed, unheard, until, write_tree};
use serde_json::Value;

const FAULT: &str = "ROPEWALK_PDISK_FAULT";
const PATIENCE: Duration = Duration::from_secs(120);

fn events(cluster: &Cluster, name: &str) -> Vec<Value> {
    let all = cluster.json(&["pdisk", "events"]);
    all.as_array().unwrap().iter().filter(|e| e["name"] == name).cloned().collect()
}

/// The same, as soon as there are any: a server has two seconds to tell its own.
fn told(cluster: &Cluster, name: &str) -> Vec<Value> {
    let mut found = Vec::new();
    until(name, || {
        found = events(cluster, name);
        !found.is_empty()
    });
    found
}

/// Waits until every pdisk is `ok` after its server began anew, which the manager may not have noticed yet.
fn all_back(cluster: &Cluster) {
    cluster.wait_reported(PATIENCE);
    cluster.wait_all_ok(PATIENCE);
}

fn pdisks(cluster: &Cluster) -> Vec<Value> {
    cluster.json(&["pdisk", "list"]).as_array().unwrap().clone()
}

/// Whether all pdisks are ok, and this one alone is not.
fn only_bad(cluster: &Cluster, name: &str) -> bool {
    pdisks(cluster).iter().all(|p| (p["state"] == "ok") == (p["name"] != name))
}

/// Copies a tree onto the mount, durably.
fn copy(cluster: &Cluster, from: &Path, to: &str) {
    let to = cluster.mnt().join(to);
    copy_tree(from, &to);
    for file in walk(&to) {
        fs::File::open(&file).unwrap().sync_all().unwrap();
    }
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// A pdisk fails under load while another is slow: told once, everything acknowledged is there, and all of it
/// still without the process that has the failed one.
#[test]
fn a_pdisk_fails_and_another_is_slow_under_load() {
    let mut random = Random(seed());
    let cluster = Cluster::up(&["--pdisk-size", "256m"]);
    let local = tempfile::tempdir().unwrap();
    write_tree(local.path(), 40, &mut random);
    copy(&cluster, local.path(), "before");
    cluster.kill(|name| name == "n2" || name == "n3");
    let now = cluster.dir().join("fail-now");
    let fails = format!("eio on=write file=data path=n2/pdisk1 once={} after=3", now.display());
    cluster.start_server_with("n2", &[(FAULT, &fails)]);
    cluster.start_server_with("n3", &[(FAULT, "delay 5ms on=any p=0.2")]);
    all_back(&cluster);
    fs::write(now, "").unwrap();
    copy(&cluster, local.path(), "during");
    for tree in ["before", "during"] {
        same_tree(local.path(), &cluster.mnt().join(tree));
    }
    let failed = told(&cluster, "pdisk_failed");
    assert_eq!(failed.len(), 1, "told once: {failed:?}");
    assert_eq!((failed[0]["process"].as_str(), failed[0]["severity"].as_str()), (Some("n2"), Some("error")));
    // Its own write, or that of bytes which the log had until then.
    let text = failed[0]["text"].as_str().unwrap();
    assert!(text.contains("write data") || text.contains("background write"), "{failed:?}");
    until("that one counts no more, the slow ones do", || only_bad(&cluster, "n2p1"));
    // Whole without the process that has it, as well.
    cluster.kill(|name| name == "n2");
    // Where the manager is not heard in time, it says that instead.
    until("it is said who does not answer", || {
        let said = unheard(&["pdisk", "events", "--dir", cluster.dir().to_str().unwrap()]);
        said.contains("since they do not answer") && said.contains("n2 at ")
    });
    same_tree(local.path(), &cluster.mnt().join("during"));
}

/// Some reads fail on one pdisk: nobody sees it, it stays in use. The flush of a log fails on another: told once, it
/// counts no more, and nothing that was acknowledged is lost.
#[test]
fn reads_fail_here_and_a_flush_fails_there() {
    let mut random = Random(seed());
    let cluster = Cluster::up(&["--pdisk-size", "256m"]);
    let local = tempfile::tempdir().unwrap();
    write_tree(local.path(), 40, &mut random);
    copy(&cluster, local.path(), "before");
    // Everything down: what is read afterwards comes from the disks.
    cluster.down();
    cluster.set_env(
        FAULT,
        "eio on=read file=data path=n2/pdisk1 times=3; eio on=flush file=log path=n3/pdisk1 after=80",
    );
    cluster.start();
    cluster.wait_all_but(PATIENCE, &["n3p1"]);
    same_tree(local.path(), &cluster.mnt().join("before"));
    until("reads did fail", || {
        let said = fs::read_to_string(cluster.dir().join("log/n2.log")).unwrap();
        said.contains("read error: the strip counts as lost")
    });
    copy(&cluster, local.path(), "during0");
    // How often a log is flushed for those a busy machine decides: each of these is flushed by itself.
    let mut stored = 0;
    while events(&cluster, "pdisk_failed").is_empty() {
        assert!(stored < 4000, "a log that is never flushed");
        for n in stored..stored + 20 {
            store(&cluster.mnt().join(format!("small{n}")), n, 5000).unwrap();
        }
        stored += 20;
    }
    let failed = told(&cluster, "pdisk_failed");
    assert_eq!(failed.len(), 1, "told once: {failed:?}");
    assert_eq!(failed[0]["process"].as_str(), Some("n3"));
    assert!(failed[0]["text"].as_str().unwrap().contains("flush log"), "{failed:?}");
    for tree in ["before", "during0"] {
        same_tree(local.path(), &cluster.mnt().join(tree));
    }
    until("that one counts no more, the one with bad reads does", || only_bad(&cluster, "n3p1"));
}

/// A file of `len` bytes that follow from `n`, durable; or why not.
fn store(path: &Path, n: u64, len: usize) -> std::io::Result<()> {
    let mut bytes = vec![0; len];
    Random(n).fill(&mut bytes);
    let mut file = fs::File::create(path)?;
    file.write_all(&bytes)?;
    file.sync_all()
}

fn holds(path: &Path, n: u64, len: usize) -> bool {
    let mut bytes = vec![0; len];
    Random(n).fill(&mut bytes);
    fs::read(path).unwrap() == bytes
}

/// The pdisks are filled until a write is refused: ENOSPC, nothing lost, it is told, and what is deleted can be
/// written again.
#[test]
fn full_pdisks_refuse_lose_nothing_and_tell() {
    const FILE: usize = 4 << 20;
    let cluster = Cluster::three(&["--pdisk-size", "64m"]);
    let path = |n: u64| cluster.mnt().join(format!("f{n}"));
    // What was written of late may count twice until the servers' next report, and what is left of a file that was refused is given back in
    // the background: full is what stays full.
    let (mut stored, mut refused) = (0, 0);
    while refused < 3 {
        match store(&path(stored), stored, FILE) {
            Ok(()) => (stored, refused) = (stored + 1, 0),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                refused += 1;
                cluster.wait_reported(PATIENCE);
            }
        }
    }
    assert!((20..32).contains(&stored), "{stored} files of 4 MiB fit into 128 MiB");
    let told = told(&cluster, "pdisk_full");
    assert!(told.len() <= 3, "once each: {told:?}");
    assert!(told[0]["text"].as_str().unwrap().contains("delete files"), "{told:?}");
    let nearly = |p: &&Value| p["free_bytes"].as_u64().unwrap() * 16 < p["size_bytes"].as_u64().unwrap();
    until("the list shows it", || pdisks(&cluster).iter().filter(nearly).count() > 0);
    assert!(pdisks(&cluster).iter().all(|p| p["state"] == "ok"), "full is not failed");

    // What is there is there, also after everything was down.
    fs::remove_file(path(stored)).unwrap();
    cluster.down();
    cluster.start();
    for n in 0..stored {
        assert!(holds(&path(n), n, FILE), "file {n} of {stored}");
    }
    for n in 0..4 {
        fs::remove_file(path(n)).unwrap();
    }
    until("room comes back", || store(&path(stored), stored, FILE).is_ok());
    assert!(holds(&path(stored), stored, FILE));
}

/// A file system of its own, mounted here while this lives.
struct Device {
    dir: tempfile::TempDir,
    _image: tempfile::NamedTempFile,
}

impl Device {
    /// On a loop device; in memory where there is none to be had.
    fn new(bytes: u64) -> Device {
        let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        image.as_file().set_len(bytes).unwrap();
        let run = |program: &str, args: &[&str]| {
            Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
        };
        let (at, from) = (dir.path().to_str().unwrap(), image.path().to_str().unwrap());
        let device = if run("mkfs.ext4", &["-q", from]) && run("mount", &["-o", "loop", from, at]) {
            "a loop device"
        } else if run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs", at]) {
            "tmpfs: no loop device is to be had"
        } else {
            panic!("no file system of its own can be mounted");
        };
        eprintln!("{at} is on {device}");
        Device { dir, _image: image }
    }
    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Lazily: a server that a failed test left behind may still hold a file.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// The file system that a pdisk lies on is full for a while, and its index files have nothing set aside, as those
/// of a pdisk of an older version: it waits for room, fails not, loses nothing, and goes on by itself.
#[test]
fn a_host_file_system_that_is_full_for_a_while_fails_no_pdisk() {
    const FILE: usize = 50_000;
    let device = Device::new(160 << 20);
    let cluster = Cluster::three(&["--pdisk-size", "64m"]);
    cluster.kill(|name| name == "n1");
    let (place, there) = (cluster.dir().join("nodes/n1/pdisk1"), device.path().join("pdisk1"));
    let copied = Command::new("cp").args(["-a", "--sparse=never"]).arg(&place).arg(&there).status().unwrap();
    assert!(copied.success());
    for (index, len) in [("index.0", 4096), ("index.1", 0)] {
        fs::OpenOptions::new().write(true).open(there.join(index)).unwrap().set_len(len).unwrap();
    }
    fs::remove_dir_all(&place).unwrap();
    std::os::unix::fs::symlink(&there, &place).unwrap();
    let filler = device.path().join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    let full = loop {
        if let Err(e) = file.write_all(&[7; 4096]) {
            break e;
        }
    };
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    cluster.start_server("n1");
    all_back(&cluster);
    let path = |n: u64| cluster.mnt().join(format!("f{n}"));
    let mut stored = 0;
    // Small files: they go through the log, which only checkpoints make short again.
    while events(&cluster, "pdisk_short").is_empty() {
        store(&path(stored), stored, FILE).unwrap();
        stored += 1;
        assert!(stored < 400, "no checkpoint lacks room\n{}", cluster.logs());
    }
    let told = told(&cluster, "pdisk_short");
    assert_eq!((told.len(), told[0]["process"].as_str()), (1, Some("n1")), "{told:?}");
    store(&path(stored), stored, FILE).unwrap();
    assert!(pdisks(&cluster).iter().all(|p| p["state"] == "ok"), "short of room is not failed");
    fs::remove_file(&filler).unwrap();
    until("it goes on by itself", || !events(&cluster, "pdisk_short_no_more").is_empty());
    assert!(events(&cluster, "pdisk_failed").is_empty());
    cluster.down();
    ok(&["pdisk", "verify", place.to_str().unwrap()]);
    cluster.start();
    cluster.wait_all_ok(PATIENCE);
    assert!((0..=stored).all(|n| holds(&path(n), n, FILE)));
}

fn device_of(path: &Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

/// Logs on another device: used, found again, in use by one process only; without them a pdisk does not serve,
/// and says which file it misses.
#[test]
fn logs_elsewhere_and_a_second_process() {
    let logs = Device::new(640 << 20);
    let log_dir = logs.path().to_str().unwrap();
    let cluster = Cluster::three(&["--pdisk-size", "128m", "--log-dir", log_dir]);
    store(&cluster.mnt().join("f"), 1, 3_000_000).unwrap();
    let made = walk(logs.path());
    assert_eq!(made.len(), 3, "{made:?}");
    let pdisk = cluster.dir().join("nodes/n1/pdisk1");
    assert!(made.iter().all(|log| device_of(log) != device_of(&pdisk)), "logs and data are on one device");
    until("each has opened its pdisk", || events(&cluster, "pdisk_opened").len() == 3);
    assert!(!pdisk.join("log").exists());
    let words = refused(&["pdisk", "verify", pdisk.to_str().unwrap()]);
    assert!(words.contains("open in another process") && words.contains("n1/pdisk1"), "{words}");
    let dump = refused(&["pdisk", "dump", pdisk.to_str().unwrap()]);
    assert!(dump.contains("open in another process"), "{dump}");

    cluster.kill(|name| name == "n1");
    ok(&["pdisk", "verify", pdisk.to_str().unwrap()]);
    let log = pdisk::Pdisk::log_path(&pdisk).unwrap();
    assert!(made.contains(&log), "{}", log.display());
    let away = logs.path().join("away");
    fs::rename(&log, &away).unwrap();
    let words = refused(&["pdisk", "verify", pdisk.to_str().unwrap()]);
    assert!(words.contains(log.to_str().unwrap()), "{words}");
    cluster.start_server("n1");
    let said = || fs::read_to_string(cluster.dir().join("log/n1.log")).unwrap();
    until("the server names what it misses", || said().contains(log.to_str().unwrap()));
    // As long as it has not ended nobody takes its place.
    until("it has ended", || !cluster.processes().iter().any(|(name, _)| name == "n1"));
    assert!(holds(&cluster.mnt().join("f"), 1, 3_000_000));
    fs::rename(&away, &log).unwrap();
    cluster.start_server("n1");
    all_back(&cluster);
    assert!(holds(&cluster.mnt().join("f"), 1, 3_000_000));
    // It was killed: the open says what it went through again, and which life of the pdisk this is.
    let mut opened = Vec::new();
    until("it has opened its pdisk", || {
        opened = events(&cluster, "pdisk_opened");
        opened.iter().any(|e| e["process"] == "n1")
    });
    let last = opened.iter().rfind(|e| e["process"] == "n1").unwrap();
    let text = last["text"].as_str().unwrap();
    assert_eq!(last["severity"], "info", "{last}");
    assert!(text.contains("for the 2. time") && text.contains("of log replayed, ready after"), "{text}");
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
    until("the queues take the change", || log("coalesce 4/50 us, depth 2"));
    fs::write(cluster.mnt().join("g"), vec![8; 3_000_000]).unwrap();
    assert_eq!(fs::read(cluster.mnt().join("g")).unwrap(), vec![8; 3_000_000]);

    set(&["num_io_queues=16", "io_dma_mib=64"]);
    assert!(events(&cluster, "io_one_queue").is_empty());
    cluster.kill(|name| name == "n1");
    cluster.start_server("n1");
    all_back(&cluster);
    let told = told(&cluster, "io_one_queue");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0]["text"].as_str().unwrap().contains("io_dma_mib=128"), "{told:?}");
    assert_eq!(fs::read(cluster.mnt().join("f")).unwrap(), vec![7; 3_000_000]);
}
