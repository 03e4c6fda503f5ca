//! Three managers over three members of etcd, and three mounts at work, one of whose managers is active. It is killed, it makes way;
//! one that follows loses its table, etcd its majority. Work goes on by itself, nothing that was acknowledged is lost, nothing is done
//! twice, and histories of names that all replace are linearizable. Managers come and go.
//!
//! All on one machine, as `up --managers` brings them up; over a network that fails, and at length: `takeovers`. How long the work
//! stood still is printed, and bounds nothing: the machine may be busy.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;
#[path = "common/linear.rs"]
mod linear;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/registers.rs"]
mod registers;
#[path = "common/work.rs"]
mod work;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::Instant,
};

use common::{Cluster, Random, free_ports, ok, refused, seed, until};
use mounts::Mounts;
use registers::Registers;
use rustix::process::Signal;
use serde_json::Value;
use work::{Ends, Load, check};

const MOUNTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The active manager is killed.
    Kill,
    /// Another one is promoted.
    Promote,
    /// Two members are stopped for a while: no majority.
    NoEtcd,
    /// A manager that follows is killed, and its table is lost.
    Standby,
}

const ALL: [Fault; 4] = [Fault::Kill, Fault::Promote, Fault::Standby, Fault::NoEtcd];

fn managers(cluster: &Cluster) -> Vec<Value> {
    cluster.json(&["manager", "list"]).as_array().unwrap().clone()
}

/// Process name and name of the active manager, as soon as there is one.
fn active(cluster: &Cluster) -> (String, String) {
    let mut found = None;
    until("a manager is active", || {
        found = managers(cluster).into_iter().find(|row| row["active"] == true);
        found.is_some()
    });
    let found = found.unwrap();
    (found["local"].as_str().unwrap().to_owned(), found["name"].as_str().unwrap().to_owned())
}

/// Those that follow, when every manager answers.
fn standbys(cluster: &Cluster) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    until("every manager answers", || {
        rows = managers(cluster);
        rows.iter().all(|row| !row["active"].is_null())
    });
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let follow = rows.iter().filter(|row| row["active"] == false);
    follow.map(|row| (text(&row["local"]), text(&row["name"]))).collect()
}

fn all_stand(cluster: &Cluster) {
    until("every manager answers, and one is active", || {
        let rows = managers(cluster);
        rows.iter().filter(|row| row["active"] == true).count() == 1
            && rows.iter().all(|row| row["behind"].as_u64().is_some_and(|behind| behind < 1000))
    });
}

/// Has a manager lead; what the command said. It gives a manager two seconds to answer, and twenty to lead: on a busy machine it is given
/// again.
fn promote(dir: &str, heir: &str) -> String {
    const LATE: [&str; 4] =
        ["does not answer at", "records behind", "did not take over in time", "is not active yet"];
    let words = ["manager", "promote", "--dir", dir, heir];
    let mut told = None;
    until("it is promoted", || {
        let output = common::heard(|| common::ropewalk(&words));
        let is_late = LATE.iter().any(|late| String::from_utf8_lossy(&output.stderr).contains(*late));
        told = (output.status.success() || !is_late).then(|| common::succeeded(&words, output));
        told.is_some()
    });
    told.unwrap()
}

/// Ends what runs of a directory, also when the test fails.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        let _ = common::ropewalk(&["down", "--dir", &self.0, "--force"]);
    }
}

/// That one does not answer, and another one is active.
fn all_but_one_stand(cluster: &Cluster, but: &str) {
    until("another manager is active, and that one is gone", || {
        let rows = managers(cluster);
        rows.iter().any(|row| row["active"] == true)
            && rows.iter().all(|row| row["active"].is_null() == (row["name"] == but))
    });
}

/// The cluster's secrets as a directory has them: the present one, and the one before.
fn secrets(dir: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(dir).join("cluster.toml")).unwrap();
    text.lines().filter(|line| line.contains("secret = ")).map(str::to_owned).collect()
}

fn authority(command: &str, dir: &str) -> Output {
    common::ropewalk(&["cluster", "authority", command, "--dir", dir])
}

/// Begins an exchange, once: it is begun when the file says so, whatever was heard of it. Who has answered meanwhile is seen later.
fn begin(dir: &str, stands: &str) {
    until("it is begun", || authority("renew", dir).status.success() || secrets(dir).len() == 2);
    until(stands, || String::from_utf8_lossy(&authority("show", dir).stdout).contains(stands));
}

fn finish(dir: &str) {
    until("it is finished", || authority("finish", dir).status.success() || secrets(dir).len() == 1);
}

/// The authority is exchanged with a manager on another machine, which leads: the first machine has what it has, and takes over with it.
fn exchange(cluster: &Cluster, name: &str, other: &str) {
    let before = secrets(name);
    let error = refused(&["cluster", "authority", "renew", "--dir", name]);
    assert!(error.contains("on another machine") && secrets(name) == before, "{error}");
    begin(other, "everybody has a new certificate");
    until("this machine has both", || secrets(name).len() == 2 && secrets(name) == secrets(other));
    let (_, heir) = standbys(cluster).swap_remove(0);
    promote(name, &heir);
    finish(name);
    until("the other machine believes the new authority alone", || secrets(other) == secrets(name));
    assert_eq!(secrets(name).len(), 1);
    assert_ne!(secrets(name), before);
    all_stand(cluster);
}

/// What is said of a table that rests: it holds all only after a stop in good order. A damaged one that follows is not mended, but copied
/// anew.
fn look_at_tables(cluster: &Cluster) {
    let dir = cluster.dir();
    let command = |what: &'static str| ["manager", what, "--dir", dir.to_str().unwrap()];
    let error = refused(&command("check"));
    assert!(error.contains("at rest") && error.contains("ropewalk down"), "{error}");
    let (local, follower) = standbys(cluster).swap_remove(0);
    let rest = || cluster.stop(|process| process == local);
    let whole = |told: &str| assert!(told.contains(dir.join(&local).to_str().unwrap()), "{told}");
    rest();
    whole(&ok(&command("check")));
    let table = dir.join(&local).join("store.redb");
    let mut bytes = fs::read(&table).unwrap();
    bytes.iter_mut().skip(4096 + 64).step_by(512).for_each(|byte| *byte ^= 1);
    fs::write(&table, bytes).unwrap();
    let error = refused(&command("check"));
    assert!(error.contains("store.redb") || error.contains("wrong"), "{error}");
    for yes in [&[][..], &["--yes"]] {
        let error = refused(&[&command("accept-loss"), yes].concat());
        assert!(error.contains("move a damaged one's directory away"), "{error}");
    }
    let aside = dir.join("damaged");
    fs::rename(dir.join(&local), &aside).unwrap();
    cluster.start_server(&local);
    all_stand(cluster);
    assert!(standbys(cluster).iter().any(|(_, name)| *name == follower));
    rest();
    whole(&ok(&command("check")));
    cluster.start_server(&local);
    all_stand(cluster);
    fs::remove_dir_all(aside).unwrap();
}

/// Every name, of the directory and of all in it.
fn names(of: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path()).collect();
    let dirs: Vec<PathBuf> = all.iter().filter(|path| path.is_dir()).cloned().collect();
    all.extend(dirs.iter().flat_map(|dir| names(dir)));
    all.sort();
    all
}

/// All tables and the journal are given up; a dump makes a store of which all managers have a table.
fn restore(cluster: &Cluster) {
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let name = dir.to_str().unwrap();
    fs::write(mnt.join("kept"), "in the dump").unwrap();
    fs::File::open(mnt.join("kept")).unwrap().sync_all().unwrap();
    let before = names(&mnt);
    let dump = dir.with_file_name("dump");
    let restore = ["manager", "restore", "--dir", name, dump.to_str().unwrap()];
    ok(&["manager", "dump", "--dir", name, dump.to_str().unwrap()]);
    let error = refused(&restore);
    assert!(error.contains("the manager runs"), "{error}");
    cluster.down();
    let error = refused(&restore);
    assert!(error.contains("move it away"), "{error}");
    cluster.put_managers_aside();
    let error = refused(&restore);
    assert!(error.contains("--name etcd@1"), "{error}");
    cluster.start_etcd();
    let error = refused(&restore);
    assert!(error.contains("etcdctl del --prefix") && !dir.join("manager").exists(), "{error}");
    cluster.name_fresh_place();
    let told = ok(&restore);
    assert!(told.contains("records are in") && told.contains("the others copy its table"), "{told}");
    ok(&["up", "--dir", name, "--detach", "--mount", mnt.to_str().unwrap()]);
    all_stand(cluster);
    assert_eq!((managers(cluster).len(), names(&mnt)), (3, before));
    assert_eq!(fs::read_to_string(mnt.join("kept")).unwrap(), "in the dump");
    // One that copied leads as well as the one that was restored.
    let (_, heir) = standbys(cluster).swap_remove(0);
    promote(name, &heir);
    fs::write(mnt.join("kept"), "and changed since").unwrap();
    assert_eq!(active(cluster).1, heir);
}

/// What a fault does, from its begin until all stands again. How long nothing went on is told.
fn suffer(fault: Fault, cluster: &Cluster, load: &Load, random: &mut Random) {
    let (process, name) = active(cluster);
    let kill = |victim: &str| cluster.kill(|process| process == victim);
    match fault {
        Fault::Kill => {
            let killed = Instant::now();
            kill(&process);
            let all = load.went_on();
            let (_, by) = active(cluster);
            assert_ne!(name, by);
            println!(
                "  {name} killed: all went on {all:.1?} later, {by} leads; {:.1?} in all",
                killed.elapsed()
            );
            cluster.start_server(&process);
        }
        Fault::Promote => {
            let others = standbys(cluster);
            let (_, heir) = &others[random.below(others.len() as u64) as usize];
            let begun = Instant::now();
            let told = promote(cluster.dir().to_str().unwrap(), heir);
            let all = load.went_on();
            assert_eq!(active(cluster).1, *heir, "{told}");
            println!(
                "  {heir} promoted: {}; all went on {all:.1?} later, {:.1?} in all",
                told.trim(),
                begun.elapsed()
            );
        }
        Fault::Standby => {
            let (local, follower) = standbys(cluster).swap_remove(0);
            kill(&local);
            load.went_on();
            refused(&["health", "--dir", cluster.dir().to_str().unwrap()]);
            until("status says that it is gone", || {
                let said = cluster.json(&["status"])["remarks"].to_string();
                said.contains(&format!("manager {follower} does not answer"))
            });
            fs::remove_dir_all(cluster.dir().join(&local)).unwrap();
            cluster.start_server(&local);
            println!("  {follower} killed, its table lost");
        }
        Fault::NoEtcd => {
            let members = ["etcd@1", "etcd@2"];
            members.iter().for_each(|member| cluster.signal(member, Signal::STOP));
            until("managers say what they wait for", || {
                let rows = managers(cluster);
                rows.iter().any(|row| row["etcd_says"].as_str().is_some_and(|why| why.contains("etcd at")))
            });
            // The active one answers what it knows for a moment yet; then the command says it as its error.
            until("health says it", || {
                let health = common::ropewalk(&["health", "--dir", cluster.dir().to_str().unwrap()]);
                let said = [health.stdout, health.stderr].map(|said| String::from_utf8(said).unwrap());
                !health.status.success() && said.concat().contains("no answer of etcd")
            });
            until("it is said who waits for it", || {
                let waiters = common::ropewalk(&["waiters", "--dir", cluster.dir().to_str().unwrap()]);
                String::from_utf8_lossy(&waiters.stdout).contains("etcd to answer")
            });
            members.iter().for_each(|member| cluster.signal(member, Signal::CONT));
            println!("  etcd without a majority: all went on {:.1?} after its return", load.went_on());
        }
    }
    all_stand(cluster);
}

/// The command that removes a manager whose process hangs is interrupted; given again it ends what the first one has begun.
fn remove_one_that_hangs(cluster: &Cluster, dir: &str, name: &str) {
    let row = managers(cluster).into_iter().find(|row| row["name"] == name).unwrap();
    let local = row["local"].as_str().unwrap();
    let stands = || {
        let file = fs::read_to_string(Path::new(dir).join("cluster.toml")).unwrap();
        file.contains(&format!("local = \"{local}\""))
    };
    cluster.signal(local, Signal::STOP);
    let words = ["manager", "remove", "--dir", dir, name];
    let mut removing = Command::new(common::ROPEWALK).args(words).spawn().unwrap();
    until("the cluster has it no more", || {
        if managers(cluster).iter().all(|row| row["name"] != name) {
            return true;
        }
        // It was not heard.
        if removing.try_wait().unwrap().is_some() {
            removing = Command::new(common::ROPEWALK).args(words).spawn().unwrap();
        }
        false
    });
    removing.kill().unwrap();
    removing.wait().unwrap();
    assert!(stands(), "its process has not ended");
    ok(&words);
    assert!(!stands());
    assert!(cluster.processes().iter().all(|(process, _)| process != local), "it was killed");
}

#[test]
fn another_manager_takes_over_whatever_happens_to_the_active_one() {
    let options =
        ["--nodes", "3", "--pdisks", "1", "--code", "2+1p", "--pdisk-size", "256m", "--block-size", "1m"];
    let cluster = Cluster::prepare(&[&options[..], &["--managers", "3", "--store", "etcd"]].concat());
    // Nobody takes over from one that a busy machine lets wait, and no mount loses its lease meanwhile.
    cluster.set_up(&["managerLease=10s", "leaseDuration=30s"]);
    let mounts = Mounts::over(cluster, MOUNTS);
    let cluster = &mounts.cluster;
    all_stand(cluster);
    let (seed, load) = (seed(), Load::prepare(&mounts.all));
    let registers = Registers::new(&mounts.all, seed);
    let mut random = Random(seed);
    let histories = thread::scope(|scope| {
        let end = Ends(&load, &mounts.all);
        load.begin(scope, &mounts.all);
        let readers = registers.begin(scope, &load);
        load.went_on();
        let gone = mounts.at(0, "gone");
        (0..64).for_each(|n| fs::write(&gone, format!("{n}")).unwrap());
        fs::remove_file(gone).unwrap();
        for fault in ALL {
            println!("{fault:?}");
            suffer(fault, cluster, &load, &mut random);
            if fault == Fault::Kill {
                // It removed the file; the one that followed it knows what it was called.
                let asked = ["analytics", "query", "file.ops[file=/gone (removed)]", "--from", "-30m"];
                until("the last name of a removed file is known", || {
                    let answer = common::ropewalk(
                        &[&asked[..], &["--dir", cluster.dir().to_str().unwrap(), "--json"]].concat(),
                    );
                    let answer = serde_json::from_slice::<Value>(&answer.stdout).unwrap_or_default();
                    answer["total"].as_f64() >= Some(64.0)
                });
            }
        }
        drop(end);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    registers.check(&histories);
    check(&mounts.all, &load.done());
    println!("{:?} rounds of work", load.done());

    // A restart with the machine's first manager gone: who starts here finds another one.
    for path in &mounts.all[1..] {
        ok(&["umount", path.to_str().unwrap()]);
    }
    let dir = cluster.dir();
    let name = dir.to_str().unwrap();
    let (local, first) = active(cluster);
    let error = refused(&["manager", "remove", "--dir", name, &first]);
    assert!(error.contains("promote"), "{error}");
    let (_, heir) = standbys(cluster).swap_remove(0);
    promote(name, &heir);
    until("the former one follows", || standbys(cluster).iter().any(|(other, _)| *other == local));
    ok(&["manager", "remove", "--dir", name, &first]);
    assert_eq!(managers(cluster).len(), 2);
    let runs = |local: &str| cluster.processes().iter().any(|(process, _)| process == local);
    assert!(!runs(&local), "it has ended");
    ok(&["manager", "add", "--dir", name, "more"]);
    remove_one_that_hangs(cluster, name, "more");
    ok(&["manager", "add", "--dir", name, "more"]);
    // And one with a directory of its own, as on another machine.
    let other = dir.with_file_name("other");
    let other = other.to_str().unwrap();
    let token = ok(&["node", "token", "--dir", name, "--role", "manager"]);
    let port = free_ports().to_string();
    let place = ["--address", "127.0.0.1", "--port", &port, "--name", "other", "--no-service"];
    ok(&[&["join", "--dir", other, token.trim()], &place[..]].concat());
    assert_eq!(managers(cluster).len(), 4);
    let down = Down(other.to_owned());
    promote(name, "other");
    until("it leads", || {
        let rows = ok(&["manager", "list", "--dir", other, "--json"]);
        let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
        rows.iter().any(|row| row["name"] == "other" && row["active"] == true)
    });
    // A dump of the active one's store, from the machine of any.
    for from in [name, other] {
        let dump = format!("{other}.dump-of-{}", Path::new(from).file_name().unwrap().display());
        assert!(ok(&["manager", "dump", "--dir", from, &dump]).contains("records are in"));
    }
    exchange(cluster, name, other);
    drop(down);
    all_but_one_stand(cluster, "other");
    // On the other machine all looks as if no manager were left.
    fs::rename(Path::new(other).join("manager"), Path::new(other).join("manager.old")).unwrap();
    let error = refused(&["manager", "restore", "--dir", other, &format!("{other}.dump-of-other")]);
    assert!(error.contains("another machine is active"), "{error}");
    // It cannot be told now: an exchange waits for it, or for its end as a manager.
    begin(name, "manager other");
    let error = refused(&["cluster", "authority", "finish", "--dir", name]);
    assert!(error.contains("manager other"), "{error}");
    ok(&["manager", "remove", "--dir", name, "other"]);
    finish(name);
    assert_ne!(secrets(name), secrets(other));
    cluster.down();
    assert!(cluster.processes().is_empty(), "{:?}", cluster.processes());
    ok(&["up", "--dir", name, "--detach", "--mount", cluster.mnt().to_str().unwrap()]);
    assert!(cluster.mnt().join("register0").exists());
    all_stand(cluster);
    look_at_tables(cluster);
    restore(cluster);
}
