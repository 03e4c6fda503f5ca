//! A cluster whose manager keeps a copy of its store: the manager is killed while a mount makes files, with its disk's cache lost, then its
//! store is; the copy has all that was acknowledged. A copy that is behind is refused.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/maker.rs"]
mod maker;

use std::{fs, sync::atomic::Ordering::SeqCst};

use common::{Cluster, ok, refused, ropewalk, until};
use maker::{check, make};

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
    ok(&["health", "--dir", name]);

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
    let health = String::from_utf8(ropewalk(&["health", "--dir", name]).stdout).unwrap();
    assert!(health.contains("stands on one disk only"), "{health}");
    let events = ok(&["events", "--dir", name]);
    assert!(store().contains("is behind"), "{}", store());
    until("the event is told", || {
        ok(&["events", "--dir", name]).contains("stands on one disk only")
            || events.contains("stands on one disk only")
    });
    fs::create_dir(&copy).unwrap();
    cluster.down();
    let error = refused(&["manager", "promote", "--from-mirror", copied, "--dir", name]);
    assert!(error.contains("lacks what was committed last"), "{error}");
    ok(&["manager", "mirror", "--off", "--dir", name]);
    cluster.start();
    check(&mnt, made + 1);
    assert!(store().contains("on one disk, not replicated"), "{}", store());
}
