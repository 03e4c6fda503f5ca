//! Dumps of Storage Scale's configuration as texts: duplicates, marks, spellings, what one dump says against another.

use super::super::{
    listing::Listing,
    view::{Hit, Report, View},
};

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    let dumps: Vec<&Listing> = v.doc.listings.iter().filter(|l| l.kind == "mmdiag --config").collect();
    duplicates(v, r);
    spellings(v, r);
    for dump in &dumps {
        marks(v, dump, r);
        memory(v, dump, r);
    }
    if let [first, second] = dumps.as_slice() {
        differences(first, second, r);
    }
    vdisks(v, r);
    rate(v, r);
}

fn find<'a>(dump: &'a Listing, name: &str) -> Option<Hit<'a>> {
    let path = format!("scale/config/{name}");
    dump.entries.iter().find(|e| e.path.eq_ignore_ascii_case(&path)).map(|entry| Hit { entry })
}

fn duplicates(v: &View<'_>, r: &mut Report) {
    let hits = v.all("text/duplicate");
    let changed = hits.iter().any(|h| h.value().ends_with("another value"));
    if let Some(first) = hits.first() {
        let what = format!(
            "{} lines come twice{}, first {}",
            hits.len(),
            if changed { ", some with another value" } else { " with the same value" },
            first.value().split(':').next().unwrap_or("")
        );
        r.bad(if changed { "duplicate-contradiction" } else { "duplicate-lines" }, &hits, what);
    }
    let remarks = v.all("text/remark-in-name");
    let mut names: Vec<&str> = remarks.iter().map(Hit::value).collect();
    names.dedup();
    if let Some(name) = names.first() {
        r.bad(
            "remark-in-name",
            &remarks,
            format!("{name}: what stands in parentheses is no part of the name"),
        );
    }
}

fn spellings(v: &View<'_>, r: &mut Report) {
    let mut hits = v.all("scale/config/seqDiscardThreshhold");
    hits.extend(v.all("scale/mmchconfig/seqDiscardThreshhold"));
    if !hits.is_empty() {
        r.bad(
            "scale-double-h",
            &hits,
            "seqDiscardThreshhold: the daemon writes two h, the documentation one; both are the same setting",
        );
    }
}

/// Values that follow from `workerThreads` and are marked as changed by hand.
fn marks(v: &View<'_>, dump: &Listing, r: &mut Report) {
    let Some((master, w)) = find(dump, "workerThreads").and_then(|h| Some((h, h.number()?))) else { return };
    let follows = [
        ("worker1Threads", w),
        ("prefetchThreads", (w / 3.0).floor()),
        ("syncWorkerThreads", w / 4.0),
        ("logWrapThreads", w / 8.0),
        ("worker3Threads", w / 32.0),
        ("maxBufferCleaners", w),
        ("maxFileCleaners", w),
        ("flushedDataTarget", w),
        ("flushedInodeTarget", w),
        ("maxInodeDeallocPrefetch", w / 8.0),
    ];
    let marked = |name: &str| {
        let path = format!("scale/mark/{name}");
        dump.entries.iter().find(|e| e.path.eq_ignore_ascii_case(&path)).map(|e| e.value.as_str())
    };
    let as_derived: Vec<Hit<'_>> = follows
        .iter()
        .filter(|(name, _)| marked(name) == Some("changed"))
        .filter_map(|(name, value)| find(dump, name).filter(|h| h.number() == Some(*value)))
        .collect();
    if !as_derived.is_empty() {
        let says = v.first("says/marks").map_or(String::new(), |h| {
            format!("; line {} tells of a period for such values", v.doc.at(h.line()))
        });
        let names: Vec<&str> = as_derived.iter().map(|h| h.word(2)).collect();
        let mut hits = as_derived.clone();
        hits.push(master);
        r.bad("scale-autotuned-marked", &hits, format!("{} of line {} on have the values that workerThreads {w} gives and the mark of a change{says}", names.join(", "), v.doc.at(dump.first)));
    }
}

/// What the settings of one node take together.
fn memory(v: &View<'_>, dump: &Listing, r: &mut Report) {
    let pool = find(dump, "pagepool").and_then(|h| Some((h, h.number()?)));
    if let (Some((pool, bytes)), Some(share)) = (pool, find(dump, "nsdRAIDBufferPoolSizePct"))
        && let Some(percent) = share.number()
    {
        let gib = |b: f64| b / 2f64.powi(30);
        r.verdict(
            "scale-gnr-share",
            percent <= 85.0,
            &[pool, share],
            format!(
                "{:.2} GiB of a page pool of {:.2} GiB are buffers of the RAID",
                gib(bytes * percent / 100.0),
                gib(bytes)
            ),
        );
    }
    if let (Some((pool, bytes)), Some(block)) = (pool, find(dump, "maxblocksize"))
        && let Some(size) = block.number()
    {
        let blocks = bytes / size.max(1.0);
        r.verdict(
            "scale-pagepool-blocks",
            blocks >= 64.0,
            &[pool, block],
            format!(
                "the page pool from line {} on holds {blocks:.0} blocks of {} MiB",
                v.doc.at(dump.first),
                size / 2f64.powi(20)
            ),
        );
    }
    if let Some((pool, bytes)) = pool {
        r.verdict(
            "scale-pagepool-small",
            bytes >= (4u64 << 30) as f64,
            &[pool],
            format!(
                "pagepool {:.2} GiB in the dump from line {} on",
                bytes / 2f64.powi(30),
                v.doc.at(dump.first)
            ),
        );
    }
    let sum: Vec<(Hit<'_>, f64)> = ["workerThreads", "prefetchThreads", "nsdMaxWorkerThreads"]
        .iter()
        .filter_map(|n| find(dump, n))
        .filter_map(|h| Some((h, h.number()?)))
        .collect();
    if sum.len() == 3 {
        let total: f64 = sum.iter().map(|(_, n)| n).sum();
        r.verdict(
            "scale-workers-sum",
            total <= 8192.0,
            &sum.iter().map(|(h, _)| *h).collect::<Vec<_>>(),
            format!("worker, prefetch and NSD threads together {total}, bound 8192"),
        );
    }
    if let (Some(least), Some(most)) = (find(dump, "nsdMinWorkerThreads"), find(dump, "nsdMaxWorkerThreads"))
    {
        r.verdict(
            "scale-nsd-threads-order",
            least.number() <= most.number(),
            &[least, most],
            format!("nsdMinWorkerThreads {}, nsdMaxWorkerThreads {}", least.value(), most.value()),
        );
    }
    for (low, high) in [
        ("nsdRAIDFlusherThreadsLowWatermark", "nsdRAIDFlusherThreadsHighWatermark"),
        ("nsdRAIDFlusherBuffersLowWatermarkPct", "nsdRAIDFlusherBuffersLimitPct"),
        ("nsdRAIDFlusherTracksLowWatermarkPct", "nsdRAIDFlusherTracksLimitPct"),
        ("nsdRAIDFlusherFWLogHighWatermarkMB", "nsdRAIDFlusherFWLogLimitMB"),
    ] {
        if let (Some(low), Some(high)) = (find(dump, low), find(dump, high)) {
            r.verdict(
                "scale-watermarks",
                low.number() < high.number(),
                &[low, high],
                format!("{} {} below {} {}", low.word(2), low.value(), high.word(2), high.value()),
            );
        }
    }
    if let Some(pct) = find(dump, "prefetchPct") {
        r.verdict(
            "scale-prefetch-pct",
            pct.number().is_some_and(|p| p <= 60.0),
            &[pct],
            format!("prefetchPct {}", pct.value()),
        );
    }
    let (scatter, size) = (find(dump, "scatterBuffers"), find(dump, "scatterBufferSize"));
    if let (Some(scatter), Some(size)) = (scatter.filter(|s| s.value() == "0"), size) {
        r.bad(
            "scale-no-effect",
            &[scatter, size],
            format!("scatterBufferSize {} has no effect: scatterBuffers is 0", size.value()),
        );
    }
    let nsd_server = find(dump, "nsdMaxWorkerThreads").is_some();
    if let (Some(stat), true) = (find(dump, "maxStatCache"), nsd_server) {
        r.bad(
            "scale-statcache-linux",
            &[stat],
            format!("maxStatCache {}: of no effect on Linux in releases of that time", stat.value()),
        );
    }
}

/// The same name in two dumps.
fn differences(first: &Listing, second: &Listing, r: &mut Report) {
    let mut same = 0;
    for entry in first.entries.iter().filter(|e| e.path.starts_with("scale/config/")) {
        let Some(other) = second.entries.iter().find(|e| e.path.eq_ignore_ascii_case(&entry.path)) else {
            continue;
        };
        if other.value == entry.value {
            same += 1;
        } else {
            let name = entry.path.trim_start_matches("scale/config/");
            r.bad(
                "scale-nodes-differ",
                &[Hit { entry }, Hit { entry: other }],
                format!(
                    "{name}: {} from line {} on, {} from line {} on",
                    entry.value, first.first, other.value, second.first
                ),
            );
        }
    }
    if let (true, Some(entry)) = (same > 0, first.entries.first()) {
        r.good("scale-nodes-differ", &[Hit { entry }], format!("{same} settings are the same in both dumps"));
    }
}

/// `gssgenvdisks`: sizes without a unit, and what `df` makes of them.
fn vdisks(v: &View<'_>, r: &mut Report) {
    if let Some(size) =
        v.first("gssgenvdisks/data-vdisk-size").filter(|s| s.value().chars().all(|c| c.is_ascii_digit()))
    {
        let gib = size.number().unwrap_or(0.0);
        let mut hits = vec![size];
        let mut what = format!("--data-vdisk-size {gib} has no unit: GiB are meant");
        for df in v.all("df/*/size") {
            let Some(shown) = df.number().map(|b| b / 2f64.powi(40)) else { continue };
            // As many vdisks as give what df shows, rounded up to its last digit.
            let vdisks = (shown * 1024.0 / gib.max(1.0)).round();
            let real = vdisks * gib / 1024.0;
            let step = if shown >= 10.0 { 1.0 } else { 0.1 };
            if (1.0..=64.0).contains(&vdisks)
                && df.value().ends_with('T')
                && (real / step).ceil() * step - shown < 1e-6
                && hits.len() < 3
                && !what.contains(df.value())
            {
                what = format!(
                    "{what}; {vdisks} of them are {real:.2} TiB, which df rounds up to {}",
                    df.value()
                );
                hits.push(df);
            }
        }
        r.bad("size-without-unit", &hits, what);
    }
}

/// `maxMBpS` is to be twice what the links carry.
fn rate(v: &View<'_>, r: &mut Report) {
    let Some((setting, mbps)) = v.number("scale/config/maxMBpS") else { return };
    let link = v
        .first("aix/device/*/media_speed")
        .and_then(|h| Some((h, h.value().split('_').next()?.parse::<f64>().ok()? / 8.0)));
    if let Some((end, carries)) = link {
        r.verdict(
            "scale-maxmbps-low",
            mbps >= 2.0 * carries,
            &[setting, end],
            format!("maxMBpS {mbps}, a link carries {carries} MB/s: twice that is {}", 2.0 * carries),
        );
    }
}
