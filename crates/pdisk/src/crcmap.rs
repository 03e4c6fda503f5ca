//! The CRC of every unit of the data file, kept apart from the data: 4 bytes for 4 KiB, in memory as
//! a whole (1/1024 of the data file's size) and in the file `crc`, which checkpoints bring up to date.
//!
//! An entry is the unit's CRC-32C, exclusive-or a salt made of the strip and the unit's place in it:
//! bytes of another strip never verify, even if both the data and the CRC write were lost.
//! Entries changed since the last checkpoint are in the log; a torn `crc` file is redone from there.

use base::{StripId, units::UNIT};

/// Entries in one page of the file `crc`.
pub(crate) const ENTRIES_PER_PAGE: usize = UNIT / 4;

/// CRCs of all units, and which pages differ from the file.
pub(crate) struct CrcMap {
    entries: Vec<u32>,
    dirty: Vec<u64>,
}

/// The part of the salt that depends on the strip only.
#[derive(Clone, Copy)]
pub(crate) struct Salt(u64);

impl Salt {
    pub fn of(strip: StripId) -> Salt {
        let mut h = mix(u64::from(strip.stripe.fs.0) << 8 | u64::from(strip.index.0));
        h = mix(h ^ strip.stripe.inode.0);
        Salt(mix(h ^ strip.stripe.block.0))
    }
    fn at(self, unit: u32) -> u32 {
        (mix(self.0 ^ u64::from(unit)) >> 32) as u32
    }
}

/// The finaliser of SplitMix64: part of the format.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl CrcMap {
    /// All zero, as a new `crc` file.
    pub fn new(units: u64) -> CrcMap {
        let pages = (units as usize).div_ceil(ENTRIES_PER_PAGE);
        CrcMap { entries: vec![0; pages * ENTRIES_PER_PAGE], dirty: vec![0; pages.div_ceil(64)] }
    }

    /// Takes over pages as read from the file, from page `first` on.
    pub fn load(&mut self, first: usize, bytes: &[u8]) {
        let entries = &mut self.entries[first * ENTRIES_PER_PAGE..];
        for (entry, raw) in entries.iter_mut().zip(bytes.chunks_exact(4)) {
            *entry = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        }
    }

    pub fn pages(&self) -> usize {
        self.entries.len() / ENTRIES_PER_PAGE
    }

    pub fn get(&self, salt: Salt, unit: u32, place: u64) -> u32 {
        self.entries[place as usize] ^ salt.at(unit)
    }

    pub fn set(&mut self, salt: Salt, unit: u32, place: u64, crc: u32) {
        self.entries[place as usize] = crc ^ salt.at(unit);
        let page = place as usize / ENTRIES_PER_PAGE;
        let (word, bit) = (page / 64, 1u64 << (page % 64));
        self.dirty[word] |= bit;
    }

    /// Takes the next run of dirty pages from page `from` on, at most `max` pages: their first page and
    /// bytes. They count as clean from now on: whoever does not get them written says so ([`CrcMap::keep_dirty`]).
    pub fn take_dirty(&mut self, from: usize, max: usize) -> Option<(usize, Vec<u8>)> {
        let is_dirty = |dirty: &[u64], p: usize| dirty[p / 64] & 1 << (p % 64) != 0;
        let mut first = from;
        while first < self.pages() && !is_dirty(&self.dirty, first) {
            first += if self.dirty[first / 64] == 0 { 64 - first % 64 } else { 1 };
        }
        if first >= self.pages() {
            return None;
        }
        let mut end = first;
        while end < self.pages() && end - first < max && is_dirty(&self.dirty, end) {
            self.dirty[end / 64] &= !(1 << (end % 64));
            end += 1;
        }
        let entries = &self.entries[first * ENTRIES_PER_PAGE..end * ENTRIES_PER_PAGE];
        Some((first, entries.iter().flat_map(|e| e.to_le_bytes()).collect()))
    }

    /// These pages were taken, and not written.
    pub fn keep_dirty(&mut self, first: usize, pages: usize) {
        for page in first..first + pages {
            self.dirty[page / 64] |= 1 << (page % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_salted_and_dirty_pages_are_taken_once() {
        let mut map = CrcMap::new(5000);
        let (a, b) = (Salt::of(StripId::default()), Salt(7));
        map.set(a, 3, 4999, 0x1234);
        assert_eq!(map.get(a, 3, 4999), 0x1234);
        assert_ne!(map.get(b, 3, 4999), 0x1234);
        assert_ne!(map.get(a, 2, 4999), 0x1234);
        map.set(a, 0, 0, 1);
        map.set(a, 1, 1024, 1);
        let (first, bytes) = map.take_dirty(0, 8).unwrap();
        assert_eq!((first, bytes.len()), (0, 8192));
        let (first, bytes) = map.take_dirty(2, 8).unwrap();
        let mut copy = CrcMap::new(5000);
        copy.load(first, &bytes);
        assert_eq!((first, copy.get(a, 3, 4999)), (4, 0x1234));
        assert!(map.take_dirty(0, 8).is_none());
        map.keep_dirty(4, 1);
        assert_eq!(map.take_dirty(0, 8), Some((first, bytes)));
    }

    #[test]
    fn golden_salt() {
        use base::{BlockIndex, FsId, InodeNo, StripIndex, StripeId};
        let strip = StripeId { fs: FsId(1), inode: InodeNo(2), block: BlockIndex(3) }.strip(StripIndex(4));
        assert_eq!((Salt::of(strip).at(0), Salt::of(strip).at(5)), (GOLDEN.0, GOLDEN.1));
    }
    const GOLDEN: (u32, u32) = (4_201_389_581, 3_761_900_561);
}
