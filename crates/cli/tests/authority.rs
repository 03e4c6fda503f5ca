//! Stories: the authority of a cluster of several machines is exchanged under a load that may not fail once. Who was off meanwhile
//! comes back by itself, who missed all of it joins again and keeps its data. All machines off and on again in any order, their
//! certificates run out meanwhile, an exchange begun.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

#[path = "common/ahead.rs"]
mod ahead;
#[path = "common/beds.rs"]
mod beds;
mod common;
#[path = "common/hosts.rs"]
mod hosts;
#[path = "common/pairs.rs"]
mod pairs;
#[path = "common/proof.rs"]
mod proof;

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use beds::Bed;
use common::{Cluster, Random, copy_tree, same_tree, seed, until, write_tree};
use hosts::{Down, Machine, states, well};
use pairs::Pairs;
use proof::proved;
use serde_json::Value;

const RENEW: [&str; 3] = ["cluster", "authority", "renew"];
const FINISH: [&str; 3] = ["cluster", "authority", "finish"];
const SHOW: [&str; 3] = ["cluster", "authority", "show"];

/// The first machine with others, a pool over them, and a file system.
fn build(bed: &Bed, machines: &[Machine<'_>]) {
    let first = &machines[0];
    let (addr, disk) = (bed.addr(0), first.dir.with_extension("disk"));
    let place = ["--pdisk", disk.to_str().unwrap(), "--pdisk-size", "192m"];
    first.ok(&[&["init", "--name", "rope", "--node", "h1", "--address", &addr], &place[..]].concat());
    for machine in &machines[1..] {
        machine.join(&first.token(&[]));
    }
    until("all pdisks are ok", || well(first));
    first.ok(&["pool", "create", "data", "--code", "2+1p", "--block-size", "1m"]);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
}

/// Who still has a certificate of the former authority; none: nothing is exchanged.
fn behind(machine: &Machine<'_>) -> Option<Vec<String>> {
    let shown = machine.json(&SHOW);
    let names =
        shown["behind"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned());
    shown["former"].is_string().then(|| names.collect())
}

/// These are, and no others, as soon as those that are there have followed.
fn behind_are(machine: &Machine<'_>, names: &[&str]) {
    until("the others have a new certificate", || {
        let mut all = behind(machine).unwrap_or_default();
        all.sort();
        all == names && machine.json(&SHOW)["former"].is_string()
    });
}

fn secrets(machine: &Machine<'_>) -> Vec<String> {
    let text = fs::read_to_string(machine.dir.join("cluster.toml")).unwrap();
    let lines = text.lines().filter(|line| line.contains("secret = "));
    lines.map(|line| line.split('"').nth(1).unwrap().to_owned()).collect()
}

/// No file of these machines but the first one's `cluster.toml` holds one of these.
fn nowhere_else(machines: &[&Machine<'_>], secrets: &[String]) {
    fn look(dir: &Path, secrets: &[String]) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                look(&path, secrets);
            } else if kind.is_file() && entry.file_name() != "cluster.toml" {
                let bytes = fs::read(&path).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes);
                assert!(secrets.iter().all(|secret| !text.contains(secret)), "{}", path.display());
            }
        }
    }
    for machine in machines {
        for part in ["log", "run", "keys"].map(|part| machine.dir.join(part)) {
            if part.exists() {
                look(&part, secrets);
            }
        }
    }
}

#[test]
fn the_authority_is_exchanged_and_nobody_who_works_notices() {
    let bed = Bed::up("auth", &["--hosts", "5"]);
    let base = tempfile::Builder::new().prefix("ropewalk-auth-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> = (1..=5).map(|host| Machine::new(&bed, base.path(), host)).collect();
    let [first, second, _, fourth, client] = &machines[..] else { unreachable!() };
    let _down = Down(machines.iter().collect());
    build(&bed, &machines[..4]);
    client.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    let before = base.path().join("before");
    fs::create_dir(&before).unwrap();
    fs::copy(first.dir.join("cluster.toml"), before.join("cluster.toml")).unwrap();
    let old_token = first.token(&["--role", "client"]);
    let old = secrets(first);
    let (at_first, at_client) = (first.mounted(), client.mounted());
    let pairs = [
        Pairs::start(&at_first, &at_client, seed()),
        Pairs::start(
            &{
                let sub = at_client.join("back");
                fs::create_dir(&sub).unwrap();
                sub
            },
            &at_first.join("back"),
            seed() + 1,
        ),
    ];
    let go_on = || pairs.iter().for_each(Pairs::go_on);
    go_on();
    assert!(first.refused(&FINISH).contains("no exchange has begun"));
    assert!(client.refused(&RENEW).contains("manager's machine"));
    assert_eq!(behind(client), None);

    // One machine is off when it begins.
    fourth.ok(&["down"]);
    let said = first.ok(&RENEW);
    assert!(said.contains("h4"), "{said}");
    go_on();
    behind_are(client, &["h4"]);
    let now = secrets(first);
    assert!(now.len() == 2 && now[1] == old[0] && now[0] != old[0]);
    assert_eq!(fs::metadata(first.dir.join("cluster.toml")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(first.refused(&RENEW).contains("begun already"));
    let said = first.refused(&FINISH);
    assert!(said.contains("h4") && said.contains("--force"), "{said}");
    until("it is said", || {
        let said = String::from_utf8(first.run(&["health"]).stdout).unwrap();
        said.contains("authority is being exchanged") && said.contains("h4")
    });

    // The manager is killed in between: it goes on with both.
    first.kill_process("manager");
    first.ok(&["up", "--detach"]);
    behind_are(first, &["h4"]);
    go_on();
    // Whose token was made before gets in, until the end; and a certificate of the new one.
    let late = &Machine::at(&bed, base.path().join("late"), 5);
    late.ok(&["join", &old_token, "--name", "late"]);
    behind_are(late, &["h4"]);
    let old_token = first
        .token(&["--role", "client"])
        .replace(&fingerprint(first, "authority"), &fingerprint(first, "former"));
    // The machine that was off comes back, and has a new one by itself.
    fourth.ok(&["up", "--detach"]);
    behind_are(first, &[]);
    until("h4 serves", || well(first));
    go_on();
    let said = first.ok(&FINISH);
    assert_eq!(behind(first), None, "it says that the former authority is believed no more, and it is");
    assert!(!said.contains("shut out"), "{said}");
    until("it is told", || first.ok(&["events"]).contains("believed no more"));
    go_on();
    until("it is over", || behind(client).is_none());
    assert_eq!(secrets(first), now[..1]);
    until("all believe one alone", || {
        machines[1..].iter().all(|machine| {
            let text = fs::read_to_string(machine.dir.join("keys/authority.crt")).unwrap();
            text.matches("BEGIN CERTIFICATE").count() == 1
        })
    });

    // The former secret, its certificates and tokens are worth nothing.
    let thief = Machine::at(&bed, before, 5);
    let said = thief.refused(&["node", "list"]);
    assert!(said.contains("permission denied"), "{said}");
    let stranger = Machine::at(&bed, base.path().join("stranger"), 5);
    let said = stranger.refused(&["join", &old_token, "--name", "stranger"]);
    assert!(said.contains("has been exchanged") && !stranger.dir.exists(), "{said}");
    go_on();
    pairs.into_iter().for_each(Pairs::end);
    nowhere_else(&machines.iter().collect::<Vec<_>>(), &[&old[..], &now[..]].concat());
    until("it is well", || second.run(&["health"]).status.success());
    for mnt in [at_first, at_client] {
        common::ok(&["umount", mnt.to_str().unwrap()]);
    }
}

/// All on one machine; the manager is killed at moments of an exchange, and the writer notices nothing.
#[test]
fn an_exchange_goes_on_whenever_the_manager_is_killed() {
    let cluster = Cluster::three(&["--pdisk-size", "192m", "--block-size", "1m"]);
    let path = cluster.dir();
    let dir = path.to_str().unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let exchanging = || fs::read_to_string(path.join("cluster.toml")).unwrap().contains("former_secret");
    let give = |words: [&str; 3]| {
        let mut command = std::process::Command::new(common::ROPEWALK);
        command.args(words).args(["--dir", dir]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed());
            while !stop.load(Ordering::Relaxed) {
                let (path, mut bytes) =
                    (cluster.mnt().join("file"), vec![0; 1 + random.below(1 << 20) as usize]);
                random.fill(&mut bytes);
                let mut file = fs::File::create(&path).unwrap();
                file.write_all(&bytes).and_then(|()| file.sync_all()).unwrap();
                assert!(fs::read(&path).unwrap() == bytes);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _stop = Stop(&stop);
        for (n, delay_ms) in [0, 40, 80, 120, 200, 400].into_iter().enumerate() {
            let (words, begins) = if n % 2 == 0 { (RENEW, true) } else { (FINISH, false) };
            let child = give(words).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(delay_ms));
            cluster.kill(|name| name == "manager");
            cluster.start_server("manager");
            let output = child.wait_with_output().unwrap();
            // It has done it or it has not; then it is given again.
            assert!(!output.status.success() || exchanging() == begins, "{output:?}");
            until("it is done", || exchanging() == begins || give(words).output().unwrap().status.success());
            assert_eq!(exchanging(), begins);
            let want = done.load(Ordering::Relaxed) + 2;
            until("the writer goes on", || done.load(Ordering::Relaxed) >= want);
        }
    });
    until("it is well", || common::ropewalk(&["health", "--dir", dir]).status.success());
    assert_eq!(cluster.json(&SHOW)["former"], Value::Null);
}

/// Tells the writer to end, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn fingerprint(machine: &Machine<'_>, which: &str) -> String {
    machine.json(&SHOW)[which].as_str().unwrap().to_owned()
}

#[test]
fn who_missed_the_exchange_joins_again_and_keeps_its_data() {
    let bed = Bed::up("late", &["--hosts", "4"]);
    let base = tempfile::Builder::new().prefix("ropewalk-late-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> = (1..=4).map(|host| Machine::new(&bed, base.path(), host)).collect();
    let [first, second, third, client] = &machines[..] else { unreachable!() };
    let _down = Down(machines.iter().collect());
    build(&bed, &machines[..3]);
    client.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    let mnt = client.mounted();
    let tree = base.path().join("tree");
    fs::create_dir(&tree).unwrap();
    write_tree(&tree, 40, &mut Random(seed()));
    copy_tree(&tree, &mnt.join("in"));
    // All of the laptop, and h3, are away.
    common::ok(&["umount", mnt.to_str().unwrap()]);
    third.ok(&["down"]);
    first.ok(&RENEW);
    behind_are(first, &["h3", "laptop"]);
    let said = first.ok(&[&FINISH[..], &["--force"]].concat());
    assert!(said.contains("shut out") && said.contains("h3") && said.contains("laptop"), "{said}");
    assert!(!said.contains("h2"), "{said}");
    let said = client.refused(&["status"]);
    assert!(said.contains("token"), "{said}");
    until("the former authority is believed no more", || behind(first).is_none());
    let said = client.refused(&["status"]);
    assert!(said.contains("joins again with a token"), "{said}");
    let place = third.dir.with_extension("disk");
    let again = ["join", &first.token(&[]), "--pdisk", place.to_str().unwrap()];
    assert!(third.refused(&again).contains("its addresses and pdisks stay"));
    let said = third.refused(&["join", &first.token(&["--role", "client"])]);
    assert!(said.contains("a server"), "{said}");
    let said = second.refused(&["join", &first.token(&[])]);
    assert!(said.contains("runs here"), "{said}");
    let node_of = |machine: &Machine<'_>| -> Vec<Value> {
        let pdisks = machine.json(&["pdisk", "list"]);
        pdisks.as_array().unwrap().iter().map(|pdisk| pdisk["id"].clone()).collect()
    };
    let before = node_of(first);
    third.ok(&["join", &first.token(&[])]);
    until("all pdisks are ok again", || well(first));
    assert_eq!(node_of(first), before, "the same pdisks");
    assert_eq!(states(first).len(), 3);
    client.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    client.ok(&["mount", "fs1", mnt.to_str().unwrap()]);
    same_tree(&tree, &mnt.join("in"));
    proved(|| first.run(&["pool", "verify", "--json"]));
    common::ok(&["umount", mnt.to_str().unwrap()]);
}

#[test]
fn all_come_back_by_themselves_also_after_their_certificates_and_in_an_exchange() {
    const LIFE: Duration = Duration::from_secs(3600);
    let bed = Bed::up("power", &["--hosts", "4"]);
    let base = tempfile::Builder::new().prefix("ropewalk-power-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> = (1..=4).map(|host| Machine::new(&bed, base.path(), host)).collect();
    let [first, second, third, fourth] = &machines[..] else { unreachable!() };
    let _down = Down(machines.iter().collect());
    build(&bed, &machines);
    let mnt = fourth.mounted();
    let tree = base.path().join("tree");
    fs::create_dir(&tree).unwrap();
    write_tree(&tree, 40, &mut Random(seed()));
    copy_tree(&tree, &mnt.join("in"));
    common::ok(&["umount", mnt.to_str().unwrap()]);
    first.ok(&["config", "set", &format!("certificateLife={}s", LIFE.as_secs())]);
    // All have a shorter one now: by an exchange.
    first.ok(&RENEW);
    behind_are(first, &[]);
    first.ok(&FINISH);
    // One goes before the next exchange begins, the others after it.
    fourth.ok(&["down"]);
    first.ok(&RENEW);
    [second, third, first].iter().for_each(|machine| machine.kill());
    // All certificates run out: each clock says so from now on. Ones that ended while this is waited for could as well end while a busy
    // machine stands still.
    let clock = ahead::clock(base.path(), 2 * LIFE.as_secs());
    machines.iter().for_each(|machine| machine.set_env("LD_PRELOAD", &clock));
    let ended = fourth.refused(&["status"]);
    assert!(ended.contains("does not hold (it has ended"), "{ended}");
    std::thread::scope(|scope| {
        let starting: Vec<_> = [fourth, third, second, first]
            .iter()
            .map(|machine| {
                let starting = scope.spawn(|| machine.ok(&["up", "--detach"]));
                std::thread::sleep(Duration::from_millis(500));
                starting
            })
            .collect();
        starting.into_iter().for_each(|start| drop(start.join().unwrap()));
    });
    until("all serve again", || well(first));
    behind_are(second, &[]);
    first.ok(&FINISH);
    fourth.ok(&["mount", "fs1", mnt.to_str().unwrap()]);
    same_tree(&tree, &mnt.join("in"));
    common::ok(&["umount", mnt.to_str().unwrap()]);
    until("it is well", || first.run(&["health"]).status.success());
}
