//! `ropewalk analytics statistics` and `history`: what can be asked, and what is kept to be asked about.

use anyhow::Result;
use base::{stats::STATISTICS, when::date_time};
use serde_json::{Value, json};
use wire::admin::AdminRequest;

use crate::{
    args::Listing,
    commands::ask::{Asked, ask_all, size},
    output,
};

/// `ropewalk analytics statistics`.
pub fn statistics(as_json: bool) -> Result<()> {
    let dimensions = |s: &base::stats::Statistic| s.all_dimensions().collect::<Vec<_>>();
    if as_json {
        let row = |s: &base::stats::Statistic| json!({ "name": s.name, "unit": s.unit, "dimensions": dimensions(s), "meaning": s.meaning });
        return output::json(&STATISTICS.iter().map(row).collect::<Vec<Value>>());
    }
    for s in STATISTICS {
        output::line(format!(
            "{}  ({})\n    {}\n    by {}",
            s.name,
            s.unit,
            s.meaning,
            dimensions(s).join(", ")
        ));
    }
    Ok(())
}

/// `ropewalk analytics history`.
pub fn history(listing: &Listing) -> Result<()> {
    let Asked { answers, all, .. } = ask_all(listing, &AdminRequest::Status)?;
    if listing.json {
        let row = |answer: &crate::commands::ask::Answer| {
            let of = answer.answer.as_ref().map(|answer| &answer["history"]);
            json!({ "process": answer.process, "history": of })
        };
        output::json(&answers.iter().map(row).collect::<Vec<Value>>())?;
        return all;
    }
    let rows = answers.iter().map(|answer| {
        let Some(history) = answer.answer.as_ref().map(|answer| &answer["history"]) else {
            return vec![answer.process.clone(), "does not answer".to_owned()];
        };
        let cost = history["cost_percent"].as_f64().unwrap_or(0.0);
        let begins = history["from_at_us"].as_u64().map(|us| date_time(us / 1_000_000));
        vec![
            answer.process.clone(),
            format!("{} of {}", history["kept"], history["max"]),
            format!("{} of {}", size(&history["used_bytes"]), size(&history["max_bytes"])),
            format!("{} of {}", size(&history["disk_bytes"]), size(&history["disk_max_bytes"])),
            begins.unwrap_or_else(|| "-".to_owned()),
            format!("{cost:.2} %"),
        ]
    });
    output::table(&["PROCESS", "SECONDS", "MEMORY", "DISK", "ON DISK SINCE", "OF A CPU"], rows.collect());
    all
}
