//! The articles that the rules were made from: their listings, their traps, and what is said of them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use advisor::dumps::{Document, Outcome, document, import_scale};

use super::{kinds, rules};

/// The articles, in the order of their names; none, with a word about it, where they are not there.
pub fn articles() -> Vec<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/sources");
    let dir = std::env::var_os("ROPEWALK_SOURCES").map_or(beside, Into::into);
    let Ok(entries) = fs::read_dir(&dir) else {
        eprintln!("skipped: no {}", dir.display());
        return Vec::new();
    };
    let text = |path: &PathBuf| path.extension().is_some_and(|e| e == "txt");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(text).collect();
    paths.sort();
    paths
}

/// The articles that the rules were made from, where they lie beside the checkout (or where ROPEWALK_SOURCES says): their
/// listings are found and their traps told.
#[test]
fn the_source_documents_if_they_are_there() {
    for path in articles() {
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
                        "clients-are-the-limit",
                        "rate-falls-with-time",
                        "counter-wraps",
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
                        "scaling-falls-off",
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
