//! Story: a cluster on two machines, here two directories: each runs what its own `cluster.toml` names, and commands show and do
//! the same from either. A node is called otherwise, moves to another address, and goes. What is told while the manager is down.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;
#[path = "common/proof.rs"]
mod proof;

use std::{fs, time::Duration};

use common::{
    Cluster, Random, copy_tree, free_ports, ok, refused, ropewalk, same_tree, seed, unheard, until,
    write_tree,
};
use proof::proved;
use serde_json::Value;
use toml::{Table, Value as Toml};

const PATIENCE: Duration = Duration::from_secs(120);

/// Changes a `cluster.toml` as a hand would.
fn edit(cluster: &Cluster, change: impl FnOnce(&mut Table)) {
    let file = cluster.dir().join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    // The first line, if it is still there, holds the sum of the rest.
    let rest =
        text.strip_prefix('#').and_then(|text| text.split_once('\n')).map_or(text.as_str(), |(_, rest)| rest);
    let mut table: Table = rest.parse().unwrap();
    change(&mut table);
    fs::write(&file, table.to_string()).unwrap();
}

fn keep_nodes(table: &mut Table, names: [&str; 2]) {
    let nodes = table["nodes"].as_array_mut().unwrap();
    nodes.retain(|node| names.contains(&node["name"].as_str().unwrap()));
    assert_eq!(nodes.len(), 2);
}

/// A cluster of four nodes that is down: the manager, n1 and n2 on the first machine, n3 and n4 on the second.
fn two_machines() -> (Cluster, Cluster) {
    let first = Cluster::prepare(&["--pdisk-size", "192m", "--block-size", "1m"]);
    let second = Cluster::prepare(&[]);
    let made =
        ["--nodes", "4", "--pdisks", "1", "--code", "2+1p", "--pdisk-size", "192m", "--block-size", "1m"];
    let dir = first.dir();
    // Nobody else's while they are down.
    let port = free_ports().to_string();
    ok(&[&["up", "--detach", "--dir", dir.to_str().unwrap(), "--port", &port], &made[..]].concat());
    first.down();
    for sub in ["run", "log", "nodes"] {
        fs::create_dir_all(second.dir().join(sub)).unwrap();
    }
    for name in ["n3", "n4"] {
        fs::rename(dir.join("nodes").join(name), second.dir().join("nodes").join(name)).unwrap();
    }
    fs::copy(dir.join("cluster.toml"), second.dir().join("cluster.toml")).unwrap();
    edit(&first, |table| keep_nodes(table, ["n1", "n2"]));
    edit(&second, |table| {
        keep_nodes(table, ["n3", "n4"]);
        assert!(
            table.insert("manager_here".into(), Toml::Boolean(false)).is_none(),
            "left out where it is true"
        );
    });
    (first, second)
}

fn up(machine: &Cluster) -> String {
    ok(&["up", "--detach", "--dir", machine.dir().to_str().unwrap()])
}

fn nodes(machine: &Cluster) -> Vec<Value> {
    machine.json(&["node", "list"]).as_array().unwrap().clone()
}

fn states(machine: &Cluster) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    nodes(machine).iter().map(|node| (text(&node["name"]), text(&node["state"]))).collect()
}

/// Waits until every node serves and every pdisk is ok.
fn wait_well(machine: &Cluster) {
    until("all nodes serve", || states(machine).iter().all(|(_, state)| state == "serves"));
    machine.wait_all_ok(PATIENCE);
}

/// Names of a status' processes with their ids, of those that answer.
fn answering(status: &Value) -> Vec<(String, u64)> {
    let all = status["processes"].as_array().unwrap().iter().filter(|p| !p["status"].is_null());
    all.map(|p| (p["name"].as_str().unwrap().to_owned(), p["pid"].as_u64().unwrap())).collect()
}

/// What every machine says of all.
fn the_same_from_both(machines: [&Cluster; 2], names: [&str; 4], mount: Option<&str>) {
    let pids: Vec<(String, i32)> = machines.iter().flat_map(|machine| machine.processes()).collect();
    for machine in machines {
        let all_serve = names.map(|name| (name.to_owned(), "serves".to_owned()));
        until("all nodes serve", || states(machine) == all_serve);
        // Each process has two seconds to answer.
        let (mut status, mut answer) = (Value::Null, Vec::new());
        let expected: Vec<&str> = ["manager"].into_iter().chain(names).chain(mount).collect();
        until("all is well, and all answer", || {
            status = machine.json(&["status"]);
            answer = answering(&status);
            status["well"] == true && answer.iter().map(|(name, _)| name).eq(&expected)
        });
        let known = |pid: u64| pids.iter().any(|(_, other)| *other as u64 == pid);
        assert!(answer.iter().all(|(_, pid)| known(*pid)), "{answer:?} {pids:?}");
        for command in [&["waiters"][..], &["net", "status"]] {
            until("all answer", || {
                let all = machine.json(command);
                let all = all.as_array().unwrap();
                all.len() == expected.len() && all.iter().all(|process| !process["answer"].is_null())
            });
        }
        until("all servers tell of their caches", || {
            let caches = machine.json(&["pagepool"]);
            let servers = caches.as_array().unwrap().iter().filter(|c| c["strip_cache"].is_object());
            servers.map(|c| c["process"].as_str().unwrap()).eq(names)
        });
        let dir = machine.dir();
        until("it is healthy", || {
            let health = ropewalk(&["health", "--dir", dir.to_str().unwrap()]);
            health.status.success() && health.stdout == b"healthy\n"
        });
        ok(&["pdisk", "events", "--dir", dir.to_str().unwrap()]);
        for node in names {
            until("its server answers", || {
                let shown = machine.json(&["node", "show", node]);
                assert_eq!(shown["pdisks"], 1, "{shown}");
                shown["status"]["name"].is_string()
            });
        }
    }
}

/// Writes a tree to the mount, durably, and reads it back.
fn write(machine: &Cluster, name: &str, random: &mut Random) {
    let local = tempfile::tempdir().unwrap();
    write_tree(local.path(), 25, random);
    copy_tree(local.path(), &machine.mnt().join(name));
    let file = fs::File::create(machine.mnt().join(format!("{name}-last"))).unwrap();
    file.sync_all().unwrap();
    same_tree(local.path(), &machine.mnt().join(name));
}

#[test]
fn a_cluster_on_two_machines_is_one_from_either() {
    let mut random = Random(seed());
    let (first, second) = two_machines();
    let dirs = [first.dir(), second.dir()];
    let [one, two] = [dirs[0].to_str().unwrap(), dirs[1].to_str().unwrap()];
    let said = up(&first);
    assert!(said.contains("is up: 1 manager, 2 nodes, 2 pdisks"), "{said}");
    let said = up(&second);
    assert!(said.contains("is up on this machine: 2 nodes, 2 pdisks"), "{said}");
    let running = |machine: &Cluster| {
        let mut names: Vec<String> = machine.processes().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    };
    assert_eq!(running(&first), ["manager", "n1", "n2"]);
    assert_eq!(running(&second), ["n3", "n4"]);
    wait_well(&second);
    let mnt = second.mnt();
    ok(&["mount", "--dir", two, "fs1", mnt.to_str().unwrap()]);
    write(&second, "begin", &mut random);
    the_same_from_both([&first, &second], ["n1", "n2", "n3", "n4"], mnt.to_str());

    // What belongs to the other machine is not done here, and said.
    let said = refused(&["serve", "--dir", two, "--name", "manager"]);
    assert!(said.contains("this machine has n3, n4"), "{said}");
    let said = refused(&["manager", "check", "--dir", two]);
    assert!(said.contains("on another machine"), "{said}");
    for command in [&["pdisk", "add", "--dir", one, "n3"][..], &["pdisk", "replace", "--dir", one, "n3p1"]] {
        let said = refused(command);
        assert!(said.contains("node n3 (127.0.0.1:") && said.contains("on another machine"), "{said}");
    }
    let said = refused(&["pdisk", "add", "--dir", one, "n9"]);
    assert!(said.contains("there is no node n9; there are n1, n2, n3, n4"), "{said}");

    // Another name: of the map; files and pdisks keep theirs.
    let said = refused(&["node", "rename", "--dir", one, "n3", "n1"]);
    assert!(said.contains("there is a node n1 already"), "{said}");
    // Not twice: the first time may have been heard, and its answer not.
    until("n3 is called ada", || {
        ropewalk(&["node", "rename", "--dir", one, "n3", "ada"]).status.success()
            || states(&first).iter().any(|(name, _)| name == "ada")
    });
    ok(&["umount", mnt.to_str().unwrap()]);
    let said = ok(&["down", "--dir", two]);
    assert!(said.contains("is down on this machine"), "{said}");
    assert_eq!(running(&first), ["manager", "n1", "n2"], "the other machine goes on");

    // Another address, in its machine's file: who has the file system mounted meanwhile follows.
    ok(&["mount", "--dir", one, "fs1", first.mnt().to_str().unwrap()]);
    let moved = format!("127.0.0.1:{}", free_ports());
    edit(&second, |table| {
        let node = &mut table["nodes"].as_array_mut().unwrap()[1];
        assert_eq!(node["name"].as_str(), Some("n4"));
        node["addr"] = Toml::String(moved.clone());
    });
    up(&second);
    wait_well(&first);
    until("n4 is known at its address", || nodes(&second)[3]["addresses"] == serde_json::json!([moved]));
    write(&first, "moved", &mut random);
    assert_eq!(running(&second), ["n3", "n4"]);
    the_same_from_both([&first, &second], ["n1", "n2", "ada", "n4"], first.mnt().to_str());
    let shown = ok(&["node", "show", "--dir", two, "ada"]);
    assert!(shown.contains("runs on this machine, its files named n3"), "{shown}");
    until("the mount is connected to it there", || {
        let peers = first.json(&["net", "status"]);
        let is_mount = |p: &&Value| p["process"] == first.mnt().to_str().unwrap();
        let of_mount = peers.as_array().unwrap().iter().find(is_mount).unwrap()["answer"].as_array();
        of_mount.is_some_and(|peers| peers.iter().any(|p| p["name"] == "n4" && p["addrs"][0] == moved))
    });

    a_node_goes(&first, &second, one, two);

    // The manager is down: each machine tells of its own.
    ok(&["umount", first.mnt().to_str().unwrap()]);
    first.kill(|name| name == "manager");
    for (dir, own) in [(one, &["n1", "n2"][..]), (two, &["n3"])] {
        // Each has two seconds to answer.
        until("all of this machine answer", || {
            let output = ropewalk(&["status", "--json", "--dir", dir]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains("only what belongs to this machine"), "{said}");
            let status: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(status["well"] == false && status["epoch"].is_null(), "{status:#}");
            answering(&status).iter().map(|(name, _)| name).eq(own)
        });
        assert!(unheard(&["waiters", "--dir", dir]).contains("only what belongs to this machine"));
        assert!(unheard(&["pdisk", "events", "--dir", dir]).contains("only what belongs to this machine"));
    }
}

/// A cluster with one node and nothing on it, as the first machine of one begins.
fn nothing_yet() -> Cluster {
    let machine = Cluster::prepare(&[]);
    for sub in ["run", "log", "nodes"] {
        fs::create_dir_all(machine.dir().join(sub)).unwrap();
    }
    let port = free_ports();
    let [manager, addr] = [port, port + 1].map(|port| format!("127.0.0.1:{port}"));
    let node = wire::map::NodeEntry {
        id: base::NodeId(1),
        name: "n1".into(),
        addrs: vec![addr.clone()],
        ..Default::default()
    };
    let spec = manager::Spec {
        cluster: base::ClusterId(7),
        name: "bare".into(),
        nodes: vec![node],
        ..Default::default()
    };
    manager::format(&machine.dir().join("manager"), spec).unwrap();
    let toml = format!(
        "format = 1\nname = 'bare'\nid = '{:032x}'\ncode = '2+1p'\nblock_size = '1m'\nsecret = '{}'\nmanager = '{manager}'\n\
         [[nodes]]\nid = 1\nname = 'n1'\naddr = '{addr}'\npdisks = []\n",
        7,
        "5a".repeat(32)
    );
    fs::write(machine.dir().join("cluster.toml"), toml).unwrap();
    machine
}

#[test]
fn a_cluster_begins_with_nothing() {
    let machine = nothing_yet();
    let dir = machine.dir();
    let dir = dir.to_str().unwrap();
    let said = up(&machine);
    assert!(said.contains("is up: 1 manager, 1 nodes, 0 pdisks"), "{said}");
    for command in [
        &["status"][..],
        &["node", "list"],
        &["pdisk", "list"],
        &["pool", "list"],
        &["pool", "status"],
        &["pool", "verify"],
        &["pool", "lost"],
        &["fs", "list"],
        &["fs", "df"],
        &["rebuild", "status"],
        &["tokens"],
        &["locks"],
        &["pagepool"],
    ] {
        ok(&[command, &["--dir", dir]].concat());
        machine.json(command);
    }
    for form in [&[][..], &["--json"]] {
        until("it is healthy", || ropewalk(&[&["health", "--dir", dir], form].concat()).status.success());
    }
    let said = refused(&["pool", "create", "--dir", dir, "data", "--code", "2+1p", "--block-size", "1m"]);
    assert!(said.contains("fit"), "{said}");
    machine.down();
    up(&machine);
    for size in ["192m", "192m", "192m"] {
        ok(&["pdisk", "add", "--dir", dir, "n1", "--size", size]);
    }
    machine.wait_all_ok(PATIENCE);
    ok(&["pool", "create", "--dir", dir, "data", "--code", "2+1p", "--block-size", "1m"]);
    ok(&["fs", "create", "--dir", dir, "fs1", "--pool", "data"]);
    ok(&["mount", "--dir", dir, "fs1", machine.mnt().to_str().unwrap()]);
    write(&machine, "first", &mut Random(seed()));
    proved(|| ropewalk(&["pool", "verify", "--dir", dir, "--json"]));
    until("all count", || machine.json(&["node", "list"])[0]["pdisks_ok"] == 3);
}

/// n4 is emptied, its pdisk taken out, its server stopped: then it can go, and its machine does not start it again.
fn a_node_goes(first: &Cluster, second: &Cluster, one: &str, two: &str) {
    let said = refused(&["node", "remove", "--dir", one, "n4"]);
    assert!(said.contains("n4 has pdisks: n4p1") && said.contains("node drain"), "{said}");
    ok(&["pdisk", "drain", "--dir", one, "n4p1"]);
    until("n4p1 is empty", || {
        let list = first.json(&["pdisk", "list"]);
        list.as_array().unwrap().iter().any(|p| p["name"] == "n4p1" && p["state"] == "replace")
    });
    let said = refused(&["pdisk", "remove", "--dir", one, "n4p1"]);
    assert!(said.contains("on another machine"), "its server has it open: {said}");
    ok(&["pdisk", "remove", "--dir", two, "n4p1"]);
    let said = refused(&["node", "remove", "--dir", two, "n4"]);
    assert!(said.contains("n4 serves"), "{said}");
    second.kill(|name| name == "n4");
    until("n4 goes", || {
        ropewalk(&["node", "remove", "--dir", two, "n4"]).status.success()
            || !states(first).iter().any(|(name, _)| name == "n4")
    });
    assert_eq!(states(first).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["n1", "n2", "ada"]);
    let said = up(second);
    assert!(said.contains("1 nodes, 1 pdisks"), "{said}");
    wait_well(second);
    // A number that no machine has on file any more is not given again.
    ok(&["pdisk", "add", "--dir", two, "ada"]);
    let list = first.json(&["pdisk", "list"]);
    let new = list.as_array().unwrap().iter().find(|p| p["name"] == "adap2").unwrap();
    assert!(new["id"] == 5 && new["node"] == "ada", "{new}");
}

/// The first machine of a cluster, with one node and no pdisk.
fn init(dir: &str) {
    // The node takes the port after the manager's.
    let port = free_ports().to_string();
    ok(&["init", "--dir", dir, "--name", "rope", "--node", "n1", "--address", "127.0.0.1", "--port", &port]);
}

/// The manager's store is made anew from a dump of before: who was shut out since stays out.
#[test]
fn who_is_shut_out_stays_so_after_a_restore() {
    let (first, second) = (Cluster::prepare(&[]), Cluster::prepare(&[]));
    let [one, two] = [&first, &second].map(|machine| machine.dir().to_str().unwrap().to_owned());
    init(&one);
    let token = ok(&["node", "token", "--dir", &one, "--role", "client"]);
    ok(&["join", "--dir", &two, token.trim(), "--name", "laptop"]);
    ok(&["status", "--dir", &two]);
    let dump = second.dir().with_extension("dump");
    ok(&["down", "--dir", &one]);
    ok(&["manager", "dump", "--dir", &one, dump.to_str().unwrap()]);
    ok(&["up", "--dir", &one, "--detach"]);
    ok(&["node", "revoke", "--dir", &one, "laptop"]);
    until("it is kept", || {
        fs::read_to_string(first.dir().join("keys/revoked")).is_ok_and(|text| text.lines().count() == 1)
    });
    ok(&["down", "--dir", &one]);
    fs::rename(first.dir().join("manager"), first.dir().join("manager.old")).unwrap();
    ok(&["manager", "restore", "--dir", &one, dump.to_str().unwrap()]);
    ok(&["up", "--dir", &one, "--detach"]);
    until("it knows who is out", || first.json(&["node", "members"])[0]["state"] == "revoked");
    assert!(refused(&["status", "--dir", &two]).contains("revoked"));
    fs::remove_file(dump).unwrap();
}

/// A machine renews its certificate while it runs, and by its own key when it was off past the end; `health` names it then.
#[test]
fn a_certificate_is_renewed_in_time_and_after_its_end() {
    // It is renewed when a third is left: a machine may stand still for so long.
    const LIFE: u64 = 30;
    let (first, second) = (Cluster::prepare(&[]), Cluster::prepare(&[]));
    let [one, two] = [&first, &second].map(|machine| machine.dir().to_str().unwrap().to_owned());
    init(&one);
    ok(&["config", "set", "--dir", &one, &format!("certificateLife={LIFE}s")]);
    let token = ok(&["node", "token", "--dir", &one]);
    let other = free_ports().to_string();
    ok(&["join", "--dir", &two, token.trim(), "--name", "n2", "--address", "127.0.0.1", "--port", &other]);
    let until_s = || first.json(&["node", "members"])[0]["certified_until_s"].as_u64().unwrap();
    let began = until_s();
    until("the certificate is renewed", || until_s() > began);
    // What was made with the former one goes on; what is made now, too.
    until("all nodes serve", || states(&second).iter().all(|(_, state)| state == "serves"));
    until("it is healthy", || ropewalk(&["health", "--dir", &two]).status.success());
    ok(&["down", "--dir", &two]);
    until("it ends", || first.json(&["node", "members"])[0]["state"] == "expired");
    until("health says so", || {
        let health = ropewalk(&["health", "--dir", &one]);
        !health.status.success() && String::from_utf8_lossy(&health.stdout).contains("machine n2 has ended")
    });
    ok(&["up", "--detach", "--dir", &two]);
    until("n2 serves", || states(&first).iter().all(|(_, state)| state == "serves"));
    until("it is a member again", || first.json(&["node", "members"])[0]["state"] == "member");
    // Who is out is not renewed either, and is told why.
    ok(&["down", "--dir", &two]);
    ok(&["node", "revoke", "--dir", &one, "n2"]);
    std::thread::sleep(Duration::from_secs(LIFE + 1));
    let said = refused(&["status", "--dir", &two]);
    assert!(said.contains("has been revoked"), "{said}");
}
