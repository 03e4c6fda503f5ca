//! What a chart needs beside an answer: for the page, and for what is exported to be looked at.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use base::stats;
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
        "level": query.statistic.kind == stats::Kind::Gauge,
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
            let name = |bucket| (bucket, begins(axis, bucket));
            let starts: BTreeMap<u64, String> = (low..=high + 1).map(name).collect();
            value["chart"]["starts"] = json!(starts);
        }
    }
    value
}

/// Where a bucket begins, as a query takes it.
fn begins(axis: &str, bucket: u64) -> String {
    match axis {
        "latency" => figures::latency(stats::latency_start(usize::try_from(bucket).unwrap_or(usize::MAX))),
        _ if bucket == 0 => "none".to_owned(),
        "offset" if bucket == 1 => "0".to_owned(),
        "offset" => base::ByteSize(1 << (bucket - 2).min(63)).to_string(),
        _ => base::ByteSize(1 << (bucket - 1).min(63)).to_string(),
    }
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
