//! Machines of a cluster: hosts in network namespaces, each with a directory of its own.
#![allow(dead_code)] // each test file uses a part
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a helper that fails is a test that fails

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Mutex,
};

use serde_json::Value;

use crate::{beds::Bed, common::ROPEWALK};

/// A host with a directory of its own.
pub struct Machine<'a> {
    pub bed: &'a Bed,
    /// Its number, from 1.
    pub host: usize,
    pub dir: PathBuf,
    /// The build that it runs takes itself for these versions (`ROPEWALK_TEST_VERSIONS`), where they are set.
    versions: Mutex<Option<&'static str>>,
    /// Whether its /sys is its own: it shows the links of the host then, and mounts are not seen here.
    own_sys: bool,
}

impl<'a> Machine<'a> {
    pub fn new(bed: &'a Bed, base: &Path, host: usize) -> Machine<'a> {
        Machine::at(bed, base.join(format!("h{host}")), host)
    }

    pub fn at(bed: &'a Bed, dir: PathBuf, host: usize) -> Machine<'a> {
        Machine { bed, host, dir, versions: Mutex::default(), own_sys: false }
    }

    /// With a /sys of its own.
    pub fn with_sys(self) -> Machine<'a> {
        Machine { own_sys: true, ..self }
    }

    /// Another version of the program is installed: what begins from now on is of it.
    pub fn install(&self, versions: &'static str) {
        *self.versions.lock().unwrap() = Some(versions);
    }

    pub fn run(&self, words: &[&str]) -> Output {
        let dir = self.dir.to_str().unwrap();
        // The network of the host alone: what is mounted is seen here as well.
        let net = format!("--net=/run/netns/{}", self.bed.netns(self.host));
        let versions = self.versions.lock().unwrap().map(|versions| ("ROPEWALK_TEST_VERSIONS", versions));
        let mut command = Command::new("nsenter");
        command.arg(&net);
        if self.own_sys {
            let mounted = "mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"";
            command.args(["unshare", "--mount", "sh", "-c", mounted]);
        }
        command.arg(ROPEWALK).args(words).args(["--dir", dir]).envs(versions).output().unwrap()
    }

    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(!output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["--json"]].concat())).unwrap()
    }

    /// One in each of its networks, as `--address` takes them.
    pub fn addresses(&self) -> String {
        self.bed.addrs(self.host - 1).join(",")
    }

    /// The ends of its logs, for failure messages.
    fn show_logs(&self) {
        for log in fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(log.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
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
        for entry in fs::read_dir(self.dir.join("run")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "pid") && path.file_stem().is_some_and(&its) {
                let text = fs::read_to_string(path).unwrap();
                let pid = text.lines().next().unwrap().parse().unwrap();
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                // One that has ended needs none.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
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
