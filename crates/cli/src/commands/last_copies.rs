//! What giving up a pdisk takes for good: groups of which too few strips would be left to read them, wherever they are.

use anyhow::{Result, bail};
use base::PdiskId;
use wire::{
    map::{ClusterMap, PdiskState, PoolEntry},
    mgr::ClusterReport,
};

/// Groups of a pool that have a strip on a pdisk, and fewer others that may be read, now or later, than it takes.
fn groups(map: &ClusterMap, pool: &PoolEntry, pdisk: PdiskId) -> usize {
    let width = usize::from(pool.width.max(1));
    let needed = pool.code.parse::<layout::Code>().map_or(width, |code| code.data().into());
    // One that is only missing may be back.
    let may_be_read =
        |id: &PdiskId| *id != pdisk && map.pdisk(*id).is_some_and(|entry| entry.state != PdiskState::Failed);
    let rows = pool.table.chunks_exact(width).filter(|row| row.contains(&pdisk));
    rows.filter(|row| row.iter().filter(|id| may_be_read(id)).count() < needed).count()
}

/// Per pool what is lost without a pdisk, for people.
fn lost(map: &ClusterMap, pdisk: PdiskId) -> Vec<String> {
    let of = |pool: &PoolEntry| (groups(map, pool, pdisk), pool.name.clone());
    let some = map.pools.iter().map(of).filter(|(count, _)| *count > 0);
    some.map(|(count, name)| format!("{count} groups of pool {name}")).collect()
}

/// Refuses to give up what nobody else has.
pub fn check(report: &ClusterReport, pdisk: PdiskId) -> Result<()> {
    let map = &report.map;
    let Some(entry) = map.pdisk(pdisk) else { return Ok(()) };
    let (name, lost) = (&entry.name, lost(map, pdisk).join(", "));
    if lost.is_empty() || entry.given_up() {
        return Ok(());
    }
    let served = report.pdisks.iter().any(|p| p.id == pdisk && p.served && p.state == PdiskState::Ok);
    if served {
        bail!(
            "{name} holds the last copies of {lost}, and is in reach; drain it (`ropewalk pdisk drain {name}`), or wait \
             until the others are rebuilt"
        );
    }
    bail!(
        "{name} holds the last copies of {lost}: without it blocks of files there cannot be read any more (`ropewalk pool \
         lost` names them). If it is gone for good, and they are to be given up: the same with --accept-loss"
    )
}

/// What has been given up with a pdisk.
pub fn told(map: &ClusterMap, pdisk: PdiskId) -> Option<String> {
    let lost = lost(map, pdisk);
    (!lost.is_empty()).then(|| {
        format!(
            "{} have lost more strips than their code bears; `ropewalk pool lost` names the files",
            lost.join(", ")
        )
    })
}
