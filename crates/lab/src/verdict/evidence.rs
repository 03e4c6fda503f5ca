//! What a verdict rests on, gathered from the records of a series.

use base::ByteSize;

use super::{Drift, FOREIGN, drift};
use crate::{
    calibrate::Machine,
    cell::Record,
    expect::{Alone, Analysis, OWN_NAMESPACE, Point},
    observe::{CpuUse, Inside, ThreadUse, Usage},
    plan::Step,
};

/// From which part on a CPU or a link of a known rate is full.
const FILLED: f64 = 0.9;
/// From which part of what can be copied memory may be what keeps full CPUs waiting. Seen: 0.8 to 1.8 of loads that do nothing but
/// read memory, and calibrations of one machine that differ by the factor 3.
const COPIES: f64 = 0.4;
/// A load that goes over so many times what the caches hold finds little of it there.
const BEYOND: u64 = 2;
/// What moves less than this of the payload did not carry it.
const CARRIES: f64 = 0.25;
/// What moves so much of it moved all of it, as far as counters can tell.
const CARRIES_ALL: f64 = 0.75;
/// A load that has no CPU for this part of the time in which it wants one waits for it.
const STARVED: f64 = 0.25;
/// Part of its CPUs that a load has at least where it is thought to want all, if the kernel does not count who waits.
const WANTS: f64 = 0.2;
/// What counts as a full CPU at least while other programs work.
const BESIDE_OTHERS: f64 = 0.9;

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
    /// CPUs' worth of work of Ropewalk's processes that serve it.
    pub served_cpus: f64,
    /// CPUs' worth of work of load generators, Ropewalk and the kernel's threads together.
    pub own_cpus: f64,
    /// CPUs' worth of work of other programs.
    pub foreign_cpus: f64,
    /// Threads of the load and of what serves it that were ready to run and had no CPU, at a time; where that is known.
    pub waited: Option<f64>,
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
    /// Why there was one queue only, whatever was asked for.
    pub one_queue: Option<String>,
    /// Of a load that reads the same again: what its cluster's own link moved by the payload.
    pub missed: Option<f64>,
    /// The payload by what can be copied at most in the CPU time that the load had.
    pub copied: f64,
    /// Whether the load goes over more than the CPUs' caches can hold; false where that is not known.
    pub beyond_caches: bool,
    /// What the processes of a cluster of the run's own said.
    pub inside: Option<Inside>,
    /// The name and height of the lowest bound, by the measured value.
    pub bound: (String, f64),
    /// How a steady load went on; for periods.
    pub drift: Option<Drift>,
    /// Intervals in which was looked.
    pub intervals: u32,
}

impl Evidence {
    /// From which part of its full height something counts as full.
    pub(super) fn full(&self) -> f64 {
        1.0 - (2.0 * self.noise).clamp(0.1, 0.3)
    }
    /// Likewise for what is measured by itself, a CPU's time or a link of a known rate: the noise of the load is not its noise.
    pub(super) fn filled(&self) -> f64 {
        self.full().max(FILLED)
    }
    /// Part of the CPUs that other programs and the host took, and what the host took.
    pub(super) fn others(&self) -> (f64, f64) {
        let stolen = self.allowed().map(|cpu| cpu.steal).sum::<f64>();
        ((self.foreign_here() + stolen) / self.allowed().count().max(1) as f64, stolen)
    }
    /// Part of the CPUs' time that the host of a virtual machine took.
    pub(super) fn stolen(&self) -> f64 {
        self.others().1 / self.allowed().count().max(1) as f64
    }
    /// Whether the load goes over memory so much that this may be the limit where CPUs are full: what can be copied was
    /// measured at another time, and the memory of a virtual machine is not its own.
    pub(super) fn may_be_memory(&self) -> bool {
        self.beyond_caches && self.copied >= COPIES
    }
    /// CPUs' worth of work of other programs on the CPUs that the load may use.
    pub(super) fn foreign_here(&self) -> f64 {
        let busy: f64 = self.allowed().map(|cpu| cpu.busy).sum();
        self.foreign_cpus.min((busy - self.own_cpus).max(0.0))
    }
    /// Part of the time in which threads of the load and of what serves it want a CPU that they have none; where that is known.
    pub(super) fn starved(&self) -> Option<f64> {
        Some(self.waited? / (self.own_cpus + self.waited?).max(f64::MIN_POSITIVE))
    }
    /// Whether the load would use all its CPUs, had it them to itself, and waits for them.
    pub(super) fn contends(&self) -> bool {
        let cpus = self.allowed().count() as f64;
        match self.starved().zip(self.waited) {
            Some((starved, waited)) => starved >= STARVED && self.own_cpus + waited >= FILLED * cpus,
            None => self.own_cpus >= WANTS * cpus,
        }
    }
    /// Whether others took so much, or so little was seen, that no verdict is sure.
    pub(super) fn doubtful(&self) -> bool {
        self.others().0 > FOREIGN || self.intervals < 2
    }
    pub(super) fn allowed(&self) -> impl Iterator<Item = &CpuUse> {
        self.cpus.iter().filter(|cpu| cpu.allowed)
    }
}

/// What the link of a cluster of the run's own moved, by the payload of a load that reads what was read before.
fn missed(record: &Record, payload: f64) -> Option<f64> {
    let is = |key: &str, wanted: &str| record.cell.params.get(key).is_some_and(|value| value == wanted);
    let own = record.usage.links.iter().filter(|link| link.name.starts_with(OWN_NAMESPACE));
    (is("operation", "read") && is("cached", "true") && payload > 0.0)
        .then(|| own.map(|link| link.tx).sum::<f64>() / payload)
}

/// The points that may be judged, the best first: those after the knee, for what is the limit is full there; without a knee the last.
pub fn judged(of: Step, analysis: &Analysis) -> Vec<&Point> {
    // Of a load that grows only the end was watched for what is busy.
    let knee = analysis.knee.filter(|_| of != Step::Writers);
    let after: Vec<&Point> =
        analysis.points.iter().filter(|point| knee.is_some_and(|knee| point.step > knee)).collect();
    if after.is_empty() { analysis.points.last().into_iter().collect() } else { after }
}

/// Gathers the evidence for a point of a series. `records` are all of the series'.
pub fn evidence(
    of: Step,
    analysis: &Analysis,
    point: &Point,
    records: &[Record],
    machine: &Machine,
    bundle: &[String],
    capacity: &dyn Fn(&str, &Record) -> Option<f64>,
) -> Option<Evidence> {
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
    // The machine's own loopback is memory and CPUs, no link; one in a namespace may stand in for a link with a rate.
    let links = usage.links.iter().filter(|link| link.name != "lo");
    let carried = links.filter(|link| payload > 0.0 && link.rx.max(link.tx) > CARRIES * payload);
    let mut links: Vec<SharedEvidence> = carried.map(|link| shared_link(&link.name)).collect();
    links.sort_by(|a, b| b.got.total_cmp(&a.got));
    let parts: Vec<PartEvidence> = analysis
        .parts
        .iter()
        .take(point.step as usize)
        .filter_map(|part| {
            let alone = part.alone?;
            Some(PartEvidence { name: part.name.clone(), alone, best_of_kind: part.best_of_kind })
        })
        .collect();
    // Counters are read now and then, the payload is counted: a disk that moved about all of it moved it. What others move on
    // the same disk is none of the load's.
    let disk_rate = |record: &Record, name: &str| {
        let device = record.usage.devices.iter().find(|device| device.name == name);
        let payload = record.figures.as_ref().map_or(0.0, |figures| figures.bytes);
        match device.map_or(0.0, |device| device.bytes) {
            bytes if payload > 0.0 && bytes >= CARRIES_ALL * payload => payload,
            bytes => bytes,
        }
    };
    let mut on: Vec<&String> = analysis.parts.iter().filter_map(|part| part.on.as_ref()).collect();
    if !matches!(of, Step::Connections | Step::Pairs) {
        // Strip stores, and clusters of the run's own, lie on disks that only the counters name.
        on.extend(usage.devices.iter().map(|d| &d.name));
    }
    // What files give from the page cache no disk limits, whoever uses that disk meanwhile.
    on.retain(|name| disk_rate(record, name) > CARRIES * payload);
    on.sort();
    on.dedup();
    let disks = on
        .into_iter()
        .map(|name| SharedEvidence {
            name: name.clone(),
            got: disk_rate(record, name),
            alone: singles.iter().map(|r| disk_rate(r, name)).fold(0.0, f64::max),
            ..SharedEvidence::default()
        })
        .collect();
    let size = record.cell.params.get("size").and_then(|size| size.parse::<ByteSize>().ok());
    let most = size.map_or(u64::MAX, |size| size.0);
    let reached = |part: &Alone| part.bytes.map(|bytes| bytes.min(most));
    let reach = analysis.parts.iter().take(point.step as usize).filter_map(reached).sum::<u64>();
    let disks_asked = record.cell.params.get("disks").and_then(|n| n.parse().ok()).unwrap_or(0);
    let own_cpus = usage.load_cpus + usage.served_cpus + usage.kernel_cpus;
    let had = (own_cpus / f64::from(machine.cpus.max(1))).min(1.0);
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
        served_cpus: usage.served_cpus,
        own_cpus,
        foreign_cpus: usage.foreign_cpus,
        waited: usage.waited,
        threads: usage.threads.clone(),
        parts,
        links,
        bundle: bundle.iter().map(|name| shared_link(name)).collect(),
        disks,
        queue_disks: disks_asked,
        one_queue: record.figures.as_ref().and_then(|figures| figures.one_queue.clone()),
        missed: missed(record, payload),
        copied: payload / (machine.memory_copy * had).max(f64::MIN_POSITIVE),
        beyond_caches: machine.caches > 0 && reach >= BEYOND * machine.caches,
        inside: usage.inside.clone(),
        bound: (point.expected.layer.clone(), point.expected.value / point.measured.max(f64::MIN_POSITIVE)),
        drift: (of == Step::Periods).then(|| drift::drift(analysis, records)).flatten(),
        intervals: usage.intervals,
    })
}
