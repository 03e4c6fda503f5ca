//! A cluster whose manager keeps a copy of its store: the manager is killed while a mount makes files, with its disk's cache lost, then its
//! store is; the copy has all that was acknowledged. A copy that is behind is refused; one that does not fit on its disk is removed. So
//! with a copy on another machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/maker.rs"]
mod maker;
#[path = "common/small_disk.rs"]
mod small_disk;

use std::{fs, sync::atomic::Ordering::SeqCst, thread};

use common::{Cluster, free_ports, ok, refused, ropewalk, until};
use maker::{check, make};
use rustix::process::{Pid, Signal, kill_process};
use small_disk::Disk;

const ROUNDS: u32 = 3;
const BETWEEN: u64 = 30;

#[test]
fn the_copy_of_a_managers_store_has_all_when_that_is_lost() {
    let options = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"];
    let cluster = Cluster::up(&options);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let name = dir.to_str().unwrap();
    let copy = dir.with_file_name("copy");
    let copied = copy.to_str().unwrap();
    let error = refused(&["manager", "mirror", copied, "--dir", name]);
    assert!(error.contains("the manager runs"), "{error}");
    cluster.down();
    let error = refused(&["manager", "mirror", copied, "--dir", name]);
    assert!(error.contains("is to be made first, on another disk"), "{error}");
    fs::create_dir(&copy).unwrap();
    let error = refused(&["manager", "promote", "--dir", name]);
    assert!(error.contains("--from-mirror"), "{error}");
    let error = refused(&["manager", "promote", "m2", "--from-mirror", copied, "--dir", name]);
    assert!(error.contains("cannot be used with"), "{error}");
    let told = ok(&["manager", "mirror", copied, "--dir", name]);
    assert!(told.contains("on the same file system as the store"), "{told}");
    cluster.start();
    let store = || cluster.json(&["status"])["store"].as_str().unwrap_or_default().to_owned();
    until("the copy has all", || store().contains("with a copy in"));
    assert!(!store().contains("on one disk"), "{}", store());
    until("it is well", || ropewalk(&["health", "--dir", name]).status.success());

    let made = maker::making(&mnt, BETWEEN, |goes_on, made| {
        for round in 0..ROUNDS {
            cluster.kill(|process| process == "manager");
            cluster.start_server_with("manager", &[("ROPEWALK_MANAGER_UNFLUSHED", &round.to_string())]);
            goes_on("files are made after the manager's kill");
            until("the copy has all", || store().contains("with a copy in"));
        }
        goes_on("files are made");
        cluster.kill(|process| process == "manager");
        fs::remove_dir_all(dir.join("manager")).unwrap();
        let told = ok(&["manager", "promote", "--from-mirror", copied, "--dir", name]);
        println!("{} files, {told}", made.load(SeqCst));
        cluster.start_server("manager");
        goes_on("files are made with the copy");
    });
    check(&mnt, made);

    // The copy's directory is gone when the manager starts: it goes on alone, and that is said.
    cluster.down();
    fs::remove_dir_all(&copy).unwrap();
    cluster.start();
    make(&mnt, made);
    let health = || String::from_utf8(ropewalk(&["health", "--dir", name]).stdout).unwrap();
    until("health says so", || health().contains("stands on one disk only"));
    until("status says so", || store().contains("is behind"));
    until("the event is told", || ok(&["events", "--dir", name]).contains("stands on one disk only"));
    // Before, the manager could make the copy anew meanwhile.
    cluster.down();
    fs::create_dir(&copy).unwrap();
    let error = refused(&["manager", "promote", "--from-mirror", copied, "--dir", name]);
    assert!(error.contains("lacks what was committed last"), "{error}");

    // One that does not fit is begun once, and again when there is room.
    let disk = Disk::mount(&dir.with_file_name("disk"), 64);
    let copy = disk.0.join("copy");
    fs::create_dir(&copy).unwrap();
    ok(&["manager", "mirror", copy.to_str().unwrap(), "--dir", name]);
    disk.fill(4 << 20);
    cluster.start();
    until("health says that there is no room", || health().contains("is full: "));
    until("what was begun is removed", || fs::read_dir(&copy).unwrap().count() == 0);
    disk.empty();
    until("the copy has all", || store().contains("with a copy in"));
    cluster.down();
    ok(&["manager", "mirror", "--off", "--dir", name]);
    drop(disk);
    cluster.start();
    check(&mnt, made + 1);
    until("status says so", || store().contains("on one disk, not replicated"));
}

/// Ends what runs of a directory, also when the test fails.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        let _ = ropewalk(&["down", "--dir", &self.0, "--force"]);
    }
}

/// Whether the copy is the manager's store now: servers that are not heard in time are to be asked again.
fn promoted(promote: &[&str]) -> bool {
    let output = ropewalk(promote);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() || said.contains("try again"), "{said}");
    output.status.success()
}

/// Whether a process stands still that may have ended.
fn stop(pid: Pid) -> bool {
    let sent = kill_process(pid, Signal::STOP).is_ok();
    common::processes::took(pid, Signal::STOP);
    let lives = || common::processes::start_ticks(pid.as_raw_nonzero().get()).is_some();
    sent && lives()
}

/// The same with the copy on another machine, here another directory; three servers know whether it counts.
#[test]
fn the_copy_on_another_machine_has_all_when_the_managers_is_gone() {
    let options = ["--nodes", "3", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"];
    let cluster = Cluster::up(&options);
    let (dir, mnt, other) = (cluster.dir(), cluster.mnt(), Cluster::prepare(&[]));
    let (name, kept) = (dir.to_str().unwrap(), other.dir());
    let kept = kept.to_str().unwrap();
    let _down = Down(kept.to_owned());
    let store = || cluster.json(&["status"])["store"].as_str().unwrap_or_default().to_owned();
    let whole = || until("the copy has all", || store().ends_with("with a copy on m2"));
    let token = ok(&["node", "token", "--dir", name, "--role", "manager"]);
    let port = free_ports().to_string();
    let place = ["--address", "127.0.0.1", "--port", &port, "--name", "m2", "--no-service"];
    ok(&[&["join", "--dir", kept, token.trim()], &place[..]].concat());
    let error = refused(&["manager", "mirror", "m2", "--dir", name]);
    assert!(error.contains("the manager runs"), "{error}");
    cluster.kill(|process| process == "manager");
    let error = refused(&["manager", "mirror", "manager", "--dir", name]);
    assert!(error.contains("own manager"), "{error}");
    ok(&["manager", "mirror", "m2", "--dir", name]);
    cluster.start_server("manager");
    whole();
    assert!(!store().contains("on one disk"), "{}", store());
    // The servers may find the manager again after the copy has all.
    until("it is well", || ropewalk(&["health", "--dir", name]).status.success());

    let promote = ["manager", "promote", "--dir", kept, "--from-mirror"];
    let made = maker::making(&mnt, BETWEEN, |goes_on, _| {
        for process in ["manager", "other"] {
            // Either comes back.
            let machine = if process == "manager" { &cluster } else { &other };
            machine.kill(|process| process == "manager");
            machine.start_server("manager");
            goes_on("files are made after the kill");
            whole();
        }
        let error = refused(&promote);
        assert!(error.contains("the manager runs"), "{error}");
        // The keeper is gone: work goes on once the servers know that the copy is behind.
        other.kill(|process| process == "manager");
        goes_on("files are made without the copy");
        // A server may not be heard in time: then it is to be tried again.
        until("it is refused as behind", || refused(&promote).contains("lacks what was committed last"));
        other.start_server("manager");
        whole();
        goes_on("files are made");
        // The manager's machine is cut off, as it seems; it comes back when another one leads.
        cluster.signal("manager", Signal::STOP);
        other.kill(|process| process == "manager");
        // One server starts anew, and waits for a manager: it says what it knows. Another one does not answer.
        cluster.kill(|process| process == "n1");
        cluster.start_server("n1");
        cluster.signal("n2", Signal::STOP);
        // The keeper does not come back in the middle.
        let promoting = thread::spawn({
            let kept = kept.to_owned();
            move || {
                until("it is promoted", || promoted(&["manager", "promote", "--dir", &kept, "--from-mirror"]))
            }
        });
        let begun = || other.processes().iter().any(|(process, _)| process == "manager");
        until("it is being promoted", || begun() || promoting.is_finished());
        // It may be done before it is stopped.
        let held = other.processes().into_iter().find(|(process, _)| process == "manager");
        let held = held.and_then(|(_, pid)| Pid::from_raw(pid)).filter(|pid| stop(*pid));
        if let Some(pid) = held {
            // Stopped at its very end it may have given the name back: then one that is started serves.
            if begun() {
                let error = refused(&["serve", "--dir", kept, "--name", "manager"]);
                assert!(error.contains("runs already"), "{error}");
            }
            kill_process(pid, Signal::CONT).unwrap();
        }
        promoting.join().unwrap();
        cluster.signal("n2", Signal::CONT);
        ok(&["up", "--detach", "--dir", kept]);
        goes_on("files are made with the copy");
        cluster.signal("manager", Signal::CONT);
        until("the former manager ends", || {
            !cluster.processes().iter().any(|(process, _)| process == "manager")
        });
        // The servers say so, or whoever has a newer map.
        let ended = ["was promoted", "is an older copy"].iter().any(|why| cluster.logs().contains(why));
        assert!(ended, "{}", cluster.logs());
        goes_on("files are made");
        fs::remove_dir_all(dir.join("manager")).unwrap();
    });
    check(&mnt, made);
    let error = refused(&promote);
    assert!(error.contains("keeps no copy"), "{error}");
}
