//! Log records: every change of the index, in the order it happened. The running store and recovery
//! apply the same records with the same code (`index`), so that replay cannot differ from life.
//!
//! Layout of a record (all little-endian; docs/format-pdisk.md "Log records"):
//! ```text
//! u8 kind, then by kind:
//! 1 open     u64 incarnation
//! 2 prepare  strip, u32 pool, u32 group, info, opt base, opt adopt,
//! 3 install    u16 n + n x u64 extents, u16 n + n x (u16 first unit, u16 units),
//!              u16 n + n x u32 CRC, u8 inline (1: the units' bytes are in the group's payload)
//! 4 adopt    strip, version
//! 5 discard  strip, version
//! 6 seal     strip, u64 grant
//! 7 lost     strip, version
//! 8 delete   u32 fs, u64 inode, u64 first block, u64 last block, version
//! ```

use base::{Grant, GroupId, Incarnation, PoolId, StripId, Version, units::UNIT};
use wire::strip::{DeleteStrips, STRIP_LEN_MAX, VersionInfo};

use crate::{
    codec::{Decoded, Malformed, Reader, Writer},
    extent::{Extent, units_of},
};

/// A run of units of a strip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnitRun {
    pub first: u32,
    pub count: u32,
}

impl UnitRun {
    pub fn end(self) -> u32 {
        self.first + self.count
    }
}

/// A version is stored: beside the adopted one, or (install) in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Put {
    pub install: bool,
    pub strip: StripId,
    pub pool: PoolId,
    pub group: GroupId,
    pub info: VersionInfo,
    pub base: Option<Version>,
    pub adopt: Option<Version>,
    /// The whole map of the new version.
    pub map: Vec<Extent>,
    /// The units that this version writes; the others are the base's.
    pub runs: Vec<UnitRun>,
    /// CRC of each of these units.
    pub crcs: Vec<u32>,
    /// Their bytes are in the log, not yet at their place in the data file.
    pub inline: bool,
}

impl Put {
    /// Bytes of payload that stand in the log with this record.
    pub fn inline_len(&self) -> usize {
        if self.inline { self.crcs.len() * UNIT } else { 0 }
    }
    /// Every unit written, with its CRC.
    pub fn units(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.runs.iter().flat_map(|r| r.first..r.end()).zip(self.crcs.iter().copied())
    }
}

/// One change of the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    Open {
        incarnation: Incarnation,
    },
    Put(Put),
    Adopt {
        strip: StripId,
        version: Version,
    },
    Discard {
        strip: StripId,
        version: Version,
    },
    Seal {
        strip: StripId,
        below: Grant,
    },
    Lost {
        strip: StripId,
        version: Version,
    },
    Delete(DeleteStrips),
    /// The same of strips that are elsewhere now: they may come again.
    Remove(DeleteStrips),
}

impl Record {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        match self {
            Record::Open { incarnation } => {
                w.u8(1);
                w.u64(incarnation.0);
            }
            Record::Put(put) => {
                w.u8(if put.install { 3 } else { 2 });
                w.strip(put.strip);
                w.u32(put.pool.0);
                w.u32(put.group.0);
                w.info(&put.info);
                w.opt_version(put.base);
                w.opt_version(put.adopt);
                w.len(put.map.len());
                for e in &put.map {
                    w.u64(e.packed());
                }
                w.len(put.runs.len());
                for r in &put.runs {
                    w.u16(r.first as u16);
                    w.u16(r.count as u16);
                }
                w.len(put.crcs.len());
                for crc in &put.crcs {
                    w.u32(*crc);
                }
                w.u8(put.inline.into());
            }
            Record::Adopt { strip, version } => strip_version(&mut w, 4, *strip, *version),
            Record::Discard { strip, version } => strip_version(&mut w, 5, *strip, *version),
            Record::Seal { strip, below } => {
                w.u8(6);
                w.strip(*strip);
                w.u64(below.0);
            }
            Record::Lost { strip, version } => strip_version(&mut w, 7, *strip, *version),
            Record::Delete(d) | Record::Remove(d) => {
                w.u8(if matches!(self, Record::Delete(_)) { 8 } else { 9 });
                w.u32(d.fs.0);
                w.u64(d.inode.0);
                w.u64(d.first.0);
                w.u64(d.last.0);
                w.version(d.highest);
            }
        }
    }

    /// Reads one record from a data file of `units` units.
    pub fn decode(r: &mut Reader<'_>, units: u64) -> Decoded<Record> {
        Ok(match r.u8()? {
            1 => Record::Open { incarnation: Incarnation(r.u64()?) },
            kind @ (2 | 3) => Record::Put(decode_put(r, kind == 3, units)?),
            4 => Record::Adopt { strip: r.strip()?, version: r.version()? },
            5 => Record::Discard { strip: r.strip()?, version: r.version()? },
            6 => Record::Seal { strip: r.strip()?, below: Grant(r.u64()?) },
            7 => Record::Lost { strip: r.strip()?, version: r.version()? },
            8 => Record::Delete(decode_delete(r)?),
            9 => Record::Remove(decode_delete(r)?),
            _ => return Err(Malformed),
        })
    }
}

fn strip_version(w: &mut Writer<'_>, kind: u8, strip: StripId, version: Version) {
    w.u8(kind);
    w.strip(strip);
    w.version(version);
}

fn decode_delete(r: &mut Reader<'_>) -> Decoded<DeleteStrips> {
    Ok(DeleteStrips {
        fs: base::FsId(r.u32()?),
        inode: base::InodeNo(r.u64()?),
        first: base::BlockIndex(r.u64()?),
        last: base::BlockIndex(r.u64()?),
        highest: r.version()?,
    })
}

fn decode_put(r: &mut Reader<'_>, install: bool, units: u64) -> Decoded<Put> {
    let put = Put {
        install,
        strip: r.strip()?,
        pool: r.pool()?,
        group: r.group()?,
        info: r.info()?,
        base: r.opt_version()?,
        adopt: r.opt_version()?,
        map: r.list(8, |r| Extent::from_packed(r.u64()?, units).ok_or(Malformed))?,
        runs: r.list(4, |r| Ok(UnitRun { first: r.u16()?.into(), count: r.u16()?.into() }))?,
        crcs: r.list(4, |r| r.u32())?,
        inline: r.flag()?,
    };
    check_map(&put.map, put.info.len)?;
    let (mut end, mut count) = (0, 0);
    for run in &put.runs {
        if run.count == 0 || run.first < end {
            return Err(Malformed);
        }
        end = run.end();
        count += run.count as usize;
    }
    if end as usize * UNIT > put.info.len as usize || count != put.crcs.len() {
        return Err(Malformed);
    }
    Ok(put)
}

/// Whether a map covers exactly `len` bytes.
pub(crate) fn check_map(map: &[Extent], len: u32) -> Decoded<()> {
    let units: u64 = map.iter().map(|e| u64::from(e.count())).sum();
    if len > STRIP_LEN_MAX || units * UNIT as u64 != u64::from(len) {
        return Err(Malformed);
    }
    debug_assert_eq!(u64::from(units_of(map)), units);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::mutate::mutated;
    use base::{BlockIndex, FsId, InodeNo, StripIndex, StripSet, StripeId};

    pub(crate) fn samples() -> Vec<Record> {
        let strip =
            StripeId { fs: FsId(1), inode: InodeNo(0x0203), block: BlockIndex(4) }.strip(StripIndex(5));
        let version = Version { grant: Grant(6), seq: 7 };
        let put = Put {
            install: false,
            strip,
            pool: PoolId(8),
            group: GroupId(9),
            info: VersionInfo {
                version,
                touched: StripSet(0x30),
                len: 3 * 4096,
                covers: vec![Some(version), None],
            },
            base: Some(Version { grant: Grant(1), seq: 2 }),
            adopt: None,
            map: vec![Extent::new(10, 2), Extent::hole(1)],
            runs: vec![UnitRun { first: 0, count: 1 }],
            crcs: vec![0xAABB_CCDD],
            inline: true,
        };
        let delete = DeleteStrips {
            fs: FsId(1),
            inode: InodeNo(2),
            first: BlockIndex(3),
            last: BlockIndex(4),
            highest: Version::MAX,
        };
        vec![
            Record::Open { incarnation: Incarnation(3) },
            Record::Put(put.clone()),
            Record::Put(Put { install: true, base: None, ..put }),
            Record::Adopt { strip, version },
            Record::Discard { strip, version },
            Record::Seal { strip, below: Grant(11) },
            Record::Lost { strip, version },
            Record::Delete(delete),
            Record::Remove(delete),
        ]
    }

    #[test]
    fn records_round_trip_and_short_ones_are_refused() {
        for record in samples() {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let mut r = Reader(&bytes);
            assert_eq!(Record::decode(&mut r, 100).unwrap(), record);
            r.end().unwrap();
            for cut in 0..bytes.len() {
                assert!(Record::decode(&mut Reader(&bytes[..cut]), 100).is_err(), "{record:?} cut at {cut}");
            }
        }
    }

    /// What is accepted has bytes, and they say the same.
    #[test]
    fn changed_records_are_refused_or_mean_something() {
        let encoded = |record: &Record| {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            bytes
        };
        let samples: Vec<Vec<u8>> = samples().iter().map(encoded).collect();
        mutated(&samples, 100_000, |bytes| {
            if let Ok(record) = Record::decode(&mut Reader(bytes), 100) {
                assert_eq!(Record::decode(&mut Reader(&encoded(&record)), 100), Ok(record));
            }
        });
    }

    #[test]
    fn golden_record() {
        let mut bytes = Vec::new();
        samples()[1].encode(&mut bytes);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let expected = concat!(
            "02",
            "01000000",
            "0302000000000000",
            "0400000000000000",
            "05", // prepare, strip
            "08000000",
            "09000000", // pool, group
            "0600000000000000",
            "0700000000000000",
            "30000000",
            "00300000", // version, touched, len
            "02",
            "01",
            "0600000000000000",
            "0700000000000000",
            "00", // covers
            "01",
            "0100000000000000",
            "0200000000000000",
            "00", // base, adopt
            "0200",
            "0200000a00000000",
            "010000ffffffffff", // map
            "0100",
            "00000100",
            "0100",
            "ddccbbaa",
            "01", // runs, CRCs, inline
        );
        assert_eq!(hex, expected);
    }
}
