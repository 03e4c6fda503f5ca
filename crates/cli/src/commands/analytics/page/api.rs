//! What the page asks for, as JSON: the same query text as the command line's, and the same answer, with what a chart
//! needs beside it.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use axum::{
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use base::stats::{self, STATISTICS};
use serde_json::{Value, json};

use super::{
    super::{ask::Span, chart, params::Params, worksheets},
    asking::Asking,
};

/// Longest span, seconds: hours are kept for years.
const SPAN_MAX: u64 = 366 * 86_400;
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
        json!({ "name": s.name, "unit": s.unit, "level": s.is_level(), "dimensions": dimensions, "meaning": s.meaning })
    };
    answer(Ok(STATISTICS.iter().map(row).collect()))
}

/// GET /api/query?q=QUERY&from=SECONDS&to=SECONDS&step=SECONDS: `from` and `to` are seconds since 1970 by this machine's
/// clock.
pub async fn query(State(asking): State<Arc<Asking>>, uri: Uri) -> Response {
    let params = Params::of(&uri);
    let asked = async {
        let text = params.all("q").next().context("q is missing: the query")?;
        let now = asking.now().await?;
        let to = params.number("to")?.unwrap_or(now).min(now);
        let from = params.number("from")?.unwrap_or(to.saturating_sub(60));
        let step = params.number("step")?.unwrap_or(1).min(SPAN_MAX);
        if from >= to || to - from > SPAN_MAX {
            bail!("from={from} to={to}: from must be before to, and not more than {SPAN_MAX} s before it");
        }
        if step > 0 && (to - from) / step > STEPS_MAX {
            bail!("step={step}: that makes more than {STEPS_MAX} steps");
        }
        let span = Span { from_ago: now - from, to_ago: now - to, step, idle: false };
        let rows = params.number("rows")?.unwrap_or(30) as usize;
        Ok(chart::json(&asking.ask(text, span, rows).await?))
    };
    answer(asked.await)
}

/// GET /api/now: the present, seconds since 1970, and whether it is that of a recording.
pub async fn now(State(asking): State<Arc<Asking>>) -> Response {
    let recorded = asking.dir().is_none();
    answer(asking.now().await.map(|now| json!({ "now": now, "recorded": recorded })))
}

/// GET /api/events: what happened to the cluster, for marks in the charts.
pub async fn events(State(asking): State<Arc<Asking>>) -> Response {
    if asking.dir().is_none() {
        return answer(Ok(json!([])));
    }
    let asked = asking.with_link(async |link| {
        let events = chart::events(&link).await?;
        let newest = &events[events.len().saturating_sub(EVENTS_MAX)..];
        Ok(newest.iter().map(|mark| json!({ "at_us": mark.from_at_us, "text": mark.text })).collect())
    });
    answer(asked.await)
}

/// GET /api/worksheets
pub async fn worksheets(State(asking): State<Arc<Asking>>) -> Response {
    let all = asking.sheets.as_ref().map_or_else(|| Ok(Vec::new()), |dir| worksheets::all(dir));
    answer(all.and_then(|all| Ok(serde_json::to_value(all)?)))
}
