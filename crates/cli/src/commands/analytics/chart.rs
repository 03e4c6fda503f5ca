//! What a chart needs beside an answer: for the page, and for what is exported to be looked at.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use base::stats::UTILISATION_BUCKETS;
use serde_json::{Value, json};
use wire::mgr::{MgrReply, MgrRequest};

use super::{ask::Found, figures, show, worksheets::Mark};
use crate::link::Link;

/// An answer with what a chart needs: its groups one by one, and where the buckets of an axis lie.
pub fn json(found: &Found) -> Value {
    let mut value = show::json(found);
    let query = &found.query;
    let filter = |filter: &analytics::Filter| json!({ "by": filter.dimension, "text": filter.to_string() });
    let dimensions: Vec<&str> = query.statistic.all_dimensions().collect();
    let axis = query.breakdowns.first().copied().filter(|d| analytics::is_ordered(d));
    value["chart"] = json!({
        "statistic": query.statistic.name,
        "level": query.statistic.is_level(),
        "filters": query.filters.iter().map(filter).collect::<Vec<_>>(),
        "breakdowns": query.breakdowns,
        "dimensions": dimensions,
        "recorded": found.answer.recorded,
        "recorded_by": found.by_process().map(|at| json!({ "by": query.breakdowns[at], "of": found.recorded })),
        "axis": axis,
        "now_at_us": found.now * 1_000_000,
    });
    if let (Some(axis), Some(rows)) = (axis, value["rows"].as_array_mut()) {
        for (row, (values, _)) in rows.iter_mut().zip(&found.rows) {
            row["bucket"] = analytics::bucket(axis, &values[0]).into();
        }
        let numbers = rows.iter().filter_map(|row| row["bucket"].as_u64());
        let (low, high) = numbers.fold((u64::MAX, 0), |(low, high), n| (low.min(n), high.max(n)));
        if low <= high {
            // Of shares the whole range is shown, and nothing lies above it.
            let (low, high) =
                if axis == "utilisation" { (0, UTILISATION_BUCKETS - 1) } else { (low, high + 1) };
            let name = |bucket| (bucket, figures::begins(axis, bucket));
            let starts: BTreeMap<u64, String> = (low..=high).map(name).collect();
            value["chart"]["starts"] = json!(starts);
        }
    }
    value
}

/// What happened to the cluster, oldest first.
pub async fn events(link: &Link) -> Result<Vec<Mark>> {
    let MgrReply::Events(events) = link.manager(&MgrRequest::Events { after: 0 }).await? else {
        bail!("unexpected answer from the manager to Events");
    };
    let mark = |event: wire::mgr::ClusterEvent| {
        let at_us = event.at.secs.saturating_mul(1_000_000);
        Mark { from_at_us: at_us, to_at_us: at_us, text: event.text }
    };
    Ok(events.into_iter().map(mark).collect())
}
