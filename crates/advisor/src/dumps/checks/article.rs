//! What an article states against what it states elsewhere, and against what stands in its listings.

use std::collections::BTreeMap;

use super::super::view::{Hit, Report, View};

const MODES: [(&str, &str); 6] = [
    ("balance-rr", "0"),
    ("active-backup", "1"),
    ("balance-xor", "2"),
    ("802.3ad", "4"),
    ("balance-tlb", "5"),
    ("balance-alb", "6"),
];

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    versions(v, r);
    links(v, r);
    leftovers(v, r);
    bonding(v, r);
    ranges(v, r);
    shape(v, r);
    oddities(v, r);
}

/// Values by the last word of their paths.
fn grouped<'a>(hits: Vec<Hit<'a>>, word: usize) -> BTreeMap<&'a str, Vec<Hit<'a>>> {
    let mut groups: BTreeMap<&str, Vec<Hit<'_>>> = BTreeMap::new();
    for hit in hits {
        groups.entry(hit.word(word)).or_default().push(hit);
    }
    groups
}

fn versions(v: &View<'_>, r: &mut Report) {
    for (product, hits) in grouped(v.all("says/version/*"), 2) {
        if hits.len() > 1 {
            let same = hits.iter().all(|h| h.value() == hits[0].value());
            let values: Vec<&str> = hits.iter().map(Hit::value).collect();
            r.verdict(
                "version-contradiction",
                same,
                &hits,
                format!("{product} is given as {}", values.join(" and as ")),
            );
        }
    }
}

/// Links from the servers against the ports of their bonds.
fn links(v: &View<'_>, r: &mut Report) {
    let (Some(ports), Some(servers)) = (v.number("says/bond-ports"), v.number("says/servers")) else {
        return;
    };
    let from = v.all("says/links-from/*").into_iter().find(|h| h.word(2) != "client");
    if let Some(stated) = from {
        let counted = ports.1 * servers.1;
        r.verdict(
            "links-do-not-add-up",
            stated.number() == Some(counted),
            &[stated, ports.0, servers.0],
            format!(
                "{} links from {}, but {} ports a bond on {} servers are {counted}",
                stated.value(),
                stated.word(2),
                ports.1,
                servers.1
            ),
        );
    }
}

/// A thing that was switched, of which the text says nothing else.
fn leftovers(v: &View<'_>, r: &mut Report) {
    for what in v.all("says/when-enabled") {
        let word = what.value().to_lowercase();
        if v.all(&format!("says/spoken-of/{word}")).len() == 1 {
            r.bad(
                "leftover-condition",
                &[what],
                format!("\"when {word} is enabled\": nothing else in the text is about {word}"),
            );
        }
    }
}

fn bonding(v: &View<'_>, r: &mut Report) {
    for said in v.all("says/bond-mode/*") {
        let Some((name, number)) = MODES.iter().find(|(name, _)| *name == said.word(2)) else { continue };
        let meant = MODES.iter().find(|(_, n)| *n == said.value()).map_or("no mode", |(name, _)| name);
        r.verdict(
            "bond-mode-number",
            said.value() == *number,
            &[said],
            format!("{name} is mode {number}; {} is {meant}", said.value()),
        );
    }
    for policy in v.all("says/hash-policy") {
        let known = [
            "0",
            "1",
            "2",
            "3",
            "4",
            "5",
            "layer2",
            "layer3+4",
            "layer2+3",
            "encap2+3",
            "encap3+4",
            "vlan+srcmac",
        ]
        .contains(&policy.value());
        r.verdict(
            "hash-policy-word",
            known,
            &[policy],
            format!(
                "xmit_hash_policy={}{}",
                policy.value(),
                if known { "" } else { " is no value the kernel takes: layer3+4 is meant" }
            ),
        );
    }
    let formulas = v.all("says/hash-formula");
    let open: Vec<Hit<'_>> = formulas
        .iter()
        .copied()
        .filter(|h| {
            let mut counts = h.value().split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
            counts.next() != counts.next()
        })
        .collect();
    if !open.is_empty() {
        r.bad(
            "formula-parentheses",
            &open,
            format!("{} of {} formulas have parentheses that do not match", open.len(), formulas.len()),
        );
    }
    if !formulas.is_empty() {
        r.bad("hash-formula-old", &formulas, "the formulas are those of the kernel's documentation of before 2012: today all bytes are folded, and layer3+4 is shifted right by one");
    }
}

fn ranges(v: &View<'_>, r: &mut Report) {
    if let Some(range) = v.first("says/range/maxTcpConnsPerNodeConn") {
        r.verdict(
            "range-of-which-release",
            range.value() == "1-16",
            &[range],
            format!("maxTcpConnsPerNodeConn {}: from 5.1.5 on it is 1-16", range.value()),
        );
    }
    for connection in v.all("says/gb-per-second/single-connection") {
        let link = v.all("says/gb-per-second/link-can").into_iter().rfind(|l| l.line() < connection.line());
        let (Some(link), Some(one)) = (link, connection.number()) else { continue };
        let Some(all) = link.number() else { continue };
        let (needed, default) =
            ((all / one.max(0.001)).ceil(), v.number("says/default/maxTcpConnsPerNodeConn"));
        if let Some((default, k)) = default {
            r.verdict("default-connections-few", k >= needed, &[connection, link, default], format!("one connection moved {one} of {all} GB/s: {needed} connections are needed, the default is {k}"));
        }
    }
    if let (Some(most), Some(link)) =
        (v.number("says/gb-per-second/at-most"), v.all("says/gb-per-second/link-can").last().copied())
    {
        let can = link.number().unwrap_or(0.0);
        r.verdict(
            "host-below-links",
            most.1 >= can * 0.9,
            &[most.0, link],
            format!("{} of {can} GB/s: the links are not what bounds", most.1),
        );
    }
    if let Some(rule) = v.first("says/block-rule") {
        r.bad("block-rule-old-format", &[rule], "application block × 32");
    }
}

/// What the text points to and does not hold.
fn shape(v: &View<'_>, r: &mut Report) {
    let figures = v.all("says/figure");
    if !figures.is_empty() {
        let numbers: std::collections::BTreeSet<&str> = figures.iter().map(Hit::value).collect();
        r.bad(
            "figures-missing",
            &figures,
            format!("{} of them; their numbers cannot be judged", numbers.len()),
        );
    }
    let units = grouped(v.all("says/step-unit"), 1);
    if let Some(hits) = units.get("step-unit") {
        let kinds: std::collections::BTreeSet<&str> = hits.iter().map(Hit::value).collect();
        r.verdict(
            "steps-of-two-units",
            kinds.len() == 1,
            hits,
            format!("the steps are counted in {}", kinds.into_iter().collect::<Vec<_>>().join(" and in ")),
        );
    }
}

/// What is odd about the bytes themselves.
fn oddities(v: &View<'_>, r: &mut Report) {
    for quotes in v.all("text/typographic-quotes") {
        r.bad(
            "typographic-quotes",
            &[quotes],
            format!("{}: a shell takes these quotes for letters", quotes.value()),
        );
    }
    for ruler in v.all("text/ruler") {
        r.bad(
            "table-without-ruler",
            &[ruler],
            format!(
                "the table of line {} has no ruler above its head: it was read by the head itself",
                ruler.line()
            ),
        );
    }
    for (what, said) in [
        ("line-ends", "lines end as on DOS: a shell takes the carriage return for a letter"),
        ("encoding", "the text is not UTF-8"),
        ("cut", "the input was cut off"),
    ] {
        if let Some(hit) = v.first(&format!("text/{what}")) {
            r.bad("text-form", &[hit], said);
        }
    }
    for tuner in v
        .all("command/mlnx_tune")
        .iter()
        .filter(|h| h.value().split_whitespace().any(|w| w == "-r") && !h.value().contains("-p"))
    {
        r.bad(
            "mlnx-tune-reports",
            &[*tuner],
            format!("mlnx_tune {}: -r reports and -c colours; a profile (-p) is what tunes", tuner.value()),
        );
    }
}
