//! Valid inputs, changed at random, for the tests of whatever decodes bytes from outside: stable Rust, a seed, and an input that
//! makes the decoder panic is printed. A few seconds of rounds each; `ROPEWALK_FUZZ_ROUNDS` says how many instead.
#![allow(dead_code, clippy::print_stderr)] // each test uses a part

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A small generator of numbers (SplitMix64, Steele et al. 2014).
pub struct Random(pub u64);

/// What lengths and counts are replaced by.
const EXTREMES: [&[u8]; 8] =
    [b"0", b"-1", b"1e400", b"NaN", b"4294967296", b"18446744073709551615", b"99999999999999999999", b""];

impl Random {
    /// From `ROPEWALK_TEST_SEED`, else always the same; another one each time where that says `random`, and for long.
    pub fn seeded() -> Random {
        let given = std::env::var("ROPEWALK_TEST_SEED").ok();
        let long =
            ["ROPEWALK_FUZZ_ROUNDS", "ROPEWALK_SOAK"].iter().any(|name| std::env::var_os(name).is_some());
        let draws = given.as_deref() == Some("random") || given.is_none() && long;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let drawn = draws.then(|| now.map_or(1, |time| time.as_nanos() as u64));
        Random(drawn.or_else(|| given?.parse().ok()).unwrap_or(7))
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
    /// Below `n`; 0 if that is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    /// Changes a few places: bits, bytes, lengths of all ones, numbers; cuts, repeats, inserts.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(7) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = self.next() as u8,
                2 => bytes.iter_mut().skip(at).take(10).for_each(|b| *b = 0xff),
                3 => bytes.truncate(at),
                4 => bytes.extend_from_within(at..),
                5 => {
                    let number = |b: &&u8| b.is_ascii_digit() || **b == b'.';
                    let from = at + bytes[at..].iter().take_while(|b| !number(b)).count();
                    let len = bytes[from..].iter().take_while(number).count();
                    bytes.splice(from..from + len, EXTREMES[self.below(EXTREMES.len())].iter().copied());
                }
                _ => bytes.insert(at, self.next() as u8),
            }
        }
    }
}

/// How many rounds: as told by `ROPEWALK_FUZZ_ROUNDS`, else `short`.
pub fn rounds(short: usize) -> usize {
    std::env::var("ROPEWALK_FUZZ_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(short)
}

/// Gives `check` each of the samples, then changed ones, and pieces of two of them put together.
pub fn mutated(samples: &[Vec<u8>], short: usize, mut check: impl FnMut(&[u8])) {
    let mut random = Random::seeded();
    let seed = random.0;
    let mut checked = |bytes: &[u8]| {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(bytes)));
        outcome.unwrap_or_else(|panic| {
            eprintln!("ROPEWALK_TEST_SEED={seed}; the input was {:?}", bytes.escape_ascii().to_string());
            resume_unwind(panic)
        });
    };
    samples.iter().for_each(|sample| checked(sample));
    for round in 0..rounds(short) {
        let mut bytes = samples[round % samples.len()].clone();
        if random.below(8) == 0 {
            let other = &samples[random.below(samples.len())];
            bytes.truncate(random.below(bytes.len() + 1));
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        random.mutate(&mut bytes);
        checked(&bytes);
    }
}
