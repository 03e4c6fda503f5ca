//! A process of its own for one of a test's ends, which says where it listens.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Killed with this value.
pub struct Process {
    pub child: Child,
    pub addr: SocketAddr,
}

impl Process {
    /// Runs this program's test `role`, which finds `addr` in the variable and prints `listening ADDRESS`.
    pub fn run(role: &str, variable: &str, addr: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", role, "--nocapture"])
            .env(variable, addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addr = lines.map_while(Result::ok).find_map(|l| l.strip_prefix("listening ").map(str::to_owned));
        Process { child, addr: addr.expect("the server says where it listens").parse().unwrap() }
    }
    pub fn proc(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.child.id())
    }
    /// Stops it, and waits until each of its threads has stopped.
    pub fn stop(&self) {
        self.signal("-STOP");
        let stopped = |task: fs::DirEntry| {
            // One that has ended meanwhile has none: then all are looked at again.
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|fields| fields.starts_with('T'))
        };
        while !fs::read_dir(self.proc("task")).unwrap().all(|task| stopped(task.unwrap())) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
