//! Writes into one file: their numbers, and runs of them, each beginning where the last ended.

use base::units::UNIT;

use crate::pages::piece::PIECE_UNITS_MAX;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Writes {
    /// Number of the last one.
    last: u64,
    run_end: u64,
    run_bytes: u64,
}

impl Writes {
    /// The number of a write that happens now.
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of the last one.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Where the run has come to.
    pub fn run_end(&self) -> u64 {
        self.run_end
    }

    /// The next write begins a run.
    pub fn end_run(&mut self) {
        (self.run_end, self.run_bytes) = (0, 0);
    }

    /// Notes where a write goes; returns the length of a new piece, by how much was written in sequence.
    pub fn grow_units(&mut self, pos: u64, len: u64) -> u32 {
        let bytes = if self.run_end == pos { self.run_bytes + len } else { len };
        (self.run_end, self.run_bytes) = (pos + len, bytes);
        if bytes == len {
            return 1;
        }
        (bytes / UNIT as u64).next_power_of_two().min(u64::from(PIECE_UNITS_MAX)) as u32
    }
}
