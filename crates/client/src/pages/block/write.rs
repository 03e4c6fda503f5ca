//! Writing into a block: in memory of ours where it goes on from what was written before, otherwise in a new piece.

use base::units::UNIT;
use bytes::Bytes;

use super::Block;
use crate::pages::{
    piece::{Data, OwnBuf, PIECE_UNITS_MAX, Piece, State},
    pool::{Charge, charged},
};

impl Block {
    fn poison(&mut self, units: std::ops::Range<u32>) {
        for load in &mut self.loads {
            if load.units.iter().any(|u| u.start < units.end && units.start < u.end) {
                load.poisoned.push(units.clone());
            }
        }
    }

    /// First `Own` piece that starts at or after `unit`.
    fn next_own(&self, unit: u32) -> Option<u32> {
        self.pieces.range(unit..).find(|(_, p)| matches!(p.data, Data::Own { .. })).map(|(&s, _)| s)
    }

    /// Writes `data` at byte `offset`. Units covered in part that are absent count as zeros: the caller
    /// has loaded those that the pdisks hold. `memory(exact, wanted)` gives a buffer for at least
    /// `exact` units; more, up to `wanted`, is room for what follows.
    pub fn write(
        &mut self,
        offset: u32,
        data: &[u8],
        seq: u64,
        grow_units: u32,
        memory: &mut dyn FnMut(u32, u32) -> OwnBuf,
    ) {
        let end = offset + data.len() as u32;
        let (first, last) = (offset / UNIT as u32, end.div_ceil(UNIT as u32));
        self.poison(first..last);
        self.dirty_seq = seq;
        let mut pos = offset;
        while pos < end {
            let rest = &data[(pos - offset) as usize..];
            let done = match self.write_in_place(pos, rest) {
                0 => self.write_new(pos, rest, grow_units, memory),
                done => done,
            };
            pos += done as u32;
        }
    }

    /// The same for whole units, without a copy. `charge` stands for them.
    pub fn write_shared(&mut self, offset: u32, data: Bytes, seq: u64, charge: &mut Charge) {
        let (first, units) = (offset / UNIT as u32, (data.len() / UNIT) as u32);
        self.drop_units(first, first + units);
        self.dirty_seq = seq;
        let mut done = 0;
        while done < units {
            let start = first + done;
            let end = ((start / self.strip_units + 1) * self.strip_units).min(first + units);
            let bytes = data.slice(done as usize * UNIT..(end - first) as usize * UNIT);
            let charge = charge.split(bytes.len() as u64);
            let data = Data::Shared { bytes: charged(bytes, charge), tag: None };
            self.add(start, Piece { units: end - start, state: State::Dirty, data });
            done = end - first;
        }
    }

    /// Into an `Own` piece that holds the first unit, or ends right before it and has room.
    fn write_in_place(&mut self, pos: u32, data: &[u8]) -> usize {
        let unit = pos / UNIT as u32;
        let Some((&start, _)) = self.pieces.range(..=unit).next_back() else { return 0 };
        let next = self.pieces.range(start + 1..).next().map_or(u32::MAX, |(&s, _)| s);
        let Some(piece) = self.pieces.get_mut(&start) else { return 0 };
        let Data::Own { own, room } = &mut piece.data else { return 0 };
        let (old_units, limit) = (piece.units, (start + *room).min(next));
        if unit > start + old_units || unit >= limit {
            return 0;
        }
        let base = start as usize * UNIT;
        let len = data.len().min(limit as usize * UNIT - pos as usize);
        let (from, to) = (pos as usize - base, pos as usize - base + len);
        let valid = old_units as usize * UNIT;
        let buf = &mut own.buf[..];
        if from > valid {
            buf[valid..from].fill(0);
        }
        buf[from..to].copy_from_slice(&data[..len]);
        let new_units = to.div_ceil(UNIT);
        if new_units * UNIT > valid {
            buf[to..new_units * UNIT].fill(0);
            piece.units = new_units as u32;
            self.dirty_units += u64::from(piece.units - old_units);
        }
        len
    }

    /// Into a new piece that replaces what was there.
    fn write_new(
        &mut self,
        pos: u32,
        data: &[u8],
        grow_units: u32,
        memory: &mut dyn FnMut(u32, u32) -> OwnBuf,
    ) -> usize {
        let unit = pos / UNIT as u32;
        let strip_end = (unit / self.strip_units + 1) * self.strip_units;
        let next_own = self.next_own(unit).unwrap_or(u32::MAX);
        let wanted_end = (pos + data.len() as u32).div_ceil(UNIT as u32);
        let limit = strip_end.min(next_own).min(unit + PIECE_UNITS_MAX);
        let stop = wanted_end.min(limit);
        let exact = stop - unit;
        // Room only where nothing is: pieces behind would end it anyway.
        let free_end = self.pieces.range(stop..).next().map_or(limit, |(&s, _)| s.min(limit));
        let OwnBuf { mut buf, charge } = memory(exact, exact.max(grow_units).min(free_end.max(stop) - unit));
        let room = (buf.capacity() / UNIT) as u32;
        debug_assert!(room >= exact);
        buf.set_len(buf.capacity());
        let base = unit as usize * UNIT;
        let len = data.len().min(stop as usize * UNIT - pos as usize);
        let (from, to, valid) = (pos as usize - base, pos as usize - base + len, exact as usize * UNIT);
        if from > 0 {
            self.copy_unit(unit, &mut buf[..UNIT]);
        }
        if to < valid && (from == 0 || exact > 1) {
            self.copy_unit(stop - 1, &mut buf[valid - UNIT..valid]);
        }
        buf[from..to].copy_from_slice(&data[..len]);
        self.carve(unit, stop);
        let room = room.min(free_end.max(stop) - unit);
        let own = OwnBuf { buf, charge };
        self.add(unit, Piece { units: exact, state: State::Dirty, data: Data::Own { own, room } });
        len
    }

    fn copy_unit(&self, unit: u32, out: &mut [u8]) {
        match self.at(unit) {
            Some((start, Piece { data: Data::Shared { bytes, .. }, .. })) => {
                let from = (unit - start) as usize * UNIT;
                out.copy_from_slice(&bytes[from..from + UNIT]);
            }
            Some((start, Piece { data: Data::Own { own, .. }, .. })) => {
                let from = (unit - start) as usize * UNIT;
                out.copy_from_slice(&own.buf[from..from + UNIT]);
            }
            _ => out.fill(0),
        }
    }

    /// Makes units `from..to` zeros that must be written.
    pub fn zero_units(&mut self, from: u32, to: u32, seq: u64) {
        if from >= to {
            return;
        }
        self.drop_units(from, to);
        self.dirty_seq = seq;
        self.add(from, Piece { units: to - from, state: State::Dirty, data: Data::Zeros });
    }

    /// Forgets units `from..to`, dirty or not; what is on its way for them will not enter.
    pub fn drop_units(&mut self, from: u32, to: u32) {
        self.poison(from..to);
        self.carve(from, to);
    }

    /// Makes everything present dirty (a file moves out of its inode).
    pub fn make_dirty(&mut self, seq: u64) {
        let starts: Vec<u32> = self.pieces.keys().copied().collect();
        for start in starts {
            if let Some(mut piece) = self.take(start) {
                if piece.state == State::Clean {
                    piece.state = State::Dirty;
                }
                if let Data::Shared { tag, .. } = &mut piece.data {
                    *tag = None;
                }
                self.add(start, piece);
            }
        }
        self.dirty_seq = seq;
    }
}
