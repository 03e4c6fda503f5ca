//! A host in a network namespace of its own with a real link to another, and a real disk (a loop device under the name of a
//! SCSI disk): its settings are the kernel's. Made wrong at random in one to five ways, advised, set, measured, taken back.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use advisor::{Catalogue, Finding, Tree, advise, apply, assumed, host_facts, probe};

use super::{Score, named, seeded};

const ROUNDS: usize = 10;
const FAR: &str = "10.97.0.2";

/// What can be wrong: the file, what stands in it when it is right, and when it is wrong, and what must be found.
const WRONG: [(&str, &str, &str, &str); 12] = [
    ("proc/sys/net/ipv4/tcp_window_scaling", "1", "0", "tcp-no-window-scaling"),
    ("proc/sys/net/ipv4/tcp_sack", "1", "0", "tcp-no-sack"),
    ("proc/sys/net/ipv4/tcp_timestamps", "1", "0", "tcp-no-timestamps"),
    ("proc/sys/net/ipv4/tcp_moderate_rcvbuf", "1", "0", "tcp-no-receive-tuning"),
    ("proc/sys/net/ipv4/tcp_slow_start_after_idle", "0", "1", "tcp-slow-start-after-idle"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768 60999", "32768 33000", "tcp-few-ports"),
    ("proc/sys/net/core/somaxconn", "4096", "4", "tcp-backlog-short"),
    ("sys/block/sdz/queue/scheduler", "mq-deadline", "none", "disk-without-scheduler block.sdz"),
    ("sys/block/sdz/queue/read_ahead_kb", "4096", "32", "block-readahead-small block.sdz"),
    ("sys/block/sdz/queue/nomerges", "0", "2", "block-no-merges block.sdz"),
    ("sys/block/sdz/queue/rq_affinity", "1", "0", "block-affinity block.sdz"),
    // The far end takes less than this end sends: no setting of this machine shows it.
    (FAR_MTU, "9000", "1400", "net-path-mtu-small probe.10/97/0/2"),
];
const FAR_MTU: &str = "the far end's MTU";

fn is_root() -> bool {
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
        .args(["--net", "--mount", "--"])
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
        fs::create_dir_all(at("sys/class")).unwrap();
        // The view that sysfs gives of links is of the namespace in which it was mounted.
        run(&["mount", "-t", "sysfs", "sysfs", kernel.to_str().unwrap()]);
        let disk = run(&["losetup", "--find", "--show", image.to_str().unwrap()]);
        let name = disk.rsplit('/').next().unwrap();
        for (link, target) in [
            ("proc", PathBuf::from("/proc")),
            ("sys/class/net", kernel.join("class/net")),
            ("sys/block/sdz", kernel.join("block").join(name)),
        ] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        let pid = far.id().to_string();
        run(&["ip", "link", "set", "lo", "up"]);
        run(&[
            "ip", "link", "add", "near", "mtu", "9000", "type", "veth", "peer", "name", "far", "mtu", "9000",
        ]);
        run(&["ip", "link", "set", "far", "netns", &pid]);
        run(&["ip", "addr", "add", "10.97.0.1/24", "dev", "near"]);
        run(&["ip", "link", "set", "near", "up"]);
        let pair = Pair { root, far, disk };
        pair.at_the_far_end(&["ip", "addr", "add", "10.97.0.2/24", "dev", "far"]);
        pair.at_the_far_end(&["ip", "link", "set", "far", "up"]);
        let rotational = pair.root.path().join("sys/block/sdz/queue/rotational");
        fs::write(rotational, "1").unwrap();
        pair
    }
    fn at_the_far_end(&self, words: &[&str]) {
        let pid = self.far.id().to_string();
        run(&[&["nsenter", "-t", &pid, "--net", "--"], words].concat());
    }
    fn set(&self, file: &str, value: &str) {
        if file == FAR_MTU {
            self.at_the_far_end(&["ip", "link", "set", "far", "mtu", value]);
            return;
        }
        fs::write(self.root.path().join(file), value).unwrap();
        assert_eq!(self.get(file), value, "{file}");
    }
    fn get(&self, file: &str) -> String {
        let text = fs::read_to_string(self.root.path().join(file)).unwrap();
        let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inner, _)| inner);
        chosen.unwrap_or(&text).split_whitespace().collect::<Vec<_>>().join(" ")
    }
    /// What is found of this end, its link and the disk: the machine's own memory and load are not ours to judge.
    fn findings(&self) -> Vec<Finding> {
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
    WRONG.iter().for_each(|(file, good, ..)| pair.set(file, good));
    let at_first = named(&pair.findings());
    let (mut below, mut score) = (seeded(20_261_126), Score::default());
    for _ in 0..ROUNDS {
        let chosen: BTreeSet<usize> = (0..=below(5)).map(|_| below(WRONG.len())).collect();
        let chosen: Vec<_> = chosen.into_iter().map(|i| WRONG[i]).collect();
        chosen.iter().for_each(|(file, _, wrong, _)| pair.set(file, wrong));
        let found = pair.findings();
        let new: BTreeSet<String> = named(&found).difference(&at_first).cloned().collect();
        let made: BTreeSet<String> = chosen.iter().map(|(.., rule)| (*rule).to_owned()).collect();
        score.add("a link and a disk", &made, &new);

        let ours = |f: &&Finding| made.is_superset(&named(std::slice::from_ref(*f)));
        let to_set: Vec<&Finding> = found.iter().filter(ours).filter(|f| f.change.is_some()).collect();
        assert_eq!(apply::apply(pair.root.path(), &to_set, None).unwrap().len(), to_set.len());
        // What no setting of this machine cures stays, and nothing else.
        let left: BTreeSet<String> = named(&pair.findings()).difference(&at_first).cloned().collect();
        let at_the_far_end: BTreeSet<String> = chosen
            .iter()
            .filter(|(file, ..)| *file == FAR_MTU)
            .map(|(.., rule)| (*rule).to_owned())
            .collect();
        assert_eq!(left, at_the_far_end);
        score.taken_back += apply::revert(pair.root.path(), &[]).unwrap().len();
        for (file, _, wrong, _) in chosen.iter().filter(|(file, ..)| *file != FAR_MTU) {
            assert_eq!(pair.get(file), *wrong, "{file}");
        }
        assert!(!pair.root.path().join("etc/sysctl.d/90-ropewalk-advise.conf").exists());
        WRONG.iter().for_each(|(file, good, ..)| pair.set(file, good));
    }
    score.judge();
}
