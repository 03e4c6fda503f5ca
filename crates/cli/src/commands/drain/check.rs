//! Whether the other pdisks can take what the pdisks of a node hold, and what losing a node would cost afterwards.
//! It plans as the manager will, over the map as it is now, and changes nothing. What one strip of a group holds is
//! taken as its pdisk's part of what is used there: placement spreads stripes evenly.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use base::{PdiskId, units::human_size};
use layout::{Change, Code, LayoutTable, PdiskDesc};
use wire::{
    map::{ClusterMap, PdiskState, PoolEntry, PoolPdisk},
    mgr::ClusterReport,
};

/// The manager moves nothing to a pdisk with less than this part (1/64) of it free.
const ROOM_SHIFT: u32 = 6;

/// A pool's table before and after. It survives the loss of so many nodes, whichever they are.
struct Planned {
    next: LayoutTable,
    survives: (u32, u32),
}

/// Refuses, naming what is short, or says what is worth knowing beforehand.
pub fn check(report: &ClusterReport, node: &str, gone: &BTreeSet<PdiskId>) -> Result<Vec<String>> {
    let map = &report.map;
    let mut notes = Vec::new();
    let mut gains = BTreeMap::new();
    let holds = share_of_strips(report);
    for pool in map.pools.iter().filter(|pool| pool.pdisks.iter().any(|p| gone.contains(&p.id))) {
        let planned = plan(map, pool, gone).with_context(|| {
            format!(
                "{node} is not drained, nothing has changed: what pool {} holds there has no other place",
                pool.name
            )
        })?;
        let (before, after) = planned.survives;
        if before > 0 && after == 0 {
            bail!(
                "{node} is not drained, nothing has changed: without it pool {} ({}) would not survive the loss of a node \
                 any more, as it does now; add a node first (`ropewalk node token`), or take that on and drain its pdisks \
                 one by one (`ropewalk pdisk drain`)",
                pool.name,
                pool.code
            );
        }
        if after < before {
            notes.push(format!(
                "pool {} will survive the loss of {after} node(s), not of {before}",
                pool.name
            ));
        }
        let next = planned.next.group_ids().flat_map(|g| planned.next.members(g));
        for (from, to) in pool.table.iter().zip(next).filter(|(from, to)| from != to) {
            let bytes = holds.get(from).copied().unwrap_or_default() as i64;
            *gains.entry(*to).or_insert(0i64) += bytes;
            *gains.entry(*from).or_insert(0i64) -= bytes;
        }
    }
    room(report, node, gone, &gains)?;
    let away =
        |p: &&wire::map::PdiskEntry| !gone.contains(&p.id) && p.state == PdiskState::Missing && !p.leaving;
    for pdisk in map.pdisks.iter().filter(away) {
        notes.push(format!(
            "{} is missing: what is to go there waits until it is back or given up",
            pdisk.name
        ));
    }
    Ok(notes)
}

/// The bytes that one strip of a group has on each pdisk, about.
fn share_of_strips(report: &ClusterReport) -> BTreeMap<PdiskId, u64> {
    let mut strips: BTreeMap<PdiskId, u64> = BTreeMap::new();
    report.map.pools.iter().flat_map(|p| &p.table).for_each(|id| *strips.entry(*id).or_default() += 1);
    let used = report.pdisks.iter().map(|p| (p.id, p.capacity.saturating_sub(p.free)));
    used.filter_map(|(id, used)| Some((id, used / strips.get(&id)?))).collect()
}

/// Refuses if a pdisk would get more than it has room for.
fn room(
    report: &ClusterReport,
    node: &str,
    gone: &BTreeSet<PdiskId>,
    gains: &BTreeMap<PdiskId, i64>,
) -> Result<()> {
    let short = report.pdisks.iter().filter_map(|p| {
        let gain = u64::try_from(*gains.get(&p.id)?).ok().filter(|gain| *gain > 0)?;
        let room = p.free.saturating_sub(p.capacity >> ROOM_SHIFT);
        (gain > room).then(|| (gain - room, p.id, gain, room))
    });
    let Some((_, id, gain, room)) = short.max() else { return Ok(()) };
    let held =
        report.pdisks.iter().filter(|p| gone.contains(&p.id)).map(|p| p.capacity.saturating_sub(p.free));
    bail!(
        "{node} is not drained, nothing has changed: its pdisks hold {}, and the others have no room for it: {} would get \
         some {} and has room for {}; add pdisks (`ropewalk pdisk add`) or a node first, or delete files",
        human_size(held.sum()),
        report.map.pdisk(id).map_or(String::new(), |p| p.name.clone()),
        human_size(gain),
        human_size(room)
    )
}

/// The table over all that stays, as the manager will find it.
fn plan(map: &ClusterMap, pool: &PoolEntry, gone: &BTreeSet<PdiskId>) -> Result<Planned> {
    let code: Code = pool.code.parse()?;
    let mut members = pool.table.clone();
    for m in &pool.moves {
        let slot = usize::from(pool.width) * m.group.0 as usize + usize::from(m.strip.0);
        *members.get_mut(slot).context("a move of no group in the map")? = m.to;
    }
    let desc = |p: &PoolPdisk| PdiskDesc {
        id: p.id,
        node: map.pdisk(p.id).and_then(|entry| entry.nodes.first().copied()).unwrap_or_default(),
        enclosure: p.enclosure,
        weight: p.weight,
    };
    let stays = |id: PdiskId| {
        !gone.contains(&id) && map.pdisk(id).is_some_and(|p| !p.leaving && p.state != PdiskState::Failed)
    };
    let known: Vec<(PdiskDesc, u16)> =
        pool.pdisks.iter().filter_map(|p| p.array.map(|array| (desc(p), array))).collect();
    let left = pool.pdisks.iter().filter(|p| stays(p.id)).count() as u32;
    let spare = pool.spare.min(left.saturating_sub(pool.width.into()));
    let table = LayoutTable::from_parts(code, pool.seed, spare, &known, members)?;
    let counts = |id: &PdiskId| map.pdisk(*id).is_some_and(|p| p.state.written());
    let (remove, lose) = known.iter().map(|(p, _)| p.id).filter(|id| !stays(*id)).partition(counts);
    let add = pool.pdisks.iter().filter(|p| p.array.is_none() && stays(p.id)).map(desc).collect();
    let (next, _) = table.change(&Change { add, remove, lose, spare: Some(spare), level: true })?;
    let survives = (table.node_losses_survived(), next.node_losses_survived());
    Ok(Planned { next, survives })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a helper that fails is a test that fails
mod tests {
    use base::NodeId;
    use wire::{
        map::{NodeEntry, PdiskEntry},
        mgr::PdiskUse,
    };

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A cluster whose nodes have so many pdisks each, of 1 GiB, with one pool over all.
    fn cluster(nodes: &[u32], code: &str, used: u64) -> ClusterReport {
        let on: Vec<u32> = (1u32..).zip(nodes).flat_map(|(node, &n)| vec![node; n as usize]).collect();
        let desc = |(id, &node): (u32, &u32)| PdiskDesc {
            id: PdiskId(id),
            node: NodeId(node),
            enclosure: None,
            weight: 1024 * MIB,
        };
        let pdisks: Vec<PdiskDesc> = (1u32..).zip(&on).map(desc).collect();
        let code: Code = code.parse().unwrap();
        let groups = layout::default_groups(code, pdisks.len() as u32);
        let table = LayoutTable::build(code, &pdisks, 0, groups, 1).unwrap();
        let pool_pdisk = |p: &PdiskDesc| PoolPdisk {
            id: p.id,
            array: table.array_of(p.id),
            weight: p.weight,
            enclosure: None,
        };
        let entry = |p: &PdiskDesc| PdiskEntry {
            id: p.id,
            name: format!("n{}p{}", p.node.0, p.id.0),
            nodes: vec![p.node],
            capacity: p.weight,
            ..PdiskEntry::default()
        };
        let node = |id: u32| NodeEntry { id: NodeId(id), name: format!("n{id}"), ..NodeEntry::default() };
        let pool = PoolEntry {
            name: "data".into(),
            code: code.to_string(),
            width: code.width(),
            seed: 1,
            table: table.group_ids().flat_map(|g| table.members(g).to_vec()).collect(),
            pdisks: table.pdisks().iter().map(pool_pdisk).collect(),
            ..PoolEntry::default()
        };
        let uses = |p: &PdiskDesc| PdiskUse {
            id: p.id,
            capacity: p.weight,
            free: p.weight - used,
            ..PdiskUse::default()
        };
        ClusterReport {
            map: ClusterMap {
                nodes: (1..=nodes.len() as u32).map(node).collect(),
                pdisks: pdisks.iter().map(entry).collect(),
                pools: vec![pool],
                ..ClusterMap::default()
            },
            pdisks: pdisks.iter().map(uses).collect(),
            ..ClusterReport::default()
        }
    }

    fn last_node(report: &ClusterReport) -> BTreeSet<PdiskId> {
        let node = report.map.nodes.last().unwrap().id;
        report.map.pdisks.iter().filter(|p| p.nodes.contains(&node)).map(|p| p.id).collect()
    }

    fn checked(report: &ClusterReport) -> Result<Vec<String>, String> {
        check(report, "n9", &last_node(report)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_fits_is_let_through() {
        assert_eq!(checked(&cluster(&[2; 5], "2+1p", 600 * MIB)), Ok(vec![]));
        // Fewer nodes may be lost afterwards: worth a note.
        let notes = checked(&cluster(&[1; 6], "3way", 0)).unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        let notes = checked(&cluster(&[2, 2, 2], "3way", 0)).unwrap();
        assert_eq!(notes, ["pool data will survive the loss of 1 node(s), not of 2"]);
        // Pdisks that no pool uses can always go.
        let mut report = cluster(&[1; 4], "2+1p", 1020 * MIB);
        report.map.pools.clear();
        assert_eq!(checked(&report), Ok(vec![]));
    }

    #[test]
    fn what_is_short_is_named() {
        let said = checked(&cluster(&[1; 3], "2+1p", 0)).unwrap_err();
        assert!(said.contains("pool data") && said.contains("does not fit 2 pdisk(s)"), "{said}");
        let said = checked(&cluster(&[2; 3], "2+1p", 0)).unwrap_err();
        assert!(said.contains("would not survive the loss of a node"), "{said}");
        // 4 pdisks of 10 hold as much as the others have free, and a little more.
        let said = checked(&cluster(&[2; 5], "2+1p", 900 * MIB)).unwrap_err();
        assert!(said.contains("its pdisks hold 1.76 GiB") && said.contains("room for 108"), "{said}");
        // What is leaving already, or failed, takes nothing.
        let mut report = cluster(&[1; 4], "2+1p", 0);
        report.map.pdisks[0].leaving = true;
        let said = checked(&report).unwrap_err();
        assert!(said.contains("does not fit 2 pdisk(s)"), "{said}");
    }

    #[test]
    fn a_pdisk_that_is_away_is_named() {
        let mut report = cluster(&[1; 5], "2+1p", 0);
        report.map.pdisks[0].state = PdiskState::Missing;
        let notes = checked(&report).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("n1p1 is missing"), "{notes:?}");
    }
}
