//! Numbers from a seed: Steele, Lea and Flood's SplitMix64, equal everywhere; any state begins a good sequence.

/// A sequence of numbers.
pub struct Draw(u64);

impl Draw {
    /// From a seed.
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }
    /// The next number of 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n
    }
    /// From -1 to 1.
    pub fn number(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed| super::Draw::new(seed).word();
        // The published sequence from 0.
        assert_eq!((draw(0), draw(7)), (0xe220_a839_7b1d_cdaf, draw(7)));
        assert_ne!(draw(7), draw(8));
        let mut draw = super::Draw::new(1);
        assert!((0..100).all(|_| draw.below(3) < 3 && draw.number().abs() <= 1.0));
    }
}
