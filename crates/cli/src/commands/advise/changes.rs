//! `advise apply`, `revert` and `history`: settings made and taken back.

use std::path::Path;

use advisor::{
    Catalogue, Finding, Tree,
    apply::{self, Outcome},
    journal,
};
use anyhow::{Result, bail, ensure};

use super::{
    guard,
    machine::{facts, root_is_there, something_is_seen},
};
use crate::{args::Context, output};

/// Seconds in which a change that may cut the connection is to be confirmed.
const CONFIRM_WITHIN: u64 = 120;

/// How settings are made.
pub(super) struct How {
    /// Not only said.
    pub yes: bool,
    /// Seconds; 0 for no guard, none for one where it is needed.
    pub confirm_within: Option<u64>,
    pub json: bool,
}

pub(super) fn make(rules: &[String], root: &Path, context: &Context, how: &How) -> Result<()> {
    let How { yes, confirm_within, json } = *how;
    let catalogue = Catalogue::load()?;
    if let Some(unknown) = rules.iter().find(|rule| catalogue.rule(rule).is_none()) {
        bail!("there is no rule {unknown}: ropewalk advise rules");
    }
    root_is_there(root)?;
    let (facts, seen) = facts(&catalogue, &Tree::below(root), context)?;
    something_is_seen(&seen)?;
    let findings = advisor::advise(&catalogue, &facts, context.role.as_slice());
    let wanted = |f: &&Finding| {
        if rules.is_empty() { !f.disruptive && f.set_by.is_none() } else { rules.contains(&f.rule) }
    };
    let findings: Vec<&Finding> = findings.iter().filter(wanted).collect();
    for rule in rules {
        let of_rule: Vec<_> = findings.iter().filter(|f| f.rule == *rule).collect();
        if !of_rule.is_empty() && of_rule.iter().all(|f| f.change.is_none()) {
            bail!("{rule} makes no setting by itself: ropewalk advise explain {rule} says what to do");
        }
    }
    let mut guarded = None;
    let outcomes = if yes {
        let needed = apply::may_cut(&apply::plan(root, &findings)?).then_some(CONFIRM_WITHIN);
        guarded = confirm_within.or(needed).filter(|seconds| *seconds > 0);
        let until = guarded.map(|seconds| apply::now() + seconds);
        // It must stand before anything can be cut.
        if let Some(until) = until {
            guard::start(root, until)?;
        }
        apply::apply(root, &findings, until)?
    } else {
        apply::plan(root, &findings)?.into_iter().map(|c| Outcome::of(c, "would be set")).collect()
    };
    show(&outcomes, json, "nothing to set")?;
    if !yes && !outcomes.is_empty() && !json {
        output::line("Nothing is changed yet: --yes does it, `ropewalk advise revert` takes it back.");
    }
    if let Some(seconds) = guarded.filter(|_| !outcomes.is_empty() && !json) {
        output::line(format!(
            "Taken back in {seconds} s, unless you say so before: ropewalk advise confirm{}",
            if root == Path::new("/") { String::new() } else { format!(" --root {}", root.display()) }
        ));
    }
    Ok(())
}

pub(super) fn show(outcomes: &[Outcome], json: bool, none: &str) -> Result<()> {
    if json {
        return output::json(&outcomes);
    }
    if outcomes.is_empty() {
        output::line(none);
        return Ok(());
    }
    let row = |o: &Outcome| vec![o.fact.clone(), o.from.clone(), o.to.clone(), o.what.clone()];
    output::table(&["fact", "from", "to", "what"], outcomes.iter().map(row).collect());
    Ok(())
}

pub(super) fn history(root: &Path, json: bool) -> Result<()> {
    root_is_there(root)?;
    let runs = journal::history(root)?;
    if json {
        return output::json(&runs);
    }
    let mut rows = Vec::new();
    for run in &runs {
        for (change, released) in &run.changes {
            let state = match released {
                Some(why) => why.as_str(),
                None if run.done => "in force",
                None if run.waits(apply::now()) => "in force until confirmed",
                None => "cut off: the next apply or revert takes it back",
            };
            let row = [run.run.to_string(), change.rule.clone(), change.fact.clone(), change.before.clone()];
            rows.push(row.into_iter().chain([change.after.clone(), state.to_owned()]).collect());
        }
    }
    if rows.is_empty() {
        output::line("nothing was ever set");
        return Ok(());
    }
    output::table(&["run", "rule", "fact", "before", "after", "state"], rows);
    Ok(())
}

/// `advise confirm`.
pub(super) fn confirm(root: &Path, json: bool) -> Result<()> {
    root_is_there(root)?;
    show(&apply::confirm(root)?, json, "nothing to keep")
}

pub(super) fn revert(names: &[String], root: &Path, json: bool) -> Result<()> {
    root_is_there(root)?;
    let outcomes = apply::revert(root, names)?;
    ensure!(!outcomes.is_empty() || names.is_empty(), "nothing of {} is in force", names.join(", "));
    show(&outcomes, json, "nothing to take back")?;
    let errors: Vec<&str> = outcomes.iter().filter_map(|outcome| outcome.error.as_deref()).collect();
    ensure!(errors.is_empty(), "not taken back, all others are: {}", errors.join("; "));
    Ok(())
}
