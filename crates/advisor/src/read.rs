//! Reads facts from procfs and sysfs below a root: `/`, or a copy of another host's files.
//! Reads only, bounded in bytes and entries; what is missing or unreadable is no fact.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

use crate::host::{Bond, BondMode, HostFacts, Nic, NumaNode, TcpBuffers};

/// Longer files are cut.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Further directory entries are not looked at.
const ENTRIES_MAX: usize = 4096;

/// The facts of the host whose `proc` and `sys` are below `root`.
pub fn host_facts(root: &Path) -> HostFacts {
    let number = |path| text(root, path)?.parse().ok();
    HostFacts {
        kernel: text(root, "proc/sys/kernel/osrelease"),
        cpus: text(root, "sys/devices/system/cpu/online").and_then(|list| count_cpus(&list)),
        memory_bytes: text(root, "proc/meminfo").and_then(|info| mem_total(&info)),
        numa_nodes: numa_nodes(root),
        nics: nics(root),
        bonds: bonds(root),
        fib_multipath_hash_policy: text(root, "proc/sys/net/ipv4/fib_multipath_hash_policy")
            .and_then(|t| t.parse().ok()),
        rmem_max: number("proc/sys/net/core/rmem_max"),
        wmem_max: number("proc/sys/net/core/wmem_max"),
        tcp_rmem: text(root, "proc/sys/net/ipv4/tcp_rmem").and_then(|t| tcp_buffers(&t)),
        tcp_wmem: text(root, "proc/sys/net/ipv4/tcp_wmem").and_then(|t| tcp_buffers(&t)),
        fuse_enable_uring: text(root, "sys/module/fuse/parameters/enable_uring").and_then(|t| flag(&t)),
        fuse_max_pages_limit: number("proc/sys/fs/fuse/max_pages_limit"),
    }
}

/// A file's text without the white space around it.
fn text(dir: &Path, path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(dir.join(path)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The names in a directory, sorted.
fn names(dir: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(dir).ok()?.take(ENTRIES_MAX).flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    Some(names)
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    }
}

/// The number of CPUs in a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<u32> {
    let mut count = 0u32;
    for range in list.split(',').filter(|range| !range.trim().is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// `MemTotal` of `/proc/meminfo` or of a node's `meminfo` (its lines begin `Node 0 MemTotal:`).
fn mem_total(info: &str) -> Option<u64> {
    let line = info.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_once("MemTotal:")?.1.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn tcp_buffers(text: &str) -> Option<TcpBuffers> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(TcpBuffers { min: next()?, default: next()?, max: next()? })
}

fn numa_nodes(root: &Path) -> Option<Vec<NumaNode>> {
    let dir = root.join("sys/devices/system/node");
    let mut nodes = Vec::new();
    for name in names(&dir)? {
        let Some(id) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else { continue };
        let node = dir.join(&name);
        nodes.push(NumaNode {
            id,
            cpus: text(&node, "cpulist").and_then(|list| count_cpus(&list)),
            memory_bytes: text(&node, "meminfo").and_then(|info| mem_total(&info)),
        });
    }
    nodes.sort_by_key(|node| node.id);
    Some(nodes)
}

fn nics(root: &Path) -> Option<Vec<Nic>> {
    let dir = root.join("sys/class/net");
    let mut nics = Vec::new();
    for name in names(&dir)? {
        let nic = dir.join(&name);
        // `bonding_masters` is a file; loopback is no link.
        if name == "lo" || !nic.is_dir() {
            continue;
        }
        nics.push(Nic {
            // -1 is "unknown" in speed and numa_node: it does not parse as unsigned.
            speed_mbps: text(&nic, "speed").and_then(|t| t.parse().ok()).filter(|speed| *speed > 0),
            mtu: text(&nic, "mtu").and_then(|t| t.parse().ok()),
            state: text(&nic, "operstate"),
            physical: nic.join("device").exists(),
            numa_node: text(&nic, "device/numa_node").and_then(|t| t.parse().ok()),
            name,
        });
    }
    Some(nics)
}

/// From `/proc/net/bonding`, completed by sysfs, which also has the policy of modes that do not use it.
fn bonds(root: &Path) -> Option<Vec<Bond>> {
    let Some(names) = names(&root.join("proc/net/bonding")) else {
        // Without the driver there is no such directory. If the interfaces can be seen, that means: no bonds.
        return root.join("sys/class/net").is_dir().then(Vec::new);
    };
    let bonds = names.into_iter().map(|name| {
        let mut bond = parse_bonding(&name, &text(&root.join("proc/net/bonding"), &name).unwrap_or_default());
        let sysfs = root.join("sys/class/net").join(&name).join("bonding");
        let first_word = |path| Some(text(&sysfs, path)?.split_whitespace().next()?.to_owned());
        bond.mode = text(&sysfs, "mode").and_then(|t| BondMode::parse(&t)).or(bond.mode);
        bond.xmit_hash_policy = first_word("xmit_hash_policy").or(bond.xmit_hash_policy);
        bond
    });
    Some(bonds.collect())
}

/// One file of `/proc/net/bonding`.
fn parse_bonding(name: &str, text: &str) -> Bond {
    let mut bond = Bond { name: name.to_owned(), mode: None, xmit_hash_policy: None, slaves: Vec::new() };
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match key.trim() {
            "Bonding Mode" => bond.mode = BondMode::parse(value),
            "Transmit Hash Policy" => {
                bond.xmit_hash_policy = value.split_whitespace().next().map(str::to_owned);
            }
            "Slave Interface" if !value.is_empty() => bond.slaves.push(value.to_owned()),
            _ => {}
        }
    }
    bond
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpu_lists() {
        for (list, n) in [
            ("0-3,8", Some(5)),
            ("0", Some(1)),
            ("", Some(0)),
            ("3-1", None),
            ("x", None),
            ("0-4294967295", None),
        ] {
            assert_eq!(count_cpus(list), n, "{list}");
        }
    }

    #[test]
    fn modes_by_both_spellings() {
        for (mode, number, name, long) in BondMode::ALL {
            assert_eq!(BondMode::parse(&format!("{name} {number}")), Some(mode));
            assert_eq!(BondMode::parse(&format!("{long} (fail_over_mac active)")), Some(mode));
            assert_eq!((mode.number(), mode.name()), (number, name));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{name}\""));
        }
        assert_eq!(BondMode::parse(""), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s)(Bonding Mode:|Slave Interface:|MemTotal:|[0-9,-]|.){0,40}") {
            parse_bonding("bond0", &text);
            let _ = (count_cpus(&text), mem_total(&text), tcp_buffers(&text), flag(&text));
        }
    }
}
