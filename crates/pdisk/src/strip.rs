//! One strip with its versions, as the index holds it and as a checkpoint writes it down.

use base::{Grant, GroupId, PoolId, StripId, StripSet, Version, units::UNIT};
use bytes::Bytes;
use wire::strip::{StripState, VersionInfo};

use crate::{
    codec::{Decoded, Malformed, Reader, Writer},
    extent::{Extent, released, unit_at},
    record::check_map,
};

/// A unit whose bytes are in the log and in memory, but not yet at their place in the data file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    pub unit: u32,
    pub crc: u32,
    /// The record that brought it.
    pub rsn: u64,
    pub bytes: Bytes,
}

/// One version of a strip.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ver {
    pub version: Version,
    pub touched: StripSet,
    pub len: u32,
    pub covers: Box<[Option<Version>]>,
    pub map: Box<[Extent]>,
    /// By unit, rising. They lie over the map.
    pub pending: Vec<Pending>,
    /// The record that made this version.
    pub rsn: u64,
    /// Holds bytes of the version it was based on.
    pub derived: bool,
    /// Some bytes are known to be damaged.
    pub damaged: bool,
}

impl Ver {
    pub fn info(&self) -> VersionInfo {
        VersionInfo {
            version: self.version,
            touched: self.touched,
            len: self.len,
            covers: self.covers.to_vec(),
        }
    }
}

/// What the allocator adds to the allocations of one version, and the lists take of a strip in all: a tree's nodes
/// may be half empty, for which a strip itself is counted twice.
const ALLOCATIONS: usize = 48;
const LISTS: usize = 2 * (size_of::<(PoolId, GroupId, StripId)>() + size_of::<StripId>());

/// One strip. Without a version it is a tombstone: the seal alone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Strip {
    pub pool: PoolId,
    pub group: GroupId,
    pub sealed_below: Grant,
    pub adopted: Option<Ver>,
    pub prepared: Option<Ver>,
    /// The last record that changed it.
    pub rsn: u64,
}

impl Strip {
    pub fn state(&self, strip: StripId) -> StripState {
        StripState {
            strip,
            pool: self.pool,
            group: self.group,
            adopted: self.adopted.as_ref().map(Ver::info),
            prepared: self.prepared.as_ref().map(Ver::info),
            sealed_below: self.sealed_below,
            lost: self.adopted.as_ref().is_some_and(|v| v.damaged),
        }
    }
    pub fn versions(&self) -> impl Iterator<Item = &Ver> {
        self.adopted.iter().chain(&self.prepared)
    }
    pub fn version(&self, version: Version) -> Option<&Ver> {
        self.versions().find(|v| v.version == version)
    }
    pub fn extents(&self) -> Vec<Extent> {
        self.versions().flat_map(|v| v.map.iter().copied()).filter(|e| !e.is_hole()).collect()
    }
    /// Every extent of its versions, once.
    pub fn own_extents(&self) -> Vec<Extent> {
        match (&self.adopted, &self.prepared) {
            (Some(_), Some(_)) => released(&self.extents(), &[]),
            _ => self.extents(),
        }
    }
    pub fn pending_bytes(&self) -> usize {
        self.versions().map(|v| v.pending.len() * UNIT).sum()
    }
    /// Bytes of memory it takes in the index with all that is derived from it, an upper bound; the bytes of
    /// pending units are counted apart. None for a strip that is not there.
    pub fn memory(&self) -> usize {
        if self.listed() == Listed::default() {
            return 0;
        }
        let heap = |v: &Ver| {
            v.map.len() * size_of::<Extent>()
                + v.covers.len() * size_of::<Option<Version>>()
                + v.pending.capacity() * size_of::<Pending>()
                + ALLOCATIONS
        };
        size_of::<(StripId, Strip)>() * 2 + LISTS + self.versions().map(heap).sum::<usize>()
    }
    /// Bytes of it in a checkpoint (see [`encode_strip`]), an upper bound, without those of pending units.
    pub fn encoded_max(&self) -> usize {
        let one = |v: &Ver| 64 + 17 * v.covers.len() + 8 * v.map.len() + 14 * v.pending.len();
        if self.listed() == Listed::default() { 0 } else { 64 + self.versions().map(one).sum::<usize>() }
    }
    pub fn adopt(&mut self) {
        self.adopted = self.prepared.take();
    }
    pub fn listed(&self) -> Listed {
        let stored = self.versions().next().is_some();
        Listed {
            group: stored.then_some((self.pool, self.group)),
            prepared: self.prepared.is_some(),
            tombstone: !stored && self.sealed_below > Grant(0),
        }
    }
}

/// Which lists a strip is in; in none: there is no such strip.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Listed {
    pub group: Option<(PoolId, GroupId)>,
    pub prepared: bool,
    pub tombstone: bool,
}

/// Layout: docs/format-pdisk.md "Strips in a checkpoint".
pub(crate) fn encode_strip(id: StripId, s: &Strip, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    w.strip(id);
    w.u32(s.pool.0);
    w.u32(s.group.0);
    w.u64(s.sealed_below.0);
    w.u64(s.rsn);
    w.u8(u8::from(s.adopted.is_some()) | u8::from(s.prepared.is_some()) << 1);
    for v in s.versions() {
        w.version(v.version);
        w.u32(v.touched.0);
        w.u32(v.len);
        w.covers(&v.covers);
        w.u64(v.rsn);
        w.u8(u8::from(v.derived) | u8::from(v.damaged) << 1);
        w.len(v.map.len());
        for e in &v.map {
            w.u64(e.packed());
        }
        w.len(v.pending.len());
        for p in &v.pending {
            w.u16(p.unit as u16);
            w.u32(p.crc);
            w.u64(p.rsn);
            w.bytes(&p.bytes);
        }
    }
}

pub(crate) fn decode_strip(r: &mut Reader<'_>, units: u64) -> Decoded<(StripId, Strip)> {
    let id = r.strip()?;
    let mut s = Strip {
        pool: r.pool()?,
        group: r.group()?,
        sealed_below: Grant(r.u64()?),
        rsn: r.u64()?,
        ..Strip::default()
    };
    let present = r.u8()?;
    if present & 1 != 0 {
        s.adopted = Some(decode_ver(r, units)?);
    }
    if present & 2 != 0 {
        s.prepared = Some(decode_ver(r, units)?);
    }
    if present > 3 { Err(Malformed) } else { Ok((id, s)) }
}

fn decode_ver(r: &mut Reader<'_>, units: u64) -> Decoded<Ver> {
    let info = r.info()?;
    let rsn = r.u64()?;
    let flags = r.u8()?;
    let map = r.list(8, |r| Extent::from_packed(r.u64()?, units).ok_or(Malformed))?;
    check_map(&map, info.len)?;
    let pending = r.list(UNIT, |r| {
        let (unit, crc, rsn) = (u32::from(r.u16()?), r.u32()?, r.u64()?);
        Ok(Pending { unit, crc, rsn, bytes: Bytes::copy_from_slice(r.take(UNIT)?) })
    })?;
    let rising = pending.windows(2).all(|w| w[0].unit < w[1].unit);
    let placed = pending.iter().all(|p| unit_at(&map, p.unit).is_some());
    if flags > 3 || !rising || !placed {
        return Err(Malformed);
    }
    Ok(Ver {
        version: info.version,
        touched: info.touched,
        len: info.len,
        covers: info.covers.into(),
        map: map.into(),
        pending,
        rsn,
        derived: flags & 1 != 0,
        damaged: flags & 2 != 0,
    })
}
