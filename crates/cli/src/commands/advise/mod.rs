//! `ropewalk advise`: what a machine shows, what to change, and the changing of it.

mod changes;
mod cluster;
mod compare;
mod dumps;
mod guard;
mod html;
mod machine;
mod measure;
mod over;
mod rules;
mod seen;
mod text;

use std::{
    io::{IsTerminal, Write},
    path::Path,
};

use advisor::{Catalogue, Severity, Tree, archive};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::{
    args::{Advise, AdviseCommand},
    output,
};

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
        Some(AdviseCommand::Explain { name }) => rules::explain(name),
        Some(AdviseCommand::Rules { assumptions, json }) => rules::rules(*assumptions, *json),
        Some(AdviseCommand::Facts { name, seen, json }) => seen::facts(name.as_deref(), seen, *json),
        Some(AdviseCommand::Topology { seen }) => seen::topology(seen),
        Some(AdviseCommand::Collect { root }) => collect(root),
        Some(AdviseCommand::ImportScale(args)) => dumps::import(args),
        Some(AdviseCommand::Diff { a, b, json }) => compare::diff(a, b, *json),
        Some(AdviseCommand::Apply { rules, yes, dry_run: _, confirm_within, root, context, json }) => {
            let how = changes::How { yes: *yes, confirm_within: *confirm_within, json: *json };
            changes::make(rules, root, context, &how)
        }
        Some(AdviseCommand::Measure { args, context }) => measure::measure(args, context),
        Some(AdviseCommand::Confirm { root, json }) => changes::confirm(root, *json),
        Some(AdviseCommand::Guard { root, until }) => guard::wait(root, *until),
        Some(AdviseCommand::Revert { names, root, json }) => changes::revert(names, root, *json),
        Some(AdviseCommand::History { root, json }) => changes::history(root, *json),
    }
}

fn report(args: &Advise) -> Result<Option<Severity>> {
    if args.cluster {
        return cluster::advise(args);
    }
    let catalogue = Catalogue::load()?;
    let tree = match args.machine.from.as_slice() {
        [path] if dumps::is_host(path) => {
            archive::open(path).with_context(|| format!("read {}", path.display()))?
        }
        [_, ..] => return dumps::advise(args),
        [] => {
            let root = &args.machine.root;
            machine::root_is_there(root)?;
            Tree::below(root)
        }
    };
    let seen = match args.over {
        Some(span) => over::rates(&tree, span)?,
        None => advisor::host_facts(&tree),
    };
    let mut facts = machine::with_assumed(&catalogue, &seen, &args.machine.context)?;
    for host in &args.probe {
        facts.extend(advisor::probe(host).with_context(|| format!("probe the way to {host}"))?);
    }
    machine::something_is_seen(&seen)?;
    let findings = advisor::advise(&catalogue, &facts, args.machine.context.role.as_slice());
    if let Some(file) = &args.html {
        let host = seen.text("host.name").unwrap_or("a machine").to_owned();
        html::write(file, &host, &[html::Section::of_findings(&host, &findings)])?;
    } else if args.json {
        let seen: Vec<_> = seen.iter().map(|(path, fact)| json!({ "path": path, "fact": fact })).collect();
        output::json(&json!({ "facts": seen, "findings": findings }))?;
    } else {
        text::print(&findings, args.all, seen.len());
        if let Some(span) = args.over {
            output::line(format!(
                "Counted for {} s: drops, errors and waits of before are not judged.",
                span.as_secs()
            ));
        }
    }
    Ok(advisor::worst(&findings))
}

fn collect(root: &Path) -> Result<()> {
    machine::root_is_there(root)?;
    let mut out = std::io::stdout();
    ensure!(!out.is_terminal(), "an archive is nothing for a terminal: ropewalk advise collect > host.tar");
    out.write_all(&archive::collect(root)).and_then(|()| out.flush()).context("write the archive")
}
