//! Records of a history on disk: their bytes, and what they say.
//!
//! A file begins with [`MAGIC`]. Each record is its length (4 bytes), a CRC-32C of length and body (4 bytes), and the body: a
//! postcard encoding of [`Entry`]. What does not fit, by length or by CRC, ends the file: it is a torn end, or damage. An
//! entry of a kind that this program does not know is passed over. `docs/format-analytics.md` shows a whole file.

use std::collections::BTreeMap;

use base::stats::{Second, Set};
use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};

/// How a file begins; the last byte is the version.
pub const MAGIC: [u8; 8] = *b"RWHIST\0\x01";
/// Length and CRC.
const HEAD: usize = 8;
/// Longest body, bytes.
pub const BODY_MAX: usize = 4 << 20;

/// Whose history it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// What the cluster calls the process: `manager`, a node's name, a mount point.
    pub name: String,
    /// `manager`, `nsd` or `client`.
    pub role: String,
    /// Its machine.
    pub host: String,
    /// The file system that it has mounted; 0: none.
    pub fs: u32,
    /// Of a client, its session; 0: none.
    pub session: u64,
}

/// What a record says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// Whose the following seconds are. What was said of numbers before holds no more.
    Origin(Origin),
    /// What number a series has from here on.
    Series {
        /// The number.
        number: u32,
        /// Its family.
        name: String,
        /// Its labels.
        labels: BTreeMap<String, String>,
    },
    /// What an operation of a set is called.
    Op {
        /// The set.
        set: Set,
        /// The operation.
        number: u8,
        /// Its name.
        name: String,
    },
    /// What a class of a set is called.
    Class {
        /// The set.
        set: Set,
        /// The class.
        number: u8,
        /// Its name.
        name: String,
    },
    /// A second, or several put together.
    Second(Second),
    /// In a recording: how numbers are shown, as JSON.
    Names(String),
}

fn crc(length: [u8; 4], body: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&length);
    digest.update(body);
    // The 32-bit algorithms return their value in the low half.
    digest.finalize() as u32
}

/// Adds a record. One that is too long is left out: false.
pub fn put(into: &mut Vec<u8>, entry: &Entry) -> bool {
    let Ok(body) = postcard::to_stdvec(entry) else { return false };
    if body.len() > BODY_MAX {
        return false;
    }
    let length = (body.len() as u32).to_le_bytes();
    into.extend_from_slice(&length);
    into.extend_from_slice(&crc(length, &body).to_le_bytes());
    into.extend_from_slice(&body);
    true
}

/// The records of a file, up to its end or the first that does not fit.
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// Of a whole file.
    pub fn of(bytes: &'a [u8]) -> Records<'a> {
        let at = if bytes.starts_with(&MAGIC) { MAGIC.len() } else { 0 };
        Records { bytes, at }
    }

    /// How far the file is good, once all have been read.
    pub fn good(&self) -> usize {
        self.at
    }

    fn body(&mut self) -> Option<&'a [u8]> {
        if self.at < MAGIC.len() {
            return None;
        }
        let (length, rest) = self.bytes.get(self.at..)?.split_first_chunk::<4>()?;
        let (stored, rest) = rest.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*length) as usize;
        let body = rest.get(..len).filter(|_| len <= BODY_MAX)?;
        (crc(*length, body) == u32::from_le_bytes(*stored)).then(|| {
            self.at += HEAD + len;
            body
        })
    }
}

impl Iterator for Records<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let body = self.body()?;
            if let Ok(entry) = postcard::from_bytes(body) {
                return Some(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::stats::{Amount, Gain, Key, Operations, Row};
    use proptest::prelude::*;

    use super::*;

    fn entries() -> Vec<Entry> {
        let amount = Amount { ops: 3, bytes: 12288, ns: 9_000_000, latency: vec![(34, 2), (36, 1)] };
        let key = Key { session: 5, inode: 7, fs: 1, user: 1000, op: 15, size: 13, ..Key::default() };
        let row = Row { key, amount: amount.clone(), missed: 1 };
        let operations = vec![Operations { set: Set::File, rows: vec![row], other: vec![(16, amount)] }];
        vec![
            Entry::Origin(Origin {
                name: "/mnt/a".to_owned(),
                role: "client".to_owned(),
                host: "h1".to_owned(),
                fs: 1,
                session: 5,
            }),
            Entry::Series {
                number: 0,
                name: "net_sent_bytes".to_owned(),
                labels: [("lane".to_owned(), "bulk".to_owned()), ("peer".to_owned(), "n1".to_owned())].into(),
            },
            Entry::Op { set: Set::File, number: 15, name: "read".to_owned() },
            Entry::Class { set: Set::File, number: 0, name: "other".to_owned() },
            Entry::Second(Second {
                at: 1_790_000_000,
                span: 1,
                recorded: 1,
                elapsed_us: 1_000_100,
                operations,
                series: vec![(0, Gain::Counter(4096))],
            }),
        ]
    }

    fn file() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        entries().iter().for_each(|entry| assert!(put(&mut bytes, entry)));
        bytes
    }

    /// The example of docs/format-analytics.md.
    #[test]
    fn golden() {
        let doc = include_str!("../../../../docs/format-analytics.md");
        let hex = doc.split("```golden\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let golden: String = hex.split_whitespace().collect();
        let own: String = file().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(own, golden);
        assert_eq!(Records::of(&file()).collect::<Vec<_>>(), entries());
    }

    /// What docs/analytics.md says of the room that histories take.
    #[test]
    fn the_fullest_seconds_and_minutes_fit_what_is_said_of_them() {
        let bytes = |rows: u64, buckets: u8, ops: u64| {
            let row = |n: u64| {
                let key = Key {
                    session: 100_000,
                    inode: 1 << 40 | n,
                    fs: 1,
                    user: 100_000,
                    place: 300,
                    op: 15,
                    class: 3,
                    size: 20,
                };
                let latency = (0..buckets).map(|bucket| (40 + bucket, ops)).collect();
                let ops = ops * u64::from(buckets);
                Row { key, amount: Amount { ops, bytes: ops << 17, ns: ops << 20, latency }, missed: 200 }
            };
            let operations =
                vec![Operations { set: Set::Strip, rows: (0..rows).map(row).collect(), other: Vec::new() }];
            let series = (0..200).map(|number| (number, Gain::Counter(1 << 30))).collect();
            let second =
                Second { at: 1_790_000_000, span: 1, recorded: 1, elapsed_us: 1_000_000, operations, series };
            let mut bytes = Vec::new();
            assert!(put(&mut bytes, &Entry::Second(second)));
            bytes.len()
        };
        assert!(bytes(512, 4, 100) < 30_000, "{}", bytes(512, 4, 100));
        assert!(bytes(128, 10, 6000) < 10_000, "{}", bytes(128, 10, 6000));
    }

    #[test]
    fn a_torn_end_is_found_wherever_it_is() {
        let whole = file();
        for len in 0..whole.len() {
            let mut records = Records::of(&whole[..len]);
            let read: Vec<Entry> = records.by_ref().collect();
            assert_eq!(read, entries()[..read.len()], "{len}");
            assert!(records.good() <= len && read.len() < entries().len());
        }
    }

    proptest! {
        #[test]
        fn changed_bytes_are_never_taken_for_others(at in 0usize..1000, flip in 1u8..=255) {
            let mut bytes = file();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            let read: Vec<Entry> = Records::of(&bytes).collect();
            prop_assert_eq!(&read[..], &entries()[..read.len()]);
            prop_assert!(read.len() < entries().len());
        }
    }
}
