//! The facts that rules are held against: what a machine shows, with what is taken for granted.

use std::path::Path;

use advisor::{Catalogue, Facts, Tree, Value};
use anyhow::{Context as _, Result, bail, ensure};

use crate::args::Context;

/// The facts of a machine, with what is taken for granted.
pub(super) fn facts(catalogue: &Catalogue, tree: &Tree, context: &Context) -> Result<(Facts, Facts)> {
    let seen = advisor::host_facts(tree);
    Ok((with_assumed(catalogue, &seen, context)?, seen))
}

/// What is seen, with what is taken for granted.
pub(super) fn with_assumed(catalogue: &Catalogue, seen: &Facts, context: &Context) -> Result<Facts> {
    let mut facts = advisor::assumed(catalogue);
    facts.extend(seen.clone());
    assume(catalogue, &mut facts, context)?;
    Ok(facts)
}

/// Refuses a root that is not there: nothing to set, or to take back, is no answer then.
pub(super) fn root_is_there(root: &Path) -> Result<()> {
    ensure!(root.is_dir(), "{} is no directory", root.display());
    Ok(())
}

/// Refuses facts of nothing.
pub(super) fn something_is_seen(seen: &Facts) -> Result<()> {
    ensure!(!seen.is_empty(), "nothing of a Linux host is to be seen there: no /proc, no /sys");
    Ok(())
}

/// What is assumed otherwise by `--assume`.
pub(super) fn assume(catalogue: &Catalogue, facts: &mut Facts, context: &Context) -> Result<()> {
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
    Ok(())
}
