//! Whole hosts, made of files, from facts to advice.
#![allow(clippy::unwrap_used, reason = "a test file")]

use std::{fs, path::Path, time::Duration};

use advisor::{BondMode, Context, Finding, HostFacts, RULES, Severity, advise, host_facts};
use base::ByteSize;

/// Two 100 Gbit/s ports in a bond with the wrong hash, everything else as a distribution leaves it.
const BONDED_SERVER: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.18.2-generic\n"),
    ("proc/meminfo", "MemTotal:       16384000 kB\nMemFree:        1000 kB\n"),
    ("sys/devices/system/cpu/online", "0-15\n"),
    ("sys/devices/system/node/online", "0-1\n"),
    ("sys/devices/system/node/node0/cpulist", "0-7\n"),
    ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:        8192000 kB\n"),
    ("sys/devices/system/node/node1/cpulist", "8-15\n"),
    ("sys/class/net/lo/mtu", "65536\n"),
    ("sys/class/net/bonding_masters", "bond0\n"),
    ("sys/class/net/bond0/mtu", "9000\n"),
    ("sys/class/net/bond0/speed", "200000\n"),
    ("sys/class/net/bond0/operstate", "up\n"),
    ("sys/class/net/ens1f0/mtu", "9000\n"),
    ("sys/class/net/ens1f0/speed", "100000\n"),
    ("sys/class/net/ens1f0/operstate", "up\n"),
    ("sys/class/net/ens1f0/device/numa_node", "1\n"),
    ("sys/class/net/veth0/speed", "-1\n"),
    ("sys/class/net/ens1f1/speed", "100000\n"),
    ("sys/class/net/ens1f1/device/numa_node", "-1\n"),
    ("proc/net/bonding/bond0", BONDING),
    ("proc/sys/net/ipv4/fib_multipath_hash_policy", "0\n"),
    ("proc/sys/net/core/rmem_max", "212992\n"),
    ("proc/sys/net/core/wmem_max", "212992\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
    ("sys/module/fuse/parameters/enable_uring", "N\n"),
    ("proc/sys/fs/fuse/max_pages_limit", "256\n"),
];

const BONDING: &str = "Ethernet Channel Bonding Driver: v6.18.2-generic

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
Transmit Hash Policy: layer2+3 (2)
MII Status: up
MII Polling Interval (ms): 100

802.3ad info
LACP active: on
LACP rate: fast

Slave Interface: ens1f0
MII Status: up
Speed: 100000 Mbps
Duplex: full

Slave Interface: ens1f1
MII Status: up
Speed: 100000 Mbps
Duplex: full
";

fn host(files: &[(&str, &str)]) -> HostFacts {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    host_facts(root.path())
}

fn bonded(mode: &str, policy: &str) -> HostFacts {
    let bonding = format!("Bonding Mode: {mode}\nSlave Interface: a\nSlave Interface: b\n");
    let policy = format!("{policy} 1\n");
    host(&[("proc/net/bonding/bond7", &bonding), ("sys/class/net/bond7/bonding/xmit_hash_policy", &policy)])
}

fn rules(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn facts_of_a_server() {
    let facts = host(BONDED_SERVER);
    assert_eq!((facts.cpus, facts.memory_bytes), (Some(16), Some(16_384_000 << 10)));
    let nodes = facts.numa_nodes.as_ref().unwrap();
    assert_eq!(nodes.iter().map(|n| (n.id, n.cpus)).collect::<Vec<_>>(), [(0, Some(8)), (1, Some(8))]);
    assert_eq!((nodes[0].memory_bytes, nodes[1].memory_bytes), (Some(8_192_000 << 10), None));

    let nics = facts.nics.as_ref().unwrap();
    assert_eq!(
        nics.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(),
        ["bond0", "ens1f0", "ens1f1", "veth0"]
    );
    assert_eq!((nics[1].speed_mbps, nics[1].mtu, nics[1].numa_node), (Some(100_000), Some(9000), Some(1)));
    assert_eq!((nics[2].numa_node, nics[3].speed_mbps), (None, None));
    assert_eq!(nics.iter().map(|n| n.physical).collect::<Vec<_>>(), [false, true, true, false]);

    let bond = &facts.bonds.as_ref().unwrap()[0];
    assert_eq!((bond.mode, bond.xmit_hash_policy.as_deref()), (Some(BondMode::Ieee8023ad), Some("layer2+3")));
    assert_eq!(bond.slaves, ["ens1f0", "ens1f1"]);
    assert_eq!((facts.fuse_enable_uring, facts.fuse_max_pages_limit), (Some(false), Some(256)));
    assert_eq!(facts.tcp_rmem.unwrap().max, 6_291_456);

    let json = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<HostFacts>(&json).unwrap(), facts);
}

#[test]
fn a_host_that_shows_nothing_gets_no_advice() {
    let facts = host(&[]);
    assert_eq!(facts, HostFacts::default());
    assert_eq!(advise(&facts, &Context::default()), []);
    let garbage = host(&[
        ("proc/meminfo", "MemTotal: lots"),
        ("proc/net/bonding/bond0", "\u{0}:::\nBonding Mode:\nSlave Interface:"),
        ("sys/module/fuse/parameters/enable_uring", ""),
        ("proc/sys/net/ipv4/tcp_rmem", "1 2"),
        ("sys/devices/system/node/nodeX/cpulist", "0"),
    ]);
    assert_eq!((garbage.memory_bytes, garbage.tcp_rmem, garbage.fuse_enable_uring), (None, None, None));
    assert_eq!(advise(&garbage, &Context::default()), []);
}

#[test]
fn this_host_can_be_read() {
    let facts = host_facts(Path::new("/"));
    advise(&facts, &Context::default());
}

#[test]
fn the_server_is_told_what_to_change() {
    let findings = advise(&host(BONDED_SERVER), &Context::default());
    // 100 Gbit/s × 500 µs = 6.25 MB: more than the send buffer's 4 MiB, not more than the receive buffer's 6 MiB.
    assert_eq!(rules(&findings), ["R2", "R8", "F1", "F2"]);
    let r2 = &findings[0];
    assert_eq!(r2.command.as_deref(), Some("ip link set dev bond0 type bond xmit_hash_policy layer3+4"));
    assert!(r2.evidence.iter().any(|e| e == "maxTcpConnsPerNodeConn = 2"), "{:?}", r2.evidence);
    assert_eq!(findings[1].command.as_deref(), Some("sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'"));
    assert_eq!(findings[2].command.as_deref(), Some("sysctl -w fs.fuse.max_pages_limit=1024"));
    let json = serde_json::to_value(&findings).unwrap();
    assert_eq!((json[0]["rule"].as_str(), json[0]["severity"].as_str()), (Some("R2"), Some("warning")));
    for finding in &findings {
        assert!(RULES.iter().any(|rule| rule.id == finding.rule && rule.trigger == finding.trigger));
        assert!(!finding.evidence.is_empty() && !finding.advice.is_empty());
    }
}

#[test]
fn bond_rules_fire_where_they_should_only() {
    let one_connection = {
        let mut context = Context::default();
        context.tunables.set("maxTcpConnsPerNodeConn", "1").unwrap();
        context
    };
    let several = Context::default();
    for (mode, policy, context, expected) in [
        ("adaptive load balancing", "layer3+4", &several, &["R1"][..]),
        ("adaptive load balancing", "layer2", &several, &[]),
        ("IEEE 802.3ad Dynamic link aggregation", "layer2", &several, &["R2"]),
        ("IEEE 802.3ad Dynamic link aggregation", "layer2", &one_connection, &[]),
        ("IEEE 802.3ad Dynamic link aggregation", "layer3+4", &several, &[]),
        ("load balancing (xor)", "layer2+3", &several, &["R2"]),
        ("load balancing (round-robin)", "layer2", &several, &["R3"]),
        ("fault-tolerance (active-backup)", "layer2", &several, &[]),
        ("transmit load balancing", "layer2", &several, &[]),
    ] {
        let findings = advise(&bonded(mode, policy), context);
        assert_eq!(rules(&findings), expected, "{mode}, {policy}");
    }
}

#[test]
fn socket_buffers_against_limits_and_links() {
    let facts = host(BONDED_SERVER);
    let r8 = |context: &Context| {
        let findings = advise(&facts, context);
        findings.into_iter().filter(|f| f.rule == "R8").filter_map(|f| f.command).collect::<Vec<_>>()
    };
    let quick = Context { round_trip: Duration::from_micros(100), ..Context::default() };
    assert_eq!(r8(&quick), Vec::<String>::new());
    let asked = Context {
        socket_buffer: Some(ByteSize(1 << 20)),
        round_trip: Duration::from_micros(10),
        ..Context::default()
    };
    assert_eq!(r8(&asked), ["sysctl -w net.core.rmem_max=1048576", "sysctl -w net.core.wmem_max=1048576"]);
    let far = Context { round_trip: Duration::from_millis(2), ..Context::default() };
    assert_eq!(
        r8(&far),
        [
            "sysctl -w net.ipv4.tcp_rmem='4096 131072 33554432'",
            "sysctl -w net.ipv4.tcp_wmem='4096 16384 33554432'"
        ]
    );
}

#[test]
fn memory_formula_against_memory() {
    let facts = host(&[("proc/meminfo", "MemTotal: 8388608 kB\n")]);
    let with = |pairs: &[(&str, &str)]| {
        let mut context = Context::default();
        context.tunables.apply(pairs.iter().copied()).unwrap();
        advise(&facts, &context)
    };
    assert_eq!(with(&[]), []);
    let warned = with(&[("pagepool", "7g")]);
    assert_eq!((warned[0].rule, warned[0].severity), ("R17", Severity::Warning));
    // 0.8 × 8 GiB less 32 MiB, 4000 × 3 KiB and 1000 × 400 B, in whole MiB.
    assert_eq!(warned[0].command.as_deref(), Some("ropewalk config set pagepool=6509m"));
    assert_eq!(with(&[("pagepool", "9g")])[0].severity, Severity::Critical);
    let files = with(&[("maxFilesToCache", "100000000")]);
    assert_eq!((files[0].severity, &files[0].command), (Severity::Critical, &None));
}
