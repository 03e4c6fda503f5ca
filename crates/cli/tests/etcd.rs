//! A cluster whose manager has its journal in etcd: the manager is killed and etcd stops answering while a mount makes files;
//! nothing acknowledged is lost, and the mount goes on. A dump of it is that of its table.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/maker.rs"]
mod maker;
#[allow(dead_code)] // the manager's own tests use more of it
#[path = "../../manager/src/store/replicated/member.rs"]
mod member;

use std::{fs, sync::atomic::Ordering::SeqCst, thread, time::Duration};

use common::{Cluster, ok, refused};
use maker::check;
use member::Member;

/// Rounds of trouble.
const ROUNDS: u32 = 3;
/// Files that must be made between two troubles.
const BETWEEN: u64 = 20;

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

    let made = maker::making(&mnt, BETWEEN, |goes_on, made| {
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
    });
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
