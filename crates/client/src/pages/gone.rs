//! Why blocks are no longer in memory, as far as is remembered: for who asks why reads miss. A table of fixed size that
//! forgets: what comes later to a place takes it. Nothing depends on it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use base::InodeNo;

/// Blocks that are remembered, at most: 256 KiB.
const PLACES: usize = 1 << 16;

/// Why a block went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// For room.
    Evicted = 0,
    /// Another mount wanted it.
    GivenUp = 1,
}

/// The blocks.
pub(crate) struct Gone(Box<[AtomicU32]>);

impl Default for Gone {
    fn default() -> Gone {
        Gone((0..PLACES).map(|_| AtomicU32::new(0)).collect())
    }
}

/// Its place, and what stands there for it: the last bit is the reason's, 0 is nobody's.
fn place(ino: InodeNo, block: u64) -> (usize, u32) {
    let mixed = (ino.0 ^ block.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed as usize % PLACES, (mixed >> 32) as u32 & !1 | 2)
}

impl Gone {
    /// A block goes.
    pub fn note(&self, ino: InodeNo, block: u64, why: Why) {
        let (at, mark) = place(ino, block);
        self.0[at].store(mark | why as u32, Relaxed);
    }

    /// Why it went, if that is remembered.
    pub fn why(&self, ino: InodeNo, block: u64) -> Option<Why> {
        let (at, mark) = place(ino, block);
        match self.0[at].load(Relaxed) {
            there if there & !1 != mark => None,
            there if there & 1 == 0 => Some(Why::Evicted),
            _ => Some(Why::GivenUp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_last_is_remembered() {
        let gone = Gone::default();
        let files = |n: u64| InodeNo(1000 + n);
        assert!((0..1000).all(|n| gone.why(files(n), 0).is_none()));
        for n in 0..1000 {
            gone.note(files(n), n, if n % 3 == 0 { Why::GivenUp } else { Why::Evicted });
        }
        let expected = |n: u64| Some(if n.is_multiple_of(3) { Why::GivenUp } else { Why::Evicted });
        // Some share a place; none is taken for another.
        assert!((0..1000).filter(|n| gone.why(files(*n), *n) == expected(*n)).count() > 950);
        assert!((0..1000).all(|n| gone.why(files(n), n + 1).is_none()));
    }
}
