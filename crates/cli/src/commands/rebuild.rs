//! `ropewalk rebuild status`: what moves between pdisks, and how far that is.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use base::units::human_size;
use serde::Serialize;
use wire::{
    map::{PdiskState, PoolEntry},
    mgr::{ClusterReport, PoolLosses},
};

use super::lost;
use crate::{
    args::RebuildStatus,
    interrupt::Interrupted,
    link::{self, Link},
    output,
    process::stop::stop_signal,
};

/// What moves, as scripts see it.
#[derive(Serialize)]
pub struct RebuildRow {
    pub pool: String,
    /// Strips of groups still to move; of these, lost ones that are rebuilt.
    pub left: u32,
    pub lost: u32,
    pub done: u32,
    pub running_s: f64,
    pub eta_s: Option<f64>,
    pub moved_bytes: u64,
    /// Mean time of client requests at the slowest server: now, and when the moves began.
    pub client_us: u64,
    pub client_us_before: u64,
    pub hindered: String,
    /// Of `left`, strips that wait for pdisks of their groups, and these pdisks.
    pub waiting: u32,
    pub waits_for: Vec<String>,
    pub waits: Vec<String>,
    /// Blocks that are lost for good; null: they are still being counted, or the manager did not say.
    pub lost_blocks: Option<u64>,
}

/// What moves in each pool. `losses`: what is lost for good; none if it is not known.
pub fn rebuild_rows(report: &ClusterReport, losses: Option<&[PoolLosses]>) -> Vec<RebuildRow> {
    let row = |(pool, moving): (&PoolEntry, &wire::mgr::PoolMoving)| {
        let of_pool = || report.pdisks.iter().filter(|u| pool.pdisks.iter().any(|p| p.id == u.id));
        let running_s = moving.running_ms as f64 / 1000.0;
        let eta_s = (moving.left > 0 && moving.done > 0)
            .then(|| running_s * f64::from(moving.left) / f64::from(moving.done));
        let name = |id| report.map.pdisk(id).map(|p| p.name.clone()).unwrap_or_default();
        let members = pool.pdisks.iter().filter_map(|p| report.map.pdisk(p.id));
        let gone = || members.clone().filter(|p| p.state != PdiskState::Ok && !p.given_up());
        RebuildRow {
            pool: pool.name.clone(),
            left: moving.left,
            lost: moving.lost,
            done: moving.done,
            running_s,
            eta_s,
            moved_bytes: of_pool().map(|u| u.moved).sum(),
            client_us: of_pool().map(|u| u.client_us).max().unwrap_or(0),
            client_us_before: moving.client_us_before,
            hindered: moving.hindered.clone(),
            waiting: moving.waiting,
            waits_for: match moving.waiting {
                0 => Vec::new(),
                _ => gone().map(|p| p.name.clone()).collect(),
            },
            waits: of_pool()
                .filter(|u| !u.waits.is_empty())
                .map(|u| format!("{}: {}", name(u.id), u.waits))
                .collect(),
            lost_blocks: losses.and_then(|losses| match losses.iter().find(|loss| loss.pool == pool.id) {
                Some(loss) => loss.counted.map(|counted| counted.blocks),
                None => Some(0),
            }),
        }
    };
    report.map.pools.iter().zip(&report.moving).map(row).collect()
}

/// Why `left` does not become less, and what to do.
pub fn waiting(row: &RebuildRow) -> String {
    format!(
        "{} strips cannot be made before {} is back; `ropewalk pdisk fail` gives up what it holds",
        row.waiting,
        row.waits_for.join(", ")
    )
}

/// How long clients wait beside how long they waited before the moves.
fn effect(now_us: u64, before_us: u64) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    match before_us {
        0 => format!("{:.1} ms", ms(now_us)),
        _ => format!("{:.1} ms (before: {:.1})", ms(now_us), ms(before_us)),
    }
}

/// So long nothing gets on, where blocks are lost for good, until the watch ends: what cannot be made of them holds their groups up.
const STILL_MAX: Duration = Duration::from_secs(30);

/// `ropewalk rebuild status`. With `--watch` it ends when nothing is left that can be made now.
pub fn rebuild_status(args: &RebuildStatus) -> Result<()> {
    let dir = args.listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let mut report = link.cluster().await?;
        if args.watch {
            let bar = output::progress("moving", 0);
            let (mut before, mut since) = ((0, 0, 0), Instant::now());
            loop {
                let rows = rebuild_rows(&report, None);
                let left: u32 = rows.iter().map(|r| r.left - r.waiting.min(r.left)).sum();
                let done: u32 = rows.iter().filter(|r| r.left > 0).map(|r| r.done).sum();
                let slowest = rows.iter().map(|r| r.client_us).max().unwrap_or(0);
                bar.set_length(u64::from(left + done));
                bar.set_position(done.into());
                let began = rows.iter().map(|r| r.client_us_before).max().unwrap_or(0);
                bar.set_message(format!("moving; clients wait {}", effect(slowest, began)));
                if left == 0 {
                    break;
                }
                let now = (left, done, rows.iter().map(|r| r.moved_bytes).sum::<u64>());
                if now != before {
                    (before, since) = (now, Instant::now());
                } else if since.elapsed() >= STILL_MAX
                    && lost::losses(&link).await.is_some_and(|losses| lost::total(&losses) != Some(0))
                {
                    break;
                }
                // Interrupting the watch changes nothing.
                tokio::select! {
                    signal = stop_signal() => {
                        signal?;
                        bail!(Interrupted("what moves goes on moving".into()));
                    }
                    () = tokio::time::sleep(Duration::from_millis(500)) => {}
                }
                report = link.cluster().await?;
            }
            bar.finish_and_clear();
        }
        let losses = lost::losses(&link).await;
        let rows = rebuild_rows(&report, losses.as_deref());
        if args.listing.json {
            return output::json(&rows);
        }
        for row in &rows {
            if !row.hindered.is_empty() {
                output::line(format!("pool {}: {}", row.pool, row.hindered));
            }
            if row.waiting > 0 {
                output::line(format!("pool {}: {}", row.pool, waiting(row)));
            }
            row.waits.iter().for_each(|w| output::line(format!("waits: {w}")));
        }
        match &losses {
            Some(losses) => {
                losses.iter().filter_map(|loss| lost::remark(&report.map, loss)).for_each(output::line)
            }
            None => output::line(lost::UNKNOWN),
        }
        let seconds = |s: f64| format!("{s:.0} s");
        let cells = |r: RebuildRow| {
            let percent = match r.left {
                0 => "100 %".to_owned(),
                left => format!("{:.0} %", f64::from(r.done) * 100.0 / f64::from(r.done + left)),
            };
            vec![
                r.pool,
                percent,
                r.left.to_string(),
                r.lost.to_string(),
                human_size(r.moved_bytes),
                seconds(r.running_s),
                r.eta_s.map_or("-".to_owned(), seconds),
                effect(r.client_us, r.client_us_before),
            ]
        };
        output::table(
            &["POOL", "DONE", "LEFT", "OF IT LOST", "STORED", "RUNNING", "ETA", "CLIENTS WAIT"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}
