//! The mark: the last commit that was acknowledged, kept apart from the journal, so that a journal that was cut,
//! overwritten or replaced by an older one is found when it is opened, and so that the last record being damaged is told
//! from one that a power cut tore before it was acknowledged.
//!
//! ```text
//! two slots, at 0 and 512, written by turns (number modulo 2):
//!   "ropewalk mark\0\0\0", journal id u64, number u64, CRC of the record u32, CRC-32C of these u32
//! ```
//! All numbers are little-endian. The CRC of the record is 0 where the table took the commit without one. It is written after the
//! commit is durable and before it is acknowledged, and flushed once a second: so it never names more than was durable.
//! Whatever ends the process it names the last acknowledged commit; after a power cut it may name an earlier one.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use crc_fast::{CrcAlgorithm, Digest};

use super::medium::Medium;

const MAGIC: &[u8; 16] = b"ropewalk mark\0\0\0";
/// Bytes between the slots: a sector each.
const SLOT: u64 = 512;
const LEN: usize = 16 + 8 + 8 + 4 + 4;
/// Bytes of the file.
pub const BYTES: u64 = 2 * SLOT;
/// How often it is flushed while there are commits.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// What was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// The journal.
    pub journal: u64,
    /// The number of the last commit.
    pub number: u64,
    /// CRC of its record; 0 if it has none.
    pub crc: u32,
}

/// A mark that is open for writing.
pub struct MarkFile {
    medium: Box<dyn Medium>,
    flushed: Instant,
}

fn encode(acked: Acked) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&acked.journal.to_le_bytes());
    bytes.extend_from_slice(&acked.number.to_le_bytes());
    bytes.extend_from_slice(&acked.crc.to_le_bytes());
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes);
    bytes.extend_from_slice(&(digest.finalize() as u32).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; LEN]) -> Option<Acked> {
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let crc = bytes.get(32..36)?.try_into().ok().map(u32::from_le_bytes)?;
    let acked = Acked { journal: number(16)?, number: number(24)?, crc };
    (encode(acked) == bytes).then_some(acked)
}

/// The last commit that the mark on a medium names; none if neither slot can be read.
pub fn read(medium: &dyn Medium) -> io::Result<Option<Acked>> {
    let mut last: Option<Acked> = None;
    for slot in 0..2 {
        let mut bytes = [0; LEN];
        match medium.read_at(slot * SLOT, &mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue, // it is cut
            Err(error) => return Err(error),
        }
        let acked = decode(&bytes);
        last = match (last, acked) {
            (Some(one), Some(other)) if one.number >= other.number => Some(one),
            (one, None) => one,
            (_, other) => other,
        };
    }
    Ok(last)
}

/// The file of a mark. What it says stays until something else is written: one slot after the other, whatever ends that.
pub fn place(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_len(BYTES)?;
    Ok(file)
}

impl MarkFile {
    /// Makes the mark anew on its medium, durably.
    pub fn create(medium: Box<dyn Medium>, acked: Acked) -> io::Result<MarkFile> {
        let bytes = encode(acked);
        medium.write_at(0, &bytes)?;
        medium.write_at(SLOT, &bytes)?;
        medium.sync()?;
        Ok(MarkFile { medium, flushed: Instant::now() })
    }

    /// A commit is durable.
    pub fn set(&mut self, acked: Acked) -> io::Result<()> {
        self.medium.write_at(acked.number % 2 * SLOT, &encode(acked))?;
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush()?;
        }
        Ok(())
    }

    /// Makes it durable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.medium.sync()?;
        self.flushed = Instant::now();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::volatile::Volatile, *};
    use crate::mutate::mutated;

    /// Slots that are damaged, and yet match their CRCs.
    #[test]
    fn a_changed_mark_is_none_or_names_what_stands_there() {
        let slot = |number, crc| {
            let mut slot = encode(Acked { journal: 7, number, crc });
            slot.resize(SLOT as usize, 0);
            slot
        };
        mutated(&[[slot(4, 3), slot(5, 0)].concat(), slot(u64::MAX, 1)], 100_000, |bytes| {
            let mut bytes = bytes.to_vec();
            let mut found = Vec::new();
            for at in [0, SLOT as usize] {
                if let Some(slot) = bytes.get_mut(at..at + LEN).and_then(|slot| slot.first_chunk_mut::<LEN>())
                {
                    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
                    digest.update(&slot[..LEN - 4]);
                    slot[LEN - 4..].copy_from_slice(&(digest.finalize() as u32).to_le_bytes());
                    found.extend(decode(slot));
                }
            }
            let last = read(&Volatile::holding(bytes)).unwrap();
            assert_eq!(last.map(|last| last.number), found.iter().map(|acked| acked.number).max());
        });
    }

    #[test]
    fn the_later_slot_counts_and_a_torn_one_does_not() {
        let medium = Volatile::new(true);
        redb::StorageBackend::set_len(&medium, BYTES).unwrap();
        let acked = |number| Acked { journal: 7, number, crc: 3 };
        assert_eq!(read(&medium).unwrap(), None);
        let mut mark = MarkFile::create(Box::new(medium.clone()), acked(4)).unwrap();
        for number in 5..9 {
            mark.set(acked(number)).unwrap();
            assert_eq!(read(&medium).unwrap(), Some(acked(number)));
        }
        for bit in 0..LEN as u64 * 8 {
            let mut byte = [0];
            Medium::read_at(&medium, bit / 8, &mut byte).unwrap();
            let flipped = [byte[0] ^ 1 << (bit % 8)];
            Medium::write_at(&medium, bit / 8, &flipped).unwrap();
            assert_eq!(read(&medium).unwrap(), Some(acked(7)), "bit {bit}");
            Medium::write_at(&medium, bit / 8, &byte).unwrap();
        }
        assert_eq!(
            encode(acked(9))[16..36],
            [&[7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0][..]].concat()
        );
    }
}
