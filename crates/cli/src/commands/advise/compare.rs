//! `advise diff`: in what two machines differ, without what differs from minute to minute.

use std::path::Path;

use advisor::{Facts, Value, archive, compare::is_volatile};
use anyhow::{Context as _, Result};
use serde_json::json;

use crate::{input, output};

pub(super) fn diff(a: &Path, b: &Path, json: bool) -> Result<()> {
    let read = |path: &Path| -> Result<Facts> {
        let reading = || format!("read {}", path.display());
        if !path.is_dir() {
            input::check(path).with_context(reading)?;
        }
        let tree = archive::open(path).with_context(reading)?;
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
