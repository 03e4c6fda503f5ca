//! A host in a network namespace of its own with real links to another, and a real disk (a loop device under the name of a SCSI
//! disk): its settings are the kernel's, read back from it. Two of its links are in a bond whose own files are a tree's, as kernels
//! need not have the driver; the state of its members is that of the links. Made wrong at random in one to five ways, advised, set by
//! `apply` or by the finding's own command, read back, taken back.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use advisor::{Catalogue, Finding, Tree, advise, apply, assumed, host_facts, probe};

use super::{Score, named, seeded};

const ROUNDS: usize = 8;
const FAR: &str = "10.97.0.2";
/// Of the bond's first member: failures of its link, and its aggregator.
const FIRST: [&str; 2] = ["0", "1"];

/// Where a value stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// A file below the host's root.
    File(&'static str),
    /// `ethtool -K near`, read back by `-k`: the name, and the name there.
    Offload(&'static str, &'static str),
    /// What stands at the root of the link's sending side: the words behind `root`.
    Discipline,
    /// The MTU of the far end.
    FarMtu,
    /// Whether the bond's second member is up.
    Member,
    /// A value in the bond's own listing, of its second member.
    Listed(&'static str),
}

/// What can be wrong: where, what it is when it is right, and when it is wrong, and what must be found.
type Fault = (At, &'static str, &'static str, &'static str);
const WRONG: [Fault; 24] = [
    (At::File("proc/sys/net/ipv4/tcp_window_scaling"), "1", "0", "tcp-no-window-scaling"),
    (At::File("proc/sys/net/ipv4/tcp_sack"), "1", "0", "tcp-no-sack"),
    (At::File("proc/sys/net/ipv4/tcp_timestamps"), "1", "0", "tcp-no-timestamps"),
    (At::File("proc/sys/net/ipv4/tcp_moderate_rcvbuf"), "1", "0", "tcp-no-receive-tuning"),
    (At::File("proc/sys/net/ipv4/tcp_slow_start_after_idle"), "0", "1", "tcp-slow-start-after-idle"),
    (At::File("proc/sys/net/ipv4/ip_local_port_range"), "32768 60999", "32768 33000", "tcp-few-ports"),
    (At::File("proc/sys/net/core/somaxconn"), "4096", "4", "tcp-backlog-short"),
    (At::File("sys/block/sdz/queue/scheduler"), "mq-deadline", "none", "disk-without-scheduler block.sdz"),
    (At::File("sys/block/sdz/queue/read_ahead_kb"), "4096", "32", "block-readahead-small block.sdz"),
    (At::File("sys/block/sdz/queue/nomerges"), "0", "2", "block-no-merges block.sdz"),
    (At::File("sys/block/sdz/queue/rq_affinity"), "1", "0", "block-affinity block.sdz"),
    (At::File("sys/class/net/near/tx_queue_len"), "1000", "100", "nic-txqueue-short net.near"),
    (At::Offload("gro", "generic-receive-offload"), "on", "off", "nic-gro-off net.near"),
    (At::Offload("tso", "tcp-segmentation-offload"), "on", "off", "nic-tso-off net.near"),
    (At::Offload("rx", "rx-checksumming"), "on", "off", "nic-rx-checksum-off net.near"),
    (At::Offload("tx", "tx-checksumming"), "on", "off", "nic-tx-checksum-off net.near"),
    (At::Discipline, "", "tbf rate 1Gbit burst 4Mb lat 50ms", "nic-qdisc-shapes net.near"),
    (
        At::File("sys/class/net/bond0/bonding/xmit_hash_policy"),
        "layer3+4",
        "layer2",
        "bond-hash-without-ports bond.bond0",
    ),
    (At::File("sys/class/net/bond0/bonding/miimon"), "100", "0", "bond-no-monitor bond.bond0"),
    (At::File("sys/class/net/bond0/bonding/mode"), "802.3ad", "balance-rr", "bond-round-robin bond.bond0"),
    (At::Listed("Aggregator ID"), "1", "2", "bond-aggregators-differ bond.bond0"),
    (At::Member, "up", "down", "bond-member-down bond.bond0"),
    (At::Listed("Link Failure Count"), "0", "9", "bond-link-failures net.p1"),
    // The far end takes less than this end sends: no setting of this machine shows it.
    (At::FarMtu, "9000", "1400", "net-path-mtu-small probe.10/97/0/2"),
];

impl At {
    /// Whether the machine can show and have it.
    fn can_be(self) -> bool {
        let there = |name: &str| {
            ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|d| PathBuf::from(d).join(name).exists())
        };
        match self {
            At::Offload(..) => there("ethtool"),
            At::Discipline => there("tc"),
            _ => true,
        }
    }
    /// Whether following the advice on this machine cures it.
    fn is_cured_here(self) -> bool {
        !matches!(self, At::FarMtu | At::Member | At::Listed(_))
            && self != At::File("sys/class/net/bond0/bonding/mode")
    }
}

/// Another mode has neither a hash nor aggregators; without checksums there is no TSO.
fn hides(by: &Fault, other: &Fault) -> bool {
    by.3.starts_with("bond-round-robin")
        && ["bond-hash", "bond-aggregators"].iter().any(|rule| other.3.starts_with(rule))
        || by.3.starts_with("nic-tx-checksum-off") && other.3.starts_with("nic-tso-off")
}

pub(super) fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t0"))
}

/// In a namespace of its own, which only root may make: the other test is run there.
#[test]
fn real_links_and_disks_made_wrong_are_named_set_and_taken_back() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--", "sh", "-c", super::ALONE])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "links::in_a_namespace_of_its_own", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("precision and recall"), "{said}");
}

fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The host at this end, the one at the far end, and the disk.
struct Pair {
    root: tempfile::TempDir,
    far: Child,
    disk: String,
    /// What the bond's listing says of its second member.
    listed: RefCell<BTreeMap<&'static str, String>>,
}

fn link(target: PathBuf, at: PathBuf) {
    std::os::unix::fs::symlink(target, at).unwrap();
}

impl Pair {
    fn new() -> Pair {
        let far = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut far = far.unwrap();
        // It answers once it is there.
        std::io::Read::read_exact(far.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let (image, kernel) = (at("image"), at("kernel"));
        fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
        fs::create_dir(&kernel).unwrap();
        fs::create_dir_all(at("sys/block")).unwrap();
        fs::create_dir_all(at("sys/class/net/bond0/bonding")).unwrap();
        fs::create_dir_all(at("proc/net/bonding")).unwrap();
        fs::create_dir_all(at("ropewalk/command")).unwrap();
        // The view that sysfs gives of links is of the namespace in which it was mounted.
        run(&["mount", "-t", "sysfs", "sysfs", kernel.to_str().unwrap()]);
        let disk = run(&["losetup", "--find", "--show", image.to_str().unwrap()]);
        let name = disk.rsplit('/').next().unwrap();
        link(kernel.join("block").join(name), at("sys/block/sdz"));
        let pid = far.id().to_string();
        run(&["ip", "link", "set", "lo", "up"]);
        run(&[
            "ip", "link", "add", "near", "mtu", "9000", "type", "veth", "peer", "name", "far", "mtu", "9000",
        ]);
        run(&["ip", "link", "set", "far", "netns", &pid]);
        run(&["ip", "addr", "add", "10.97.0.1/24", "dev", "near"]);
        run(&["ip", "link", "set", "near", "up"]);
        for (member, partner) in [("p0", "q0"), ("p1", "q1")] {
            run(&[
                "ip", "link", "add", member, "mtu", "9000", "type", "veth", "peer", "name", partner, "mtu",
                "9000",
            ]);
            run(&["ip", "link", "set", partner, "up"]);
            run(&["ip", "link", "set", member, "up"]);
        }
        // Those of the kernel, and beside them the bond's. A link with a device is a port.
        for port in ["near", "p0", "p1"] {
            let port = format!("class/net/{port}");
            fs::create_dir_all(at("sys").join(&port).join("device")).unwrap();
            for entry in fs::read_dir(kernel.join(&port)).unwrap().map(Result::unwrap) {
                if entry.file_name() != "device" {
                    link(entry.path(), at("sys").join(&port).join(entry.file_name()));
                }
            }
        }
        for (dir, view) in [("/proc", "proc"), ("/proc/self/net", "proc/net")] {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let name = entry.file_name().into_string().unwrap();
                if name != "net" && name != "bonding" && name.parse::<u32>().is_err() {
                    link(entry.path(), at(view).join(name));
                }
            }
        }
        for (file, text) in [("xmit_hash_policy", "layer3+4"), ("miimon", "100"), ("mode", "802.3ad")] {
            fs::write(at("sys/class/net/bond0/bonding").join(file), text).unwrap();
        }
        let listed = RefCell::new(BTreeMap::from([
            ("Aggregator ID", "1".to_owned()),
            ("Link Failure Count", "0".to_owned()),
        ]));
        let pair = Pair { root, far, disk, listed };
        pair.at_the_far_end(&["ip", "addr", "add", "10.97.0.2/24", "dev", "far"]);
        pair.at_the_far_end(&["ip", "link", "set", "far", "up"]);
        let rotational = pair.root.path().join("sys/block/sdz/queue/rotational");
        fs::write(rotational, "1").unwrap();
        pair
    }
    fn at_the_far_end(&self, words: &[&str]) -> String {
        let pid = self.far.id().to_string();
        run(&[&["nsenter", "-t", &pid, "--net", "--"], words].concat())
    }
    fn set(&self, at: At, value: &str) {
        match at {
            At::File(file) => fs::write(self.root.path().join(file), value).unwrap(),
            At::Offload(name, _) => drop(run(&["ethtool", "-K", "near", name, value])),
            At::Discipline if value.is_empty() => {
                // There may be none.
                let _ = Command::new("tc").args(["qdisc", "del", "dev", "near", "root"]).output();
            }
            At::Discipline => {
                let words: Vec<&str> = value.split(' ').collect();
                run(&[&["tc", "qdisc", "replace", "dev", "near", "root"], &words[..]].concat());
            }
            At::FarMtu => drop(self.at_the_far_end(&["ip", "link", "set", "far", "mtu", value])),
            At::Member => drop(run(&["ip", "link", "set", "p1", value])),
            At::Listed(name) => drop(self.listed.borrow_mut().insert(name, value.to_owned())),
        }
        // The kernel tells of a link's state a moment later.
        let started = Instant::now();
        while at == At::Member && self.get(at) != value && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(self.get(at), value, "{at:?}");
    }
    /// What is in force.
    fn get(&self, at: At) -> String {
        match at {
            At::File(file) => {
                let text = fs::read_to_string(self.root.path().join(file)).unwrap();
                let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                let chosen = inner.map(|(inner, _)| inner).unwrap_or(&text);
                chosen.split_whitespace().collect::<Vec<_>>().join(" ")
            }
            At::Offload(_, name) => {
                let said = run(&["ethtool", "-k", "near"]);
                let line = said.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")).unwrap();
                line.trim().to_owned()
            }
            At::Discipline => {
                let said = run(&["tc", "qdisc", "show", "dev", "near"]);
                let words: Vec<&str> = said.split_whitespace().collect();
                match words[..] {
                    ["qdisc", "noqueue", ..] => String::new(),
                    ["qdisc", kind, _, "root", "refcnt", _, ref rest @ ..] => {
                        format!("{kind} {}", rest.join(" "))
                    }
                    _ => said,
                }
            }
            At::FarMtu => {
                let said = self.at_the_far_end(&["ip", "link", "show", "far"]);
                said.split_whitespace().skip_while(|w| *w != "mtu").nth(1).unwrap().to_owned()
            }
            At::Member => match self.get(At::File("sys/class/net/p1/operstate")).as_str() {
                "up" => "up".to_owned(),
                _ => "down".to_owned(),
            },
            At::Listed(name) => self.listed.borrow()[name].clone(),
        }
    }
    /// What the driver would list of the bond, and what the programs print, as of now.
    fn refresh(&self) {
        let mode = match self.get(At::File("sys/class/net/bond0/bonding/mode")).as_str() {
            "balance-rr" => "load balancing (round-robin)",
            _ => "IEEE 802.3ad Dynamic link aggregation",
        };
        let mut text =
            format!("Ethernet Channel Bonding Driver: v6.1\n\nBonding Mode: {mode}\nMII Status: up\n");
        for member in ["p0", "p1"] {
            let state = self.get(At::File(if member == "p0" {
                "sys/class/net/p0/operstate"
            } else {
                "sys/class/net/p1/operstate"
            }));
            let listed = |name| {
                if member == "p1" {
                    self.get(At::Listed(name))
                } else {
                    FIRST[usize::from(name == "Aggregator ID")].to_owned()
                }
            };
            text.push_str(&format!(
                "\nSlave Interface: {member}\nMII Status: {}\nLink Failure Count: {}\nAggregator ID: {}\n",
                if state == "up" { "up" } else { "down" },
                listed("Link Failure Count"),
                listed("Aggregator ID")
            ));
        }
        fs::write(self.root.path().join("proc/net/bonding/bond0"), text).unwrap();
        let commands = self.root.path().join("ropewalk/command");
        if At::Discipline.can_be() {
            fs::write(commands.join("tc_qdisc_show"), run(&["tc", "qdisc", "show"])).unwrap();
        }
        if At::Offload("", "").can_be() {
            fs::write(commands.join("ethtool_-k_near"), run(&["ethtool", "-k", "near"])).unwrap();
        }
    }
    /// What is found of this end, its link and the disk: the machine's own memory and load are not ours to judge.
    fn findings(&self) -> Vec<Finding> {
        self.refresh();
        let catalogue = Catalogue::load().unwrap();
        let mut facts = assumed(&catalogue);
        facts.extend(host_facts(&Tree::below(self.root.path())));
        facts.extend(probe(FAR).unwrap());
        let ours = |f: &Finding| {
            ["tcp", "nic", "network", "bonding", "links", "block"].contains(&subject(&catalogue, f))
        };
        advise(&catalogue, &facts, &[]).into_iter().filter(ours).collect()
    }
}

fn subject(catalogue: &Catalogue, finding: &Finding) -> &'static str {
    catalogue.rule(&finding.rule).unwrap().subject
}

impl Drop for Pair {
    fn drop(&mut self) {
        for (name, value) in [
            ("scheduler", "none"),
            ("rotational", "0"),
            ("nomerges", "0"),
            ("read_ahead_kb", "128"),
            ("rq_affinity", "1"),
        ] {
            let _ = fs::write(self.root.path().join("sys/block/sdz/queue").join(name), value);
        }
        let _ = Command::new("losetup").args(["--detach", &self.disk]).status();
        let _ = Command::new("umount").arg(self.root.path().join("kernel")).status();
        drop(self.far.stdin.take());
        let _ = self.far.wait();
    }
}

#[test]
#[ignore = "changes links and settings: the other test runs it in a namespace of its own"]
fn in_a_namespace_of_its_own() {
    let pair = Pair::new();
    let (can, cannot): (Vec<&Fault>, Vec<&Fault>) = WRONG.iter().partition(|fault| fault.0.can_be());
    cannot.iter().for_each(|(.., rule)| println!("skipped, as its program is not installed: {rule}"));
    can.iter().for_each(|(at, good, ..)| pair.set(*at, good));
    let at_first = named(&pair.findings());
    let (mut below, mut score) = (seeded(20_261_126), Score::default());
    for _ in 0..ROUNDS {
        let chosen: BTreeSet<usize> = (0..=below(5)).map(|_| below(can.len())).collect();
        let chosen: Vec<&Fault> = chosen.into_iter().map(|i| can[i]).collect();
        let shown = |fault: &&&Fault| !chosen.iter().any(|by| hides(by, fault));
        let chosen: Vec<&Fault> = chosen.iter().filter(shown).copied().collect();
        chosen.iter().for_each(|(at, _, wrong, _)| pair.set(*at, wrong));
        let found = pair.findings();
        let new: BTreeSet<String> = named(&found).difference(&at_first).cloned().collect();
        let made: BTreeSet<String> = chosen.iter().map(|(.., rule)| (*rule).to_owned()).collect();
        score.add("links and a disk", &made, &new);

        let ours: Vec<&Finding> =
            found.iter().filter(|f| made.is_superset(&named(std::slice::from_ref(*f)))).collect();
        // Of a tree ethtool and tc change nothing: there the finding's own command does it, and its undo takes it back.
        let is_by_hand = |f: &Finding| {
            f.undo.is_some()
                && f.command.as_ref().is_some_and(|c| c.starts_with("ethtool") || c.starts_with("tc "))
        };
        let (by_hand, rest): (Vec<&Finding>, Vec<&Finding>) = ours.into_iter().partition(|f| is_by_hand(f));
        let to_set: Vec<&Finding> = rest.into_iter().filter(|f| f.change.is_some()).collect();
        assert_eq!(apply::apply(pair.root.path(), &to_set, None).unwrap().len(), to_set.len());
        by_hand.iter().for_each(|f| drop(run(&["sh", "-c", f.command.as_ref().unwrap()])));
        // What no setting of this machine cures stays, and nothing else.
        let left: BTreeSet<String> = named(&pair.findings()).difference(&at_first).cloned().collect();
        let not_here =
            chosen.iter().filter(|fault| !fault.0.is_cured_here()).map(|(.., rule)| (*rule).to_owned());
        assert_eq!(left, not_here.collect());
        for (at, good, ..) in chosen.iter().filter(|fault| fault.0.is_cured_here()) {
            // Where a file has a value of its own, what is advised need not be what it was.
            let is = pair.get(*at);
            assert!(matches!(at, At::File(_)) || is == *good, "{at:?}: {is}");
        }
        score.taken_back += apply::revert(pair.root.path(), &[]).unwrap().len();
        by_hand.iter().for_each(|f| drop(run(&["sh", "-c", f.undo.as_ref().unwrap()])));
        for (at, _, wrong, _) in &chosen {
            assert_eq!(pair.get(*at), *wrong, "{at:?}");
        }
        assert!(!pair.root.path().join("etc").exists() || walk_is_empty(&pair.root.path().join("etc")));
        can.iter().for_each(|(at, good, ..)| pair.set(*at, good));
    }
    score.judge();
}

/// Whether no file is left below.
fn walk_is_empty(dir: &std::path::Path) -> bool {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.into_iter().all(|entry| entry.path().is_dir() && walk_is_empty(&entry.path()))
}
