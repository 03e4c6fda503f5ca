//! The log: a ring of groups. One group is what one flush made durable: the records of many
//! operations, and the bytes of small writes. A group is written only after the group before it is
//! durable; so a valid group proves that all before it were whole once, and only the last can be torn.
//!
//! A position counts bytes since the pdisk was made and never wraps; `position % ring` is the place in
//! the ring. Group (docs/format-pdisk.md "Groups"), a multiple of 4096 bytes:
//! ```text
//! header (96), meta, payload, zeros, meta again, header again in the last 96 bytes
//! header: 0 "RWLG"  4 u16 format  6 u16 0  8 uuid[16]  24 u64 position  32 u64 sequence
//!   40 u64 first record number  48 u64 group bytes  56 u32 records  60 u32 meta bytes
//!   64 u64 payload bytes  72 u32 CRC of meta  76 u32 header CRC of the group before
//!   80 u64 0  88 u32 0  92 u32 CRC-32C of bytes 0..92
//! ```
//! **The last group.** Its bytes in the data file are flushed together with it, so that a power cut can leave it without them. Recovery
//! compares them, and takes a group that lacks one for torn. That is right only if they stay as the group left them for as long
//! as it is the last: nothing that a record of it frees, or lets go to its place, is used before the next group is durable
//! (`State::firm`).
//!
//! Header and meta stand there twice, in different units, so that one damaged place loses nothing; a
//! damaged payload unit is told by its record's CRC and costs that strip's version only.

use std::{io, path::Path};

use base::{AlignedBuf, units::UNIT};
use bytes::Bytes;
use wire::crc::crc32c;

use crate::{
    codec::{Decoded, FORMAT, Malformed, Reader, Writer},
    error::PdiskError,
    extent::pieces,
    record::{Put, Record},
};

pub(crate) const HEADER: usize = 96;
const MAGIC: &[u8; 4] = b"RWLG";
/// Bytes of the data file read at once.
const READ_MAX: usize = 1 << 20;
/// Offset of the ring in the log file.
pub(crate) const LOG_RING: u64 = UNIT as u64;

/// A place in the log between two groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LogPoint {
    /// Position of the next group.
    pub position: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// Header CRC of the group before it.
    pub chain: u32,
}

/// The most bytes of one group in a ring of `ring` bytes.
pub(crate) fn group_max(ring: u64) -> usize {
    (ring / 4).min(8 << 20) as usize / UNIT * UNIT
}

/// Bytes a group takes: the second copy begins in a later unit than the first ends.
pub(crate) fn group_len(meta: usize, payload: usize) -> usize {
    let copy = HEADER + meta;
    (copy + payload.max(copy.next_multiple_of(UNIT) - copy) + copy).next_multiple_of(UNIT)
}

/// Builds a group in `group`, which is as long as [`group_len`] says. Returns the point after it.
pub(crate) fn encode_group(
    at: LogPoint,
    uuid: &[u8; 16],
    first_rsn: u64,
    records: u32,
    meta: &[u8],
    payload: &[Bytes],
    group: &mut [u8],
) -> LogPoint {
    let payload_len: usize = payload.iter().map(Bytes::len).sum();
    let len = group.len();
    assert_eq!(len, group_len(meta.len(), payload_len), "length of a group");
    assert!(at.position.is_multiple_of(UNIT as u64), "position of a group");
    let mut header = Vec::with_capacity(HEADER);
    let mut w = Writer(&mut header);
    w.bytes(MAGIC);
    w.u16(FORMAT);
    w.u16(0);
    w.bytes(uuid);
    w.u64(at.position);
    w.u64(at.sequence);
    w.u64(first_rsn);
    w.u64(len as u64);
    w.u32(records);
    w.u32(meta.len() as u32);
    w.u64(payload_len as u64);
    w.u32(crc32c(meta));
    w.u32(at.chain);
    w.u64(0);
    w.u32(0);
    let crc = crc32c(&header);
    header.extend_from_slice(&crc.to_le_bytes());

    let (mut front, back) = group.split_at_mut(len - HEADER - meta.len());
    for bytes in [&header[..], meta].into_iter().chain(payload.iter().map(|b| &b[..])) {
        let (to, rest) = front.split_at_mut(bytes.len());
        to.copy_from_slice(bytes);
        front = rest;
    }
    front.fill(0);
    back[..meta.len()].copy_from_slice(meta);
    back[meta.len()..].copy_from_slice(&header);
    LogPoint { position: at.position + len as u64, sequence: at.sequence + 1, chain: crc }
}

/// A group's header, its own CRC verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub position: u64,
    pub sequence: u64,
    pub first_rsn: u64,
    pub len: u64,
    pub records: u32,
    meta: usize,
    payload: usize,
    meta_crc: u32,
    chain: u32,
    crc: u32,
}

impl Header {
    fn decode(bytes: &[u8], uuid: &[u8; 16], ring: u64) -> Decoded<Header> {
        let bytes = bytes.get(..HEADER).ok_or(Malformed)?;
        let mut r = Reader(bytes);
        if r.take(4)? != MAGIC || r.u16()? != FORMAT || r.u16()? != 0 || r.take(16)? != uuid {
            return Err(Malformed);
        }
        let header = Header {
            position: r.u64()?,
            sequence: r.u64()?,
            first_rsn: r.u64()?,
            len: r.u64()?,
            records: r.u32()?,
            meta: r.u32()? as usize,
            payload: usize::try_from(r.u64()?).map_err(|_| Malformed)?,
            meta_crc: r.u32()?,
            chain: r.u32()?,
            crc: crc32c(&bytes[..HEADER - 4]),
        };
        if bytes[HEADER - 4..] != header.crc.to_le_bytes() || header.payload as u64 > ring {
            return Err(Malformed);
        }
        if header.len != group_len(header.meta, header.payload) as u64 || header.len > group_max(ring) as u64
        {
            return Err(Malformed);
        }
        Ok(header)
    }

    fn after(&self) -> LogPoint {
        LogPoint { position: self.position + self.len, sequence: self.sequence + 1, chain: self.crc }
    }
}

/// Reads at an offset of a file or of an image of one.
pub(crate) trait ReadAt {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    fn size(&self) -> io::Result<u64>;
}

/// The ring of a log file, read through a window so that small groups cost no read each.
pub(crate) struct Ring<'a> {
    pub file: &'a dyn ReadAt,
    pub path: &'a Path,
    pub uuid: [u8; 16],
    pub bytes: u64,
    window: AlignedBuf,
    window_at: Option<u64>,
}

impl<'a> Ring<'a> {
    pub fn new(file: &'a dyn ReadAt, path: &'a Path, uuid: [u8; 16], bytes: u64) -> Ring<'a> {
        let window = AlignedBuf::zeroed((bytes as usize / 8 / UNIT * UNIT).clamp(UNIT, 1 << 20));
        Ring { file, path, uuid, bytes, window, window_at: None }
    }

    /// Bytes of the log from `position` on.
    fn read(&mut self, position: u64, out: &mut [u8]) -> io::Result<()> {
        let window = self.window.len() as u64;
        let mut done = 0;
        while done < out.len() {
            let place = (position + done as u64) % self.bytes;
            let start = place / window * window;
            let n = window.min(self.bytes - start);
            if self.window_at != Some(start) {
                self.window_at = None;
                self.file.read_at(&mut self.window[..n as usize], LOG_RING + start)?;
                self.window_at = Some(start);
            }
            let from = (place - start) as usize;
            let take = (n as usize - from).min(out.len() - done);
            out[done..done + take].copy_from_slice(&self.window[from..from + take]);
            done += take;
        }
        Ok(())
    }

    fn header(&mut self, position: u64, copy_end: Option<u64>) -> Result<Option<Header>, PdiskError> {
        let mut bytes = [0; HEADER];
        let from = copy_end.map_or(position, |end| end - HEADER as u64);
        self.read(from, &mut bytes).map_err(PdiskError::io("read", self.path))?;
        let header = Header::decode(&bytes, &self.uuid, self.bytes).ok();
        Ok(header.filter(|h| h.position == position))
    }

    /// Position of the next whole-looking header after `from` that continues the log at a higher sequence.
    fn later(&mut self, from: LogPoint) -> Result<Option<Header>, PdiskError> {
        let unit = UNIT as u64;
        let max = (group_max(self.bytes) as u64).min(self.bytes - unit);
        for position in (from.position + unit..=from.position + max).step_by(UNIT) {
            if let Some(h) = self.header(position, None)?
                && h.sequence == from.sequence + 1
            {
                return Ok(Some(h));
            }
        }
        Ok(None)
    }

    /// The group at `at`, or `None` at the log's end (nothing, or a torn group). A group that is damaged,
    /// though a later one proves that it was whole, is an error unless its copies still tell it all.
    pub fn group(&mut self, at: LogPoint, units: u64) -> Result<Option<Group>, PdiskError> {
        let follows = |h: &Header| h.sequence == at.sequence && h.chain == at.chain;
        let header = self.header(at.position, None)?.filter(follows);
        if let Some(header) = header {
            let bytes = self.body(&header)?;
            if let Some(group) = parse(&header, &bytes, units)
                && (group.whole
                    || self
                        .header(header.after().position, None)?
                        .is_some_and(|next| follows_on(&header, &next)))
            {
                return Ok(Some(group));
            }
            return self.damaged_or_end(at, units);
        }
        self.damaged_or_end(at, units)
    }

    fn damaged_or_end(&mut self, at: LogPoint, units: u64) -> Result<Option<Group>, PdiskError> {
        let Some(next) = self.later(at)? else { return Ok(None) };
        if let Some(header) = self.header(at.position, Some(next.position))?
            && header.sequence == at.sequence
            && follows_on(&header, &next)
        {
            let bytes = self.body(&header)?;
            if let Some(group) = parse(&header, &bytes, units) {
                return Ok(Some(group));
            }
        }
        let what = format!("the group at position {} is unreadable, later ones are not", at.position);
        Err(PdiskError::damaged(self.path, what))
    }

    fn body(&mut self, header: &Header) -> Result<Vec<u8>, PdiskError> {
        let mut bytes = vec![0; header.len as usize];
        self.read(header.position, &mut bytes).map_err(PdiskError::io("read", self.path))?;
        Ok(bytes)
    }
}

fn follows_on(group: &Header, next: &Header) -> bool {
    let after = group.after();
    (next.position, next.sequence, next.chain) == (after.position, after.sequence, after.chain)
}

/// A group as read.
pub(crate) struct Group {
    pub position: u64,
    pub sequence: u64,
    pub first_rsn: u64,
    /// The records, each with its inline bytes and whether these are as they were written.
    pub records: Vec<(Record, Bytes, bool)>,
    pub after: LogPoint,
    /// Every copy and every CRC matches.
    pub whole: bool,
}

impl Group {
    /// The last group: whether the bytes are there that its records name in the data file.
    pub fn is_in(&self, data: &dyn ReadAt) -> bool {
        self.records.iter().all(|(record, ..)| match record {
            Record::Put(put) if !put.inline => is_there(put, data),
            _ => true,
        })
    }
}

/// Whether the units that a record has written are at their places. What cannot be read cannot be told from what was never written.
fn is_there(put: &Put, data: &dyn ReadAt) -> bool {
    let step = READ_MAX / UNIT;
    let mut buf = AlignedBuf::zeroed(put.crcs.len().min(step) * UNIT);
    let mut crcs = put.crcs.iter();
    let mut there = |place: u64, units: u64| {
        buf.set_len(units as usize * UNIT);
        let read = data.read_at(&mut buf, place * UNIT as u64);
        read.is_ok() && buf.chunks_exact(UNIT).all(|unit| crcs.next() == Some(&crc32c(unit)))
    };
    put.runs.iter().flat_map(|run| pieces(&put.map, run.first..run.end())).all(|(_, e)| {
        !e.is_hole()
            && (e.start()..e.end()).step_by(step).all(|at| there(at, (e.end() - at).min(step as u64)))
    })
}

/// `None` if neither copy of the meta is good.
fn parse(header: &Header, bytes: &[u8], units: u64) -> Option<Group> {
    let (meta, payload) = (header.meta, header.payload);
    let second = bytes.len() - HEADER - meta;
    let copies = [&bytes[HEADER..HEADER + meta], &bytes[second..second + meta]];
    let good = copies.map(|c| crc32c(c) == header.meta_crc);
    let meta = copies[good.iter().position(|g| *g)?];
    let tail = &bytes[bytes.len() - HEADER..];
    let mut whole = good == [true, true] && tail[HEADER - 4..] == header.crc.to_le_bytes();
    whole = whole && bytes[..HEADER - 4] == tail[..HEADER - 4] && crc32c(&bytes[..HEADER - 4]) == header.crc;

    let payload = Bytes::copy_from_slice(&bytes[HEADER + header.meta..][..payload]);
    let mut r = Reader(meta);
    let mut records = Vec::new();
    let mut at = 0;
    for _ in 0..header.records {
        let record = Record::decode(&mut r, units).ok()?;
        let (mut inline, mut intact) = (Bytes::new(), true);
        if let Record::Put(put) = &record {
            let end = at + put.inline_len();
            if end > payload.len() {
                return None;
            }
            inline = payload.slice(at..end);
            intact = inline.chunks_exact(UNIT).zip(&put.crcs).all(|(unit, crc)| crc32c(unit) == *crc);
            at = end;
        }
        whole &= intact;
        records.push((record, inline, intact));
    }
    r.end().ok()?;
    (at == payload.len()).then(|| Group {
        position: header.position,
        sequence: header.sequence,
        first_rsn: header.first_rsn,
        records,
        after: header.after(),
        whole,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mutate::mutated, record::tests::samples};
    use base::{BlockIndex, FsId, Grant, InodeNo, StripIndex, StripeId, Version};

    struct Image(Vec<u8>);

    impl ReadAt for Image {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
            Ok(())
        }
        fn size(&self) -> io::Result<u64> {
            Ok(self.0.len() as u64)
        }
    }

    /// Made by another program from docs/format-pdisk.md.
    #[test]
    fn golden_group() {
        let stripe = StripeId { fs: FsId(1), inode: InodeNo(2), block: BlockIndex(3) };
        let adopt = Record::Adopt {
            strip: stripe.strip(StripIndex(4)),
            version: Version { grant: Grant(5), seq: 6 },
        };
        let mut meta = Vec::new();
        adopt.encode(&mut meta);
        let at = LogPoint { position: 8192, sequence: 3, chain: 0x0102_0304 };
        let mut group = vec![0xee; group_len(meta.len(), 0)];
        let after = encode_group(at, &[9; 16], 7, 1, &meta, &[], &mut group);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let header = concat!(
            "52574c47",
            "0100",
            "0000", // magic, format
            "09090909090909090909090909090909",
            "0020000000000000",
            "0300000000000000",
            "0700000000000000", // position, sequence, first record
            "0020000000000000",
            "01000000",
            "26000000",
            "0000000000000000", // bytes, records, meta, payload
            "c14aa324",
            "04030201", // CRC of meta, chain
            "000000000000000000000000",
            "8cb0519b",
        );
        let record = concat!(
            "04",
            "01000000",
            "0200000000000000",
            "0300000000000000",
            "04", // adopt, strip
            "0500000000000000",
            "0600000000000000",
        );
        assert_eq!((group.len(), after.position, after.sequence), (8192, 16384, 4));
        assert_eq!(hex(&group[..134]), format!("{header}{record}"));
        assert_eq!(hex(&group[8192 - 134..]), format!("{record}{header}"), "and again at the end");
        assert_eq!(crc32c(&group), 0x2672_0b41);

        let mut log = vec![0; LOG_RING as usize + (1 << 20)];
        log[LOG_RING as usize + 8192..][..8192].copy_from_slice(&group);
        let log = Image(log);
        let read = Ring::new(&log, Path::new("log"), [9; 16], 1 << 20).group(at, 100).unwrap().unwrap();
        assert!(read.whole && read.first_rsn == 7 && read.after == after);
        assert_eq!(read.records.into_iter().map(|r| r.0).collect::<Vec<_>>(), [adopt]);
    }
    const UUID: [u8; 16] = [9; 16];
    const RING_BYTES: u64 = 64 << 10;

    /// What a ring that begins with these bytes gives.
    fn first(group: &[u8]) -> Result<Option<Group>, PdiskError> {
        let mut log = vec![0; LOG_RING as usize + RING_BYTES as usize];
        let len = group.len().min(RING_BYTES as usize);
        log[LOG_RING as usize..][..len].copy_from_slice(&group[..len]);
        Ring::new(&Image(log), Path::new("log"), UUID, RING_BYTES).group(LogPoint::default(), 100)
    }

    fn group_of(records: u32, meta: &[u8], payload: Vec<u8>) -> Vec<u8> {
        let mut group = vec![0; group_len(meta.len(), payload.len())];
        encode_group(LogPoint::default(), &UUID, 1, records, meta, &[Bytes::from(payload)], &mut group);
        group
    }

    /// Records and headers that are damaged, and yet match their CRCs.
    #[test]
    fn changed_groups_are_refused_or_mean_something() {
        let (mut meta, mut records) = (Vec::new(), samples());
        for record in &mut records {
            if let Record::Put(put) = record {
                put.crcs.fill(crc32c(&[0; UNIT])); // of the payload below
            }
        }
        records.iter().for_each(|record| record.encode(&mut meta));
        let count = records.len() as u32;
        let inline: usize =
            records.iter().map(|r| if let Record::Put(put) = r { put.inline_len() } else { 0 }).sum();
        let read = first(&group_of(count, &meta, vec![0; inline])).unwrap().unwrap();
        assert_eq!(read.records.len(), records.len());
        mutated(&[meta.clone()], 2_000, |meta| {
            for payload in [0, inline] {
                if group_len(meta.len(), payload) <= group_max(RING_BYTES) {
                    let _ = first(&group_of(count, meta, vec![0; payload]));
                }
            }
        });
        mutated(&[group_of(count, &meta, vec![0; inline])], 2_000, |group| {
            let _ = first(group);
            let mut good = group.to_vec();
            if good.len() >= HEADER {
                let crc = crc32c(&good[..HEADER - 4]);
                good[HEADER - 4..HEADER].copy_from_slice(&crc.to_le_bytes());
                let _ = first(&good);
            }
        });
    }
}
