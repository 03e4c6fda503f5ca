//! One block of a file in memory: which of its 4 KiB units are here, and which are not yet stored.
//!
//! A block is a set of pieces that do not overlap. A piece is
//! - `Own`: memory of ours being filled by writes; always dirty, of one strip, may have room behind its last unit;
//! - `Shared`: read-only bytes, as received from a pdisk or frozen for a write;
//! - `Zeros`: known to be zeros, without memory but the block's own.
//!
//! Invariants: a clean unit equals what the pdisks hold, also beyond the end of the file. A frozen
//! piece is never changed: writing to it makes a new one. Pure data: no I/O, no locks, no waiting.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use base::units::UNIT;
use bytes::Bytes;
use stripe::BlockMeta;
use wire::strip::Range;

use super::{
    loading::{Load, LoadWait, subtract},
    piece::{Data, OwnBuf, PIECE_UNITS_MAX, Piece, State, ZERO_BYTES, zeros},
    pool::{BlockEntry, Charge, charged},
    queues::Tag,
};

/// Reads of an `Own` piece up to this many bytes are copied out; longer ones freeze it.
const COPY_MAX: usize = 64 << 10;

static IDS: AtomicU64 = AtomicU64::new(1);

/// Pieces frozen for one version.
pub(crate) struct Frozen {
    /// All dirty units at this time: rising, merged.
    pub dirty: Vec<Range>,
    /// Their bytes by offset; no piece crosses a strip boundary.
    pub pieces: Vec<(u32, Bytes)>,
    /// Everything written up to this number is in it.
    pub seq: u64,
}

/// See the file's head.
pub(crate) struct Block {
    pieces: BTreeMap<u32, Piece>,
    loads: Vec<Load>,
    strip_units: u32,
    dirty_pieces: usize,
    dirty_units: u64,
    /// The flush that is under way: a version being written, or content on its way into the inode.
    flush: Option<u64>,
    /// Number of the last write into it (numbers are the file's).
    pub dirty_seq: u64,
    /// All writes up to this number are stored.
    pub stored_seq: u64,
    /// The current version on the pdisks, where known.
    pub meta: Option<BlockMeta>,
    /// The pdisks hold this block's bytes up to here as they were at some time (what is dirty again below
    /// it is a newer content of stored bytes).
    pub stored_to: u32,
    /// Raw bytes of room set aside for what is dirty here.
    pub reserved: u64,
    /// Versions begun since the block is in memory.
    pub flush_starts: u32,
    /// Versions that failed.
    pub failures: u64,
    /// Its place in the page pool.
    pub entry: Option<BlockEntry>,
}

impl Block {
    pub fn new(strip_units: u32) -> Block {
        Block {
            pieces: BTreeMap::new(),
            loads: Vec::new(),
            strip_units: strip_units.max(1),
            dirty_pieces: 0,
            dirty_units: 0,
            flush: None,
            dirty_seq: 0,
            stored_seq: 0,
            meta: None,
            stored_to: 0,
            reserved: 0,
            flush_starts: 0,
            failures: 0,
            entry: None,
        }
    }

    /// Whether something is not stored and not being written.
    pub fn has_dirty(&self) -> bool {
        self.dirty_pieces > 0
    }
    /// Whether no unit is here.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
    /// Bytes of memory that hold what is not stored yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_units * UNIT as u64
    }
    /// Nothing here and nothing under way: can be forgotten.
    pub fn is_idle(&self) -> bool {
        self.pieces.is_empty() && self.loads.is_empty() && !self.flushing()
    }
    /// Whether all data from its first unit to `units` is dirty: the block can go out whole.
    pub fn dirty_up_to(&self, units: u32) -> bool {
        let mut next = 0;
        for (&start, piece) in &self.pieces {
            if start != next || piece.state != State::Dirty {
                break;
            }
            next = start + piece.units;
        }
        next >= units
    }

    /// Whether a flush is under way.
    pub fn flushing(&self) -> bool {
        self.flush.is_some()
    }
    /// Claims the block for one flush; the ticket proves it (the block may be dropped and made again
    /// before the flush gets its turn).
    pub fn begin_flush(&mut self) -> u64 {
        let ticket = IDS.fetch_add(1, Relaxed);
        self.flush = Some(ticket);
        ticket
    }
    /// Whether this flush holds the block.
    pub fn flush_is(&self, ticket: u64) -> bool {
        self.flush == Some(ticket)
    }
    /// The flush is over.
    pub fn end_flush(&mut self, ticket: u64) {
        if self.flush_is(ticket) {
            self.flush = None;
        }
    }

    fn add(&mut self, start: u32, piece: Piece) {
        debug_assert!(piece.units > 0);
        debug_assert!(
            self.missing(start, start + piece.units).first() == Some(&(start..start + piece.units)),
            "pieces do not overlap"
        );
        if let Data::Own { .. } = piece.data {
            debug_assert!(piece.state == State::Dirty, "what is frozen is not written to");
            let last = start + piece.units - 1;
            debug_assert!(start / self.strip_units == last / self.strip_units, "a piece has one strip");
        }
        self.dirty_pieces += usize::from(piece.state == State::Dirty);
        self.dirty_units += u64::from(piece.dirty_units());
        let old = self.pieces.insert(start, piece);
        debug_assert!(old.is_none());
    }

    fn take(&mut self, start: u32) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        self.dirty_pieces -= usize::from(piece.state == State::Dirty);
        self.dirty_units -= u64::from(piece.dirty_units());
        Some(piece)
    }

    /// The piece that holds `unit`.
    fn at(&self, unit: u32) -> Option<(u32, &Piece)> {
        let (&start, piece) = self.pieces.range(..=unit).next_back()?;
        (unit < start + piece.units).then_some((start, piece))
    }

    /// Removes units `from..to`, whatever they are.
    fn carve(&mut self, from: u32, to: u32) {
        let first = self.at(from).map_or(from, |(start, _)| start);
        let starts: Vec<u32> = self.pieces.range(first..to).map(|(&s, _)| s).collect();
        for start in starts {
            let Some(piece) = self.take(start) else { continue };
            let end = start + piece.units;
            if start >= from && end <= to {
                continue;
            }
            let piece = piece.freeze();
            if start < from {
                self.add(start, piece.cut(0, from - start));
            }
            if end > to {
                self.add(to, piece.cut(to - start, end - start));
            }
        }
    }

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

    /// Absent units of `from..to`, rising.
    pub fn missing(&self, from: u32, to: u32) -> Vec<std::ops::Range<u32>> {
        let mut gaps = Vec::new();
        let mut next = from;
        let first = self.at(from).map_or(from, |(start, _)| start);
        for (&start, piece) in self.pieces.range(first..to) {
            if start > next {
                gaps.push(next..start);
            }
            next = next.max(start + piece.units);
        }
        if next < to {
            gaps.push(next..to);
        }
        gaps
    }

    /// Appends bytes `from..to` to `out`; absent units count as zeros if `absent_is_zero`. False (and
    /// `out` as before) if something is absent.
    pub fn collect(&mut self, from: u32, to: u32, absent_is_zero: bool, out: &mut Vec<Bytes>) -> bool {
        let before = out.len();
        let mut pos = from;
        while pos < to {
            let unit = pos / UNIT as u32;
            let Some((start, piece)) = self.at(unit) else {
                if !absent_is_zero {
                    out.truncate(before);
                    return false;
                }
                let next = self.pieces.range(unit..).next().map_or(u32::MAX, |(&s, _)| s);
                let end = to.min(next.saturating_mul(UNIT as u32));
                zeros((end - pos) as usize, out);
                pos = end;
                continue;
            };
            let end = to.min((start + piece.units) * UNIT as u32);
            let slice = (pos - start * UNIT as u32) as usize..(end - start * UNIT as u32) as usize;
            match &piece.data {
                Data::Zeros => {
                    zeros(slice.len(), out);
                    if let Some(entry) = &self.entry {
                        entry.tag.used(pos, end);
                    }
                }
                Data::Shared { bytes, tag } => {
                    if let Some(tag) = tag {
                        tag.used(pos, end);
                    }
                    out.push(bytes.slice(slice));
                }
                Data::Own { own, .. } if slice.len() <= COPY_MAX => {
                    out.push(Bytes::copy_from_slice(&own.buf[slice]));
                }
                Data::Own { .. } => {
                    if let Some(piece) = self.take(start) {
                        self.add(start, piece.freeze());
                    }
                    continue;
                }
            }
            pos = end;
        }
        true
    }

    /// Freezes all that is dirty for the next version.
    pub fn freeze(&mut self) -> Frozen {
        let mut frozen = Frozen { dirty: Vec::new(), pieces: Vec::new(), seq: self.dirty_seq };
        let starts: Vec<u32> =
            self.pieces.iter().filter(|(_, p)| p.state == State::Dirty).map(|(&s, _)| s).collect();
        for start in starts {
            let Some(piece) = self.take(start) else { continue };
            let mut piece = piece.freeze();
            piece.state = State::Writing;
            push_range(&mut frozen.dirty, start, piece.units);
            self.piece_bytes(start, &piece, 0..piece.units, &mut frozen.pieces);
            self.add(start, piece);
        }
        frozen
    }

    /// Clean units within `ranges` as bytes (what parity needs beside the dirty ones); returns what is
    /// absent.
    pub fn clean_within(&self, ranges: &[Range], out: &mut Vec<(u32, Bytes)>) -> Vec<std::ops::Range<u32>> {
        let mut absent = Vec::new();
        for range in ranges {
            let (from, to) = (range.offset / UNIT as u32, range.end() / UNIT as u32);
            absent.extend(self.missing(from, to));
            let first = self.at(from).map_or(from, |(start, _)| start);
            for (&start, piece) in self.pieces.range(first..to) {
                if piece.state == State::Clean {
                    let (a, b) = (from.max(start), to.min(start + piece.units));
                    self.piece_bytes(start, piece, a - start..b - start, out);
                }
            }
        }
        absent
    }

    /// Units of a frozen piece as bytes, cut at strip boundaries.
    fn piece_bytes(
        &self,
        start: u32,
        piece: &Piece,
        units: std::ops::Range<u32>,
        out: &mut Vec<(u32, Bytes)>,
    ) {
        let mut unit = units.start;
        while unit < units.end {
            let strip_end = ((start + unit) / self.strip_units + 1) * self.strip_units - start;
            let mut end = units.end.min(strip_end);
            let bytes = match &piece.data {
                Data::Shared { bytes, .. } => bytes.slice(unit as usize * UNIT..end as usize * UNIT),
                _ => {
                    end = end.min(unit + (ZERO_BYTES.len() / UNIT) as u32);
                    ZERO_BYTES.slice(..(end - unit) as usize * UNIT)
                }
            };
            out.push(((start + unit) * UNIT as u32, bytes));
            unit = end;
        }
    }

    /// The version is complete: its units are clean unless they were written again. `tag(units, bytes)`
    /// makes the replacement entries.
    pub fn written(&mut self, frozen_seq: u64, tag: &mut dyn FnMut(std::ops::Range<u32>, u64) -> Arc<Tag>) {
        self.stored_seq = self.stored_seq.max(frozen_seq);
        self.settle(State::Clean, &mut |start, piece| {
            if let Data::Shared { tag: slot, .. } = &mut piece.data {
                *slot = Some(tag(start..start + piece.units, u64::from(piece.units) * UNIT as u64));
            }
        });
    }

    /// The version failed: its units are dirty again.
    pub fn not_written(&mut self) {
        self.settle(State::Dirty, &mut |_, _| {});
    }

    fn settle(&mut self, state: State, each: &mut dyn FnMut(u32, &mut Piece)) {
        let starts: Vec<u32> =
            self.pieces.iter().filter(|(_, p)| p.state == State::Writing).map(|(&s, _)| s).collect();
        for start in starts {
            if let Some(mut piece) = self.take(start) {
                piece.state = state;
                each(start, &mut piece);
                self.add(start, piece);
            }
        }
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
        let id = IDS.fetch_add(1, Relaxed);
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

    /// Drops the clean pieces with this tag.
    pub fn evict(&mut self, tag: &Arc<Tag>) {
        let first = self.at(tag.units.start).map_or(tag.units.start, |(start, _)| start);
        let starts: Vec<u32> = self
            .pieces
            .range(first..tag.units.end)
            .filter(|(_, p)| {
                let same = matches!(&p.data, Data::Shared { tag: Some(t), .. } if Arc::ptr_eq(t, tag));
                same && p.state == State::Clean
            })
            .map(|(&s, _)| s)
            .collect();
        starts.into_iter().for_each(|start| drop(self.take(start)));
    }

    /// Drops what is clean and known to be zeros, if this is the block's own tag; whether it is.
    pub fn evict_zeros(&mut self, tag: &Arc<Tag>) -> bool {
        if !self.entry.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.tag, tag)) {
            return false;
        }
        let zeros = |p: &Piece| p.state == State::Clean && matches!(p.data, Data::Zeros);
        let starts: Vec<u32> = self.pieces.iter().filter(|(_, p)| zeros(p)).map(|(&s, _)| s).collect();
        starts.into_iter().for_each(|start| drop(self.take(start)));
        true
    }

    /// The replacement entries of its clean pieces.
    pub fn tags(&self) -> Vec<Arc<Tag>> {
        let tag = |piece: &Piece| match &piece.data {
            Data::Shared { tag, .. } if piece.state == State::Clean => tag.clone(),
            _ => None,
        };
        self.pieces.values().filter_map(tag).collect()
    }

    /// Drops everything clean; returns how many bytes of memory that were.
    pub fn drop_clean(&mut self) -> u64 {
        let clean: Vec<u32> =
            self.pieces.iter().filter(|(_, p)| p.state == State::Clean).map(|(&s, _)| s).collect();
        let dropped = clean.into_iter().filter_map(|start| self.take(start));
        let units = dropped.map(|p| if matches!(p.data, Data::Zeros) { 0 } else { u64::from(p.units) });
        units.sum::<u64>() * UNIT as u64
    }

    /// Offset of the first unit that is not stored and reaches beyond byte `from`.
    pub fn first_unstored(&self, from: u32) -> Option<u32> {
        let found = self.pieces.iter().find(|(start, piece)| {
            piece.state != State::Clean && (**start + piece.units) * UNIT as u32 > from
        });
        found.map(|(&start, _)| (start * UNIT as u32).max(from / UNIT as u32 * UNIT as u32))
    }

    /// Ranges of units that hold data not known to be zeros.
    pub fn data_units(&self) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
        self.pieces
            .iter()
            .filter(|(_, p)| !matches!(p.data, Data::Zeros))
            .map(|(&start, p)| start..start + p.units)
    }
}

fn push_range(ranges: &mut Vec<Range>, start: u32, units: u32) {
    let (offset, len) = (start * UNIT as u32, units * UNIT as u32);
    match ranges.last_mut() {
        Some(last) if last.end() == offset => last.len += len,
        _ => ranges.push(Range { offset, len }),
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
