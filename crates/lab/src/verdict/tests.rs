//! Evidence of every kind of limit, and of none.

use super::*;
use crate::observe::{ThreadUse, Who};

fn cpus(busy: &[f64]) -> Vec<CpuUse> {
    let one = |(cpu, &busy): (usize, &f64)| CpuUse { cpu: cpu as u32, busy, steal: 0.0, allowed: true };
    busy.iter().enumerate().map(one).collect()
}

fn link(name: &str, got: f64, alone: f64) -> SharedEvidence {
    SharedEvidence { name: name.into(), got, alone, most: got.max(alone), capacity: None }
}

fn thread(name: &str, who: Who, busy: f64) -> ThreadUse {
    ThreadUse { name: name.into(), who, busy, waited: 0.0 }
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
        served_cpus: 0.0,
        own_cpus: 0.3,
        foreign_cpus: 0.0,
        waited: Some(0.0),
        threads: vec![thread("fio", Who::Load, 0.2)],
        parts: Vec::new(),
        links: Vec::new(),
        bundle: Vec::new(),
        disks: Vec::new(),
        queue_disks: 0,
        one_queue: None,
        missed: None,
        copied: 0.01,
        beyond_caches: false,
        inside: None,
        bound: (of.layer().into(), 1.0),
        drift: None,
        intervals: 8,
    }
}

fn limit(e: &Evidence) -> Limit {
    judge(e).limit
}

#[test]
fn a_page_pool_that_does_not_hold_what_is_read_again_is_named_before_what_is_full() {
    let mut e =
        Evidence { missed: Some(0.6), links: vec![link("l", 100.0, 100.0)], ..idle(Step::Workers, 0.5) };
    let verdict = judge(&e);
    assert!(verdict.limit == Limit::PagePool && verdict.text.contains("60 %"), "{verdict:?}");
    e.missed = Some(0.1);
    assert_eq!(limit(&e), Limit::Link);
}

#[test]
fn what_only_the_cluster_can_tell_is_named_also_where_it_scales() {
    use crate::observe::{Inside, PdiskUse};
    let pdisk = |n: u32, busy: f64, mean_ms: f64| {
        let name = format!("n{}/pdisk{}", n / 2 + 1, n % 2 + 1);
        PdiskUse { name, busy, mean_ms, batches: 20.0 }
    };
    let quiet = Inside {
        waiting: 4.0,
        tokens: 0.1,
        commits: 0.9,
        commit_ms: 4.0,
        flush_ms: 1.0,
        pdisks: (0..8).map(|n| pdisk(n, 0.9, 5.0)).collect(),
    };
    let of = |inside: Inside, efficiency: f64| {
        judge(&Evidence { inside: Some(inside), ..idle(Step::Nodes, efficiency) })
    };
    assert_eq!(of(quiet.clone(), 0.97).limit, Limit::Clients);
    // All of them busy alike, the manager's disk as well.
    assert_eq!(of(quiet.clone(), 0.5).limit, Limit::Device);
    let quiet = Inside { commits: 0.6, pdisks: (0..8).map(|n| pdisk(n, 0.5, 5.0)).collect(), ..quiet };
    assert_eq!(of(quiet.clone(), 0.5).limit, Limit::NotKnown);
    let mut one = quiet.clone();
    one.pdisks[5] = pdisk(5, 0.95, 60.0);
    let verdict = of(one.clone(), 0.5);
    assert_eq!((verdict.limit, verdict.names), (Limit::SlowDevice, vec!["pdisk n3/pdisk2".to_owned()]));
    // It holds nobody up while it has little to do.
    one.pdisks[5].busy = 0.2;
    assert_eq!(of(one, 0.5).limit, Limit::NotKnown);
    let verdict = of(Inside { tokens: 3.0, ..quiet.clone() }, 0.5);
    assert!(verdict.limit == Limit::Tokens && verdict.text.contains("75 %"), "{verdict:?}");
    let slow = Inside { commit_ms: 65.0, ..quiet };
    assert_eq!(of(slow.clone(), 0.97).limit, Limit::Manager);
    assert_eq!(of(Inside { commits: 0.2, ..slow.clone() }, 0.5).limit, Limit::NotKnown);
    // A disk that is slow for everybody is no fault of the manager's.
    assert_eq!(of(Inside { flush_ms: 40.0, ..slow }, 0.5).limit, Limit::NotKnown);
}

#[test]
fn what_does_nothing_but_copy_is_limited_by_memory() {
    let busy = Evidence { cpus: cpus(&[0.97, 0.95]), copied: 0.95, ..idle(Step::Devices, 0.5) };
    // As fast as memory is also what caches give.
    assert_eq!(limit(&busy), Limit::Cpu);
    let full = Evidence { beyond_caches: true, ..busy };
    let verdict = judge(&full);
    assert_eq!((verdict.limit, verdict.confidence), (Limit::Memory, Confidence::Medium));
    // What can be copied may have been less by then.
    let verdict = judge(&Evidence { copied: 0.6, ..full.clone() });
    assert_eq!((verdict.limit, verdict.confidence), (Limit::Cpu, Confidence::Medium));
    let verdict = judge(&Evidence { copied: 0.2, ..full.clone() });
    assert_eq!((verdict.limit, verdict.confidence), (Limit::Cpu, Confidence::High));
    assert_eq!(limit(&Evidence { cpus: cpus(&[0.6, 0.5]), ..full }), Limit::NotKnown);
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
    // And what it takes makes every verdict doubtful but a full link's.
    stolen.cpus[1].steal = 0.6;
    stolen.cpus[1].busy = 0.1;
    stolen.cpus[0].busy = 0.1;
    let verdict = judge(&stolen);
    assert_eq!((verdict.limit, verdict.confidence), (Limit::NotKnown, Confidence::Low));
    assert!(verdict.evidence.iter().any(|line| line.contains("host of this virtual machine took 0.6")));
    assert_eq!(judge(&Evidence { efficiency: 0.97, knee: None, ..stolen }).confidence, Confidence::Low);
    // One a little less busy than the other: both are full together.
    let uneven = Evidence { cpus: cpus(&[0.99, 0.85]), ..e.clone() };
    assert_eq!(limit(&uneven), Limit::Cpu);
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
    let served = Evidence { threads: vec![thread("ropewalk/io0", Who::Served, 0.97)], ..one.clone() };
    assert_eq!(limit(&served), Limit::Cpu);
    // It cannot have more than the host leaves.
    let mut left = Evidence { threads: vec![thread("iperf3", Who::Load, 0.75)], ..one };
    assert_eq!(limit(&left), Limit::NotKnown);
    left.cpus.iter_mut().for_each(|cpu| cpu.steal = 0.2);
    let verdict = judge(&left);
    assert_eq!((verdict.limit, verdict.confidence), (Limit::LoadThread, Confidence::Low));
}

/// CPUs that are full, of whose work the load has so much, and waits so much.
fn beside(of: Step, load: f64, waited: f64) -> Evidence {
    Evidence {
        cpus: cpus(&[0.98, 0.97]),
        threads: vec![ThreadUse { waited, ..thread("fio", Who::Load, load) }],
        load_cpus: load,
        own_cpus: load,
        foreign_cpus: 1.95 - load,
        waited: Some(waited),
        ..idle(of, 0.4)
    }
}

#[test]
fn a_thread_with_a_cpu_to_itself_is_the_limit_though_others_fill_the_rest() {
    let verdict = judge(&beside(Step::Workers, 0.95, 0.02));
    assert_eq!((verdict.limit, verdict.confidence), (Limit::LoadThread, Confidence::Low));
    // One that others keep from its CPU for a while is still the only one that could do more.
    assert_eq!(limit(&beside(Step::Workers, 0.7, 0.3)), Limit::LoadThread);
    assert_eq!(limit(&beside(Step::Workers, 0.3, 0.68)), Limit::Neighbour);
    // One that sleeps half of the time is kept from nothing.
    assert_eq!(limit(&beside(Step::Workers, 0.5, 0.05)), Limit::NotKnown);
}

#[test]
fn others_are_the_limit_where_the_load_waits_for_cpus_that_they_have() {
    let three = |load: f64, waited: f64| Evidence {
        threads: vec![ThreadUse { waited: waited / 3.0, ..thread("fio", Who::Load, load / 3.0) }; 3],
        ..beside(Step::Devices, load, waited)
    };
    let verdict = judge(&three(0.7, 2.3));
    assert!(verdict.limit == Limit::Neighbour && verdict.text.contains("77 % of the time"), "{verdict:?}");
    // However the steps scale: each part alone was held back as well.
    assert_eq!(limit(&Evidence { efficiency: 0.97, knee: None, ..three(0.7, 2.3) }), Limit::Neighbour);
    // The load has more than they: its own threads are what it waits for.
    assert_eq!(limit(&three(1.2, 1.8)), Limit::Cpu);
    // It hardly wants any: what is the limit is elsewhere.
    let little = Evidence { efficiency: 0.97, knee: None, ..three(0.1, 0.2) };
    assert_eq!(limit(&little), Limit::None);
    assert_eq!(limit(&three(0.1, 0.2)), Limit::NotKnown);
    // By elimination: it cannot fill the CPUs, and has none for most of the time.
    assert_eq!(limit(&three(0.4, 0.8)), Limit::Neighbour);
    // Pinned beside others: only what they do on its CPU counts.
    let mut pinned = three(0.95, 2.0);
    pinned.cpus[1].allowed = false;
    pinned.foreign_cpus = 1.0;
    assert_eq!(limit(&pinned), Limit::PinnedCpu);
    // A kernel that does not count who waits: what they have decides.
    let unknown = Evidence { waited: None, ..three(0.7, 0.0) };
    assert_eq!(limit(&unknown), Limit::Neighbour);
    assert_eq!(limit(&Evidence { own_cpus: 0.2, ..unknown }), Limit::NotKnown);
}

#[test]
fn cpus_between_whose_threads_work_is_handed_on_are_crowded_before_they_are_full() {
    let e =
        Evidence { cpus: cpus(&[0.85, 0.83]), own_cpus: 1.6, waited: Some(1.0), ..idle(Step::Workers, 0.5) };
    let verdict = judge(&e);
    assert_eq!((verdict.limit, verdict.confidence), (Limit::Cpu, Confidence::Low));
    // Nobody waits: there is something else.
    assert_eq!(limit(&Evidence { waited: Some(0.1), ..e.clone() }), Limit::NotKnown);
    assert_eq!(limit(&Evidence { cpus: cpus(&[0.75, 0.6]), ..e.clone() }), Limit::Cpu);
    assert_eq!(limit(&Evidence { cpus: cpus(&[0.6, 0.5]), ..e }), Limit::NotKnown);
}

#[test]
fn disks_that_are_always_busy_are_the_limit_by_elimination() {
    use crate::observe::{Inside, PdiskUse};
    let pdisk = |busy| PdiskUse { name: "n1/pdisk1".into(), busy, mean_ms: 9.0, batches: 50.0 };
    let inside = |busy: f64, commits: f64| Inside {
        waiting: 4.0,
        commits,
        commit_ms: 4.0,
        flush_ms: 3.0,
        pdisks: vec![pdisk(busy); 3],
        ..Inside::default()
    };
    let of = |inside| judge(&Evidence { inside: Some(inside), ..idle(Step::Nodes, 0.5) });
    let verdict = of(inside(0.9, 0.2));
    assert_eq!((verdict.limit, verdict.confidence), (Limit::Device, Confidence::Medium));
    assert_eq!(of(inside(0.3, 0.9)).names, ["the manager's disk"]);
    assert_eq!(of(inside(0.3, 0.3)).limit, Limit::NotKnown);
    assert_eq!(of(Inside { waiting: 0.1, ..inside(0.9, 0.9) }).limit, Limit::NotKnown);
}

#[test]
fn the_first_step_that_knows_is_heard() {
    let of = |limit| Verdict { limit, ..judge(&idle(Step::Devices, 0.5)) };
    let first = |all: &[Limit]| first_known(all.iter().map(|limit| of(*limit))).map(|v| v.limit);
    assert_eq!(first(&[Limit::NotKnown, Limit::Cpu, Limit::Link]), Some(Limit::Cpu));
    assert_eq!(first(&[Limit::NotKnown]), Some(Limit::NotKnown));
    assert_eq!(first(&[]), None);
}

#[test]
fn one_full_node_of_several_is_named() {
    let mut both = cpus(&[0.3, 0.2, 0.97, 0.95]);
    for (n, cpu) in both[2..].iter_mut().enumerate() {
        cpu.cpu = crate::observe::NODE_CPUS + n as u32;
    }
    let verdict = judge(&Evidence { cpus: both, ..idle(Step::Nodes, 0.5) });
    assert_eq!(
        (verdict.limit, verdict.names),
        (Limit::Cpu, vec!["CPU 2:0".to_owned(), "CPU 2:1".to_owned()])
    );
    assert!(verdict.text.contains("node 2"), "{}", verdict.text);
}

#[test]
fn other_programs_make_it_doubtful() {
    let cpus = cpus(&[0.97, 0.95]);
    let waited = Some(1.9);
    let e = Evidence { cpus, own_cpus: 1.1, foreign_cpus: 0.8, waited, ..idle(Step::Devices, 0.5) };
    let verdict = judge(&e);
    assert_eq!((verdict.limit, verdict.confidence), (Limit::Cpu, Confidence::Low));
    assert!(verdict.evidence.iter().any(|line| line.contains("other programs used 0.8")), "{verdict:?}");
    // They have more of them than the load, which wants some as well.
    let e = Evidence { own_cpus: 0.6, foreign_cpus: 1.3, ..e };
    assert_eq!((limit(&e), judge(&e).confidence), (Limit::Neighbour, Confidence::Low));
    // Others fill them, and the load hardly wants any.
    let little = Evidence { own_cpus: 0.1, waited: Some(0.1), foreign_cpus: 1.3, ..e };
    assert_eq!(limit(&little), Limit::NotKnown);
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
    // Or it carries more now: it was not full at the first step.
    let e = Evidence { links: vec![link("eth0", 143.0, 121.0)], ..e };
    assert_eq!(limit(&e), Limit::NotKnown);
    let hashed = vec![link("l1", 120.0, 121.0), link("l2", 0.4, 0.3)];
    let e = Evidence { links: hashed.clone(), bundle: hashed, ..idle(Step::Connections, 0.25) };
    let verdict = judge(&e);
    assert_eq!((verdict.limit, verdict.names), (Limit::HashPolicy, vec!["l2".to_owned()]));
    // At another step the second link was used: here it was left out by chance.
    let mut chance = e.bundle.clone();
    chance[1].most = 119.0;
    assert_eq!(limit(&Evidence { bundle: chance.clone(), ..e.clone() }), Limit::Link);
    chance[0].capacity = Some(125.0);
    let text = judge(&Evidence { bundle: chance.clone(), links: chance, ..e.clone() }).text;
    assert!(text.contains("l2 was left out by chance"), "{text}");
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
    let several = Evidence { queue_disks: 4, ..e };
    assert_eq!(limit(&several), Limit::NotKnown);
    let verdict = judge(&Evidence { one_queue: Some("2 queues need more memory".into()), ..several });
    assert_eq!((verdict.limit, verdict.names), (Limit::Queue, vec!["registered memory".to_owned()]));
}

#[test]
fn a_steady_load_drifts_or_does_not() {
    let of = |rate, latency, grown: &[&str]| Drift {
        periods: 8,
        rate,
        latency,
        grown: grown.iter().map(|s| (*s).to_owned()).collect(),
        held: Vec::new(),
    };
    let judged = |drift| judge(&Evidence { drift, ..idle(Step::Periods, 1.0) });
    for (drift, wanted) in [
        (of(-0.3, Some(0.1), &[]), Limit::Drift),
        (of(-0.02, Some(0.5), &[]), Limit::Drift),
        (of(0.0, None, &["ropewalk serve 7"]), Limit::Drift),
        (of(-0.02, Some(0.1), &[]), Limit::None),
        (of(0.3, Some(-0.3), &[]), Limit::None),
    ] {
        let verdict = judged(Some(drift.clone()));
        assert_eq!(verdict.limit, wanted, "{drift:?}: {}", verdict.text);
    }
    assert_eq!(judged(None).limit, Limit::NotKnown);
    // Beside others nothing is sure.
    let e = Evidence { drift: Some(of(-0.3, None, &[])), ..beside(Step::Periods, 0.3, 0.0) };
    assert_eq!(judge(&e).confidence, Confidence::Low);
}
