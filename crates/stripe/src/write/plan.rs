//! A write as strips: which are touched, what each stores, what the parity is. Pure computation.
//!
//! A new block touches the data strips that have bytes, and all parity. A change touches the data strips
//! that are dirty, and all parity; the parity of a row is computed from that row of all K data strips,
//! which the caller brings. Untouched strips keep their versions; `covers` in the parity says which.

use base::{BufPool, StripSet, Version};
use bytes::Bytes;
use layout::Codec;
use wire::strip::{Range, VersionInfo};

use crate::{
    geometry::{self, Geometry},
    meta::BlockMeta,
    pieces::Pieces,
};

/// What one strip is to store.
#[derive(Clone, Debug)]
pub struct StripWrite {
    /// Version, touched set, length, covers.
    pub info: VersionInfo,
    /// `None`: `ranges` are the whole strip.
    pub base: Option<Version>,
    /// Where the payload goes.
    pub ranges: Vec<Range>,
    /// CRC-32C of each unit of the payload.
    pub crcs: Vec<u32>,
    /// The bytes.
    pub payload: Vec<Bytes>,
}

/// A whole write.
#[derive(Clone, Debug)]
pub struct WritePlan {
    /// The new version.
    pub version: Version,
    /// The strips it touches.
    pub touched: StripSet,
    /// For each strip of the stripe what it stores; `None` where it is not touched.
    pub strips: Vec<Option<StripWrite>>,
    /// Block ranges in which the block changes.
    pub dirty: Vec<Range>,
    /// The block after it.
    pub after: BlockMeta,
}

/// The write to plan: a [`WriteStripe`](super::WriteStripe) that keeps the rules, with what was there before it.
pub struct Change<'a> {
    /// The new version.
    pub version: Version,
    /// Stored bytes of the block after it.
    pub len: u32,
    /// What changes (block ranges).
    pub dirty: &'a [Range],
    /// The bytes; zeros between them.
    pub pieces: &'a Pieces,
    /// The block before it, completely known; `None` if it was not allocated.
    pub previous: Option<&'a BlockMeta>,
}

/// Plans a write.
pub fn plan(geometry: Geometry, codec: &Codec, pool: &BufPool, change: &Change<'_>) -> WritePlan {
    let k = geometry.k();
    let empty = BlockMeta::empty(k);
    let fresh = change.previous.is_none();
    let before = change.previous.unwrap_or(&empty);
    let len = change.len;

    let mut dirty = change.dirty.to_vec();
    if fresh {
        dirty = change.pieces.list().iter().map(|(o, b)| Range { offset: *o, len: b.len() as u32 }).collect();
    }
    if len < before.len {
        dirty.push(Range { offset: len, len: before.len - len }); // becomes zeros
    }
    geometry::normalise(&mut dirty);
    let dirty_strips = geometry.split(&dirty);

    // Data strips: their length after the write, and whether they are touched.
    let mut lens = vec![0; k];
    let mut touched = geometry.parity();
    for i in 0..k {
        let never_written = before.data[i] == Some(Version::ZERO);
        lens[i] = if never_written {
            change.pieces.end_within(geometry.start(i), geometry.strip_len.min(geometry.block_len()))
        } else {
            geometry.strip_stored(len, i)
        };
        let needed = if never_written { lens[i] > 0 } else { true };
        if geometry.replicated() || needed && !dirty_strips[i].is_empty() {
            touched.insert(base::StripIndex(i as u8));
        }
    }
    let parity_len =
        if fresh { lens.iter().copied().max().unwrap_or(0) } else { len.min(geometry.strip_len) };

    let mut after = before.clone();
    after.len = len;
    after.parity = Some(change.version);
    for i in touched.iter().filter(|i| usize::from(i.0) < k) {
        after.data[usize::from(i.0)] = Some(change.version);
    }

    let info = |len, covers| VersionInfo { version: change.version, touched, len, covers };
    let mut strips: Vec<Option<StripWrite>> = vec![None; geometry.width()];
    for i in 0..k {
        if !touched.contains(base::StripIndex(i as u8)) {
            continue;
        }
        let (base, ranges) = extent(lens[i], &dirty_strips[i], before.data[i]);
        let (payload, crcs) = change.pieces.payload(&ranges, geometry.start(i));
        strips[i] = Some(StripWrite { info: info(lens[i], Vec::new()), base, ranges, crcs, payload });
    }
    if geometry.replicated() {
        let copy = strips[0].clone();
        strips.fill(copy);
    } else {
        let rows = geometry::union(dirty_strips);
        let (base, ranges) = extent(parity_len, &rows, before.parity);
        let parity = encode(geometry, codec, pool, change.pieces, &ranges);
        for (i, (bytes, crcs)) in parity.into_iter().enumerate() {
            strips[k + i] = Some(StripWrite {
                info: info(parity_len, after.covers()),
                base,
                ranges: ranges.clone(),
                crcs,
                payload: if bytes.is_empty() { Vec::new() } else { vec![bytes] },
            });
        }
    }
    WritePlan { version: change.version, touched, strips, dirty, after }
}

/// Whether a strip of `len` bytes is written whole (no base) or in its dirty ranges.
fn extent(len: u32, dirty: &[Range], before: Option<Version>) -> (Option<Version>, Vec<Range>) {
    let ranges = geometry::clip(dirty, len);
    let nothing_there = before == Some(Version::ZERO);
    if nothing_there || geometry::covers_all(&ranges, len) {
        (None, if len == 0 { Vec::new() } else { vec![Range { offset: 0, len }] })
    } else {
        // An unknown version never matches: the pdisk says what it has, and gets the whole strip.
        (Some(before.unwrap_or(Version::ZERO)), ranges)
    }
}

/// Parity of `rows` (ranges of strips) for each parity strip: its bytes and their CRCs. `pieces` is the
/// block's content there.
pub fn encode(
    geometry: Geometry,
    codec: &Codec,
    pool: &BufPool,
    pieces: &Pieces,
    rows: &[Range],
) -> Vec<(Bytes, Vec<u32>)> {
    let k = geometry.k();
    let m = geometry.width() - k;
    let total = geometry::total(rows) as usize;
    if total == 0 {
        return vec![(Bytes::new(), Vec::new()); m];
    }
    let mut buffers: Vec<base::AlignedBuf> = (0..m).map(|_| pool.get(total)).collect();
    let mut filled = 0usize;
    for row in rows {
        let mut at = row.offset;
        while at < row.end() {
            let mut len = row.end() - at;
            for i in 0..k {
                len = pieces.run(geometry.start(i) + at, len).1;
            }
            let data: Vec<&[u8]> =
                (0..k).map(|i| pieces.run(geometry.start(i) + at, len).0.unwrap_or(&[])).collect();
            let mut out: Vec<&mut [u8]> =
                buffers.iter_mut().map(|b| &mut b[filled..filled + len as usize]).collect();
            if data.iter().all(|d| d.is_empty()) {
                out.iter_mut().for_each(|o| o.fill(0));
            } else {
                codec.encode(&data, &mut out);
            }
            filled += len as usize;
            at += len;
        }
    }
    let with_crcs = |buf: base::AlignedBuf| {
        let bytes = buf.freeze();
        let crcs = wire::crc::unit_crcs(&bytes).collect();
        (bytes, crcs)
    };
    buffers.into_iter().map(with_crcs).collect()
}
