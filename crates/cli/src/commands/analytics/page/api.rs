//! What the page asks for, as JSON: the same query text as the command line's, and the same answer, with what a chart
//! needs beside it.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context as _, Result, bail};
use axum::{
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use base::stats::{self, STATISTICS};
use serde_json::{Value, json};
use wire::mgr::{MgrReply, MgrRequest};

use super::{
    super::{
        ask::{Found, Span},
        figures,
        params::Params,
        show, worksheets,
    },
    asking::Asking,
};

/// Longest span, seconds.
const SPAN_MAX: u64 = 24 * 3600;
/// Figures of a row.
const STEPS_MAX: u64 = 3600;
/// Events that are shown, the newest.
const EVENTS_MAX: usize = 200;

/// An answer, or why there is none.
pub fn answer(result: Result<Value>) -> Response {
    let (status, value) = match result {
        Ok(value) => (StatusCode::OK, value),
        Err(error) => (StatusCode::BAD_REQUEST, json!({ "error": format!("{error:#}") })),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// GET /api/statistics
pub async fn statistics() -> Response {
    let row = |s: &stats::Statistic| {
        let dimensions: Vec<&str> = s.all_dimensions().collect();
        json!({ "name": s.name, "unit": s.unit, "level": s.kind == stats::Kind::Gauge, "dimensions": dimensions, "meaning": s.meaning })
    };
    answer(Ok(STATISTICS.iter().map(row).collect()))
}

/// GET /api/query?q=QUERY&from=SECONDS&to=SECONDS&step=SECONDS: `from` and `to` are seconds since 1970 by this machine's
/// clock.
pub async fn query(State(asking): State<Arc<Asking>>, uri: Uri) -> Response {
    let params = Params::of(&uri);
    let asked = async {
        let text = params.all("q").next().context("q is missing: the query")?;
        let now = stats::now();
        let to = params.number("to")?.unwrap_or(now).min(now);
        let from = params.number("from")?.unwrap_or(to.saturating_sub(60));
        let step = params.number("step")?.unwrap_or(1).min(SPAN_MAX);
        if from >= to || to - from > SPAN_MAX {
            bail!("from={from} to={to}: from must be before to, and not more than {SPAN_MAX} s before it");
        }
        if step > 0 && (to - from) / step > STEPS_MAX {
            bail!("step={step}: that makes more than {STEPS_MAX} steps");
        }
        let span = Span { from_ago: now - from, to_ago: now - to, step };
        let rows = params.number("rows")?.unwrap_or(30) as usize;
        Ok(found(&asking.ask(text, span, rows).await?))
    };
    answer(asked.await)
}

/// An answer with what a chart needs: its groups one by one, and where the buckets of an axis lie.
pub fn found(found: &Found) -> Value {
    let mut value = show::json(found);
    let query = &found.query;
    let filter = |filter: &analytics::Filter| json!({ "by": filter.dimension, "text": filter.to_string() });
    let dimensions: Vec<&str> = query.statistic.all_dimensions().collect();
    let axis = query.breakdowns.first().copied().filter(|d| matches!(*d, "latency" | "size"));
    value["chart"] = json!({
        "statistic": query.statistic.name,
        "level": query.statistic.kind == stats::Kind::Gauge,
        "filters": query.filters.iter().map(filter).collect::<Vec<_>>(),
        "breakdowns": query.breakdowns,
        "dimensions": dimensions,
        "recorded": found.answer.recorded,
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
        _ => base::ByteSize(1 << (bucket - 1).min(63)).to_string(),
    }
}

/// GET /api/events: what happened to the cluster, for marks in the charts.
pub async fn events(State(asking): State<Arc<Asking>>) -> Response {
    let asked = asking.with_link(async |link| {
        let MgrReply::Events(events) = link.manager(&MgrRequest::Events { after: 0 }).await? else {
            bail!("unexpected answer from the manager to Events");
        };
        let newest = &events[events.len().saturating_sub(EVENTS_MAX)..];
        Ok(newest.iter().map(|e| json!({ "at_us": e.at.secs * 1_000_000, "text": e.text })).collect())
    });
    answer(asked.await)
}

/// GET /api/worksheets
pub async fn worksheets(State(asking): State<Arc<Asking>>) -> Response {
    answer(worksheets::all(&asking.dir.path).and_then(|all| Ok(serde_json::to_value(all)?)))
}
