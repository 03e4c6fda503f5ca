//! `advise facts` and `advise topology`: what is seen of a machine, before any rule.

use advisor::{Facts, Tree, archive};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{dumps, machine, text::speaks_of};
use crate::{args::Seen, output};

/// Columns of a value that has no room.
const VALUE_COLUMNS: usize = 60;

fn of(seen: &Seen) -> Result<Facts> {
    let facts = match &seen.from {
        Some(path) if dumps::is_host(path) => {
            let tree = archive::open(path).with_context(|| format!("read {}", path.display()))?;
            advisor::host_facts(&tree)
        }
        Some(path) => dumps::facts(path)?,
        None => {
            machine::root_is_there(&seen.root)?;
            advisor::host_facts(&Tree::below(&seen.root))
        }
    };
    machine::something_is_seen(&facts)?;
    Ok(facts)
}

pub(super) fn facts(name: Option<&str>, seen: &Seen, json: bool) -> Result<()> {
    let facts = of(seen)?;
    let wanted = facts.iter().filter(|(path, _)| name.is_none_or(|name| speaks_of(path.as_str(), name)));
    if json {
        let rows: Vec<_> = wanted.map(|(path, fact)| json!({ "path": path, "fact": fact })).collect();
        return output::json(&rows);
    }
    let row = |(path, fact): (&advisor::Path, &advisor::Fact)| {
        let value = fact.written.clone().unwrap_or_else(|| fact.value.to_string());
        vec![path.to_string(), output::begin_of(&value, VALUE_COLUMNS), fact.origin.to_string()]
    };
    let rows: Vec<Vec<String>> = wanted.map(row).collect();
    ensure!(!rows.is_empty(), "no fact with {} in its name is seen there", name.unwrap_or_default());
    output::table(&["fact", "value", "where"], rows);
    Ok(())
}

pub(super) fn topology(seen: &Seen) -> Result<()> {
    let text = advisor::topology(&of(seen)?).context("no memory node is to be seen there")?;
    text.lines().for_each(output::line);
    Ok(())
}
