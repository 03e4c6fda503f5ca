//! Three members of etcd, three managers, a server and three mounts, each on a host of its own in the test's network namespaces, and
//! one more host from which nothing is ever cut, where commands are run. What was broken is mended by [`Field::mend`], in any order.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    beds::Bed,
    clock::Clocks,
    common::until,
    hosts::Machine,
    members::{COUNT, Members, QUOTA},
};

pub const MANAGERS: [usize; 3] = [4, 5, 6];
pub const SERVER: usize = 7;
pub const CLIENTS: [usize; 3] = [8, 9, 10];
const ADMIN: usize = 11;
/// Of a manager's process.
const PROCESS: &str = "manager";

/// See the module.
pub struct Field<'a> {
    bed: &'a Bed,
    pub members: Members<'a>,
    managers: [Machine<'a>; 3],
    others: Vec<Machine<'a>>,
    /// The first manager's directory, with all its rights, on a host of its own.
    admin: Machine<'a>,
    pub clocks: Option<Clocks>,
    /// What is lost on the way, from a host to another.
    lost: BTreeSet<(usize, usize)>,
    /// Hosts whose link is down.
    gone: BTreeSet<usize>,
    /// Managers started here, to be reaped.
    children: Vec<Child>,
    /// Large records that are still to be made, so that the journal moves on.
    pub large: Arc<AtomicU64>,
}

/// What is mended by itself, so that faults end one after the other.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Network,
    Managers,
    Etcd,
}

impl<'a> Field<'a> {
    /// All of it, and the mounts.
    pub fn new(bed: &'a Bed, base: &Path) -> (Field<'a>, Vec<PathBuf>) {
        let members = Members::start(bed, base.join("etcd"));
        let at = |host| Machine::new(bed, base, host);
        let managers = MANAGERS.map(at);
        let clocks = Clocks::new(base);
        for (name, value) in clocks.iter().flat_map(Clocks::env) {
            managers.iter().for_each(|manager| manager.set_env(name, &value));
        }
        let others = [SERVER].into_iter().chain(CLIENTS).map(at).collect();
        let admin = Machine::at(bed, managers[0].dir.clone(), ADMIN);
        let (lost, gone) = (BTreeSet::new(), BTreeSet::new());
        let mut field = Field {
            bed,
            members,
            managers,
            others,
            admin,
            clocks,
            lost,
            gone,
            children: Vec::new(),
            large: Arc::default(),
        };
        let mounts = field.build();
        field.all_stand();
        (field, mounts)
    }

    fn build(&self) -> Vec<PathBuf> {
        let (first, place) = (&self.managers[0], self.members.place());
        let addr = self.bed.addr(MANAGERS[0] - 1);
        let store = ["--store", &place, "--etcd-quota", QUOTA];
        first.ok(&[&["init", "--name", "rope", "--node", "h4", "--address", &addr], &store[..]].concat());
        // No lease of a client or server ends while it is cut off here: who had to wait for one would be right to get errors.
        first.ok(&["config", "set", "leaseDuration=60s"]);
        first.ok(&["down"]);
        first.ok(&["up", "--detach"]);
        self.others[0].join(&first.token(&[]));
        for manager in &self.managers[1..] {
            let (name, addr) = (format!("m{}", manager.host), self.bed.addr(manager.host - 1));
            manager.ok(&["join", &first.token(&["--role", "manager"]), "--name", &name, "--address", &addr]);
        }
        first.ok(&["pool", "create", "data", "--code", "1way", "--block-size", "1m"]);
        first.ok(&["fs", "create", "fs1", "--pool", "data"]);
        let mount = |client: &Machine<'_>| {
            let name = format!("c{}", client.host);
            client.ok(&["join", &first.token(&["--role", "client"]), "--name", &name]);
            client.mounted()
        };
        self.others[1..].iter().map(mount).collect()
    }

    /// Each manager as it says: whether it is active, and how far behind. One that does not answer is not there.
    fn standing(&self) -> Vec<(usize, bool, u64)> {
        let output = self.admin.run(&["manager", "list", "--json"]);
        // Without an active one the command may have nobody to ask.
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let told = |row: &Value| {
            let at = row["addresses"][0].as_str()?.split(':').next()?;
            let manager = MANAGERS.iter().position(|host| self.bed.addr(host - 1) == at)?;
            Some((manager, row["active"].as_bool()?, row["behind"].as_u64()?))
        };
        rows.iter().filter_map(told).collect()
    }

    /// Those that say that they are active. One that was deposed may say so for a moment.
    fn leaders(&self) -> Vec<usize> {
        self.standing().into_iter().filter(|(_, active, _)| *active).map(|(manager, ..)| manager).collect()
    }

    /// The active manager, as far as can be seen now.
    pub fn leader(&self) -> Option<usize> {
        self.leaders().first().copied()
    }

    /// The same, as soon as it can be seen: on a busy machine it may answer late.
    pub fn leads(&self) -> usize {
        self.wait_for_leader("a manager is active", |_| true)
    }

    /// Waits until another one is active; which.
    pub fn another_leads(&self, than: usize) -> usize {
        self.wait_for_leader("another manager is active", |leader| leader != than)
    }

    fn wait_for_leader(&self, what: &str, is_it: impl Fn(usize) -> bool) -> usize {
        let mut found = None;
        until(what, || {
            found = self.leaders().into_iter().find(|leader| is_it(*leader));
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until all answer, one is active and the others have what it has. One that has ended by itself is started, as a service is.
    pub fn all_stand(&mut self) {
        until("every manager answers, and one is active", || {
            // To look is a process of its own, and there may be other clusters beside this one.
            thread::sleep(Duration::from_millis(300));
            self.start_managers();
            let all = self.standing();
            let leaders = all.iter().filter(|(_, active, _)| *active).count();
            all.len() == MANAGERS.len() && leaders == 1 && all.iter().all(|(.., behind)| *behind < 1000)
        });
    }

    pub fn name(&self, manager: usize) -> String {
        format!("the manager on h{}", MANAGERS[manager])
    }

    pub fn promote(&self, manager: usize) -> bool {
        // The first one has the cluster's name for it, whatever that is.
        let rows: Vec<Value> = serde_json::from_slice(&self.admin.run(&["manager", "list", "--json"]).stdout)
            .unwrap_or_default();
        let addr = self.bed.addr(MANAGERS[manager] - 1);
        let its =
            |row: &&Value| row["addresses"][0].as_str().is_some_and(|at| at.split(':').next() == Some(&addr));
        let name = rows.iter().find(its).and_then(|row| row["name"].as_str());
        name.is_some_and(|name| self.admin.run(&["manager", "promote", name]).status.success())
    }

    pub fn signal(&self, manager: usize, signal: Signal) {
        self.managers[manager].signal(PROCESS, signal);
    }

    pub fn pid(&self, manager: usize) -> Option<i32> {
        self.managers[manager].pid(PROCESS)
    }

    pub fn kill(&self, manager: usize) {
        self.signal(manager, Signal::KILL);
        until("what was killed is gone", || self.pid(manager).is_none());
    }

    /// Its table is lost; it does not run.
    pub fn lose_table(&self, manager: usize) {
        std::fs::remove_dir_all(self.managers[manager].dir.join(PROCESS)).unwrap();
    }

    pub fn start_managers(&mut self) {
        self.children.retain_mut(|child| child.try_wait().unwrap().is_none());
        for machine in &self.managers {
            if machine.pid(PROCESS).is_some() {
                continue;
            }
            let log =
                File::options().append(true).create(true).open(machine.dir.join("log/manager.log")).unwrap();
            let mut serve = machine.command(&["serve", "--name", PROCESS]);
            serve.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
            self.children.push(serve.spawn().unwrap());
            until("a manager begins", || {
                let ended = self.children.last_mut().is_none_or(|child| child.try_wait().unwrap().is_some());
                ended || machine.pid(PROCESS).is_some()
            });
        }
    }

    /// What these hosts send to those is lost.
    pub fn lose(&mut self, from: &[usize], to: &[usize]) {
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
        let new: Vec<(usize, usize)> = pairs.filter(|pair| self.lost.insert(*pair)).collect();
        self.bed.lose_all(&new, true);
    }

    /// A manager's host is off the network.
    pub fn unplug(&mut self, manager: usize, state: &str) {
        let host = MANAGERS[manager];
        self.bed.link(&format!("h{host}"), "1", state);
        self.gone.insert(host);
    }

    /// Large records are made; the managers that are stopped meanwhile miss more than the journal keeps.
    pub fn move_on(&self, records: u64) {
        self.large.store(records, SeqCst);
    }

    /// Mends all faults of a kind, whatever they were.
    pub fn mend(&mut self, part: Part) {
        match part {
            Part::Network => {
                let lost: Vec<(usize, usize)> = std::mem::take(&mut self.lost).into_iter().collect();
                self.bed.lose_all(&lost, false);
                for host in std::mem::take(&mut self.gone) {
                    self.bed.link(&format!("h{host}"), "1", "up");
                }
            }
            Part::Managers => {
                for manager in 0..MANAGERS.len() {
                    if let Some(pid) = self.pid(manager) {
                        self.signal(manager, Signal::CONT);
                        let _ = self.clocks.as_ref().is_some_and(|clocks| clocks.set(pid, 0));
                    }
                }
                self.start_managers();
            }
            Part::Etcd => {
                self.members.empty_disk();
                self.members.all_run();
                // Members that had no room end when they find out.
                until("etcd is emptied of what is not ours", || {
                    self.members.all_run();
                    self.members.empty_database() && self.members.compact()
                });
            }
        }
    }

    pub fn etcd_hosts() -> [usize; COUNT] {
        [1, 2, 3]
    }
}

impl Drop for Field<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.members.logs());
            self.managers.iter().chain(&self.others).for_each(Machine::show_logs);
        }
        let lost: Vec<(usize, usize)> = self.lost.iter().copied().collect();
        self.bed.lose_all(&lost, false);
        for machine in self.others.iter().rev().chain(&self.managers) {
            machine.run(&["down", "--force"]);
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
