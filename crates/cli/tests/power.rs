//! Story: the power of machines goes, and comes back. First that of the manager's machine, under a load that may wait but not fail;
//! then that of all machines, the clients' too, several times, and they come back in any order. What was made durable is there.
//!
//! `up --detach` on a machine is what its services do when it starts; scripts/deb-try.sh shows these.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "common/beds.rs"]
mod beds;
mod common;
#[path = "common/hosts.rs"]
mod hosts;
#[allow(dead_code)] // what is for crashes
#[path = "arrays/load.rs"]
mod load;
#[path = "common/proof.rs"]
mod proof;

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use beds::Bed;
use common::{Random, copy_tree, same_tree, seed, until, write_tree};
use hosts::{Down, Machine, healthy, well};
use load::{Load, same};
use proof::proved;

/// How often all machines are off.
const ROUNDS: usize = 4;
/// Longest that a step may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// Longest between two machines that come back.
const PAUSE_MS_MAX: u64 = 3000;

/// All serve and are up to date; false also while the manager does not answer.
fn wait_well(machine: &Machine<'_>) {
    let end = Instant::now() + PATIENCE;
    while !(machine.run(&["node", "list"]).status.success() && well(machine)) {
        assert!(Instant::now() < end, "never: all machines serve");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// fsync of each file and directory.
fn make_durable(tree: &Path) {
    let status = Command::new("find").arg(tree).args(["-exec", "sync", "{}", "+"]).status().unwrap();
    assert!(status.success(), "sync: {status}");
}

#[test]
fn machines_come_back_in_any_order_with_all_that_was_durable() {
    let mut random = Random(seed());
    let bed = Bed::up("power", &["--hosts", "4"]);
    let base = tempfile::Builder::new().prefix("ropewalk-power-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> = (1..=4).map(|host| Machine::new(&bed, base.path(), host)).collect();
    let [first, second, third, client] = &machines[..] else { unreachable!() };
    let _down = Down(machines.iter().collect());
    first.begin(&["init", "--name", "rope", "--node", "h1"]);
    for machine in [second, third] {
        machine.join(&first.token(&[]));
    }
    wait_well(first);
    first.ok(&["pool", "create", "data", "--code", "2+1p", "--block-size", "256k"]);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
    client.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    let mnt = base.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let mount = || client.ok(&["mount", "fs1", mnt.to_str().unwrap()]);
    mount();

    println!("the manager's machine is off, and on");
    let load = Load::start(&mnt.join("load"), 2, random.below(u64::MAX), false);
    load.goes_on();
    first.kill();
    first.ok(&["up", "--detach"]);
    wait_well(first);
    load.goes_on();
    same(&load.end());

    let tree = base.path().join("tree");
    fs::create_dir(&tree).unwrap();
    write_tree(&tree, 10, &mut random);
    for round in 0..ROUNDS {
        let to = mnt.join(format!("round{round}"));
        copy_tree(&tree, &to);
        make_durable(&to);
        machines.iter().for_each(Machine::kill);
        let mut order = [first, second, third];
        for left in (1..order.len()).rev() {
            order.swap(left, random.below(left as u64 + 1) as usize);
        }
        println!("all are off; they come back: {:?}", order.map(|machine| machine.host));
        // Each starts when its power comes, and waits for whom it needs.
        std::thread::scope(|scope| {
            for machine in order {
                scope.spawn(move || machine.ok(&["up", "--detach"]));
                std::thread::sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
            }
        });
        wait_well(first);
        mount();
        (0..=round).for_each(|round| same_tree(&tree, &mnt.join(format!("round{round}"))));
    }
    client.ok(&["umount", mnt.to_str().unwrap()]);
    until("it is healthy", || healthy(first));
    proved(|| first.run(&["pool", "verify", "data", "--json"]));
}
