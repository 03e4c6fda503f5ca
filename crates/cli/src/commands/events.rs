//! `ropewalk events` and `pdisk events`: what happened in the cluster, as the manager keeps it, and in its processes, each of
//! which keeps its newest until it ends.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use base::{events::Event, when::time_of_day};
use serde::{Deserialize, Serialize};
use wire::{
    admin::AdminRequest,
    map::ClusterMap,
    mgr::{ClusterEvent, MgrReply, MgrRequest},
};

use crate::{
    args::{Events, Listing},
    commands::ask::Census,
    link::{self, Link},
    output,
};

#[derive(Serialize)]
struct ClusterEventRow {
    number: u64,
    at_us: i64,
    text: String,
}

/// `ropewalk events`.
pub fn events(args: &Events) -> Result<()> {
    let dir = args.listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let MgrReply::Events(events) = link.manager(&MgrRequest::Events { after: args.after }).await? else {
            bail!("unexpected answer from the manager to Events");
        };
        let row = |e: ClusterEvent| ClusterEventRow {
            number: e.number,
            at_us: e.at.secs * 1_000_000 + i64::from(e.at.nanos) / 1000,
            text: e.text,
        };
        let rows: Vec<ClusterEventRow> = events.into_iter().map(row).collect();
        if args.listing.json {
            return output::json(&rows);
        }
        for row in rows {
            output::line(format!(
                "{:>6} {} {}",
                row.number,
                time_of_day(row.at_us.max(0) as u64 / 1_000_000),
                row.text
            ));
        }
        Ok(())
    })
}

/// An event with the process it happened in.
#[derive(Serialize)]
struct ProcessEventRow {
    process: String,
    #[serde(flatten)]
    event: Event,
}

/// What of a process's status is used here.
#[derive(Deserialize)]
struct Status {
    events: Vec<Event>,
}

/// `ropewalk pdisk events`.
pub fn pdisk_events(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let (mut rows, all) = link::run(async {
        let link = Link::new(&dir)?;
        let census = Census::take(&dir, &link).await;
        let (mut rows, mut silent) = (Vec::new(), Vec::new());
        for (process, answer) in census.processes.iter().zip(census.ask(&link, &AdminRequest::Status).await) {
            let (name, address) = (&process.name, process.address());
            let Some(answer) = answer else {
                silent.push(format!("{name} at {address}"));
                continue;
            };
            let Status { events } = serde_json::from_value(answer)?;
            rows.extend(events.into_iter().map(|mut event| {
                if let Ok(report) = &census.report {
                    event.text = named(event.text, &report.map);
                }
                ProcessEventRow { process: name.clone(), event }
            }));
        }
        let silent = match silent.is_empty() {
            true => Ok(()),
            false => Err(anyhow!(
                "the events of some are not shown, since they do not answer: {}",
                silent.join(", ")
            )),
        };
        Ok((rows, census.report.map(drop).and(silent)))
    })?;
    rows.sort_by_key(|r| r.event.at_us);
    if listing.json {
        output::json(&rows)?;
        return all;
    }
    let cells = |r: &ProcessEventRow| {
        let e = &r.event;
        let severity = format!("{:?}", e.severity).to_lowercase();
        vec![ago(e.at_us), severity, r.process.clone(), e.name.clone(), e.text.clone()]
    };
    output::table(&["WHEN", "SEVERITY", "PROCESS", "EVENT", "WHAT"], rows.iter().map(cells).collect());
    all
}

/// A pdisk knows its number only: what it says begins with that.
fn named(text: String, map: &ClusterMap) -> String {
    let Some((number, rest)) = text.split_once(' ') else { return text };
    match map.pdisks.iter().find(|pdisk| pdisk.id.to_string() == number) {
        Some(pdisk) => format!("{} {rest}", map.pdisk_called(pdisk.id)),
        None => text,
    }
}

fn ago(at_us: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = now.saturating_sub(Duration::from_micros(at_us)).as_secs();
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3600),
    }
}
