//! One cluster of the campaign, and its rounds: load, faults, rest, judgement.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{
    checker::{Class, Violation, violation},
    faults::{ENGINE, Victim},
    field::{CALL_MAX, Field},
    loads::{Shared, Work, workers},
    plan::{Fault, Kind, LEASE, MOUNTS, PDISKS, Process, Round, SERVERS, Shape},
    proxy::Proxy,
};
use crate::common::{Cluster, ROPEWALK, Random, ok, ropewalk};

/// A pdisk is `ok` again after this time at most, on a machine that does nothing else.
const OK_MAX: Duration = Duration::from_secs(60);
/// Until we give up waiting.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a process uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    descriptors: u64,
    threads: u64,
    resident_kib: u64,
}

/// What came of a round.
pub struct Outcome {
    pub wrong: Vec<Violation>,
    /// The longest call of a mount that no fault concerned.
    pub longest: (Duration, String),
    /// From the last fault's end until all pdisks were `ok`.
    pub recovery: Duration,
}

/// A cluster with three mounts, and what is known of its files.
pub struct Campaign {
    pub cluster: Cluster,
    shape: Shape,
    _more: tempfile::TempDir,
    mounts: Vec<PathBuf>,
    proxy: Option<Proxy>,
    workers: Vec<Box<dyn Work>>,
    shared: std::sync::Arc<Shared>,
    usage: BTreeMap<(String, i32), Usage>,
    /// Found at rest.
    late: Vec<Violation>,
    /// After the cluster.
    _small: Option<Small>,
}

/// A small file system in memory.
struct Small(tempfile::TempDir);

impl Small {
    fn new() -> Option<Small> {
        let dir = tempfile::Builder::new().prefix("ropewalk-small-").tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, c"size=1700m").ok()?;
        Some(Small(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

impl Campaign {
    /// A new cluster. Its last mount stands behind the proxy where one of these faults needs it, and it has a file system of
    /// its own where that is to become full.
    pub fn new(shape: Shape, kinds: &[Kind]) -> Campaign {
        let net = kinds.iter().any(|k| matches!(k, Kind::NetDelay | Kind::NetCut | Kind::NetFlip));
        let small = kinds.contains(&Kind::Full).then(Small::new).flatten();
        let memory = Path::new("/dev/shm");
        let room = rustix::fs::statvfs(memory).is_ok_and(|fs| fs.f_bavail * fs.f_frsize > 4 << 30);
        let base = if shape.in_memory && room { memory.to_path_buf() } else { std::env::temp_dir() };
        let options = [
            "--nodes",
            "4",
            "--pdisks",
            "2",
            "--pdisk-size",
            "96m",
            "--code",
            "4+2p",
            "--block-size",
            "256k",
        ];
        // What passes the proxy comes from another address than the one it says.
        let relays: &[&str] = if net { &["--relays"] } else { &[] };
        let base = small.as_ref().map_or(base, |small| small.0.path().to_path_buf());
        let cluster = Cluster::prepare_in(&base, &[options.as_slice(), relays].concat());
        cluster.start();
        let dir = cluster.dir();
        let dir = dir.to_str().unwrap();
        let lease = format!("leaseDuration={LEASE}ms");
        let delay = if shape.rebuilds { "missingRebuildDelay=2s" } else { "missingRebuildDelay=10min" };
        let pairs =
            [lease.as_str(), "leaseRenewInterval=500ms", delay, "rebuild_aggressiveness=100", "pagepool=96m"];
        ok(&[["config", "set", "--dir", dir].as_slice(), &pairs].concat());
        cluster.down();
        if shape.volatile {
            cluster.set_env(ENGINE, "volatile leak=0.1");
        }
        cluster.start();
        let more = tempfile::Builder::new().prefix("ropewalk-chaos-").tempdir().unwrap();
        let mut mounts = vec![cluster.mnt()];
        for n in 1..MOUNTS {
            let mount = more.path().join(format!("m{n}"));
            fs::create_dir(&mount).unwrap();
            mounts.push(mount);
        }
        let proxy = net.then(|| Proxy::start(&addresses(&cluster))).flatten();
        let dirs = ["one", "two"];
        dirs.iter().for_each(|dir| fs::create_dir(mounts[0].join(dir)).unwrap());
        if shape.two_pools {
            ok(&["pool", "create", "--dir", dir, "second", "--code", "3way", "--block-size", "512k"]);
            ok(&["fs", "set-pool", mounts[0].join("two").to_str().unwrap(), "second"]);
        }
        let (workers, shared) = workers(dirs);
        let campaign = Campaign {
            cluster,
            shape,
            _more: more,
            mounts,
            proxy,
            workers,
            shared,
            usage: BTreeMap::new(),
            late: Vec::new(),
            _small: small,
        };
        for mount in 1..MOUNTS {
            campaign.mount(mount as usize).unwrap();
        }
        campaign.cluster.wait_all_ok(PATIENCE);
        campaign
    }

    fn mount(&self, mount: usize) -> Result<(), String> {
        let dir = self.cluster.dir();
        let mut command = Command::new(ROPEWALK);
        command.args(["mount", "--fuse-transport", if mount == 1 { "auto" } else { "classic" }, "--dir"]);
        command.arg(&dir).arg("fs1").arg(&self.mounts[mount]);
        let output = match &self.proxy {
            Some(proxy) if mount + 1 == self.mounts.len() => proxy.run(command),
            _ => command.output(),
        };
        let output = output.map_err(|e| e.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn mount_names(&self) -> Vec<String> {
        let name = |path: &PathBuf| {
            let path = path.parent().unwrap().canonicalize().unwrap().join(path.file_name().unwrap());
            format!("mount{}", path.to_str().unwrap().replace('/', "-"))
        };
        self.mounts.iter().map(name).collect()
    }

    /// One round.
    pub fn round(&mut self, round: &Round) -> Outcome {
        let field = Field::new(self.mounts.clone(), round);
        let names = self.mount_names();
        let before = self.cluster.processes();
        let begun = Instant::now();
        // On the cluster's own file system: fast where that is.
        let aside = self.cluster.dir().with_file_name("aside");
        let _ = fs::create_dir(&aside);
        let workers = self.workers.len();
        let ended = std::thread::scope(|scope| {
            for (n, worker) in self.workers.iter_mut().enumerate() {
                let (field, seed) = (&field, round.seed ^ (n as u64) << 40);
                scope.spawn(move || {
                    worker.work(field, Random(seed));
                    field.worker_ended();
                });
            }
            let victim = Victim {
                cluster: &self.cluster,
                shape: self.shape,
                mounts: &names,
                aside: &aside,
                proxy: self.proxy.as_ref(),
            };
            std::thread::scope(|scope| {
                for fault in &round.faults {
                    scope.spawn(|| victim.suffer(fault, begun));
                }
                std::thread::sleep(Duration::from_millis(round.lasts));
            });
            let ended = Instant::now();
            keep_running(&self.cluster, &field);
            field.end();
            let end = Instant::now() + CALL_MAX + Duration::from_secs(30);
            while field.workers_ended() < workers && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
            }
            if field.workers_ended() < workers {
                let late = field.under_way();
                let waiters = ropewalk(&["waiters", "--dir", self.cluster.dir().to_str().unwrap()]);
                let text = format!("{late:?}\n{}", String::from_utf8_lossy(&waiters.stdout));
                field.wrong([violation(Class::Wait, text)]);
                self.cluster.kill(|name| name.starts_with("mount"));
            }
            ended
        });
        self.still_there(&before, round, &names, &field);
        self.remount(&field);
        let recovery = self.all_ok(&field, ended, round.has(Kind::WriteError));
        if round.has(Kind::Beyond) {
            self.inspect(round);
            self.beyond(round, &field);
            self.inspect(round);
        } else {
            self.inspect(round);
            if round.faults.iter().any(|f| !f.spoils().is_empty()) {
                self.repair(&field);
            }
        }
        self.measure(&field);
        let mut wrong = field.take_wrong();
        wrong.extend(std::mem::take(&mut self.late));
        Outcome { wrong, longest: field.longest(), recovery }
    }

    /// At rest no mount is in a fault any more: every error counts.
    fn inspect(&mut self, round: &Round) {
        let beyond = round.faults.iter().filter(|f| f.kind == Kind::Beyond);
        let calm = Round { faults: beyond.cloned().collect(), ..round.clone() };
        let field = Field::new(self.mounts.clone(), &calm);
        self.workers.iter_mut().for_each(|worker| worker.inspect(&field));
        self.shared.inspect(&field);
        self.late.extend(field.take_wrong());
    }

    /// Nobody is gone but who was killed.
    fn still_there(&self, before: &[(String, i32)], round: &Round, mounts: &[String], field: &Field) {
        let now = self.cluster.processes();
        let harmed = |process: Process| {
            let stops =
                [Kind::Stop, Kind::ManagerStop, Kind::MountStop, Kind::NetDelay, Kind::NetCut, Kind::NetFlip];
            round.faults.iter().any(|f| {
                f.processes().contains(&process) && !stops.contains(&f.kind) && f.kind != Kind::FlipData
            })
        };
        for process in before {
            let role = match (process.0.as_str(), mounts.iter().position(|m| *m == process.0)) {
                ("manager", _) => Process::Manager,
                (_, Some(mount)) => Process::Mount(mount as u64),
                (name, None) => Process::Server(name[1..].parse::<u64>().unwrap_or(1) - 1),
            };
            if !harmed(role) && !now.contains(process) {
                field.wrong([violation(Class::Process, format!("{process:?} is gone, there are {now:?}"))]);
            }
        }
    }

    /// Mounts that died, or were fenced, are mounted again.
    fn remount(&self, field: &Field) {
        let names = self.mount_names();
        for (mount, path) in self.mounts.iter().enumerate() {
            let lives = self.cluster.processes().iter().any(|(name, _)| *name == names[mount]);
            let probe = || {
                fs::File::create(path.join("probe"))
                    .and_then(|f| f.sync_all())
                    .and_then(|()| fs::remove_file(path.join("probe")))
            };
            if lives && probe().is_ok() {
                continue;
            }
            if !field.is_disturbed(mount) {
                let text = format!("mount {mount} serves no more (its process lives: {lives})");
                field.wrong([violation(Class::Error, text)]);
            }
            if lives {
                let _ = ropewalk(&["umount", "--force", path.to_str().unwrap()]);
            }
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
            let mut result = self.mount(mount);
            for _ in 0..3 {
                if result.is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_secs(2));
                result = self.mount(mount);
            }
            if let Err(error) = result {
                field.wrong([violation(
                    Class::Error,
                    format!("mount {mount} cannot be mounted again: {error}"),
                )]);
            }
        }
    }

    fn states(&self) -> Vec<(String, String)> {
        let dir = self.cluster.dir();
        let output = ropewalk(&["pdisk", "list", "--json", "--dir", dir.to_str().unwrap()]);
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let word = |p: &serde_json::Value, key: &str| p[key].as_str().unwrap_or_default().to_owned();
        list.as_array()
            .map(|list| list.iter().map(|p| (word(p, "name"), word(p, "state"))).collect())
            .unwrap_or_default()
    }

    /// Waits until all pdisks are `ok`. Where a write failed an administrator takes the pdisk back: it stays given up
    /// otherwise.
    fn all_ok(&self, field: &Field, since: Instant, failed: bool) -> Duration {
        let dir = self.cluster.dir();
        loop {
            let states = self.states();
            let given_up = states.iter().filter(|(_, state)| matches!(state.as_str(), "failed" | "replace"));
            for (name, _) in given_up.filter(|_| failed) {
                let _ = ropewalk(&["pdisk", "keep", "--dir", dir.to_str().unwrap(), name]);
            }
            if !states.is_empty() && states.iter().all(|(_, state)| state == "ok") {
                break;
            }
            if since.elapsed() > PATIENCE {
                let bad: Vec<_> = states.into_iter().filter(|(_, state)| state != "ok").collect();
                field.wrong([violation(Class::NotOk, format!("{bad:?} after {PATIENCE:?}"))]);
                break;
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        let took = since.elapsed();
        if took > OK_MAX && took <= PATIENCE {
            // A machine on which others compute makes it longer; which it was is said.
            println!("  note: all pdisks were ok only after {took:?} (load {})", load());
        }
        took
    }

    /// More pdisks are lost than the code bears: what cannot be read is an error, and `pool lost` names just that.
    fn beyond(&self, round: &Round, field: &Field) {
        let dir = self.cluster.dir();
        let dir = dir.to_str().unwrap();
        ok(&["config", "set", "--dir", dir, "operationDeadline=2s"]);
        for mount in self.mounts.iter().rev() {
            ok(&["umount", mount.to_str().unwrap()]);
        }
        self.cluster.down();
        for pdisk in round.faults.iter().flat_map(Fault::spoils) {
            let place = format!("nodes/n{}/pdisk{}", pdisk / PDISKS + 1, pdisk % PDISKS + 1);
            fs::remove_dir_all(self.cluster.dir().join(place)).unwrap();
        }
        self.cluster.start();
        for mount in 1..self.mounts.len() {
            if let Err(error) = self.mount(mount) {
                field.wrong([violation(Class::Error, format!("mount {mount} beyond M: {error}"))]);
            }
        }
        let lost = ropewalk(&["pool", "lost", "--json", "--dir", dir]);
        let lost: serde_json::Value = serde_json::from_slice(&lost.stdout).unwrap_or_default();
        let paths = lost.as_array().into_iter().flatten().filter_map(|file| file["path"].as_str());
        let inode = |path: &Path| fs::metadata(path).map_or(0, |found| found.ino());
        let named: BTreeSet<u64> = paths.map(|path| inode(&self.mounts[0].join(path))).collect();
        let mut unread = BTreeSet::new();
        for path in files(&self.mounts[0]) {
            match fs::read(&path) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EIO) => _ = unread.insert(inode(&path)),
                Err(e) => field.wrong([violation(Class::Error, format!("{}: {e}", path.display()))]),
            }
        }
        println!("  {} files are lost", unread.len());
        if named != unread {
            let text = format!("inodes named as lost {named:?}, inodes that cannot be read {unread:?}");
            field.wrong([violation(Class::Lost, text)]);
        }
    }

    /// What damage is left is found and made good; nothing is lost.
    fn repair(&self, field: &Field) {
        let dir = self.cluster.dir();
        let dir = dir.to_str().unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            let verify = ropewalk(&["pool", "verify", "--repair", "--dir", dir]);
            if verify.status.success() {
                break;
            }
            if Instant::now() > end {
                let text = format!(
                    "pool verify: {}{}",
                    String::from_utf8_lossy(&verify.stdout),
                    String::from_utf8_lossy(&verify.stderr)
                );
                field.wrong([violation(Class::NotOk, text)]);
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        let lost = ropewalk(&["pool", "lost", "--dir", dir]);
        if !lost.status.success() {
            field.wrong([violation(
                Class::Lost,
                format!("pool lost: {}", String::from_utf8_lossy(&lost.stdout)),
            )]);
        }
    }

    /// Descriptors, threads and memory of those that live longer than a round.
    fn measure(&mut self, field: &Field) {
        for process in self.cluster.processes() {
            let Some(now) = usage(process.1) else { continue };
            let first = *self.usage.entry(process.clone()).or_insert(now);
            let grown = now.descriptors > first.descriptors + 128
                || now.threads > first.threads + 64
                || now.resident_kib > 2 * first.resident_kib + (512 << 10);
            if grown {
                field.wrong([violation(Class::Growth, format!("{process:?}: {first:?} then, {now:?} now"))]);
            }
        }
    }

    /// The most that any process uses now, for the summary.
    pub fn most(&self) -> String {
        let all: Vec<Usage> = self.cluster.processes().iter().filter_map(|(_, pid)| usage(*pid)).collect();
        let most = |of: fn(&Usage) -> u64| all.iter().map(of).max().unwrap_or(0);
        format!(
            "{} descriptors, {} threads, {} MiB",
            most(|u| u.descriptors),
            most(|u| u.threads),
            most(|u| u.resident_kib) >> 10
        )
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        for (_, pid) in self.cluster.processes() {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid).unwrap(),
                rustix::process::Signal::CONT,
            );
        }
        for path in &self.mounts[1..] {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Servers that could not take their address for a moment (a connection of another program had it) are started
/// again. Whoever else is gone is told by `still_there`, or does not become `ok`.
fn keep_running(cluster: &Cluster, field: &Field) {
    let names = std::iter::once("manager".to_owned()).chain((1..=SERVERS).map(|n| format!("n{n}")));
    let names: Vec<String> = names.collect();
    let mut calm = 0;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(300));
        let live = cluster.processes();
        calm =
            if names.iter().all(|name| live.iter().any(|(other, _)| other == name)) { calm + 1 } else { 0 };
        if calm == 2 {
            break;
        }
        for name in names.iter().filter(|name| !live.iter().any(|(other, _)| other == *name)) {
            let log = fs::read_to_string(cluster.dir().join(format!("log/{name}.log"))).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(3).collect();
            if !tail.iter().any(|line| line.contains("Address already in use")) {
                let text = format!("{name} does not run:\n{}", tail.join("\n"));
                field.wrong([violation(Class::Process, text)]);
            }
            cluster.start_server(name);
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn addresses(cluster: &Cluster) -> Vec<SocketAddr> {
    let text = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let words = text.split('"').filter(|word| word.contains(':'));
    words.filter_map(|word| word.parse().ok()).collect()
}

fn usage(pid: i32) -> Option<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    Some(Usage { descriptors, threads: number("Threads:")?, resident_kib: number("VmRSS:")? })
}

/// The machine's load, to be told beside times.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
