//! Story: a node is drained while files are written and compared, kept again, drained and taken out. A drain that the others
//! have no room for, or too few nodes, is refused and changes nothing; Ctrl-C ends the command, not the drain.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    fs,
    io::{Read, Write},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use common::{
    Cluster, ROPEWALK, Random, copy_tree, heard, ok, refused, ropewalk, same_tree, seed, until, write_tree,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

/// Sets it when it goes.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Names and states of a node's pdisks.
fn pdisks_of(cluster: &Cluster, node: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = cluster.json(&["pdisk", "list"]);
    let mine = list.as_array().unwrap().iter().filter(|p| p["node"] == node);
    mine.map(|p| (text(&p["name"]), text(&p["state"]))).collect()
}

fn all_are(cluster: &Cluster, node: &str, state: &str) -> bool {
    pdisks_of(cluster, node).iter().all(|(_, now)| now == state)
}

/// What is done leaves the map as it is. Something else may change it at the same time, but not each time.
fn changes_nothing(cluster: &Cluster, act: impl Fn()) {
    let epoch = || cluster.json(&["status"])["epoch"].as_u64().unwrap();
    until("the map stays as it is", || {
        let before = epoch();
        act();
        epoch() == before
    });
}

#[test]
fn a_node_is_drained_under_load_and_taken_out() {
    let cluster = Cluster::up(&["--nodes", "4", "--pdisks", "2", "--code", "2+1p", "--pdisk-size", "192m"]);
    cluster.wait_all_ok(PATIENCE);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let dir = dir.to_str().unwrap();
    let mut random = Random(seed());
    let tree = tempfile::tempdir().unwrap();
    write_tree(tree.path(), 60, &mut random);
    copy_tree(tree.path(), &mnt.join("first"));

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A test that fails here ends its load.
        let end = Set(&done);
        let load = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(SeqCst) || rounds == 0 {
                let to = mnt.join("load");
                copy_tree(tree.path(), &to);
                same_tree(tree.path(), &to);
                fs::remove_dir_all(&to).unwrap();
                rounds += 1;
            }
        });
        let drained = cluster.json(&["node", "drain", "n4"]);
        assert_eq!((&drained["state"], &drained["left"]), (&"empty".into(), &0.into()), "{drained}");
        assert!(drained["done"].as_u64().unwrap() > 0 && drained["eta_s"].is_null(), "{drained}");
        let states = drained["pdisks"].as_array().unwrap();
        assert!(states.len() == 2 && states.iter().all(|p| p["state"] == "replace"), "{drained}");

        // Back again; and a drain that nobody waits for, taken back on its way.
        let said = ok(&["node", "keep", "--dir", dir, "n4"]);
        assert!(said.contains("2 pdisks are used again"), "{said}");
        assert!(ok(&["node", "keep", "--dir", dir, "n4"]).contains("not being drained"));
        until("n4 holds something again", || all_are(&cluster, "n4", "ok"));
        ok(&["rebuild", "status", "--watch", "--dir", dir]);
        // What is to move to n1 waits: however fast the rest goes, it is not done before the command has looked.
        cluster.signal("n1", Signal::STOP);
        let began = cluster.json(&["node", "drain", "n4", "--no-wait"]);
        assert!(began["state"] == "draining" && began["left"].as_u64().unwrap() > 0, "{began}");
        let listed = cluster.json(&["node", "list"]);
        assert_eq!(listed[3]["pdisks_leaving"], 2, "{listed}");
        ok(&["node", "keep", "--dir", dir, "n4"]);
        assert_eq!(cluster.json(&["node", "list"])[3]["pdisks_leaving"], 0);
        cluster.signal("n1", Signal::CONT);
        ok(&["rebuild", "status", "--watch", "--dir", dir]);

        ctrl_c_ends_the_command_alone(&cluster, dir);
        drop(end);
        load.join().unwrap();
    });
    let said = ok(&["node", "drain", "--dir", dir, "n4"]);
    assert!(said.contains("n4 is empty") && said.contains("ropewalk node remove n4"), "{said}");

    // It goes with its pdisks, once it does not serve.
    let said = refused(&["node", "remove", "--dir", dir, "n4"]);
    assert!(said.contains("stop"), "{said}");
    assert_eq!(pdisks_of(&cluster, "n4").len(), 2);
    cluster.kill(|name| name == "n4");
    until("n4 is out", || {
        ropewalk(&["node", "remove", "--dir", dir, "n4"]).status.success()
            || cluster.json(&["node", "list"]).as_array().unwrap().len() == 3
    });
    assert_eq!(cluster.json(&["node", "list"]).as_array().unwrap().len(), 3);
    assert_eq!(cluster.json(&["pdisk", "list"]).as_array().unwrap().len(), 6);
    same_tree(tree.path(), &mnt.join("first"));
    until("every stripe is proved", || {
        let output = heard(|| ropewalk(&["pool", "verify", "--dir", dir, "--json"]));
        let verified: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        println!("{verified}");
        // Who does not answer in time proves nothing: then it does not succeed.
        (&verified["found"], &verified["absent"]) == (&0.into(), &0.into()) && output.status.success()
    });
    cluster.down();
}

fn ctrl_c_ends_the_command_alone(cluster: &Cluster, dir: &str) {
    // What is to move there waits: it is not done before the interrupt comes.
    cluster.signal("n1", Signal::STOP);
    let mut watching = Command::new(ROPEWALK)
        .args(["node", "drain", "--dir", dir, "n4"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the drain begins", || {
        cluster.json(&["node", "list"])[3]["pdisks_leaving"] == 2 || watching.try_wait().unwrap().is_some()
    });
    let _ = kill_process(Pid::from_child(&watching), Signal::INT); // one that has ended says why, below
    let status = watching.wait().unwrap();
    let mut said = String::new();
    watching.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("the drain of n4 goes on") && said.contains("node keep n4"), "{said}");
    cluster.signal("n1", Signal::CONT);
    until("it has gone on", || all_are(cluster, "n4", "replace"));
}

#[test]
fn a_drain_that_cannot_be_is_refused() {
    // Too few nodes.
    let small = Cluster::up(&["--nodes", "3", "--pdisks", "2", "--code", "2+1p", "--pdisk-size", "128m"]);
    let dir = small.dir();
    let dir = dir.to_str().unwrap();
    small.wait_all_ok(PATIENCE);
    changes_nothing(&small, || {
        let said = refused(&["node", "drain", "--dir", dir, "n3"]);
        assert!(said.contains("nothing has changed") && said.contains("the loss of a node"), "{said}");
        let said = refused(&["node", "drain", "--dir", dir, "n9"]);
        assert!(said.contains("there is no node n9; there are n1, n2, n3"), "{said}");
    });
    assert!(all_are(&small, "n3", "ok"));
    small.down();
    let least = Cluster::up(&["--nodes", "3", "--pdisks", "1", "--code", "3way", "--pdisk-size", "128m"]);
    let dir = least.dir();
    let said = refused(&["node", "drain", "--dir", dir.to_str().unwrap(), "n3"]);
    assert!(said.contains("3way does not fit 2 pdisk(s)"), "{said}");
    least.down();

    // Too little room.
    let full = Cluster::up(&["--nodes", "4", "--pdisks", "1", "--code", "2+1p", "--pdisk-size", "128m"]);
    full.wait_all_ok(PATIENCE);
    let mut file = fs::File::create(full.mnt().join("large")).unwrap();
    let mut piece = vec![0; 1 << 20];
    Random(seed()).fill(&mut piece);
    for _ in 0..275 {
        file.write_all(&piece).unwrap();
    }
    file.sync_all().unwrap();
    full.wait_reported(PATIENCE);
    let dir = full.dir();
    let dir = dir.to_str().unwrap();
    changes_nothing(&full, || {
        let said = refused(&["node", "drain", "--dir", dir, "n2"]);
        assert!(said.contains("no room for it") && said.contains("n2 is not drained"), "{said}");
    });
    // Room is made: then it goes.
    drop(file);
    fs::remove_file(full.mnt().join("large")).unwrap();
    until("the file's room is free", || {
        let list = full.json(&["pdisk", "list"]);
        list.as_array().unwrap().iter().all(|p| p["used_bytes"].as_u64().unwrap() < 48 << 20)
    });
    ok(&["node", "drain", "--dir", dir, "n2"]);
    assert!(all_are(&full, "n2", "replace"));
    full.down();
}
