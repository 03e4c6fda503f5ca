//! How values are kept: version, content, CRC.
//!
//! ```text
//! version  1 byte
//! content  postcard of the record's type, or plain bytes
//! crc      4 bytes, little-endian: CRC-32C of key, version and content
//! ```
//! The key is under the CRC, so that a value under a wrong key is seen. A value that does not fit is a
//! [`BadRecord`] that names its key; the caller gets EIO and nothing else is hurt.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

/// A type that is kept as a value.
pub trait Record: Serialize + DeserializeOwned {
    /// Its name in messages.
    const NAME: &'static str;
    /// Raised when the type changes.
    const VERSION: u8;
}

/// A value that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name} record {key} is damaged: {reason}")]
pub struct BadRecord {
    /// What it should be.
    pub name: &'static str,
    /// Its key.
    pub key: KeyText,
    /// What is wrong.
    pub reason: &'static str,
}

/// A key as people read it: its first letter, the rest in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyText(pub Vec<u8>);

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.0.first() {
            write!(f, "{}:", char::from(*first).escape_default())?;
        }
        self.0.iter().skip(1).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn crc(key: &[u8], value: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(value);
    digest.finalize() as u32
}

/// The value of plain bytes under `key`.
pub fn seal_bytes(key: &[u8], version: u8, content: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(content.len() + 5);
    value.push(version);
    value.extend_from_slice(content);
    let crc = crc(key, &value);
    value.extend_from_slice(&crc.to_le_bytes());
    value
}

/// Whether a value of any kind is what was written under its key.
pub fn is_whole(key: &[u8], value: &[u8]) -> bool {
    let parts = value.split_last_chunk::<4>();
    parts.is_some_and(|(covered, stored)| crc(key, covered) == u32::from_le_bytes(*stored))
}

/// The plain bytes of a value.
pub fn open_bytes<'a>(
    name: &'static str,
    key: &[u8],
    version: u8,
    value: &'a [u8],
) -> Result<&'a [u8], BadRecord> {
    let bad = |reason| BadRecord { name, key: KeyText(key.to_vec()), reason };
    let (covered, stored) = value.split_last_chunk::<4>().ok_or_else(|| bad("too short"))?;
    if crc(key, covered) != u32::from_le_bytes(*stored) {
        return Err(bad("CRC mismatch"));
    }
    match covered.split_first() {
        Some((&found, content)) if found == version => Ok(content),
        Some(_) => Err(bad("unknown version")),
        None => Err(bad("too short")),
    }
}

/// The value of a record under `key`.
pub fn seal_record<T: Record>(key: &[u8], record: &T) -> Vec<u8> {
    seal_bytes(key, T::VERSION, &wire::frame::encode(record))
}

/// The record in a value.
pub fn open_record<T: Record>(key: &[u8], value: &[u8]) -> Result<T, BadRecord> {
    let content = open_bytes(T::NAME, key, T::VERSION, value)?;
    wire::frame::decode(content).map_err(|_| BadRecord {
        name: T::NAME,
        key: KeyText(key.to_vec()),
        reason: "content does not decode",
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        a: u64,
        b: Vec<u8>,
    }
    impl Record for Sample {
        const NAME: &'static str = "sample";
        const VERSION: u8 = 3;
    }

    #[test]
    fn every_flipped_bit_of_key_or_value_is_seen() {
        let sample = Sample { a: 77, b: b"rope".to_vec() };
        let value = seal_record(b"k1", &sample);
        assert_eq!(open_record::<Sample>(b"k1", &value), Ok(sample));
        for bit in 0..value.len() * 8 {
            let mut torn = value.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(open_record::<Sample>(b"k1", &torn).is_err(), "bit {bit}");
        }
        let error = open_record::<Sample>(b"k2", &value).unwrap_err();
        assert_eq!(error.to_string(), "sample record k:32 is damaged: CRC mismatch");
        for len in 0..value.len() {
            assert!(open_record::<Sample>(b"k1", &value[..len]).is_err());
        }
    }

    #[test]
    fn golden_value() {
        let value = seal_record(b"k", &Sample { a: 300, b: vec![1, 2] });
        assert_eq!(value[..6], [3, 0xac, 0x02, 2, 1, 2]);
        assert_eq!(value.len(), 10);
        assert_eq!(value[6..], wire::crc::crc32c(b"k\x03\xac\x02\x02\x01\x02").to_le_bytes());
    }
}
