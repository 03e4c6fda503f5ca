//! What a pdisk must hold after a crash, known only from what was asked of it and what it answered: each
//! strip is as the last answered operation left it, or as the one under way would leave it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use base::{StripId, Version, units::UNIT};
use bytes::Bytes;
use parking_lot::Mutex;
use wire::crc::crc32c;

use super::{
    explore::open,
    image::{Disk, Patches, View},
};
use crate::{
    crcmap::Salt,
    extent::unit_at,
    files::Label,
    io::FileKind,
    log::ReadAt,
    random::Random,
    read::zero_crc,
    recover::Recovered,
    strip::{Strip, Ver},
};

/// The content of a version: a seed for each unit, 0 for zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Content {
    pub version: Version,
    pub units: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct StripModel {
    pub adopted: Option<Content>,
    pub prepared: Option<Content>,
    pub sealed: u64,
}

/// What one operation changes, if it happens.
#[derive(Clone, Debug, Default)]
pub(super) struct Operation {
    pub changes: Vec<(StripId, StripModel)>,
    /// As strips may be on the way there.
    pub between: Vec<(StripId, StripModel)>,
    /// An open: all strips are settled as `changes` says.
    pub settles: bool,
    /// Log position and incarnation that were told before the answer.
    pub told: (u64, u64),
}

/// All operations of a run; marks of the trace are 2 x index, and one more for the answer.
#[derive(Clone, Default)]
pub(super) struct Operations(Arc<Mutex<Vec<Operation>>>);

impl Operations {
    pub fn begin(&self, operation: Operation) -> u64 {
        let mut list = self.0.lock();
        list.push(operation);
        2 * (list.len() as u64 - 1)
    }
    pub fn told(&self, mark: u64, told: (u64, u64)) {
        self.0.lock()[mark as usize / 2].told = told;
    }
    /// The content of every version of every strip ever asked for.
    pub fn versions(&self) -> HashMap<(StripId, Version), Content> {
        let list = self.0.lock();
        let models = list.iter().flat_map(|o| o.changes.iter().chain(&o.between));
        let contents = models.flat_map(|(id, m)| m.adopted.iter().chain(&m.prepared).map(|c| (*id, c)));
        contents.map(|(id, c)| ((id, c.version), c.clone())).collect()
    }
    fn get(&self, mark: u64) -> Operation {
        self.0.lock()[mark as usize / 2].clone()
    }
}

/// How damage showed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Outcome {
    /// Not at all: another copy served, or nothing was there.
    Whole,
    /// Some strip is marked damaged, or does not match its CRCs.
    StripLost,
    /// The log ends before the position that was told.
    Behind,
    /// It does not open.
    PdiskDamaged,
}

#[derive(Clone, Default)]
pub(super) struct Oracle {
    answered: BTreeMap<StripId, StripModel>,
    under_way: BTreeMap<StripId, Vec<StripModel>>,
    log_position: u64,
    incarnation: u64,
}

impl Oracle {
    pub fn mark(&mut self, mark: u64, operations: &Operations) {
        let operation = operations.get(mark);
        if mark.is_multiple_of(2) {
            if !operation.settles {
                for (strip, model) in operation.between.into_iter().chain(operation.changes) {
                    self.under_way.entry(strip).or_default().push(model);
                }
            }
            return;
        }
        if operation.settles {
            self.under_way.clear();
        }
        self.log_position = self.log_position.max(operation.told.0);
        self.incarnation = self.incarnation.max(operation.told.1);
        for (strip, model) in operation.changes {
            self.under_way.remove(&strip);
            self.answered.insert(strip, model);
        }
    }

    /// Compares what a damaged disk gives. `Err`: wrong bytes, or a strip gone without a word.
    pub fn check_damaged(
        &self,
        label: &Label,
        disk: &Disk,
        versions: &HashMap<(StripId, Version), Content>,
    ) -> Result<Outcome, String> {
        let patches = Patches::default();
        let Ok(found) = open(label, disk, &patches) else { return Ok(Outcome::PdiskDamaged) };
        let behind = found.head.position < self.log_position;
        let mut lost = !found.damage.strips.is_empty();
        let data = View::new(disk, &patches, FileKind::Data);
        let mut contents = Contents::default();
        for (id, strip) in found.index.iter_after(None) {
            for v in strip.versions() {
                let content =
                    versions.get(&(id, v.version)).ok_or_else(|| format!("{id} has {}", v.version))?;
                if v.damaged {
                    lost = true;
                } else {
                    lost |= !same_content(id, v, content, &found, &data, &mut contents, true)?;
                }
            }
        }
        if !behind {
            let shape_of = |id: &StripId| {
                let strip = found.index.get(*id);
                strip.map(|s| (s.adopted.as_ref().map(|v| v.version), s.prepared.as_ref().map(|v| v.version)))
            };
            for (id, model) in &self.answered {
                let version = |c: &Option<Content>| c.as_ref().map(|c| c.version);
                let expected = (version(&model.adopted), version(&model.prepared));
                if shape_of(id).unwrap_or_default() != expected {
                    return Err(format!("{id} is {:?}, not {expected:?}", shape_of(id)));
                }
            }
        }
        Ok(match (behind, lost) {
            (true, _) => Outcome::Behind,
            (_, true) => Outcome::StripLost,
            _ => Outcome::Whole,
        })
    }

    /// Compares. Returns each strip as it was found to be.
    pub fn check(
        &self,
        found: &Recovered,
        data: &dyn ReadAt,
        contents: &mut Contents,
    ) -> Result<BTreeMap<StripId, StripModel>, String> {
        if !found.damage.is_none() {
            return Err(format!("damage is reported: {:?}", found.damage));
        }
        if found.head.position < self.log_position || found.index.incarnation.0 < self.incarnation {
            return Err(format!(
                "behind what was told: log position {} of {}, {} of {}",
                found.head.position, self.log_position, found.index.incarnation, self.incarnation
            ));
        }
        let none = StripModel::default();
        let mut settled = BTreeMap::new();
        let known = |id: &StripId| self.answered.contains_key(id) || self.under_way.contains_key(id);
        if let Some((id, _)) = found.index.iter_after(None).find(|(id, _)| !known(id)) {
            return Err(format!("{id} was never stored"));
        }
        for id in self.answered.keys().chain(self.under_way.keys()) {
            let strip = found.index.get(*id);
            let answered = self.answered.get(id).unwrap_or(&none);
            let under_way = self.under_way.get(id).map(Vec::as_slice).unwrap_or_default();
            let expected = std::iter::once(answered).chain(under_way);
            let model = expected.into_iter().find(|m| same_shape(strip, m)).ok_or_else(|| {
                format!("{id} is {:?}, answered {answered:?}, under way {under_way:?}", shape(strip))
            })?;
            if let Some(strip) = strip {
                for (v, content) in strip.versions().zip(model.adopted.iter().chain(&model.prepared)) {
                    same_content(*id, v, content, found, data, contents, false)?;
                }
            }
            settled.insert(*id, model.clone());
        }
        Ok(settled)
    }
}

fn shape(strip: Option<&Strip>) -> Option<(Option<Version>, Option<Version>, u64)> {
    strip.map(|s| {
        (s.adopted.as_ref().map(|v| v.version), s.prepared.as_ref().map(|v| v.version), s.sealed_below.0)
    })
}

fn same_shape(strip: Option<&Strip>, model: &StripModel) -> bool {
    let Some(s) = strip else { return *model == StripModel::default() };
    let same = |v: &Option<Ver>, m: &Option<Content>| match (v, m) {
        (None, None) => true,
        (Some(v), Some(m)) => {
            (v.version, v.len as usize, v.damaged) == (m.version, m.units.len() * UNIT, false)
        }
        _ => false,
    };
    same(&s.adopted, &model.adopted) && same(&s.prepared, &model.prepared) && s.sealed_below.0 == model.sealed
}

/// Whether a version's bytes are the expected ones. `Err`: they are not, though they match their CRCs
/// (or, unless `damage_is_known`, though they do not).
fn same_content(
    id: StripId,
    v: &Ver,
    content: &Content,
    found: &Recovered,
    data: &dyn ReadAt,
    contents: &mut Contents,
    damage_is_known: bool,
) -> Result<bool, String> {
    let salt = Salt::of(id);
    let mut bytes = [0; UNIT];
    for (unit, seed) in (0u32..).zip(&content.units) {
        let (expected, expected_crc) = contents.of(*seed);
        let crc = if let Some(p) = v.pending.iter().find(|p| p.unit == unit) {
            bytes.copy_from_slice(&p.bytes);
            p.crc
        } else if let Some(place) = unit_at(&v.map, unit) {
            data.read_at(&mut bytes, place * UNIT as u64).map_err(|e| e.to_string())?;
            found.crcs.get(salt, unit, place)
        } else {
            bytes.fill(0);
            zero_crc()
        };
        if damage_is_known && crc32c(&bytes) != crc {
            return Ok(false);
        }
        if bytes[..] != expected[..] || crc != expected_crc {
            let what = if bytes[..] == expected[..] { "CRC" } else { "bytes" };
            return Err(format!("{id} {}: wrong {what} in unit {unit}", v.version));
        }
    }
    Ok(true)
}

/// The bytes of seeds, made once.
#[derive(Default)]
pub(super) struct Contents(HashMap<u64, (Bytes, u32)>);

impl Contents {
    pub fn of(&mut self, seed: u64) -> (Bytes, u32) {
        let (bytes, crc) = self.0.entry(seed).or_insert_with(|| {
            let bytes = bytes_of(seed);
            let crc = crc32c(&bytes);
            (bytes, crc)
        });
        (bytes.clone(), *crc)
    }
}

pub(super) fn bytes_of(seed: u64) -> Bytes {
    if seed == 0 {
        return Bytes::from_static(&[0; UNIT]);
    }
    let mut random = Random::new(seed);
    (0..UNIT / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}
