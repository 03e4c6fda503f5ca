//! Story: three racks of two machines each, on hosts of their own. A whole rack loses its power under a load that may not fail once;
//! a machine is put into another rack, and what that asks for moves.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "common/beds.rs"]
mod beds;
mod common;
#[path = "common/hosts.rs"]
mod hosts;
#[allow(dead_code)] // what is for crashes
#[path = "arrays/load.rs"]
mod load;

use std::{
    fs,
    time::{Duration, Instant},
};

use beds::Bed;
use common::seed;
use hosts::{Down, Machine, healthy, states, well};
use load::{Load, same};

/// Longest that a step may take.
const PATIENCE: Duration = Duration::from_secs(180);

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// How many racks a pool survives the loss of.
fn survived(machine: &Machine<'_>) -> u64 {
    machine.json(&["pool", "list"])[0]["rack_losses_survived"].as_u64().unwrap()
}

fn settled(machine: &Machine<'_>) -> bool {
    well(machine)
        && machine.json(&["rebuild", "status"]).as_array().unwrap().iter().all(|row| row["left"] == 0)
}

#[test]
fn a_rack_loses_its_power_and_nobody_who_works_notices() {
    let bed = Bed::up("racks", &["--hosts", "7"]);
    let base = tempfile::Builder::new().prefix("ropewalk-racks-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> = (1..=7).map(|host| Machine::new(&bed, base.path(), host)).collect();
    let [first, .., sixth, client] = &machines[..] else { unreachable!() };
    let _down = Down(machines.iter().collect());
    let rack = |host: usize| format!("r{}", host.div_ceil(2));
    first.begin(&["init", "--name", "rope", "--node", "h1", "--rack", "r1"]);
    for machine in &machines[1..6] {
        let (token, name) = (first.token(&[]), format!("h{}", machine.host));
        machine.begin(&["join", &token, "--name", &name, "--rack", &rack(machine.host)]);
    }
    let nodes = first.json(&["node", "list"]);
    let racks: Vec<&str> = nodes.as_array().unwrap().iter().map(|n| n["rack"].as_str().unwrap()).collect();
    assert_eq!(racks, ["r1", "r1", "r2", "r2", "r3", "r3"]);
    assert_eq!(first.json(&["pdisk", "list"])[5]["rack"], "r3");
    wait("all serve", || well(first));

    let make = |code: &'static str| {
        ["pool", "create", "data", "--code", code, "--block-size", "256k", "--failure-domain", "rack"]
    };
    let said = first.refused(&make("1way"));
    assert!(said.contains("no redundancy"), "{said}");
    first.ok(&make("4+2p"));
    assert_eq!(survived(first), 1);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
    client.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    let mnt = base.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    client.ok(&["mount", "fs1", mnt.to_str().unwrap()]);
    let load = Load::start(&mnt.join("load"), 2, seed(), false);
    load.goes_on();

    println!("a rack is off");
    machines[2].kill();
    machines[3].kill();
    wait("both are missed", || states(first).iter().filter(|(_, state)| state == "down").count() == 2);
    load.goes_on();
    println!("and on");
    for machine in &machines[2..4] {
        machine.ok(&["up", "--detach"]);
    }
    wait("both have caught up", || settled(first));
    load.goes_on();

    println!("a machine is put into another rack");
    sixth.refused(&["node", "set", "h6", "--rack", "r1"]);
    first.ok(&["node", "set", "h6", "--rack", "r1"]);
    wait("its strips stay, for there are not racks enough", || settled(first));
    assert_eq!(survived(first), 0);
    // Said as long as nothing moves.
    wait("health says what it means", || {
        let said = String::from_utf8(first.run(&["health"]).stdout).unwrap();
        said.contains("pool data: the loss of one rack makes files unreadable")
    });
    first.ok(&["node", "set", "h6", "--rack", "r3"]);
    first.ok(&["node", "set", "h4", "--rack", "r3"]);
    first.ok(&["node", "set", "h5", "--rack", "r2"]);
    wait("two machines have changed places", || settled(first) && survived(first) == 1);
    load.goes_on();

    same(&load.end());
    client.ok(&["umount", mnt.to_str().unwrap()]);
    wait("it is healthy", || healthy(first));
    first.ok(&["pool", "verify", "data"]);
}
