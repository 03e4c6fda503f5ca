//! Machines of a cluster: hosts in network namespaces, each with a directory of its own.
#![allow(dead_code)] // each test file uses a part
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a helper that fails is a test that fails

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Mutex,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    beds::Bed,
    common::{LET_GO, ROPEWALK, answer, done, failed, heard, processes, succeeded},
};

/// A host with a directory of its own.
pub struct Machine<'a> {
    pub bed: &'a Bed,
    /// Its number, from 1.
    pub host: usize,
    pub dir: PathBuf,
    /// Environment of what begins on it.
    env: Mutex<BTreeMap<&'static str, OsString>>,
    /// Whether its /sys is its own: it shows the links of the host then, and mounts are not seen here.
    own_sys: bool,
}

impl<'a> Machine<'a> {
    pub fn new(bed: &'a Bed, base: &Path, host: usize) -> Machine<'a> {
        Machine::at(bed, base.join(format!("h{host}")), host)
    }

    pub fn at(bed: &'a Bed, dir: PathBuf, host: usize) -> Machine<'a> {
        Machine { bed, host, dir, env: Mutex::default(), own_sys: false }
    }

    /// With a /sys of its own.
    pub fn with_sys(self) -> Machine<'a> {
        Machine { own_sys: true, ..self }
    }

    /// Another version of the program is installed: what begins from now on takes itself for these versions.
    pub fn install(&self, versions: &'static str) {
        self.set_env("ROPEWALK_TEST_VERSIONS", versions);
    }

    /// What begins from now on gets this variable as well.
    pub fn set_env(&self, name: &'static str, value: impl Into<OsString>) {
        self.env.lock().unwrap().insert(name, value.into());
    }

    /// A command that is not begun yet.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.bed.enter(self.host);
        if self.own_sys {
            let mounted = format!("{LET_GO} && mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"");
            command.args(["unshare", "--mount", "--propagation", "private", "sh", "-c", &mounted]);
        }
        command.arg(ROPEWALK).args(words).arg("--dir").arg(&self.dir).envs(&*self.env.lock().unwrap());
        command
    }

    /// Once.
    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// See [`done`].
    pub fn ok(&self, words: &[&str]) -> String {
        succeeded(words, done(|| self.run(words)))
    }

    pub fn refused(&self, words: &[&str]) -> String {
        failed(words, heard(|| self.run(words)))
    }

    /// What it answers to a question.
    pub fn json(&self, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        answer(&words, || self.run(&words))
    }

    /// One in each of its networks, as `--address` takes them.
    pub fn addresses(&self) -> String {
        self.bed.addrs(self.host - 1).join(",")
    }

    /// The ends of its logs, for failure messages.
    pub fn show_logs(&self) {
        for log in fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(log.path()).unwrap_or_default();
            // Whoever is away is called again and again.
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("INFO net::")).collect();
            eprintln!("--- {}\n{}", log.path().display(), lines[lines.len().saturating_sub(25)..].join("\n"));
        }
    }

    pub fn token(&self, options: &[&str]) -> String {
        self.ok(&[&["node", "token"], options].concat()).trim().to_owned()
    }

    pub fn join(&self, token: &str) -> String {
        self.begin(&["join", token, "--name", &format!("h{}", self.host)])
    }

    /// `init` or `join` with an address and a disk.
    pub fn begin(&self, words: &[&str]) -> String {
        let (addr, disk) = (self.bed.addr(self.host - 1), self.dir.with_extension("disk"));
        let place = ["--address", &addr, "--pdisk", disk.to_str().unwrap(), "--pdisk-size", "192m"];
        self.ok(&[words, &place[..]].concat())
    }

    /// Mounts fs1 beside its directory.
    pub fn mounted(&self) -> PathBuf {
        let mnt = self.dir.with_extension("mnt");
        fs::create_dir(&mnt).unwrap();
        self.ok(&["mount", "fs1", mnt.to_str().unwrap()]);
        mnt
    }

    /// Takes what it runs away from it, without a word: its power is off.
    pub fn kill(&self) {
        self.kill_those(|_| true);
    }

    /// Takes one process away from it.
    pub fn kill_process(&self, name: &str) {
        self.kill_those(|stem| stem == name);
    }

    fn kill_those(&self, its: impl Fn(&OsStr) -> bool) {
        let files = fs::read_dir(self.dir.join("run")).unwrap().map(|entry| entry.unwrap().path());
        let is = |path: &PathBuf| {
            path.extension().is_some_and(|end| end == "pid") && path.file_stem().is_some_and(&its)
        };
        // All at once, then all are waited for.
        let killed: Vec<Pid> = files.filter(is).filter_map(|file| signal_of(&file, Signal::KILL)).collect();
        killed.into_iter().for_each(|pid| processes::took(pid, Signal::KILL));
    }

    /// Sends it to a process of its own, which may have ended; see [`processes::signal`].
    pub fn signal(&self, name: &str, signal: Signal) {
        if let Some(pid) = signal_of(&self.dir.join("run").join(format!("{name}.pid")), signal) {
            processes::took(pid, signal);
        }
    }

    /// The number of a process that lives; one that has ended and is not reaped yet does not.
    pub fn pid(&self, name: &str) -> Option<i32> {
        live(&self.dir.join("run").join(format!("{name}.pid")))
    }
}

/// The process that a pid file names, if it lives: another one may have its number by now.
fn live(pid_file: &Path) -> Option<i32> {
    let text = fs::read_to_string(pid_file).ok()?;
    let mut lines = text.lines();
    let pid: i32 = lines.next()?.parse().ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let same = base::proc_stat::start_ticks(&stat)?.to_string() == lines.next()?;
    let dead = stat.rsplit(')').next()?.trim_start().starts_with('Z');
    (same && !dead).then_some(pid)
}

/// Whom it was sent; one that has ended needs none.
fn signal_of(pid_file: &Path, signal: Signal) -> Option<Pid> {
    let pid = live(pid_file).and_then(Pid::from_raw)?;
    kill_process(pid, signal).ok().map(|()| pid)
}

/// What runs on the machines of a test ends with it.
pub struct Down<'a>(pub Vec<&'a Machine<'a>>);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|machine| machine.show_logs());
        }
        self.0.iter().rev().for_each(|machine| drop(machine.run(&["down", "--force"])));
    }
}

pub fn states(machine: &Machine<'_>) -> Vec<(String, String)> {
    let nodes = machine.json(&["node", "list"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    nodes.as_array().unwrap().iter().map(|node| (text(&node["name"]), text(&node["state"]))).collect()
}

pub fn well(machine: &Machine<'_>) -> bool {
    let pdisks = machine.json(&["pdisk", "list"]);
    let ok = pdisks.as_array().unwrap().iter().all(|pdisk| pdisk["state"] == "ok");
    ok && states(machine).iter().all(|(_, state)| state == "serves")
}

/// Whether `health` has nothing to say. What has just come back may be well and not heard of yet.
pub fn healthy(machine: &Machine<'_>) -> bool {
    let health = machine.run(&["health"]);
    health.status.success() && health.stdout == b"healthy\n"
}
