//! Storage Scale: settings against each other, against what `mmchconfig` can do, and file systems.

use super::super::view::{Hit, Report, View};

/// Threads of the daemon together, by Scale's own bound.
const WORKERS_MAX: f64 = 8192.0;

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    connections(v, r);
    changes(v, r);
    file_systems(v, r);
    nodes(v, r);
    fill(v, r);
}

/// One setting, wherever it stands in the document.
fn setting<'a>(v: &View<'a>, name: &str) -> Option<(Hit<'a>, f64)> {
    v.number(&format!("scale/config/{name}"))
}

fn connections(v: &View<'_>, r: &mut Report) {
    let nodes = v.all("scale/node/*/role").len();
    if let Some((hit, k)) = setting(v, "maxTcpConnsPerNodeConn") {
        if nodes > 1 {
            let wanted = (64.0 / (nodes as f64 - 1.0)).ceil().clamp(1.0, 16.0);
            r.verdict(
                "scale-connections-few",
                k >= wanted.min(8.0),
                &[hit],
                format!("{k} connections with {nodes} nodes; {wanted} would spread evenly over two links"),
            );
        }
        let mut values: Vec<&str> =
            v.all("scale/section/*/maxTcpConnsPerNodeConn").iter().map(Hit::value).collect();
        values.push(hit.value());
        values.sort_unstable();
        values.dedup();
        let hits: Vec<Hit<'_>> =
            v.all("scale/section/*/maxTcpConnsPerNodeConn").into_iter().chain([hit]).collect();
        r.verdict(
            "scale-connections-unequal",
            values.len() == 1,
            &hits,
            format!("maxTcpConnsPerNodeConn {}: a pair takes the lower one", values.join(", ")),
        );
    }
    if let Some((hit, backlog)) = setting(v, "socketMaxListenConnections").filter(|_| nodes > 0) {
        r.verdict(
            "scale-backlog-small",
            backlog >= nodes as f64,
            &[hit],
            format!("socketMaxListenConnections {backlog}, {nodes} nodes"),
        );
    }
}

/// What a change by `mmchconfig` does not do.
fn changes(v: &View<'_>, r: &mut Report) {
    let derived = [
        "worker1Threads",
        "prefetchThreads",
        "worker3Threads",
        "syncWorkerThreads",
        "maxBufferCleaners",
        "maxFileCleaners",
        "logWrapThreads",
    ];
    if let Some(master) = v.first("scale/mmchconfig/workerThreads") {
        for name in derived {
            if let Some(hit) = v.first(&format!("scale/mmchconfig/{name}")) {
                r.bad(
                    "scale-derived-set",
                    &[master, hit],
                    format!("{name} is set beside workerThreads, from which it follows"),
                );
            }
        }
    }
    for name in [
        "workerThreads",
        "maxFilesToCache",
        "maxStatCache",
        "maxblocksize",
        "prefetchPct",
        "maxReceiverThreads",
        "nsdMaxWorkerThreads",
        "maxTcpConnsPerNodeConn",
    ] {
        let Some(hit) = v.first(&format!("scale/mmchconfig/{name}")) else { continue };
        let line = v.all("command/mmchconfig").into_iter().find(|c| c.line() == hit.line());
        let now = line.is_some_and(|c| c.value().split_whitespace().any(|w| w == "-i" || w == "-I"));
        r.verdict(
            "scale-needs-restart",
            !now,
            &[hit],
            format!(
                "{name} is changed {}",
                if now {
                    "with -i or -I, which does not act on it: the daemon must start again"
                } else {
                    "for the next start of the daemon"
                }
            ),
        );
    }
    for command in
        v.all("command/mmchconfig").iter().filter(|c| c.value().split_whitespace().any(|w| w == "-I"))
    {
        r.bad(
            "scale-lost-at-restart",
            &[*command],
            "mmchconfig -I changes the running daemon only: at its next start the old value is back",
        );
    }
    let (pool, block) = (v.first("scale/mmchconfig/pagepool"), v.first("scale/mmchconfig/maxblocksize"));
    if let (Some(pool), Some(block)) = (pool, block) {
        r.verdict(
            "scale-pagepool-first",
            pool.line() <= block.line(),
            &[pool, block],
            format!(
                "maxblocksize in line {}, pagepool in line {}",
                v.doc.at(block.line()),
                v.doc.at(pool.line())
            ),
        );
    }
    if let Some(name) = v
        .all("scale/mmchconfig/*")
        .into_iter()
        .find(|h| base::tunables::Row::find(h.word(2)).is_none() && !crate::dumps::import::knows(h.word(2)))
    {
        r.bad(
            "scale-name-unknown",
            &[name],
            format!(
                "{} is no name that is known here: mmchconfig takes some unknown names and does nothing",
                name.word(2)
            ),
        );
    }
}

fn file_systems(v: &View<'_>, r: &mut Report) {
    for block in v.all("scale/fs/*/-B") {
        let fs = block.word(2);
        if let (Some(size), Some((most, bytes))) = (block.number(), setting(v, "maxblocksize")) {
            r.verdict(
                "scale-block-above-max",
                size <= bytes,
                &[block, most],
                format!("{fs}: blocks of {size}, maxblocksize {bytes}"),
            );
        }
        if let (Some(size), Some((fragment, part))) = (block.number(), v.number(&format!("scale/fs/{fs}/-f")))
        {
            let parts = size / part.max(1.0);
            let what = format!("{fs}: {parts} subblocks a block, each {} KiB", part / 1024.0);
            r.verdict(
                "scale-32-subblocks",
                parts != 32.0 || size < (4u64 << 20) as f64,
                &[block, fragment],
                what,
            );
        }
    }
    for copies in v.all("scale/fs/*/-m") {
        let fs = copies.word(2);
        if let Some(most) = v.first(&format!("scale/fs/{fs}/-M")) {
            r.verdict(
                "scale-replica-cannot-grow",
                most.number() > Some(1.0),
                &[copies, most],
                format!("{fs}: metadata copies {}, at most {}", copies.value(), most.value()),
            );
        }
    }
    for atime in v.all("scale/fs/*/-S").iter().filter(|h| h.value() == "no") {
        r.bad(
            "scale-atime",
            &[*atime],
            format!("{}: every read writes the access time (-S no)", atime.word(2)),
        );
    }
}

fn nodes(v: &View<'_>, r: &mut Report) {
    let roles = v.all("scale/node/*/role");
    let quorum: Vec<Hit<'_>> = roles.iter().copied().filter(|h| h.value().contains("quorum")).collect();
    if roles.len() > 2 {
        let tie = v.first("scale/config/tiebreakerDisks").is_some_and(|h| h.value() != "no");
        r.verdict(
            "scale-quorum-even",
            quorum.len() % 2 == 1 || tie,
            if quorum.is_empty() { &roles } else { &quorum },
            format!("{} quorum nodes of {}", quorum.len(), roles.len()),
        );
    }
    let single: Vec<Hit<'_>> = v
        .all("scale/nsd/*/servers")
        .into_iter()
        .filter(|h| !h.value().contains([',', ' ']) && h.value() != "(directly")
        .collect();
    let all = v.all("scale/nsd/*/servers");
    if !all.is_empty() {
        let hits = if single.is_empty() { &all } else { &single };
        r.verdict(
            "scale-nsd-one-server",
            single.is_empty(),
            hits,
            format!("{} of {} NSDs have one server", single.len(), all.len()),
        );
    }
    let sum = ["workerThreads", "prefetchThreads", "nsdMaxWorkerThreads"]
        .iter()
        .filter_map(|n| setting(v, n))
        .collect::<Vec<_>>();
    if sum.len() > 1 {
        let total: f64 = sum.iter().map(|(_, n)| n).sum();
        let hits: Vec<Hit<'_>> = sum.iter().map(|(h, _)| *h).collect();
        r.verdict(
            "scale-workers-sum",
            total <= WORKERS_MAX,
            &hits,
            format!("worker, prefetch and NSD threads together {total}, bound {WORKERS_MAX}"),
        );
    }
}

/// How full file systems are.
fn fill(v: &View<'_>, r: &mut Report) {
    let (mut full, mut room) = (Vec::new(), Vec::new());
    for percent in v.all("df/*/percent") {
        match percent.number() {
            Some(p) if p >= 95.0 => full.push(percent),
            Some(_) => room.push(percent),
            None => {}
        }
    }
    for percent in &full {
        r.bad("filesystem-full", &[*percent], format!("{} is {} % full", percent.word(1), percent.value()));
    }
    if full.is_empty() && !room.is_empty() {
        r.good("filesystem-full", &room, format!("{} file systems below 95 %", room.len()));
    }
    for free in v.all("scale/free/*") {
        if let Some(p) = free.number() {
            r.verdict("filesystem-full", p > 5.0, &[free], format!("pool {}: {p} % free", free.word(2)));
        }
    }
}
