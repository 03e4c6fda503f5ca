//! The layout table: for every group the ordered K+M pdisks that hold its stripes.
//! Part of the cluster map, so it is stored, sent and compared; a table that came from outside has been
//! checked (`TryFrom<RawTable>`), so that `members` never fails.

use std::collections::BTreeMap;

use base::{GroupId, NodeId, PdiskId, StripIndex, StripeId};
use serde::{Deserialize, Serialize};

use crate::{
    code::Code,
    error::BadTable,
    hash::{self, fold},
};

/// Most pdisks of one declustered array. A pool with more spans several.
pub const ARRAY_PDISKS_MAX: u32 = 512;
/// Most pdisks of one table.
pub const TABLE_PDISKS_MAX: u32 = 128 * ARRAY_PDISKS_MAX;
/// Most groups of one table.
pub const GROUPS_MAX: u32 = 1 << 24;

/// The number of the construction and hash in docs/format-layout.md.
pub(crate) const FORMAT: u16 = 1;

/// What placement has to know of a pdisk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PdiskDesc {
    /// The pdisk.
    pub id: PdiskId,
    /// The node that serves it: the first failure domain.
    pub node: NodeId,
    /// Enclosure or rack: the second failure domain, if known.
    pub enclosure: Option<u32>,
    /// Its capacity in bytes; a pdisk of 0 gets nothing.
    pub weight: u64,
}

/// The layout of one pool. Equal inputs build equal tables on every machine.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawTable", into = "RawTable")]
pub struct LayoutTable {
    pub(crate) code: Code,
    pub(crate) seed: u64,
    pub(crate) spare: u32,
    /// In rising order of id.
    pub(crate) pdisks: Vec<PdiskDesc>,
    /// The array of each pdisk, parallel to `pdisks`.
    pub(crate) arrays: Vec<u16>,
    /// Groups one after the other, each in strip order.
    pub(crate) members: Vec<PdiskId>,
}

/// A table as it is stored, before it is checked.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RawTable {
    format: u16,
    code: Code,
    seed: u64,
    spare: u32,
    pdisks: Vec<PdiskDesc>,
    arrays: Vec<u16>,
    members: Vec<PdiskId>,
}

impl From<LayoutTable> for RawTable {
    fn from(t: LayoutTable) -> RawTable {
        let LayoutTable { code, seed, spare, pdisks, arrays, members } = t;
        RawTable { format: FORMAT, code, seed, spare, pdisks, arrays, members }
    }
}

impl TryFrom<RawTable> for LayoutTable {
    type Error = BadTable;

    fn try_from(raw: RawTable) -> Result<LayoutTable, BadTable> {
        let RawTable { format, code, seed, spare, pdisks, arrays, members } = raw;
        if format != FORMAT {
            return Err(BadTable::Format { format, known: FORMAT });
        }
        let width = code.width();
        let whole = !members.is_empty() && members.len().is_multiple_of(width.into());
        if !whole || u32::try_from(members.len()).is_err() || arrays.len() != pdisks.len() {
            return Err(BadTable::Length { members: members.len(), width });
        }
        if let Some(pair) = pdisks.windows(2).find(|pair| pair[0].id >= pair[1].id) {
            return Err(BadTable::Order { pdisk: pair[1].id });
        }
        for (group, strips) in (0u32..).zip(members.chunks_exact(width.into())) {
            for (i, &pdisk) in strips.iter().enumerate() {
                let known = pdisks.binary_search_by_key(&pdisk, |p| p.id).is_ok();
                if !known || strips[..i].contains(&pdisk) {
                    return Err(BadTable::Member { group: GroupId(group), pdisk });
                }
            }
        }
        Ok(LayoutTable { code, seed, spare, pdisks, arrays, members })
    }
}

impl LayoutTable {
    /// A table that is stored in parts: `pdisks` by rising id with their arrays, `members` groups one after
    /// the other, each in strip order.
    pub fn from_parts(
        code: Code,
        seed: u64,
        spare: u32,
        pdisks: &[(PdiskDesc, u16)],
        members: Vec<PdiskId>,
    ) -> Result<LayoutTable, BadTable> {
        let (pdisks, arrays) = pdisks.iter().copied().unzip();
        RawTable { format: FORMAT, code, seed, spare, pdisks, arrays, members }.try_into()
    }

    /// The redundancy code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The seed it was built from; part of the hash.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Spare space, in pdisks; it is spread over all of them.
    pub fn spare(&self) -> u32 {
        self.spare
    }

    /// The pdisks, in rising order of id.
    pub fn pdisks(&self) -> &[PdiskDesc] {
        &self.pdisks
    }

    /// What is known of one pdisk of the table.
    pub fn pdisk(&self, id: PdiskId) -> Option<&PdiskDesc> {
        self.index_of(id).map(|i| &self.pdisks[i])
    }

    /// The declustered array a pdisk belongs to, 0 being the first.
    pub fn array_of(&self, id: PdiskId) -> Option<u16> {
        self.index_of(id).map(|i| self.arrays[i])
    }

    /// How many groups there are; the same for the whole life of a pool.
    pub fn groups(&self) -> u32 {
        (self.members.len() / usize::from(self.code.width())) as u32
    }

    /// All groups, in order.
    pub fn group_ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.groups()).map(GroupId)
    }

    /// The group that holds a stripe.
    pub fn group_of(&self, stripe: StripeId) -> GroupId {
        GroupId(hash::group_number(self.seed, self.groups(), stripe))
    }

    /// The pdisks of a group in strip order: K data, then M parity.
    ///
    /// # Panics
    /// If the group is not below [`LayoutTable::groups`]; see [`LayoutTable::get`] for numbers from outside.
    pub fn members(&self, group: GroupId) -> &[PdiskId] {
        self.get(group).expect("a group of this table")
    }

    /// The pdisks of a group, if there is such a group.
    pub fn get(&self, group: GroupId) -> Option<&[PdiskId]> {
        let width = usize::from(self.code.width());
        let start = (group.0 as usize).checked_mul(width)?;
        self.members.get(start..start.checked_add(width)?)
    }

    /// The pdisk that holds one strip of a stripe.
    pub fn pdisk_of(&self, stripe: StripeId, index: StripIndex) -> Option<PdiskId> {
        self.members(self.group_of(stripe)).get(usize::from(index.0)).copied()
    }

    /// The groups that have a strip on `pdisk`, and which.
    pub fn groups_on(&self, pdisk: PdiskId) -> impl Iterator<Item = (GroupId, StripIndex)> {
        let width = usize::from(self.code.width());
        self.members
            .iter()
            .enumerate()
            .filter(move |(_, member)| **member == pdisk)
            .map(move |(i, _)| (GroupId((i / width) as u32), StripIndex((i % width) as u8)))
    }

    /// How many nodes, whichever they are, can be lost at the same time with no stripe lost.
    pub fn node_losses_survived(&self) -> u32 {
        self.losses_survived(|p| Some(u64::from(p.node.0)))
    }

    /// The same for enclosures (racks). A pdisk whose enclosure is not known counts as one of its own.
    pub fn enclosure_losses_survived(&self) -> u32 {
        self.losses_survived(|p| p.enclosure.map(u64::from))
    }

    fn losses_survived(&self, domain: impl Fn(&PdiskDesc) -> Option<u64>) -> u32 {
        let alone = |p: &PdiskDesc| (1u64 << 32) + u64::from(p.id.0);
        let domain_of: BTreeMap<PdiskId, u64> =
            self.pdisks.iter().map(|p| (p.id, domain(p).unwrap_or(alone(p)))).collect();
        let mut domains: Vec<u64> = Vec::new();
        let mut counts: Vec<u32> = Vec::new();
        let mut least = u32::from(self.code.parity());
        for group in self.members.chunks_exact(self.code.width().into()) {
            domains.clear();
            counts.clear();
            domains.extend(group.iter().map(|p| domain_of[p]));
            domains.sort_unstable();
            counts.extend(domains.chunk_by(|a, b| a == b).map(|run| run.len() as u32));
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let mut lost = 0;
            let survived = counts.iter().take_while(|&&n| {
                lost += n;
                lost <= u32::from(self.code.parity())
            });
            least = least.min(survived.count() as u32);
        }
        least
    }

    /// Bytes of file data the pool can hold when the pdisk that fills first is full, after spare space.
    /// Nothing is taken off for what pdisks need for their own records.
    pub fn data_capacity(&self) -> u64 {
        let slots = self.slots();
        let per_group = self
            .pdisks
            .iter()
            .zip(&slots)
            .filter(|(_, slots)| **slots > 0)
            .map(|(p, &slots)| p.weight / u64::from(slots))
            .min()
            .unwrap_or(0);
        let raw = u128::from(per_group) * u128::from(self.groups()) * u128::from(self.code.data());
        let (all, spare) = (self.pdisks.len().max(1) as u128, u128::from(self.spare));
        u64::try_from(raw * all.saturating_sub(spare) / all).unwrap_or(u64::MAX)
    }

    /// How many groups each pdisk is in, parallel to [`LayoutTable::pdisks`].
    pub fn slots(&self) -> Vec<u32> {
        let mut slots = vec![0; self.pdisks.len()];
        for i in self.member_indices() {
            slots[i] += 1;
        }
        slots
    }

    /// A number that differs between different tables: to see that two nodes hold the same one.
    pub fn digest(&self) -> u64 {
        let head =
            fold(fold(fold(u64::from(FORMAT), self.seed), u64::from(self.spare)), self.members.len() as u64);
        let coded = self.code.to_string().bytes().fold(head, |h, byte| fold(h, byte.into()));
        let described = self.pdisks.iter().zip(&self.arrays).fold(coded, |h, (p, array)| {
            let enclosure = p.enclosure.map_or(u64::MAX, u64::from);
            [p.id.0.into(), p.node.0.into(), enclosure, p.weight, u64::from(*array)].into_iter().fold(h, fold)
        });
        self.members.iter().fold(described, |h, member| fold(h, member.0.into()))
    }

    pub(crate) fn index_of(&self, id: PdiskId) -> Option<usize> {
        self.pdisks.binary_search_by_key(&id, |p| p.id).ok()
    }

    /// For finding many pdisks.
    pub(crate) fn index(&self) -> Index<'_> {
        let last = self.pdisks.last().map_or(0, |p| p.id.0 as usize);
        let mut dense = Vec::new();
        if last < 4 * self.pdisks.len() + 1024 {
            dense.resize(last + 1, u32::MAX);
            self.pdisks.iter().enumerate().for_each(|(i, p)| dense[p.id.0 as usize] = i as u32);
        }
        Index { table: self, dense }
    }

    /// Members as indices into `pdisks`, groups one after the other.
    pub(crate) fn member_indices(&self) -> impl Iterator<Item = usize> + '_ {
        // A checked table names only pdisks it has.
        let index = self.index();
        self.members.iter().map(move |&id| index.get(id).expect("members are pdisks of the table"))
    }
}

/// Finds pdisks by number; a vector where numbers are close together, as they mostly are.
pub(crate) struct Index<'a> {
    table: &'a LayoutTable,
    dense: Vec<u32>,
}

impl Index<'_> {
    pub fn get(&self, id: PdiskId) -> Option<usize> {
        if self.dense.is_empty() {
            return self.table.index_of(id);
        }
        self.dense.get(id.0 as usize).filter(|i| **i != u32::MAX).map(|i| *i as usize)
    }
}

impl std::fmt::Debug for LayoutTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "LayoutTable({}, {} groups on {} pdisks, seed {:#x}, digest {:016x})",
            self.code,
            self.groups(),
            self.pdisks.len(),
            self.seed,
            self.digest()
        )
    }
}
