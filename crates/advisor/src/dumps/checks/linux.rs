//! Linux: bonds and their hash, rings, what a tuner really does, settings given to different sets of ports, cards and buses.

use std::collections::{BTreeMap, BTreeSet};

use super::super::view::{Hit, Report, View};

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    bonds(v, r);
    rings(v, r);
    port_sets(v, r);
    buses(v, r);
    members(v, r);
    coalescing(v, r);
    buffers(v, r);
    paths(v, r);
}

fn bonds(v: &View<'_>, r: &mut Report) {
    for mode in v.all("linux/bond/*/mode") {
        let bond = mode.word(2);
        let policy = v.first(&format!("linux/bond/{bond}/xmit_hash_policy"));
        match (mode.value(), policy) {
            ("balance-alb" | "balance-rr" | "active-backup" | "broadcast", Some(policy))
                if policy.value() != "layer2" =>
            {
                r.bad(
                    "bond-policy-inert",
                    &[mode, policy],
                    format!("{bond}: {} does not use xmit_hash_policy {}", mode.value(), policy.value()),
                );
            }
            ("802.3ad" | "balance-xor", Some(policy)) => {
                let ports = matches!(policy.value(), "layer3+4" | "encap3+4" | "1" | "4");
                r.verdict(
                    "bond-policy-without-ports",
                    ports,
                    &[mode, policy],
                    format!("{bond}: {} with {}", mode.value(), policy.value()),
                );
            }
            ("802.3ad" | "balance-xor", None) => {
                r.bad(
                    "bond-policy-without-ports",
                    &[mode],
                    format!("{bond}: {} with the default policy layer2", mode.value()),
                );
            }
            _ => {}
        }
    }
}

fn rings(v: &View<'_>, r: &mut Report) {
    for side in ["rx", "tx"] {
        for ring in v.all(&format!("linux/ethtool/*/ring/{side}")) {
            let Some(most) = v.number(&format!("linux/ethtool/{}/ring/max-{side}", ring.word(2))) else {
                continue;
            };
            let Some(now) = ring.number() else { continue };
            let what = format!("{}: {side} ring {now}, the card can {}", ring.word(2), most.1);
            if now > most.1 {
                r.bad("ring-above-card", &[ring, most.0], what);
            } else {
                r.verdict("ring-small", now >= most.1 / 2.0, &[ring, most.0], what);
            }
        }
    }
}

/// Commands of one kind should reach the same ports as those of another.
fn port_sets(v: &View<'_>, r: &mut Report) {
    let mut sets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut hits: Vec<Hit<'_>> = Vec::new();
    let commands: BTreeSet<u32> = v.all("command/ethtool").iter().map(Hit::line).collect();
    for hit in v.all("linux/ethtool/*/*/*").into_iter().filter(|h| commands.contains(&h.line())) {
        sets.entry(hit.word(3)).or_default().insert(hit.word(2));
        hits.push(hit);
    }
    let distinct: BTreeSet<&BTreeSet<&str>> = sets.values().collect();
    if sets.len() > 1 {
        let said: Vec<String> = sets
            .iter()
            .map(|(table, ports)| {
                format!("{table} on {}", ports.iter().copied().collect::<Vec<_>>().join(", "))
            })
            .collect();
        r.verdict("settings-on-other-ports", distinct.len() == 1, &hits, said.join("; "));
    }
}

fn buses(v: &View<'_>, r: &mut Report) {
    for (what, rule) in [("width", "pcie-narrow"), ("speed", "pcie-slow")] {
        for can in v.all(&format!("pci/*/can-{what}")) {
            let Some(is) = v.first(&format!("pci/{}/is-{what}", can.word(1))) else { continue };
            let number = |hit: Hit<'_>| hit.value().trim_start_matches('x').parse::<f64>().ok();
            if let (Some(most), Some(now)) = (number(can), number(is)) {
                r.verdict(
                    rule,
                    now >= most,
                    &[can, is],
                    format!("{}: link {what} {}, the card can {}", can.word(1), is.value(), can.value()),
                );
            }
        }
    }
}

/// Members of one bond that differ, or are down.
fn members(v: &View<'_>, r: &mut Report) {
    let mut speeds: BTreeMap<&str, Vec<Hit<'_>>> = BTreeMap::new();
    for speed in v.all("linux/member/*/speed") {
        let bond = v.first(&format!("linux/member/{}/bond", speed.word(2))).map_or("?", |h| h.value());
        speeds.entry(bond).or_default().push(speed);
    }
    for (bond, hits) in speeds {
        let values: BTreeSet<&str> = hits.iter().map(Hit::value).collect();
        r.verdict(
            "bond-members-differ",
            values.len() == 1,
            &hits,
            format!("{bond}: members at {}", values.into_iter().collect::<Vec<_>>().join(" and ")),
        );
    }
    // Members of 802.3ad with other aggregators form groups of their own, of which one is used.
    let mut groups: BTreeMap<&str, Vec<Hit<'_>>> = BTreeMap::new();
    for id in v.all("linux/member/*/aggregator-id") {
        let bond = v.first(&format!("linux/member/{}/bond", id.word(2))).map_or("?", |h| h.value());
        groups.entry(bond).or_default().push(id);
    }
    for (bond, hits) in groups.into_iter().filter(|(_, hits)| hits.len() > 1) {
        let ids: BTreeSet<&str> = hits.iter().map(Hit::value).collect();
        r.verdict(
            "dump-bond-aggregators-differ",
            ids.len() == 1,
            &hits,
            format!("{bond}: {} aggregators", ids.len()),
        );
    }
}

/// A command that sets coalescing: what its value is made of.
fn coalescing(v: &View<'_>, r: &mut Report) {
    let told: Vec<Hit<'_>> = v.all("nvme/coalescing/*");
    if let Some(first) = told.first() {
        r.bad("nvme-coalescing-encoding", &told, format!("{}-feature 8: bits 7:0 are the count less one, bits 15:8 the time in 100 µs; either at 0 turns it off", first.word(2).trim_end_matches("-feature")));
    }
}

/// What a program may ask for is bounded by the kernel.
fn buffers(v: &View<'_>, r: &mut Report) {
    for (auto, most) in
        [("net.ipv4.tcp_rmem", "net.core.rmem_max"), ("net.ipv4.tcp_wmem", "net.core.wmem_max")]
    {
        let (Some(auto), Some(most)) =
            (v.first(&format!("linux/sysctl/{auto}")), v.number(&format!("linux/sysctl/{most}")))
        else {
            continue;
        };
        let Some(grows) = auto.value().split_whitespace().last().and_then(|n| n.parse::<f64>().ok()) else {
            continue;
        };
        r.verdict(
            "sysctl-buffer-asked-smaller",
            most.1 >= grows / 2.0,
            &[auto, most.0],
            format!("the kernel grows a buffer to {grows}, a program may ask for {}", most.1),
        );
    }
}

/// Paths of a map.
fn paths(v: &View<'_>, r: &mut Report) {
    let mut maps: BTreeMap<&str, Vec<Hit<'_>>> = BTreeMap::new();
    for path in v.all("multipath/*/path") {
        maps.entry(path.word(1)).or_default().push(path);
    }
    for (map, hits) in maps {
        let failed: Vec<Hit<'_>> = hits
            .iter()
            .copied()
            .filter(|h| h.value().contains("failed") || h.value().contains("faulty"))
            .collect();
        r.verdict(
            "multipath-failed",
            failed.is_empty(),
            if failed.is_empty() { &hits } else { &failed },
            format!("{map}: {} of {} paths failed", failed.len(), hits.len()),
        );
        r.verdict("multipath-single", hits.len() > 1, &hits, format!("{map}: {} path(s)", hits.len()));
    }
}
