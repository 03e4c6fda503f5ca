//! The campaign: random, seeded, overlapping faults on real processes and mounts, under load from three mounts, and a
//! checker outside the file system. Here in its short form; `make chaos` is the long one (docs/reliability.md).
//!
//! `ROPEWALK_CHAOS_ROUNDS=N` how many rounds; `ROPEWALK_CHAOS_SEED=N` repeats the plans of faults and loads (not the
//! interleaving); `ROPEWALK_CHAOS_FIRST=N` begins with that round; `ROPEWALK_CHAOS_FAULTS=kill,stop` takes only these
//! kinds, `-kill` all but this; `ROPEWALK_CHAOS_SHRINK=N` runs of a failing round with fewer faults (default 6);
//! `ROPEWALK_CHAOS_SECONDS=N` begins no round after this time; `ROPEWALK_CHAOS_PLANT=kill` calls this fault a violation;
//! `ROPEWALK_CHAOS_KEEP=DIR` keeps the logs of clusters that failed.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

#[path = "chaos/cells.rs"]
mod cells;
#[path = "chaos/checker.rs"]
mod checker;
#[path = "chaos/clock.rs"]
mod clock;
#[path = "chaos/faults.rs"]
mod faults;
#[path = "chaos/field.rs"]
mod field;
#[path = "common/interrupt.rs"]
mod interrupt;
#[path = "chaos/loads.rs"]
mod loads;
#[path = "chaos/mapped.rs"]
mod mapped;
#[path = "chaos/mend.rs"]
mod mend;
#[path = "chaos/plan.rs"]
mod plan;
#[cfg(test)]
#[path = "chaos/planted.rs"]
mod planted;
#[path = "chaos/proxy.rs"]
mod proxy;
#[path = "chaos/reaper.rs"]
mod reaper;
#[path = "chaos/run.rs"]
mod run;
#[path = "chaos/summary.rs"]
mod summary;
#[path = "chaos/usage.rs"]
mod usage;
#[path = "chaos/why.rs"]
mod why;

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use plan::Kind;
use reaper::Reaper;
use run::{Campaign, Outcome, Runner};
use summary::Summary;
use usage::{load, most};

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
    let plant = std::env::var("ROPEWALK_CHAOS_PLANT").ok();
    let plant = plant.and_then(|name| plan::kinds(Some(&name)).unwrap().first().copied());
    let runs = number("ROPEWALK_CHAOS_SHRINK").unwrap_or(if long.is_some() { 6 } else { 0 });
    let end = number("ROPEWALK_CHAOS_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    println!("ROPEWALK_CHAOS_SEED={seed}, rounds {first}..{}", first + rounds);
    let runner = Runner { reaper: Arc::new(Reaper::start()), plant };
    let summary = Arc::new(Mutex::new(Summary::new(seed)));
    let (at_last, reaper) = (summary.clone(), runner.reaper.clone());
    reaper::on_interrupt(move || {
        reaper.begin();
        at_last.lock().text()
    });
    let mut campaign: Option<Campaign> = None;
    for at in first..first + rounds {
        if end.is_some_and(|end| Instant::now() > end) {
            println!("the time is over");
            break;
        }
        let shape = plan::shape(seed, at);
        let kinds = shape.takes(&kinds);
        let round = plan::round(seed, at, &kinds);
        if campaign.is_none() {
            println!("a new cluster: {shape:?}");
            summary.lock().a_new_cluster();
        }
        let faults: Vec<String> = round.faults.iter().map(plan::Fault::say).collect();
        println!("round {at}: {}", faults.join(", "));
        let outcome =
            unbroken(|| campaign.get_or_insert_with(|| Campaign::new(shape, &kinds, &runner)).round(&round));
        println!(
            "  {:.1} s, then {:.1} s; longest call {:?} ({}); all ok after {:?}; {}; load {}{}",
            outcome.took.0.as_secs_f64(),
            outcome.took.1.as_secs_f64(),
            outcome.longest.0,
            outcome.longest.1,
            outcome.recovery,
            campaign.as_ref().map(|campaign| most(&campaign.cluster)).unwrap_or_default(),
            load(),
            if outcome.wrong.is_empty() {
                String::new()
            } else {
                format!("; {} VIOLATIONS", outcome.wrong.len())
            },
        );
        summary.lock().add(&round, shape, &outcome);
        if !outcome.wrong.is_empty() {
            campaign.take().iter().for_each(|campaign| keep(campaign, seed, at));
            let classes: Vec<_> = outcome.wrong.iter().map(|v| v.class).collect();
            let smallest = summary::shrink(&round, runs, |fewer| {
                let faults: Vec<String> = fewer.faults.iter().map(plan::Fault::say).collect();
                println!("again on a new cluster: {}", faults.join(", "));
                let outcome = unbroken(|| Campaign::new(shape, &kinds, &runner).round(fewer));
                outcome.wrong.iter().any(|v| classes.contains(&v.class))
            });
            summary.lock().shrunk(&round, smallest.as_ref(), runs);
        }
        if (at + 1).is_multiple_of(plan::ROUNDS_OF_A_CLUSTER) || round.has(Kind::Beyond) {
            campaign = None;
            println!("{}", summary.lock().figures());
        }
    }
    drop(campaign);
    let summary = summary.lock();
    println!("{}", summary.text());
    assert!(summary.is_clean(), "violations: see above; ROPEWALK_CHAOS_SEED={seed}");
}

/// A round that breaks off (a command that failed, say) is a round that failed: the others are run all the same.
fn unbroken(round: impl FnOnce() -> Outcome) -> Outcome {
    std::panic::catch_unwind(AssertUnwindSafe(round)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Outcome::broken(format!("the round broke off: {}", text.unwrap_or_default()))
    })
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
