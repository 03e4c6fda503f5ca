//! The advisor on hosts of network namespaces with their own, real settings: made wrong at random, advised, set, taken
//! back. And what its command says and how it ends.

#![allow(clippy::unwrap_used)] // tests

mod common;
#[path = "advisor/killed.rs"]
mod killed;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use common::ROPEWALK;
use serde_json::Value;

/// A network namespace, with the machine's /proc below a root of its own: only settings of the network can be changed
/// in it, and files of settings go to the root.
struct Host {
    holder: Child,
    root: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let mut holder = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It answers once it is there.
        use std::io::{Read, Write};
        holder.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/proc", root.path().join("proc")).unwrap();
        Host { holder, root }
    }
    fn run(&self, words: &[&str]) -> Output {
        let pid = self.holder.id().to_string();
        Command::new("nsenter").args(["-t", &pid, "--net", "--"]).args(words).output().unwrap()
    }
    fn advise(&self, words: &[&str]) -> Output {
        let root = self.root.path().to_str().unwrap();
        self.run(&[&[ROPEWALK, "advise"], words, &["--root", root]].concat())
    }
    fn get(&self, sysctl: &str) -> String {
        let output = self.run(&["cat", &format!("/proc/sys/net/{sysctl}")]);
        assert!(output.status.success(), "{sysctl}");
        String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }
    fn set(&self, sysctl: &str, value: &str) {
        let output = self.run(&["sh", "-c", &format!("echo {value} > /proc/sys/net/{sysctl}")]);
        assert!(output.status.success() && self.get(sysctl) == value, "{sysctl}: {output:?}");
    }
    /// Runs a small plan of the lab over TCP on the settings in force, into a directory of this name.
    fn measured(&self, out: &str) -> String {
        let at = |name: &str| self.root.path().join(name).to_str().unwrap().to_owned();
        fs::write(at("plan.toml"), STREAMS).unwrap();
        let (plan, out) = (at("plan.toml"), at(out));
        let words = [ROPEWALK, "lab", "run", &plan, "--pair", "127.0.0.1=127.0.0.1", "--out", &out];
        let run = self.run(&words);
        assert!(run.status.success(), "{run:?}");
        out
    }
    /// Two such runs held against each other: both figures of each point. On a link without delay the second need not be larger.
    fn compared(&self, before: &str, after: &str) -> Value {
        let compared = self.run(&[ROPEWALK, "lab", "compare", before, after, "--json"]);
        let compared: Value =
            serde_json::from_slice(&compared.stdout).unwrap_or_else(|e| panic!("{e}: {compared:?}"));
        let points = compared["points"].as_array().unwrap();
        let is_there = |point: &Value, run: &str| point[run].as_f64().is_some_and(|figure| figure > 0.0);
        assert!(!points.is_empty() && points.iter().all(|p| is_there(p, "before") && is_there(p, "after")));
        compared
    }
    fn found(&self) -> BTreeSet<String> {
        let output = self.advise(&["--json"]);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let rules = report["findings"].as_array().unwrap().iter();
        rules
            .map(|f| f["rule"].as_str().unwrap().to_owned())
            .filter(|rule| rule.starts_with("tcp-"))
            .collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Streams over TCP between both ends of one machine, for so long that a busy one gets something across.
const STREAMS: &str = "name = 'streams'\ntitle = 'streams'\nstep = 'pairs'\nsteps = [1]\nseconds = 2\nrepeats = 2\n[[series]]\n\
    name = 'stream'\nengine = 'netperf'\nfigure = 'bytes'\nset = { test = 'write', size = '64k', connections = 1 }\n";

/// What can be wrong: the rule that must name it, the setting, a wrong value.
const WRONG: [(&str, &str, &str); 6] = [
    ("tcp-no-window-scaling", "ipv4/tcp_window_scaling", "0"),
    ("tcp-no-sack", "ipv4/tcp_sack", "0"),
    ("tcp-no-timestamps", "ipv4/tcp_timestamps", "0"),
    ("tcp-no-receive-tuning", "ipv4/tcp_moderate_rcvbuf", "0"),
    ("tcp-few-ports", "ipv4/ip_local_port_range", "32768 33000"),
    ("tcp-backlog-short", "core/somaxconn", "4"),
];

#[test]
fn what_was_made_wrong_is_named_set_and_taken_back() {
    let host = Host::new();
    assert!(host.run(&["ip", "link", "set", "dev", "lo", "up"]).status.success());
    let at_first = host.found();
    let good: Vec<String> = WRONG.iter().map(|(_, sysctl, _)| host.get(sysctl)).collect();
    let seed = std::env::var("ADVISOR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_124u64);
    println!("ADVISOR_SEED={seed}");
    let mut random = seed;
    let (mut named, mut right, mut wanted) = (0, 0, 0);
    for round in 0..8 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // One to five of the six.
        let chosen: Vec<_> = WRONG
            .iter()
            .enumerate()
            .filter(|(i, _)| random >> (40 + i) & 1 == 1)
            .take(5)
            .map(|(_, w)| w)
            .collect();
        let chosen = if chosen.is_empty() { vec![&WRONG[1]] } else { chosen };
        chosen.iter().for_each(|(_, sysctl, value)| host.set(sysctl, value));

        let found: BTreeSet<String> = host.found().difference(&at_first).cloned().collect();
        let made: BTreeSet<String> = chosen.iter().map(|(rule, ..)| (*rule).to_owned()).collect();
        named += found.len();
        wanted += made.len();
        right += found.intersection(&made).count();

        // A run of the lab takes seconds.
        let wrong = (round % 3 == 0).then(|| host.measured(&format!("wrong{round}")));
        let rules: Vec<&str> = chosen.iter().map(|(rule, ..)| *rule).collect();
        // Without --yes nothing changes.
        assert!(host.advise(&[&["apply"], &rules[..]].concat()).status.success());
        chosen.iter().for_each(|(_, sysctl, value)| assert_eq!(host.get(sysctl), *value));
        let applied = host.advise(&[&["apply", "--yes"], &rules[..]].concat());
        assert!(applied.status.success(), "{applied:?}");
        assert_eq!(host.found(), at_first);
        let file = host.root.path().join("etc/sysctl.d/90-ropewalk-advise.conf");
        assert_eq!(fs::read_to_string(&file).unwrap().matches(" = ").count(), chosen.len());

        if let Some(wrong) = wrong {
            println!("{rules:?}: {}", host.compared(&wrong, &host.measured(&format!("right{round}"))));
        }

        let reverted = host.advise(&["revert"]);
        assert!(reverted.status.success(), "{reverted:?}");
        chosen.iter().for_each(|(_, sysctl, value)| assert_eq!(host.get(sysctl), *value));
        assert!(!Path::new(&file).exists());
        WRONG.iter().zip(&good).for_each(|((_, sysctl, _), value)| host.set(sysctl, value));
    }
    println!("named {named}, right {right} of {wanted}: precision and recall");
    assert_eq!((named, right), (wanted, wanted));
}

/// A change that may cut the connection goes away by itself, also when whoever made it is gone; confirmed it stays.
#[test]
fn what_may_cut_the_connection_is_taken_back_unless_it_is_confirmed() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for (name, text) in [
        (
            "proc/net/bonding/bond0",
            "Bonding Mode: IEEE 802.3ad Dynamic link aggregation\nSlave Interface: a\n\nSlave Interface: b\n",
        ),
        ("sys/class/net/bond0/bonding/mode", "802.3ad 4\n"),
        ("sys/class/net/bond0/bonding/xmit_hash_policy", "layer2 0\n"),
    ] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), text).unwrap();
    }
    let policy = || fs::read_to_string(at("sys/class/net/bond0/bonding/xmit_hash_policy")).unwrap();
    let udev = at("etc/udev/rules.d/90-ropewalk-advise.rules");
    let dir = root.path().to_str().unwrap();
    let apply = |seconds: &str| {
        let words = ["advise", "apply", "bond-hash-without-ports", "--yes", "--confirm-within", seconds];
        ends(&[&words[..], &["--root", dir]].concat())
    };
    common::until("there is time enough to confirm it", || {
        let (status, said, error) = apply("2");
        // A machine that stands still so long: nothing was changed.
        let late = error.contains("the time to confirm it was over");
        assert!(late || status == Some(0) && said.contains("advise confirm"), "{said}{error}");
        !late
    });
    assert!(!udev.exists());
    // First the setting, then what is kept of it.
    common::until("the guard takes it back", || {
        policy().starts_with("layer2")
            && !policy().contains("3+4")
            && ends(&["advise", "history", "--root", dir]).1.contains("undone")
    });
    // Without being told it knows what may cut.
    let (_, said, error) = ends(&["advise", "apply", "bond-hash-without-ports", "--yes", "--root", dir]);
    assert!(said.contains("Taken back in 120 s"), "{said}{error}");
    assert_eq!((policy().as_str(), udev.exists()), ("layer3+4", false));
    let (status, said, error) = ends(&["advise", "confirm", "--root", dir]);
    assert!(status == Some(0) && said.contains("kept"), "{said}{error}");
    assert!(fs::read_to_string(&udev).unwrap().contains("layer3+4"));
    let (status, _, error) = ends(&["advise", "confirm", "--root", dir]);
    assert!(status == Some(1) && error.contains("nothing waits"), "{error}");
    assert_eq!(ends(&["advise", "revert", "--root", dir]).0, Some(0));
    assert!(policy().starts_with("layer2") && !udev.exists());
}

/// A setting is tried with a plan before and after it; in a tree it changes nothing but a file, so whatever is decided is of
/// noise, and must be what the journal and the file say.
#[test]
fn a_rule_is_measured_and_kept_or_taken_back() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for (name, text) in [
        ("sys/block/nvme0n1/queue/scheduler", "none [kyber]\n"),
        (
            "plan.toml",
            "name = 'short'\ntitle = 'a small plan'\nstep = 'devices'\nsteps = [1]\nseconds = 0.5\nrepeats = 2\n[[series]]\n\
             name = 'r'\nengine = 'fio'\nfigure = 'operations'\n\
             set = { rw = 'randread', bs = '4k', ioengine = 'psync', direct = false }\n",
        ),
        ("device", &"x".repeat(4 << 20)),
    ] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), text).unwrap();
    }
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    let (dir, plan, device, out) = (path(""), path("plan.toml"), path("device"), path("out"));
    let words = ["advise", "measure", "nvme-scheduler", "--root", &dir, "--plan", &plan, "--device", &device];
    let (status, said, error) = ends(&[&words[..], &["--out", &out]].concat());
    assert_eq!(status, Some(0), "{said}{error}");
    let (_, history, _) = ends(&["advise", "history", "--root", &dir]);
    let scheduler = fs::read_to_string(at("sys/block/nvme0n1/queue/scheduler")).unwrap();
    let kept = said.contains("nothing slower: kept");
    assert_eq!(
        (kept, !kept),
        (history.contains("in force"), history.contains("reverted")),
        "{said}{history}"
    );
    assert_eq!(scheduler, if kept { "none" } else { "kyber" }, "{said}");
    assert!(said.contains("BEFORE") && at("out/before").is_dir() && at("out/after").is_dir(), "{said}");
    // A rule that makes no setting here is not measured.
    let (status, _, error) = ends(&["advise", "measure", "tcp-no-sack", "--root", &dir, "--plan", &plan]);
    assert!(status == Some(1) && error.contains("makes no setting here"), "{error}");
}

/// A plan over TCP, in a namespace, with a setting of its kernel: what was decided is what the kernel has.
#[test]
fn a_rule_is_measured_by_a_plan_over_tcp() {
    let host = Host::new();
    assert!(host.run(&["ip", "link", "set", "dev", "lo", "up"]).status.success());
    host.set("ipv4/tcp_window_scaling", "0");
    let at = |name: &str| host.root.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("plan.toml"), STREAMS).unwrap();
    let (plan, out) = (at("plan.toml"), at("out"));
    let words =
        ["measure", "tcp-no-window-scaling", "--plan", &plan, "--pair", "127.0.0.1=127.0.0.1", "--out", &out];
    let output = host.advise(&words);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let kept = said.contains("nothing slower: kept");
    assert!(said.contains("plan.toml: before") && said.contains("plan.toml: after"), "{said}");
    assert_eq!(host.get("ipv4/tcp_window_scaling"), if kept { "1" } else { "0" }, "{said}");
    assert_eq!(Path::new(&at("etc/sysctl.d/90-ropewalk-advise.conf")).exists(), kept, "{said}");
    assert!(host.advise(&["revert"]).status.success());
    assert_eq!(host.get("ipv4/tcp_window_scaling"), "0");
}

/// What a command ends with. A guard that takes a change back has the journal meanwhile, and its disk may be busy.
fn ends(words: &[&str]) -> (Option<i32>, String, String) {
    let mut output = Command::new(ROPEWALK).args(words).output().unwrap();
    common::until("nobody else has the journal", || {
        let has_it = killed::is_kept_waiting(&output);
        if has_it {
            output = Command::new(ROPEWALK).args(words).output().unwrap();
        }
        !has_it
    });
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_report_ends_by_its_worst_finding_and_fits_a_terminal() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_str().unwrap();
    let put = |name: &str, text: &str| {
        let name = root.path().join(name);
        fs::create_dir_all(name.parent().unwrap()).unwrap();
        fs::write(name, text).unwrap();
    };
    let (status, _, said) = ends(&["advise", "--root", path]);
    assert!(status == Some(3) && said.contains("nothing of a Linux host"), "{said}");
    put("proc/sys/vm/swappiness", "60\n");
    let (status, text, _) = ends(&["advise", "--root", path]);
    assert!(status == Some(0) && text.contains("nothing to change"), "{text}");
    for (file, value, expected) in [
        ("proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n", 0),
        ("proc/sys/vm/zone_reclaim_mode", "1\n", 1),
        ("proc/sys/net/ipv4/tcp_window_scaling", "0\n", 2),
    ] {
        put(file, value);
        assert_eq!(ends(&["advise", "--root", path]).0, Some(expected), "{file}");
    }
    for file in ["tcp_sack", "tcp_timestamps", "tcp_moderate_rcvbuf"] {
        put(&format!("proc/sys/net/ipv4/{file}"), "0\n");
    }
    let (_, text, _) = ends(&["advise", "--root", path]);
    assert!(text.contains("5. ") && !text.contains("6. ") && text.contains("1 more: --all"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    assert!(ends(&["advise", "--all", "--root", path]).1.contains("6. "));

    // A copy counts no further, and a span has its bounds.
    put("proc/uptime", "50.12 90.00\n");
    let (status, _, said) = ends(&["advise", "--root", path, "--over", "1s"]);
    assert!(status == Some(3) && said.contains("no time passes"), "{said}");
    for span in ["900ms", "2h", "soon"] {
        let (status, _, said) = ends(&["advise", "--over", span]);
        assert!(status == Some(2) && said.contains("--over <DURATION>"), "{said}");
    }

    // The page ends as the text does.
    let page = root.path().join("report.html");
    let (status, text, _) = ends(&["advise", "--root", path, "--html", page.to_str().unwrap()]);
    let html = fs::read_to_string(&page).unwrap();
    assert!(status == Some(2) && text.contains("report.html") && html.contains("tcp-no-sack"), "{text}");
    fs::remove_file(page).unwrap();

    let archive = root.path().join("host.tar");
    let packed = Command::new(ROPEWALK).args(["advise", "collect", "--root", path]).output().unwrap();
    fs::write(&archive, packed.stdout).unwrap();
    let archive = archive.to_str().unwrap();
    assert_eq!(ends(&["advise", "--all", archive]).1, ends(&["advise", "--all", "--root", path]).1);
    put("proc/sys/vm/swappiness", "10\n");
    let (status, text, _) = ends(&["advise", "diff", archive, path]);
    assert!(
        status == Some(0) && text.contains("sysctl.vm.swappiness") && text.lines().count() == 2,
        "{text}"
    );

    let (status, text, _) = ends(&["advise", "explain", "tcp-no-sack"]);
    assert!(
        status == Some(0) && text.contains("RFC 2018") && text.contains("sysctl.net.ipv4.tcp_sack"),
        "{text}"
    );
    assert!(ends(&["advise", "explain", "tcp_sack"]).1.contains("tcp-no-sack"));
    assert_eq!(ends(&["advise", "explain", "nothing-such"]).0, Some(1));
    assert!(ends(&["advise", "rules"]).1.lines().count() > 100);
    let (status, _, said) = ends(&["advise", "--root", path, "--assume", "nodez=3"]);
    assert!(status == Some(3) && said.contains("nodes"), "{said}");
    for command in ["apply", "revert", "confirm", "history"] {
        let (status, _, said) = ends(&["advise", command, "--root", "/no/such"]);
        assert!(status == Some(1) && said.contains("no directory"), "{command}: {said}");
    }
    let (status, _, said) = ends(&["advise", "apply", "--root", path, "bond-alone-x"]);
    assert!(status == Some(1) && said.contains("no rule bond-alone-x"), "{said}");
}
