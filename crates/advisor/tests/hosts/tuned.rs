//! Where tuned runs: what lasts does so by a profile of our own over the one in effect, and that one comes back. In a tree, by its
//! files; and with tuned itself, where it is installed, in namespaces of its own.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use advisor::{Catalogue, Change, Finding, Tree, advise, apply, assumed, host_facts};

use super::{findings, links::is_root, named, read};

const OURS: &str = "etc/tuned/ropewalk-advise/tuned.conf";
const ACTIVE: &str = "etc/tuned/active_profile";

fn host(mode: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in [
        ("proc/1/comm", "systemd\n"),
        ("proc/77/comm", "tuned\n"),
        ("proc/sys/vm/zone_reclaim_mode", "1\n"),
        ("proc/sys/net/ipv4/tcp_sack", "0\n"),
        ("sys/block/nvme0n1/queue/scheduler", "none [kyber]\n"),
        ("etc/tuned/active_profile", "mine\n"),
        ("etc/tuned/profile_mode", mode),
        ("etc/tuned/mine/tuned.conf", "[main]\nsummary=x\n[sysctl]\nnet.ipv4.tcp_sack=0\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn wrong(root: &Path) -> Vec<Finding> {
    let found = findings(host_facts(&Tree::below(root)));
    let rules = ["memory-zone-reclaim", "nvme-scheduler", "tcp-no-sack"];
    found.into_iter().filter(|f| rules.contains(&f.rule.as_str())).collect()
}

#[test]
fn a_profile_of_ours_includes_the_one_in_effect_and_that_comes_back() {
    for mode in ["manual\n", "auto\n"] {
        let root = host(mode);
        let root = root.path();
        let found = wrong(root);
        assert_eq!(found.len(), 3);
        let sack = found.iter().find(|f| f.rule == "tcp-no-sack").unwrap();
        assert!(sack.set_by.as_ref().is_some_and(|by| by.contains("mine")), "{sack:?}");
        assert!(
            sack.permanent.as_ref().unwrap().contains("ropewalk-advise/tuned.conf: [sysctl]"),
            "{sack:?}"
        );
        apply::apply(root, &found.iter().collect::<Vec<_>>(), None).unwrap();
        let profile = read(root, OURS);
        for line in [
            "include=mine",
            "[sysctl]",
            "net.ipv4.tcp_sack=1",
            "vm.zone_reclaim_mode=0",
            "type=sysfs",
            "/sys/block/nvme0n1/queue/scheduler=none",
        ] {
            assert!(profile.lines().any(|l| l == line), "{line} in {profile}");
        }
        assert_eq!(
            profile.matches("[sysctl]").count(),
            1,
            "older releases refuse a section that comes twice"
        );
        assert_eq!(
            (read(root, ACTIVE).as_str(), read(root, "etc/tuned/profile_mode").as_str()),
            ("ropewalk-advise", "manual")
        );
        assert!(!root.join("etc/sysctl.d/90-ropewalk-advise.conf").exists());
        // A disk that appears later is udev's.
        assert!(read(root, "etc/udev/rules.d/90-ropewalk-advise.rules").contains("nvme0n1"));
        // What our own profile sets is not another program's.
        fs::write(root.join("proc/sys/net/ipv4/tcp_sack"), "0\n").unwrap();
        let again = wrong(root);
        assert_eq!((again.len(), again[0].set_by.clone()), (1, None));
        fs::write(root.join("proc/sys/net/ipv4/tcp_sack"), "1\n").unwrap();

        apply::revert(root, &["tcp-no-sack".to_owned()]).unwrap();
        assert!(!read(root, OURS).contains("tcp_sack") && read(root, ACTIVE) == "ropewalk-advise");
        apply::revert(root, &[]).unwrap();
        assert_eq!(
            (read(root, ACTIVE).as_str(), read(root, "etc/tuned/profile_mode").as_str()),
            ("mine", mode.trim())
        );
        assert!(!root.join("etc/tuned/ropewalk-advise").exists());
        assert_eq!((read(root, "proc/sys/net/ipv4/tcp_sack"), wrong(root).len()), ("0".to_owned(), 3));
    }
}

#[test]
fn a_profile_that_was_chosen_meanwhile_stays_and_a_daemon_that_is_gone_keeps_nothing() {
    let root = host("manual\n");
    let root = root.path();
    apply::apply(root, &wrong(root).iter().collect::<Vec<_>>(), None).unwrap();
    fs::write(root.join(ACTIVE), "other\n").unwrap();
    apply::revert(root, &["tcp-no-sack".to_owned()]).unwrap();
    // What is still ours lasts over the profile that is in effect now.
    assert!(read(root, OURS).contains("include=other") && read(root, ACTIVE) == "ropewalk-advise");
    fs::write(root.join(ACTIVE), "other\n").unwrap();
    apply::revert(root, &[]).unwrap();
    assert_eq!((read(root, ACTIVE).as_str(), root.join(OURS).exists()), ("other", false));

    // tuned was stopped after it: what lasts does so by other means, and the profile goes.
    apply::apply(root, &wrong(root).iter().collect::<Vec<_>>(), None).unwrap();
    assert_eq!(read(root, ACTIVE), "ropewalk-advise");
    fs::remove_file(root.join("proc/77/comm")).unwrap();
    apply::revert(root, &["nvme-scheduler".to_owned()]).unwrap();
    assert_eq!((read(root, ACTIVE).as_str(), root.join(OURS).exists()), ("other", false));
    assert!(read(root, "etc/sysctl.d/90-ropewalk-advise.conf").contains("net.ipv4.tcp_sack = 1"));
    // What could be more than a name is no profile.
    fs::write(root.join("proc/77/comm"), "tuned\n").unwrap();
    fs::write(root.join(ACTIVE), "a;b $(x)\n").unwrap();
    apply::revert(root, &[]).unwrap();
    assert_eq!((read(root, ACTIVE).as_str(), root.join(OURS).exists()), ("a;b $(x)", false));
}

/// What others have done to our profile, or to the one it is over.
#[test]
fn a_line_taken_out_of_ours_and_a_changed_profile_below_it() {
    for (taken_out, is_then) in [(&["include="][..], "mine"), (&["include=", "summary="], "")] {
        let root = host("manual\n");
        let root = root.path();
        apply::apply(root, &wrong(root).iter().collect::<Vec<_>>(), None).unwrap();
        let ours = read(root, OURS);
        let left = ours.lines().filter(|line| !taken_out.iter().any(|out| line.starts_with(out)));
        fs::write(root.join(OURS), left.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        // The rest is still ours, and lasts by our profile.
        apply::revert(root, &["nvme-scheduler".to_owned()]).unwrap();
        assert_eq!(
            (read(root, ACTIVE).as_str(), read(root, OURS).contains("tcp_sack=1")),
            ("ropewalk-advise", true)
        );
        assert_eq!(read(root, OURS).contains("include=mine"), is_then == "mine");
        apply::revert(root, &[]).unwrap();
        // Where nobody knows which it was, tuned chooses.
        let mode = if is_then.is_empty() { "auto" } else { "manual" };
        assert_eq!(
            (read(root, ACTIVE).as_str(), read(root, "etc/tuned/profile_mode").as_str()),
            (is_then, mode)
        );
        assert!(!root.join("etc/tuned/ropewalk-advise").exists());
    }
}

/// In newer releases (2.24 at the latest) profiles stand in a directory of their own.
#[test]
fn our_profile_stands_where_this_release_looks_for_it() {
    let root = host("manual\n");
    let root = root.path();
    fs::create_dir_all(root.join("usr/lib/tuned/profiles/balanced")).unwrap();
    apply::apply(root, &wrong(root).iter().collect::<Vec<_>>(), None).unwrap();
    let ours = "etc/tuned/profiles/ropewalk-advise";
    assert!(read(root, &format!("{ours}/tuned.conf")).contains("include=mine") && !root.join(OURS).exists());
    apply::revert(root, &[]).unwrap();
    assert_eq!((read(root, ACTIVE).as_str(), root.join(ours).exists()), ("mine", false));
}

/// In namespaces of its own, which only root may make: the other test is run there.
#[test]
fn tuned_itself_takes_our_profile_and_the_former_one_back() {
    let missing = ["/usr/sbin/tuned", "/usr/sbin/tuned-adm", "/usr/bin/dbus-daemon"]
        .into_iter()
        .find(|p| !Path::new(p).exists());
    if let Some(missing) = missing {
        eprintln!("skipped: {missing} is not installed");
        return;
    }
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let output = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
            "sh",
            "-c",
            super::ALONE,
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "tuned::in_namespaces_of_its_own", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("tuned took it back"), "{said}");
}

fn run(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn get(sysctl: &str) -> String {
    fs::read_to_string(format!("/proc/sys/net/{sysctl}")).unwrap().trim().to_owned()
}

fn tuned(bus: &str) -> Child {
    let child = Command::new("/usr/sbin/tuned")
        .args(["-P", "-l", "/run/tuned.log"])
        .env("DBUS_SYSTEM_BUS_ADDRESS", bus)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("tuned applies its profile", || get("core/somaxconn") == "2000");
    until("tuned answers", || {
        Command::new("tuned-adm").arg("active").output().is_ok_and(|o| o.status.success())
    });
    child
}

fn stop(mut child: Child) {
    run(&["kill", &child.id().to_string()]);
    child.wait().unwrap();
}

/// What ethtool and tc set, on a link of the kernel.
fn offloads(like: &Finding) {
    if !Path::new("/usr/sbin/ethtool").exists() {
        println!("skipped: ethtool is not installed");
        return;
    }
    run(&["ip", "link", "add", "near", "type", "veth", "peer", "name", "far"]);
    run(&["ethtool", "-K", "near", "gro", "off", "tso", "off", "rx", "off"]);
    let shown = || {
        let said = Command::new("ethtool").args(["-k", "near"]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let of = |name| {
            said.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim_start_matches(": ").to_owned()
        };
        (of("generic-receive-offload"), of("tcp-segmentation-offload"), of("rx-checksumming"))
    };
    let three = |value: &str| (value.to_owned(), value.to_owned(), value.to_owned());
    let of = |knob: &str, value: &str| Finding {
        change: Some(Change { fact: format!("net.near.{knob}").as_str().into(), value: value.to_owned() }),
        ..like.clone()
    };
    let (root, both) = (Path::new("/"), [of("gro", "on"), of("tso", "on"), of("rx_checksum", "on")]);
    let both: Vec<&Finding> = both.iter().collect();
    apply::apply(root, &both, None).unwrap();
    assert_eq!(shown(), three("on"));
    assert!(read(root, "etc/udev/rules.d/90-ropewalk-advise.rules").contains("ethtool -K near gro on"));
    apply::revert(root, &[]).unwrap();
    assert_eq!(shown(), three("off"));
    // What the link cannot do takes what it could back.
    let error = apply::apply(root, &[both[0], &of("ring_rx", "64")], None).unwrap_err();
    assert!(error.to_string().contains("ring_rx"), "{error}");
    assert_eq!(shown(), three("off"));
    assert!(!Path::new("/etc/udev/rules.d/90-ropewalk-advise.rules").exists());
    // What bounds its sending goes, and comes back as it was; with others below it nothing is touched.
    let shaped = || {
        let said = Command::new("tc").args(["qdisc", "show", "dev", "near"]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let words: Vec<&str> = said.split_whitespace().collect();
        // Without its handle, which is anew.
        words.get(1).into_iter().chain(words.iter().skip(6)).copied().collect::<Vec<_>>().join(" ")
    };
    let shaper = "tc qdisc add dev near root tbf rate 1Gbit burst 4Mb lat 50ms";
    run(&shaper.split(' ').collect::<Vec<_>>());
    let before = shaped();
    apply::apply(root, &[&of("shaper", "none")], None).unwrap();
    assert_ne!(shaped(), before);
    apply::revert(root, &[]).unwrap();
    assert_eq!(shaped(), before);
    run(&["tc", "qdisc", "del", "dev", "near", "root"]);
    run(&shaper.replace("root", "root handle 1:").split(' ').collect::<Vec<_>>());
    run(&["tc", "qdisc", "add", "dev", "near", "parent", "1:1", "pfifo", "limit", "100"]);
    let error = apply::apply(root, &[&of("shaper", "none")], None).unwrap_err();
    assert!(error.to_string().contains("below it"), "{error}");
    assert!(shaped().starts_with("tbf"));
}

#[test]
#[ignore = "changes /etc and settings: the other test runs it in namespaces of its own"]
fn in_namespaces_of_its_own() {
    run(&["mount", "--make-rprivate", "/"]);
    let copy = tempfile::tempdir().unwrap();
    let etc = copy.path().join("etc").to_str().unwrap().to_owned();
    run(&["cp", "-a", "/etc", &etc]);
    run(&["mount", "--bind", &etc, "/etc"]);
    // tuned applies these anew: what this machine has there is none of ours.
    fs::remove_dir_all("/etc/sysctl.d").unwrap();
    let _ = fs::remove_file("/etc/sysctl.conf");
    ["/run", "/var/lib"].iter().for_each(|dir| run(&["mount", "-t", "tmpfs", "tmpfs", dir]));
    ["/run/tuned", "/etc/tuned/base", "/var/lib/ropewalk"]
        .iter()
        .for_each(|dir| fs::create_dir_all(dir).unwrap());
    fs::write(
        "/etc/tuned/base/tuned.conf",
        "[main]\nsummary=base\n[sysctl]\nnet.ipv4.tcp_sack=0\nnet.core.somaxconn=2000\n",
    )
    .unwrap();
    fs::write("/etc/tuned/active_profile", "base\n").unwrap();
    fs::write("/etc/tuned/profile_mode", "manual\n").unwrap();
    fs::write("/proc/sys/net/ipv4/tcp_window_scaling", "0").unwrap();
    let bus = "unix:path=/run/bus".to_owned();
    let mut daemon = Command::new("dbus-daemon")
        .args(["--config-file=/usr/share/dbus-1/system.conf", "--nofork", "--nopidfile"])
        .arg(format!("--address={bus}"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the bus is there", || Path::new("/run/bus").exists());
    // `tuned-adm` finds it by its usual place.
    fs::create_dir_all("/run/dbus").unwrap();
    std::os::unix::fs::symlink("/run/bus", "/run/dbus/system_bus_socket").unwrap();
    let running = tuned(&bus);
    assert_eq!(get("ipv4/tcp_sack"), "0");

    let catalogue = Catalogue::load().unwrap();
    let mut facts = assumed(&catalogue);
    facts.extend(host_facts(&Tree::below("/")));
    let found = advise(&catalogue, &facts, &[]);
    let ours = |f: &&Finding| ["tcp-no-sack", "tcp-no-window-scaling"].contains(&f.rule.as_str());
    let found: Vec<&Finding> = found.iter().filter(ours).collect();
    assert_eq!(named(&found.iter().map(|f| (*f).clone()).collect::<Vec<_>>()).len(), 2);
    let root = Path::new("/");
    apply::apply(root, &found, None).unwrap();
    let in_force = || (get("ipv4/tcp_sack"), get("ipv4/tcp_window_scaling"), get("core/somaxconn"));
    let both = ("1".to_owned(), "1".to_owned(), "2000".to_owned());
    assert_eq!((in_force(), read(root, ACTIVE).as_str()), (both.clone(), "ropewalk-advise"));
    // As after a boot: what was set goes with tuned, and comes with it.
    stop(running);
    fs::write("/proc/sys/net/ipv4/tcp_window_scaling", "0").unwrap();
    fs::write("/proc/sys/net/core/somaxconn", "4096").unwrap();
    let running = tuned(&bus);
    until("our profile is in force again", || in_force() == both);

    // One is taken back while tuned runs, then the other; it held our own value as the one from before.
    apply::revert(root, &["tcp-no-window-scaling".to_owned()]).unwrap();
    assert_eq!((get("ipv4/tcp_window_scaling").as_str(), get("ipv4/tcp_sack").as_str()), ("0", "1"));
    // Meanwhile somebody has changed the profile that ours is over: what it says now is in force afterwards.
    let base = Path::new("/etc/tuned/base/tuned.conf");
    let text =
        fs::read_to_string(base).unwrap().replace("tcp_sack=0", "tcp_sack=0\nnet.ipv4.tcp_fin_timeout=33");
    fs::write(base, text).unwrap();
    apply::revert(root, &[]).unwrap();
    assert_eq!((get("ipv4/tcp_window_scaling").as_str(), get("ipv4/tcp_sack").as_str()), ("0", "0"));
    assert_eq!(get("ipv4/tcp_fin_timeout"), "33");
    assert_eq!((get("core/somaxconn").as_str(), read(root, ACTIVE).as_str()), ("2000", "base"));
    assert!(!Path::new("/etc/tuned/ropewalk-advise").exists());
    offloads(found[0]);
    println!("tuned took it back");
    stop(running);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
