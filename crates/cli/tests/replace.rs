//! Story: pdisks of machines that have joined are replaced there: one that works, by one in another directory; and one whose
//! disk is lost, by a new disk where it was. A machine gives up its own pdisks and no others.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{
    Cluster, ROPEWALK, Random, copy_tree, free_ports, ok, refused, same_tree, seed, until, write_tree,
};

const PATIENCE: Duration = Duration::from_secs(120);

fn state(machine: &Cluster, pdisk: &str) -> String {
    let list = machine.json(&["pdisk", "list"]);
    let entry = list.as_array().unwrap().iter().find(|p| p["name"] == pdisk).unwrap();
    entry["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_machine_that_has_joined_replaces_its_pdisks() {
    let machines: Vec<Cluster> = (0..3).map(|_| Cluster::prepare(&[])).collect();
    let dirs: Vec<PathBuf> = machines.iter().map(Cluster::dir).collect();
    let dirs: Vec<&str> = dirs.iter().map(|dir| dir.to_str().unwrap()).collect();
    let [one, two, three] = dirs[..] else { unreachable!() };
    let disk = |machine: usize, name: &str| {
        machines[machine].dir().with_file_name(name).to_str().unwrap().to_owned()
    };
    let place = |machine: usize, port: &str| {
        let words = ["--address", "127.0.0.1", "--port", port, "--pdisk-size", "192m", "--pdisk"];
        words.map(str::to_owned).into_iter().chain([disk(machine, "disk")]).collect::<Vec<_>>()
    };
    let with = |words: &[&str], place: Vec<String>| {
        ok(&words.iter().copied().chain(place.iter().map(String::as_str)).collect::<Vec<_>>())
    };
    with(&["init", "--dir", one, "--name", "rope", "--node", "n1"], place(0, &free_ports().to_string()));
    for (machine, (dir, name)) in [(two, "n2"), (three, "n3")].into_iter().enumerate() {
        let token = ok(&["node", "token", "--dir", one]);
        with(
            &["join", "--dir", dir, token.trim(), "--name", name],
            place(machine + 1, &free_ports().to_string()),
        );
    }
    let [first, second, third] = &machines[..] else { unreachable!() };
    first.wait_all_ok(PATIENCE);
    ok(&["pool", "create", "--dir", one, "data", "--code", "2+1p", "--block-size", "1m"]);
    ok(&["fs", "create", "--dir", one, "fs1", "--pool", "data"]);
    ok(&["mount", "--dir", one, "fs1", first.mnt().to_str().unwrap()]);
    let tree = tempfile::tempdir().unwrap();
    write_tree(tree.path(), 20, &mut Random(seed()));
    copy_tree(tree.path(), &first.mnt().join("in"));

    // Bad words change nothing; the others' pdisks are not this machine's.
    let said = refused(&["pdisk", "replace", "--dir", two, "n2p1"]);
    assert!(said.contains("--path") && said.contains(&disk(1, "disk")), "{said}");
    let said = refused(&["pdisk", "replace", "--dir", two, "n3p1", "--path", &disk(1, "new")]);
    assert!(said.contains("on another machine; run this there"), "{said}");
    for wish in ["drain", "fail", "keep"] {
        let said = refused(&["pdisk", wish, "--dir", two, "n3p1"]);
        assert!(said.contains("a server may fail, drain and remove its own pdisks"), "{said}");
    }
    assert_eq!(first.json(&["pdisk", "list"]).as_array().unwrap().len(), 3);

    // One that works.
    let said = ok(&["pdisk", "replace", "--dir", two, "n2p1", "--path", &disk(1, "new")]);
    assert!(said.contains("n2p2 takes the place of n2p1"), "{said}");
    until("n2p1 is empty", || state(first, "n2p1") == "replace");
    let said = ok(&["pdisk", "remove", "--dir", two, "n2p1"]);
    assert!(said.contains(&disk(1, "disk")), "{said}");
    first.wait_all_ok(PATIENCE);
    same_tree(tree.path(), &first.mnt().join("in"));

    // One whose server does not run: what it holds is not given up for that.
    second.kill(|name| name == "n2");
    until("n2p2 is missing", || state(first, "n2p2") == "missing");
    ok(&["pdisk", "replace", "--dir", two, "n2p2", "--path", &disk(1, "newer")]);
    assert_eq!(state(first, "n2p2"), "missing");
    ok(&["up", "--detach", "--dir", two]);
    until("n2p2 has a successor", || state(first, "n2p2") == "replace" && state(first, "n2p3") == "ok");
    ok(&["pdisk", "remove", "--dir", two, "n2p2"]);
    first.wait_all_ok(PATIENCE);
    same_tree(tree.path(), &first.mnt().join("in"));

    // One whose disk is lost, and a new one where it was.
    third.kill(|name| name == "n3");
    fs::remove_dir_all(disk(2, "disk")).unwrap();
    fs::create_dir(disk(2, "disk")).unwrap();
    until("n3p1 is missing", || state(first, "n3p1") == "missing");
    ok(&["pdisk", "replace", "--dir", three, "n3p1", "--path", &disk(2, "disk")]);
    ok(&["up", "--detach", "--dir", three]);
    until("n3p1 has a successor", || state(first, "n3p1") == "replace" && state(first, "n3p2") == "ok");
    ok(&["pdisk", "remove", "--dir", three, "n3p1"]);
    first.wait_all_ok(PATIENCE);
    same_tree(tree.path(), &first.mnt().join("in"));
    let verified = first.json(&["pool", "verify"]);
    assert_eq!((&verified["found"], &verified["absent"]), (&0.into(), &0.into()), "{verified}");
    ok(&["umount", first.mnt().to_str().unwrap()]);
    [third, second, first].iter().for_each(|machine| machine.down());
}

/// Killed wherever it is, the same command finishes it: one new pdisk for each old one, and none that is forgotten.
#[test]
fn a_replacement_that_was_interrupted_is_finished_by_the_same_command() {
    let cluster = Cluster::three(&["--pdisk-size", "192m"]);
    let dir = cluster.dir();
    let words = |more: &[&str]| -> Vec<String> {
        let all = ["pdisk", "replace", "--dir", dir.to_str().unwrap()];
        all.iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let file = || fs::read_to_string(dir.join("cluster.toml")).unwrap();
    let interrupted = |words: &[String], there: &dyn Fn() -> bool| {
        let mut child = Command::new(ROPEWALK).args(words).stdout(Stdio::null()).spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() && !there() {
            assert!(Instant::now() < end, "it is not there");
        }
        child.kill().unwrap();
        // Killed when it had only to say so it has done all of it: there is nothing to finish.
        !child.wait().unwrap().success() && file().contains("replaces")
    };
    let count = || cluster.json(&["pdisk", "list"]).as_array().unwrap().len();
    let finish = |words: &[String], old: &str, new: &str| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = ok(&words);
        assert!(said.contains(&format!("{new} takes the place of {old}")), "{said}");
    };
    let emptied = |old: &str| {
        // It may have been killed while it had the server stopped.
        ok(&["up", "--detach", "--dir", dir.to_str().unwrap()]);
        assert!(!file().contains("replaces"), "{}", file());
        assert_eq!(count(), 4, "one new pdisk");
        until("the old one is empty", || state(&cluster, old) == "replace");
        ok(&["pdisk", "remove", "--dir", dir.to_str().unwrap(), old]);
        cluster.wait_all_ok(PATIENCE);
    };
    let tree = tempfile::tempdir().unwrap();
    write_tree(tree.path(), 20, &mut Random(seed()));
    copy_tree(tree.path(), &cluster.mnt().join("in"));

    let place = |number: u32| dir.join(format!("nodes/n1/pdisk-{number}"));
    let named_in_the_file = || file().contains("replaces");
    let half_made = || place(5).join("log").exists();
    let at_the_manager = || count() == 4;
    type Point<'a> = (u32, &'a str, &'a str, &'a dyn Fn() -> bool);
    let points: [Point<'_>; 3] = [
        (4, "n1p1", "n1p2", &named_in_the_file),
        (5, "n1p2", "n1p3", &half_made),
        (6, "n1p3", "n1p2", &at_the_manager),
    ];
    for (number, old, new, there) in points {
        let words = words(&[old]);
        if interrupted(&words, there) {
            finish(&words, old, new);
        }
        emptied(old);
        assert!(place(number).join("label").exists());
        same_tree(tree.path(), &cluster.mnt().join("in"));
    }

    // A new disk where a lost one was: the file does not name the old one any more.
    let lost = place(6);
    cluster.kill(|name| name == "n1");
    fs::remove_dir_all(&lost).unwrap();
    until("it is missing", || state(&cluster, "n1p2") == "missing");
    let half_made = || Path::new(&lost).join("log").exists();
    let words = words(&["n1p2", "--path", lost.to_str().unwrap()]);
    if interrupted(&words, &half_made) {
        finish(&words, "n1p2", "n1p3");
    }
    emptied("n1p2");
    same_tree(tree.path(), &cluster.mnt().join("in"));
    cluster.down();
}

/// Killed wherever it is, the same command finishes it: one new pdisk, of which nothing is there twice. Meanwhile all is as before.
#[test]
fn an_addition_that_was_interrupted_is_finished_by_the_same_command() {
    let cluster = Cluster::three(&["--pdisk-size", "192m"]);
    let (dir, outside) = (cluster.dir(), cluster.dir().with_file_name("disk"));
    let (d, outside) = (dir.to_str().unwrap(), outside.to_str().unwrap());
    let add = |node| ["pdisk", "add", "--dir", d, "--size", "96m", node];
    let file = || fs::read_to_string(dir.join("cluster.toml")).unwrap();
    let in_file = || file().matches("[[nodes.pdisks]]").count();
    let count = || cluster.json(&["pdisk", "list"]).as_array().unwrap().len();
    let runs = || cluster.processes().iter().any(|(name, _)| name == "n1");

    let named_in_the_file = |before: usize| in_file() > before;
    let half_made = |_: usize| Path::new(outside).join("log").exists();
    let at_the_manager = |before: usize| count() > before;
    let stopped = |_: usize| !runs();
    type Point<'a> = (&'a [&'a str], &'a dyn Fn(usize) -> bool);
    let points: [Point<'_>; 4] = [
        (&[], &named_in_the_file),
        (&["--path", outside], &half_made),
        (&[], &at_the_manager),
        (&[], &stopped),
    ];
    for (more, there) in points {
        let (before, words) = (count(), [&add("n1"), more].concat());
        // Where it is given a path need not be one from the root.
        let given = words.iter().map(|word| if *word == outside { "disk" } else { *word });
        let mut command = Command::new(ROPEWALK);
        command.args(given).current_dir(dir.parent().unwrap()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() && !there(before) {
            assert!(Instant::now() < end, "it is not there");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // It may have been killed while it had the server stopped.
        ok(&["up", "--detach", "--dir", d]);
        assert!(runs());
        if count() == before {
            cluster.wait_all_ok(PATIENCE);
        }
        // Killed when it had only to say so it has done all of it.
        if count() == before || file().contains("adding") {
            let said = ok(&words);
            assert!(said.contains("is there"), "{said}");
        }
        assert_eq!((count(), in_file()), (before + 1, before + 1), "{words:?}");
        cluster.wait_all_ok(PATIENCE);
    }

    // Two at a time: one waits for the other.
    let before = count();
    let nodes = ["n2", "n3"];
    let adding =
        nodes.map(|node| Command::new(ROPEWALK).args(add(node)).stdout(Stdio::null()).spawn().unwrap());
    for (node, mut child) in nodes.into_iter().zip(adding) {
        // The manager may not be heard on a busy machine.
        if !child.wait().unwrap().success() {
            ok(&add(node));
        }
    }
    assert_eq!((count(), in_file()), (before + 2, before + 2));
    cluster.wait_all_ok(PATIENCE);

    // One is removed, of which the file does not say so yet.
    let (before, list) = (count(), cluster.json(&["pdisk", "list"]));
    let names = list.as_array().unwrap().iter().filter(|p| p["node"] == "n2");
    let names: Vec<&str> = names.map(|p| p["name"].as_str().unwrap()).collect();
    let old = names[1];
    ok(&["pdisk", "drain", "--dir", d, old]);
    until("it is empty", || state(&cluster, old) == "replace");
    let remove = ["pdisk", "remove", "--dir", d, old];
    let held = fs::File::open(&dir).unwrap();
    until("it is out of the cluster", || {
        held.lock().unwrap();
        let mut child = Command::new(ROPEWALK).args(remove).stdout(Stdio::null()).spawn().unwrap();
        // It has something to say in the file: before, or only when it is out.
        until("it waits for the file, or was not heard", || {
            common::processes::waits_for_lock(child.id()) || child.try_wait().unwrap().is_some()
        });
        if count() == before {
            held.unlock().unwrap();
        }
        while child.try_wait().unwrap().is_none() && count() == before {}
        child.kill().unwrap();
        child.wait().unwrap();
        held.unlock().unwrap();
        count() < before
    });
    ok(&["up", "--detach", "--dir", d]);
    if file().contains("removing") {
        let said = ok(&remove);
        assert!(said.contains("is out; its files"), "{said}");
    }
    assert_eq!(in_file(), before - 1);
    let said = refused(&remove);
    assert!(said.contains("there is no pdisk"), "{said}");
    cluster.wait_all_ok(PATIENCE);
    cluster.down();
}
