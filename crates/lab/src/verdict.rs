//! The verdict: which resource is the limit, with the evidence and how sure it is; "not known" when the evidence
//! does not say. Pure: evidence in, verdict out.
//!
//! Thresholds come from the same run: a CPU or thread is full at what a thread that never waits got at the start
//! of the run; a part is at its limit when it gives what it gave alone; a link or disk that several parts share,
//! when it carries no more than the most it carried for one. All of them less the noise between equal cells.

mod drift;
mod evidence;
mod findings;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::{observe::CpuUse, plan::Step};
pub use drift::Drift;
pub use evidence::{Evidence, PartEvidence, SharedEvidence, evidence, judged};
use findings::{
    bundle, busy_disks, commits, crowded_cpus, drifting, filled, full_cpus, full_link, full_thread,
    kept_waiting, no_limit, no_other_node, one_queue, page_pool, said, shared, slow_parts, slow_pdisk,
    tokens,
};

/// A part that gives less than this of the best of its kind is slow (FACTS: the disk hospital's 0.667).
pub const SLOW: f64 = 0.667;
/// Other programs' part of the CPUs from which on a verdict is doubtful.
const FOREIGN: f64 = 0.25;

/// CPUs that the evidence shows at most; of more the busiest.
const CPUS_SHOWN: usize = 16;
/// Links and disks that the evidence shows at most.
const SHARED_SHOWN: usize = 4;

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
    /// A page pool that holds too little of what is read again and again.
    PagePool,
    /// The manager, which takes long to commit.
    Manager,
    /// Tokens that client nodes take from each other: each block has one writer at a time.
    Tokens,
    /// Memory bandwidth.
    Memory,
    /// Other programs have more of the CPUs than the load.
    Neighbour,
    /// A steady load does not stay as it was: its rate falls, or a process grows.
    Drift,
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
    /// Whether others used so much of the machine that no figure is sure.
    #[serde(default)]
    pub doubtful: bool,
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn rate(bytes: f64) -> String {
    format!("{:.1} MB/s", bytes / 1e6)
}

/// Of verdicts on several points the first that knows: what is the limit right after the knee may show only where more is asked.
pub fn first_known(verdicts: impl Iterator<Item = Verdict>) -> Option<Verdict> {
    let mut first = None;
    for verdict in verdicts {
        if verdict.limit != Limit::NotKnown {
            return Some(verdict);
        }
        first.get_or_insert(verdict);
    }
    first
}

/// Says what the limit is.
pub fn judge(e: &Evidence) -> Verdict {
    let full = e.full();
    let mut evidence = facts(e);
    if let Some(drift) = &e.drift {
        evidence.push(drift.said());
        evidence.extend(drift.held.iter().cloned());
    }
    let steady = (e.of == Step::Periods).then(|| drifting(e));
    let finding = steady.or_else(|| stepped(e, full)).unwrap_or_else(|| {
        let text = format!(
            "not known: at {} it is {} of what the single parts promise, and nothing that was watched is full",
            describe(e),
            percent(e.efficiency)
        );
        (Limit::NotKnown, Vec::new(), text)
    });
    let (limit, names, text) = finding;
    let allowed = || e.allowed().map(|cpu| cpu.busy + cpu.steal);
    let busiest = allowed().fold(0.0, f64::max);
    let mean = allowed().sum::<f64>() / allowed().count().max(1) as f64;
    let one = e.threads.first().map_or(0.0, |thread| thread.busy);
    let confidence = match limit {
        // A link that carries all it can is full, whoever is busy beside it.
        Limit::Link if filled(e).is_some() && e.intervals >= 2 => Confidence::High,
        _ if e.doubtful() => Confidence::Low,
        Limit::NotKnown => Confidence::Low,
        // Crowded, not full.
        Limit::Cpu if mean.max(one) < e.filled() * e.cpu_full => Confidence::Low,
        Limit::LoadThread if e.threads.iter().all(|t| t.busy + t.waited < e.filled() * e.cpu_full) => {
            Confidence::Low
        }
        Limit::Cpu if e.may_be_memory() => Confidence::Medium,
        // Found by elimination: sure only if CPUs were far from full.
        Limit::Link | Limit::Device | Limit::Clients if busiest > 0.8 * e.cpu_full => Confidence::Low,
        Limit::Link | Limit::Device | Limit::Clients | Limit::Memory => Confidence::Medium,
        // Caches fill: only the rate is proof.
        Limit::Drift if names.iter().all(|name| name != "rate") => Confidence::Medium,
        _ => Confidence::High,
    };
    evidence.extend(beside(e));
    Verdict { limit, names, confidence, step: e.step, text, evidence, doubtful: e.doubtful() }
}

/// What limits a load that is stepped up, if anything that was watched does.
fn stepped(e: &Evidence, full: f64) -> Option<Finding> {
    let scales = e.knee.is_none() && e.efficiency >= full;
    // One client node alone gives what one alone gives, whatever is full.
    let single = scales && e.step <= 1 && e.of == Step::Nodes;
    let found = [
        page_pool(e),
        bundle(e, full, scales),
        full_link(e),
        tokens(e),
        slow_pdisk(e),
        full_cpus(e),
        slow_parts(e, full),
        one_queue(e, scales),
        commits(e),
    ];
    // What is wrong is wrong, however the steps scale: each part alone is held back as well.
    let always = [
        Limit::SlowDevice,
        Limit::HashPolicy,
        Limit::PagePool,
        Limit::Manager,
        Limit::Tokens,
        Limit::Neighbour,
    ];
    found
        .into_iter()
        .flatten()
        .find(|finding| !scales || single && finding.0 == Limit::Cpu || always.contains(&finding.0))
        .or_else(|| {
            if single {
                Some(no_other_node(e))
            } else if scales {
                Some(no_limit(e, full))
            } else {
                // From here on by elimination.
                full_thread(e)
                    .or_else(|| crowded_cpus(e))
                    .or_else(|| busy_disks(e))
                    .or_else(|| shared(e, full))
                    .or_else(|| kept_waiting(e))
            }
        })
}

/// What others did to the machine meanwhile, where it casts doubt.
fn beside(e: &Evidence) -> Option<String> {
    let (foreign, stolen) = e.others();
    (foreign > FOREIGN).then(|| {
        let allowed = e.allowed().count().max(1);
        let host = match stolen > 0.05 {
            true => format!(", and the host of this virtual machine took {stolen:.1}"),
            false => String::new(),
        };
        format!(
            "other programs used {:.1} of {allowed} CPUs meanwhile{host}; measure again on a quiet machine",
            e.foreign_here()
        )
    })
}

type Finding = (Limit, Vec<String>, String);

fn describe(e: &Evidence) -> String {
    e.of.count(e.step)
}

/// The figures that every verdict shows.
fn facts(e: &Evidence) -> Vec<String> {
    let mut facts = vec![match e.knee {
        Some(knee) => {
            format!("knee at {}; at {} the efficiency is {}", e.of.count(knee), e.step, percent(e.efficiency))
        }
        None => format!("no knee; at {} the efficiency is {}", describe(e), percent(e.efficiency)),
    }];
    let mut cpus: Vec<&CpuUse> = e.cpus.iter().collect();
    let more = cpus.len().saturating_sub(CPUS_SHOWN);
    if more > 0 {
        cpus.sort_by(|a, b| b.busy.total_cmp(&a.busy));
    }
    let show = |cpu: &&CpuUse| {
        let pinned = if cpu.allowed { "" } else { " (not allowed)" };
        let steal = if cpu.steal > 0.05 { format!(" +{} stolen", percent(cpu.steal)) } else { String::new() };
        format!("{} {}{steal}{pinned}", cpu.name(), percent(cpu.busy))
    };
    let mut cpus: Vec<String> = cpus.iter().take(CPUS_SHOWN).map(show).collect();
    if more > 0 {
        cpus.push(format!("{more} more not above that"));
    }
    facts.push(format!(
        "CPUs busy: {}; load generators used {:.2} CPUs, what serves them {:.2}, other programs {:.2}; full is {}{}",
        cpus.join(", "),
        e.load_cpus,
        e.served_cpus,
        e.foreign_cpus,
        percent(e.cpu_full),
        e.waited.map_or(String::new(), |waited| format!("; {waited:.2} threads of the load waited for a CPU at a time"))
    ));
    if e.may_be_memory() {
        let copied = percent(e.copied);
        facts.push(format!(
            "the load moves {copied} of what can be copied in its CPU time, from more than the caches hold"
        ));
    }
    if let Some(thread) = e.threads.first() {
        facts.push(format!("busiest thread: {} ({:?}) {}", thread.name, thread.who, percent(thread.busy)));
    }
    let shared = e.bundle.iter().chain(&e.links).chain(&e.disks);
    let mut seen: Vec<&str> = Vec::new();
    for one in shared {
        if !seen.contains(&one.name.as_str()) {
            seen.push(&one.name);
            if seen.len() > SHARED_SHOWN {
                continue;
            }
            let of = one.capacity.map_or(String::new(), |capacity| format!(" of {}", rate(capacity)));
            // A load that grows has no cell of its first step.
            let first = match e.of {
                Step::Writers => String::new(),
                _ => format!(", {} at the first step", rate(one.alone)),
            };
            facts.push(format!("{}: {}{of}{first}", one.name, rate(one.got)));
        }
    }
    if seen.len() > SHARED_SHOWN {
        facts.push(format!("{} more links and disks that moved less", seen.len() - SHARED_SHOWN));
    }
    facts.extend(e.inside.as_ref().map(said));
    facts
}
