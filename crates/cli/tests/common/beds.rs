//! Testbeds and netperf servers that go also when the test fails.
#![allow(dead_code)] // each test file uses a part
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::common::{ROPEWALK, ok};

/// A testbed that goes also when the test fails: its name, and the addresses of its hosts.
pub struct Bed(String, Vec<Vec<String>>);

impl Bed {
    pub fn up(name: &str, args: &[&str]) -> Bed {
        let name = format!("{name}{}", std::process::id());
        ok(&[&["lab", "testbed", "up", "--name", &name][..], args].concat());
        let mut bed = Bed(name, Vec::new());
        // Once: a command takes long on a busy machine, and what it is asked for between two faults comes too late.
        let all: Value = serde_json::from_str(&ok(&["lab", "testbed", "status", "--json"])).unwrap();
        let mine = all.as_array().unwrap().iter().find(|t| t["spec"]["name"] == bed.0.as_str()).unwrap();
        let text = |addr: &Value| addr.as_str().unwrap().to_owned();
        let addrs = |host: &Value| host["addrs"].as_array().unwrap().iter().map(text).collect();
        bed.1 = mine["hosts"].as_array().unwrap().iter().map(addrs).collect();
        bed
    }

    pub fn addr(&self, host: usize) -> String {
        self.addrs(host).swap_remove(0)
    }

    /// One in each of its networks.
    pub fn addrs(&self, host: usize) -> Vec<String> {
        self.1[host].clone()
    }

    /// Cuts a link of a host, or brings it back: `lab testbed link`.
    pub fn link(&self, host: &str, link: &str, state: &str) {
        ok(&["lab", "testbed", "link", "--name", &self.0, host, link, state]);
    }

    /// In a testbed with a router: what one host sends to another is lost from now on, and nobody is told, or passes again. Hosts are
    /// counted from 1.
    pub fn lose(&self, from: usize, to: usize, lost: bool) {
        self.lose_all(&[(from, to)], lost);
    }

    /// The same of pairs of hosts, at once.
    pub fn lose_all(&self, pairs: &[(usize, usize)], lost: bool) {
        let (router, change) = (format!("ropewalk-{}-switch", self.0), if lost { "add" } else { "del" });
        let line = |(from, to): &(usize, usize)| {
            format!("rule {change} from {} to {} blackhole\n", self.1[from - 1][0], self.1[to - 1][0])
        };
        let mut ip = Command::new("ip");
        let mut ip = ip.args(["-n", &router, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let lines: String = pairs.iter().map(line).collect();
        let told = ip.stdin.take().unwrap().write_all(lines.as_bytes());
        let changed = told.is_ok() && ip.wait().is_ok_and(|status| status.success());
        // A test that fails already must come to its end: a second panic would leave all of it behind.
        assert!(changed || std::thread::panicking(), "ip rule {change}");
    }

    /// The network namespace of host number `host`, counted from 1.
    pub fn netns(&self, host: usize) -> String {
        format!("ropewalk-{}-h{host}", self.0)
    }

    /// To be given a program and its arguments, which runs in the network of host number `host`, counted from 1, and of that alone: it
    /// sees what is mounted here, and here is seen what it mounts.
    pub fn enter(&self, host: usize) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.netns(host)));
        command
    }

    pub fn exec(&self, host: &str, command: &[&str]) -> Command {
        let mut ropewalk = Command::new(ROPEWALK);
        ropewalk.args(["lab", "testbed", "exec", "--name", &self.0, host]).args(command);
        ropewalk
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = Command::new(ROPEWALK).args(["lab", "testbed", "down", &self.0]).output();
    }
}

/// Reaped also when the test fails.
pub struct Reaped(pub Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a netperf server and waits until it listens.
pub fn serve(mut command: Command) -> (Reaped, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let addr = line.trim().rsplit(' ').next().unwrap().to_owned();
    (Reaped(child), addr)
}
