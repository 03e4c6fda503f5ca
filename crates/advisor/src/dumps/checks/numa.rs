//! Topology of a partition, its DMA windows and threads, and the profile of a network test.

use super::super::{
    split::Document,
    view::{Hit, Report, View},
};

/// The kernel's table of the default window, in bytes.
const DEFAULT_WINDOW: f64 = (2u64 << 30) as f64;

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    topologies(v, r);
    windows(v, r);
    threads(v, r);
    profile(v, r);
}

/// One listing of `numactl -H`.
struct Topology<'a> {
    first: u32,
    cpus: Vec<(Hit<'a>, usize)>,
    megabytes: f64,
    available: Option<Hit<'a>>,
    /// The node that stands in more than one place, or the CPU.
    twice: Option<String>,
}

fn read(doc: &Document) -> Vec<Topology<'_>> {
    let listings = doc.listings.iter().filter(|l| l.kind == "numactl -H");
    listings
        .map(|listing| {
            let ends = |name: &str| {
                listing
                    .entries
                    .iter()
                    .filter(move |e| e.path.starts_with("numa/node/") && e.path.ends_with(name))
                    .map(|entry| Hit { entry })
                    .collect::<Vec<_>>()
            };
            let cpus: Vec<(Hit<'_>, usize)> =
                ends("/cpus").into_iter().map(|h| (h, h.value().split_whitespace().count())).collect();
            let mut seen = std::collections::BTreeSet::new();
            let twice = cpus
                .iter()
                .flat_map(|(h, _)| h.value().split_whitespace())
                .find(|cpu| !seen.insert(*cpu))
                .map(str::to_owned);
            Topology {
                first: listing.first,
                megabytes: ends("/size")
                    .iter()
                    .filter_map(|h| h.value().split_whitespace().next()?.parse::<f64>().ok())
                    .sum(),
                available: listing
                    .entries
                    .iter()
                    .find(|e| e.path == "numa/available")
                    .map(|entry| Hit { entry }),
                cpus,
                twice,
            }
        })
        .collect()
}

/// How uneven nodes are: 0 where all have the same CPUs, near 1 where one has nearly all.
fn unevenness(cpus: &[(Hit<'_>, usize)]) -> f64 {
    let counts: Vec<f64> = cpus.iter().map(|(_, n)| *n as f64).filter(|n| *n > 0.0).collect();
    let most = counts.iter().copied().fold(0.0, f64::max);
    let least = counts.iter().copied().fold(f64::MAX, f64::min);
    if most > 0.0 { 1.0 - least / most } else { 0.0 }
}

fn topologies(v: &View<'_>, r: &mut Report) {
    let all = read(v.doc);
    for topology in all.iter().filter(|t| !t.cpus.is_empty()) {
        let hits: Vec<Hit<'_>> = topology.cpus.iter().map(|(h, _)| *h).collect();
        let count: usize = topology.cpus.iter().map(|(_, n)| n).sum();
        let summary = format!(
            "line {}: {} nodes, {count} CPUs, {:.1} GiB",
            v.doc.at(topology.first),
            topology.cpus.len(),
            topology.megabytes / 1024.0
        );
        if let Some(said) = topology.available {
            let right = said.number() == Some(topology.cpus.len() as f64);
            r.verdict(
                "numa-does-not-add-up",
                right && topology.twice.is_none(),
                &[said],
                match &topology.twice {
                    Some(cpu) => format!("{summary}: CPU {cpu} stands in two nodes"),
                    None => format!("{summary}, {} said", said.value()),
                },
            );
        }
        let uneven = unevenness(&topology.cpus);
        let odd: Vec<Hit<'_>> = {
            let mut counts: Vec<usize> = topology.cpus.iter().map(|(_, n)| *n).collect();
            counts.sort_unstable();
            let usual = counts[counts.len() / 2];
            topology.cpus.iter().filter(|(_, n)| *n != usual).map(|(h, _)| *h).collect()
        };
        let names: Vec<String> = odd
            .iter()
            .map(|h| format!("node {} has {}", h.word(2), h.value().split_whitespace().count()))
            .collect();
        if uneven > 0.0 {
            r.bad(
                "numa-fragmented",
                &odd,
                format!("{summary}; unevenness {uneven:.2}: {}", names.join(", ")),
            );
        } else if topology.cpus.len() > 1 {
            r.good("numa-fragmented", &hits, format!("{summary}, all nodes alike"));
        }
        for memory in v.all("says/memory-gb").iter().filter(|m| m.line() < topology.first) {
            let Some(said) = memory.number() else { continue };
            let got = topology.megabytes / 1024.0;
            // Only the partition of that size: others in the document are of other partitions.
            if (said - got).abs() / said < 0.05 {
                r.bad(
                    "numa-less-than-configured",
                    &[*memory],
                    format!(
                        "{summary}; {said} GB configured, {:.2} of them kept by firmware and kernel",
                        said - got
                    ),
                );
            }
        }
    }
    if let [before, after] = all.as_slice() {
        let cpus = |t: &Topology<'_>| t.cpus.iter().map(|(_, n)| n).sum::<usize>();
        if cpus(before) == cpus(after) && before.cpus.len() != after.cpus.len() {
            let hits: Vec<Hit<'_>> = [before.available, after.available].into_iter().flatten().collect();
            let what = format!(
                "the same {} CPUs on {} nodes in line {}, on {} in line {}: unevenness {:.2} and {:.2}",
                cpus(before),
                before.cpus.len(),
                before.first,
                after.cpus.len(),
                after.first,
                unevenness(&before.cpus),
                unevenness(&after.cpus)
            );
            r.bad("numa-two-topologies", &hits, what);
        }
    }
    for broken in v.all("text/broken-line") {
        r.bad("broken-line", &[broken], format!("{}; both lines were read", broken.value()));
    }
}

fn windows(v: &View<'_>, r: &mut Report) {
    // The largest memory that is stated bounds what any partition here must map.
    let memory = v
        .all("says/memory-gb")
        .into_iter()
        .max_by(|a, b| a.number().partial_cmp(&b.number()).unwrap_or(std::cmp::Ordering::Equal));
    for rc in v.all("dma/*/rc") {
        let device = rc.word(1);
        r.verdict(
            "dma-window-refused",
            rc.value() == "0",
            &[rc],
            format!("{device}: create-pe-dma-window returned {}", rc.value()),
        );
        let (Some((shift_hit, shift)), Some((_, page))) =
            (v.number(&format!("dma/{device}/window-shift")), v.number(&format!("dma/{device}/page-shift")))
        else {
            continue;
        };
        let window = 2f64.powf(shift.min(80.0));
        let pages = format!("{} KiB pages", 2f64.powf(page.min(60.0) - 10.0));
        let tib = window / 2f64.powi(40);
        let needed = match memory.and_then(|m| m.number()) {
            Some(gb) => gb * 2f64.powi(30),
            None => DEFAULT_WINDOW,
        };
        let hits: Vec<Hit<'_>> = [Some(shift_hit), memory].into_iter().flatten().collect();
        let what = format!(
            "{device}: window of {tib} TiB in {pages} for {:.2} TiB of memory",
            needed / 2f64.powi(40)
        );
        r.verdict("dma-window-small", window >= needed, &hits, what);
    }
}

fn threads(v: &View<'_>, r: &mut Report) {
    for said in v.all("says/threads") {
        let numbers: Vec<f64> =
            said.value().split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        if let [processors, cpus] = numbers.as_slice()
            && *processors > 0.0
            && cpus > processors
        {
            r.bad(
                "cpus-are-threads",
                &[said],
                format!("{cpus} CPUs are threads of {processors} processors, {} each", cpus / processors),
            );
        }
    }
}

fn profile(v: &View<'_>, r: &mut Report) {
    let (dollar, plain) = (v.all("uperf/placeholder/dollar"), v.all("uperf/placeholder/plain"));
    if let (Some(d), Some(p)) = (dollar.first(), plain.first()) {
        r.bad(
            "uperf-placeholders",
            &[*d, *p],
            format!(
                "{} here, {} there: uperf takes $name from the environment and nothing else",
                d.value(),
                p.value()
            ),
        );
    }
    let unitless: Vec<Hit<'_>> = v
        .all("uperf/transaction/duration")
        .into_iter()
        .filter(|h| h.value().parse::<f64>().is_ok())
        .collect();
    if let Some(first) = unitless.first() {
        r.bad(
            "uperf-duration-unit",
            &unitless,
            format!("duration {} has no unit: uperf takes seconds", first.value()),
        );
    }
}
