//! Story: machines with two networks each (hosts: network namespaces), all named at `init` and `join`. One network and then the
//! other is cut on every host while files are written and compared: nothing fails. Then a node gets other addresses by
//! `node set`, under the same load.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

#[path = "common/beds.rs"]
mod beds;
mod common;
#[path = "common/hosts.rs"]
mod hosts;

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    time::Duration,
};

use beds::Bed;
use common::{Random, copy_tree, same_tree, seed, until, write_tree};
use hosts::{Down, Machine};

/// Sets it when it goes.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The addresses of a node, as the cluster knows them.
fn known(host: &Machine<'_>, node: &str) -> Vec<String> {
    let nodes = host.json(&["node", "list"]);
    let entry = nodes.as_array().unwrap().iter().find(|n| n["name"] == node).unwrap();
    entry["addresses"].as_array().unwrap().iter().map(|a| a.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_network_of_two_is_cut_under_load_and_a_node_moves() {
    let bed = Bed::up("rails", &["--hosts", "4", "--join", "subnets", "--links", "2"]);
    let base = tempfile::Builder::new().prefix("ropewalk-rails-").tempdir().unwrap();
    let host = |number| Machine::new(&bed, base.path(), number);
    let hosts: Vec<Machine<'_>> = (1..=4).map(host).collect();
    let [first, _, third, client] = &hosts[..] else { unreachable!() };
    let _down = Down(hosts.iter().collect());
    let place = |host: &Machine<'_>| host.dir.with_extension("disk").to_str().unwrap().to_owned();
    let at = |host: &Machine<'_>, command: &[&str]| {
        let (addresses, disk) = (host.addresses(), place(host));
        let options = ["--address", &addresses, "--pdisk", &disk, "--pdisk-size", "768m"];
        host.ok(&[command, &options].concat());
    };
    let twice = format!("{0},{0}", bed.addr(0));
    let said = first.refused(&["init", "--name", "rope", "--node", "h1", "--address", &twice]);
    assert!(said.contains("named twice") && !first.dir.exists(), "{said}");
    at(first, &["init", "--name", "rope", "--node", "h1"]);
    let token = |role: &str| first.ok(&["node", "token", "--role", role]).trim().to_owned();
    for host in &hosts[1..3] {
        at(host, &["join", &token("server"), "--name", &format!("h{}", host.host)]);
    }
    until("all pdisks are ok", || {
        let pdisks = first.json(&["pdisk", "list"]);
        let pdisks = pdisks.as_array().unwrap();
        pdisks.len() == 3 && pdisks.iter().all(|pdisk| pdisk["state"] == "ok")
    });
    let port = |ip: &String| format!("{ip}:7451");
    for (number, host) in (0..).zip(&hosts[..3]) {
        let all: Vec<String> = bed.addrs(number).iter().map(port).collect();
        assert_eq!(known(first, &format!("h{}", host.host)), all);
    }
    first.ok(&["pool", "create", "data", "--code", "2+1p", "--block-size", "1m"]);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
    client.ok(&["join", &token("client"), "--name", "laptop"]);
    let mnt = base.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    client.ok(&["mount", "fs1", mnt.to_str().unwrap()]);
    let tree = base.path().join("tree");
    fs::create_dir(&tree).unwrap();
    write_tree(&tree, 15, &mut Random(seed()));

    let (ended, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let end = Set(&ended);
        let load = scope.spawn(|| {
            while !ended.load(SeqCst) {
                let to = mnt.join("load");
                copy_tree(&tree, &to);
                fs::File::open(&to).unwrap().sync_all().unwrap();
                same_tree(&tree, &to);
                fs::remove_dir_all(&to).unwrap();
                rounds.fetch_add(1, SeqCst);
                // What is removed is given back in the background.
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        // A round that begins after this call ends.
        let goes_on = |what: &str| {
            let before = rounds.load(SeqCst);
            until(what, || load.is_finished() || rounds.load(SeqCst) > before + 1);
            assert!(!load.is_finished(), "the load failed: {what}");
        };
        goes_on("both networks");
        for network in ["1", "2"] {
            for host in ["h1", "h2", "h3", "h4"] {
                bed.link(host, network, "cut");
            }
            // Longer than a lease: who kept one only by the network that is gone would have lost it.
            std::thread::sleep(Duration::from_secs(15));
            goes_on("one network is cut");
            // One that was late for want of CPU comes back by the other network as well.
            until("all pdisks are ok without it", || {
                let pdisks = first.json(&["pdisk", "list"]);
                pdisks.as_array().unwrap().iter().all(|pdisk| pdisk["state"] == "ok")
            });
            for host in ["h1", "h2", "h3", "h4"] {
                bed.link(host, network, "up");
            }
            goes_on("it is back");
        }

        // Another address, and back to both; what is another node's, or not this machine's, changes nothing.
        let [one, two] = &bed.addrs(2)[..] else { unreachable!() };
        for (wrong, why) in
            [(bed.addr(1), "is the address of node h2"), ("192.0.2.1".into(), "of this machine")]
        {
            let said = third.refused(&["node", "set", "h3", "--address", &wrong]);
            assert!(said.contains(why), "{said}");
        }
        let said = first.refused(&["node", "set", "h3", "--address", one]);
        assert!(said.contains("on another machine; run this there"), "{said}");
        assert_eq!(known(first, "h3"), [port(one), port(two)]);
        let both = third.addresses();
        for addresses in [two, &both] {
            let said = third.ok(&["node", "set", "h3", "--address", addresses]);
            assert!(said.contains("node h3 is at"), "{said}");
            let all: Vec<String> = addresses.split(',').map(|ip| port(&ip.to_owned())).collect();
            assert_eq!(known(client, "h3"), all);
            until("h3 has caught up", || {
                let pdisks = first.json(&["pdisk", "list"]);
                pdisks.as_array().unwrap().iter().all(|pdisk| pdisk["state"] == "ok")
            });
            goes_on("h3 has moved");
        }
        drop(end);
        load.join().unwrap();
    });
    common::ok(&["umount", mnt.to_str().unwrap()]);
    until("all pdisks are ok at the end", || {
        let pdisks = first.json(&["pdisk", "list"]);
        pdisks.as_array().unwrap().iter().all(|pdisk| pdisk["state"] == "ok")
    });
    // Strips of files that are gone count as nobody's after some seconds.
    until("what was removed is given back", || first.json(&["status"])["deletes_pending"] == 0);
    let verified = first.json(&["pool", "verify"]);
    assert_eq!((&verified["found"], &verified["absent"]), (&0.into(), &0.into()), "{verified}");
}
