//! The redundancy codes: `1way`..`4way` replication and `K+Mp` Reed-Solomon.
//! Only the codes of [`Code::ALL`] can be read from text or bytes, so whoever holds a parsed `Code` holds
//! one whose block sizes divide evenly into strips.

use std::{fmt, str::FromStr};

use base::StripIndex;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Smallest block size in bytes.
pub const BLOCK_SIZE_MIN: u32 = 256 << 10;
/// Largest block size in bytes.
pub const BLOCK_SIZE_MAX: u32 = 16 << 20;

/// How a block is kept redundantly. In text: `1way`..`4way`, `K+Mp`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// The whole block, 1 to 4 times.
    Replicated(
        /// Copies, the first one included.
        u8,
    ),
    /// K data strips and M parity strips; any K of them give the block.
    ReedSolomon {
        /// Data strips.
        k: u8,
        /// Parity strips.
        m: u8,
    },
}

const fn rs(k: u8, m: u8) -> Code {
    Code::ReedSolomon { k, m }
}

impl Code {
    /// Every code there is.
    pub const ALL: [Code; 11] = [
        Code::Replicated(1),
        Code::Replicated(2),
        Code::Replicated(3),
        Code::Replicated(4),
        rs(2, 1),
        rs(4, 2),
        rs(4, 3),
        rs(8, 2),
        rs(8, 3),
        rs(16, 2),
        rs(16, 3),
    ];

    /// Data strips of a stripe: K, or 1 for replication.
    pub fn data(&self) -> u8 {
        match *self {
            Code::Replicated(_) => 1,
            Code::ReedSolomon { k, .. } => k,
        }
    }

    /// Strips that may be lost: M, or copies - 1 for replication.
    pub fn parity(&self) -> u8 {
        match *self {
            Code::Replicated(copies) => copies - 1,
            Code::ReedSolomon { m, .. } => m,
        }
    }

    /// Strips of a stripe: K+M, or the number of copies.
    pub fn width(&self) -> u8 {
        self.data() + self.parity()
    }

    /// Whether strips are copies of the block.
    pub fn is_replicated(&self) -> bool {
        matches!(self, Code::Replicated(_))
    }

    /// Whether strip `i` holds file data as it is (the first copy, for replication).
    pub fn is_data(&self, i: StripIndex) -> bool {
        i.0 < self.data()
    }

    /// Bytes of a whole strip of a block of `block_size` bytes. Strip i of a block is its bytes
    /// [i × block/K, (i+1) × block/K), whatever the file's length.
    pub fn strip_len(&self, block_size: u32) -> u32 {
        block_size / u32::from(self.data())
    }

    /// The block sizes a pool of any code can have: the powers of two from 256 KiB to 16 MiB.
    pub fn allowed_block_sizes() -> impl Iterator<Item = u32> {
        (BLOCK_SIZE_MIN.ilog2()..=BLOCK_SIZE_MAX.ilog2()).map(|shift| 1 << shift)
    }

    /// Refuses a block size that is not one of [`Code::allowed_block_sizes`].
    pub fn check_block_size(size: u64) -> Result<u32, BadBlockSize> {
        u32::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two() && (BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(size))
            .ok_or(BadBlockSize { size })
    }

    /// All codes in one line, for messages.
    pub fn list() -> String {
        Code::ALL.map(|code| code.to_string()).join(", ")
    }
}

/// A redundancy code that is not one of ours.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown redundancy code {input:?}; use one of {}", Code::list())]
pub struct UnknownCode {
    /// What was given.
    pub input: String,
}

/// A block size that no pool can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("block size {size} is not possible; use a power of two from 256k to 16m")]
pub struct BadBlockSize {
    /// What was given, in bytes.
    pub size: u64,
}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(s: &str) -> Result<Code, UnknownCode> {
        let text = s.trim().to_ascii_lowercase();
        Code::ALL
            .into_iter()
            .find(|code| code.to_string() == text)
            .ok_or_else(|| UnknownCode { input: s.to_owned() })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Replicated(copies) => write!(f, "{copies}way"),
            Code::ReedSolomon { k, m } => write!(f, "{k}+{m}p"),
        }
    }
}
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_others_are_refused_with_the_list() {
        for code in Code::ALL {
            assert_eq!(code.to_string().parse::<Code>().unwrap(), code);
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(json, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), code);
        }
        assert_eq!("8+2P".parse::<Code>().unwrap(), Code::ReedSolomon { k: 8, m: 2 });
        for bad in ["", "0way", "5way", "4+2", "6+2p", "4+4p", "+p", "raid6"] {
            let error = bad.parse::<Code>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")) && error.contains("1way, 2way"), "{error}");
            assert!(error.contains("16+3p"), "{error}");
        }
    }

    #[test]
    fn strips_divide_every_allowed_block_into_whole_units() {
        assert_eq!(Code::allowed_block_sizes().count(), 7);
        for code in Code::ALL {
            assert_eq!(code.width(), code.data() + code.parity());
            for block in Code::allowed_block_sizes() {
                assert_eq!(Code::check_block_size(block.into()).unwrap(), block);
                let strip = code.strip_len(block);
                assert_eq!(strip * u32::from(code.data()), block);
                assert_eq!(strip as usize % base::units::UNIT, 0);
            }
        }
        for bad in [0, 1 << 17, 3 << 20, 1 << 25, 1 << 52] {
            let error = Code::check_block_size(bad).unwrap_err().to_string();
            assert!(error.contains(&bad.to_string()), "{error}");
        }
    }
}
