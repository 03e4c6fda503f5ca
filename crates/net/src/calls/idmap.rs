//! Maps by request number, with a hash of one multiplication: a small call passes four of them on its way.
//!
//! A peer that chooses its numbers to collide gains little: as many as its window allows are in a map at once.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A map by request number.
pub(crate) type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    /// For completeness: numbers are hashed by `write_u64`.
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_spread_over_low_and_high_bits() {
        let hash = |id| {
            let mut hasher = IdHasher::default();
            hasher.write_u64(id);
            hasher.finish()
        };
        let distinct = |part: fn(u64) -> u64| {
            (0..1000).map(|i| part(hash(i))).collect::<std::collections::HashSet<_>>().len()
        };
        assert!(distinct(|h| h & 0x3fff) > 900 && distinct(|h| h >> 57) > 100);
    }
}
