//! What each kind of limit looks like. Each function names its limit if the evidence shows it.

use super::{
    Evidence, FOREIGN, Finding, Limit, PartEvidence, SLOW, SharedEvidence, describe, drift::PERIODS_MIN,
    percent, rate,
};
use crate::{
    observe::{CpuUse, Inside, PdiskUse, ThreadUse, Who, median},
    plan::Step,
};

/// A link that carries less than this of the busiest of its bundle is idle beside it.
const IDLE: f64 = 0.2;
/// CPUs of which this part is busy are full where the load waits for them besides.
const CROWDED: f64 = 2.0 / 3.0;
/// Threads that wait for a CPU at a time, below which that is not what holds the load up,
const KEPT: f64 = 0.5;
/// and the part of the time they want one.
const KEPT_PART: f64 = 0.5;

/// Part of the CPUs' work from which on it is told whose it is.
const TOLD: f64 = 0.05;

/// Part of what is read again that may come from the servers: a page pool gives up some pages before it is full.
const MISSED: f64 = 0.2;

/// A page pool too small for what is read again. Before all else: what is full because of it would not be, were it larger.
pub(super) fn page_pool(e: &Evidence) -> Option<Finding> {
    let missed = e.missed.filter(|missed| *missed > MISSED)?;
    let text = format!(
        "the page pool: the link to the servers carried {} of what was read again, so it was not held in memory",
        percent(missed)
    );
    Some((Limit::PagePool, vec!["page pool".into()], text))
}

/// All CPUs that the load may use on one of the nodes.
pub(super) fn full_cpus(e: &Evidence) -> Option<Finding> {
    on_a_node(e, e.filled())
}

/// CPUs that are nearly full, and for which the load waits: it hands work from thread to thread, and each waits for its turn.
pub(super) fn crowded_cpus(e: &Evidence) -> Option<Finding> {
    if e.waited.is_some() && e.contends() { on_a_node(e, CROWDED) } else { None }
}

fn on_a_node(e: &Evidence, full: f64) -> Option<Finding> {
    let mut nodes: Vec<u32> = e.cpus.iter().map(CpuUse::node).collect();
    nodes.dedup();
    nodes.iter().find_map(|&node| full_cpus_of(e, node, nodes.len() > 1, full))
}

fn full_cpus_of(e: &Evidence, node: u32, several: bool, full: f64) -> Option<Finding> {
    let own: Vec<&CpuUse> = e.cpus.iter().filter(|cpu| cpu.node() == node).collect();
    let allowed: Vec<&&CpuUse> = own.iter().filter(|cpu| cpu.allowed).collect();
    // Together: which of them is busier is the scheduler's affair.
    let busy = allowed.iter().map(|cpu| cpu.busy + cpu.steal).sum::<f64>() / allowed.len().max(1) as f64;
    if allowed.is_empty() || busy < full * e.cpu_full {
        return None;
    }
    // Others that fill what the load leaves keep nothing from it.
    let foreign = e.foreign_here();
    let others = foreign > FOREIGN * e.allowed().count() as f64;
    if others && !e.contends() {
        return None;
    }
    if others && foreign >= e.own_cpus {
        return Some(neighbour(e));
    }
    let names: Vec<String> = allowed.iter().map(|cpu| format!("CPU {}", cpu.name())).collect();
    if e.copied >= e.filled() && e.beyond_caches && !several && allowed.len() == own.len() {
        let text = format!(
            "memory: all CPUs are full, and the load moves {} of what can be copied in its CPU time, from more than their caches hold",
            percent(e.copied)
        );
        return Some((Limit::Memory, vec!["memory".into()], text));
    }
    let of = if several { format!(" of node {}", node + 1) } else { String::new() };
    let free: Vec<String> =
        own.iter().filter(|cpu| !cpu.allowed && cpu.busy < 0.5).map(|cpu| cpu.name()).collect();
    if allowed.len() < own.len() {
        let idle =
            if free.is_empty() { String::new() } else { format!(", while CPU {} has room", free.join(", ")) };
        let text = format!("the CPUs{of}: the load may use only {}, full{idle}", names.join(", "));
        return Some((Limit::PinnedCpu, names, text));
    }
    let worked = e.cpus.iter().map(|cpu| cpu.busy).sum::<f64>().max(0.01);
    let share = |part: f64| percent((part / worked).min(1.0));
    let whose =
        [("Ropewalk's", e.served_cpus), ("the load generators'", e.load_cpus), ("other programs'", foreign)];
    let whose = whose.into_iter().filter(|(_, part)| *part >= TOLD * worked);
    let whose: Vec<String> = whose.map(|(who, part)| format!("{} {who}", share(part))).collect();
    let text = format!(
        "the CPUs{of}: all {} are full, {} busy; their work is {}",
        allowed.len(),
        percent(busy.min(1.0)),
        if whose.is_empty() { "the kernel's own threads'".into() } else { whose.join(", ") }
    );
    Some((Limit::Cpu, names, text))
}

/// Others that have more of the CPUs than the load, which waits for them.
fn neighbour(e: &Evidence) -> Finding {
    let waits = match e.starved() {
        Some(part) => format!("; it has no CPU for {} of the time that it wants one", percent(part)),
        None => String::new(),
    };
    let text = format!(
        "other programs: they have {:.2} of {} CPUs, and the load only {:.2}{waits}",
        e.foreign_here(),
        e.allowed().count(),
        e.own_cpus
    );
    (Limit::Neighbour, vec!["other programs".into()], text)
}

/// By elimination: nothing that the load uses is full, but its threads wait for CPUs that others have.
pub(super) fn kept_waiting(e: &Evidence) -> Option<Finding> {
    let kept = e.waited.is_some_and(|waited| waited >= KEPT) && e.starved() >= Some(KEPT_PART);
    (kept && e.foreign_here() >= e.own_cpus).then(|| neighbour(e))
}

pub(super) fn slow_parts(e: &Evidence, full: f64) -> Option<Finding> {
    let slow: Vec<&PartEvidence> =
        e.parts.iter().filter(|part| part.alone < SLOW * part.best_of_kind).collect();
    // Slow parts are the reason only if everything still gives what it gives alone.
    let (alone, best) = e.parts.iter().fold((0.0, 0.0), |(a, b), p| (a + p.alone, b + p.best_of_kind));
    if slow.is_empty() || e.efficiency * best < full * alone {
        return None;
    }
    let names: Vec<String> = slow.iter().map(|part| part.name.clone()).collect();
    let each: Vec<String> = slow
        .iter()
        .map(|part| {
            format!(
                "{} gives {} of the best of its kind, alone as well",
                part.name,
                percent(part.alone / part.best_of_kind)
            )
        })
        .collect();
    Some((Limit::SlowDevice, names, format!("slow parts: {}", each.join("; "))))
}

pub(super) fn one_queue(e: &Evidence, scales: bool) -> Option<Finding> {
    if e.of != Step::Queues || scales || e.step <= 1 {
        return None;
    }
    if let Some(why) = &e.one_queue {
        return Some((Limit::Queue, vec!["registered memory".into()], format!("the queue: {why}")));
    }
    if e.queue_disks != 1 {
        return None;
    }
    let text = format!(
        "the queue: one disk is always served by the same queue, so {} queues do what one does",
        e.step
    );
    Some((Limit::Queue, vec!["the disk's queue".into()], text))
}

/// A bundle of links of which one carries all it can and another next to nothing.
pub(super) fn bundle(e: &Evidence, full: f64, scales: bool) -> Option<Finding> {
    let busiest = e.bundle.iter().max_by(|a, b| a.got.total_cmp(&b.got))?;
    // A link that is used at another step was left out by chance, not by the policy.
    let idle: Vec<&SharedEvidence> =
        e.bundle.iter().filter(|link| link.got.max(link.most) < IDLE * busiest.got).collect();
    if idle.is_empty() || e.step < 2 || busiest.got < full * busiest.alone || scales {
        return None;
    }
    let names: Vec<String> = idle.iter().map(|link| link.name.clone()).collect();
    let text = format!(
        "the hash policy: {} connections, and {} carries {} while {} of {} links {} next to nothing",
        e.step,
        busiest.name,
        rate(busiest.got),
        idle.len(),
        e.bundle.len(),
        if idle.len() == 1 { "carries" } else { "carry" },
    );
    Some((Limit::HashPolicy, names, text))
}

/// A thread that never sleeps: it works, or waits for a CPU.
pub(super) fn full_thread(e: &Evidence) -> Option<Finding> {
    // Of what the host of a virtual machine left it; it may have taken as much when `cpu_full` was measured.
    let full = e.filled() * e.cpu_full.min(1.0 - e.stolen());
    let ready = |thread: &&ThreadUse| thread.busy + thread.waited >= full;
    let thread = e.threads.iter().find(ready)?;
    // What others keep from it is more than what it does.
    if thread.waited > thread.busy && e.foreign_here() > e.own_cpus {
        return Some(neighbour(e));
    }
    let names = vec![thread.name.clone()];
    let busy = match thread.busy >= full {
        true => percent(thread.busy),
        false => format!("{}, and waits for a CPU for {}", percent(thread.busy), percent(thread.waited)),
    };
    Some(match thread.who {
        Who::Load => {
            let text = format!("the load generator: its thread {} is full ({busy})", thread.name);
            (Limit::LoadThread, names, text)
        }
        Who::Served | Who::Kernel | Who::Foreign => {
            let whose = if thread.who == Who::Kernel { "the kernel's" } else { "Ropewalk's" };
            (Limit::Cpu, names, format!("one CPU: {whose} thread {} is full ({busy})", thread.name))
        }
    })
}

/// A link that carries all it is known to be able to.
pub(super) fn filled(e: &Evidence) -> Option<(&SharedEvidence, f64)> {
    e.links.iter().chain(&e.bundle).find_map(|link| {
        let capacity = link.capacity.filter(|capacity| link.got >= e.filled() * capacity)?;
        Some((link, capacity))
    })
}

/// It is full, whoever is busy beside it.
pub(super) fn full_link(e: &Evidence) -> Option<Finding> {
    let (link, capacity) = filled(e)?;
    let left_out = |one: &&SharedEvidence| one.got < IDLE * link.got && one.most >= IDLE * link.got;
    let idle: Vec<&str> = e.bundle.iter().filter(left_out).map(|one| one.name.as_str()).collect();
    let chance = match idle.is_empty() {
        true => String::new(),
        false => format!("; {} was left out by chance here, other steps use it", idle.join(", ")),
    };
    let text = format!("the link {}: it carries {} of {}{chance}", link.name, rate(link.got), rate(capacity));
    Some((Limit::Link, vec![link.name.clone()], text))
}

pub(super) fn shared(e: &Evidence, full: f64) -> Option<Finding> {
    let at_limit = |one: &&SharedEvidence| one.alone > 0.0 && one.got >= full * one.alone;
    let highest = |list: &[SharedEvidence]| {
        list.iter().filter(at_limit).max_by(|a, b| a.got.total_cmp(&b.got)).cloned()
    };
    if let Some(disk) = highest(&e.disks) {
        let text = format!(
            "the disk {}: all parts use it, and it moves {}, as much as for one part",
            disk.name,
            rate(disk.got)
        );
        return Some((Limit::Device, vec![disk.name], text));
    }
    let links = if e.bundle.is_empty() { &e.links } else { &e.bundle };
    // One that carries more than at the first step was not full there.
    let link = highest(links).filter(|link| link.got <= (2.0 - full) * link.alone)?;
    let text = format!(
        "the link {}: it carries {}, no more than it carried at the first step, and neither CPUs nor threads are full",
        link.name,
        rate(link.got)
    );
    Some((Limit::Link, vec![link.name], text))
}

/// A steady load: whether it stays as it was.
pub(super) fn drifting(e: &Evidence) -> Finding {
    let Some(drift) = &e.drift else {
        let text = format!("not known: {} only; a drift shows from {PERIODS_MIN} on", describe(e));
        return (Limit::NotKnown, Vec::new(), text);
    };
    let said = drift.said();
    if drift.falls(e.noise) {
        return (Limit::Drift, vec!["rate".into()], format!("drift: {said}; the load itself did not change"));
    }
    if !drift.grown.is_empty() {
        let text = format!("drift: {} at the end of {} periods", drift.grown.join("; "), drift.periods);
        return (Limit::Drift, drift.grown.clone(), text);
    }
    if drift.slower(e.noise) {
        return (Limit::Drift, vec!["latency".into()], format!("drift: {said}"));
    }
    let noise = percent(e.noise);
    let text = match drift.rate > e.noise {
        true => format!(
            "no drift: {said}; it rose beyond the noise of {noise}, so it had not settled at the start; no process grew"
        ),
        false => format!("no drift: {said}, within the noise of {noise}, and no process grew"),
    };
    (Limit::None, Vec::new(), text)
}

/// One client node that has nothing to be held against.
pub(super) fn no_other_node(e: &Evidence) -> Finding {
    let text = format!(
        "not known: {} alone, and its CPUs are not full; what else is the limit shows beside more of them, or in a second run with \
         another part changed (`lab compare`)",
        describe(e)
    );
    (Limit::NotKnown, Vec::new(), text)
}

pub(super) fn no_limit(e: &Evidence, full: f64) -> Finding {
    let (layer, height) = &e.bound;
    if layer != e.of.layer() && *height * full <= 1.0 {
        let limit = match layer.as_str() {
            "link" | "links" => Limit::Link,
            "device" => Limit::Device,
            "memory" => Limit::Memory,
            _ => Limit::Cpu,
        };
        // A CPU bound is an estimate from the first step; only full CPUs prove it.
        if limit != Limit::Cpu && limit != Limit::Memory {
            return (
                limit,
                vec![layer.clone()],
                format!("the {layer}: the load reaches what was measured for it alone"),
            );
        }
    }
    if e.of.is_load() {
        let text = format!(
            "the clients: each of {} still gives what one alone gives; more of them would give more",
            describe(e)
        );
        return (Limit::Clients, Vec::new(), text);
    }
    let text = format!("none up to {}: each still gives what it gives alone", describe(e));
    (Limit::None, Vec::new(), text)
}

/// A pdisk that holds the others up has something to do for this part of the time at least,
const BUSY: f64 = 0.6;
/// and takes so many times as long as the others for a batch.
const SLOWER: f64 = 2.5;
/// Disks that have something to do for this part of the time are busy.
const BUSY_ALL: f64 = 0.8;
/// Batches a second that say something.
const BATCHES: f64 = 2.0;
/// Part of what programs wait for that is the reason.
const MOST: f64 = 0.5;
/// Commits that take so many times as long as the disk for a flush are slow: a commit is one flush, and waits for another at most.
const COMMIT: f64 = 5.0;
/// Programs that wait at a time, below which nobody is held up.
const WAITING: f64 = 0.5;

/// One pdisk, or a few, to which all others wait.
pub(super) fn slow_pdisk(e: &Evidence) -> Option<Finding> {
    let pdisks: Vec<&PdiskUse> =
        e.inside.as_ref()?.pdisks.iter().filter(|pdisk| pdisk.batches >= BATCHES).collect();
    let usual = median(&pdisks.iter().map(|pdisk| pdisk.mean_ms).collect::<Vec<_>>());
    let slow: Vec<&&PdiskUse> =
        pdisks.iter().filter(|pdisk| pdisk.busy >= BUSY && pdisk.mean_ms >= SLOWER * usual).collect();
    // Of three or more, else none is usual.
    if pdisks.len() < 3 || slow.is_empty() {
        return None;
    }
    let each: Vec<String> = slow
        .iter()
        .map(|pdisk| {
            format!(
                "{} takes {:.1} ms for a batch, where {usual:.1} ms are usual among {}, and is busy {} of the time",
                pdisk.name,
                pdisk.mean_ms,
                pdisks.len(),
                percent(pdisk.busy)
            )
        })
        .collect();
    let names = slow.iter().map(|pdisk| format!("pdisk {}", pdisk.name)).collect();
    Some((Limit::SlowDevice, names, format!("slow pdisks: {}", each.join("; "))))
}

/// Client nodes that write the same blocks: most of the waiting is for a token that another one has.
pub(super) fn tokens(e: &Evidence) -> Option<Finding> {
    let inside = e.inside.as_ref()?;
    let part = inside.tokens / inside.waiting.max(WAITING);
    (part >= MOST).then(|| {
        let text = format!(
            "write tokens: {} of the time that programs wait, their mounts wait for tokens that another client node has",
            percent(part.min(1.0))
        );
        (Limit::Tokens, vec!["tokens".into()], text)
    })
}

/// A manager that is in a commit nearly all the time, for much longer than its disk takes for a flush.
pub(super) fn commits(e: &Evidence) -> Option<Finding> {
    let inside = e.inside.as_ref()?;
    let slow = inside.commit_ms >= COMMIT * inside.flush_ms && inside.flush_ms > 0.0;
    (slow && inside.commits >= BUSY && inside.waiting >= WAITING).then(|| {
        let text = format!(
            "the manager: it is in a commit {} of the time, for {:.0} ms each, where the disk below the run makes 4 KiB durable in {:.1} ms",
            percent(inside.commits),
            inside.commit_ms,
            inside.flush_ms
        );
        (Limit::Manager, vec!["manager".into()], text)
    })
}

/// Disks of a cluster that have something to do nearly all the time: all its pdisks, or that of its manager. By elimination: a pdisk
/// is busy too while its process waits for a CPU.
pub(super) fn busy_disks(e: &Evidence) -> Option<Finding> {
    let inside = e.inside.as_ref().filter(|inside| inside.waiting >= WAITING)?;
    let all = inside.pdisks.len();
    let busy = inside.pdisks.iter().map(|pdisk| pdisk.busy).sum::<f64>() / all.max(1) as f64;
    if all > 0 && busy >= BUSY_ALL {
        let text =
            format!("the disks: each of {all} pdisks has something to do {} of the time", percent(busy));
        return Some((Limit::Device, vec!["pdisks".into()], text));
    }
    (inside.commits >= BUSY_ALL).then(|| {
        let text = format!(
            "the manager's disk: the manager is in a commit {} of the time, {:.1} ms each, where a flush of that disk takes {:.1} ms",
            percent(inside.commits),
            inside.commit_ms,
            inside.flush_ms
        );
        (Limit::Device, vec!["the manager's disk".into()], text)
    })
}

/// What the processes said, for people.
pub(super) fn said(inside: &Inside) -> String {
    let slowest = inside.pdisks.iter().max_by(|a, b| a.busy.total_cmp(&b.busy));
    let slowest = slowest.map_or(String::new(), |pdisk| {
        format!("; busiest pdisk: {} {}, {:.1} ms a batch", pdisk.name, percent(pdisk.busy), pdisk.mean_ms)
    });
    format!(
        "in the cluster: {:.1} operations of programs wait at a time, {:.1} of that for tokens; the manager is in a commit {} of the \
         time, {:.1} ms each (a flush of its disk: {:.1} ms){slowest}",
        inside.waiting,
        inside.tokens,
        percent(inside.commits),
        inside.commit_ms,
        inside.flush_ms
    )
}
