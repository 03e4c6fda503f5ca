//! Simulates arrays: how even a table is, how long it takes to build, what changes move against the least
//! possible, how a rebuild loads the pdisks and how long it takes beside a conventional array.
//! Pure: the caller passes the clock; everything but times is the same on every machine.
//!
//! Rebuild times say what pdisks of the given rate allow. Networks, processors and clients are not in them.

mod display;

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use base::{NodeId, PdiskId};
use serde::Serialize;

use crate::{
    balance::Evenness,
    build::default_groups,
    change::{Change, Move},
    code::Code,
    domains::{Domains, least_node_cap},
    error::LayoutError,
    table::{LayoutTable, PdiskDesc, TABLE_PDISKS_MAX},
};

/// Pdisks whose loss is tried, spread over the pool.
const LOSSES_TRIED: u32 = 3;

/// What to simulate: a pool of equal nodes with equal pdisks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// Server nodes.
    pub nodes: u32,
    /// Pdisks of each.
    pub pdisks_per_node: u32,
    /// The pool's code.
    pub code: Code,
    /// Groups of the table; `None` for [`default_groups`].
    pub groups: Option<u32>,
    /// Spare space, in pdisks.
    pub spare: u32,
    /// Seed of the table.
    pub seed: u64,
    /// Bytes on each pdisk, all of which a rebuild has to get again.
    pub pdisk_bytes: u64,
    /// What each pdisk gives to a rebuild, reads and writes together.
    pub pdisk_bytes_per_second: NonZeroU64,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was simulated.
    pub setup: Setup,
    /// Pdisks in all.
    pub pdisks: u32,
    /// Pdisks of each declustered array.
    pub arrays: Vec<u32>,
    /// Groups of the table.
    pub groups: u32,
    /// Most strips of a group on one node.
    pub strips_per_node_max: u32,
    /// Time to build the table.
    #[serde(rename = "build_s")]
    pub build_seconds: f64,
    /// Bytes of the table as it is stored (postcard).
    pub stored_bytes: u64,
    /// Evenness over pdisks and pairs of pdisks.
    pub evenness: Evenness,
    /// Pdisks, whichever, that can be lost at the same time.
    pub pdisk_losses_survived: u32,
    /// Nodes, whichever, that can be lost at the same time.
    pub node_losses_survived: u32,
    /// What each change moves.
    pub changes: Vec<Moved>,
    /// Rebuild of one lost pdisk; `None` where that is not possible.
    pub rebuild: Option<Rebuild>,
}

/// A change of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// One more pdisk in the first node.
    AddPdisk,
    /// One more node like the others.
    AddNode,
    /// A pdisk is lost or drained: the same strips move.
    LosePdisk,
    /// A node is lost or drained.
    LoseNode,
}

/// What a change moves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// Which change.
    pub event: Event,
    /// What came of it.
    pub movement: Option<Movement>,
    /// Or why it was refused.
    pub refused: Option<String>,
}

/// How much a change moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Movement {
    /// Strips of groups that move.
    pub strips: u64,
    /// The least that any table within the failure domains has to move: what was on pdisks that are gone, what
    /// the new ones should hold, or what a tighter limit of strips a node forces out.
    pub least: u64,
    /// Bytes, if all pdisks are filled as in the setup.
    pub bytes: u64,
    /// Arrays afterwards.
    pub arrays: u32,
    /// Groups a capacity afterwards, in thousandths of the mean: the least and the most.
    pub groups_min: u32,
    /// See `groups_min`.
    pub groups_max: u32,
    /// Node losses survived afterwards.
    pub node_losses_survived: u32,
    /// Time to compute it.
    #[serde(rename = "plan_s")]
    pub plan_seconds: f64,
}

impl Movement {
    /// What moves against the least possible, 1.0 being that.
    pub fn over_least(&self) -> f64 {
        ratio(self.strips as f64, self.least as f64)
    }
}

/// Rebuild of one lost pdisk: the worst of those tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rebuild {
    /// Pdisks whose loss was tried.
    pub tried: u32,
    /// Pdisks that take part.
    pub pdisks: u32,
    /// Strips that the busiest of them reads and writes.
    pub load_max: u32,
    /// The mean of all in the array.
    pub load_mean: f64,
    /// Largest against mean.
    pub load_max_over_mean: f64,
    /// Every group fills every node up to its limit, so that only the other pdisks of the lost one's node may
    /// take its strips: the load cannot be even.
    pub confined_to_node: bool,
    /// Time to full redundancy.
    #[serde(rename = "took_s")]
    pub seconds: f64,
    /// The same for K+M pdisks with a spare of their own, which writes all that was lost.
    #[serde(rename = "conventional_s")]
    pub conventional_seconds: f64,
}

impl Rebuild {
    /// How many times faster than the conventional array.
    pub fn speedup(&self) -> f64 {
        ratio(self.conventional_seconds, self.seconds)
    }
}

/// Simulates; `now` is the time since any fixed moment.
pub fn simulate(setup: &Setup, now: impl Fn() -> Duration) -> Result<Report, LayoutError> {
    let count = setup.nodes.saturating_mul(setup.pdisks_per_node);
    if count > TABLE_PDISKS_MAX {
        return Err(LayoutError::TooManyPdisks { pdisks: count, max: TABLE_PDISKS_MAX });
    }
    let pdisks: Vec<PdiskDesc> = (1..=setup.nodes).flat_map(|node| setup.node(node)).collect();
    let groups = setup.groups.unwrap_or_else(|| default_groups(setup.code, count));
    let start = now();
    let table = LayoutTable::build(setup.code, &pdisks, setup.spare, groups, setup.seed)?;
    let build_seconds = now().saturating_sub(start).as_secs_f64();
    let events = [Event::AddPdisk, Event::AddNode, Event::LosePdisk, Event::LoseNode];
    let changes = events.into_iter().map(|event| moved(setup, &table, event, &now)).collect();
    let mut arrays: BTreeMap<Option<u16>, u32> = BTreeMap::new();
    table.pdisks().iter().for_each(|p| *arrays.entry(table.array_of(p.id)).or_default() += 1);
    Ok(Report {
        setup: setup.clone(),
        pdisks: count,
        arrays: arrays.into_values().collect(),
        groups,
        strips_per_node_max: node_cap(&table),
        build_seconds,
        stored_bytes: postcard::experimental::serialized_size(&table).map_or(0, |bytes| bytes as u64),
        evenness: table.evenness(),
        pdisk_losses_survived: setup.code.parity().into(),
        node_losses_survived: table.node_losses_survived(),
        changes,
        rebuild: rebuild(setup, &table),
    })
}

impl Setup {
    /// The pdisks of a node; nodes and pdisks are numbered from 1.
    fn node(&self, node: u32) -> impl Iterator<Item = PdiskDesc> + use<> {
        let (each, weight) = (self.pdisks_per_node, self.pdisk_bytes.max(1));
        (1..=each).map(move |i| PdiskDesc {
            id: PdiskId((node - 1) * each + i),
            node: NodeId(node),
            enclosure: None,
            weight,
        })
    }

    fn change(&self, event: Event) -> Change {
        let new = PdiskId(self.nodes * self.pdisks_per_node + 1);
        let first = |count: usize| self.node(1).take(count).map(|p| p.id).collect();
        match event {
            Event::AddPdisk => {
                let add = self.node(1).take(1).map(|p| PdiskDesc { id: new, ..p }).collect();
                Change { add, ..Change::default() }
            }
            Event::AddNode => Change { add: self.node(self.nodes + 1).collect(), ..Change::default() },
            Event::LosePdisk => Change { lose: first(1), ..Change::default() },
            Event::LoseNode => Change { lose: first(self.pdisks_per_node as usize), ..Change::default() },
        }
    }
}

fn moved(setup: &Setup, table: &LayoutTable, event: Event, now: &impl Fn() -> Duration) -> Moved {
    let change = setup.change(event);
    let start = now();
    let movement = table.change(&change).map(|(next, moves)| {
        let plan_seconds = now().saturating_sub(start).as_secs_f64();
        let (strips, evenness) = (moves.len() as u64, next.evenness());
        let mut arrays: Vec<_> = next.pdisks().iter().map(|p| next.array_of(p.id)).collect();
        arrays.sort_unstable();
        arrays.dedup();
        let all = u128::from(table.groups()) * u128::from(setup.code.width());
        let pool_bytes = u128::from(setup.pdisk_bytes) * table.pdisks().len() as u128;
        Movement {
            strips,
            least: least(table, &next, &change),
            bytes: u64::try_from(u128::from(strips) * pool_bytes / all.max(1)).unwrap_or(u64::MAX),
            arrays: arrays.len() as u32,
            groups_min: evenness.groups_min,
            groups_max: evenness.groups_max,
            node_losses_survived: next.node_losses_survived(),
            plan_seconds,
        }
    });
    let refused = movement.as_ref().err().map(LayoutError::to_string);
    Moved { event, movement: movement.ok(), refused }
}

/// The least number of strips that have to move from `table` to any table on the pdisks of `next`.
fn least(table: &LayoutTable, next: &LayoutTable, change: &Change) -> u64 {
    let (width, groups) = (u32::from(table.code().width()), table.groups());
    let gone: u64 =
        change.lose.iter().chain(&change.remove).map(|&id| table.groups_on(id).count() as u64).sum();
    let parity = table.code().parity().into();
    let targets = Domains::new(next.pdisks(), width, parity).targets(next.pdisks(), groups, width);
    let shares = next.pdisks().iter().zip(targets);
    let new: u64 =
        shares.filter(|(p, _)| table.pdisk(p.id).is_none()).map(|(_, share)| u64::from(share)).sum();
    let cap = node_cap(next);
    let mut excess = 0;
    let node_of: BTreeMap<PdiskId, NodeId> = table.pdisks().iter().map(|p| (p.id, p.node)).collect();
    for group in table.group_ids() {
        let mut nodes: Vec<_> = table.members(group).iter().map(|m| node_of.get(m)).collect();
        nodes.sort_unstable();
        let above = nodes.chunk_by(|a, b| a == b).map(|run| (run.len() as u32).saturating_sub(cap));
        excess += u64::from(above.sum::<u32>());
    }
    gone.max(new).max(excess)
}

fn node_cap(table: &LayoutTable) -> u32 {
    least_node_cap(table.pdisks().iter().map(|p| p.node), table.code().width().into())
}

/// The worst of a few losses.
fn rebuild(setup: &Setup, table: &LayoutTable) -> Option<Rebuild> {
    if setup.code.parity() == 0 {
        return None;
    }
    let pdisks = table.pdisks();
    let tried = LOSSES_TRIED.min(pdisks.len() as u32);
    let spread = |i: u32| i as usize * (pdisks.len() - 1) / (tried as usize - 1).max(1);
    let results: Vec<Rebuild> =
        (0..tried).filter_map(|i| rebuild_of(setup, table, pdisks[spread(i)].id)).collect();
    let worst = results.iter().max_by(|a, b| a.load_max_over_mean.total_cmp(&b.load_max_over_mean))?;
    Some(Rebuild { tried: results.len() as u32, ..*worst })
}

fn rebuild_of(setup: &Setup, table: &LayoutTable, lost: PdiskId) -> Option<Rebuild> {
    let (next, moves): (LayoutTable, Vec<Move>) =
        table.change(&Change { lose: vec![lost], ..Change::default() }).ok()?;
    debug_assert!(moves.iter().any(|step| step.from == lost));
    let array = table.array_of(lost);
    let load = table.rebuild_load(lost, &next);
    let others: Vec<u32> = (table.pdisks().iter().zip(&load))
        .filter(|(p, _)| p.id != lost && table.array_of(p.id) == array)
        .map(|(_, (reads, writes))| reads + writes)
        .collect();
    let load_max = others.iter().copied().max()?;
    let load_mean = f64::from(others.iter().sum::<u32>()) / others.len() as f64;
    let strips = table.groups_on(lost).count();
    let alone = setup.pdisk_bytes as f64 / setup.pdisk_bytes_per_second.get() as f64;
    let cap = node_cap(table);
    let mut nodes: BTreeMap<NodeId, u32> = BTreeMap::new();
    table.pdisks().iter().for_each(|p| *nodes.entry(p.node).or_default() += 1);
    let room: u32 = nodes.values().map(|n| (*n).min(cap)).sum();
    Some(Rebuild {
        tried: 1,
        pdisks: others.iter().filter(|n| **n > 0).count() as u32,
        load_max,
        load_mean,
        load_max_over_mean: ratio(f64::from(load_max), load_mean),
        confined_to_node: nodes.len() > 1 && room == u32::from(setup.code.width()),
        seconds: alone * ratio(f64::from(load_max), strips as f64),
        conventional_seconds: alone,
    })
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 1.0 }
}
