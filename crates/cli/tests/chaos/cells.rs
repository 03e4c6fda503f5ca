//! The bytes of the campaign's files: cells of 512 bytes, each of which says of which file, place and write it is.
//! So every byte read says which write it comes from; what was mixed or changed says so too.

use crate::common::Random;

/// Bytes of a cell.
pub const CELL: usize = 512;
const MAGIC: [u8; 8] = *b"ropecell";
const HEAD: usize = 24;

/// What a cell holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Zeros.
    Zero,
    /// As it was written: file, place, number of the write, cells of the record.
    Cell { file: u32, place: u32, tag: u32, parts: u32 },
    /// Nothing that was ever written as a whole.
    Foreign,
}

/// The bytes of a cell.
pub fn fill(cell: &mut [u8], file: u32, place: u32, tag: u32, parts: u32) {
    cell[..8].copy_from_slice(&MAGIC);
    for (i, number) in [file, place, tag, parts].into_iter().enumerate() {
        cell[8 + 4 * i..12 + 4 * i].copy_from_slice(&number.to_le_bytes());
    }
    Random((u64::from(file) << 48) ^ (u64::from(place) << 24) ^ u64::from(tag)).fill(&mut cell[HEAD..]);
}

/// `count` cells of one write that begins at cell `first`.
pub fn cells(file: u32, first: u32, count: u32, tag: u32) -> Vec<u8> {
    let mut bytes = vec![0; count as usize * CELL];
    for (place, cell) in (first..).zip(bytes.chunks_exact_mut(CELL)) {
        fill(cell, file, place, tag, 1);
    }
    bytes
}

/// A record that is appended as a whole: its cells count from 0.
pub fn record(file: u32, tag: u32, parts: u32) -> Vec<u8> {
    let mut bytes = vec![0; parts as usize * CELL];
    for (place, cell) in (0..).zip(bytes.chunks_exact_mut(CELL)) {
        fill(cell, file, place, tag, parts);
    }
    bytes
}

/// What these bytes are. A short cell is none.
pub fn read(cell: &[u8]) -> Seen {
    if cell.iter().all(|&b| b == 0) {
        return Seen::Zero;
    }
    if cell.len() != CELL || cell[..8] != MAGIC {
        return Seen::Foreign;
    }
    let number = |i: usize| u32::from_le_bytes([cell[i], cell[i + 1], cell[i + 2], cell[i + 3]]);
    let (file, place, tag, parts) = (number(8), number(12), number(16), number(20));
    let mut whole = [0; CELL];
    fill(&mut whole, file, place, tag, parts);
    if whole == *cell { Seen::Cell { file, place, tag, parts } } else { Seen::Foreign }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_says_what_it_is_and_any_change_shows() {
        let bytes = cells(3, 7, 2, 99);
        assert_eq!(read(&bytes[CELL..]), Seen::Cell { file: 3, place: 8, tag: 99, parts: 1 });
        assert_eq!(read(&[0; CELL]), Seen::Zero);
        for at in [0, 9, 13, 17, 30, 511] {
            let mut bytes = bytes[..CELL].to_vec();
            bytes[at] ^= 4;
            assert_eq!(read(&bytes), Seen::Foreign, "bit {at}");
        }
        let mixed = [&bytes[..256], &cells(3, 7, 1, 100)[256..]].concat();
        assert_eq!(read(&mixed), Seen::Foreign);
        assert_eq!(read(&bytes[..100]), Seen::Foreign);
    }
}
