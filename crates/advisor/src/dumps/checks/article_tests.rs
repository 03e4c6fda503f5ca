//! The tests that an article tells of: figures that contradict each other, extrapolations, units.

use std::collections::{BTreeMap, BTreeSet};

use super::super::view::{Hit, Report, View};

/// Two figures of one measure this close are the same within noise.
const NOISE: f64 = 0.005;

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    per_core(v, r);
    extrapolation(v, r);
    repeated(v, r);
    files(v, r);
    generations(v, r);
    limits(v, r);
    on_the_wire(v, r);
}

fn per_core(v: &View<'_>, r: &mut Report) {
    let (Some(all), Some(core), Some(cores)) =
        (v.number("says/average-gbps"), v.number("says/mbps-per-core"), v.number("says/cores"))
    else {
        return;
    };
    let (decimal, binary) = (all.1 * 1000.0 / cores.1, all.1 * 1024.0 / cores.1);
    let what = format!(
        "{} GBps over {} cores are {decimal:.0} MB or {binary:.0} MiB a core; {} is stated",
        all.1, cores.1, core.1
    );
    r.verdict("unit-decimal-or-binary", (decimal - core.1).abs() < 0.5, &[all.0, core.0, cores.0], what);
}

/// A claim for more clients against the steps that were measured.
fn extrapolation(v: &View<'_>, r: &mut Report) {
    let get = |name: &str| v.number(&format!("says/steps/{name}"));
    let (Some(step), Some(gain), Some(reached), Some(more), Some(claim)) =
        (get("clients"), get("gain"), get("reached"), get("more"), get("claim"))
    else {
        return;
    };
    let each = gain.1 / step.1;
    let last = get("last-gain").map_or(each, |(_, g)| g);
    let now = ((reached.1 - 1.0) / step.1).floor() * gain.1 + last;
    let (by_client, by_step) = (now + more.1 * each, now + more.1 * gain.1);
    let what = format!(
        "{} at {} clients; {} more clients give {by_client}, {} more steps of {} clients {by_step}: {} fits {}",
        now,
        reached.1,
        more.1,
        more.1,
        step.1,
        claim.1,
        if (by_client - claim.1).abs() < claim.1 * 0.05 {
            "clients"
        } else if (by_step - claim.1).abs() < claim.1 * 0.05 {
            "steps, not clients"
        } else {
            "neither"
        }
    );
    r.verdict(
        "extrapolation-unit",
        (by_client - claim.1).abs() < claim.1 * 0.05,
        &[step.0, gain.0, reached.0, more.0, claim.0],
        what,
    );
}

/// The same measure with several figures.
fn repeated(v: &View<'_>, r: &mut Report) {
    let mut by_path: BTreeMap<&str, Vec<Hit<'_>>> = BTreeMap::new();
    for hit in v.all("says/throughput/*/*").into_iter().chain(v.all("says/iops/*")) {
        by_path.entry(&hit.entry.path).or_default().push(hit);
    }
    let figure = |hit: &Hit<'_>| hit.value().split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
    for (path, hits) in by_path {
        let name = path.trim_start_matches("says/throughput/").trim_start_matches("says/").replace('/', " ");
        let Some(first) = hits.first().and_then(figure) else { continue };
        // A figure far from the first is of another setting, and no other figure for the same.
        let near: Vec<Hit<'_>> = hits
            .iter()
            .copied()
            .filter(|h| figure(h).is_some_and(|f| (f - first).abs() / first < 0.2))
            .collect();
        let values: BTreeSet<&str> = near.iter().map(Hit::value).collect();
        if near.len() < 2 {
            continue;
        }
        let spread = near.iter().filter_map(figure).map(|f| (f - first).abs() / first).fold(0.0, f64::max);
        let listed = values.iter().copied().collect::<Vec<_>>().join(", ");
        if values.len() == 1 {
            r.good("figure-contradiction", &near, format!("{name}: {listed} in both places"));
        } else if spread < NOISE {
            r.bad(
                "difference-is-noise",
                &near,
                format!("{name}: {listed}, {:.2} % apart: no change can be read from that", spread * 100.0),
            );
        } else {
            r.bad("figure-contradiction", &near, format!("{name}: {listed}: other runs, not to be mixed"));
        }
    }
}

fn files(v: &View<'_>, r: &mut Report) {
    let sizes = v.all("says/file-size");
    let values: Vec<&str> = sizes.iter().map(Hit::value).collect();
    if values.iter().collect::<BTreeSet<_>>().len() > 1 {
        r.bad(
            "tests-with-other-files",
            &sizes,
            format!("files of {}: each is of another test", values.join(", ")),
        );
    }
    for size in v.all("says/database-size-kib").iter().filter(|s| s.number().is_some_and(|n| n <= 1024.0)) {
        r.bad(
            "record-size-meant",
            &[*size],
            format!("a \"database size\" of {} KiB is the record size of the share", size.value()),
        );
    }
}

fn generations(v: &View<'_>, r: &mut Report) {
    let (fabric, adapter) = (v.all("says/infiniband/fabric"), v.all("says/infiniband/adapter"));
    if let (Some(f), Some(a)) = (fabric.first(), adapter.first()) {
        let hits: Vec<Hit<'_>> = fabric.iter().chain(&adapter).copied().collect();
        r.verdict(
            "fabric-above-adapter",
            f.value() == a.value(),
            &hits,
            format!("a {} fabric with {} adapters runs at {}", f.value(), a.value(), a.value()),
        );
    }
    let spellings = v.all("says/spelling/*");
    if let Some(first) = spellings.first() {
        let words: BTreeSet<&str> = spellings.iter().map(Hit::value).collect();
        r.bad(
            "misspelt",
            &spellings,
            format!("{} is also written {}", first.word(2), words.into_iter().collect::<Vec<_>>().join(", ")),
        );
    }
}

/// What kept tests from more, by what the article itself says of them.
fn limits(v: &View<'_>, r: &mut Report) {
    for share in v.all("says/share-of-expected") {
        let Some(percent) = share.number() else { continue };
        r.verdict(
            "scaling-falls-off",
            percent >= 80.0,
            &[share],
            format!("the last step reaches {percent} % of what was expected"),
        );
    }
    let few: Vec<Hit<'_>> =
        v.all("says/clients").into_iter().filter(|hit| hit.value() == "too few").collect();
    if !few.is_empty() {
        let what = "the text says so itself: its figures are what the clients could ask for";
        r.bad("clients-are-the-limit", &few, what);
    }
    for fell in v.all("says/fell-while-running") {
        let percent = fell.number().unwrap_or(0.0);
        r.verdict(
            "rate-falls-with-time",
            percent < 15.0,
            &[fell],
            format!("{percent} % less after a long run"),
        );
    }
}

/// Payload against what devices carried, and counters against the time in which they wrap.
fn on_the_wire(v: &View<'_>, r: &mut Report) {
    let get = |name: &str| v.number(&format!("says/synchronous/{name}"));
    if let (Some(rate), Some(size), Some(device)) = (get("iops"), get("bytes"), get("mbps-per-device")) {
        let payload = rate.1 * size.1 / 1e6;
        // What comes beside the payload is less than its half, also of 4 KiB writes.
        let devices = (payload / device.1.max(0.001)).ceil().max(1.0);
        let ratio = devices * device.1 / payload.max(0.001);
        let what = format!(
            "{} writes of {} KiB are {payload:.1} MB/s; {} MB/s on each of {devices} devices are {ratio:.2} times that",
            rate.1,
            size.1 / 1024.0,
            device.1
        );
        r.verdict("payload-and-wire", ratio < 1.5, &[rate.0, size.0, device.0], what);
    }
    if let Some(bits) = v.first("says/counter-bits").filter(|bits| bits.value() == "32") {
        r.bad(
            "counter-wraps",
            &[bits],
            "at 1 GB/s 32 bits are full after 4.3 s, counted in words of four bytes (as InfiniBand ports do) after 17 s",
        );
    }
}
