//! The campaign: random, seeded, overlapping faults on real processes and mounts, under load from three mounts, and a
//! checker outside the file system. Here in its short form; `make chaos` is the long one (docs/reliability.md).
//!
//! `ROPEWALK_CHAOS_ROUNDS=N` how many rounds; `ROPEWALK_CHAOS_SEED=N` repeats the plans of faults and loads (not the
//! interleaving); `ROPEWALK_CHAOS_FIRST=N` begins with that round; `ROPEWALK_CHAOS_FAULTS=kill,stop` takes only these
//! kinds, `-kill` all but this; `ROPEWALK_CHAOS_SHRINK=N` runs of a failing round with fewer faults (default 6).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

#[path = "chaos/cells.rs"]
mod cells;
#[path = "chaos/checker.rs"]
mod checker;
#[path = "chaos/faults.rs"]
mod faults;
#[path = "chaos/field.rs"]
mod field;
#[path = "chaos/loads.rs"]
mod loads;
#[path = "chaos/mapped.rs"]
mod mapped;
#[path = "chaos/plan.rs"]
mod plan;
#[cfg(test)]
#[path = "chaos/planted.rs"]
mod planted;
#[path = "chaos/proxy.rs"]
mod proxy;
#[path = "chaos/run.rs"]
mod run;
#[path = "chaos/summary.rs"]
mod summary;

use plan::Kind;
use run::{Campaign, load};
use summary::Summary;

/// Rounds that a cluster lives.
const ROUNDS_OF_A_CLUSTER: u64 = 12;
/// The short form: rounds and their seed.
const SHORT: (u64, u64) = (6, 18);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn campaign() {
    let long = number("ROPEWALK_CHAOS_ROUNDS");
    let rounds = long.unwrap_or(SHORT.0);
    let drawn = || u64::from(std::process::id()) << 20 ^ common::seed() & 0xf_ffff;
    let seed =
        number("ROPEWALK_CHAOS_SEED").unwrap_or_else(|| if long.is_some() { drawn() } else { SHORT.1 });
    let list = std::env::var("ROPEWALK_CHAOS_FAULTS").ok();
    let kinds = plan::kinds(list.as_deref()).unwrap();
    let first = number("ROPEWALK_CHAOS_FIRST").unwrap_or(0);
    println!("ROPEWALK_CHAOS_SEED={seed}, rounds {first}..{}", first + rounds);
    let mut summary = Summary::default();
    let mut campaign: Option<Campaign> = None;
    let mut shape = plan::shape(seed, first);
    for at in first..first + rounds {
        let round = plan::round(seed, at, &kinds);
        let campaign_now = campaign.get_or_insert_with(|| {
            shape = plan::shape(seed, at);
            println!("a new cluster: {shape:?}");
            Campaign::new(shape, &kinds)
        });
        let faults: Vec<String> = round.faults.iter().map(plan::Fault::say).collect();
        println!("round {at}: {}", faults.join(", "));
        let outcome = campaign_now.round(&round);
        println!(
            "  longest call {:?} ({}); all ok after {:?}; {}; load {}{}",
            outcome.longest.0,
            outcome.longest.1,
            outcome.recovery,
            campaign_now.most(),
            load(),
            if outcome.wrong.is_empty() {
                String::new()
            } else {
                format!("; {} VIOLATIONS", outcome.wrong.len())
            },
        );
        summary.add(&round, shape, &outcome);
        let failed = !outcome.wrong.is_empty();
        if failed {
            keep(campaign_now, seed, at);
            campaign = None;
            let runs = number("ROPEWALK_CHAOS_SHRINK").unwrap_or(if long.is_some() { 6 } else { 0 });
            let classes: Vec<_> = outcome.wrong.iter().map(|v| v.class).collect();
            let smallest = summary::shrink(&round, runs, |fewer| {
                let mut campaign = Campaign::new(shape, &kinds);
                let outcome = campaign.round(fewer);
                outcome.wrong.iter().any(|v| classes.contains(&v.class))
            });
            summary.shrunk(&round, smallest.as_ref(), runs);
        }
        if (at + 1 - first).is_multiple_of(ROUNDS_OF_A_CLUSTER) || round.has(Kind::Beyond) {
            campaign = None;
        }
    }
    println!("{}", summary.text());
    assert!(summary.is_clean(), "violations: see above; ROPEWALK_CHAOS_SEED={seed}");
}

/// The logs of a cluster that failed, where ROPEWALK_CHAOS_KEEP says.
fn keep(campaign: &Campaign, seed: u64, round: u64) {
    if let Ok(place) = std::env::var("ROPEWALK_CHAOS_KEEP") {
        let to = std::path::Path::new(&place).join(format!("{seed}-{round}"));
        let _ = std::fs::create_dir_all(&to);
        let _ = std::process::Command::new("cp")
            .arg("-a")
            .arg(campaign.cluster.dir().join("log"))
            .arg(&to)
            .status();
        println!("  its logs: {}", to.display());
    }
}
