//! What makes settings last, read as a boot reads it: by the distribution's own programs, below the root of a recorded host, or in
//! namespaces of their own. A program that is not installed is named, and its part is left out.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use advisor::{Finding, Tree, apply, host_facts};

use super::{ALONE, findings, links::is_root, read};

/// Where a distribution keeps its programs.
const PLACES: [&str; 6] = ["/usr/lib/systemd", "/lib/systemd", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];

fn program(name: &str) -> Option<PathBuf> {
    let found = PLACES.iter().map(|place| Path::new(place).join(name)).find(|path| path.is_file());
    if found.is_none() {
        println!("left out, as it is not installed: {name}");
    }
    found
}

/// A host of these files, with what these rules advise set on it.
fn set(files: &[(&str, &str)], rules: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    let found = findings(host_facts(&Tree::below(root.path())));
    let chosen: Vec<&Finding> = found.iter().filter(|f| rules.contains(&f.rule.as_str())).collect();
    assert_eq!(apply::apply(root.path(), &chosen, None).unwrap().len(), rules.len(), "{found:?}");
    root
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said.trim().to_owned()
}

/// Runs a script in namespaces of the network and of mounts, where `$1` is the host's root and `e` a link to nowhere.
fn alone(root: &Path, script: &str) -> Option<String> {
    if !is_root() {
        println!("left out: not root");
        return None;
    }
    let script = format!(
        "set -e; mount -t sysfs sysfs /sys; ip link add e type veth peer name f; ip link set e up; {script}"
    );
    let words = ["--net", "--mount", "--", "sh", "-c", ALONE, "sh", "-c", &script, "sh"];
    Some(output(Command::new("unshare").args(words).arg(root)))
}

/// A port of the host.
const PORT: [(&str, &str); 5] = [
    ("sys/class/net/e/ifindex", "7"),
    ("sys/class/net/e/mtu", "1500"),
    ("sys/class/net/e/operstate", "up"),
    ("sys/class/net/e/speed", "100000"),
    ("sys/class/net/e/device/numa_node", "-1"),
];

#[test]
fn systemd_and_procps_set_the_kernels_settings() {
    let root = set(
        &[("proc/sys/net/ipv4/tcp_sack", "0"), ("proc/sys/net/ipv4/ip_local_port_range", "32768 33000")],
        &["tcp-no-sack", "tcp-few-ports"],
    );
    let file = "etc/sysctl.d/90-ropewalk-advise.conf";
    let wanted = read(root.path(), "proc/sys/net/ipv4/ip_local_port_range");
    let mut tried = Vec::new();
    if let Some(systemd) = program("systemd-sysctl") {
        tried.push(format!("{} --prefix=net/ipv4", systemd.display()));
    }
    if let Some(procps) = program("sysctl") {
        tried.push(format!("{} -q -p \"$1\"/{file}", procps.display()));
    }
    for reader in tried {
        let script = format!(
            "mount --bind \"$1\"/etc/sysctl.d /etc/sysctl.d; cd /proc/sys/net/ipv4; echo 0 > tcp_sack; \
             echo 32768 33000 > ip_local_port_range; {reader} >&2; cat tcp_sack ip_local_port_range"
        );
        if let Some(said) = alone(root.path(), &script) {
            let said: Vec<&str> = said.split_whitespace().collect();
            assert_eq!(said.join(" "), format!("1 {wanted}"), "{reader}");
        }
    }
}

#[test]
fn tmpfiles_write_below_sys() {
    let thp = "sys/kernel/mm/transparent_hugepage/enabled";
    let root = set(&[(thp, "always madvise [never]")], &["memory-thp-off"]);
    let wanted = read(root.path(), thp);
    fs::write(root.path().join(thp), "never\n").unwrap();
    if let Some(tmpfiles) = program("systemd-tmpfiles") {
        let below = format!("--root={}", root.path().display());
        output(Command::new(tmpfiles).args([&below, "--create", "--boot", "ropewalk-advise.conf"]));
        assert_eq!(read(root.path(), thp), wanted);
    }
}

#[test]
fn modprobe_takes_our_options() {
    let root = set(&[("sys/module/pcie_aspm/parameters/policy", "powersave")], &["pcie-aspm-powersave"]);
    if let Some(modprobe) = program("modprobe") {
        let dir = root.path().join("etc/modprobe.d");
        let said = output(Command::new(modprobe).arg("--showconfig").arg("--config").arg(dir));
        assert!(said.lines().any(|line| line == "options pcie_aspm policy=performance"), "{said}");
    }
}

#[test]
fn systemd_finds_our_part_of_a_network_file() {
    let network = "etc/systemd/network/10-e.network";
    let files = [
        (network, "[Match]\nName=e"),
        ("run/systemd/netif/links/7", "NETWORK_FILE=/etc/systemd/network/10-e.network"),
    ];
    let root = set(&[&PORT[..], &files].concat(), &["nic-mtu-small"]);
    if let Some(analyze) = program("systemd-analyze") {
        let below = format!("--root={}", root.path().display());
        let said = output(Command::new(analyze).args([&below, "cat-config", "systemd/network/10-e.network"]));
        let (_, ours) = said.split_once("10-e.network.d/90-ropewalk-advise.conf").unwrap();
        assert!(ours.contains("\n[Link]\n") && ours.contains("\nMTUBytes=9000"), "{said}");
    }
}

/// The kernel's own interface gets the MTU from the script that NetworkManager would run.
#[test]
fn the_script_of_network_manager_sets_the_interface() {
    let files = [("run/NetworkManager/devices/7", "[device]\nconnection-uuid=1-2")];
    let root = set(&[&PORT[..], &files].concat(), &["nic-mtu-small"]);
    let script = "s=\"$1\"/etc/NetworkManager/dispatcher.d/90-ropewalk-advise; \"$s\" f up; \"$s\" e down; \
                  cat /sys/class/net/e/mtu; \"$s\" e up; cat /sys/class/net/e/mtu";
    if let Some(said) = alone(root.path(), script) {
        assert_eq!(said, "1500\n9000");
    }
}

/// The kernel's own interface gets the MTU from the rule that udev holds against it.
#[test]
fn udev_sets_the_interface() {
    let root = set(&PORT, &["nic-mtu-small"]);
    let Some(udevadm) = program("udevadm") else { return };
    let script = format!(
        "mkdir -p /etc/udev/rules.d; mount --bind \"$1\"/etc/udev/rules.d /etc/udev/rules.d; \
         {} test --action=add /sys/class/net/e 2>&1; cat /sys/class/net/e/mtu",
        udevadm.display()
    );
    if let Some(said) = alone(root.path(), &script) {
        let ours = said.lines().filter(|line| line.contains("90-ropewalk-advise"));
        let wrong = |line: &&str| ["nvalid", "nknown", "gnoring"].iter().any(|word| line.contains(word));
        assert_eq!(ours.filter(wrong).collect::<Vec<_>>(), Vec::<&str>::new(), "{said}");
        assert!(said.contains("90-ropewalk-advise") && said.ends_with("9000"), "{said}");
    }
}
