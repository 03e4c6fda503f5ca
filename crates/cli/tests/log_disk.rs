//! Nobody takes the log: a full disk, a full device, a pipe that nobody reads, one that is closed. Every process goes on,
//! reads and writes; what was not written is counted, and told when there is room again.

#![allow(clippy::unwrap_used)] // tests

mod common;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::{Cluster, ROPEWALK, ok, until};

const SHAPE: [&str; 8] = ["--nodes", "2", "--pdisks", "1", "--code", "2way", "--pdisk-size", "256m"];

/// Writes durably, reads, and lists on a mount.
fn used(mnt: &Path, round: u32) {
    for i in 0..20 {
        let path = mnt.join(format!("f{round}-{i}"));
        let file = fs::File::create(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![i as u8; 70_000], 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![i as u8; 70_000]);
    }
    assert!(fs::read_dir(mnt).unwrap().count() >= 20);
}

/// A small disk for `log/`, gone with the test.
struct LogDisk(std::path::PathBuf);

impl LogDisk {
    fn new(at: &Path) -> LogDisk {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "log"]).arg(at).status();
        assert!(mounted.unwrap().success());
        LogDisk(at.to_owned())
    }
    fn fill(&self) {
        let _ = fs::write(self.0.join("filler"), vec![0; 1 << 20]);
    }
}

impl Drop for LogDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_log_disk_stops_nobody_and_is_told() {
    let cluster = Cluster::up(&SHAPE);
    cluster.down();
    let disk = LogDisk::new(&cluster.dir().join("log"));
    disk.fill();
    cluster.set_env("ROPEWALK_LOG", "debug");
    cluster.start();
    let before = cluster.processes();
    assert_eq!(before.len(), 4, "{before:?}");
    used(&cluster.mnt(), 0);
    until("every process has lost lines, and says so", || {
        let status = ok(&["status", "--dir", cluster.dir().to_str().unwrap()]);
        status.lines().filter(|l| l.contains("lines of its log")).count() == 4
    });
    until("`health` says the same", || {
        let said = common::ropewalk(&["health", "--dir", cluster.dir().to_str().unwrap()]);
        let remarks = String::from_utf8_lossy(&said.stdout).into_owned();
        said.status.code() == Some(1) && remarks.matches("lines of its log").count() == 4
    });
    // Room again: the next line tells.
    fs::remove_file(cluster.dir().join("log/filler")).unwrap();
    let mut told = BTreeSet::new();
    until("two of them tell it", || {
        used(&cluster.mnt(), 1);
        for entry in fs::read_dir(cluster.dir().join("log")).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read(&path).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains("lines of this log could not be written") {
                told.insert(path.clone());
            }
            // What debug lines fill is made free again, and with it what told it.
            let _ = fs::OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(0));
        }
        told.len() >= 2
    });
    assert_eq!(cluster.processes(), before, "the same processes");
    cluster.down();
}

/// A mount process with its stderr where the test wants it.
fn foreground(cluster: &Cluster, stderr: Stdio) -> Child {
    Command::new(ROPEWALK)
        .args(["mount", "--foreground", "--dir", cluster.dir().to_str().unwrap(), "fs1"])
        .arg(cluster.mnt())
        .env("ROPEWALK_LOG", "trace")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap()
}

fn mounted(cluster: &Cluster) {
    let end = Instant::now() + Duration::from_secs(60);
    let is = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(cluster.mnt().to_str().unwrap());
    while !is() {
        assert!(Instant::now() < end, "not mounted");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_full_device_and_pipes_hold_nobody_up() {
    let cluster = Cluster::up(&SHAPE);
    let mnt = cluster.mnt();
    used(&mnt, 0);
    // Servers and manager anew, with a pipe that nobody reads and a device that is full.
    cluster.kill(|name| !name.starts_with("mount"));
    let mut children: Vec<Child> = ["manager", "n1", "n2"]
        .iter()
        .map(|name| {
            let stderr = match *name {
                "n1" => Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()),
                _ => Stdio::piped(),
            };
            Command::new(ROPEWALK)
                .args(["serve", "--dir", cluster.dir().to_str().unwrap(), "--name", name])
                .env("ROPEWALK_LOG", "trace")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(stderr)
                .spawn()
                .unwrap()
        })
        .collect();
    used(&mnt, 1);
    for what in ["full", "pipe", "closed"] {
        ok(&["umount", mnt.to_str().unwrap()]);
        let mut child = match what {
            "full" => {
                foreground(&cluster, fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into())
            }
            _ => foreground(&cluster, Stdio::piped()),
        };
        if what == "closed" {
            drop(child.stderr.take());
        }
        mounted(&cluster);
        used(&mnt, 2);
        assert!(child.try_wait().unwrap().is_none(), "{what}: the mount is gone");
        children.push(child);
    }
    used(&mnt, 3);
    cluster.down();
    for child in &mut children {
        let ended = child.wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
}
