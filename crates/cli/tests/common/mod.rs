//! A real cluster for one test: real processes, a real mount, in a temporary directory; gone afterwards,
//! also when the test fails.
#![allow(dead_code)] // each test file uses a part
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a helper that fails is a test that fails

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tempfile::TempDir;

mod commands;
pub mod ports;
pub mod processes;

pub use commands::*;
use ports::Ports;
use processes::{is_gone, start_ticks};

/// What a shell does first in a mount namespace of its own: it lets go the mounts of other tests, which would go on there after they are
/// unmounted here, for their kernel. One whose directory is removed here meanwhile is gone there too, and is missed: once more then.
pub const LET_GO: &str = "for _ in 1 2 3; do umount --all --lazy --internal-only --no-canonicalize --types fuse.ropewalk && break; done";

/// Whether clusters are to be with three managers over three members of etcd, whatever the test.
pub fn over_etcd() -> bool {
    std::env::var("ROPEWALK_TEST_STORE").is_ok_and(|store| store == "etcd")
}

/// A cluster and its mount.
pub struct Cluster {
    root: TempDir,
    options: Vec<String>,
    /// Of its manager and servers.
    ports: Ports,
    /// Environment of everything that is started.
    env: Mutex<Vec<(String, String)>>,
    /// Servers started by [`Cluster::start_server`], to be reaped.
    children: Mutex<Vec<Child>>,
}

/// Options for three nodes with a pdisk each, any of which may be away.
pub const THREE: [&str; 6] = ["--nodes", "3", "--pdisks", "1", "--code", "2+1p"];

/// How long a process that is started may take to be there: one before it may still end.
const BEGIN_PATIENCE: Duration = Duration::from_secs(60);

/// Half of the tests, always the same ones, run with one thread for each process's tasks, as on two CPUs; the others with three, which take
/// these from each other.
fn runtime_threads() -> u32 {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    1 + name.bytes().fold(0, |sum, byte| sum ^ u32::from(byte) & 1) * 2
}

impl Cluster {
    /// Brings up [`THREE`] with further options of `up`.
    pub fn three(options: &[&str]) -> Cluster {
        Cluster::up(&[&THREE, options].concat())
    }

    /// Brings up a new cluster with further options of `up`.
    pub fn up(options: &[&str]) -> Cluster {
        let cluster = Cluster::prepare(options);
        cluster.start();
        cluster
    }

    /// Directories only.
    pub fn prepare(options: &[&str]) -> Cluster {
        Cluster::prepare_in(&std::env::temp_dir(), options)
    }

    /// Directories in `base`, only. `ROPEWALK_TEST_STORE=etcd`: of one with three managers over three members of etcd.
    pub fn prepare_in(base: &Path, options: &[&str]) -> Cluster {
        let root =
            tempfile::Builder::new().prefix("ropewalk-test-").tempdir_in(base).expect("temporary directory");
        fs::create_dir(root.path().join("mnt")).expect("mount point");
        let mut options: Vec<String> = options.iter().map(|s| s.to_string()).collect();
        if over_etcd() {
            options.extend(["--managers", "3", "--store", "etcd"].map(str::to_owned));
        }
        let env = Mutex::new(vec![("ROPEWALK_RUNTIME_THREADS".to_owned(), runtime_threads().to_string())]);
        Cluster { root, options, ports: Ports::take(), env, children: Mutex::default() }
    }

    /// `ropewalk up --detach` (again).
    pub fn start(&self) {
        let (dir, mnt) = (self.dir(), self.mnt());
        let mut args =
            vec!["up", "--dir", dir.to_str().unwrap(), "--mount", mnt.to_str().unwrap(), "--detach"];
        args.extend(self.options.iter().map(String::as_str));
        let port = self.ports.first.to_string();
        if !dir.join("cluster.toml").exists() {
            // It keeps them.
            args.extend(["--port", &port]);
        }
        let end = Instant::now() + Duration::from_secs(60);
        let output = loop {
            let output = Command::new(ROPEWALK).args(&args).envs(self.env()).output().expect("run ropewalk");
            // A connection of another test can have the port of a server that was killed, for a moment.
            let taken = String::from_utf8_lossy(&output.stderr).contains("Address already in use");
            if !taken || Instant::now() > end {
                break output;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        assert!(
            output.status.success(),
            "up: {}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            self.logs()
        );
    }

    /// Makes the cluster with these tunables and ends it again: when it is next started they hold from the first lease on.
    pub fn set_up(&self, tunables: &[&str]) {
        self.start();
        let dir = self.dir();
        ok(&[&["config", "set", "--dir", dir.to_str().unwrap()], tunables].concat());
        self.down();
    }

    /// What is started from now on gets this variable as well.
    pub fn set_env(&self, name: &str, value: &str) {
        let mut env = self.env.lock();
        env.retain(|(n, _)| n != name);
        env.push((name.to_owned(), value.to_owned()));
    }

    /// What everything that is started gets.
    pub fn env(&self) -> Vec<(String, String)> {
        self.env.lock().clone()
    }

    /// `ropewalk down`.
    pub fn down(&self) {
        ok(&["down", "--dir", self.dir().to_str().unwrap()]);
    }

    /// The cluster's directory.
    pub fn dir(&self) -> PathBuf {
        self.root.path().join("cluster")
    }

    /// The mount point.
    pub fn mnt(&self) -> PathBuf {
        self.root.path().join("mnt")
    }

    /// A command with `--dir` of this cluster and `--json`, parsed; see [`answer`].
    pub fn json(&self, words: &[&str]) -> serde_json::Value {
        let dir = self.dir();
        let args: Vec<&str> =
            words.iter().copied().chain(["--dir", dir.to_str().unwrap(), "--json"]).collect();
        answer(&args, || ropewalk(&args))
    }

    /// The processes that live, by name.
    pub fn processes(&self) -> Vec<(String, i32)> {
        let Ok(entries) = fs::read_dir(self.dir().join("run")) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(name) = name.strip_suffix(".pid") else { continue };
            let Ok(text) = fs::read_to_string(entry.path()) else { continue };
            let mut lines = text.lines();
            let (Some(Ok(pid)), Some(ticks)) = (lines.next().map(str::parse::<i32>), lines.next()) else {
                continue;
            };
            if start_ticks(pid).is_some_and(|now| now.to_string() == ticks) {
                found.push((name.to_owned(), pid));
            }
        }
        found
    }

    /// SIGKILL to the processes whose name passes the filter; waits until they are gone.
    pub fn kill(&self, filter: impl Fn(&str) -> bool) {
        self.end(filter, rustix::process::Signal::KILL);
    }

    /// Stops these processes in good order, and waits until they are gone.
    pub fn stop(&self, filter: impl Fn(&str) -> bool) {
        self.end(filter, rustix::process::Signal::TERM);
    }

    fn end(&self, filter: impl Fn(&str) -> bool, signal: rustix::process::Signal) {
        let victims: Vec<(String, i32)> =
            self.processes().into_iter().filter(|(name, _)| filter(name)).collect();
        for &(_, pid) in &victims {
            let pid = rustix::process::Pid::from_raw(pid).expect("positive");
            let _ = rustix::process::kill_process(pid, signal);
        }
        let end = Instant::now() + Duration::from_secs(60);
        while victims.iter().any(|&(_, pid)| !is_gone(pid)) {
            assert!(Instant::now() < end, "{signal:?} does not end {victims:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A signal to one process; see [`processes::signal`].
    pub fn signal(&self, name: &str, signal: rustix::process::Signal) {
        let found = self.processes().into_iter().find(|(process, _)| process == name);
        let (_, pid) = found.unwrap_or_else(|| panic!("{name} does not run\n{}", self.logs()));
        processes::signal(rustix::process::Pid::from_raw(pid).unwrap(), signal);
    }

    /// Starts one server process again, as an administrator would, and waits until it can be found, or has ended: one that cannot be
    /// found cannot be killed.
    pub fn start_server(&self, name: &str) {
        self.start_server_with(name, &[]);
    }

    /// The same with further variables in its environment.
    pub fn start_server_with(&self, name: &str, variables: &[(&str, &str)]) {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.dir().join("log").join(format!("{name}.log")))
            .unwrap();
        let mut child = Command::new(ROPEWALK)
            .args(["serve", "--dir", self.dir().to_str().unwrap(), "--name", name])
            .envs(self.env())
            .envs(variables.iter().copied())
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("start a server");
        let pid = child.id() as i32;
        let end = Instant::now() + BEGIN_PATIENCE;
        // Its pid, not any: the file may still name the one before.
        while !self.processes().iter().any(|(other, found)| other == name && *found == pid) {
            if let Some(status) = child.try_wait().unwrap() {
                eprintln!("{name} ended at its start: {status}"); // it may be meant to
                return;
            }
            if Instant::now() > end {
                self.children.lock().push(child);
                panic!(
                    "{name} (process {pid}) has no pid file {BEGIN_PATIENCE:?} after its start\n{}",
                    self.logs()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.children.lock().push(child);
    }

    /// Moves the directories of the managers, which rest, away.
    pub fn put_managers_aside(&self) {
        for entry in fs::read_dir(self.dir()).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name == "manager" || name.starts_with("manager@") {
                fs::rename(entry.path(), self.dir().join(format!("{name}.aside"))).unwrap();
            }
        }
    }

    /// Starts the members of etcd alone.
    pub fn start_etcd(&self) {
        (1..=3).for_each(|member| self.start_server(&format!("etcd@{member}")));
    }

    /// The managers' journal is to begin at a place in etcd where there is none.
    pub fn name_fresh_place(&self) {
        let file = self.dir().join("cluster.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("/ropewalk\""), "{text}");
        // Without the first line, which has the sum of what the program wrote.
        let (_, text) = text.split_once('\n').unwrap();
        fs::write(&file, text.replace("/ropewalk\"", "/restored\"")).unwrap();
    }

    /// Waits until every pdisk is `ok`.
    pub fn wait_all_ok(&self, patience: Duration) {
        self.wait_all_but(patience, &[]);
    }

    /// Waits until every pdisk but these is `ok`.
    pub fn wait_all_but(&self, patience: Duration, but: &[&str]) {
        let end = Instant::now() + patience;
        loop {
            let list = self.json(&["pdisk", "list"]);
            let states: Vec<&str> = list
                .as_array()
                .unwrap()
                .iter()
                .filter(|p| !but.contains(&p["name"].as_str().unwrap()))
                .map(|p| p["state"].as_str().unwrap())
                .collect();
            if states.iter().all(|&s| s == "ok") {
                return;
            }
            assert!(Instant::now() < end, "pdisks are {states:?} after {patience:?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until every pdisk has told the manager of what was stored before this call. The report after the next one begins after
    /// that one was answered.
    pub fn wait_reported(&self, patience: Duration) {
        self.wait_reported_but(patience, &[]);
    }

    /// The same of every pdisk but these.
    pub fn wait_reported_but(&self, patience: Duration, but: &[&str]) {
        let end = Instant::now() + patience;
        for _ in 0..2 {
            let begun = Instant::now();
            loop {
                let passed = begun.elapsed();
                let list = self.json(&["pdisk", "list"]);
                let since = |p: &serde_json::Value| {
                    let age = p["last_report_s"].as_f64();
                    but.contains(&p["name"].as_str().unwrap())
                        || age.is_some_and(|age| age + 0.001 < passed.as_secs_f64())
                };
                if list.as_array().unwrap().iter().all(since) {
                    break;
                }
                assert!(Instant::now() < end, "pdisks do not report: {list:#}\n{}", self.logs());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// The tails of all logs, for failure messages.
    pub fn logs(&self) -> String {
        let Ok(entries) = fs::read_dir(self.dir().join("log")) else { return String::new() };
        let mut text = String::new();
        for entry in entries.flatten() {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            text += &format!(
                "--- {}\n{}\n",
                entry.path().display(),
                lines[lines.len().saturating_sub(25)..].join("\n")
            );
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        let _ = rustix::mount::unmount(self.mnt(), rustix::mount::UnmountFlags::DETACH);
        self.kill(|_| true);
        for child in self.children.get_mut() {
            let _ = child.wait();
        }
    }
}

/// A small generator of numbers from a seed (SplitMix64, Steele et al. 2014), so that a failing run can be
/// repeated.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let n = self.next().to_le_bytes();
            piece.copy_from_slice(&n[..piece.len()]);
        }
    }
}

/// The first of some ports in a row that are this program's until it ends.
pub fn free_ports() -> u16 {
    let ports = Ports::take();
    let first = ports.first;
    std::mem::forget(ports);
    first
}

/// The seed of this run: `ROPEWALK_TEST_SEED`; drawn from the clock where that is `random`, and in the long forms; else always the same,
/// as what a new one finds has nothing to do with what is tested just now. Printed.
pub fn seed() -> u64 {
    let drawn =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = match std::env::var("ROPEWALK_TEST_SEED") {
        Ok(word) if word == "random" => drawn(),
        Ok(word) => word.parse().expect("ROPEWALK_TEST_SEED: a number, or random"),
        Err(_) if std::env::var_os("ROPEWALK_SOAK").is_some() => drawn(),
        Err(_) => 20_261_128,
    };
    println!("ROPEWALK_TEST_SEED={seed}");
    seed
}

/// Writes a tree of `count` files of mixed sizes; returns the bytes written.
pub fn write_tree(root: &Path, count: u64, random: &mut Random) -> u64 {
    let mut total = 0;
    for i in 0..count {
        let dir = root.join(format!("d{}", i % 7)).join(format!("e{}", i % 3));
        fs::create_dir_all(&dir).unwrap();
        let size = match i % 5 {
            0 => random.below(200),
            1 => random.below(5_000),
            2 => random.below(100_000),
            3 => random.below(1_000_000),
            _ => random.below(9_000_000),
        };
        let mut bytes = vec![0; size as usize];
        random.fill(&mut bytes);
        fs::write(dir.join(format!("f{i}")), &bytes).unwrap();
        total += size;
    }
    total
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    let mut pause = Duration::from_millis(25);
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        // To ask is often a process of its own, which takes CPU from what is waited for.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// A load rests as long as its last step took: what it is there to disturb needs the same few CPUs.
pub fn rest(step: Instant) {
    std::thread::sleep(step.elapsed().min(Duration::from_millis(100)));
}

/// Copies a file or a tree, with all that belongs to it.
pub fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("run cp");
    assert!(status.success(), "cp -a {} {}: {status}", from.display(), to.display());
}

/// Byte-for-byte comparison of two trees.
pub fn same_tree(a: &Path, b: &Path) {
    let output =
        Command::new("diff").args(["-r", "--no-dereference"]).arg(a).arg(b).output().expect("run diff");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
