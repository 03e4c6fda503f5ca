//! What a read of the file may give. One thread writes; before each change it says of every cell that the change begins, and
//! afterwards that it is done. Each generation of a cell has a number, which stands in all its words beside the cell's own.
//!
//! A read must give, of every word: no generation older than the last one done when the read began (nor than what
//! the same reader saw of the whole cell before), and none that had not begun when it ended. Zeros must have been made in that
//! time. It may be short only of what was beyond the end of the file at some moment of it. That is a regular register for each
//! word, which never goes back for one reader: what a local file system gives, whatever is mixed.

use std::{
    ops::Range,
    sync::{
        RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

/// Bytes that have a generation of their own: what is changed begins and ends with one.
pub const CELL: u64 = 64;
/// Bytes of the file that are always there.
pub const BASE: u64 = (1 << 20) + (320 << 10);
/// The file is never longer.
pub const MAX: u64 = BASE + (256 << 10);
/// Bytes of a page.
pub const PAGE: u64 = 4096;
const CELLS: usize = (MAX / CELL) as usize;
/// A word is a generation and, in as many low bits, the cell's number.
const NUMBER_BITS: u32 = 20;

/// See the file's head.
pub struct Judge {
    begun: Vec<AtomicU64>,
    done: Vec<AtomicU64>,
    /// The last generation of zeros that began.
    zeroed: Vec<AtomicU64>,
    last: AtomicU64,
    sizes: RwLock<Vec<u64>>,
    size_done: AtomicUsize,
}

/// What was done before a read.
pub struct Before {
    range: Range<u64>,
    done: Vec<u64>,
    size: usize,
}

fn cells(range: &Range<u64>) -> Range<usize> {
    (range.start / CELL) as usize..range.end.div_ceil(CELL) as usize
}

fn table() -> Vec<AtomicU64> {
    (0..CELLS).map(|_| AtomicU64::new(0)).collect()
}

impl Judge {
    /// Of a file of [`BASE`] zeros.
    pub fn new() -> Judge {
        Judge {
            begun: table(),
            done: table(),
            zeroed: table(),
            last: AtomicU64::new(0),
            sizes: RwLock::new(vec![BASE]),
            size_done: AtomicUsize::new(0),
        }
    }

    /// A change of these bytes begins; its generation.
    pub fn begin(&self, range: &Range<u64>, zeros: bool) -> u64 {
        let generation = self.last.fetch_add(1, SeqCst) + 1;
        for cell in cells(range) {
            if zeros {
                self.zeroed[cell].store(generation, SeqCst);
            }
            self.begun[cell].store(generation, SeqCst);
        }
        generation
    }

    /// It is done.
    pub fn end(&self, range: &Range<u64>, generation: u64) {
        cells(range).for_each(|cell| self.done[cell].store(generation, SeqCst));
    }

    /// The file is about to have this size, and has it when what is given back is called.
    pub fn resize(&self, size: u64) -> impl FnOnce() {
        let mut sizes = self.sizes.write().unwrap_or_else(|e| e.into_inner());
        sizes.push(size);
        let number = sizes.len() - 1;
        move || self.size_done.store(number, SeqCst)
    }

    /// The size, for the one who changes it.
    pub fn size(&self) -> u64 {
        *self.sizes.read().unwrap_or_else(|e| e.into_inner()).last().unwrap_or(&0)
    }

    /// A read of these bytes is about to begin.
    pub fn before(&self, range: Range<u64>) -> Before {
        let size = self.size_done.load(SeqCst);
        let done = self.done[cells(&range)].iter().map(|done| done.load(SeqCst)).collect();
        Before { range, done, size }
    }

    /// It has given these bytes. `seen` is the reader's own, of [`Judge::unseen`].
    pub fn check(&self, before: &Before, bytes: &[u8], seen: &mut [u64]) -> Result<(), String> {
        let Range { start, end } = before.range;
        {
            let sizes = self.sizes.read().unwrap_or_else(|e| e.into_inner());
            let window = &sizes[before.size..];
            let (least, most) = (window.iter().min().copied(), window.iter().max().copied());
            let got = start + bytes.len() as u64;
            if got < end.min(least.unwrap_or(0)) || !bytes.is_empty() && got > most.unwrap_or(0) {
                return Err(format!("{start}..{end} gave bytes up to {got} of a file of {window:?}"));
            }
        }
        for (cell, (words, done)) in cells(&before.range).zip(bytes.chunks(CELL as usize).zip(&before.done)) {
            let floor = seen[cell].max(*done);
            let mut oldest = u64::MAX;
            // Mostly all words are the same: then they are the same as those one further.
            let same = words.len() > 8 && words[8..] == words[..words.len() - 8];
            for word in words.chunks_exact(8).take(if same { 1 } else { usize::MAX }) {
                let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
                oldest = oldest.min(word >> NUMBER_BITS);
                self.check_word(cell, word, floor).map_err(|why| {
                    let place = cell as u64 * CELL;
                    let (seen, zeroed) = (seen[cell], self.zeroed[cell].load(SeqCst));
                    format!(
                        "{start}..{end} at {place}: {why}, {done} was done before, {seen} was seen, \
                         {zeroed} are the last zeros"
                    )
                })?;
            }
            if oldest != u64::MAX {
                seen[cell] = seen[cell].max(oldest);
            }
        }
        Ok(())
    }

    fn check_word(&self, cell: usize, word: u64, floor: u64) -> Result<(), String> {
        let (generation, number) = (word >> NUMBER_BITS, word as usize & ((1 << NUMBER_BITS) - 1));
        let (begun, zeroed) = (self.begun[cell].load(SeqCst), self.zeroed[cell].load(SeqCst));
        if word == 0 {
            return if zeroed >= floor { Ok(()) } else { Err(format!("zeros, the last of {zeroed}")) };
        }
        if number != cell {
            return Err(format!("what belongs to {}", number as u64 * CELL));
        }
        if (floor..=begun).contains(&generation) { Ok(()) } else { Err(format!("{generation} of {begun}")) }
    }

    /// What a reader that has seen nothing has seen.
    pub fn unseen() -> Vec<u64> {
        vec![0; CELLS]
    }
}

/// Fills bytes that are to stand at `at`.
pub fn stamp(bytes: &mut [u8], at: u64, generation: u64) {
    for (number, cell) in bytes.chunks_mut(CELL as usize).enumerate() {
        let word = generation << NUMBER_BITS | (at / CELL + number as u64);
        cell.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&word.to_ne_bytes()));
    }
}

/// Splitmix64 (Steele, Lea, Flood, 2014).
pub struct Random(pub u64);

impl Random {
    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}
