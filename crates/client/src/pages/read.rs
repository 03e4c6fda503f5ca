//! Reading: from blocks in memory, from the pdisks for what is absent, zeros for holes.
//! A read takes no lock of the file across a wait; what is dirty here is what it sees.

use std::sync::Arc;

use base::{OpClass, start::Work, units::UNIT};
use bytes::Bytes;

use crate::{
    core::Core,
    error::Errno,
    files::{
        handle::{OpenFile, ReadData},
        inode::{Inode, Locked},
    },
    pages::{gone::Why, loading::LoadWait, piece::zeros},
};

/// Longest read in one call, bytes; longer ones come back short of it.
pub(crate) const READ_MAX: usize = 64 << 20;
/// Tries to get one block's units together before giving up (each finds them evicted again).
const TRIES_MAX: u32 = 1000;

/// A part of one block.
#[derive(Clone, Copy)]
struct Part {
    block: u64,
    from: u32,
    to: u32,
}

/// Cuts a byte range of a file into parts of blocks.
fn parts(offset: u64, end: u64, block_size: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut pos = offset;
    while pos < end {
        let block = pos / block_size;
        let stop = end.min((block + 1) * block_size);
        parts.push(Part { block, from: (pos % block_size) as u32, to: (stop - block * block_size) as u32 });
        pos = stop;
    }
    parts
}

enum Got {
    Bytes(Vec<Bytes>),
    /// `load` is to be begun when the file is no longer locked; without one all of it was on its way already.
    Wait {
        waits: Vec<Arc<LoadWait>>,
        load: Option<Work>,
    },
}

/// A read whose loads have begun: its parts, and their bytes where they were here.
pub(crate) struct Begun {
    parts: Vec<Part>,
    out: Vec<Vec<Bytes>>,
}

impl Core {
    /// Up to `len` bytes from `offset`; short only at the end of the file.
    pub async fn read(self: &Arc<Core>, file: &OpenFile, offset: u64, len: usize) -> Result<ReadData, Errno> {
        let inode = &file.inode;
        self.learn_blocks(inode, offset, offset.saturating_add(len.min(READ_MAX) as u64)).await?;
        let begun = self.begin_read(inode, offset, len);
        // After the loads of the read itself and before the wait for them.
        let passed = self.read_ahead(file, offset, len);
        let data = self.end_read(inode, begun).await?;
        self.passed(inode, passed);
        Ok(data)
    }

    /// The same without a handle and without reading ahead; which blocks there are has been learned.
    pub async fn read_inode(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        offset: u64,
        len: usize,
    ) -> Result<ReadData, Errno> {
        let begun = self.begin_read(inode, offset, len);
        self.end_read(inode, begun).await
    }

    /// One look for all parts: what is absent is asked for at once, over all blocks.
    fn begin_read(self: &Arc<Core>, inode: &Arc<Inode>, offset: u64, len: usize) -> Begun {
        let mut state = inode.lock();
        let end = offset.saturating_add(len.min(READ_MAX) as u64).min(state.attr.size);
        let parts = parts(offset, end, state.block_size());
        let (mut out, mut loads) = (Vec::with_capacity(parts.len()), Vec::new());
        for part in &parts {
            let here = state.block(part.block).is_some_and(|block| !block.is_idle());
            let (bytes, count) = match self.part(inode, &mut state, *part) {
                Got::Bytes(bytes) => (bytes, &self.pool.counts().hit),
                Got::Wait { load: None, .. } => (Vec::new(), &self.pool.counts().coming),
                Got::Wait { load: Some(load), .. } => {
                    loads.push(load);
                    let misses = &self.pool.counts().misses;
                    let why = match self.pool.gone().why(inode.ino, part.block) {
                        _ if here => &misses.part,
                        None => &misses.first,
                        Some(Why::Evicted) => &misses.evicted,
                        Some(Why::GivenUp) => &misses.given_up,
                    };
                    why.add(u64::from(part.to - part.from));
                    (Vec::new(), &self.pool.counts().miss)
                }
            };
            count.add(u64::from(part.to - part.from));
            out.push(bytes);
        }
        drop(state);
        loads.into_iter().for_each(|load| self.begin(load));
        Begun { parts, out }
    }

    async fn end_read(self: &Arc<Core>, inode: &Arc<Inode>, begun: Begun) -> Result<ReadData, Errno> {
        let Begun { parts, mut out } = begun;
        for (number, part) in parts.into_iter().enumerate() {
            let (mut part, mut tries) = (part, 0);
            while out[number].is_empty() {
                let (got, cut) = {
                    let mut state = inode.lock();
                    // The file may have been cut since: what the pdisks have beyond its end is anything.
                    let end =
                        state.attr.size.saturating_sub(part.block * state.block_size()).min(part.to.into());
                    let cut = end < part.to.into();
                    part.to = end as u32;
                    if part.to <= part.from {
                        out.truncate(number);
                        return Ok(ReadData::new(out.concat()));
                    }
                    (self.part(inode, &mut state, part), cut)
                };
                if cut {
                    out.truncate(number + 1);
                }
                match got {
                    Got::Bytes(got) => out[number] = got,
                    Got::Wait { waits, load } => {
                        load.into_iter().for_each(|load| self.begin(load));
                        self.wait_loads(waits).await?;
                    }
                }
                tries += 1;
                if tries > TRIES_MAX {
                    tracing::error!(inode = %inode.ino, block = part.block, "page pool too small for a read");
                    return Err(Errno::EIO);
                }
            }
            if out.len() == number + 1 {
                break;
            }
        }
        Ok(ReadData::new(out.concat()))
    }

    fn part(self: &Arc<Core>, inode: &Arc<Inode>, state: &mut Locked<'_>, part: Part) -> Got {
        let on_disk = state.on_disk(part.block);
        let mut bytes = Vec::new();
        if state.block(part.block).is_none() && !on_disk {
            zeros((part.to - part.from) as usize, &mut bytes);
            return Got::Bytes(bytes);
        }
        if state.edit(part.block, |b| b.collect(part.from, part.to, !on_disk, &mut bytes)) {
            return Got::Bytes(bytes);
        }
        let units = part.from / UNIT as u32..part.to.div_ceil(UNIT as u32);
        let (waits, load) = self.prepare_load(inode, state, part.block, units, OpClass::Read);
        Got::Wait { waits, load }
    }

    /// Bytes that are all in memory, without any wait.
    pub fn try_read_cached(self: &Arc<Core>, file: &OpenFile, offset: u64, len: usize) -> Option<ReadData> {
        let mut out = Vec::new();
        {
            let mut state = file.inode.lock();
            let end = offset.saturating_add(len.min(READ_MAX) as u64).min(state.attr.size);
            if !state.knows(offset, end) || state.is_unsure(self.patience()) {
                return None;
            }
            let parts = parts(offset, end, state.block_size());
            // Of several nothing counts as used before all are here: who gets nothing comes again.
            let is_here = |part: &Part| match state.block(part.block) {
                Some(block) => {
                    let (from, to) = (part.from / UNIT as u32, part.to.div_ceil(UNIT as u32));
                    !state.on_disk(part.block) || block.missing(from, to).is_empty()
                }
                None => !state.on_disk(part.block),
            };
            if parts.len() > 1 && !parts.iter().all(is_here) {
                return None;
            }
            for part in parts {
                let on_disk = state.on_disk(part.block);
                if state.block(part.block).is_none() {
                    if on_disk {
                        return None;
                    }
                    zeros((part.to - part.from) as usize, &mut out);
                } else if !state.edit(part.block, |b| b.collect(part.from, part.to, !on_disk, &mut out)) {
                    return None;
                }
            }
        }
        let data = ReadData::new(out);
        self.pool.counts().hit.add(data.len() as u64);
        let passed = self.read_ahead(file, offset, data.len());
        self.passed(&file.inode, passed);
        Some(data)
    }
}
