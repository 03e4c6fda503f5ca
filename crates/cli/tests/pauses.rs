//! Processes that are stopped and go on, and disks that hang: whoever was away itself blames nobody else for it; whoever is
//! taken for gone by others finds that out before it answers; a disk that does not answer holds up nobody but itself.
//! Leases are 6 s here, so six of them are over in 36; what a busy machine lets wait keeps its own.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread::{Scope, scope, sleep},
    time::Duration,
};

use common::{Cluster, processes, until};
use mounts::Mounts;
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(120);
/// Beyond a lease.
const LONG: Duration = Duration::from_secs(9);
/// Beyond six leases.
const LONGER: Duration = Duration::from_secs(40);

/// Two mounts of a cluster that never knew longer leases.
fn two_mounts(cluster: Cluster) -> Mounts {
    cluster.set_up(&["leaseDuration=6s"]);
    Mounts::over(cluster, 2)
}

fn pid(cluster: &Cluster, name: &str) -> Pid {
    let found = cluster.processes().into_iter().find(|(process, _)| process == name);
    Pid::from_raw(found.unwrap_or_else(|| panic!("{name} does not run")).1).unwrap()
}

/// Stops processes for some time.
fn pause(pids: &[Pid], time: Duration) {
    scope(|scope| stopped(scope, pids, time));
}

/// Stops processes, which go on by themselves after some time.
fn stopped<'scope>(scope: &'scope Scope<'scope, '_>, pids: &[Pid], time: Duration) {
    let pids = pids.to_vec();
    pids.iter().for_each(|&pid| processes::signal(pid, Signal::STOP));
    scope.spawn(move || {
        sleep(time);
        pids.iter().for_each(|&pid| kill_process(pid, Signal::CONT).unwrap());
    });
}

/// Waits until every pdisk is `ok` after what was just done to its server, which the manager may not have noticed yet.
fn all_back(cluster: &Cluster) {
    cluster.wait_reported(PATIENCE);
    cluster.wait_all_ok(PATIENCE);
}

fn pattern(n: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512) as u8 ^ n).collect()
}

/// Whether a session was ended that had not ended itself.
fn ended(cluster: &Cluster) -> Vec<String> {
    let log = fs::read_to_string(cluster.dir().join("log/manager.log")).unwrap_or_default();
    log.lines().filter(|line| line.contains("is ended:")).map(str::to_owned).collect()
}

/// The manager is away for longer than any lease. No mount is ended for it, and what was not
/// synced is there.
#[test]
fn a_manager_that_was_stopped_ends_nobody() {
    let mounts = two_mounts(Mounts::memory());
    let manager = pid(&mounts.cluster, "manager");
    let files: Vec<fs::File> =
        (0..2).map(|m| fs::File::create(mounts.at(m, &format!("f{m}"))).unwrap()).collect();
    files.iter().zip(1..).for_each(|(file, n)| file.write_all_at(&pattern(n, 3_000_000), 0).unwrap());
    // Each is about to want what the other one holds.
    scope(|scope| {
        stopped(scope, &[manager], LONGER);
        assert_eq!(fs::read(mounts.at(0, "f1")).unwrap(), pattern(2, 3_000_000));
    });
    files.iter().for_each(|file| file.sync_all().unwrap());
    for m in 0..2 {
        assert_eq!(fs::read(mounts.at(m, "f0")).unwrap(), pattern(1, 3_000_000));
    }
    assert_eq!(ended(&mounts.cluster), Vec::<String>::new());
}

/// Servers are stopped for less and for more than their lease: nothing is lost, nobody is ended.
#[test]
fn servers_that_were_stopped_answer_under_no_old_lease() {
    let mounts = two_mounts(Mounts::memory());
    let servers = [pid(&mounts.cluster, "n1")];
    let file = fs::File::create(mounts.at(0, "f")).unwrap();
    let cases: [(&[Pid], Duration); 2] = [(&servers, Duration::from_secs(1)), (&servers, LONG)];
    for ((servers, time), n) in cases.into_iter().zip(1..) {
        file.write_all_at(&pattern(n, 2_000_000), 0).unwrap();
        scope(|scope| {
            stopped(scope, servers, time);
            file.sync_all().unwrap();
        });
        assert!(fs::read(mounts.at(1, "f")).unwrap() == pattern(n, 2_000_000), "case {n}");
    }
    all_back(&mounts.cluster);
    mounts.cluster.kill(|name| name == "n2");
    assert!(fs::read(mounts.at(1, "f")).unwrap() == pattern(2, 2_000_000));
    assert_eq!(ended(&mounts.cluster), Vec::<String>::new());
}

/// All servers are stopped beyond their leases while a file is overwritten and synced.
#[test]
fn all_servers_stopped_lose_nothing() {
    let mounts = two_mounts(Mounts::memory());
    let servers: Vec<Pid> = ["n1", "n2", "n3"].iter().map(|name| pid(&mounts.cluster, name)).collect();
    let file = fs::File::create(mounts.at(0, "f")).unwrap();
    for n in 1..4 {
        file.write_all_at(&pattern(n, 2_000_000), 0).unwrap();
        scope(|scope| {
            stopped(scope, &servers, LONG);
            file.sync_all().unwrap();
        });
        assert!(fs::read(mounts.at(1, "f")).unwrap() == pattern(n, 2_000_000), "round {n}");
    }
    mounts.cluster.wait_all_ok(PATIENCE);
}

/// A mount is stopped. While nobody wants what it holds it goes on as if nothing had been; otherwise it is ended, says EIO, and
/// what others wrote meanwhile stays. With the manager stopped as well, its silence counts only while that is there.
#[test]
fn a_mount_that_was_stopped_goes_on_or_says_that_it_lost_its_session() {
    let mounts = two_mounts(Mounts::memory());
    let (mount, manager) = (mounts.process(1), pid(&mounts.cluster, "manager"));
    let file = fs::File::create(mounts.at(1, "f")).unwrap();
    file.write_all_at(&pattern(1, 300_000), 0).unwrap();
    pause(&[mount], LONG);
    file.sync_all().unwrap();
    assert_eq!(fs::read(mounts.at(1, "f")).unwrap(), pattern(1, 300_000));
    assert_eq!(ended(&mounts.cluster), Vec::<String>::new());

    file.write_all_at(&pattern(2, 300_000), 0).unwrap();
    pause(&[mount, manager], LONGER);
    file.sync_all().unwrap();
    assert_eq!(fs::read(mounts.at(0, "f")).unwrap(), pattern(2, 300_000));
    assert_eq!(ended(&mounts.cluster), Vec::<String>::new());

    file.write_all_at(&pattern(3, 300_000), 0).unwrap();
    // It could give up what it has as long as it runs.
    processes::signal(mount, Signal::STOP);
    fs::write(mounts.at(0, "f"), pattern(4, 300_000)).unwrap();
    fs::File::open(mounts.at(0, "f")).unwrap().sync_all().unwrap();
    kill_process(mount, Signal::CONT).unwrap();
    // Its line may be written a moment after the writer has its answer.
    until("somebody wanted what it had, and it is said", || !ended(&mounts.cluster).is_empty());
    assert_eq!(
        file.sync_all().unwrap_err().raw_os_error(),
        Some(libc::EIO),
        "what it had is lost, and it says so"
    );
    assert_eq!(fs::read(mounts.at(0, "f")).unwrap(), pattern(4, 300_000));
    assert_eq!(ended(&mounts.cluster).len(), 1, "one, and once");
}

/// What a kernel has of directories counts no longer than the lease of its mount: that one cannot tell it meanwhile.
#[test]
fn the_kernel_of_a_mount_that_was_stopped_believes_nothing_from_before() {
    let mounts = two_mounts(Mounts::memory());
    fs::create_dir(mounts.at(0, "d")).unwrap();
    let dir = fs::File::open(mounts.at(1, "d")).unwrap();
    let mode = || dir.metadata().map(|found| found.mode() & 0o777);
    fs::set_permissions(mounts.at(0, "d"), Permissions::from_mode(0o755)).unwrap();
    // What is asked for often is kept.
    (0..12).for_each(|_| assert_eq!(mode().unwrap(), 0o755));
    let mount = mounts.process(1);
    processes::signal(mount, Signal::STOP);
    scope(|scope| {
        fs::set_permissions(mounts.at(0, "d"), Permissions::from_mode(0o700)).unwrap();
        // It waits for the mount, or would have an answer by then.
        let asked = scope.spawn(mode);
        for _ in 0..100 {
            if !asked.is_finished() {
                sleep(Duration::from_millis(10));
            }
        }
        kill_process(mount, Signal::CONT).unwrap();
        // Its session may have been ended.
        assert_ne!(asked.join().unwrap().ok(), Some(0o755));
    });
}

const HANGING: [&str; 10] =
    ["--nodes", "3", "--pdisks", "2", "--pdisk-size", "256m", "--code", "2+1p", "--block-size", "1m"];

/// Writes and syncs more and more of a file, until that fails.
fn write_on(path: PathBuf) {
    let Ok(mut file) = fs::File::create(path) else { return };
    while file.write_all(&pattern(1, 100_000)).and_then(|()| file.sync_all()).is_ok() {}
}

/// Server n3 from now on has a pdisk that hangs at some write; a mount writes until it does, and is killed then. The disk answers when
/// the file is made that this returns.
fn hang_and_kill(mounts: &Mounts) -> PathBuf {
    let cluster = &mounts.cluster;
    cluster.wait_all_ok(PATIENCE);
    cluster.kill(|name| name == "n3");
    // Its start and its catching up write to the log as well, less or more: they are not what shall hang.
    let (now, until_now) = (cluster.dir().join("hang-now"), cluster.dir().join("hang-until-now"));
    let fault = format!(
        "delay 3000s on=write file=log path=n3/pdisk1 once={} after=20 times=1; until {}",
        now.display(),
        until_now.display()
    );
    cluster.start_server_with("n3", &[("ROPEWALK_PDISK_FAULT", &fault)]);
    all_back(cluster);
    fs::write(now, "").unwrap();
    let path = mounts.at(1, "of-the-dead");
    let writer = std::thread::spawn(move || write_on(path));
    let log = cluster.dir().join("log/n3.log");
    until("its disk hangs", || {
        assert!(!writer.is_finished(), "it does not hang\n{}", cluster.logs());
        fs::read_to_string(&log).unwrap().contains("the fault plan holds up a request")
    });
    processes::signal(mounts.process(1), Signal::KILL);
    // Of the same mount that lives, beside it: to the other disks, and what the dead one held.
    store(&mounts.at(0, "beside"), 5);
    store(&mounts.at(0, "of-the-dead"), 6);
    let _ = rustix::mount::unmount(&mounts.all[1], rustix::mount::UnmountFlags::DETACH);
    writer.join().unwrap();
    until("the disk that hangs is missing, and nobody else is held up", || {
        let list = cluster.json(&["pdisk", "list"]);
        list.as_array()
            .unwrap()
            .iter()
            .all(|p| p["state"] == if p["name"] == "n3p1" { "missing" } else { "ok" })
    });
    until_now
}

fn store(path: &Path, n: u8) {
    let written = fs::write(path, pattern(n, 500_000)).and_then(|()| fs::File::open(path)?.sync_all());
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The disk answers in the end: its pdisk comes back, and what it did late changes nothing.
#[test]
fn a_disk_that_answers_late_holds_up_nobody_else() {
    let mounts = two_mounts(Cluster::prepare(&HANGING));
    fs::write(hang_and_kill(&mounts), "").unwrap();
    mounts.cluster.wait_all_ok(PATIENCE);
    mounts.cluster.kill(|name| name == "n2");
    for (name, n) in [("beside", 5), ("of-the-dead", 6)] {
        assert_eq!(fs::read(mounts.at(0, name)).unwrap(), pattern(n, 500_000), "{name}");
    }
}

/// It never answers. The cluster works, and goes down within a bound.
#[test]
fn a_disk_that_never_answers_holds_up_nobody_else_and_not_the_end() {
    let mounts = two_mounts(Cluster::prepare(&HANGING));
    hang_and_kill(&mounts);
    for n in 0..8 {
        store(&mounts.at(0, &format!("g{n}")), n);
    }
    mounts.cluster.json(&["status"]);
    mounts.cluster.down();
    until("all have ended", || mounts.cluster.processes().is_empty());
    mounts.cluster.start();
    mounts.cluster.wait_all_ok(PATIENCE);
    for n in 0..8 {
        assert_eq!(fs::read(mounts.at(0, &format!("g{n}"))).unwrap(), pattern(n, 500_000), "g{n}");
    }
}
