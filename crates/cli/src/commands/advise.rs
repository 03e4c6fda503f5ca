//! `ropewalk advise`: what a machine shows, what to change, and the changing of it.

use std::{
    io::{IsTerminal, Write},
    path::Path,
};

use advisor::{
    Catalogue, Facts, Finding, Severity, Tree, Value,
    apply::{self, Outcome},
    archive, journal,
};
use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::json;

use super::advise_dumps;
use crate::{
    args::{Advise, AdviseCommand, Context},
    output,
};

/// On the first screen; the others are counted.
const FIRST_SCREEN: usize = 5;
/// Text is broken at this column.
const COLUMNS: usize = 100;

/// How a report ends when that is no success: by its worst finding, for monitoring.
#[derive(Debug, thiserror::Error)]
#[error("exit status {0}")]
pub struct Status(pub u8);

const COULD_NOT_BE_READ: Status = Status(3);

/// `ropewalk advise` and what stands behind it.
pub fn advise(args: &Advise) -> Result<()> {
    match &args.command {
        None => match report(args) {
            Ok(worst) => match worst {
                None | Some(Severity::Note) => Ok(()),
                Some(Severity::Warning) => Err(Status(1).into()),
                Some(Severity::Critical) => Err(Status(2).into()),
            },
            Err(error) => {
                output::error(&error);
                Err(COULD_NOT_BE_READ.into())
            }
        },
        Some(AdviseCommand::Explain { name }) => explain(name),
        Some(AdviseCommand::Rules { assumptions, json }) => rules(*assumptions, *json),
        Some(AdviseCommand::Collect { root }) => collect(root),
        Some(AdviseCommand::ImportScale(args)) => advise_dumps::import(args),
        Some(AdviseCommand::Diff { a, b, json }) => diff(a, b, *json),
        Some(AdviseCommand::Apply { rules, yes, root, context, json }) => {
            make(rules, *yes, root, context, *json)
        }
        Some(AdviseCommand::Revert { names, root, json }) => {
            let outcomes = apply::revert(root, names)?;
            ensure!(!outcomes.is_empty() || names.is_empty(), "nothing of {} is in force", names.join(", "));
            show(&outcomes, *json, "nothing to take back")
        }
        Some(AdviseCommand::History { root, json }) => history(root, *json),
    }
}

/// The facts of a machine, with what is taken for granted.
fn facts(catalogue: &Catalogue, tree: &Tree, context: &Context) -> Result<(Facts, Facts)> {
    let seen = advisor::host_facts(tree);
    let mut facts = advisor::assumed(catalogue);
    facts.extend(seen.clone());
    for pair in &context.assumed {
        let (name, value) =
            pair.split_once('=').with_context(|| format!("--assume {pair} is not NAME=VALUE"))?;
        let known = |a: &&advisor::catalogue::Assumption| a.name == name;
        let Some(assumption) = catalogue.assumptions.iter().find(known) else {
            let names: Vec<&str> = catalogue.assumptions.iter().map(|a| a.name.as_str()).collect();
            bail!("nothing called {name} is assumed; there are {}", names.join(", "));
        };
        let value = match (&assumption.value, value) {
            (Value::Bool(_), "yes" | "true") => Value::Bool(true),
            (Value::Bool(_), "no" | "false") => Value::Bool(false),
            (Value::Bool(_), _) => bail!("{name} is yes or no, not {value}"),
            (Value::Int(_), _) => {
                let size = value.parse::<base::ByteSize>().map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
                Value::from(size.0)
            }
            _ => Value::from(value),
        };
        facts.insert(["assume", name], value, advisor::Origin::of("--assume"));
    }
    Ok((facts, seen))
}

fn report(args: &Advise) -> Result<Option<Severity>> {
    let catalogue = Catalogue::load()?;
    let tree = match args.machine.from.as_slice() {
        [path] if advise_dumps::is_host(path) => {
            archive::open(path).with_context(|| format!("read {}", path.display()))?
        }
        [_, ..] => return advise_dumps::advise(&args.machine.from, args.all, args.json),
        [] => {
            let root = &args.machine.root;
            ensure!(root.is_dir(), "{} is no directory", root.display());
            Tree::below(root)
        }
    };
    let (facts, seen) = facts(&catalogue, &tree, &args.machine.context)?;
    ensure!(!seen.is_empty(), "nothing of a Linux host is to be seen there: no /proc, no /sys");
    let findings = advisor::advise(&catalogue, &facts, args.machine.context.role);
    if args.json {
        let seen: Vec<_> = seen.iter().map(|(path, fact)| json!({ "path": path, "fact": fact })).collect();
        output::json(&json!({ "facts": seen, "findings": findings }))?;
    } else {
        print(&findings, args.all, seen.len());
    }
    Ok(advisor::worst(&findings))
}

/// Findings of one rule stand together, under the first of them.
fn grouped(findings: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|g| g.first().is_some_and(|f| f.rule == finding.rule)) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

fn print(findings: &[Finding], all: bool, seen: usize) {
    let groups = grouped(findings);
    if groups.is_empty() {
        output::line(format!(
            "nothing to change: no rule applies to the {seen} facts that this machine shows"
        ));
        return;
    }
    let shown = if all { groups.len() } else { groups.len().min(FIRST_SCREEN) };
    for (i, group) in groups.iter().take(shown).enumerate() {
        let Some(first) = group.first() else { continue };
        let severity = match first.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        };
        output::line(format!("{}. {severity}: {}  [{}]", i + 1, first.title, first.rule));
        if group.len() > 1 {
            let others: Vec<String> = group.iter().skip(1).filter_map(|f| f.device.clone()).collect();
            labelled("and", &output::begin_of(&others.join(", "), 300));
        }
        for evidence in first.evidence.iter().take(4) {
            let value = output::begin_of(&evidence.value, 60);
            labelled("is", &format!("{} = {value}  ({})", evidence.fact, evidence.origin));
        }
        labelled("should", &first.advice);
        labelled("why", &first.why);
        labelled("cost", &first.cost);
        for (label, text) in [("do", &first.command), ("undo", &first.undo), ("keep", &first.permanent)] {
            if let Some(text) = text {
                labelled(label, text);
            }
        }
        if first.disruptive {
            labelled("note", "Doing it interrupts what runs.");
        }
        first.remarks.iter().for_each(|remark| labelled("note", remark));
        output::line("");
    }
    let rest = groups.len() - shown;
    let counted = if rest > 0 { format!("{rest} more: --all. ") } else { String::new() };
    output::line(format!(
        "{counted}Why and whence: ropewalk advise explain RULE. Settings: ropewalk advise apply."
    ));
}

/// A text behind its label, broken into lines of a terminal.
fn labelled(label: &str, text: &str) {
    let mut line = format!("   {label:<7}");
    let empty = line.chars().count();
    for word in text.split_whitespace() {
        let long = line.chars().count();
        if long > empty && long + 1 + word.chars().count() > COLUMNS {
            output::line(line.trim_end());
            line = " ".repeat(empty);
        }
        if line.chars().count() > empty {
            line.push(' ');
        }
        line.push_str(word);
    }
    output::line(line.trim_end());
}

fn explain(name: &str) -> Result<()> {
    let catalogue = Catalogue::load()?;
    let Some(rule) = catalogue.rule(name) else {
        if advise_dumps::explain(name) {
            return Ok(());
        }
        let looking: Vec<&advisor::Rule> =
            catalogue.rules.iter().filter(|r| r.looks_at().iter().any(|path| path.contains(name))).collect();
        ensure!(
            !looking.is_empty(),
            "there is no rule {name}, and none looks at such a fact: ropewalk advise rules"
        );
        output::line(format!("rules that look at {name}:"));
        looking.iter().for_each(|rule| output::line(format!("  {}", rule.id)));
        return Ok(());
    };
    output::line(format!("{} ({}, since {})", rule.id, rule.subject, rule.since));
    labelled(
        "is",
        &format!(
            "{}, gain {}, confidence {}",
            word(&rule.severity),
            word(&rule.gain),
            word(&rule.confidence)
        ),
    );
    if let Some(each) = &rule.each {
        labelled("each", each);
    }
    labelled("when", &rule.condition_text);
    labelled("reads", &rule.looks_at().join(", "));
    for (label, template) in [("should", &rule.advice), ("why", &rule.why), ("cost", &rule.cost)] {
        labelled(label, template.as_written());
    }
    if let Some(set) = &rule.set {
        labelled("sets", &format!("{} = {}", set.fact.as_written(), set.value.as_written()));
    }
    for (label, template) in [("do", &rule.command), ("undo", &rule.undo), ("keep", &rule.permanent)] {
        if let Some(template) = template {
            labelled(label, template.as_written());
        }
    }
    if let Some(plan) = &rule.measure {
        labelled("measure", &format!("ropewalk lab plan {plan}"));
    }
    labelled("source", &rule.source);
    Ok(())
}

/// How an enumeration is written in the catalogue.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

fn rules(assumptions: bool, json: bool) -> Result<()> {
    let catalogue = Catalogue::load()?;
    if assumptions {
        if json {
            return output::json(&catalogue.assumptions);
        }
        let row =
            |a: &advisor::catalogue::Assumption| vec![a.name.clone(), a.value.to_string(), a.what.clone()];
        output::table(&["assumption", "value", "what"], catalogue.assumptions.iter().map(row).collect());
        return Ok(());
    }
    let all = catalogue.rules.iter();
    if json {
        let row = |rule: &advisor::Rule| {
            json!({
                "id": rule.id, "subject": rule.subject, "severity": rule.severity, "title": rule.title.as_written(),
                "looks_at": rule.looks_at(), "source": rule.source,
            })
        };
        return output::json(&all.map(row).collect::<Vec<_>>());
    }
    let row = |rule: &advisor::Rule| {
        vec![
            rule.id.clone(),
            rule.subject.to_owned(),
            word(&rule.severity),
            rule.title.as_written().to_owned(),
        ]
    };
    output::table(&["rule", "subject", "severity", "finds"], all.map(row).collect());
    output::line(format!("{} rules", catalogue.rules.len()));
    Ok(())
}

fn collect(root: &Path) -> Result<()> {
    let mut out = std::io::stdout();
    ensure!(!out.is_terminal(), "an archive is nothing for a terminal: ropewalk advise collect > host.tar");
    out.write_all(&archive::collect(root)).and_then(|()| out.flush()).context("write the archive")
}

/// Facts that differ from minute to minute.
const VOLATILE: &[&str] = &[
    "stat.",
    "log.",
    "vmstat.",
    "softnet.",
    "sockets.",
    "pressure.",
    "cpu.time.",
    "host.uptime_seconds",
    "numa.*.free",
    "cgroup.throttled",
    "memory.available",
    "memory.swap_free",
    "memory.dirty",
    "memory.committed",
    "memory.slab_unreclaimable",
    "memory.page_tables",
    "sysctl.fs.aio-nr",
    "sysctl.net.netfilter.nf_conntrack_count",
];

fn is_volatile(path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or_default();
    VOLATILE.iter().any(|volatile| path.starts_with(volatile))
        || (path.starts_with("net.")
            && (last.starts_with("rx_") || last.starts_with("tx_"))
            && !last.contains("queue"))
        || (path.starts_with("numa.")
            && (last == "free"
                || last.contains("numa_")
                || last.ends_with("_node")
                || last.ends_with("_hit")))
}

fn diff(a: &Path, b: &Path, json: bool) -> Result<()> {
    let read = |path: &Path| -> Result<Facts> {
        let tree = archive::open(path).with_context(|| format!("read {}", path.display()))?;
        Ok(advisor::host_facts(&tree))
    };
    let (a, b) = (read(a)?, read(b)?);
    let names = a.iter().chain(b.iter()).map(|(path, _)| path).collect::<std::collections::BTreeSet<_>>();
    let value = |facts: &Facts, path: &advisor::Path| facts.value(path.as_str()).map(Value::to_string);
    let differ = names.into_iter().filter(|path| !is_volatile(path.as_str()));
    let rows: Vec<_> =
        differ.map(|path| (path, value(&a, path), value(&b, path))).filter(|(_, a, b)| a != b).collect();
    if json {
        let rows: Vec<_> = rows.iter().map(|(path, a, b)| json!({ "path": path, "a": a, "b": b })).collect();
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::line("no difference in what both show");
        return Ok(());
    }
    let cell = |value: &Option<String>| output::begin_of(value.as_deref().unwrap_or("-"), 40);
    output::table(
        &["fact", "a", "b"],
        rows.iter().map(|(path, a, b)| vec![path.to_string(), cell(a), cell(b)]).collect(),
    );
    Ok(())
}

fn make(rules: &[String], yes: bool, root: &Path, context: &Context, json: bool) -> Result<()> {
    let catalogue = Catalogue::load()?;
    if let Some(unknown) = rules.iter().find(|rule| catalogue.rule(rule).is_none()) {
        bail!("there is no rule {unknown}: ropewalk advise rules");
    }
    let (facts, _) = facts(&catalogue, &Tree::below(root), context)?;
    let findings = advisor::advise(&catalogue, &facts, context.role);
    let wanted = |f: &&Finding| if rules.is_empty() { !f.disruptive } else { rules.contains(&f.rule) };
    let findings: Vec<&Finding> = findings.iter().filter(wanted).collect();
    for rule in rules {
        let of_rule: Vec<_> = findings.iter().filter(|f| f.rule == *rule).collect();
        if !of_rule.is_empty() && of_rule.iter().all(|f| f.change.is_none()) {
            bail!("{rule} makes no setting by itself: ropewalk advise explain {rule} says what to do");
        }
    }
    let outcomes = if yes {
        apply::apply(root, &findings)?
    } else {
        let would = |c: journal::Changed| Outcome {
            fact: c.fact,
            from: c.before,
            to: c.after,
            what: "would be set".to_owned(),
        };
        apply::plan(root, &findings)?.into_iter().map(would).collect()
    };
    show(&outcomes, json, "nothing to set")?;
    if !yes && !outcomes.is_empty() && !json {
        output::line("Nothing is changed yet: --yes does it, `ropewalk advise revert` takes it back.");
    }
    Ok(())
}

fn show(outcomes: &[Outcome], json: bool, none: &str) -> Result<()> {
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

fn history(root: &Path, json: bool) -> Result<()> {
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

#[cfg(test)]
mod tests {
    #[test]
    fn plans_that_measure_a_rule_exist() {
        for rule in advisor::Catalogue::load().unwrap().rules {
            if let Some(plan) = rule.measure {
                assert!(lab::builtin::text(&plan).is_some(), "{}: {plan}", rule.id);
            }
        }
    }
}
