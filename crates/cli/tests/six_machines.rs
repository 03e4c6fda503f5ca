//! Story: six machines and two clients on hosts of their own, under a load of writers and verifiers that may not fail once. A machine
//! comes, one is emptied and goes, one is killed and another takes its place, one moves to another address meanwhile, all are upgraded one
//! after the other to another version of the protocol, the manager's machine among them, and then the cluster is. (Versions:
//! `upgrade.rs`.)
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[allow(dead_code)] // what is for crashes
#[path = "arrays/load.rs"]
mod load;

#[path = "common/beds.rs"]
mod beds;
mod common;
#[path = "common/hosts.rs"]
mod hosts;
#[path = "common/pairs.rs"]
mod pairs;

use std::time::{Duration, Instant};

use beds::Bed;
use common::seed;
use hosts::{Down, Machine, healthy, states, well};
use load::{Load, same};
use pairs::Pairs;

/// Speaks version 9 of the protocol, knows level 1.
const OLD: &str = "9,1";
/// Speaks 9 and 10, knows levels 1 and 2.
const NEW: &str = "10,2";
/// Longest that a step may take.
const PATIENCE: Duration = Duration::from_secs(180);

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// The groups are where they belong, and nothing moves.
fn wait_settled(machine: &Machine<'_>) {
    wait("all pdisks are ok, and nothing moves", || {
        well(machine)
            && machine.json(&["rebuild", "status"]).as_array().unwrap().iter().all(|row| row["left"] == 0)
    });
}

#[test]
fn machines_come_and_go_and_nobody_who_works_notices() {
    let seed = seed();
    let bed = Bed::up("six", &["--hosts", "9", "--join", "subnets", "--links", "2"]);
    let base = tempfile::Builder::new().prefix("ropewalk-six-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> = (1..=9).map(|host| Machine::new(&bed, base.path(), host)).collect();
    let [first, second, third, fourth, fifth, sixth, replacement, writer, reader] = &machines[..] else {
        unreachable!()
    };
    let _down = Down(machines.iter().collect());
    machines.iter().for_each(|machine| machine.install(OLD));
    let disk = first.dir.with_extension("disk");
    let place = ["--pdisk", disk.to_str().unwrap(), "--pdisk-size", "256m"];
    let addr = bed.addr(0);
    first.ok(&[&["init", "--name", "rope", "--node", "h1", "--address", &addr], &place[..]].concat());
    std::thread::scope(|scope| {
        let joining =
            [second, third, fourth, fifth].map(|machine| scope.spawn(|| machine.join(&first.token(&[]))));
        joining.into_iter().for_each(|join| drop(join.join().unwrap()));
    });
    first.ok(&["pool", "create", "data", "--code", "2+1p", "--block-size", "256k"]);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
    let [a, b] = [(writer, "writer"), (reader, "reader")].map(|(machine, name)| {
        machine.ok(&["join", &first.token(&["--role", "client"]), "--name", name]);
        machine.mounted()
    });
    let load = Load::start(&a.join("load"), 2, seed, false);
    let pairs = Pairs::start(&a, &b, seed);
    let goes_on = || {
        load.goes_on();
        pairs.go_on();
    };
    goes_on();

    println!("a machine comes");
    sixth.join(&first.token(&[]));
    wait("it has a part", || {
        let list = first.json(&["pdisk", "list"]);
        list.as_array()
            .unwrap()
            .iter()
            .any(|pdisk| pdisk["node"] == "h6" && pdisk["used_bytes"].as_u64() > Some(4 << 20))
    });
    goes_on();
    wait_settled(first);

    println!("one is emptied, while another moves to another address, and goes");
    let moved = &bed.addrs(3)[1];
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| first.ok(&["node", "drain", "h2"]));
        fourth.ok(&["node", "set", "h4", "--address", moved]);
        draining.join().unwrap();
    });
    let shown = reader.json(&["node", "show", "h4"]);
    assert_eq!(shown["addresses"], serde_json::json!([format!("{moved}:7451")]), "{shown}");
    goes_on();
    second.ok(&["down"]);
    // It is done twice if the answer is lost.
    let out = |node: &str| {
        first.run(&["node", "remove", node]).status.success()
            || states(first).iter().all(|(name, _)| name != node)
    };
    wait("it is out", || out("h2"));
    goes_on();

    println!("one is killed, and another takes its place");
    third.kill();
    goes_on();
    wait("it is missed", || states(first).contains(&("h3".to_owned(), "down".to_owned())));
    first.ok(&["pdisk", "fail", "h3p1"]);
    replacement.join(&first.token(&[]));
    wait("what it had is elsewhere", || {
        let list = first.json(&["pdisk", "list"]);
        list.as_array().unwrap().iter().any(|pdisk| pdisk["name"] == "h3p1" && pdisk["state"] == "replace")
    });
    goes_on();
    wait("its pdisk is out", || {
        let listed =
            || first.json(&["pdisk", "list"]).as_array().unwrap().iter().any(|p| p["name"] == "h3p1");
        first.run(&["pdisk", "remove", "h3p1"]).status.success() || !listed()
    });
    wait("it is out", || out("h3"));
    wait_settled(first);
    let error = third.refused(&["status"]);
    assert!(error.contains("revoked"), "{error}");

    println!("each is upgraded, and between them a machine is shut out");
    let guest = Machine::at(&bed, base.path().join("guest"), reader.host);
    guest.install(OLD);
    guest.ok(&["join", &first.token(&["--role", "client"]), "--name", "guest"]);
    guest.ok(&["status"]);
    for machine in [fourth, fifth, first, sixth, replacement] {
        machine.ok(&["down"]);
        goes_on_without(&load, &pairs, machine.host == first.host);
        machine.install(NEW);
        machine.ok(&["up", "--detach"]);
        wait_settled(first);
        goes_on();
        if machine.host == first.host {
            first.ok(&["node", "revoke", "guest"]);
            assert!(guest.refused(&["status"]).contains("revoked"));
        }
    }
    // Machines have it all, mounts not yet.
    let said = first.refused(&["cluster", "finalize"]);
    assert!(
        said.contains("upgrade it") && !said.contains("h4 runs") && said.contains(b.to_str().unwrap()),
        "{said}"
    );
    let mut names: Vec<String> = states(reader).into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, ["h1", "h4", "h5", "h6", "h7"]);

    pairs.end();
    let models = load.end();
    same(&models);
    let elsewhere: Vec<_> =
        models.into_iter().map(|(path, model)| (b.join(path.strip_prefix(&a).unwrap()), model)).collect();
    same(&elsewhere);
    let umount = || {
        [(writer, &a), (reader, &b)]
            .map(|(machine, mnt)| drop(machine.ok(&["umount", mnt.to_str().unwrap()])))
    };
    umount();
    // The manager hears of the end of the old mounts' sessions.
    wait("it is final", || first.run(&["cluster", "finalize"]).status.success());
    for (machine, mnt) in [(writer, &a), (reader, &b)] {
        let said = machine.refused(&["mount", "fs1", mnt.to_str().unwrap()]);
        assert!(said.contains("it is too old"), "{said}");
        machine.install(NEW);
        machine.ok(&["mount", "fs1", mnt.to_str().unwrap()]);
    }
    same(&elsewhere);
    umount();
    wait("it is healthy", || healthy(first));
    first.ok(&["pool", "verify", "data"]);
}

/// While the manager is away who works waits: nothing fails.
fn goes_on_without(load: &Load, pairs: &Pairs, manager: bool) {
    if !manager {
        load.goes_on();
        pairs.go_on();
    }
}
