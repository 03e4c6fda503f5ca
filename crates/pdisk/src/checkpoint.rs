//! Checkpoints: the whole index as of one record, in the files `index.0` and `index.1` in turn, so that
//! the log before it is not needed. The slot's old header is cleared and flushed first, the new one written
//! and flushed last: a slot without a matching header is no checkpoint, one with it must be whole. If the newest one is damaged the other serves, with more log to replay: the
//! log is kept back to the older of the two.
//!
//! ```text
//! header, 4096 bytes: 0 "RWINDEX1"  8 u16 format  10 u16 0  12 u32 pages  16 uuid[16]  32 u64 number
//!   40 u64 strips  48 u64 record number  56 u64 log position  64 u64 log sequence  72 u32 log chain
//!   76 u32 CRC of the pages' CRCs (0: not told)  80 u64 incarnation  88 u32 n, n x (u64 position, u64 digest)
//!   4092 u32 CRC-32C of bytes 0..4092
//! page i at 4096 + i x 262144: 0 u32 "RWIP"  4 u32 i  8 u64 number  16 u32 used  20 u32 CRC-32C of
//!   bytes 0..20 and of the used bytes, which start at 24
//! ```
//! The used bytes of all pages, one after the other, are the strips (docs/format-pdisk.md).

use std::path::Path;

use base::{AlignedBuf, Incarnation, units::UNIT};
use wire::{crc::crc32c, mgr::LogMark};

use crate::{
    codec::{Decoded, FORMAT, Malformed, Reader, Writer},
    error::PdiskError,
    index::Index,
    log::{LogPoint, ReadAt},
    marks::MARKS_MAX,
    strip::decode_strip,
};

const MAGIC: &[u8; 8] = b"RWINDEX1";
const PAGE_MAGIC: &[u8; 4] = b"RWIP";
/// Distance of pages.
pub(crate) const PAGE: usize = 256 << 10;
/// Bytes of strips that one page holds.
pub(crate) const PAGE_USED: usize = PAGE - PAGE_HEADER;
const PAGE_HEADER: usize = 24;

/// What a checkpoint stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Head {
    /// Counts checkpoints of this pdisk.
    pub number: u64,
    pub pages: u32,
    pub strips: u64,
    /// The last record it contains.
    pub rsn: u64,
    /// Where replay starts. Records up to `rsn` in that group are passed over.
    pub log: LogPoint,
    /// CRC of the CRCs of its pages: these pages, and none that an attempt with the same number left. 0: not told.
    pub pages_crc: u32,
    pub incarnation: Incarnation,
}

impl Head {
    /// `marks`: the points that stay known, at most [`MARKS_MAX`].
    pub fn encode(&self, uuid: &[u8; 16], marks: &[LogMark]) -> AlignedBuf {
        assert!(marks.len() <= MARKS_MAX);
        let mut out = Vec::with_capacity(UNIT);
        let mut w = Writer(&mut out);
        w.bytes(MAGIC);
        w.u16(FORMAT);
        w.u16(0);
        w.u32(self.pages);
        w.bytes(uuid);
        w.u64(self.number);
        w.u64(self.strips);
        w.u64(self.rsn);
        w.u64(self.log.position);
        w.u64(self.log.sequence);
        w.u32(self.log.chain);
        w.u32(self.pages_crc);
        w.u64(self.incarnation.0);
        w.u32(marks.len() as u32);
        for mark in marks {
            w.u64(mark.position);
            w.u64(mark.digest);
        }
        let mut buf = AlignedBuf::zeroed(UNIT);
        buf[..out.len()].copy_from_slice(&out);
        let crc = crc32c(&buf[..UNIT - 4]);
        buf[UNIT - 4..].copy_from_slice(&crc.to_le_bytes());
        buf
    }

    fn decode(bytes: &[u8], uuid: &[u8; 16]) -> Decoded<(Head, Vec<LogMark>)> {
        let crc = crc32c(&bytes[..UNIT - 4]);
        if bytes[UNIT - 4..] != crc.to_le_bytes() {
            return Err(Malformed);
        }
        let mut r = Reader(bytes);
        if r.take(8)? != MAGIC || r.u16()? != FORMAT || r.u16()? != 0 {
            return Err(Malformed);
        }
        let pages = r.u32()?;
        if r.take(16)? != uuid {
            return Err(Malformed);
        }
        let (number, strips, rsn) = (r.u64()?, r.u64()?, r.u64()?);
        let log = LogPoint { position: r.u64()?, sequence: r.u64()?, chain: r.u32()? };
        let pages_crc = r.u32()?;
        let head = Head { number, pages, strips, rsn, log, pages_crc, incarnation: Incarnation(r.u64()?) };
        let count = r.u32()? as usize;
        if count > MARKS_MAX {
            return Err(Malformed);
        }
        let marks = (0..count)
            .map(|_| Ok(LogMark { position: r.u64()?, digest: r.u64()? }))
            .collect::<Decoded<Vec<LogMark>>>()?;
        // By position they are found.
        if marks.is_sorted_by_key(|mark| mark.position) { Ok((head, marks)) } else { Err(Malformed) }
    }
}

/// Offset of page `i` in the file.
pub(crate) fn page_offset(i: u32) -> u64 {
    UNIT as u64 + u64::from(i) * PAGE as u64
}

/// Page `i`: at most [`PAGE_USED`] bytes of strips, padded to 4096.
pub(crate) fn encode_page(number: u64, i: u32, used: &[u8]) -> AlignedBuf {
    assert!(used.len() <= PAGE_USED);
    let mut buf = AlignedBuf::zeroed((PAGE_HEADER + used.len()).next_multiple_of(UNIT));
    buf[..4].copy_from_slice(PAGE_MAGIC);
    buf[4..8].copy_from_slice(&i.to_le_bytes());
    buf[8..16].copy_from_slice(&number.to_le_bytes());
    buf[16..20].copy_from_slice(&(used.len() as u32).to_le_bytes());
    buf[PAGE_HEADER..PAGE_HEADER + used.len()].copy_from_slice(used);
    let crc = page_crc(&buf, used.len());
    buf[20..24].copy_from_slice(&crc.to_le_bytes());
    buf
}

fn page_crc(page: &[u8], used: usize) -> u32 {
    // Two CRCs, one of them over the other: the CRC field lies between the parts.
    crc32c(&page[..20]) ^ crc32c(&page[PAGE_HEADER..PAGE_HEADER + used]).rotate_left(1)
}

fn page_used(page: &[u8], number: u64, i: u32) -> Decoded<usize> {
    let mut r = Reader(page);
    if r.take(4)? != PAGE_MAGIC || r.u32()? != i || r.u64()? != number {
        return Err(Malformed);
    }
    let used = r.u32()? as usize;
    if used > page.len() - PAGE_HEADER || r.u32()? != page_crc(page, used) {
        return Err(Malformed);
    }
    Ok(used)
}

/// What the header says of the pages, built as they are written or read.
#[derive(Default)]
pub(crate) struct PageCrcs(u32);

impl PageCrcs {
    pub fn add(&mut self, page: &[u8]) {
        let mut both = [0; 8];
        both[..4].copy_from_slice(&self.0.to_le_bytes());
        both[4..].copy_from_slice(&page[20..24]);
        self.0 = crc32c(&both);
    }

    /// Never 0, which says nothing.
    pub fn sum(&self) -> u32 {
        self.0.max(1)
    }
}

/// What is in one of the two slots.
pub(crate) enum Slot {
    /// No checkpoint: never written, or cut off while it was.
    Empty,
    /// The header stands; the points of the log that it remembers.
    Head(Head, Vec<LogMark>),
}

/// Reads the header of a slot.
pub(crate) fn read_head(file: &dyn ReadAt, path: &Path, uuid: &[u8; 16]) -> Result<Slot, PdiskError> {
    let size = file.size().map_err(PdiskError::io("stat", path))?;
    if size < UNIT as u64 {
        return Ok(Slot::Empty);
    }
    let mut buf = AlignedBuf::zeroed(UNIT);
    if let Err(error) = file.read_at(&mut buf, 0) {
        tracing::warn!(file = %path.display(), %error, "unreadable checkpoint header");
        return Ok(Slot::Empty);
    }
    Ok(Head::decode(&buf, uuid).map_or(Slot::Empty, |(head, marks)| Slot::Head(head, marks)))
}

/// Reads the strips of a checkpoint. `Err`: it is damaged, and where.
pub(crate) fn read_strips(file: &dyn ReadAt, head: &Head, units: u64) -> Result<Index, String> {
    let size = file.size().map_err(|e| e.to_string())?;
    let mut bytes = Vec::new();
    let mut strips = Vec::new();
    let mut page = AlignedBuf::zeroed(PAGE);
    let mut crcs = PageCrcs::default();
    for i in 0..head.pages {
        let offset = page_offset(i);
        let len = size.saturating_sub(offset).min(PAGE as u64) as usize / UNIT * UNIT;
        if len < UNIT {
            return Err(format!("page {i} of {} is missing", head.pages));
        }
        page.set_len(len);
        file.read_at(&mut page, offset).map_err(|e| format!("page {i}: {e}"))?;
        let used =
            page_used(&page, head.number, i).map_err(|_| format!("page {i} does not match its CRC"))?;
        crcs.add(&page);
        bytes.extend_from_slice(&page[PAGE_HEADER..PAGE_HEADER + used]);
        // A strip may go on in the next page: what does not parse yet waits for it.
        let mut r = Reader(&bytes);
        loop {
            let before = r.0;
            match decode_strip(&mut r, units) {
                Ok(s) => strips.push(s),
                Err(Malformed) => {
                    let rest = before.to_vec();
                    bytes = rest;
                    break;
                }
            }
        }
    }
    if head.pages_crc != 0 && head.pages_crc != crcs.sum() {
        return Err("its pages are not those that its header was written for".into());
    }
    let rising = strips.windows(2).all(|w| w[0].0 < w[1].0);
    if !bytes.is_empty() || strips.len() as u64 != head.strips || !rising {
        return Err(format!(
            "{} strips announced, {} read, {} bytes left",
            head.strips,
            strips.len(),
            bytes.len()
        ));
    }
    Ok(Index::from_strips(strips, head.incarnation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        extent::Extent,
        mutate::mutated,
        strip::{Strip, Ver, encode_strip},
    };
    use base::{BlockIndex, FsId, Grant, GroupId, InodeNo, PoolId, StripIndex, StripSet, StripeId, Version};

    struct Image(Vec<u8>);

    impl ReadAt for Image {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
            Ok(())
        }
        fn size(&self) -> std::io::Result<u64> {
            Ok(self.0.len() as u64)
        }
    }

    fn sample() -> (base::StripId, Strip) {
        let id = StripeId { fs: FsId(1), inode: InodeNo(2), block: BlockIndex(3) }.strip(StripIndex(4));
        let ver = Ver {
            version: Version { grant: Grant(5), seq: 6 },
            touched: StripSet(3),
            len: 8192,
            covers: [].into(),
            map: [Extent::new(100, 2)].into(),
            pending: Vec::new(),
            rsn: 9,
            derived: false,
            damaged: false,
        };
        let (pool, group) = (PoolId(7), GroupId(8));
        let strip = Strip { pool, group, adopted: Some(ver), rsn: 9, ..Strip::default() };
        (id, strip)
    }

    /// Made by another program from docs/format-pdisk.md.
    #[test]
    fn golden_checkpoint() {
        let (id, strip) = sample();
        let mut used = Vec::new();
        encode_strip(id, &strip, &mut used);
        let page = encode_page(2, 0, &used);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let expected = concat!(
            "52574950",
            "00000000",
            "0200000000000000",
            "5c000000",
            "b115dec4", // header of the page
            "01000000",
            "0200000000000000",
            "0300000000000000",
            "04",
            "07000000",
            "08000000", // strip, pool, group
            "0000000000000000",
            "0900000000000000",
            "01", // sealed below, record, versions
            "0500000000000000",
            "0600000000000000",
            "03000000",
            "00200000",
            "00", // version, touched, bytes, covers
            "0900000000000000",
            "00",
            "0100",
            "0200006400000000",
            "0000", // record, flags, map, pending
        );
        assert_eq!(hex(&page[..24 + used.len()]), expected);
        assert!(page.len() == 4096 && page[24 + used.len()..].iter().all(|b| *b == 0));

        let head = Head {
            number: 2,
            pages: 1,
            strips: 1,
            rsn: 9,
            log: LogPoint { position: 8192, sequence: 3, chain: 0x0102_0304 },
            pages_crc: 0x0506_0708,
            incarnation: Incarnation(5),
        };
        let marks = [LogMark { position: 8192, digest: 0x0304 }];
        let bytes = head.encode(&[9; 16], &marks);
        let expected = concat!(
            "5257494e44455831",
            "0100",
            "0000",
            "01000000",
            "09090909090909090909090909090909",
            "0200000000000000",
            "0100000000000000",
            "0900000000000000", // number, strips, record
            "0020000000000000",
            "0300000000000000",
            "04030201",
            "08070605", // log, CRC of the pages' CRCs
            "0500000000000000",
            "01000000",
            "0020000000000000",
            "0403000000000000", // a point of the log
        );
        assert_eq!((hex(&bytes[..108]).as_str(), hex(&bytes[4092..]).as_str()), (expected, "1166b596"));

        let file = Image([&bytes[..], &page[..]].concat());
        let Ok(Slot::Head(read, remembered)) = read_head(&file, Path::new("index.0"), &[9; 16]) else {
            panic!("no head")
        };
        assert_eq!((read, &remembered[..]), (head, &marks[..]));
        let left = "its pages are not those that its header was written for";
        assert_eq!(read_strips(&file, &read, 1000).err().as_deref(), Some(left));
        let index = read_strips(&file, &Head { pages_crc: 0, ..read }, 1000).unwrap();
        assert_eq!((index.len(), index.get(id)), (1, Some(&strip)));
    }
    /// Strips and headers that are damaged, and yet match their CRCs.
    #[test]
    fn changed_checkpoints_are_refused_or_mean_something() {
        let (id, strip) = sample();
        let mut used = Vec::new();
        encode_strip(id, &strip, &mut used);
        let next = base::StripId { index: StripIndex(5), ..id };
        let pending = crate::strip::Pending { unit: 1, crc: 3, rsn: 9, bytes: vec![0; UNIT].into() };
        let mut two = strip.clone();
        two.adopted.as_mut().unwrap().pending.push(pending);
        two.prepared = two.adopted.clone();
        encode_strip(next, &two, &mut used);
        let head = Head { number: 2, pages: 1, strips: 2, rsn: 9, ..Head::default() };
        let read = |head: &[u8], used: &[u8]| {
            let page = encode_page(2, 0, &used[..used.len().min(PAGE_USED)]);
            let file = Image([head, &page[..]].concat());
            match read_head(&file, Path::new("index.0"), &[9; 16]).unwrap() {
                Slot::Head(head, _) => read_strips(&file, &head, 1000).map(|index| index.len()),
                Slot::Empty => Err("no head".into()),
            }
        };
        let mark = LogMark { position: 8192, digest: 4 };
        let whole = head.encode(&[9; 16], &[mark, mark]);
        assert_eq!(read(&whole, &used), Ok(2));
        mutated(&[used.clone()], 10_000, |used| {
            let _ = read(&whole, used);
        });
        mutated(&[whole[..200].to_vec()], 10_000, |head| {
            let mut bytes = head.to_vec();
            bytes.resize(UNIT, 0);
            let crc = crc32c(&bytes[..UNIT - 4]);
            bytes[UNIT - 4..].copy_from_slice(&crc.to_le_bytes());
            let _ = read(&bytes, &used);
        });
    }
}
