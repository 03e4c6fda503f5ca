//! Whole dumps, made by us in the form that the commands print: from bytes to entries, verdicts and run books. The forms in
//! which dumps come, and the articles, have a file each.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test file")]

use std::collections::BTreeSet;

use advisor::dumps::{self, Document, Outcome, document, import_scale, judge, run_books};

#[path = "dump_files/articles.rs"]
mod articles;
#[path = "dump_files/forms.rs"]
mod forms;
#[path = "dump_files/traps.rs"]
mod traps;

const DUMPS: [(&str, &str); 5] = [
    ("aix_client", include_str!("dumps/aix_client.txt")),
    ("linux_bond", include_str!("dumps/linux_bond.txt")),
    ("power_lpar", include_str!("dumps/power_lpar.txt")),
    ("scale_cluster", include_str!("dumps/scale_cluster.txt")),
    ("switch", include_str!("dumps/switch.txt")),
];

fn dump(name: &str) -> Document {
    let (_, text) = DUMPS.iter().find(|(n, _)| *n == name).unwrap();
    document(name, text.as_bytes())
}

fn kinds(doc: &Document) -> Vec<&str> {
    doc.listings.iter().map(|l| l.kind).filter(|kind| *kind != "commands").collect()
}

/// The value of a path, and its line.
fn value<'a>(doc: &'a Document, path: &str) -> (&'a str, u32) {
    let found = doc.entries().find(|e| e.path == path);
    let entry = found
        .unwrap_or_else(|| panic!("{path} in {:#?}", doc.entries().map(|e| &e.path).collect::<Vec<_>>()));
    (&entry.value, entry.line)
}

fn rules(doc: &Document) -> BTreeSet<&'static str> {
    judge(doc).into_iter().filter(|v| !v.judgement.good).map(|v| v.judgement.rule).collect()
}

#[test]
fn every_line_has_a_fate() {
    for (name, _) in DUMPS {
        let doc = dump(name);
        assert_eq!(doc.read + doc.ignored.values().sum::<usize>() + doc.unknown.len(), doc.lines, "{name}");
        let strange: Vec<&str> = doc.unknown.iter().map(|(_, text)| text.trim()).collect();
        let wanted: &[&str] = if name == "linux_bond" { &["something that no parser knows"] } else { &[] };
        assert_eq!(strange, wanted, "{name}");
    }
}

#[test]
fn aix() {
    let doc = dump("aix_client");
    let wanted = [
        "lsattr -El",
        "lsattr -El",
        "no -L",
        "no -a",
        "lsdev",
        "odmget",
        "lsattr -El",
        "lsattr -R",
        "errpt",
        "ifconfig",
    ];
    assert_eq!(kinds(&doc), wanted);
    assert_eq!(value(&doc, "aix/device/en1/alias6").0, "");
    assert_eq!(value(&doc, "aix/device/ent1/jumbo_size"), ("9014", 8));
    assert_eq!(value(&doc, "aix/no-depends/tcp_recvspace").0, "sb_max");
    assert_eq!(value(&doc, "aix/vmo/minfree").0, "960");
    assert_eq!(value(&doc, "aix/lsdev/fcs1/state").0, "Defined");
    assert_eq!(value(&doc, "aix/range/fcs0/num_io_queues/high").0, "16");
    assert_eq!(value(&doc, "aix/interface/en1/inet").0, "10.1.0.11");
    let found = rules(&doc);
    for rule in [
        "aix-fc-queues-memory",
        "aix-fc-single-queue",
        "aix-interface-wins",
        "aix-not-at-boot",
        "aix-device-defined",
        "aix-speed-fixed",
    ] {
        assert!(found.contains(rule), "{rule} in {found:?}");
    }
    for rule in ["aix-jumbo-size", "aix-sb-max", "aix-rfc1323", "aix-fc-queues-range"] {
        assert!(!found.contains(rule), "{rule} in {found:?}");
    }
    let books = run_books(&doc, &judge(&doc));
    let queues = books.iter().find(|b| b.name == "aix-fc-queues").unwrap();
    let commands: Vec<&str> = queues.steps.iter().map(|s| s.command.as_str()).collect();
    let at = |text: &str| commands.iter().position(|c| c.starts_with(text)).unwrap();
    assert!(
        at("rmdev -Rl fcs0") < at("chdev -l fcs0") && at("chdev -l fcs0") < at("cfgmgr -l fcs0"),
        "{commands:?}"
    );
    assert!(commands[at("chdev")].contains("io_dma=256") && !queues.disrupts.is_empty());
}

#[test]
fn power_linux() {
    let doc = dump("power_lpar");
    let wanted = [
        "numactl -H",
        "ppc64_cpu",
        "dmesg",
        "lsslot",
        "ethtool",
        "ethtool",
        "ethtool",
        "ethtool",
        "ethtool -i",
        "ethtool",
        "sysctl",
        "lspci -vv",
        "multipath -ll",
        "ip link",
    ];
    assert_eq!(kinds(&doc), wanted);
    assert_eq!(value(&doc, "numa/node/2/cpus").0, "16 17 18 19 20 21 22 23");
    assert_eq!(value(&doc, "dma/0021:01:00.0/window-shift").0, "39");
    assert_eq!(value(&doc, "linux/ethtool/enP33p1s0/ring/max-rx").0, "8192");
    assert_eq!(value(&doc, "linux/ethtool-fixed/enP33p1s0/rx-vlan-offload").0, "on [fixed]");
    assert_eq!(value(&doc, "pci/0021:01:00.0/max-read").0, "512");
    assert_eq!(value(&doc, "linux/bond/bond1/xmit_hash_policy").0, "layer2");
    let found = rules(&doc);
    for rule in [
        "broken-line",
        "ring-small",
        "nic-tso-off",
        "sysctl-buffer-asked-smaller",
        "sysctl-swappiness",
        "pcie-slow",
        "multipath-failed",
        "bond-policy-without-ports",
    ] {
        assert!(found.contains(rule), "{rule} in {found:?}");
    }
    for rule in [
        "numa-fragmented",
        "numa-does-not-add-up",
        "dma-window-refused",
        "dma-window-small",
        "pcie-narrow",
        "multipath-single",
        "nic-half-duplex",
    ] {
        assert!(!found.contains(rule), "{rule} in {found:?}");
    }
}

#[test]
fn scale() {
    let doc = dump("scale_cluster");
    assert_eq!(kinds(&doc), ["mmlscluster", "mmlsconfig", "mmlsfs", "mmlsnsd", "mmdf", "mmdiag --config"]);
    assert_eq!(value(&doc, "scale/node/io2/role").0, "quorum-manager");
    assert_eq!(value(&doc, "scale/section/io1,io2/pagepool").0, "64G");
    assert_eq!(value(&doc, "scale/fs/work/-V").0, "27.00 (5.1.5.0)");
    assert_eq!(value(&doc, "scale/nsd/nsd9/filesystem").0, "(free)");
    assert_eq!(value(&doc, "scale/free/system").0, "50");
    assert_eq!(value(&doc, "scale/mark/prefetchThreads").0, "autotuned");
    let found = rules(&doc);
    for rule in ["scale-quorum-even", "scale-nsd-one-server", "scale-mtime", "scale-connections-few"] {
        assert!(found.contains(rule), "{rule} in {found:?}");
    }
    for rule in ["scale-32-subblocks", "scale-block-above-max", "filesystem-full", "scale-autotuned-marked"] {
        assert!(!found.contains(rule), "{rule} in {found:?}");
    }
    let imported = import_scale(&doc);
    let of = |name: &str| imported.iter().find(|i| i.name == name).map(|i| (&i.outcome, i.scope.as_str()));
    assert!(matches!(of("maxMBpS"), Some((Outcome::Set { name: "maxMBpS", .. }, "common"))), "{imported:#?}");
    assert!(matches!(of("nsdRAIDTracks"), Some((Outcome::Explained { .. }, _))));
    assert_eq!((of("prefetchThreads"), of("aioWorkerThreads")), (None, None), "nobody set them");
    assert!(imported.iter().any(|i| i.name == "pagepool" && i.scope == "io1,io2"));
}

#[test]
fn switch_and_bonds() {
    let doc = dump("switch");
    assert_eq!(kinds(&doc), ["MLNX-OS configuration", "show interfaces"]);
    assert!(doc.entries().all(|e| !e.value.contains("secretword")), "what may be a secret is not kept");
    let found = rules(&doc);
    for rule in ["switch-hash-without-ports", "switch-drops", "switch-speed-not-taken"] {
        assert!(found.contains(rule), "{rule} in {found:?}");
    }
    assert!(!found.contains("switch-fcs-errors") && !found.contains("switch-pause-one-way"));

    let doc = dump("linux_bond");
    assert_eq!(kinds(&doc), ["ifcfg", "bonding", "network file", "nvme list", "nvme get-feature"]);
    assert_eq!(value(&doc, "linux/bond/bond0/mode").0, "balance-alb");
    let found = rules(&doc);
    for rule in [
        "typographic-quotes",
        "bond-policy-inert",
        "bond-members-differ",
        "dump-bond-aggregators-differ",
        "dump-bond-member-down",
        "dump-bond-round-robin",
        "dump-bond-no-monitor",
        "nvme-coalescing-on",
    ] {
        assert!(found.contains(rule), "{rule} in {found:?}");
    }
}

/// The rules for hosts judge what Linux printed, and name the lines; commands that would set something are no state.
#[test]
fn rules_for_hosts_judge_dumps_of_linux() {
    let text = "$ sysctl -a\nnet.ipv4.tcp_sack = 0\nnet.ipv4.tcp_rmem = 4096\t131072\t6291456\n\
        vm.zone_reclaim_mode = 1\nsysctl: permission denied on key 'x'\n\
        $ ethtool eth2\nSettings for eth2:\n\tSpeed: 25000Mb/s\n\tDuplex: Half\n\tLink detected: yes\n\
        $ ethtool -l eth2\nChannel parameters for eth2:\nPre-set maximums:\nCombined:\t63\n\
        Current hardware settings:\nCombined:\t4\n\
        $ ip link show eth2\n4: eth2: <BROADCAST,UP> mtu 1500 qdisc mq state UP mode DEFAULT\n\
        $ numactl -H\navailable: 2 nodes (0-1)\nnode 0 cpus: 0 1 2 3\nnode 0 size: 1024 MB\nnode 1 cpus: 4 5 6 7\n\
        node 1 size: 0 MB\n";
    let doc = document("x", text.as_bytes());
    let facts = dumps::facts(&doc);
    assert_eq!((facts.int("net.eth2.port_speed"), facts.text("net.eth2.state")), (Some(25_000), Some("up")));
    assert_eq!((facts.int("fast_port.eth2.mtu"), facts.int("net.eth2.channels_max")), (Some(1500), Some(63)));
    assert_eq!((facts.int("numa.1.cpus"), facts.int("numa.0.memory")), (Some(4), Some(1 << 30)));
    let verdicts = judge(&doc);
    let line = |rule: &str| {
        let found = verdicts.iter().find(|v| v.judgement.rule == rule && !v.judgement.good);
        found.unwrap_or_else(|| panic!("{rule}: {:?}", rules(&doc))).judgement.evidence[0].0
    };
    assert_eq!((line("tcp-no-sack"), line("memory-zone-reclaim"), line("nic-half-duplex")), (2, 4, 9));
    assert_eq!((line("nic-mtu-small"), line("cpu-node-without-memory")), (8, 23));
    let commands = document(
        "x",
        b"# ethtool -G eth2 rx 512\n# sysctl -w net.ipv4.tcp_sack=0\n# ip link set eth2 mtu 1500\n",
    );
    assert!(dumps::facts(&commands).is_empty());
}
