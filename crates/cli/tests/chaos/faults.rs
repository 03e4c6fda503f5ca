//! The faults, done to real processes and files. Each begins and ends at its time; what was killed is started again at the end.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    clock::{Clocks, jump},
    mend::Place,
    plan::{Fault, Kind, PDISKS, Process, SERVERS, Shape},
    proxy::Proxy,
};
use crate::common::{Cluster, Random, processes, ropewalk};

/// The servers' fault engine.
pub const ENGINE: &str = "ROPEWALK_PDISK_FAULT";
/// With a seed: the manager loses at its kill what it had not flushed.
pub const UNFLUSHED: &str = "ROPEWALK_MANAGER_UNFLUSHED";
/// Of a file's beginning, where flips hit something.
const FLIPPED: u64 = 24 << 20;

/// What faults are done to.
pub struct Victim<'a> {
    pub cluster: &'a Cluster,
    pub shape: Shape,
    /// Names of the mounts' processes.
    pub mounts: &'a [String],
    /// The pdisks, as plans number them.
    pub places: &'a [Place],
    /// Where old copies are kept.
    pub aside: &'a Path,
    /// In front of the last mount, where there is one.
    pub proxy: Option<&'a Proxy>,
    /// The cluster has a file system of its own.
    pub small: bool,
    /// Where they can be set.
    pub clocks: Option<&'a Clocks>,
}

impl Victim<'_> {
    /// Does the fault, from beginning to end.
    pub fn suffer(&self, fault: &Fault, begun: Instant) {
        let until = |millis| {
            let at = begun + Duration::from_millis(millis);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
        };
        let mut random = Random(fault.seed);
        until(fault.at);
        if fault.kind == Kind::InTurn {
            return self.in_turn(fault, &until);
        }
        self.begin(fault, &mut random);
        until(fault.at + fault.lasts);
        self.end(fault, &mut random);
    }

    /// Each server is stopped, or killed, when its turn begins, and is back when it ends.
    fn in_turn(&self, fault: &Fault, until: &dyn Fn(u64)) {
        let mut random = Random(!fault.seed);
        for (server, begin, end) in fault.turns() {
            let (name, killed) = (format!("n{}", server + 1), random.below(2) == 0);
            until(fault.at + begin);
            match killed {
                true => self.kill(&name),
                false => self.signal(&name, Signal::STOP),
            }
            until(fault.at + end);
            match killed {
                true => self.start(&name),
                false => self.signal(&name, Signal::CONT),
            }
        }
    }

    fn set_clock(&self, fault: &Fault, seconds: i64) {
        let name = match fault.clock_of() {
            Process::Manager => "manager".to_owned(),
            Process::Server(server) => format!("n{}", server + 1),
            Process::Mount(mount) => self.mounts[mount as usize].clone(),
        };
        let found = self.cluster.processes().into_iter().find(|(other, _)| *other == name);
        let set = found.zip(self.clocks).is_some_and(|((_, pid), clocks)| clocks.set(pid, seconds));
        // One that another fault has killed has none.
        if !set && self.clocks.is_some() {
            println!("  note: there is no {name} whose clock could be set");
        }
    }

    fn begin(&self, fault: &Fault, random: &mut Random) {
        let server = server_of(fault);
        let pdisk = self.pdisk(fault.target);
        // Rules are for paths that have this in them.
        let path = self.places[fault.target as usize % self.places.len()].dir.display();
        match fault.kind {
            Kind::Kill => self.kill(&server),
            Kind::Stop => self.signal(&server, Signal::STOP),
            Kind::Manager => self.kill("manager"),
            Kind::ManagerStop => self.signal("manager", Signal::STOP),
            Kind::Mount => self.kill(&self.mounts[fault.target as usize]),
            Kind::MountStop => self.signal(&self.mounts[fault.target as usize], Signal::STOP),
            Kind::Power => self.cluster.kill(|name| name.starts_with('n')),
            Kind::Slow => {
                let millis = 20 + random.below(300);
                self.again(&server, &format!("delay {millis}ms on=any p=0.3"));
            }
            Kind::Hang => {
                let after = random.below(60);
                self.again(
                    &server,
                    &format!("delay {}ms on=any path={path} after={after} times=8", fault.lasts),
                );
            }
            Kind::ReadError => {
                self.again(&server, &format!("eio on=read file=data path={path} p=0.3 times=60"));
            }
            Kind::WriteError => {
                let (on, file) = [("write", "data"), ("write", "log"), ("flush", "log"), ("flush", "data")]
                    [random.below(4) as usize];
                let after = random.below(80);
                self.again(&server, &format!("eio on={on} file={file} path={path} after={after} times=1"));
            }
            Kind::FlipData => flip(&pdisk.join("data"), random, 200),
            Kind::FlipCrc | Kind::FlipIndex | Kind::FlipLog => {
                self.kill(&server);
                match fault.kind {
                    Kind::FlipCrc => flip(&pdisk.join("crc"), random, 40),
                    Kind::FlipIndex => {
                        flip(&pdisk.join(format!("index.{}", random.below(2))), random, 3);
                    }
                    _ => flip(&pdisk.join("log"), random, 3),
                }
            }
            Kind::CutData => {
                self.kill(&server);
                let data = fs::OpenOptions::new().write(true).open(pdisk.join("data")).unwrap();
                data.set_len(random.below(FLIPPED)).unwrap();
            }
            Kind::OldCopy => {
                self.kill(&server);
                let copy = self.copy(fault);
                let _ = fs::remove_dir_all(&copy);
                copy_dir(&pdisk, &copy);
                self.start(&server);
            }
            Kind::Toml => {
                self.kill("n1");
                let toml = self.cluster.dir().join("cluster.toml");
                let text = fs::read(&toml).unwrap();
                fs::write(self.aside.join("toml"), &text).unwrap();
                fs::write(&toml, &text[..random.below(text.len() as u64) as usize]).unwrap();
                self.cluster.start_server("n1"); // which is refused
            }
            Kind::Clock => self.set_clock(fault, jump(random)),
            Kind::Full if self.small => fill_up(&self.filler()),
            Kind::Journal | Kind::Table => {
                self.kill("manager");
                let dir = self.cluster.dir().join("manager");
                let _ = fs::remove_dir_all(self.aside.join("manager"));
                copy_dir(&dir, &self.aside.join("manager"));
                if fault.kind == Kind::Table {
                    flip(&dir.join("store.redb"), random, 1);
                } else {
                    damage_journal(&dir.join("store.journal"), random);
                }
                self.start("manager");
            }
            Kind::NetDelay | Kind::NetCut | Kind::NetFlip => {
                if let Some(proxy) = self.proxy {
                    proxy.spoil(fault.kind, random.next());
                }
            }
            // In turn, by the loads, and at rest; and it is not for us to fill the machine's own disk.
            Kind::InTurn | Kind::Deletes | Kind::Beyond | Kind::Full => {}
        }
    }

    fn end(&self, fault: &Fault, random: &mut Random) {
        let server = server_of(fault);
        match fault.kind {
            Kind::Stop => self.signal(&server, Signal::CONT),
            Kind::ManagerStop => self.signal("manager", Signal::CONT),
            Kind::MountStop => self.signal(&self.mounts[fault.target as usize], Signal::CONT),
            Kind::Manager => self.start("manager"),
            Kind::Power => (1..=SERVERS).for_each(|n| self.start(&format!("n{n}"))),
            Kind::Kill | Kind::FlipCrc | Kind::FlipIndex | Kind::FlipLog | Kind::CutData => {
                self.start(&server);
            }
            Kind::Slow | Kind::Hang | Kind::ReadError | Kind::WriteError => {
                self.kill(&server);
                self.start(&server);
            }
            Kind::OldCopy => {
                self.kill(&server);
                let pdisk = self.pdisk(fault.target);
                fs::remove_dir_all(&pdisk).unwrap();
                copy_dir(&self.copy(fault), &pdisk);
                let _ = fs::remove_dir_all(self.copy(fault));
                self.start(&server);
            }
            Kind::Toml => {
                // Its mode stays.
                let text = fs::read(self.aside.join("toml")).unwrap();
                fs::write(self.cluster.dir().join("cluster.toml"), text).unwrap();
                self.start("n1");
            }
            Kind::Full => {
                let _ = fs::remove_file(self.filler());
                // The manager says that it stops, and why; it is for an administrator to start it again.
                if !self.cluster.processes().iter().any(|(name, _)| name == "manager") {
                    self.start("manager");
                }
            }
            Kind::Journal | Kind::Table => {
                // Whoever serves has to be right. One that refuses gets back what it had.
                if !self.manager_serves() {
                    self.kill("manager");
                    let dir = self.cluster.dir().join("manager");
                    fs::remove_dir_all(&dir).unwrap();
                    copy_dir(&self.aside.join("manager"), &dir);
                    self.start("manager");
                }
            }
            Kind::NetDelay | Kind::NetCut | Kind::NetFlip => {
                if let Some(proxy) = self.proxy {
                    proxy.heal();
                }
            }
            // Right again, or wrong in the other direction.
            Kind::Clock => self.set_clock(fault, if random.below(2) == 0 { 0 } else { jump(random) }),
            Kind::Mount | Kind::FlipData | Kind::InTurn | Kind::Deletes | Kind::Beyond => {}
        }
    }

    fn filler(&self) -> PathBuf {
        self.cluster.dir().with_file_name("filler")
    }

    /// Whether it does, or refuses. One that is only late must not get back what it had.
    fn manager_serves(&self) -> bool {
        let dir = self.cluster.dir();
        let ask = || ropewalk(&["config", "show", "--json", "--dir", dir.to_str().unwrap()]).status.success();
        let lives = || self.cluster.processes().iter().any(|(name, _)| name == "manager");
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            // In this order: it has not ended before it is asked.
            let lived = lives();
            if ask() {
                return true;
            }
            if !lived {
                return false;
            }
        }
        false
    }

    fn copy(&self, fault: &Fault) -> PathBuf {
        self.aside.join(format!("old{}", fault.target))
    }

    fn pdisk(&self, number: u64) -> PathBuf {
        self.cluster.dir().join(&self.places[number as usize % self.places.len()].dir)
    }

    fn start(&self, name: &str) {
        self.start_with(name, &[]);
    }

    fn start_with(&self, name: &str, variables: &[(&str, &str)]) {
        self.cluster.start_server_with(name, variables);
    }

    fn kill(&self, name: &str) {
        self.cluster.kill(|other| other == name);
    }

    /// The server again, with rules for its disks.
    fn again(&self, server: &str, rules: &str) {
        self.kill(server);
        let volatile = if self.shape.volatile { "volatile leak=0.1; " } else { "" };
        self.start_with(server, &[(ENGINE, &format!("{volatile}{rules}"))]);
    }

    fn signal(&self, name: &str, signal: Signal) {
        for (_, pid) in self.cluster.processes().into_iter().filter(|(other, _)| other == name) {
            let pid = Pid::from_raw(pid).unwrap();
            // One that has ended needs none.
            if kill_process(pid, signal).is_ok() {
                processes::took(pid, signal);
            }
        }
    }
}

fn server_of(fault: &Fault) -> String {
    let server = match fault.kind {
        Kind::Kill | Kind::Stop | Kind::Slow => fault.target,
        _ => fault.target / PDISKS,
    };
    format!("n{}", server % SERVERS + 1)
}

/// Flips bits, each in another place.
fn flip(path: &Path, random: &mut Random, times: u64) {
    let Ok(file) = fs::OpenOptions::new().read(true).write(true).open(path) else { return };
    let len = file.metadata().unwrap().len().min(FLIPPED);
    for _ in 0..times {
        let mut byte = [0];
        let at = random.below(len.max(1));
        if file.read_at(&mut byte, at).unwrap() == 1 {
            file.write_all_at(&[byte[0] ^ 1 << random.below(8)], at).unwrap();
        }
    }
    file.sync_all().unwrap();
}

/// Takes all room of the file's file system.
fn fill_up(path: &Path) {
    let file = fs::File::create(path).unwrap();
    let mut end = 0;
    for piece in [64 << 20, 1 << 20, 4096] {
        while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, piece).is_ok() {
            end += piece;
        }
    }
}

/// Cut off, zeroed, or a bit flipped.
fn damage_journal(path: &Path, random: &mut Random) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    match random.below(3) {
        0 => file.set_len(random.below(len + 1)).unwrap(),
        1 => file.write_all_at(&vec![0; len.min(8 << 20) as usize], 0).unwrap(),
        _ => flip(path, random, 1),
    }
}

fn copy_dir(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg("--sparse=always").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}
