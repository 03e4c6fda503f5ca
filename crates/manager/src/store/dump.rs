//! Dump and restore: the whole content of a store as one stream, independent of the engine.
//!
//! ```text
//! "ropewalk manager dump 1\n"
//! per key, rising:  key_len u32, value_len u32, key, value       (little-endian)
//! end:              0xffffffff u32, count u64, CRC-32C of everything before it u32
//! ```
//! A dump without its end is refused, and so is one whose CRC does not match: nothing is restored then. A store with damaged
//! records is dumped only without them, and only when that is asked for.

use std::{
    io::{Read as _, Write},
    ops::ControlFlow,
};

use crc_fast::{CrcAlgorithm, Digest};

use super::{Changes, KeyText, Read, Store, is_whole, salvage};
use crate::error::ManagerError;

const MAGIC: &[u8] = b"ropewalk manager dump 1\n";
const END: u32 = u32::MAX;
const KEY_LEN_MAX: u32 = 4096;
const VALUE_LEN_MAX: u32 = 64 << 20;
/// Bytes of one commit while restoring.
const COMMIT_BYTES: usize = 16 << 20;

/// What is done about damaged records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damaged {
    /// There is no dump.
    Refuse,
    /// They are not in it.
    LeaveOut,
}

/// Writes a dump, record after record.
pub struct DumpWriter<'a> {
    to: &'a mut dyn Write,
    digest: Digest,
    count: u64,
}

impl<'a> DumpWriter<'a> {
    /// Begins one.
    pub fn begin(to: &'a mut dyn Write) -> Result<DumpWriter<'a>, ManagerError> {
        let mut dump = DumpWriter { to, digest: Digest::new(CrcAlgorithm::Crc32Iscsi), count: 0 };
        dump.write(MAGIC)?;
        Ok(dump)
    }

    /// The next record, by rising key.
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), ManagerError> {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&(value.len() as u32).to_le_bytes());
        self.count += 1;
        [&head[..], key, value].into_iter().try_for_each(|bytes| self.write(bytes))
    }

    /// With its end it is a dump; how many records it has.
    pub fn finish(mut self) -> Result<u64, ManagerError> {
        self.write(&END.to_le_bytes())?;
        self.write(&self.count.to_le_bytes())?;
        let crc = self.digest.clone().finalize() as u32;
        self.write(&crc.to_le_bytes())?;
        Ok(self.count)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ManagerError> {
        self.digest.update(bytes);
        let written = self.to.write_all(bytes);
        written.map_err(|source| ManagerError::Io { action: "write", path: "dump".into(), source })
    }
}

/// Writes everything in `from`; returns the number of keys, and what was left out, for people.
pub fn dump(
    from: &dyn Read,
    to: &mut dyn Write,
    damaged: Damaged,
) -> Result<(u64, Vec<String>), ManagerError> {
    let (mut dump, mut left_out, mut failed) = (DumpWriter::begin(to)?, Vec::new(), None);
    let mut visit = |key: &[u8], value: &[u8]| {
        if !is_whole(key, value) {
            left_out.push(format!("record {}", KeyText(key.to_vec())));
            return match damaged {
                Damaged::Refuse => ControlFlow::Break(()),
                Damaged::LeaveOut => ControlFlow::Continue(()),
            };
        }
        match dump.record(key, value) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    let gaps = match damaged {
        Damaged::Refuse => from.scan(&[], &[u8::MAX; 16], &mut visit).map(|()| Vec::new())?,
        Damaged::LeaveOut => salvage(from, &mut visit)?,
    };
    if let Some(error) = failed {
        return Err(error);
    }
    if damaged == Damaged::Refuse
        && let Some(what) = left_out.first()
    {
        return Err(ManagerError::Damaged { what: what.clone() });
    }
    left_out.extend(gaps);
    Ok((dump.finish()?, left_out))
}

struct Input<'a> {
    from: &'a mut dyn std::io::Read,
    digest: Digest,
    offset: u64,
}

impl Input<'_> {
    fn bad(&self, reason: &str) -> ManagerError {
        ManagerError::BadDump { offset: self.offset, reason: reason.to_owned() }
    }
    /// The next `len` bytes; memory grows only with bytes that are really there.
    fn take(&mut self, len: usize) -> Result<Vec<u8>, ManagerError> {
        let mut bytes = Vec::new();
        let got = (&mut self.from).take(len as u64).read_to_end(&mut bytes);
        got.map_err(|source| ManagerError::Io { action: "read", path: "dump".into(), source })?;
        if bytes.len() < len {
            return Err(self.bad("ends early"));
        }
        self.digest.update(&bytes);
        self.offset += len as u64;
        Ok(bytes)
    }
    fn take_u32(&mut self) -> Result<u32, ManagerError> {
        let bytes = self.take(4)?;
        bytes.try_into().map(u32::from_le_bytes).map_err(|_| self.bad("ends early"))
    }
    fn take_u64(&mut self) -> Result<u64, ManagerError> {
        let bytes = self.take(8)?;
        bytes.try_into().map(u64::from_le_bytes).map_err(|_| self.bad("ends early"))
    }
}

/// Reads a dump into an empty store; returns the number of keys. On an error the store holds a part
/// and must be thrown away (the caller restores beside the final name and renames at the end).
pub fn restore(from: &mut dyn std::io::Read, to: &dyn Store) -> Result<u64, ManagerError> {
    let mut input = Input { from, digest: Digest::new(CrcAlgorithm::Crc32Iscsi), offset: 0 };
    if input.take(MAGIC.len())? != MAGIC {
        return Err(input.bad("is not a manager dump of version 1"));
    }
    let (mut changes, mut bytes, mut count) = (Changes::new(), 0, 0u64);
    let mut last: Option<Vec<u8>> = None;
    loop {
        let key_len = input.take_u32()?;
        if key_len == END {
            break;
        }
        let value_len = input.take_u32()?;
        if key_len > KEY_LEN_MAX || value_len > VALUE_LEN_MAX {
            return Err(input.bad("length out of bounds"));
        }
        let key = input.take(key_len as usize)?;
        let value = input.take(value_len as usize)?;
        if last.as_ref().is_some_and(|last| *last >= key) {
            return Err(input.bad("keys do not rise"));
        }
        last = Some(key.clone());
        bytes += key.len() + value.len();
        count += 1;
        changes.insert(key, Some(value));
        if bytes > COMMIT_BYTES {
            to.commit(&std::mem::take(&mut changes))?;
            bytes = 0;
        }
    }
    let counted = input.take_u64()?;
    let crc = input.digest.finalize() as u32;
    if counted != count || input.take_u32()? != crc {
        return Err(input.bad("count or CRC mismatch"));
    }
    if input.take(1).is_ok() {
        return Err(input.bad("goes on after its end"));
    }
    to.commit(&changes)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mutate::mutated,
        store::{RedbStore, Snapshot, StoreError, seal_bytes},
    };

    /// A store that forgets.
    struct Nowhere;

    impl Store for Nowhere {
        fn snapshot(&self) -> Result<Snapshot, StoreError> {
            unreachable!("nothing is read")
        }
        fn commit(&self, _: &Changes) -> Result<(), StoreError> {
            Ok(())
        }
        fn describe(&self) -> String {
            "nowhere".into()
        }
    }

    /// Dumps that are damaged, and yet match their CRC.
    #[test]
    fn changed_dumps_are_refused_or_mean_something() {
        let dir = tempfile::tempdir().unwrap();
        let store = RedbStore::create(&dir.path().join("a"), 1 << 20).unwrap();
        let record = |n: u32| {
            let key = n.to_be_bytes().to_vec();
            let value = seal_bytes(&key, 1, &[n as u8; 9]);
            (key, Some(value))
        };
        store.commit(&(0..9).map(record).collect()).unwrap();
        let mut bytes = Vec::new();
        dump(&*store.snapshot().unwrap(), &mut bytes, Damaged::Refuse).unwrap();
        assert_eq!(restore(&mut bytes.as_slice(), &Nowhere).unwrap(), 9);
        mutated(&[bytes], 10_000, |bytes| {
            let mut bytes = bytes.to_vec();
            if let Some(end) = bytes.len().checked_sub(4) {
                let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
                digest.update(&bytes[..end]);
                bytes[end..].copy_from_slice(&(digest.finalize() as u32).to_le_bytes());
            }
            if let Ok(count) = restore(&mut bytes.as_slice(), &Nowhere) {
                assert!(count < bytes.len() as u64);
            }
        });
    }

    #[test]
    fn a_dump_comes_back_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let store = RedbStore::create(&dir.path().join("a"), 1 << 20).unwrap();
        let record = |n: u32| {
            let key = n.to_be_bytes().to_vec();
            let value = seal_bytes(&key, 1, &vec![n as u8; (n % 97) as usize]);
            (key, Some(value))
        };
        let changes: Changes = (0..500u32).map(record).collect();
        store.commit(&changes).unwrap();
        let mut bytes = Vec::new();
        let whole = dump(&*store.snapshot().unwrap(), &mut bytes, Damaged::Refuse).unwrap();
        assert_eq!(whole, (500, vec![]));

        let copy = RedbStore::create(&dir.path().join("b"), 1 << 20).unwrap();
        assert_eq!(restore(&mut bytes.as_slice(), &copy).unwrap(), 500);
        let mut again = Vec::new();
        dump(&*copy.snapshot().unwrap(), &mut again, Damaged::LeaveOut).unwrap();
        assert_eq!(bytes, again);

        let fresh = RedbStore::create(&dir.path().join("c"), 1 << 20).unwrap();
        for len in [0, 10, MAGIC.len() + 2, bytes.len() - 1] {
            assert!(matches!(restore(&mut &bytes[..len], &fresh), Err(ManagerError::BadDump { .. })));
        }
        let longer = [bytes.as_slice(), b"x"].concat();
        assert!(matches!(restore(&mut longer.as_slice(), &fresh), Err(ManagerError::BadDump { .. })));
        let mut torn = bytes.clone();
        torn[1000] ^= 1;
        assert!(restore(&mut torn.as_slice(), &fresh).is_err());

        // One record is not what was written: no dump, or one without it.
        store.commit(&[(7u32.to_be_bytes().to_vec(), Some(b"other".to_vec()))].into()).unwrap();
        let snapshot = store.snapshot().unwrap();
        let error = dump(&*snapshot, &mut Vec::new(), Damaged::Refuse).unwrap_err().to_string();
        assert!(error.contains("000007"), "{error}");
        let (count, left_out) = dump(&*snapshot, &mut Vec::new(), Damaged::LeaveOut).unwrap();
        assert_eq!((count, left_out.len()), (499, 1));
    }
}
