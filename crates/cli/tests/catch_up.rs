//! Stories of pdisks that come back after files were removed, cut and replaced without them: each is `ok` again soon, what
//! is there reads as it was written, and nothing of what is gone takes up space.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/outage.rs"]
mod outage;
#[path = "arrays/story.rs"]
mod story;

mod common;

use std::{fs, io::Write, sync::Arc, thread::sleep, time::Duration};

use outage::{LEN, Outage};
use rustix::process::Signal;
use story::{PATIENCE, missed, returns, set};

/// An outage, not the time in which something must have happened.
const LEASE_AND_MORE: Duration = Duration::from_secs(12);

/// Files are removed while one server of the default shape is away: of some of them both parity strips are on its pdisks.
#[test]
fn files_are_removed_while_a_server_is_away() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2"]);
    (0..120).for_each(|number| outage.write(number));
    outage.cluster.kill(|name| name == "n2");
    missed(&outage.cluster, &["n2p1", "n2p2"]);
    for number in 0..100 {
        outage.remove(number);
    }
    outage.removed();
    outage.cluster.start_server("n2");
    outage.well();
}

/// Everything that an outage can be missed by, in a pool of fewer pdisks than its stripes could be spread over twice.
fn changes_are_missed(options: &[&str], server: &str, pdisks: &[&str]) {
    let mut outage = Outage::new(options);
    (0..64).for_each(|number| outage.write(number));
    outage.cluster.kill(|name| name == server);
    missed(&outage.cluster, pdisks);
    (0..64).for_each(|number| outage.change(number));
    outage.removed();
    outage.read();
    outage.cluster.start_server(server);
    outage.well();
}

#[test]
fn changes_are_missed_by_a_server_of_four() {
    changes_are_missed(&["--nodes", "4", "--pdisks", "2"], "n2", &["n2p1", "n2p2"]);
}

#[test]
fn changes_are_missed_by_two_copies_of_three() {
    changes_are_missed(&["--nodes", "2", "--pdisks", "2", "--code", "3way"], "n2", &["n2p1", "n2p2"]);
}

/// What is done to a server.
#[derive(Clone, Copy)]
enum By {
    Kill,
    Stop,
}

/// Two servers of eight are away, not from the same moment on, nor to the same: changes are missed by the one, by both and by
/// the other. Of `8+3p` some stripes have two strips on each of the two: who changes them waits, and nothing is lost.
fn two_of_eight(code: &str, by: By) {
    let mut outage = Outage::new(&["--nodes", "8", "--pdisks", "2", "--pdisk-size", "96m", "--code", code]);
    (0..64).for_each(|number| outage.write(number));
    let cluster = Arc::clone(&outage.cluster);
    let goes = |server: &str| match by {
        By::Kill => cluster.kill(|name| name == server),
        By::Stop => cluster.signal(server, Signal::STOP),
    };
    let is_back = |server: &str| match by {
        By::Kill => cluster.start_server(server),
        By::Stop => cluster.signal(server, Signal::CONT),
    };
    goes("n2");
    missed(&cluster, &["n2p1", "n2p2"]);
    (0..32).for_each(|number| outage.change(number));
    let changing = outage.keeps_changing();
    goes("n5");
    sleep(LEASE_AND_MORE);
    is_back("n2");
    returns(&cluster, "n2p1");
    is_back("n5");
    changing.end().well();
}

#[test]
fn two_servers_of_eight_die() {
    two_of_eight("4+2p", By::Kill);
}

#[test]
fn two_servers_of_eight_are_stopped_and_go_on() {
    two_of_eight("4+2p", By::Stop);
}

#[test]
fn two_servers_of_eight_die_with_three_parities() {
    two_of_eight("8+3p", By::Kill);
}

#[test]
fn two_servers_of_eight_are_stopped_with_three_parities() {
    two_of_eight("8+3p", By::Stop);
}

/// A disk hangs while files are written, and is set aside; the files are stored without it and removed. What it was asked to store
/// it stores when it answers, or its server is killed with it: either way nothing of these files is left when it counts again.
#[test]
fn nothing_of_a_dead_inode_comes_back() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2"]);
    // Each strip goes to the file that hangs.
    set(&outage.cluster, &["fast_write_limit=0"]);
    (0..8).for_each(|number| outage.write(number));
    for (round, killed) in [false, true].into_iter().enumerate() {
        outage.cluster.kill(|name| name == "n2");
        let hangs = "delay 20s on=write file=data path=n2/pdisk1 times=40";
        outage.cluster.start_server_with("n2", &[("ROPEWALK_PDISK_FAULT", hangs)]);
        // It is back: nobody may have noticed yet that it was gone.
        outage.cluster.wait_reported(PATIENCE);
        outage.cluster.wait_all_ok(PATIENCE);
        let paths: Vec<_> = (0..12).map(|number| outage.path(1000 + 100 * round + number)).collect();
        let bytes = &outage.bytes(LEN);
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(move || {
                    let mut file = fs::File::create(path).unwrap();
                    file.write_all(bytes).unwrap();
                    file.sync_all().unwrap();
                });
            }
        });
        paths.iter().for_each(|path| fs::remove_file(path).unwrap());
        outage.removed();
        if killed {
            outage.cluster.kill(|name| name == "n2");
            outage.cluster.start_server("n2");
        }
        outage.cluster.wait_all_ok(PATIENCE);
        outage.well();
    }
}
