//! GET /api/live?q=QUERY&q=QUERY: the newest seconds of each, every second, over one stream of server-sent events (a
//! browser allows six connections to a host, so all charts of a page share one).
//! Who does not read gets no more: one event waits, and nothing is asked for meanwhile. Who reads on is told what has passed since,
//! up to a minute of it. The stream ends by itself when nobody has read it for as long as a connection may be idle.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::State,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response, Sse, sse::Event},
};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use super::{
    super::{ask::Span, chart, params::Params},
    asking::{Asking, PAGES_MAX, ROWS_MAX},
};

/// Queries of one page.
const QUERIES_MAX: usize = 16;
/// Each second is asked for so many times: who was late with it is in one of the later answers.
const AGAIN: u64 = 3;
/// Seconds of one event, at most; of a recording ten minutes may pass in one.
const SECONDS_MAX: u64 = 60;
const RECORDED_MAX: u64 = 602;

struct Events(mpsc::Receiver<Event>);

impl Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|event| event.map(Ok))
    }
}

/// Begins the stream.
pub async fn live(State(asking): State<Arc<Asking>>, uri: Uri) -> Response {
    let queries: Vec<String> = Params::of(&uri).all("q").map(str::to_owned).collect();
    let refused = |says: String| (StatusCode::TOO_MANY_REQUESTS, says).into_response();
    if queries.len() > QUERIES_MAX {
        return refused(format!("{} queries are more than {QUERIES_MAX}\n", queries.len()));
    }
    let (tell, told) = mpsc::channel(1);
    let Ok(page) = Arc::clone(&asking.live).try_acquire_owned() else {
        return refused(format!("{PAGES_MAX} pages are live already\n"));
    };
    tokio::spawn(async move {
        let _page = page;
        let most = if asking.dir().is_some() { SECONDS_MAX } else { RECORDED_MAX };
        let mut looked = asking.now().await.unwrap_or_else(|_| base::stats::now());
        loop {
            sleep(to_the_middle()).await;
            let before = looked;
            looked = asking.now().await.unwrap_or_else(|_| base::stats::now());
            let passed = looked.saturating_sub(before).saturating_add(AGAIN - 1);
            let charts = look(&asking, &queries, passed.clamp(AGAIN, most)).await;
            let now = asking.now().await.unwrap_or_else(|_| base::stats::now());
            let event = json!({ "now": now, "charts": charts }).to_string();
            if tell.send(Event::default().data(event)).await.is_err() {
                return;
            }
        }
    });
    Sse::new(Events(told)).into_response()
}

/// How long it is to the middle of the next second: then every process has closed the last one, if its clock is near.
fn to_the_middle() -> Duration {
    let of_second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_millis();
    Duration::from_millis(u64::from(1500 - of_second % 1000))
}

/// The last seconds of each chart.
async fn look(asking: &Arc<Asking>, queries: &[String], from_ago: u64) -> Vec<Value> {
    let mut asked = JoinSet::new();
    for (at, query) in queries.iter().cloned().enumerate() {
        let asking = Arc::clone(asking);
        asked.spawn(async move {
            let span = Span { from_ago, to_ago: 0, step: 1, idle: true };
            let found = asking.ask(&query, span, ROWS_MAX).await;
            (
                at,
                found.map_or_else(
                    |error| json!({ "error": format!("{error:#}") }),
                    |found| chart::json(&found),
                ),
            )
        });
    }
    let mut charts = vec![Value::Null; queries.len()];
    while let Some(Ok((at, chart))) = asked.join_next().await {
        charts[at] = chart;
    }
    charts
}
