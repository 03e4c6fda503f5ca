//! `advise measure`: what following one rule brings on this machine. The lab's plan runs, the settings are made, the plan
//! runs again; if something became faster by more than noise and nothing slower, the settings stay, else they are taken
//! back. While they are tried they are guarded: a crash, or a plan that never ends, takes them back as well.

use std::path::Path;

use advisor::{
    Catalogue, Finding, Tree,
    apply::{self, Outcome},
};
use anyhow::{Context as _, Result, ensure};
use lab::compare::{Change, Compared, Comparison};

use super::{changes, guard, machine::facts};
use crate::{
    args::{Context, MeasureArgs, RunArgs},
    commands::lab_run,
    output,
};

/// How long the second run may take, seconds.
const TRIED_FOR: u64 = 6 * 3600;

/// What the two runs say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Worth {
    Faster,
    Same,
    Slower,
}

fn worth(points: &[Compared]) -> Worth {
    let any = |changes: &[Change]| points.iter().any(|point| changes.contains(&point.change));
    if any(&[Change::Slower, Change::Gone]) {
        Worth::Slower
    } else if any(&[Change::Faster]) {
        Worth::Faster
    } else {
        Worth::Same
    }
}

/// Measures, and keeps or takes back.
pub(super) fn measure(args: &MeasureArgs, context: &Context) -> Result<()> {
    let catalogue = Catalogue::load()?;
    let rule = catalogue
        .rule(&args.rule)
        .with_context(|| format!("there is no rule {}: ropewalk advise rules", args.rule))?;
    let plan = args.plan.clone().or_else(|| rule.measure.clone()).with_context(|| {
        format!("the lab has no plan for {}: name one with --plan (ropewalk lab list)", rule.id)
    })?;
    let (facts, _) = facts(&catalogue, &Tree::below(&args.root), context)?;
    let findings = advisor::advise(&catalogue, &facts, context.role.as_slice());
    let findings: Vec<&Finding> =
        findings.iter().filter(|f| f.rule == rule.id && f.change.is_some()).collect();
    ensure!(
        !apply::plan(&args.root, &findings)?.is_empty(),
        "{} makes no setting here: ropewalk advise explain {0} says when it does",
        rule.id
    );
    let (before, after) = (args.out.join("before"), args.out.join("after"));
    let run = |out: &Path| {
        lab_run::run(&RunArgs {
            plans: vec![plan.clone()],
            all: false,
            short: args.short,
            dry_run: false,
            out: Some(out.to_owned()),
            on: args.on.clone(),
            agent: Vec::new(),
            cluster: None,
        })
    };
    output::line(format!("{plan}: before"));
    run(&before)?;
    let until = apply::now() + TRIED_FOR;
    guard::start(&args.root, until)?;
    changes::show(&apply::apply(&args.root, &findings, Some(until))?, false, "")?;
    output::line(format!("{plan}: after"));
    let comparison = run(&after).and_then(|()| lab_run::comparison(&before, &after));
    let outcomes = decide(&args.root, comparison.as_ref().ok())?;
    changes::show(&outcomes, false, "")?;
    lab_run::print_comparison(&comparison?);
    Ok(())
}

/// Keeps what is worth it; what is not, or could not be measured, is taken back.
fn decide(root: &Path, comparison: Option<&Comparison>) -> Result<Vec<Outcome>> {
    let worth = comparison.map(|comparison| worth(&comparison.points));
    output::line(match worth {
        Some(Worth::Faster) => "faster, and nothing slower: kept",
        Some(Worth::Same) => "no difference beyond noise: taken back",
        Some(Worth::Slower) => "something became slower: taken back",
        None => "not measured: taken back",
    });
    if worth == Some(Worth::Faster) {
        return Ok(apply::confirm(root)?);
    }
    // What runs before it have set is in force again.
    Ok(apply::revert_newest(root)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_faster_and_nowhere_slower_is_worth_it() {
        let point = |change| Compared {
            plan: "p".into(),
            series: "s".into(),
            step: 1,
            figure: lab::plan::Figure::Seconds,
            before: Some(1.0),
            after: Some(1.0),
            threshold: 0.03,
            change,
        };
        for (changes, expected) in [
            (&[Change::Faster, Change::Same][..], Worth::Faster),
            (&[Change::Faster, Change::Slower], Worth::Slower),
            (&[Change::Gone], Worth::Slower),
            (&[Change::Same, Change::New], Worth::Same),
            (&[], Worth::Same),
        ] {
            let points: Vec<Compared> = changes.iter().map(|change| point(*change)).collect();
            assert_eq!(worth(&points), expected, "{changes:?}");
        }
    }
}
