//! What a reader gets, and whether that is a loss.

use wire::map::PdiskState;

use super::{Content, K, Phase, State, Without};

impl State {
    /// What a reader gets with disk `lost` gone as well; `None` if it cannot be read.
    pub(super) fn read(&self, lost: Option<usize>, without: Without) -> Option<[Content; K]> {
        let map = self.map();
        let complete = self.writer.as_ref().map(|w| w.complete).unwrap_or_default();
        let current = |slot: usize| {
            let d = map.table[slot];
            let counts = map.states[d] == PdiskState::Ok
                || without == Without::ReadOnlyWhatCaughtUp && map.states[d] == PdiskState::Returning;
            if !counts || lost == Some(d) {
                return None;
            }
            let disk = &self.disks[d];
            let own = disk.prepared.as_ref().filter(|p| complete[slot] == Some(p.version));
            Some(own.or(disk.adopted.as_ref()))
        };
        let parity = current(K);
        let mut out = [0; K];
        for (slot, content) in out.iter_mut().enumerate() {
            *content = match current(slot) {
                Some(stored) => stored.map_or(0, |s| s.content),
                None => {
                    let Some(parity) = parity? else {
                        *content = 0;
                        continue;
                    };
                    let other = 1 - slot;
                    let held = current(other)?;
                    let agrees = held.map(|h| h.version) == parity.covers[other];
                    let sound = Some(parity.content) == self.content_of(K, parity.version)
                        && held.is_none_or(|h| Some(h.content) == self.content_of(other, h.version));
                    match (agrees, sound) {
                        (true, true) => parity.covers[slot].map_or(Some(0), |v| self.content_of(slot, v))?,
                        (false, _) => return None,
                        _ => 1, // bytes that never were
                    }
                }
            };
        }
        Some(out)
    }

    /// What is wrong now, if something is.
    pub fn loss(&self, without: Without) -> Option<String> {
        if self.phase != Phase::Writing {
            return None;
        }
        // While a write is under way a read may have to be repeated; what it gives counts all the same.
        let quiet = self.writer.as_ref().is_some_and(|w| w.write.is_none());
        let map = self.map();
        let gone: Vec<usize> =
            map.table.iter().copied().filter(|d| map.states[*d] != PdiskState::Ok).collect();
        let mut cases = vec![None];
        if gone.is_empty() {
            cases.extend(map.table.iter().map(|d| Some(*d)));
        }
        for lost in cases {
            match self.read(lost, without) {
                Some(found) => {
                    let fits = self.allowed.iter().any(|n| self.history[*n][..K] == found);
                    if !fits {
                        return Some(format!("read with {lost:?} lost gives what may not be: {found:?}"));
                    }
                }
                None if quiet => return Some(format!("cannot be read with {lost:?} lost")),
                None => {}
            }
        }
        None
    }
}
