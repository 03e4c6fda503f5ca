//! Whole hosts, made of files, from facts to findings; collected, and read again from the archive. What is set and taken back,
//! and hosts made wrong at random, have a file each.
//! A file in `hosts/` tells what stands where on a machine of one kind, and all that the advisor is to find there.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test file")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use advisor::{Catalogue, Facts, Finding, Tree, advise, archive, assumed, host_facts};
use tempfile::TempDir;

/// Runs its arguments in a mount namespace of its own, after it has let go the mounts that others have on this machine: they would
/// go on there after their end. One whose directory is removed meanwhile is missed: once more then.
const ALONE: &str = "for _ in 1 2 3; do umount --all --lazy --internal-only --no-canonicalize --types fuse.ropewalk && break; done \
    && exec \"$0\" \"$@\"";

#[path = "hosts/boot.rs"]
mod boot;
#[path = "hosts/covered.rs"]
mod covered;
#[path = "hosts/links.rs"]
mod links;
#[path = "hosts/random.rs"]
mod random;
#[path = "hosts/taken_back.rs"]
mod taken_back;
#[path = "hosts/tuned.rs"]
mod tuned;

const HOSTS: [&str; 6] = ["nvme_server", "ppc64_lpar", "cloud_vm", "bonded_100g", "worn_server", "old_guest"];

/// Those on which most is as it should be.
const SOUND: [&str; 4] = ["nvme_server", "ppc64_lpar", "cloud_vm", "bonded_100g"];

fn text(host: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hosts/{host}.txt"))).unwrap()
}

/// The host's files below a directory of their own, and what is to be found.
fn host(name: &str) -> (TempDir, BTreeSet<String>) {
    let root = tempfile::tempdir().unwrap();
    let text = text(name);
    let mut parts = text.split("\n== ");
    let head = parts.next().unwrap();
    let finds = head.lines().filter_map(|l| l.strip_prefix("finds: ")).map(str::to_owned).collect();
    for part in parts {
        let (path, content) = part.split_once('\n').unwrap_or((part, ""));
        match path.split_once(" -> ") {
            // Where a link leads, its directory is, so that there can be files below it.
            Some((path, target)) => {
                let path = root.path().join(path);
                let below = path.parent().unwrap().join(target);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::create_dir_all(below).unwrap();
                std::os::unix::fs::symlink(target, path).unwrap();
            }
            None => {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{content}\n")).unwrap();
            }
        }
    }
    (root, finds)
}

fn findings(seen: Facts) -> Vec<Finding> {
    let catalogue = Catalogue::load().unwrap();
    let mut facts = assumed(&catalogue);
    facts.extend(seen);
    advise(&catalogue, &facts, &[])
}

fn named(findings: &[Finding]) -> BTreeSet<String> {
    let name =
        |f: &Finding| format!("{} {}", f.rule, f.device.as_deref().unwrap_or_default()).trim().to_owned();
    findings.iter().map(name).collect()
}

/// Numbers below what is asked for, from a seed that is printed.
fn seeded(usual: u64) -> impl FnMut(usize) -> usize {
    let mut random = std::env::var("ADVISOR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(usual);
    println!("ADVISOR_SEED={random}");
    move |n| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    }
}

/// What was made wrong, and what was named of it.
#[derive(Default)]
struct Score {
    named: usize,
    right: usize,
    wanted: usize,
    taken_back: usize,
}

impl Score {
    fn add(&mut self, of: &str, made: &BTreeSet<String>, found: &BTreeSet<String>) {
        if found != made {
            println!("{of}: made {made:?}, found {found:?}");
        }
        self.named += found.len();
        self.wanted += made.len();
        self.right += found.intersection(made).count();
    }

    /// Precision and recall are 0.95 at least.
    fn judge(&self) {
        let Score { named, right, wanted, taken_back } = *self;
        println!(
            "named {named}, right {right} of {wanted}: precision and recall; {taken_back} settings taken back"
        );
        assert!(taken_back > 0 && right * 100 >= 95 * named && right * 100 >= 95 * wanted);
    }
}

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default().trim().to_owned()
}

fn all_files(root: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => {
                    files.push((entry.path(), fs::read_to_string(entry.path()).unwrap().trim().to_owned()))
                }
                _ => {}
            }
        }
    }
    files.retain(|(path, _)| !path.starts_with(root.join("var/lib/ropewalk")));
    files.sort();
    files
}

#[test]
fn each_host_is_told_what_is_wrong_and_nothing_else() {
    for name in HOSTS {
        let (root, expected) = host(name);
        assert_eq!(named(&findings(host_facts(&Tree::below(root.path())))), expected, "{name}");
    }
}

#[test]
fn an_archive_tells_the_same_as_the_host() {
    for name in HOSTS {
        let (root, _) = host(name);
        let live = host_facts(&Tree::below(root.path()));
        let file = root.path().join("host.tar");
        fs::write(&file, archive::collect(root.path())).unwrap();
        assert_eq!(host_facts(&archive::open(&file).unwrap()), live, "{name}");
    }
}

#[test]
fn facts_of_a_server() {
    let (root, _) = host("bonded_100g");
    let facts = host_facts(&Tree::below(root.path()));
    assert_eq!((facts.int("cpu.online"), facts.int("memory.total")), (Some(16), Some(16_384_000 << 10)));
    assert_eq!(facts.below("net"), ["bond0", "ens1f0", "ens1f1", "veth0"]);
    assert_eq!((facts.int("net.ens1f0.speed"), facts.int("net.veth0.speed")), (Some(100_000), None));
    assert_eq!((facts.int("net.ens1f0.numa_node"), facts.bool("net.bond0.physical")), (None, Some(false)));
    assert_eq!(
        (facts.text("bond.bond0.mode"), facts.text("bond.bond0.hash")),
        (Some("802.3ad"), Some("layer2+3"))
    );
    assert_eq!(facts.int("slot.0000:81:00.ports_mbit"), Some(200_000));
    // Outputs of programs are read as dumps are.
    let ring = facts.get("net.ens1f0.ring_rx_max").unwrap();
    assert_eq!((ring.value.as_int(), ring.origin.to_string()), (Some(8192), "ethtool -g ens1f0:3".into()));
    assert_eq!((facts.int("net.ens1f0.channels"), facts.bool("net.ens1f0.pause_rx")), (Some(16), Some(true)));
    assert_eq!((facts.int("block.nvme0n1.spare"), facts.int("clock.offset_us")), (Some(98), Some(250_000)));
    // Who hears two far ends has none; an interface that is not there has none either.
    assert_eq!(
        (facts.text("net.ens1f0.far_name"), facts.int("net.ens1f1.far_frame")),
        (Some("leaf1"), Some(1514))
    );
    assert_eq!((facts.value("net.veth0.far_frame"), facts.value("net.gone.far_frame")), (None, None));
    let status = facts.get("net.ens1f1.bond_state").unwrap();
    assert_eq!(status.origin.to_string(), "/proc/net/bonding/bond0:27");
}

/// Names and values of a machine that means harm: what is shown moves no cursor, and what is copied into a shell runs nothing else.
#[test]
fn a_hostile_machine_reaches_neither_the_terminal_nor_the_shell() {
    let root = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let file = root.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    let device = "sys/class/net/x;touch harm";
    put(&format!("{device}/statistics/rx_missed_errors"), "5000\n");
    put(&format!("{device}/statistics/rx_packets"), "100000\n");
    put("sys/class/net/e\u{1b}[2J/statistics/rx_missed_errors", "5000\n");
    put("sys/class/net/e\u{1b}[2J/statistics/rx_packets", "100000\n");
    put("proc/mounts", "/dev/sda1 /a'$(touch\\040harm)\u{1b}]0;x\u{7} ext4 rw,discard 0 0\n");
    put("sys/devices/system/cpu/online", "0\n");
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "x;touch harm\n");
    put("proc/sys/kernel/hostname", "h\u{1b}[31m\n");
    let found = findings(host_facts(&Tree::below(root.path())));
    let named = named(&found);
    assert!(named.contains("nic-ring-overflow net.x;touch_harm") && named.len() >= 3, "{named:?}");
    let text = serde_json::to_string(&found).unwrap();
    assert!(!found.iter().flat_map(Finding::texts).any(|text| text.contains(char::is_control)), "{text}");
    assert!(!text.contains("\\u001b"), "{text}");
    for command in found.iter().flat_map(|f| [&f.command, &f.undo]).flatten() {
        let outside_of_quotes: String = command.replace("\\'", "").split('\'').step_by(2).collect();
        assert!(!outside_of_quotes.contains("touch"), "{command}");
    }
}

#[test]
fn a_host_that_shows_nothing_or_garbage_gets_no_advice() {
    let root = tempfile::tempdir().unwrap();
    assert!(host_facts(&Tree::below(root.path())).is_empty());
    assert_eq!(findings(Facts::new()), []);
    // Every file of every host, with something else in it.
    for name in HOSTS {
        for garbage in
            ["", "\0\u{1}:::\n", "-1", "99999999999999999999999", "[[[]", "Slave Interface:\nMII Status"]
        {
            let (root, _) = host(name);
            let mut dirs = vec![root.path().to_owned()];
            while let Some(dir) = dirs.pop() {
                for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                    match entry.file_type().unwrap() {
                        kind if kind.is_dir() => dirs.push(entry.path()),
                        kind if kind.is_file() => fs::write(entry.path(), garbage).unwrap(),
                        _ => {}
                    }
                }
            }
            findings(host_facts(&Tree::below(root.path())));
        }
    }
}

#[test]
fn this_host_can_be_read() {
    let facts = host_facts(&Tree::below("/"));
    assert!(facts.int("cpu.online").is_some());
    findings(facts);
}
