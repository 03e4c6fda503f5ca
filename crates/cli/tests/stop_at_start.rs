//! A process that is told to stop (SIGTERM) while it starts: it ends at once, in good order, and does not go on as if nothing
//! had been said.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use common::{Cluster, ROPEWALK, Random, processes::signal, seed};
use rustix::process::{Pid, Signal, kill_process};

/// Below what any step of a start waits for by itself, or than the fault below lasts.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that stands still until this is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT); // gone is as good
    }
}

struct Start<'a> {
    cluster: &'a Cluster,
    name: String,
    child: Child,
    log: PathBuf,
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill(); // of a test that fails
        let _ = self.child.wait();
    }
}

impl<'a> Start<'a> {
    fn of(cluster: &'a Cluster, name: &str, args: &[&str], variables: &[(&str, &str)]) -> Start<'a> {
        let log = cluster.dir().join("log").join(format!("{name}.start"));
        let out = File::create(&log).unwrap();
        let child = Command::new(ROPEWALK)
            .args(args)
            .envs(variables.iter().copied())
            .stdin(std::process::Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap();
        Start { cluster, name: name.to_owned(), child, log }
    }

    fn server(cluster: &'a Cluster, name: &str, variables: &[(&str, &str)]) -> Start<'a> {
        Start::of(
            cluster,
            name,
            &["serve", "--dir", cluster.dir().to_str().unwrap(), "--name", name],
            variables,
        )
    }

    fn mount(cluster: &'a Cluster, at: &Path) -> Start<'a> {
        let name = format!("mount{}", at.to_str().unwrap().replace('/', "-"));
        let dir = cluster.dir();
        let args = ["mount", "--foreground", "--dir", dir.to_str().unwrap(), "fs1", at.to_str().unwrap()];
        Start::of(cluster, &name, &args, &[])
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn until_it_says(&self, line: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.said().contains(line) {
            assert!(Instant::now() < end, "{}: no {line:?} in {}", self.name, self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Tells it to stop, and waits until it has: nothing of it is left.
    fn stop(mut self) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "{} does not stop: {}", self.name, self.said());
            thread::sleep(Duration::from_millis(20));
        };
        for left in ["pid", "ready"] {
            let file = self.cluster.dir().join("run").join(format!("{}.{left}", self.name));
            assert!(!file.exists(), "{} is left: {}", file.display(), self.said());
        }
        (status, self.said())
    }

    fn stop_before_it_serves(self) {
        let (status, said) = self.stop();
        assert!(status.success(), "{status}: {said}");
    }
}

/// Kills it, and removes what it leaves: the next one may be told to stop before it does so.
fn kill(cluster: &Cluster, name: &str) {
    cluster.kill(|other| other == name);
    for left in ["pid", "ready"] {
        let _ = fs::remove_file(cluster.dir().join("run").join(format!("{name}.{left}"))); // perhaps it had none
    }
}

fn pid_of(cluster: &Cluster, wanted: &str) -> Pid {
    let found = cluster.processes().into_iter().find(|(name, _)| name == wanted);
    found.and_then(|(_, pid)| Pid::from_raw(pid)).unwrap()
}

#[test]
fn who_is_told_to_stop_while_it_starts_stops() {
    let mut random = Random(seed());
    let cluster = Cluster::three(&["--pdisk-size", "96m"]);
    let other = cluster.dir().with_file_name("other");
    fs::create_dir(&other).unwrap();
    let other = other.canonicalize().unwrap();
    // A server whose pdisk answers after an hour.
    kill(&cluster, "n1");
    let slow = [("ROPEWALK_PDISK_FAULT", "delay 3600000ms on=read")];
    let start = Start::server(&cluster, "n1", &slow);
    start.until_it_says("opens its pdisks");
    start.stop_before_it_serves();
    // A mount and a server whose manager says nothing.
    let manager = Stopped(pid_of(&cluster, "manager"));
    signal(manager.0, Signal::STOP);
    let starts = [
        (Start::mount(&cluster, &other), "mounts fs1 on"),
        (Start::server(&cluster, "n1", &[]), "waits for the manager"),
    ];
    starts.iter().for_each(|(start, line)| start.until_it_says(line));
    starts.into_iter().for_each(|(start, _)| start.stop_before_it_serves());
    drop(manager);
    // Each at any moment: before it has begun, at a step of it, or when it serves.
    for _ in 0..6 {
        for start in [Start::server(&cluster, "n1", &[]), Start::mount(&cluster, &other)] {
            thread::sleep(Duration::from_millis(random.below(150)));
            start.stop();
        }
        kill(&cluster, "manager");
        let start = Start::server(&cluster, "manager", &[]);
        thread::sleep(Duration::from_millis(random.below(150)));
        start.stop();
        cluster.start_server("manager");
    }
    cluster.start_server("n1");
    cluster.wait_all_ok(Duration::from_secs(120));
    cluster.down();
}
