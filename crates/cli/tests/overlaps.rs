//! Stories of faults that overlap: what one of them leaves is not yet mended when the next one comes. Afterwards every pdisk is
//! `ok` again, and what was acknowledged is there: names and bytes. (`chaos` draws such stories; these are told.)
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/load.rs"]
#[allow(dead_code)]
mod load;
#[path = "arrays/outage.rs"]
mod outage;
#[path = "arrays/story.rs"]
mod story;

mod common;

use std::{
    fs,
    os::unix::fs::FileExt,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use common::{Cluster, ropewalk, until};
use load::{Load, same, survived};
use outage::Outage;
use rustix::process::Signal;
use story::{PATIENCE, command, missed, returns, set, state, whole};

/// Beyond a lease. An outage, not the time in which something must have happened.
const OUTAGE: Duration = Duration::from_secs(12);
const FAULT: &str = "ROPEWALK_PDISK_FAULT";

/// Two servers are stopped beyond their leases, the second before the first one's pdisks are whole again.
#[test]
fn a_second_server_is_stopped_while_the_first_ones_pdisks_return() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2"]);
    (0..64).for_each(|number| outage.write(number));
    let cluster = Arc::clone(&outage.cluster);
    cluster.signal("n2", Signal::STOP);
    missed(&cluster, &["n2p1", "n2p2"]);
    (0..64).for_each(|number| outage.change(number));
    let changing = outage.keeps_changing();
    cluster.signal("n2", Signal::CONT);
    returns(&cluster, "n2p1");
    cluster.signal("n3", Signal::STOP);
    sleep(OUTAGE);
    cluster.signal("n3", Signal::CONT);
    changing.end().well();
}

/// Every server is away in its turn, and nobody waits until the one before is whole again: more pdisks miss something than a
/// stripe can lose, but never the same.
#[test]
fn one_server_after_another_is_away() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2"]);
    (0..64).for_each(|number| outage.write(number));
    let cluster = Arc::clone(&outage.cluster);
    let changing = outage.keeps_changing();
    for server in ["n1", "n2", "n3", "n4"] {
        cluster.kill(|name| name == server);
        sleep(OUTAGE);
        cluster.start_server(server);
        returns(&cluster, &format!("{server}p1"));
    }
    changing.end().well();
}

/// The manager is killed while two pdisks return.
#[test]
fn the_manager_dies_while_pdisks_return() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2"]);
    (0..80).for_each(|number| outage.write(number));
    outage.cluster.kill(|name| name == "n2");
    missed(&outage.cluster, &["n2p1", "n2p2"]);
    (0..40).for_each(|number| outage.change(number));
    outage.cluster.start_server("n2");
    returns(&outage.cluster, "n2p1");
    outage.cluster.kill(|name| name == "manager");
    outage.cluster.start_server("manager");
    (40..80).for_each(|number| outage.change(number));
    outage.well();
}

/// A pdisk is rebuilt on the others; meanwhile one of those has its log damaged.
#[test]
fn a_log_is_damaged_while_another_pdisk_is_rebuilt() {
    let mut outage = Outage::with(&["--nodes", "5", "--pdisks", "2"], SLOWLY);
    (0..160).for_each(|number| outage.write(number));
    let slow = being_rebuilt(&outage.cluster);
    let cluster = Arc::clone(&outage.cluster);
    let changing = outage.keeps_changing();
    cluster.kill(|name| name == "n3");
    flip(&cluster, "n3/pdisk1/log");
    cluster.start_server("n3");
    slow.end(&cluster);
    let outage = changing.end();
    outage.well();
}

/// Pdisks return into an array that was filled meanwhile, and one of them finds no room on its host for a while.
#[test]
fn there_is_no_room_during_the_catch_up() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2", "--pdisk-size", "64m"]);
    (0..40).for_each(|number| outage.write(number));
    outage.cluster.kill(|name| name == "n2");
    missed(&outage.cluster, &["n2p1", "n2p2"]);
    (0..40).for_each(|number| outage.change(number));
    let mut filled = 0;
    while outage.write_if_there_is_room(1000 + filled) {
        filled += 1;
    }
    println!("{filled} files filled it");
    let short = "enospc on=write file=log path=n2/pdisk1 after=20 times=6; enospc on=write file=index path=n2/pdisk2 times=2";
    outage.cluster.start_server_with("n2", &[(FAULT, short)]);
    all_ok_but_for_room(&outage.cluster);
    outage.read();
    (1000..1000 + filled).step_by(2).for_each(|number| outage.remove(number));
    outage.well();
}

/// Waits until every pdisk is `ok`, or waits for nothing but room: by chance it may have got more of what was written without it than
/// the fullest of those that were filled.
fn all_ok_but_for_room(cluster: &Cluster) {
    let end = Instant::now() + PATIENCE;
    loop {
        let (list, moving) = (cluster.json(&["pdisk", "list"]), cluster.json(&["rebuild", "status"]));
        let of_room = |name: &str| {
            let mut waits = moving[0]["waits"].as_array().unwrap().iter().map(|wait| wait.as_str().unwrap());
            waits.any(|wait| wait.starts_with(&format!("{name}: ")) && wait.ends_with("pdisk full"))
        };
        let well =
            |pdisk: &serde_json::Value| pdisk["state"] == "ok" || of_room(pdisk["name"].as_str().unwrap());
        if list.as_array().unwrap().iter().all(well) {
            println!("what waits: {}", moving[0]["waits"]);
            return;
        }
        assert!(Instant::now() < end, "{list:#}\n{moving:#}\n{}", cluster.logs());
        sleep(Duration::from_millis(100));
    }
}

/// A mount dies between the preparation of stripes and their adoption, and a server just after.
#[test]
fn a_mount_dies_in_the_middle_of_stripes_and_a_server_just_after() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2"]);
    (0..24).for_each(|number| outage.write(number));
    let load = Load::start(&outage.cluster.mnt().join("load"), 2, outage.random.next(), true);
    load.goes_on();
    outage.cluster.kill(|name| name.starts_with("mount"));
    outage.cluster.kill(|name| name == "n1");
    let models = load.end();
    outage.cluster.start();
    let end = Instant::now() + PATIENCE;
    while let Err(lost) = survived(&models) {
        assert!(Instant::now() < end, "{lost}\n{}", outage.cluster.logs());
        sleep(Duration::from_millis(200));
    }
    fs::remove_dir_all(outage.cluster.mnt().join("load")).unwrap();
    (0..24).for_each(|number| outage.change(number));
    outage.well();
}

/// Reads of one pdisk fail while another one catches up.
#[test]
fn reads_fail_on_one_pdisk_while_another_one_catches_up() {
    let mut outage = Outage::new(&["--nodes", "8", "--pdisks", "1"]);
    (0..80).for_each(|number| outage.write(number));
    outage.cluster.kill(|name| name == "n2");
    missed(&outage.cluster, &["n2p1"]);
    (0..40).for_each(|number| outage.change(number));
    outage.cluster.kill(|name| name == "n3");
    let sick = "eio on=read file=data path=n3/pdisk1 p=0.3 times=60";
    outage.cluster.start_server_with("n3", &[(FAULT, sick)]);
    outage.cluster.start_server("n2");
    (40..80).for_each(|number| outage.change(number));
    outage.cluster.wait_all_but(PATIENCE, &["n3p1"]);
    outage.cluster.kill(|name| name == "n3");
    outage.cluster.start_server("n3");
    outage.well();
}

/// All servers lose power, with what their disks had not flushed, while a pdisk is rebuilt.
#[test]
fn the_power_is_cut_during_a_rebuild() {
    let mut outage = Outage::with(&["--nodes", "4", "--pdisks", "2"], SLOWLY);
    outage.cluster.down();
    outage.cluster.set_env(FAULT, "volatile leak=0.1");
    outage.cluster.start();
    (0..160).for_each(|number| outage.write(number));
    let load = Load::start(&outage.cluster.mnt().join("load"), 2, outage.random.next(), false);
    let slow = being_rebuilt(&outage.cluster);
    load.goes_on();
    outage.cluster.kill(|name| name.starts_with('n'));
    (1..=4).for_each(|n| outage.cluster.start_server(&format!("n{n}")));
    load.goes_on();
    slow.end(&outage.cluster);
    whole(&outage.cluster);
    same(&load.end());
    fs::remove_dir_all(outage.cluster.mnt().join("load")).unwrap();
    outage.well();
}

/// A rebuild that is held back until [`Slow::end`].
struct Slow;

const SLOWLY: &[&str] = &["rebuild_rate=1"];

/// The pdisk n1p1 is given up, and its rebuild has begun.
fn being_rebuilt(cluster: &Cluster) -> Slow {
    // Not twice: the first time may have been heard, and its answer not.
    let (dir, fail) = (cluster.dir(), ["pdisk", "fail", "n1p1", "--dir"]);
    until("it is given up", || {
        ropewalk(&[&fail[..], &[dir.to_str().unwrap()]].concat()).status.success()
            || state(cluster, "n1p1") != "ok"
    });
    let end = Instant::now() + PATIENCE;
    while cluster.json(&["rebuild", "status"])[0]["done"] == 0 {
        assert!(Instant::now() < end, "nothing is rebuilt: {}", cluster.logs());
        sleep(Duration::from_millis(50));
    }
    Slow
}

impl Slow {
    /// Waits until all is rebuilt, and takes the pdisk in again.
    fn end(self, cluster: &Cluster) {
        let left = cluster.json(&["rebuild", "status"])[0]["left"].as_u64().unwrap();
        println!("{left} groups are left to be rebuilt");
        set(cluster, &["rebuild_rate=0"]);
        whole(cluster);
        command(cluster, &["pdisk", "keep", "n1p1"]);
        cluster.wait_all_ok(PATIENCE);
        whole(cluster);
    }
}

/// Flips bits of a file of a pdisk.
fn flip(cluster: &Cluster, file: &str) {
    let path = cluster.dir().join("nodes").join(file);
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    for at in (4096 + 100..len).step_by(40_000) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }
}
