//! The verdict: which resource is the limit, with the evidence and how sure it is; "not known" when the evidence
//! does not say. Pure: evidence in, verdict out.
//!
//! Thresholds come from the same run: a CPU or thread is full at what a thread that never waits got at the start
//! of the run; a part is at its limit when it gives what it gave alone; a link or disk that several parts share,
//! when it carries no more than the most it carried for one. All of them less the noise between equal cells.

use serde::{Deserialize, Serialize};

use crate::{
    calibrate::Machine,
    cell::Record,
    expect::{Analysis, Point},
    observe::{CpuUse, ThreadUse, Usage, Who},
    plan::Step,
};

/// A part that gives less than this of the best of its kind is slow (FACTS: the disk hospital's 0.667).
pub const SLOW: f64 = 0.667;
/// A link that carries less than this of the busiest of its bundle is idle beside it.
const IDLE: f64 = 0.2;
/// Other programs' part of the CPUs from which on a verdict is doubtful.
const FOREIGN: f64 = 0.25;
/// Part of its CPUs that a load gets at least beside others, if it wants all it can get.
const OWN: f64 = 0.4;
/// What counts as a full CPU at least while other programs work.
const BESIDE_OTHERS: f64 = 0.9;

/// What the limit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// There is none within the steps: each part gives what it gives alone.
    None,
    /// All CPUs that the load may use.
    Cpu,
    /// The load may use only some of the CPUs, and those are full.
    PinnedCpu,
    /// One thread of the load generator, while CPUs are free.
    LoadThread,
    /// Too few clients, connections or writers: each gives what one alone gives, and nothing else is full.
    Clients,
    /// A part that is slower than others of its kind.
    SlowDevice,
    /// One disk under several parts.
    Device,
    /// A link.
    Link,
    /// The hash policy puts connections onto too few links.
    HashPolicy,
    /// One disk is served by one queue, however many there are.
    Queue,
    /// Memory bandwidth.
    Memory,
    /// The evidence does not say.
    NotKnown,
}

/// How sure it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The evidence points there, other things are near or the machine was not quiet.
    Low,
    /// It points there by elimination.
    Medium,
    /// It points there, and nothing else is near.
    High,
}

/// What the limit of a series is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The limit.
    pub limit: Limit,
    /// Which device, link, CPU, thread.
    pub names: Vec<String>,
    /// How sure.
    pub confidence: Confidence,
    /// At which step.
    pub step: u32,
    /// One sentence.
    pub text: String,
    /// Figures that it rests on.
    pub evidence: Vec<String>,
}

/// A part at the judged step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PartEvidence {
    /// Its name.
    pub name: String,
    /// What it gave alone.
    pub alone: f64,
    /// The best alone of its kind.
    pub best_of_kind: f64,
}

/// A link or disk that parts share.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SharedEvidence {
    /// Its name.
    pub name: String,
    /// Bytes a second at the judged step.
    pub got: f64,
    /// The most it carried at the first step, bytes a second.
    pub alone: f64,
    /// The most it carried at any step, bytes a second.
    pub most: f64,
    /// What it can carry, bytes a second, where that is known.
    pub capacity: Option<f64>,
}

/// Everything a verdict rests on.
#[derive(Clone, PartialEq, Debug)]
pub struct Evidence {
    /// What is stepped.
    pub of: Step,
    /// The judged step: the one after the knee, else the last.
    pub step: u32,
    /// The knee.
    pub knee: Option<u32>,
    /// Measured by the parts' sum there.
    pub efficiency: f64,
    /// Noise between equal cells.
    pub noise: f64,
    /// Part of a CPU that a thread gets that never waits.
    pub cpu_full: f64,
    /// Each CPU.
    pub cpus: Vec<CpuUse>,
    /// CPUs' worth of work of the load generators.
    pub load_cpus: f64,
    /// CPUs' worth of work of load generators, Ropewalk and the kernel's threads together.
    pub own_cpus: f64,
    /// CPUs' worth of work of other programs.
    pub foreign_cpus: f64,
    /// The busiest threads.
    pub threads: Vec<ThreadUse>,
    /// Named parts that take part.
    pub parts: Vec<PartEvidence>,
    /// Links that carried the load.
    pub links: Vec<SharedEvidence>,
    /// The links the load was meant to spread over; empty if there is no bundle.
    pub bundle: Vec<SharedEvidence>,
    /// Disks that several parts stand on.
    pub disks: Vec<SharedEvidence>,
    /// Disks that the load uses, where that is stepped by queues.
    pub queue_disks: u32,
    /// The name and height of the lowest bound, by the measured value.
    pub bound: (String, f64),
    /// Intervals in which was looked.
    pub intervals: u32,
}

impl Evidence {
    /// From which part of its full height something counts as full.
    fn full(&self) -> f64 {
        1.0 - (2.0 * self.noise).clamp(0.1, 0.3)
    }
    fn allowed(&self) -> impl Iterator<Item = &CpuUse> {
        self.cpus.iter().filter(|cpu| cpu.allowed)
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn rate(bytes: f64) -> String {
    format!("{:.1} MB/s", bytes / 1e6)
}

/// Says what the limit is.
pub fn judge(e: &Evidence) -> Verdict {
    let full = e.full();
    let scales = e.knee.is_none() && e.efficiency >= full;
    let mut evidence = facts(e);
    let finding = [full_cpus(e, full), slow_parts(e, full), one_queue(e, scales), bundle(e, full, scales)]
        .into_iter()
        .flatten()
        .find(|finding| !scales || finding.0 == Limit::SlowDevice || finding.0 == Limit::HashPolicy)
        .or_else(|| if scales { Some(no_limit(e, full)) } else { full_thread(e, full) })
        .or_else(|| shared(e, full));
    let (limit, names, text) = finding.unwrap_or_else(|| {
        let text = format!(
            "not known: {} gives {} of what the single parts promise, and nothing that was watched is full",
            describe(e),
            percent(e.efficiency)
        );
        (Limit::NotKnown, Vec::new(), text)
    });
    let allowed = e.allowed().count().max(1) as f64;
    let foreign = e.foreign_cpus / allowed;
    let busiest = e.allowed().map(|cpu| cpu.busy).fold(0.0, f64::max);
    let confidence = match limit {
        _ if foreign > FOREIGN || e.intervals < 2 => Confidence::Low,
        Limit::NotKnown => Confidence::Low,
        Limit::Link if filled(e, full).is_some() => Confidence::High,
        // Found by elimination: sure only if CPUs were far from full.
        Limit::Link | Limit::Device | Limit::Clients if busiest > 0.8 * e.cpu_full => Confidence::Low,
        Limit::Link | Limit::Device | Limit::Clients | Limit::Memory => Confidence::Medium,
        _ => Confidence::High,
    };
    if foreign > FOREIGN {
        evidence.push(format!(
            "other programs used {:.1} of {allowed} CPUs meanwhile; measure again on a quiet machine",
            e.foreign_cpus
        ));
    }
    Verdict { limit, names, confidence, step: e.step, text, evidence }
}

type Finding = (Limit, Vec<String>, String);

fn describe(e: &Evidence) -> String {
    format!("{} {}", e.step, e.of.unit())
}

/// The figures that every verdict shows.
fn facts(e: &Evidence) -> Vec<String> {
    let mut facts = vec![match e.knee {
        Some(knee) => format!(
            "knee at {knee} {}; at {} the efficiency is {}",
            e.of.unit(),
            e.step,
            percent(e.efficiency)
        ),
        None => format!("no knee; at {} the efficiency is {}", describe(e), percent(e.efficiency)),
    }];
    let cpus: Vec<String> = e
        .cpus
        .iter()
        .map(|cpu| {
            let pinned = if cpu.allowed { "" } else { " (not allowed)" };
            let steal =
                if cpu.steal > 0.05 { format!(" +{} stolen", percent(cpu.steal)) } else { String::new() };
            format!("{} {}{steal}{pinned}", cpu.cpu, percent(cpu.busy))
        })
        .take(16)
        .collect();
    facts.push(format!(
        "CPUs busy: {}; load generators used {:.2} CPUs, other programs {:.2}; full is {}",
        cpus.join(", "),
        e.load_cpus,
        e.foreign_cpus,
        percent(e.cpu_full)
    ));
    if let Some(thread) = e.threads.first() {
        facts.push(format!("busiest thread: {} ({:?}) {}", thread.name, thread.who, percent(thread.busy)));
    }
    let shared = e.bundle.iter().chain(&e.links).chain(&e.disks);
    let mut seen: Vec<&str> = Vec::new();
    for one in shared {
        if !seen.contains(&one.name.as_str()) {
            seen.push(&one.name);
            let of = one.capacity.map_or(String::new(), |capacity| format!(" of {}", rate(capacity)));
            facts.push(format!("{}: {}{of}, {} at the first step", one.name, rate(one.got), rate(one.alone)));
        }
    }
    facts
}

fn full_cpus(e: &Evidence, full: f64) -> Option<Finding> {
    let allowed: Vec<&CpuUse> = e.allowed().collect();
    let busy = |cpu: &&CpuUse| cpu.busy + cpu.steal >= full * e.cpu_full;
    // What hardly uses a CPU itself is not limited by CPUs that others fill.
    let others = e.foreign_cpus > FOREIGN * allowed.len() as f64;
    if allowed.is_empty() || !allowed.iter().all(busy) || (others && e.own_cpus < OWN * allowed.len() as f64)
    {
        return None;
    }
    let names: Vec<String> = allowed.iter().map(|cpu| format!("CPU {}", cpu.cpu)).collect();
    let free: Vec<String> =
        e.cpus.iter().filter(|cpu| !cpu.allowed && cpu.busy < 0.5).map(|cpu| cpu.cpu.to_string()).collect();
    if allowed.len() < e.cpus.len() {
        let idle =
            if free.is_empty() { String::new() } else { format!(", while CPU {} has room", free.join(", ")) };
        let text = format!("the CPUs: the load may use only {}, full{idle}", names.join(", "));
        return Some((Limit::PinnedCpu, names, text));
    }
    let busy = e.cpus.iter().map(|cpu| cpu.busy).sum::<f64>().max(0.01);
    let share = |part: f64| percent((part / busy).min(1.0));
    let others = if others { format!(", {} other programs'", share(e.foreign_cpus)) } else { String::new() };
    let text = format!(
        "the CPUs: all {} are full; {} of their work is the load generators' own{others}",
        allowed.len(),
        share(e.load_cpus)
    );
    Some((Limit::Cpu, names, text))
}

fn slow_parts(e: &Evidence, full: f64) -> Option<Finding> {
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

fn one_queue(e: &Evidence, scales: bool) -> Option<Finding> {
    if e.of != Step::Queues || e.queue_disks != 1 || scales || e.step <= 1 {
        return None;
    }
    let text = format!(
        "the queue: one disk is always served by the same queue, so {} queues do what one does",
        e.step
    );
    Some((Limit::Queue, vec!["the disk's queue".into()], text))
}

/// A bundle of links of which one carries all it can and another next to nothing.
fn bundle(e: &Evidence, full: f64, scales: bool) -> Option<Finding> {
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

fn full_thread(e: &Evidence, full: f64) -> Option<Finding> {
    let mut full_ones = e.threads.iter().filter(|thread| thread.busy >= full * e.cpu_full);
    let thread = full_ones.next()?;
    let names = vec![thread.name.clone()];
    let busy = percent(thread.busy);
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
fn filled(e: &Evidence, full: f64) -> Option<(&SharedEvidence, f64)> {
    e.links.iter().chain(&e.bundle).find_map(|link| {
        let capacity = link.capacity.filter(|capacity| link.got >= full * capacity)?;
        Some((link, capacity))
    })
}

fn shared(e: &Evidence, full: f64) -> Option<Finding> {
    // What is known to be all that a link can carry comes before what is only no more than before.
    if let Some((link, capacity)) = filled(e, full) {
        let text = format!("the link {}: it carries {} of {}", link.name, rate(link.got), rate(capacity));
        return Some((Limit::Link, vec![link.name.clone()], text));
    }
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
    let link = highest(links)?;
    let text = format!(
        "the link {}: it carries {}, no more than it carried at the first step, and neither CPUs nor threads are full",
        link.name,
        rate(link.got)
    );
    Some((Limit::Link, vec![link.name], text))
}

fn no_limit(e: &Evidence, full: f64) -> Finding {
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

/// Gathers the evidence for a series. `records` are all of the plan's.
pub fn evidence(
    of: Step,
    analysis: &Analysis,
    records: &[Record],
    machine: &Machine,
    bundle: &[String],
    capacity: &dyn Fn(&str, &Record) -> Option<f64>,
) -> Option<Evidence> {
    let after = analysis.points.iter().find(|point| analysis.knee.is_some_and(|knee| point.step > knee));
    let point: &Point = after.or(analysis.points.last())?;
    let record = records.iter().find(|record| record.id == point.record)?;
    let first = analysis.points.first()?.step;
    let usage: &Usage = &record.usage;
    let singles: Vec<&Record> = records.iter().filter(|r| r.cell.step == first || r.cell.step == 1).collect();
    let link_rate = |usage: &Usage, name: &str| {
        usage.links.iter().find(|link| link.name == name).map_or(0.0, |link| link.rx.max(link.tx))
    };
    let shared_link = |name: &str| SharedEvidence {
        name: name.to_owned(),
        got: link_rate(usage, name),
        alone: singles.iter().map(|r| link_rate(&r.usage, name)).fold(0.0, f64::max),
        most: records.iter().map(|r| link_rate(&r.usage, name)).fold(0.0, f64::max),
        capacity: capacity(name, record),
    };
    let payload = record.figures.as_ref().map_or(0.0, |figures| figures.bytes);
    let carried = usage.links.iter().filter(|link| payload > 0.0 && link.rx.max(link.tx) > 0.25 * payload);
    let links = carried.map(|link| shared_link(&link.name)).collect();
    let parts: Vec<PartEvidence> = analysis
        .parts
        .iter()
        .take(point.step as usize)
        .filter_map(|part| {
            let alone = part.alone?;
            Some(PartEvidence { name: part.name.clone(), alone, best_of_kind: part.best_of_kind })
        })
        .collect();
    let disk_rate = |usage: &Usage, name: &str| {
        usage.devices.iter().find(|device| device.name == name).map_or(0.0, |device| device.bytes)
    };
    let mut on: Vec<&String> = analysis.parts.iter().filter_map(|part| part.on.as_ref()).collect();
    if of == Step::Queues {
        // Strip stores of the run lie on disks that only the counters name.
        on.extend(usage.devices.iter().filter(|d| d.bytes > 0.25 * payload).map(|d| &d.name));
    }
    on.sort();
    on.dedup();
    let disks = on
        .into_iter()
        .map(|name| SharedEvidence {
            name: name.clone(),
            got: disk_rate(usage, name),
            alone: singles.iter().map(|r| disk_rate(&r.usage, name)).fold(0.0, f64::max),
            ..SharedEvidence::default()
        })
        .collect();
    let disks_asked = record.cell.params.get("disks").and_then(|n| n.parse().ok()).unwrap_or(0);
    Some(Evidence {
        of,
        step: point.step,
        knee: analysis.knee,
        efficiency: point.efficiency,
        noise: analysis.noise,
        // Measured beside others it says what they left, not what full is.
        cpu_full: match usage.foreign_cpus > FOREIGN * f64::from(machine.cpus) {
            true => machine.cpu_full.max(BESIDE_OTHERS),
            false => machine.cpu_full,
        },
        cpus: usage.cpus.clone(),
        load_cpus: usage.load_cpus,
        own_cpus: usage.load_cpus + usage.served_cpus + usage.kernel_cpus,
        foreign_cpus: usage.foreign_cpus,
        threads: usage.threads.clone(),
        parts,
        links,
        bundle: bundle.iter().map(|name| shared_link(name)).collect(),
        disks,
        queue_disks: disks_asked,
        bound: (point.expected.layer.clone(), point.expected.value / point.measured.max(f64::MIN_POSITIVE)),
        intervals: usage.intervals,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(busy: &[f64]) -> Vec<CpuUse> {
        let one = |(cpu, &busy): (usize, &f64)| CpuUse { cpu: cpu as u32, busy, steal: 0.0, allowed: true };
        busy.iter().enumerate().map(one).collect()
    }

    fn link(name: &str, got: f64, alone: f64) -> SharedEvidence {
        SharedEvidence { name: name.into(), got, alone, most: got.max(alone), capacity: None }
    }

    fn thread(name: &str, who: Who, busy: f64) -> ThreadUse {
        ThreadUse { name: name.into(), who, busy }
    }

    /// A quiet machine at a knee, with nothing full.
    fn idle(of: Step, efficiency: f64) -> Evidence {
        Evidence {
            of,
            step: 4,
            knee: (efficiency < 0.9).then_some(2),
            efficiency,
            noise: 0.03,
            cpu_full: 0.98,
            cpus: cpus(&[0.2, 0.1]),
            load_cpus: 0.2,
            own_cpus: 0.3,
            foreign_cpus: 0.0,
            threads: vec![thread("fio", Who::Load, 0.2)],
            parts: Vec::new(),
            links: Vec::new(),
            bundle: Vec::new(),
            disks: Vec::new(),
            queue_disks: 0,
            bound: (of.layer().into(), 1.0),
            intervals: 8,
        }
    }

    fn limit(e: &Evidence) -> Limit {
        judge(e).limit
    }

    #[test]
    fn nothing_full_is_not_known_and_straight_lines_have_no_limit() {
        let verdict = judge(&idle(Step::Devices, 0.5));
        assert_eq!((verdict.limit, verdict.confidence), (Limit::NotKnown, Confidence::Low));
        assert_eq!(limit(&idle(Step::Devices, 0.97)), Limit::None);
        assert_eq!(limit(&idle(Step::Pairs, 1.02)), Limit::None);
        // Load that still grows with its clients: too few of them.
        assert_eq!(limit(&idle(Step::Nodes, 0.97)), Limit::Clients);
        assert_eq!(limit(&idle(Step::Connections, 0.97)), Limit::Clients);
    }

    #[test]
    fn full_cpus_and_threads() {
        let e = Evidence { cpus: cpus(&[0.97, 0.95]), ..idle(Step::Devices, 0.5) };
        let verdict = judge(&e);
        assert_eq!((verdict.limit, verdict.confidence), (Limit::Cpu, Confidence::High));
        assert_eq!(verdict.names, ["CPU 0", "CPU 1"]);
        // The host of a virtual machine takes some away: they are full all the same.
        let mut stolen = e.clone();
        stolen.cpus[1] = CpuUse { busy: 0.6, steal: 0.35, ..stolen.cpus[1].clone() };
        assert_eq!(limit(&stolen), Limit::Cpu);
        let mut pinned = e.clone();
        pinned.cpus[1] = CpuUse { busy: 0.1, allowed: false, ..pinned.cpus[1].clone() };
        let verdict = judge(&pinned);
        assert_eq!((verdict.limit, verdict.names), (Limit::PinnedCpu, vec!["CPU 0".to_owned()]));
        // Full where the machine's own "full" is lower.
        let slow = Evidence { cpu_full: 0.6, cpus: cpus(&[0.58, 0.57]), ..idle(Step::Devices, 0.5) };
        assert_eq!(limit(&slow), Limit::Cpu);
        let one = Evidence {
            cpus: cpus(&[0.6, 0.5]),
            threads: vec![thread("iperf3", Who::Load, 0.97)],
            ..idle(Step::Connections, 0.4)
        };
        assert_eq!(limit(&one), Limit::LoadThread);
        let served = Evidence { threads: vec![thread("ropewalk/io0", Who::Served, 0.97)], ..one };
        assert_eq!(limit(&served), Limit::Cpu);
    }

    #[test]
    fn other_programs_make_it_doubtful() {
        let cpus = cpus(&[0.97, 0.95]);
        let e = Evidence { cpus, own_cpus: 1.1, foreign_cpus: 0.8, ..idle(Step::Devices, 0.5) };
        let verdict = judge(&e);
        assert_eq!((verdict.limit, verdict.confidence), (Limit::Cpu, Confidence::Low));
        assert!(verdict.evidence.iter().any(|line| line.contains("other programs used 0.8")), "{verdict:?}");
        // Others fill them, and the load hardly wants any.
        assert_eq!(limit(&Evidence { own_cpus: 0.1, foreign_cpus: 1.3, ..e }), Limit::NotKnown);
    }

    #[test]
    fn slow_parts_are_named_only_when_they_explain_the_loss() {
        let part = |name: &str, alone: f64| PartEvidence { name: name.into(), alone, best_of_kind: 100.0 };
        let parts = vec![part("a", 100.0), part("b", 98.0), part("c", 25.0), part("d", 99.0)];
        // 322 of 400.
        let e = Evidence { parts: parts.clone(), ..idle(Step::Devices, 0.80) };
        let verdict = judge(&e);
        assert_eq!((verdict.limit, verdict.names), (Limit::SlowDevice, vec!["c".to_owned()]));
        // Together they give far less than alone: the slow one is not the reason.
        let e = Evidence { parts, ..idle(Step::Devices, 0.3) };
        assert_eq!(limit(&e), Limit::NotKnown);
    }

    #[test]
    fn links_disks_and_hash_policy() {
        let e = Evidence { links: vec![link("eth0", 120.0, 121.0)], ..idle(Step::Connections, 0.25) };
        let verdict = judge(&e);
        assert_eq!((verdict.limit, verdict.confidence), (Limit::Link, Confidence::Medium));
        // It once carried more: the link is not the reason.
        let e = Evidence { links: vec![link("eth0", 60.0, 121.0)], ..e };
        assert_eq!(limit(&e), Limit::NotKnown);
        let hashed = vec![link("l1", 120.0, 121.0), link("l2", 0.4, 0.3)];
        let e = Evidence { links: hashed.clone(), bundle: hashed, ..idle(Step::Connections, 0.25) };
        let verdict = judge(&e);
        assert_eq!((verdict.limit, verdict.names), (Limit::HashPolicy, vec!["l2".to_owned()]));
        // At another step the second link was used: here it was left out by chance.
        let mut chance = e.bundle.clone();
        chance[1].most = 119.0;
        assert_eq!(limit(&Evidence { bundle: chance, ..e.clone() }), Limit::Link);
        let spread = vec![link("l1", 120.0, 121.0), link("l2", 118.0, 0.0)];
        assert_eq!(limit(&Evidence { bundle: spread, ..idle(Step::Connections, 0.5) }), Limit::Link);
        let e = Evidence { disks: vec![link("sda", 400.0, 410.0)], ..idle(Step::Devices, 0.3) };
        assert_eq!(limit(&e), Limit::Device);
        // What a link is known to carry, it carries: no guess by elimination.
        let known = |got: f64| SharedEvidence { capacity: Some(125.0), ..link("eth0", got, 200.0) };
        let verdict = judge(&Evidence { links: vec![known(121.0)], ..idle(Step::Nodes, 0.5) });
        assert_eq!((verdict.limit, verdict.confidence), (Limit::Link, Confidence::High));
        assert_eq!(limit(&Evidence { links: vec![known(60.0)], ..idle(Step::Nodes, 0.5) }), Limit::NotKnown);
        // A bound by another series that is reached is the limit, though clients grew up to it.
        let e = Evidence { bound: ("links".into(), 1.01), ..idle(Step::Connections, 0.95) };
        assert_eq!(limit(&e), Limit::Link);
    }

    #[test]
    fn one_disk_stays_on_one_queue() {
        let e = Evidence { queue_disks: 1, ..idle(Step::Queues, 0.25) };
        assert_eq!(limit(&e), Limit::Queue);
        assert_eq!(limit(&Evidence { queue_disks: 4, ..e }), Limit::NotKnown);
    }
}
