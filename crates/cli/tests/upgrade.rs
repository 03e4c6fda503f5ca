//! Story: a cluster is upgraded while it runs, one process after the other, in both orders: nobody's work fails, `cluster version` says who
//! runs what, and what came with the new version is used only once `cluster finalize` was given. Builds of other versions are
//! this one, which takes itself for them (`ROPEWALK_TEST_VERSIONS`: the newest version of the protocol, and the newest level).
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

#[allow(dead_code)] // what is for crashes
#[path = "arrays/load.rs"]
mod load;

mod common;

use std::{
    fs,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    process::{Command, Output},
    time::Duration,
};

use common::{Cluster, ROPEWALK, THREE, heard, ok, over_etcd, refused, ropewalk, seed, until};
use load::{Load, same};
use rustix::process::Signal;
use serde_json::Value;

const VERSIONS: &str = "ROPEWALK_TEST_VERSIONS";
/// Speaks 9, knows level 1.
const OLD: &str = "9,1";
/// Speaks 9 and 10, knows levels 1 and 2.
const NEW: &str = "10,2";
/// Speaks 11 and 12.
const TOO_NEW: &str = "12,2";
const PATIENCE: Duration = Duration::from_secs(120);

fn run_as(versions: &str, args: &[&str]) -> Output {
    heard(|| Command::new(ROPEWALK).args(args).env(VERSIONS, versions).output().expect("run ropewalk"))
}

/// A cluster of the old version.
fn old_cluster() -> Cluster {
    let cluster = Cluster::prepare(&[&THREE[..], &["--pdisk-size", "256m", "--block-size", "256k"]].concat());
    cluster.set_env(VERSIONS, OLD);
    cluster.start();
    cluster
}

/// Ends a process as an administrator would, and waits until it is gone.
fn stop(cluster: &Cluster, name: &str) {
    cluster.signal(name, Signal::TERM);
    ended(cluster, name);
}

/// Waits until it is gone: as long as it is not, nobody takes its place.
fn ended(cluster: &Cluster, name: &str) {
    until("it has ended", || !cluster.processes().iter().any(|(other, _)| other == name));
}

/// Another version of it.
fn replace(cluster: &Cluster, name: &str, versions: &str) {
    stop(cluster, name);
    cluster.start_server_with(name, &[(VERSIONS, versions)]);
}

/// What `cluster version` says; nothing while there is no manager.
fn versions(cluster: &Cluster) -> Option<Value> {
    let dir = cluster.dir();
    let output = ropewalk(&["cluster", "version", "--dir", dir.to_str().unwrap(), "--json"]);
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// The cluster's level.
fn level(cluster: &Cluster) -> u64 {
    cluster.json(&["cluster", "version"])["level"].as_u64().unwrap()
}

/// Waits until everybody is there, and these and nobody else are new.
fn wait_mixed(cluster: &Cluster, new: &[&str]) {
    let is_as_expected = |member: &Value| {
        let is_new = new.contains(&member["name"].as_str().unwrap());
        let protocols = if is_new { [9, 10] } else { [9, 9] };
        let manager_is_new = new.contains(&"manager");
        let spoken = if is_new && manager_is_new { 10 } else { 9 };
        member["present"] == true
            && member["protocols"] == serde_json::json!(protocols)
            && member["spoken"] == spoken
            && member["levels"] == if is_new { serde_json::json!([1, 2]) } else { serde_json::json!([1, 1]) }
    };
    until("everybody runs what was started", || {
        versions(cluster)
            .is_some_and(|versions| versions["members"].as_array().unwrap().iter().all(is_as_expected))
    });
}

/// The versions of all connections between processes of the cluster.
fn spoken(value: &Value, found: &mut Vec<u64>) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("lane") {
                found.extend(fields["version"].as_u64());
            }
            fields.values().for_each(|value| spoken(value, found));
        }
        Value::Array(all) => all.iter().for_each(|value| spoken(value, found)),
        _ => {}
    }
}

fn says(cluster: &Cluster, log: &str, text: &str) {
    let path = cluster.dir().join("log").join(format!("{log}.log"));
    until(text, || fs::read_to_string(&path).unwrap().contains(text));
}

fn upgraded_under_load(order: [&str; 4]) {
    let seed = seed();
    let cluster = old_cluster();
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let (dir, mnt) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    // No operation may fail.
    let load = Load::start(&cluster.mnt().join("load"), 3, seed, false);
    for (n, &name) in order.iter().enumerate() {
        replace(&cluster, name, NEW);
        load.goes_on();
        cluster.wait_all_ok(PATIENCE);
        wait_mixed(&cluster, &order[..=n]);
        load.goes_on();
        let finalize = heard(|| ropewalk(&["cluster", "finalize", "--dir", dir]));
        assert_eq!(level(&cluster), 1, "too early for another");
        if order[..=n].contains(&"manager") {
            let told = String::from_utf8(finalize.stderr).unwrap();
            assert!(!finalize.status.success() && told.contains("upgrade it"), "{told}");
            // All that are left, the mount among them, and nobody else.
            assert!(order[n + 1..].iter().all(|left| told.contains(&format!("{left} runs"))), "{told}");
            assert!(!order[..=n].iter().any(|done| told.contains(&format!("{done} runs"))), "{told}");
            assert!(told.contains(mnt), "{told}");
        }
    }
    // There is a way back as long as it is not final.
    replace(&cluster, order[0], OLD);
    load.goes_on();
    wait_mixed(&cluster, &order[1..]);
    cluster.wait_all_ok(PATIENCE);
    load.goes_on();
    replace(&cluster, order[0], NEW);
    wait_mixed(&cluster, &order);
    cluster.wait_all_ok(PATIENCE);
    // Who is asked may answer late on a busy machine, or just call another.
    until("both versions are spoken", || {
        let mut connections = Vec::new();
        spoken(&cluster.json(&["net", "status"]), &mut connections);
        connections.contains(&9) && connections.contains(&10)
    });
    let models = load.end();
    same(&models);
    ok(&["umount", mnt]);
    assert!(run_as(NEW, &["mount", "--dir", dir, "fs1", mnt]).status.success());
    same(&models);
    let said = ok(&["cluster", "version", "--dir", dir]);
    assert!(said.contains("`ropewalk cluster finalize` makes it 2"), "{said}");
    until("the mount has said what it runs", || {
        ropewalk(&["cluster", "finalize", "--dir", dir]).status.success()
    });
    assert_eq!(level(&cluster), 2);

    // From now on the old version is refused, by name, whatever it is.
    replace(&cluster, "n3", OLD);
    says(&cluster, "n3", "n3 cannot be part of the cluster: it is too old: the cluster is at level 2");
    ended(&cluster, "n3");
    // What it ran last is on record: the level's own feature.
    until("its lease is over", || {
        let Some(found) = versions(&cluster) else { return false };
        let n3 = found["members"]
            .as_array()
            .unwrap()
            .iter()
            .find(|member| member["name"] == "n3")
            .unwrap()
            .clone();
        n3["present"] == false && n3["protocols"] == serde_json::json!([9, 10])
    });
    cluster.start_server_with("n3", &[(VERSIONS, NEW)]);
    let second = tempfile::tempdir().unwrap();
    let told = run_as(OLD, &["mount", "--dir", dir, "fs1", second.path().to_str().unwrap()]);
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(told.contains("it is too old") && told.contains("install a newer ropewalk"), "{told}");
    replace(&cluster, "manager", OLD);
    says(&cluster, "manager", "is of a cluster at level 2, and this ropewalk knows levels 1: it is too old");
    ended(&cluster, "manager");
    cluster.start_server_with("manager", &[(VERSIONS, NEW)]);
    wait_mixed(&cluster, &["manager", "n1", "n2", "n3", &format!("{mnt} on {}", host())]);
    cluster.wait_all_ok(PATIENCE);
    same(&models);
    cluster.down();
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn the_manager_is_upgraded_first() {
    upgraded_under_load(["manager", "n1", "n2", "n3"]);
}

#[test]
fn the_servers_are_upgraded_first() {
    upgraded_under_load(["n3", "n1", "n2", "manager"]);
}

/// The active manager knows nothing of those that follow it: the command asks them.
#[test]
fn nothing_is_final_while_a_manager_that_follows_is_old_or_away() {
    let few =
        ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m", "--block-size", "256k"];
    let several: &[&str] = if over_etcd() { &[] } else { &["--managers", "3", "--store", "etcd"] };
    let cluster = Cluster::prepare(&[&few[..], several].concat());
    cluster.set_env(VERSIONS, OLD);
    cluster.start();
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    ok(&["umount", cluster.mnt().to_str().unwrap()]);
    let is = |name: &str, state: (bool, u64)| {
        let found = versions(&cluster)?;
        let member =
            found["members"].as_array().unwrap().iter().find(|member| member["name"] == name)?.clone();
        assert_eq!(member["role"], "manager");
        Some((member["present"] == true, member["levels"][1].as_u64().unwrap_or_default()) == state)
    };
    let told = || String::from_utf8(ropewalk(&["cluster", "finalize", "--dir", dir]).stderr).unwrap();
    let refused_for = |text: &str| until(text, || told().contains(text));
    replace(&cluster, "n1", NEW);
    // The one that leads is the last, so that the next one to lead is new.
    let mut all = ["manager", "manager@m2", "manager@m3"];
    let leads = |local: &str| {
        let rows = cluster.json(&["manager", "list"]);
        rows.as_array().unwrap().iter().any(|row| row["local"] == local && row["active"] == true)
    };
    until("one leads", || all.iter().any(|local| leads(local)));
    all.sort_by_key(|local| leads(local));
    let name = |local: &'static str| local.strip_prefix("manager@").unwrap_or(local);
    let [first, second, last] = all;
    replace(&cluster, first, NEW);
    until("it says what it runs", || is(name(first), (true, 2)) == Some(true));
    replace(&cluster, last, NEW);
    // Whoever leads now: if it is the old one, nothing newer is known to it.
    until("a new one leads", || {
        if leads(second) {
            ropewalk(&["manager", "promote", "--dir", dir, name(first)]);
        }
        leads(first) || leads(last)
    });
    refused_for(&format!(
        "manager {} runs ropewalk {}, which does not know that level",
        name(second),
        env!("CARGO_PKG_VERSION")
    ));
    stop(&cluster, second);
    refused_for(&format!("manager {} does not answer; start it with this version", name(second)));
    assert_eq!(is(name(second), (false, 0)), Some(true));
    assert_eq!(level(&cluster), 1);
    cluster.start_server_with(second, &[(VERSIONS, NEW)]);
    until("it is final", || ropewalk(&["cluster", "finalize", "--dir", dir]).status.success());
    assert_eq!(level(&cluster), 2);
    cluster.down();
}

/// What `health` and `rebuild status` say of lost blocks.
fn told_losses(cluster: &Cluster) -> ([Value; 2], bool) {
    let dir = cluster.dir();
    let at = ["--dir", dir.to_str().unwrap()];
    let (health, status) = ([&["health"], &at[..]].concat(), [&["rebuild", "status"], &at[..]].concat());
    // Not healthy it ends with 1.
    let json = |words: &[&str]| -> Value {
        serde_json::from_slice(&ropewalk(&[words, &["--json"]].concat()).stdout).unwrap()
    };
    let text = |words: &[&str]| String::from_utf8(ropewalk(words).stdout).unwrap().contains("is unknown");
    let known = !text(&health);
    assert_eq!(known, !text(&status));
    ([json(&health)["lost_blocks"].take(), json(&status)[0]["lost_blocks"].take()], known)
}

/// What came with version 10 and a manager of version 9 does not know is refused by the mount, and is there when that is upgraded.
/// Nor does it say what is lost, which is not nothing.
#[test]
fn files_without_a_name_wait_for_the_manager() {
    let cluster = old_cluster();
    let place = tempfile::tempdir().unwrap();
    let (dir, mnt) = (cluster.dir(), place.path().to_str().unwrap());
    assert!(run_as(NEW, &["mount", "--dir", dir.to_str().unwrap(), "fs1", mnt]).status.success());
    let unnamed = || {
        let mut options = fs::File::options();
        options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(place.path())
    };
    assert_eq!(unnamed().unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    assert_eq!(told_losses(&cluster), ([Value::Null, Value::Null], false));
    fs::write(place.path().join("f"), "with a name").unwrap();
    replace(&cluster, "manager", NEW);
    until("the manager knows them", || match unnamed() {
        Ok(file) => file.metadata().unwrap().nlink() == 0,
        Err(error) => {
            // EIO: asked while the one ended and the other began.
            assert!([Some(libc::EOPNOTSUPP), Some(libc::EIO)].contains(&error.raw_os_error()), "{error}");
            false
        }
    });
    assert_eq!(fs::read(place.path().join("f")).unwrap(), b"with a name");
    assert_eq!(told_losses(&cluster), ([Value::from(0), Value::from(0)], true));
    ok(&["umount", mnt]);
    cluster.down();
}

#[test]
fn a_process_without_a_common_version_is_refused_by_name() {
    let cluster = old_cluster();
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    replace(&cluster, "n2", TOO_NEW);
    let told = "the manager speaks version 9 of the protocol, and this process 11 to 12: the manager is too old; install a \
                ropewalk there that speaks version 11 first";
    says(&cluster, "n2", told);
    says(&cluster, "manager", "n2 is too new; install a ropewalk here that speaks version 11 first");
    // A command of a person.
    let told = run_as(TOO_NEW, &["node", "list", "--dir", dir]);
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(told.contains("the manager is too old"), "{told}");
    // Files are there all the while.
    fs::write(cluster.mnt().join("file"), "still").unwrap();
    replace(&cluster, "n2", OLD);
    cluster.wait_all_ok(PATIENCE);
    assert!(!refused(&["node", "remove", "--dir", dir, "n2"]).is_empty());
    cluster.down();
}
