//! Three members of etcd, each on a host of its own, with their data on one small file system in memory, which can be filled up.
//! They end with this.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{beds::Bed, common::until};

pub const COUNT: usize = 3;
/// What their database may have, and the manager is told so: it keeps some 40 MB of records there.
pub const QUOTA: &str = "96m";
const QUOTA_BYTES: &str = "100663296";
/// The logs of three members, and their databases with what is put there to fill them.
const ROOM: &str = "1500m";
const CLIENTS: u16 = 2379;
const PEERS: u16 = 2380;
/// What is put there that is not the managers'.
const FILL: usize = 1 << 20;
/// More than the quota.
const FILLS: usize = 128;

pub struct Members<'a> {
    bed: &'a Bed,
    dir: PathBuf,
    running: [Option<Child>; COUNT],
}

/// The base64 that etcd's gateway for JSON wants.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let all = three.iter().fold(0u32, |all, byte| all << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            match digit <= three.len() {
                true => text.push(DIGITS[(all >> (18 - 6 * digit) & 63) as usize] as char),
                false => text.push('='),
            }
        }
    }
    text
}

impl<'a> Members<'a> {
    /// Starts them on the first hosts, with their data in `dir`.
    pub fn start(bed: &'a Bed, dir: PathBuf) -> Members<'a> {
        fs::create_dir(&dir).unwrap();
        let mut members = Members { bed, dir, running: [const { None }; COUNT] };
        let size = format!("size={ROOM}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "etcd"]).arg(&members.dir).status();
        assert!(mounted.unwrap().success(), "mount a file system in memory");
        members.all_run();
        until("etcd answers", || (0..COUNT).all(|member| members.is_healthy(member)));
        members
    }

    /// It answers, and has a leader.
    pub fn is_healthy(&self, member: usize) -> bool {
        self.ask(member, "GET", "/health", "").contains("\"true\"")
    }

    /// Where the managers' journal is.
    pub fn place(&self) -> String {
        let at = |n| format!("{}:{CLIENTS}", self.bed.addr(n));
        format!("etcd://{}/rope", (0..COUNT).map(at).collect::<Vec<_>>().join(","))
    }

    fn run(&self, member: usize) -> Child {
        let url = |n, port| format!("http://{}:{port}", self.bed.addr(n));
        let all: Vec<String> = (0..COUNT).map(|n| format!("e{n}={}", url(n, PEERS))).collect();
        let (client, peer) = (url(member, CLIENTS), url(member, PEERS));
        let log = File::options().create(true).append(true).open(self.log(member)).unwrap();
        let mut command = self.bed.enter(member + 1);
        command
            .args([
                "setpriv",
                "--pdeathsig",
                "KILL",
                "etcd",
                "--log-level",
                "warn",
                "--name",
                &format!("e{member}"),
            ])
            .args(["--snapshot-count", "1000", "--max-wals", "1", "--max-snapshots", "1"])
            .args(["--quota-backend-bytes", QUOTA_BYTES, "--initial-cluster", &all.join(","), "--data-dir"])
            .arg(self.dir.join(format!("e{member}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("etcd (package etcd-server) and setpriv")
    }

    /// Beside what may be full.
    fn log(&self, member: usize) -> PathBuf {
        self.dir.with_extension(format!("{member}.log"))
    }

    /// How many do not run.
    pub fn ended(&mut self) -> usize {
        let ends = |child: &mut Child| child.try_wait().unwrap().is_some();
        self.running.iter_mut().filter_map(|child| child.as_mut().is_none_or(ends).then_some(())).count()
    }

    /// Starts one that was killed.
    pub fn start_one(&mut self, member: usize) {
        if self.running[member].is_none() {
            self.running[member] = Some(self.run(member));
        }
    }

    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.running[member].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn signal(&mut self, member: usize, signal: Signal) {
        if let Some(child) = &mut self.running[member] {
            // One that has ended is not reaped yet: its number is still its own.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Members that have ended by themselves or were killed are started; stopped ones go on.
    pub fn all_run(&mut self) {
        for member in 0..COUNT {
            let ended = self.running[member].as_mut().is_none_or(|child| child.try_wait().unwrap().is_some());
            if ended {
                self.running[member] = Some(self.run(member));
            }
            self.signal(member, Signal::CONT);
        }
    }

    /// Takes all the room of their file system.
    pub fn fill_disk(&self) {
        let mut file = File::create(self.filler()).unwrap();
        let piece = vec![7; 1 << 20];
        while file.write_all(&piece).is_ok() {}
    }

    pub fn empty_disk(&self) {
        let _ = fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.dir.join("filler")
    }

    /// One request of a member's gateway, from its own host; empty: it does not answer.
    fn ask(&self, member: usize, method: &str, path: &str, body: &str) -> String {
        let place: SocketAddr = format!("{}:{CLIENTS}", self.bed.addr(member)).parse().unwrap();
        let net = File::open(format!("/run/netns/{}", self.bed.netns(member + 1))).unwrap();
        // A thread of its own is on that host.
        let asked = thread::scope(|scope| {
            let asking = scope.spawn(|| {
                move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))?;
                let mut stream = TcpStream::connect_timeout(&place, Duration::from_secs(2))?;
                stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                stream.set_write_timeout(Some(Duration::from_secs(5)))?;
                let length = body.len();
                write!(stream, "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                std::io::Result::Ok(answer)
            });
            asking.join().unwrap()
        });
        asked.unwrap_or_default()
    }

    /// Puts what is not the managers' until etcd takes no more, or does not answer any more. True: it says that it is full.
    pub fn fill_database(&self) -> bool {
        let value = base64(&vec![7; FILL]);
        for n in 0..FILLS {
            let body =
                format!("{{\"key\":\"{}\",\"value\":\"{value}\"}}", base64(format!("other/{n}").as_bytes()));
            let answers = (0..COUNT).map(|member| self.ask(member, "POST", "/v3/kv/put", &body));
            let answer = answers.into_iter().find(|answer| !answer.is_empty());
            match answer {
                Some(answer) if answer.contains("space exceeded") => return true,
                Some(_) => {}
                None => return false,
            }
        }
        false
    }

    /// Takes that away again. True: a member has done so.
    pub fn empty_database(&self) -> bool {
        let body = format!("{{\"key\":\"{}\",\"range_end\":\"{}\"}}", base64(b"other/"), base64(b"other0"));
        (0..COUNT).any(|member| self.ask(member, "POST", "/v3/kv/deleterange", &body).contains("200 OK"))
    }

    /// All history is compacted, up to now. True: a member has done so.
    pub fn compact(&self) -> bool {
        (0..COUNT).any(|member| {
            let body = format!("{{\"key\":\"{}\"}}", base64(b"rope/start"));
            let answer = self.ask(member, "POST", "/v3/kv/range", &body);
            let revision = answer.split("\"revision\":\"").nth(1).and_then(|rest| rest.split('"').next());
            revision.is_some_and(|revision| {
                let body = format!("{{\"revision\":\"{revision}\"}}");
                self.ask(member, "POST", "/v3/kv/compaction", &body).contains("200 OK")
            })
        })
    }

    pub fn logs(&self) -> String {
        let tail = |member| {
            let text = fs::read_to_string(self.log(member)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("--- e{member}\n{}\n", lines[lines.len().saturating_sub(25)..].join("\n"))
        };
        (0..COUNT).map(tail).collect()
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        (0..COUNT).for_each(|member| self.kill(member));
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
    }
}
