//! Records as they stand in etcd: a commit's changes, cut into parts that fit a request. Only with its last part a commit
//! counts; one that stays incomplete is dropped when another begins.
//!
//! ```text
//! "RRWE", number u64, part u32, parts u32, life u64, CRC-32C of the journal's identity, these and the content u32, content
//! "RRWP", the same
//! ```
//! All numbers are little-endian; `part` counts from 0; `life` is that of the manager which wrote it: no two write the same. The contents of all parts in a row are the changes as in the
//! journal's file ([`super::super::journal`]). With `RRWP` they are packed: their length u32, an LZ4 block. Each byte of a record is
//! written six times by an etcd of three members, and small files and their names shrink to a part: so who may packs what gets smaller.

use crc_fast::{CrcAlgorithm, Digest};

use super::super::{Changes, journal};

const MAGIC: &[u8; 4] = b"RRWE";
const MAGIC_PACKED: &[u8; 4] = b"RRWP";
const HEAD: usize = 32;
/// Bytes of a part's content. etcd takes requests of 1.5 MiB, unless told otherwise.
pub const PART_BYTES: usize = if cfg!(test) { 4 << 10 } else { 512 << 10 };
/// Parts of a commit: what is held in memory until it is whole.
const PARTS_MAX: usize = 512;

/// A record that is not what was written there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPart {
    /// Damaged, or of another journal or place.
    #[error("record {number} is damaged or of another journal")]
    Damaged {
        /// Its place.
        number: u64,
    },
    /// Of a form that this program does not know.
    #[error("record {number} is of a newer ropewalk: install that one here")]
    Newer {
        /// Its place.
        number: u64,
    },
    /// A part in the middle of nothing.
    #[error("record {number} is a part of a commit that does not begin before it")]
    Beginning {
        /// Its place.
        number: u64,
    },
    /// More than one commit may have.
    #[error("a commit of {bytes} bytes; at most {} are possible", PART_BYTES * PARTS_MAX)]
    Large {
        /// Bytes.
        bytes: usize,
    },
}

/// What stands before the content, without the CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    packed: bool,
    number: u64,
    part: u32,
    parts: u32,
    life: u64,
}

impl Head {
    fn read(bytes: &[u8; HEAD]) -> Head {
        let mut at = 4;
        let mut take = |len: usize| {
            let mut number = [0; 8];
            number[..len].copy_from_slice(&bytes[at..at + len]);
            at += len;
            u64::from_le_bytes(number)
        };
        let packed = bytes.starts_with(MAGIC_PACKED);
        Head { packed, number: take(8), part: take(4) as u32, parts: take(4) as u32, life: take(8) }
    }

    /// A record with this head.
    fn record(self, journal: u64, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + content.len());
        bytes.extend_from_slice(if self.packed { MAGIC_PACKED } else { MAGIC });
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.part.to_le_bytes());
        bytes.extend_from_slice(&self.parts.to_le_bytes());
        bytes.extend_from_slice(&self.life.to_le_bytes());
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&journal.to_le_bytes());
        digest.update(&bytes[if self.packed { 0 } else { MAGIC.len() }..]);
        digest.update(content);
        bytes.extend_from_slice(&(digest.finalize() as u32).to_le_bytes());
        bytes.extend_from_slice(content);
        bytes
    }
}

/// The records of one commit by a manager in one of its lives, the first of which gets `number`; with `packs` packed, if that makes
/// them smaller.
pub fn split(
    (journal, life): (u64, u64),
    number: u64,
    changes: &Changes,
    packs: bool,
) -> Result<Vec<Vec<u8>>, BadPart> {
    let plain = journal::encode_changes(changes);
    if plain.len() > PART_BYTES * PARTS_MAX {
        return Err(BadPart::Large { bytes: plain.len() });
    }
    let small =
        packs.then(|| lz4_flex::compress_prepend_size(&plain)).filter(|small| small.len() < plain.len());
    let packed = small.is_some();
    let content = small.unwrap_or(plain);
    let parts = content.len().div_ceil(PART_BYTES).max(1);
    let part = |at: usize| {
        let piece = &content[at * PART_BYTES..content.len().min((at + 1) * PART_BYTES)];
        let (number, part) = (number + at as u64, at as u32);
        let head = Head { packed, number, part, parts: parts as u32, life };
        head.record(journal, piece)
    };
    Ok((0..parts).map(part).collect())
}

/// The CRC in a record, by which it is known again.
pub fn stored_crc(record: &[u8]) -> u32 {
    record.get(HEAD - 4..HEAD).and_then(|crc| crc.try_into().ok()).map(u32::from_le_bytes).unwrap_or_default()
}

/// What is packed there; none if it is not, or larger than a commit may be.
fn unpack(content: &[u8]) -> Option<Vec<u8>> {
    let (len, block) = lz4_flex::block::uncompressed_size(content).ok()?;
    // A block of LZ4 says no more than 255 bytes with one.
    if len > PART_BYTES * PARTS_MAX || len > block.len().saturating_mul(255) {
        return None;
    }
    lz4_flex::decompress(block, len).ok().filter(|plain| plain.len() == len)
}

/// Puts commits together from the records in their order.
#[derive(Default, Clone)]
pub struct Assembly {
    content: Vec<u8>,
    /// The part that comes next, of how many, and whether it is packed; none at the beginning of a commit.
    next: Option<(u32, u32, bool)>,
}

impl Assembly {
    /// Takes the record at `number`; the commit's changes if it is the last of one.
    pub fn push(&mut self, journal: u64, number: u64, record: &[u8]) -> Result<Option<Changes>, BadPart> {
        let damaged = BadPart::Damaged { number };
        if record.starts_with(&MAGIC[..3]) && !record.starts_with(MAGIC) && !record.starts_with(MAGIC_PACKED)
        {
            return Err(BadPart::Newer { number });
        }
        let Some((head, content)) = record.split_first_chunk::<HEAD>() else { return Err(damaged) };
        let head = Head::read(head);
        let Head { packed, part, parts, .. } = head;
        if head.number != number
            || head.record(journal, content) != record
            || part >= parts
            || parts as usize > PARTS_MAX
            || content.len() > PART_BYTES
        {
            return Err(damaged);
        }
        match self.next {
            _ if part == 0 => self.content.clear(),
            Some(next) if next == (part, parts, packed) => {}
            _ => return Err(BadPart::Beginning { number }),
        }
        self.content.extend_from_slice(content);
        self.next = Some((part + 1, parts, packed)).filter(|_| part + 1 < parts);
        if self.next.is_some() {
            return Ok(None);
        }
        let content = std::mem::take(&mut self.content);
        let plain = if packed { unpack(&content) } else { Some(content) };
        plain.and_then(|plain| journal::decode_changes(&plain)).map(Some).ok_or(damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::mutated;

    fn changes(bytes: usize) -> Changes {
        [(b"k".to_vec(), Some(vec![7; bytes])), (b"l".to_vec(), None)].into()
    }

    #[test]
    fn the_bytes_of_a_record_are_as_described() {
        let records = split((7, 3), 9, &changes(2), true).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0][..20], *b"RRWE\x09\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0");
        assert_eq!(records[0][20..28], *b"\x03\0\0\0\0\0\0\0");
        assert_eq!(records[0][32..], *b"\x01\0\0\0\x02\0\0\0k\x07\x07\x01\0\0\0\xff\xff\xff\xffl");
        assert_ne!(stored_crc(&records[0]), 0);
    }

    fn packed(record: &[u8]) -> bool {
        record.starts_with(MAGIC_PACKED)
    }

    #[test]
    fn packed_records_are_smaller_and_say_the_same() {
        let mut state = 1u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let random: Changes = [(b"k".to_vec(), Some((0..4000).map(|_| noise()).collect()))].into();
        // Of more than one part even when packed.
        let words = (0..40_000).flat_map(|_| format!("{} ", noise()).into_bytes());
        let text: Changes = [(b"k".to_vec(), Some(words.collect()))].into();
        for (of, smaller) in [(changes(4000), true), (text, true), (random, false), (changes(0), false)] {
            let [plain, small] = [false, true].map(|packs| split((7, 3), 4, &of, packs).unwrap());
            let len = |records: &[Vec<u8>]| records.iter().map(Vec::len).sum::<usize>();
            assert_eq!((len(&small) < len(&plain), packed(&small[0])), (smaller, smaller));
            let mut assembly = Assembly::default();
            for (at, record) in small.iter().enumerate() {
                let whole = assembly.push(7, 4 + at as u64, record).unwrap();
                assert_eq!(whole, (at == small.len() - 1).then(|| of.clone()), "{at}");
            }
        }
    }

    /// What says that it is much more than it can be takes no room.
    #[test]
    fn a_packed_record_of_a_false_length_is_damaged() {
        for len in [u32::MAX, (PART_BYTES * PARTS_MAX) as u32, 0, 3] {
            let mut content = lz4_flex::compress_prepend_size(&[7; 600]);
            content[..4].copy_from_slice(&len.to_le_bytes());
            let head = Head { packed: true, number: 9, part: 0, parts: 1, life: 3 };
            let pushed = Assembly::default().push(7, 9, &head.record(7, &content));
            assert_eq!(pushed, Err(BadPart::Damaged { number: 9 }), "{len}");
        }
    }

    #[test]
    fn a_commit_of_several_parts_counts_with_the_last_one_and_a_new_one_drops_it() {
        let large = changes(3 * PART_BYTES);
        let records = split((7, 3), 4, &large, false).unwrap();
        assert_eq!(records.len(), 4);
        let mut assembly = Assembly::default();
        for (at, record) in records.iter().enumerate() {
            let whole = assembly.push(7, 4 + at as u64, record).unwrap();
            assert_eq!(whole, (at == 3).then(|| large.clone()), "{at}");
        }
        assert_eq!(assembly.push(7, 4, &records[0]), Ok(None));
        let next = split((7, 3), 5, &changes(1), false).unwrap();
        assert_eq!(assembly.push(7, 5, &next[0]), Ok(Some(changes(1))));
        assert_eq!(assembly.push(7, 6, &records[2]), Err(BadPart::Beginning { number: 6 }));
        assert_eq!(assembly.push(8, 5, &next[0]), Err(BadPart::Damaged { number: 5 }));
        let newer = [b"RRWF", &next[0][4..]].concat();
        assert_eq!(assembly.push(7, 5, &newer), Err(BadPart::Newer { number: 5 }));
        assert_eq!(assembly.push(7, 6, &next[0]), Err(BadPart::Damaged { number: 6 }));
        let error = split((7, 3), 1, &changes(PARTS_MAX * PART_BYTES), true).unwrap_err().to_string();
        assert!(error.contains("at most 2097152"), "{error}");
    }

    /// Records that are damaged, and yet match their CRC.
    #[test]
    fn changed_records_are_refused_or_mean_something() {
        let record = |bytes, packs| split((7, 3), 9, &changes(bytes), packs).unwrap().remove(0);
        mutated(&[record(20, false), record(400, true)], 100_000, |bytes| {
            let mut bytes = bytes.to_vec();
            if let Some((head, content)) = bytes.clone().split_first_chunk::<HEAD>() {
                bytes = Head::read(head).record(7, content);
            }
            let mut assembly = Assembly::default();
            if let Ok(Some(changes)) = assembly.push(7, 9, &bytes) {
                let again = split((7, 3), 9, &changes, packed(&bytes)).unwrap();
                assert!(packed(&bytes) || again[0].len() <= bytes.len());
                assert_eq!(assembly.push(7, 9, &again[0]), Ok(Some(changes)));
            }
        });
    }
}
