//! Loads of a block: what is on its way is known, and enters where nothing was written or dropped since.

use std::sync::Arc;

use base::units::UNIT;
use bytes::Bytes;

use super::{Block, kept::new_id};
use crate::pages::{
    loading::{Load, LoadWait, subtract},
    piece::{Data, Piece, State},
    queues::Tag,
};

/// Units between two that are written in part, or behind those that came in at once, where a writer goes forward record by record: at most.
const EDGE_STEP: u32 = 256;
/// So many such steps are believed.
const EDGE_STEPS: u8 = 3;

impl Block {
    /// Notes a unit that has to come in because it is written in part, and gives what is to come in with it: that unit, or up to `several`
    /// before `end`, if its writer goes forward record by record beside records that are there.
    pub fn edge(&mut self, unit: u32, several: u32, end: u32) -> std::ops::Range<u32> {
        let (last, steps) = self.edge;
        let forward = unit > last && unit - last <= EDGE_STEP;
        let steps = if forward { steps.saturating_add(1) } else { 0 };
        let units = unit..if steps >= EDGE_STEPS {
            end.min(unit.saturating_add(several)).max(unit + 1)
        } else {
            unit + 1
        };
        self.edge = (units.end - 1, steps);
        units
    }

    /// Waits of loads that cover something of `from..to`, and what neither is here nor on its way.
    pub fn loading(&self, from: u32, to: u32) -> (Vec<Arc<LoadWait>>, Vec<std::ops::Range<u32>>) {
        let mut waits = Vec::new();
        let mut gaps = self.missing(from, to);
        for load in &self.loads {
            let mut rest = Vec::new();
            let mut covers = false;
            for gap in gaps {
                let left = subtract(gap.clone(), &load.units);
                covers |= left.len() != 1 || left[0] != gap;
                rest.extend(left);
            }
            gaps = rest;
            if covers {
                waits.push(load.wait.clone());
            }
        }
        (waits, gaps)
    }

    /// Notes a load; its id goes to [`Block::loaded`].
    pub fn begin_load(&mut self, units: Vec<std::ops::Range<u32>>) -> (u64, Arc<LoadWait>) {
        let id = new_id();
        let wait = Arc::new(LoadWait::default());
        self.loads.push(Load { id, units, poisoned: Vec::new(), wait: wait.clone() });
        (id, wait)
    }

    /// Whether load `id` was begun for this block, and has not ended.
    pub fn awaits(&self, id: u64) -> bool {
        self.loads.iter().any(|load| load.id == id)
    }

    /// A load has ended. With `pieces`, its units enter where nothing is and nothing was written since;
    /// what the load asked for and did not get is zeros.
    pub fn loaded(
        &mut self,
        id: u64,
        pieces: Option<Vec<(u32, Bytes)>>,
        tag: &mut dyn FnMut(std::ops::Range<u32>, u64) -> Arc<Tag>,
    ) -> bool {
        let Some(at) = self.loads.iter().position(|l| l.id == id) else { return false };
        let load = self.loads.swap_remove(at);
        let Some(pieces) = pieces else { return true };
        for (offset, bytes) in pieces {
            let start = offset / UNIT as u32;
            let units = start..start + (bytes.len() / UNIT) as u32;
            let fresh = self.fresh(units.clone(), &load.poisoned);
            if fresh.is_empty() {
                continue;
            }
            let tag = tag(units.clone(), bytes.len() as u64);
            for part in fresh {
                let cut = (part.start - start) as usize * UNIT..(part.end - start) as usize * UNIT;
                let data = Data::Shared { bytes: bytes.slice(cut), tag: Some(tag.clone()) };
                self.add(part.start, Piece { units: part.end - part.start, state: State::Clean, data });
            }
        }
        for units in load.units {
            for part in self.fresh(units, &load.poisoned) {
                let piece = Piece { units: part.end - part.start, state: State::Clean, data: Data::Zeros };
                self.add(part.start, piece);
            }
        }
        true
    }

    /// Parts of `units` that are absent and not poisoned.
    fn fresh(
        &self,
        units: std::ops::Range<u32>,
        poisoned: &[std::ops::Range<u32>],
    ) -> Vec<std::ops::Range<u32>> {
        self.missing(units.start, units.end).into_iter().flat_map(|gap| subtract(gap, poisoned)).collect()
    }
}
