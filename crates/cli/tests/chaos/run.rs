//! One cluster of the campaign, and its rounds: load, faults, rest, judgement.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{
    checker::{Class, Violation, violation},
    clock::Clocks,
    faults::{ENGINE, UNFLUSHED, Victim},
    field::{CALL_MAX, Field},
    loads::{Shared, Work, workers},
    mend::{Mend, Place, places, states},
    plan::{Fault, Kind, LEASE, MOUNTS, Process, Round, SERVERS, Shape},
    proxy::Proxy,
    reaper::Reaper,
    usage::{Usages, load},
    why::{umount, why},
};
use crate::common::{Cluster, ROPEWALK, Random, heard, ok, ropewalk, until};

/// A pdisk is `ok` again after this time at most, on a machine that does nothing else.
const OK_MAX: Duration = Duration::from_secs(60);
/// Until we give up waiting.
const PATIENCE: Duration = Duration::from_secs(120);

/// What all clusters of one run share.
pub struct Runner {
    pub reaper: std::sync::Arc<Reaper>,
    /// Faults of this kind are called violations, to see that they are found and shrunk.
    pub plant: Option<Kind>,
}

/// What came of a round.
pub struct Outcome {
    pub wrong: Vec<Violation>,
    /// The longest call of a mount that no fault concerned.
    pub longest: (Duration, String),
    /// From the last fault's end until all pdisks were `ok`.
    pub recovery: Duration,
    /// From the round's begin until loads and faults had ended; and from then until all was judged.
    pub took: (Duration, Duration),
}

impl Outcome {
    /// Of a round that broke off.
    pub fn broken(why: String) -> Outcome {
        println!("  !! {why}");
        let wrong = vec![violation(Class::Error, why)];
        Outcome { wrong, longest: Default::default(), recovery: Duration::ZERO, took: Default::default() }
    }
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
    usages: Usages,
    clocks: Option<Clocks>,
    plant: Option<Kind>,
    /// Found at rest.
    late: Vec<Violation>,
    /// After the cluster.
    small: Option<Small>,
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
    pub fn new(shape: Shape, kinds: &[Kind], runner: &Runner) -> Campaign {
        let net = kinds.iter().any(|k| matches!(k, Kind::NetDelay | Kind::NetCut | Kind::NetFlip));
        let small = kinds.contains(&Kind::Full).then(Small::new).flatten();
        small.iter().for_each(|small| runner.reaper.watch(small.0.path()));
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
        let base = small.as_ref().map_or(base, |small| small.0.path().to_path_buf());
        let cluster = Cluster::prepare_in(&base, &options);
        let more = tempfile::Builder::new().prefix("ropewalk-chaos-").tempdir().unwrap();
        let dir = cluster.dir();
        [dir.parent().unwrap(), more.path()].iter().for_each(|dir| runner.reaper.watch(dir));
        println!("  in {}", dir.display());
        cluster.start();
        let dir = dir.to_str().unwrap();
        let lease = format!("leaseDuration={LEASE}ms");
        let delay = if shape.rebuilds { "missingRebuildDelay=2s" } else { "missingRebuildDelay=10min" };
        let pairs =
            [lease.as_str(), "leaseRenewInterval=500ms", delay, "rebuild_aggressiveness=100", "pagepool=96m"];
        ok(&[["config", "set", "--dir", dir].as_slice(), &pairs].concat());
        cluster.down();
        if shape.volatile {
            cluster.set_env(ENGINE, "volatile leak=0.1");
            cluster.set_env(UNFLUSHED, &shape.seed.to_string());
        }
        let clocks = kinds.contains(&Kind::Clock).then(|| Clocks::new(more.path())).flatten();
        clocks.iter().for_each(|clocks| clocks.give_to(&cluster));
        cluster.start();
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
            usages: Usages::default(),
            clocks,
            plant: runner.plant,
            late: Vec::new(),
            small,
        };
        for mount in 1..MOUNTS {
            until("it is mounted", || {
                campaign.mount(mount as usize).inspect_err(|error| println!("  {error}")).is_ok()
            });
        }
        campaign.cluster.wait_all_ok(PATIENCE);
        campaign
    }

    fn mount(&self, mount: usize) -> Result<(), String> {
        let dir = self.cluster.dir();
        let mut command = Command::new(ROPEWALK);
        command.args(["mount", "--fuse-transport", if mount == 1 { "auto" } else { "classic" }, "--dir"]);
        command.arg(&dir).arg("fs1").arg(&self.mounts[mount]).envs(self.clocks.iter().flat_map(Clocks::env));
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
        let places = places(&self.cluster);
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
                places: &places,
                aside: &aside,
                proxy: self.proxy.as_ref(),
                small: self.small.is_some(),
                clocks: self.clocks.as_ref(),
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
                field.wrong([violation(Class::Wait, format!("{late:?}\n{}", why(&self.cluster)))]);
                self.cluster.kill(|name| name.starts_with("mount"));
            }
            ended
        });
        let loaded = begun.elapsed();
        self.still_there(&before, round, &names, &field);
        self.remount(&field);
        let recovery = self.all_ok(&field, ended, round, &places);
        if round.has(Kind::Beyond) {
            self.inspect(round);
            self.beyond(round, &field, &places);
            self.inspect(round);
        } else {
            self.inspect(round);
            if round.faults.iter().any(|f| !f.spoils().is_empty()) {
                self.repair(&field);
            }
        }
        field.wrong(self.usages.grown(&self.cluster));
        field.wrong(self.plant.filter(|kind| round.has(*kind)).map(|_| violation(Class::Planted, "planted")));
        let mut wrong = field.take_wrong();
        wrong.extend(std::mem::take(&mut self.late));
        let took = (loaded, begun.elapsed() - loaded);
        Outcome { wrong, longest: field.longest(), recovery, took }
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
                let _ = umount(&self.cluster, &["--force"], path);
            }
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
            let (mut result, end) = (self.mount(mount), Instant::now() + PATIENCE);
            while result.is_err() && Instant::now() < end {
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

    /// Waits until all pdisks are `ok`, and does meanwhile what only an administrator can do.
    fn all_ok(&self, field: &Field, mut since: Instant, round: &Round, places: &[Place]) -> Duration {
        let mut mend = Mend::new(&self.cluster, round, places);
        let mut refused = String::new();
        loop {
            let states = states(&self.cluster);
            match mend.mend(&states) {
                // It begins anew with what an administrator did.
                Ok(true) => since = Instant::now(),
                Ok(false) => {}
                Err(error) => refused = error,
            }
            if mend.is_done() && !states.is_empty() && states.iter().all(|(_, state)| state == "ok") {
                break;
            }
            if since.elapsed() > PATIENCE {
                let bad: Vec<_> = states.into_iter().filter(|(_, state)| state != "ok").collect();
                let text = format!("{bad:?} after {PATIENCE:?}\n{refused}{}", why(&self.cluster));
                field.wrong([violation(Class::NotOk, text)]);
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
    fn beyond(&self, round: &Round, field: &Field, places: &[Place]) {
        let dir = self.cluster.dir();
        let dir = dir.to_str().unwrap();
        ok(&["config", "set", "--dir", dir, "operationDeadline=2s"]);
        for mount in self.mounts.iter().rev() {
            if let Err(error) = umount(&self.cluster, &[], mount) {
                field.wrong([violation(Class::Error, format!("umount {}: {error}", mount.display()))]);
            }
        }
        self.cluster.down();
        for pdisk in round.faults.iter().flat_map(Fault::spoils) {
            fs::remove_dir_all(self.cluster.dir().join(&places[pdisk as usize].dir)).unwrap();
        }
        self.cluster.start();
        for mount in 1..self.mounts.len() {
            if let Err(error) = self.mount(mount) {
                field.wrong([violation(Class::Error, format!("mount {mount} beyond M: {error}"))]);
            }
        }
        let lost = heard(|| ropewalk(&["pool", "lost", "--json", "--dir", dir]));
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
                    "pool verify: {}{}\n{}",
                    String::from_utf8_lossy(&verify.stdout),
                    String::from_utf8_lossy(&verify.stderr),
                    why(&self.cluster)
                );
                field.wrong([violation(Class::NotOk, text)]);
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        let lost = heard(|| ropewalk(&["pool", "lost", "--dir", dir]));
        if !lost.status.success() {
            field.wrong([violation(
                Class::Lost,
                format!("pool lost: {}", String::from_utf8_lossy(&lost.stdout)),
            )]);
        }
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
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(100));
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
