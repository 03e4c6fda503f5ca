//! An etcd of one member on this machine, for tests; it ends with its test. Those of the commands use this file as well.

use std::{
    hash::{BuildHasher as _, RandomState},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A free port of this machine. None of those that the system gives to whoever asks for any, nor of those that clusters choose among (from
/// 5,000 on): another could have it before etcd does, or miss it while one of its servers is down.
fn free(odd: u16) -> String {
    loop {
        let port = 2_000 + RandomState::new().hash_one(()) as u16 % 1_500 * 2 + odd;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
}

/// See the module.
pub struct Member {
    process: Child,
    /// `HOST:PORT` for clients.
    pub address: String,
    /// Goes with it.
    pub dir: tempfile::TempDir,
}

impl Member {
    /// Starts one, with more options, and waits until it answers.
    pub fn start(options: &[&str]) -> Member {
        let mut member = Member::start_with("http", options);
        let until = Instant::now() + Duration::from_secs(60);
        while !member.is_healthy() {
            // Another program has got one of its ports before it did.
            if member.process.try_wait().unwrap().is_some() {
                member = Member::start_with("http", options);
            }
            assert!(Instant::now() < until, "etcd does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        member
    }

    /// Starts three that are one etcd, and waits until each answers.
    #[allow(dead_code)] // tests of the commands have their own
    pub fn three() -> [Member; 3] {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < until, "etcd does not start");
            let peers: [String; 3] = std::array::from_fn(|_| format!("http://{}", free(1)));
            let all: Vec<String> = (0..3).map(|n| format!("m{n}={}", peers[n])).collect();
            let mut members: [Member; 3] = std::array::from_fn(|n| {
                let at = ["--listen-peer-urls", &peers[n], "--initial-advertise-peer-urls", &peers[n]];
                let of = ["--name", &format!("m{n}"), "--initial-cluster", &all.join(",")];
                Member::start_with("http", &[at, of].concat())
            });
            // Another program has got one of their ports: all begin anew.
            while members.iter_mut().all(|member| member.process.try_wait().unwrap().is_none()) {
                if members.iter().all(Member::is_healthy) {
                    return members;
                }
                assert!(Instant::now() < until, "etcd does not start");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Starts one whose clients speak `scheme`.
    pub fn start_with(scheme: &str, options: &[&str]) -> Member {
        let dir = tempfile::tempdir().unwrap();
        let (address, peer) = (free(0), free(1));
        let (client_url, peer_url) = (format!("{scheme}://{address}"), format!("http://{peer}"));
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "etcd", "--log-level", "error", "--name", "m"])
            .args(["--data-dir", dir.path().join("etcd").to_str().unwrap()])
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("m={peer_url}")])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd (package etcd-server) and setpriv");
        Member { process, address, dir }
    }

    fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = String::new();
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.contains("\"true\"")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let tasks = format!("/proc/{}/task", self.process.id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_none_or(|state| state.starts_with('T'))
        };
        // It runs on for a moment.
        while signal == "-STOP" && !std::fs::read_dir(&tasks).unwrap().all(stopped) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
