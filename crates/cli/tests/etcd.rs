//! A cluster whose manager has its journal in etcd: the manager is killed and etcd stops answering while a mount makes files;
//! nothing acknowledged is lost, and the mount goes on. A dump of it is that of its table.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[allow(dead_code)] // the manager's own tests use more of it
#[path = "../../manager/src/store/replicated/member.rs"]
mod member;

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use common::{Cluster, ok, refused, until};
use member::Member;

/// Rounds of trouble.
const ROUNDS: u32 = 3;
/// Files that must be made between two troubles.
const BETWEEN: u64 = 20;

fn make(mnt: &Path, n: u64) {
    let mut file = File::create_new(mnt.join(format!("new{n}"))).unwrap();
    file.write_all(n.to_string().as_bytes()).unwrap();
    file.sync_all().unwrap();
    fs::rename(mnt.join(format!("new{n}")), mnt.join(format!("name{n}"))).unwrap();
}

fn check(mnt: &Path, made: u64) {
    assert_eq!(fs::read_dir(mnt).unwrap().count() as u64, made);
    for n in 0..made {
        assert_eq!(fs::read_to_string(mnt.join(format!("name{n}"))).unwrap(), n.to_string());
    }
}

/// Ends the load of a test, also of one that fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_manager_over_etcd_is_killed_and_etcd_stops_while_files_are_made() {
    let etcd = Member::start(&[]);
    let place = format!("etcd://{}/rope", etcd.address);
    let options = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"];
    let cluster = Cluster::up(&[&options[..], &["--store", &place]].concat());
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let name = dir.to_str().unwrap();
    let store = cluster.json(&["status"])["store"].as_str().unwrap().to_owned();
    assert!(store.contains(&place) && !store.contains("not replicated"), "{store}");
    assert!(!dir.join("manager/store.journal").exists());

    let (made, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let end = Stop(&stop);
        let maker = scope.spawn(|| {
            while !stop.load(SeqCst) {
                make(&mnt, made.load(SeqCst));
                made.fetch_add(1, SeqCst);
            }
        });
        let goes_on = |what: &str| {
            let before = made.load(SeqCst);
            until(what, || made.load(SeqCst) >= before + BETWEEN || maker.is_finished());
        };
        for round in 0..ROUNDS {
            goes_on("files are made");
            cluster.kill(|process| process == "manager");
            cluster.start_server("manager");
            goes_on("files are made after the manager's kill");
            etcd.signal("-STOP");
            // Beyond what a request waits, and the manager's lease at etcd: the state that is waited for.
            thread::sleep(Duration::from_secs(4));
            etcd.signal("-CONT");
            goes_on("files are made after etcd's stop");
            println!("round {round}: {} files", made.load(SeqCst));
        }
        drop(end);
        maker.join().unwrap();
    });
    let made = made.load(SeqCst);
    check(&mnt, made);

    cluster.down();
    let dump = dir.with_file_name("dump");
    let told = ok(&["manager", "dump", dump.to_str().unwrap(), "--dir", name]);
    assert!(told.contains("records are in"), "{told}");
    ok(&["manager", "check", "--dir", name]);
    let error = refused(&["up", "--detach", "--dir", name, "--store", "etcd://127.0.0.1:1/other"]);
    assert!(error.contains("--store") && error.contains(&place), "{error}");
    cluster.start();
    check(&mnt, made);
    cluster.down();

    // Into a file, and to another place in etcd; the dump says that nothing has changed.
    let records = |told: &str| told.split_whitespace().next().unwrap().parse::<u64>().unwrap();
    let counted = || {
        let dump = dir.with_file_name("another dump");
        let told = ok(&["manager", "dump", dump.to_str().unwrap(), "--dir", name]);
        let bytes = fs::read(&dump).unwrap();
        fs::remove_file(&dump).unwrap();
        (records(&told), bytes)
    };
    let before = counted();
    let error = refused(&["manager", "migrate", "--dir", name, "--store", &format!("{place}2")]);
    assert!(error.contains("--to-file"), "{error}");
    ok(&["manager", "migrate", "--dir", name, "--to-file"]);
    assert!(counted() == before);
    let other = format!("{place}-2");
    ok(&["manager", "migrate", "--dir", name, "--store", &other]);
    assert!(counted() == before);
    // Without --store: cluster.toml says where it is.
    ok(&["up", "--detach", "--dir", name]);
    check(&mnt, made);
    let store = cluster.json(&["status"])["store"].as_str().unwrap().to_owned();
    assert!(store.contains(&other), "{store}");
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a standby on the same machine needs: the cluster's file and keys, and a copy of the table.
fn standby_of(dir: &Path) -> std::path::PathBuf {
    let standby = dir.with_file_name("standby");
    for sub in ["run", "log", "manager"] {
        fs::create_dir_all(standby.join(sub)).unwrap();
    }
    for from in [dir.to_owned(), dir.join("manager")] {
        for entry in fs::read_dir(&from).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            let to = standby.join(entry.path().strip_prefix(dir).unwrap());
            if entry.file_name() != "store.member" {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    standby
}

#[test]
fn a_standby_takes_over_while_files_are_made() {
    let etcd = Member::start(&[]);
    let place = format!("etcd://{}/rope", etcd.address);
    let options = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"];
    let cluster = Cluster::up(&[&options[..], &["--store", &place]].concat());
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    make(&mnt, 0);
    cluster.down();
    let standby = standby_of(&dir);
    cluster.start();
    let log = standby.join("log/standby.log");
    let out = File::create(&log).unwrap();
    let process = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .args(["serve", "--name", "manager", "--standby", "--dir", standby.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    let mut process = Ends(process);
    let said = |text: &str| fs::read_to_string(&log).unwrap().contains(text);
    until("the standby follows", || said("another manager leads"));
    assert!(!said("manager serves"));

    let (made, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    thread::scope(|scope| {
        let end = Stop(&stop);
        let maker = scope.spawn(|| {
            while !stop.load(SeqCst) {
                make(&mnt, made.load(SeqCst));
                made.fetch_add(1, SeqCst);
            }
        });
        let goes_on = |what: &str| {
            let before = made.load(SeqCst);
            until(what, || made.load(SeqCst) >= before + BETWEEN || maker.is_finished());
        };
        goes_on("files are made");
        let killed = std::time::Instant::now();
        cluster.kill(|process| process == "manager");
        until("the standby serves", || said("manager serves"));
        println!("the standby serves {:.1} s after the kill", killed.elapsed().as_secs_f64());
        goes_on("files are made after the takeover");
        // And back: the first one has followed nothing, and reads what it lacks.
        process.0.kill().unwrap();
        process.0.wait().unwrap();
        cluster.start_server("manager");
        goes_on("files are made after the way back");
        drop(end);
        maker.join().unwrap();
    });
    check(&mnt, made.load(SeqCst));
    cluster.down();
}

#[test]
fn a_place_that_is_none_and_options_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("c");
    let up =
        |options: &[&str]| refused(&[&["up", "--detach", "--dir", dir.to_str().unwrap()], options].concat());
    for (options, why) in [
        (&["--store", "redis://a/b"][..], "neither etcd:// nor etcds://"),
        (&["--store", "etcds://a/b"], "--etcd-ca FILE"),
        (&["--store", "etcd://a/b", "--etcd-user", "u"], "--etcd-password"),
        (&["--store", "etcds://a/b", "--etcd-ca", "/no/such/file"], "open /no/such/file"),
    ] {
        let error = up(options);
        assert!(error.contains(why), "{options:?}: {error}");
        assert!(!dir.join("cluster.toml").exists());
    }
}
