//! `ropewalk node drain|keep`: everything off the pdisks of a node, and back. A drain is a wish at the manager for each pdisk:
//! it goes on whatever becomes of the command, which only watches. Either all of a node's pdisks are wished to go, or,
//! if the check or one wish is refused, none more than before.

mod check;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::PdiskId;
use serde::Serialize;
use wire::{
    map::{ClusterMap, NodeEntry, PdiskState},
    mgr::{ClusterReport, MgrRequest, PdiskWish},
};

use super::{
    pdisks::find_node,
    rebuild::{rebuild_rows, waiting},
};
use crate::{
    args::{NodeDrain, NodeName},
    interrupt::Interrupted,
    link::{self, Link},
    output,
    process::stop::Stop,
};

/// How often the manager is asked how far it is.
const LOOK: Duration = Duration::from_millis(500);
/// How often that is said where no bar is shown.
const SAY: Duration = Duration::from_secs(10);
/// How long the manager may be away while the command watches.
const MANAGER_PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing may move while the command watches.
const STALL: Duration = Duration::from_secs(600);

/// How far a drain is.
#[derive(Serialize)]
struct Drain {
    node: String,
    /// `draining`, or `empty`: nothing is on its pdisks any more.
    state: &'static str,
    pdisks: Vec<DrainedPdisk>,
    /// Strips of groups on these pdisks; and those that have left since the command began.
    left: u64,
    done: u64,
    running_s: f64,
    eta_s: Option<f64>,
    /// What is worth knowing of the cluster without this node.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct DrainedPdisk {
    name: String,
    state: &'static str,
}

/// The pdisks of a node.
fn on_node(map: &ClusterMap, node: &NodeEntry) -> BTreeSet<PdiskId> {
    map.pdisks.iter().filter(|p| p.nodes.contains(&node.id)).map(|p| p.id).collect()
}

/// Strips of groups on pdisks, and on their way there.
fn strips_on(map: &ClusterMap, pdisks: &BTreeSet<PdiskId>) -> u64 {
    let tables = map.pools.iter().flat_map(|pool| &pool.table);
    let moves = map.pools.iter().flat_map(|pool| &pool.moves).map(|m| &m.to);
    tables.chain(moves).filter(|id| pdisks.contains(id)).count() as u64
}

fn name_of(map: &ClusterMap, id: PdiskId) -> String {
    map.pdisk(id).map_or_else(|| id.to_string(), |p| p.name.clone())
}

/// `ropewalk node drain`.
pub fn drain(args: &NodeDrain) -> Result<()> {
    let dir = args.listing.dir.open()?;
    let seen = link::run(async {
        let link = Link::new(&dir)?;
        let mut stop = Stop::listen()?;
        let report = link.cluster().await?;
        let node = find_node(&report.map, &args.node)?.clone();
        let pdisks = on_node(&report.map, &node);
        // Failed ones are emptied anyway; to have them leave as well would be to give them up.
        let to_wish =
            |id: &PdiskId| report.map.pdisk(*id).is_some_and(|p| !p.leaving && p.state != PdiskState::Failed);
        let wished: Vec<PdiskId> = pdisks.iter().copied().filter(to_wish).collect();
        let notes = match wished.is_empty() {
            true => Vec::new(), // it is being drained
            false => check::check(&report, &node.name, &pdisks)?,
        };
        if !args.listing.json {
            notes.iter().for_each(|note| output::note(note));
        }
        wish_all(&link, &report.map, &wished).await?;
        let mut watch = Watch::new(node, pdisks, notes, link.cluster().await?);
        if !args.no_wait {
            let watched = tokio::select! {
                // Interrupting the watch changes nothing.
                () = stop.wait() => Err(Interrupted(String::new()).into()),
                watched = watch.until_empty(&link) => watched,
            };
            watched.map_err(|error: anyhow::Error| watch.goes_on(error))?;
        }
        Ok(watch)
    })?;
    let drain = seen.drain();
    if args.listing.json {
        return output::json(&drain);
    }
    if drain.left > 0 {
        output::line(format!(
            "{} is being drained: {} strips of groups are to move; {}",
            drain.node,
            drain.left,
            seen.what_next()
        ));
    } else {
        let stop = match seen.report.map.node(seen.node.id).is_some_and(|n| n.session.is_some()) {
            true => {
                "stop it (`ropewalk down` on its machine), and when `ropewalk node list` shows it as down "
            }
            false => "",
        };
        output::line(format!(
            "{node} is empty: {} strips of groups have moved. To take it out: {stop}`ropewalk node remove {node}`; to use \
             it again: `ropewalk node keep {node}`",
            drain.done,
            node = drain.node,
        ));
    }
    Ok(())
}

/// Wishes all of these to go; if one is refused, those that were told before are kept.
async fn wish_all(link: &Link, map: &ClusterMap, pdisks: &[PdiskId]) -> Result<()> {
    for (at, &pdisk) in pdisks.iter().enumerate() {
        let Err(error) = link.manager(&MgrRequest::PdiskSet { pdisk, wish: PdiskWish::Drain }).await else {
            continue;
        };
        // The answer may be lost, and the wish be known.
        for &pdisk in &pdisks[..=at] {
            let kept = link.manager(&MgrRequest::PdiskSet { pdisk, wish: PdiskWish::Keep }).await;
            kept.with_context(|| {
                format!(
                    "{error:#}; {} may be left draining: `ropewalk pdisk keep` takes it back",
                    name_of(map, pdisk)
                )
            })?;
        }
        return Err(error.context(format!("drain {}; the node's pdisks are kept", name_of(map, pdisk))));
    }
    Ok(())
}

/// Looks how far a drain is.
struct Watch {
    node: NodeEntry,
    pdisks: BTreeSet<PdiskId>,
    notes: Vec<String>,
    report: ClusterReport,
    began: Instant,
    /// Strips at the beginning, and now.
    all: u64,
    left: u64,
}

impl Watch {
    fn new(node: NodeEntry, pdisks: BTreeSet<PdiskId>, notes: Vec<String>, report: ClusterReport) -> Watch {
        let left = strips_on(&report.map, &pdisks);
        Watch { node, pdisks, notes, report, began: Instant::now(), all: left, left }
    }

    fn drain(&self) -> Drain {
        let map = &self.report.map;
        let pdisk = |&id: &PdiskId| DrainedPdisk { name: name_of(map, id), state: map.pdisk_word(id) };
        let (running_s, done) = (self.began.elapsed().as_secs_f64(), self.all.saturating_sub(self.left));
        Drain {
            node: self.node.name.clone(),
            state: if self.left == 0 { "empty" } else { "draining" },
            pdisks: self.pdisks.iter().map(pdisk).collect(),
            left: self.left,
            done,
            running_s,
            eta_s: (self.left > 0 && done > 0).then(|| running_s * self.left as f64 / done as f64),
            notes: self.notes.clone(),
        }
    }

    /// Ends when nothing is left, or when nothing moves any more.
    async fn until_empty(&mut self, link: &Link) -> Result<()> {
        let bar = output::progress("draining", self.all);
        let (mut said, mut moved, mut answered) = (self.began, self.began, self.began);
        while self.left > 0 {
            self.check_moving()?;
            if moved.elapsed() > STALL {
                bail!("nothing has moved for {STALL:?}; `ropewalk rebuild status` and `health` say more");
            }
            tokio::time::sleep(LOOK).await;
            match link.cluster().await {
                Ok(report) => (self.report, answered) = (report, Instant::now()),
                // It may be started again: the drain goes on then.
                Err(error) if answered.elapsed() > MANAGER_PATIENCE => return Err(error),
                Err(_) => continue,
            }
            let left = strips_on(&self.report.map, &self.pdisks);
            if left != self.left {
                (self.left, moved) = (left, Instant::now());
                self.all = self.all.max(left);
            }
            bar.set_length(self.all);
            bar.set_position(self.all - left);
            if bar.is_hidden() && left > 0 && said.elapsed() > SAY {
                said = Instant::now();
                let Drain { done, eta_s, .. } = self.drain();
                let eta = eta_s.map_or(String::new(), |s| format!(", some {s:.0} s to go"));
                output::note(&format!(
                    "{}: {done} of {} strips of groups have moved{eta}",
                    self.node.name, self.all
                ));
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Fails if a pool's strips have nowhere to go, or all that are left wait for pdisks that are away.
    fn check_moving(&self) -> Result<()> {
        let map = &self.report.map;
        let here = |pool: &str| {
            let pool = map.pools.iter().find(|p| p.name == pool);
            pool.is_some_and(|p| p.table.iter().any(|id| self.pdisks.contains(id)))
        };
        for row in rebuild_rows(&self.report, None).iter().filter(|row| here(&row.pool)) {
            if !row.hindered.is_empty() {
                bail!("pool {}: {}", row.pool, row.hindered);
            }
            if row.left > 0 && row.left == row.waiting {
                bail!("pool {}: {}", row.pool, waiting(row));
            }
        }
        Ok(())
    }

    fn what_next(&self) -> String {
        format!(
            "`ropewalk node drain {0}` shows how far it is, `ropewalk node keep {0}` takes it back",
            self.node.name
        )
    }

    /// What ended the watch, with what becomes of the drain.
    fn goes_on(&self, error: anyhow::Error) -> anyhow::Error {
        let text = format!("the drain of {} goes on; {}", self.node.name, self.what_next());
        match error.is::<Interrupted>() {
            true => Interrupted(text).into(),
            false => error.context(text),
        }
    }
}

/// `ropewalk node keep`.
pub fn keep(args: &NodeName) -> Result<()> {
    let dir = args.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let map = link.cluster().await?.map;
        let node = find_node(&map, &args.node)?;
        // One that has failed stays so: to bring it back is a wish of its own.
        let (mut kept, mut failed) = (0, Vec::new());
        for pdisk in map.pdisks.iter().filter(|p| p.nodes.contains(&node.id)) {
            match pdisk.state {
                PdiskState::Failed => failed.push(pdisk.name.as_str()),
                _ if pdisk.leaving => {
                    link.manager(&MgrRequest::PdiskSet { pdisk: pdisk.id, wish: PdiskWish::Keep })
                        .await
                        .with_context(|| format!("keep {}", pdisk.name))?;
                    kept += 1;
                }
                _ => {}
            }
        }
        output::line(match kept {
            0 => format!("{} is not being drained", node.name),
            _ => format!(
                "{} is kept: {kept} pdisks are used again; groups move back (`ropewalk rebuild status`)",
                node.name
            ),
        });
        if !failed.is_empty() {
            output::line(format!("failed, and not touched: {}", failed.join(", ")));
        }
        Ok(())
    })
}
