//! Whole dumps, made by us in the form that the commands print: from bytes to entries, verdicts and run books.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test file")]

use std::{collections::BTreeSet, fs, path::Path};

use advisor::dumps::{self, Document, Outcome, document, import_scale, judge, run_books};

use proptest::prelude::*;

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

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

/// Line ends and encodings change nothing in what is read, apart from being told.
#[test]
fn the_same_in_other_forms() {
    for (name, text) in DUMPS {
        let plain = dump(name);
        let wide: Vec<u8> =
            [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        for bytes in [text.replace('\n', "\r\n").into_bytes(), wide] {
            let other = document(name, &bytes);
            assert_eq!(other.unknown, plain.unknown, "{name}");
            let entries =
                |doc: &Document| doc.listings.iter().flat_map(|l| l.entries.clone()).collect::<Vec<_>>();
            assert_eq!(entries(&other), entries(&plain), "{name}");
            assert!(rules(&other).contains("text-form"));
        }
        // Cut off anywhere, the part before reads as before.
        let half = document(name, &text.as_bytes()[..text.len() / 2]);
        assert!(half.read > 0 && half.read <= plain.read);
    }
}

#[test]
fn changed_dumps_never_panic() {
    let samples: Vec<Vec<u8>> = DUMPS.iter().map(|(_, text)| text.as_bytes().to_vec()).collect();
    mutate::mutated(&samples, 300, |bytes| {
        let doc = document("changed", bytes);
        assert_eq!(doc.read + doc.ignored.values().sum::<usize>() + doc.unknown.len(), doc.lines);
        let verdicts = judge(&doc);
        run_books(&doc, &verdicts);
        import_scale(&doc);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Dumps in the forms in which they come: each change by itself or with others; nothing panics, and no line is lost.
    #[test]
    fn dumps_in_any_form(
        which in 0..DUMPS.len(), dos in any::<bool>(), quotes in any::<bool>(), wide in any::<bool>(), comma in any::<bool>(),
        twice in proptest::collection::vec(0..200usize, 0..6), cut in 0..=100usize,
        noise in proptest::collection::vec((0..200usize, "\\PC{0,60}|[a-z_]{1,9} = [0-9,.]{1,12}|[ \t|=:#\\[\\]-]{1,20}"), 0..4),
    ) {
        let mut lines: Vec<String> = DUMPS[which].1.lines().map(str::to_owned).collect();
        for at in twice {
            let line = lines[at % lines.len()].clone();
            lines.insert(at % lines.len(), line);
        }
        for (at, line) in noise {
            lines.insert(at % lines.len(), line);
        }
        let mut text = lines.join(if dos { "\r\n" } else { "\n" });
        if quotes {
            text = text.replace('"', "\u{201d}").replace('\'', "\u{2019}");
        }
        if comma {
            text = text.replace('.', ",");
        }
        let mut bytes = if wide {
            [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
        } else {
            text.into_bytes()
        };
        bytes.truncate(bytes.len() * cut / 100);
        read_whole(&bytes);
    }

    #[test]
    fn bytes_of_any_kind(bytes in proptest::collection::vec(any::<u8>(), 0..600), text in "(\\PC|\n|\t){0,400}") {
        read_whole(&bytes);
        read_whole(text.as_bytes());
    }
}

/// Reads, judges and imports; every line has a fate.
fn read_whole(bytes: &[u8]) {
    let doc = document("any", bytes);
    assert_eq!(doc.read + doc.ignored.values().sum::<usize>() + doc.unknown.len(), doc.lines);
    run_books(&doc, &judge(&doc));
    import_scale(&doc);
    dumps::facts(&doc);
}

/// Tables whose head is in another language are known by their shape; one that has none is told as not understood.
#[test]
fn other_locales() {
    for head in [
        "Dateisystem    Größe Benutzt Verf. Verw% Eingehängt auf",
        "Sys. de fichiers Taille Utilisé Dispo Uti% Monté sur",
        "ファイルシス   サイズ  使用  残り 使用% マウント位置",
        "Filesystem      Size  Used Avail Use% Mounted on",
    ] {
        let doc = document(
            "x",
            format!("$ df -h\n{head}\n/dev/sda1 246G 3,0G 244G 2% /\n/dev/sdb1 10G 10G 0 100% /d\n")
                .as_bytes(),
        );
        assert_eq!(
            (value(&doc, "df/sda1/used").0, value(&doc, "df/sdb1/percent")),
            ("3,0G", ("100", 4)),
            "{head}"
        );
        let verdicts = judge(&doc);
        assert!(rules(&doc).contains("filesystem-full") && doc.unknown.is_empty(), "{head}");
        // What stands on a disk of Linux is no file system of Storage Scale.
        assert!(run_books(&doc, &verdicts).is_empty());
    }
    let doc = document("x", "$ free\n       gesamt benutzt\nSpeicher: 263841816 1000\n".as_bytes());
    assert_eq!(doc.unknown.len(), 2);
}

/// The articles that the rules were made from, where they lie beside the checkout (or where ROPEWALK_SOURCES says): their
/// listings are found and their traps told.
#[test]
fn the_source_documents_if_they_are_there() {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/sources");
    let dir = std::env::var_os("ROPEWALK_SOURCES").map_or(beside, Into::into);
    let Ok(entries) = fs::read_dir(&dir) else {
        eprintln!("skipped: no {}", dir.display());
        return;
    };
    for path in entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "txt")) {
        let text = fs::read(&path).unwrap();
        // By what they say, not by their names.
        let title = String::from_utf8_lossy(&text).into_owned();
        let has = |words: &str| title.contains(words);
        let (kinds_wanted, rules_wanted): (&[(&str, usize)], &[&str]) =
            if has("SAS Foundation mixed workloads") {
                (
                    &[
                        ("df", 1),
                        ("MLNX-OS configuration", 1),
                        ("lsattr -El", 3),
                        ("no -L", 3),
                        ("ifcfg", 1),
                        ("no -a", 1),
                        ("mmdiag --config", 2),
                    ],
                    &[
                        "version-contradiction",
                        "bond-policy-inert",
                        "typographic-quotes",
                        "scale-double-h",
                        "duplicate-lines",
                        "remark-in-name",
                        "link-speed-differs",
                        "filesystem-full",
                        "links-do-not-add-up",
                        "scale-autotuned-marked",
                        "aix-interface-wins",
                        "leftover-condition",
                        "table-without-ruler",
                        "unit-decimal-or-binary",
                        "block-rule-old-format",
                        "size-without-unit",
                        "pcie-below-ports",
                        "mlnx-tune-reports",
                        "settings-on-other-ports",
                        "figures-missing",
                        "scale-nodes-differ",
                    ],
                )
            } else if has("Infiniband Performance Limits") {
                (
                    &[],
                    &[
                        "extrapolation-unit",
                        "record-size-meant",
                        "tests-with-other-files",
                        "difference-is-noise",
                        "fabric-above-adapter",
                        "figure-contradiction",
                    ],
                )
            } else if has("maxTcpConnsPerNodeConn") {
                (
                    &[],
                    &[
                        "bond-mode-number",
                        "formula-parentheses",
                        "hash-formula-old",
                        "range-of-which-release",
                        "hash-policy-word",
                        "default-connections-few",
                        "host-below-links",
                    ],
                )
            } else if has("create-pe-dma-window") {
                (
                    &[("numactl -H", 2), ("dmesg", 1), ("uperf profile", 2)],
                    &[
                        "figure-contradiction",
                        "uperf-placeholders",
                        "uperf-duration-unit",
                        "cpus-are-threads",
                        "nvme-coalescing-encoding",
                        "broken-line",
                        "numa-less-than-configured",
                        "steps-of-two-units",
                        "numa-fragmented",
                        "numa-two-topologies",
                    ],
                )
            } else if has("num_io_queues") {
                (
                    &[("lsdev", 2), ("odmget", 2), ("lsattr -R", 1), ("lsattr -El", 3), ("errpt", 1)],
                    &[
                        "default-of-which-release",
                        "aix-rmdev-recursive",
                        "aix-odm-type-r",
                        "aix-fc-one-disk-one-queue",
                        "aix-fc-single-queue",
                        "several-values",
                        "aix-fc-change-without-memory",
                    ],
                )
            } else {
                continue;
            };
        let doc = document(&path.to_string_lossy(), &text);
        for (kind, count) in kinds_wanted {
            assert_eq!(kinds(&doc).iter().filter(|k| *k == kind).count(), *count, "{kind} in {}", doc.name);
        }
        let of = |kind: &str| {
            doc.listings.iter().filter(|l| l.kind == kind).map(|l| l.last - l.first + 1).collect::<Vec<_>>()
        };
        for (kind, lines) in
            LINES.iter().filter(|(kind, _)| kinds_wanted.iter().any(|(wanted, _)| wanted == kind))
        {
            assert_eq!(of(kind), *lines, "{kind} in {}", doc.name);
        }
        outside_of_listings(&doc, &title);
        let found = rules(&doc);
        let missing: Vec<&&str> = rules_wanted.iter().filter(|rule| !found.contains(**rule)).collect();
        assert!(missing.is_empty(), "{}: {missing:?} not in {found:?}", doc.name);
        assert!(doc.unknown.is_empty(), "{}: {:?}", doc.name, doc.unknown);
        // Every setting of a dump of Scale has an answer.
        for one in import_scale(&doc) {
            assert!(one.outcome != Outcome::Unknown, "{one:?}");
        }
    }
}

/// How many lines each listing of the articles has.
const LINES: [(&str, &[u32]); 12] = [
    ("df", &[16]),
    ("MLNX-OS configuration", &[11]),
    ("no -L", &[9, 14, 6]),
    ("no -a", &[146]),
    ("mmdiag --config", &[22, 76]),
    ("ifcfg", &[2]),
    ("numactl -H", &[67, 36]),
    ("dmesg", &[1]),
    ("uperf profile", &[22, 24]),
    ("odmget", &[9, 10]),
    ("lsattr -R", &[1]),
    ("errpt", &[1]),
];

/// No line of a listing is taken for a sentence: what looks like one is inside a listing, or is a heading, a legend or the end
/// tag of a profile.
fn outside_of_listings(doc: &Document, text: &str) {
    let inside = |at: usize| doc.listings.iter().any(|l| (l.first as usize..=l.last as usize).contains(&at));
    let programs = [
        "ethtool ",
        "ppc64_cpu ",
        "mlnx_tune ",
        "chdev ",
        "rmdev ",
        "cfgmgr ",
        "nvme ",
        "optmem ",
        "interface ",
        "odmget ",
        "lsattr ",
        "/dev/",
        "/usr/lpp",
        "fio --",
        "port-channel ",
        "! ",
        "node ",
    ];
    for (at, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
        let program = programs.iter().any(|p| line.trim_start_matches(['#', ' ']).starts_with(p));
        let setting = line.split_once(" = ").is_some_and(|(name, _)| name.len() > 1 && !name.contains(' '));
        let attribute = line.ends_with(" True") || line.ends_with(" False");
        assert!(
            !(program || setting || attribute) || inside(at),
            "{} line {at} is in no listing: {line}",
            doc.name
        );
    }
}

/// Many listings, many lines of one, many that fit one pattern: bounded, and every line still has a fate.
#[test]
fn large_inputs_are_bounded() {
    let many_lines: String = (0..20_000).map(|i| format!("name{i} = {i}\n")).collect();
    let many_listings: String =
        (0..20_000).map(|i| format!("# lsattr -El ent{i}\nmedia_speed  {i}  Speed  True\n")).collect();
    let ports: String = (0..1_000).map(|i| format!("interface ethernet 1/{i} speed {i}\n")).collect();
    for text in [many_lines, format!("{many_listings}{ports}")] {
        let doc = document("large", text.as_bytes());
        assert_eq!(doc.read + doc.ignored.values().sum::<usize>() + doc.unknown.len(), doc.lines);
        assert!(judge(&doc).len() < 20_000 && doc.listings.len() < 10_000);
    }
}
