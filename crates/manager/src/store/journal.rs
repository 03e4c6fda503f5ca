//! The journal: what was committed since the table's last durable state, so that a commit costs one short
//! sequential write and one flush, not a durable rewrite of the table's tree.
//!
//! ```text
//! header, 4096 bytes:   "ropewalk journal", version u32, id u64, CRC-32C of these u32, zeros
//! records, each at a multiple of 4096:
//!   magic u32, length of the changes u32, sequence number u64, CRC-32C of id, sequence number and changes u32
//!   per change: key_len u32, value_len u32 (all ones: a deletion), key, value
//! ```
//! All numbers are little-endian. Sequence numbers rise by one. When the file is full the table is made durable
//! with the number of the last change it holds, and writing starts again behind the header. So records of the current
//! round are a rising run from the start of the file; behind it stand only older numbers. Every record is flushed
//! before the next is written: only the last can be torn. A bad record with a newer one behind it is
//! damage, and is said to be, because what was acknowledged is gone; so it is when the records end before the one that the
//! mark names ([`super::mark`]).

use std::io;

use crc_fast::{CrcAlgorithm, Digest};

use super::{Changes, mark::Acked, medium::Medium};

/// Bytes between places where a record may begin.
pub const STEP: u64 = 4096;
const MAGIC: &[u8; 16] = b"ropewalk journal";
const VERSION: u32 = 1;
const RECORD: u32 = 0x4a57_5252; // "RRWJ"
const HEAD: usize = 20;
const DELETION: u32 = u32::MAX;

/// What opening found.
pub struct Found {
    /// The journal, durable as it was found. It takes nothing before the caller has made the table durable and called
    /// [`Journal::restart`].
    pub journal: Journal,
    /// Changes that the table does not hold, in order.
    pub changes: Vec<Changes>,
}

/// A journal that is open for writing.
pub struct Journal {
    medium: Box<dyn Medium>,
    id: u64,
    size: u64,
    /// Where the next record goes; none while it is all ones.
    position: u64,
    /// The last sequence number used.
    last: u64,
    /// CRC of its record; 0 if it has none.
    crc: u32,
}

/// What a journal's bytes hold.
#[derive(Default)]
pub struct Scanned {
    /// Changes that the table does not hold, in order, up to where the first problem is.
    pub changes: Vec<Changes>,
    /// Number of the last of them, or of the last change in the table.
    pub last: u64,
    /// What is wrong: acknowledged changes are missing.
    pub problem: Option<String>,
}

/// A journal's bytes.
struct Image<'a> {
    bytes: &'a [u8],
    id: u64,
}

impl Journal {
    /// Makes an empty journal over the whole medium. `last`: the number of the last change in the table.
    pub fn create(medium: Box<dyn Medium>, id: u64, last: u64) -> io::Result<Journal> {
        let size = medium.size()?;
        // Real zeros, so that later writes change no metadata of the file.
        let zeros = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < size {
            let len = zeros.len().min((size - offset) as usize);
            medium.write_at(offset, &zeros[..len])?;
            offset += len as u64;
        }
        medium.write_at(0, &header(id))?;
        medium.sync()?;
        Ok(Journal { medium, id, size, position: STEP, last, crc: 0 })
    }

    /// Opens the journal `id`; `applied` is the number of the last change that the table holds durably, `acked` what is
    /// known to have been acknowledged. The error of damage is `InvalidData`, with a text for people.
    pub fn open(medium: Box<dyn Medium>, id: u64, applied: u64, acked: Option<Acked>) -> io::Result<Found> {
        let Scanned { changes, last, problem } = scan(&*medium, id, applied, acked)?;
        if let Some(text) = problem {
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        // What was written last may not have been flushed; from now on it is taken for acknowledged.
        medium.sync()?;
        let size = medium.size()?;
        let journal = Journal { medium, id, size, position: u64::MAX, last, crc: 0 };
        Ok(Found { journal, changes })
    }

    /// The file has been made this long.
    pub fn grown(&mut self, size: u64) {
        self.size = size;
    }

    /// Which journal this is.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What is to be acknowledged now.
    pub fn acked(&self) -> Acked {
        Acked { journal: self.id, number: self.last, crc: self.crc }
    }

    /// The number that the next record gets.
    pub fn next(&self) -> u64 {
        self.last + 1
    }

    /// The number of the last record.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Appends `changes` durably. False, and nothing written: there is no room; the caller makes the table durable and calls
    /// [`restart`](Self::restart), then tries again. What does not fit then either it puts into the table alone, under the number
    /// [`next`](Self::next).
    pub fn append(&mut self, changes: &Changes) -> io::Result<bool> {
        let record = encode(self.id, self.next(), changes);
        let end = self.position.saturating_add(record.len() as u64);
        if end > self.size {
            return Ok(false);
        }
        self.medium.write_at(self.position, &record)?;
        self.medium.sync()?;
        self.position = end;
        self.last += 1;
        self.crc = stored_crc(&record);
        Ok(true)
    }

    /// The table holds every change up to the number `applied` durably: writing starts again.
    pub fn restart(&mut self, applied: u64) {
        assert!(
            applied >= self.last,
            "commit {} would be forgotten: the table has only {applied}",
            self.last
        );
        self.last = applied;
        self.crc = 0;
        self.position = STEP;
    }
}

/// What the bytes of journal `id` hold; the arguments are those of [`Journal::open`].
pub fn scan(medium: &dyn Medium, id: u64, applied: u64, acked: Option<Acked>) -> io::Result<Scanned> {
    let mut bytes = vec![0; medium.size()? as usize];
    medium.read_at(0, &mut bytes)?;
    let mut scanned = Scanned { last: applied, ..Scanned::default() };
    scanned.problem = Image { bytes: &bytes, id }.scan(applied, acked, &mut scanned);
    Ok(scanned)
}

fn header(id: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(STEP as usize);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&id.to_le_bytes());
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&header);
    header.extend_from_slice(&(digest.finalize() as u32).to_le_bytes());
    header.resize(STEP as usize, 0);
    header
}

fn crc(id: u64, number: u64, content: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&id.to_le_bytes());
    digest.update(&number.to_le_bytes());
    digest.update(content);
    digest.finalize() as u32
}

/// The changes as they stand in a record.
pub fn encode_changes(changes: &Changes) -> Vec<u8> {
    let mut content = Vec::new();
    append_changes(changes, &mut content);
    content
}

fn append_changes(changes: &Changes, to: &mut Vec<u8>) {
    for (key, value) in changes {
        let value_len = value.as_ref().map_or(DELETION, |value| value.len() as u32);
        to.extend_from_slice(&(key.len() as u32).to_le_bytes());
        to.extend_from_slice(&value_len.to_le_bytes());
        to.extend_from_slice(key);
        to.extend_from_slice(value.as_deref().unwrap_or_default());
    }
}

/// A whole record, padded to a multiple of [`STEP`].
fn encode(id: u64, number: u64, changes: &Changes) -> Vec<u8> {
    let mut record = vec![0; HEAD];
    append_changes(changes, &mut record);
    let crc = crc(id, number, &record[HEAD..]);
    let len = (record.len() - HEAD) as u32;
    record[0..4].copy_from_slice(&RECORD.to_le_bytes());
    record[4..8].copy_from_slice(&len.to_le_bytes());
    record[8..16].copy_from_slice(&number.to_le_bytes());
    record[16..20].copy_from_slice(&crc.to_le_bytes());
    record.resize(record.len().next_multiple_of(STEP as usize), 0);
    record
}

/// The CRC in a record.
fn stored_crc(record: &[u8]) -> u32 {
    let crc = record.get(16..20).and_then(|crc| crc.try_into().ok());
    crc.map(u32::from_le_bytes).unwrap_or_default()
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?))
}

/// What [`encode_changes`] made; none if it does not decode.
pub fn decode_changes(mut content: &[u8]) -> Option<Changes> {
    let mut changes = Changes::new();
    while !content.is_empty() {
        let key_len = take_u32(&mut content)?;
        let value_len = take_u32(&mut content)?;
        let key = take(&mut content, key_len as usize)?.to_vec();
        let value = match value_len {
            DELETION => None,
            len => Some(take(&mut content, len as usize)?.to_vec()),
        };
        changes.insert(key, value);
    }
    Some(changes)
}

impl<'a> Image<'a> {
    /// Fills `to`; the problem, if there is one.
    fn scan(&self, applied: u64, acked: Option<Acked>, to: &mut Scanned) -> Option<String> {
        if self.bytes.get(..STEP as usize) != Some(&header(self.id)[..]) {
            return Some("is not the journal of this store, or its header is damaged".into());
        }
        let (mut position, mut last) = (STEP, None::<u64>);
        while let Some((number, content, next)) = self.record(position) {
            if last.is_some_and(|last| number != last + 1) {
                break;
            }
            if acked.is_some_and(|acked| {
                number == acked.number && acked.crc != 0 && self.crc_at(position) != acked.crc
            }) {
                return Some(format!("record {number} is not the one that was acknowledged"));
            }
            (last, position) = (Some(number), next);
            if number > applied {
                if number != to.last + 1 {
                    return Some(format!("record {} is missing before {number}", applied + 1));
                }
                let Some(content) = decode_changes(content) else {
                    return Some(format!("record {number} does not decode"));
                };
                to.changes.push(content);
                to.last = number;
            }
        }
        let last = last.unwrap_or(0).max(applied);
        while position < self.bytes.len() as u64 {
            if let Some((number, _, _)) = self.record(position)
                && number > last
            {
                return Some(format!("record {} is damaged: record {number} behind it is whole", last + 1));
            }
            position += STEP;
        }
        match acked {
            Some(acked) if acked.journal == self.id && acked.number > last => Some(format!(
                "ends with commit {last}, and commit {} was acknowledged: {} are lost",
                acked.number,
                acked.number - last
            )),
            _ => None,
        }
    }

    fn crc_at(&self, offset: u64) -> u32 {
        self.bytes.get(offset as usize..).map(stored_crc).unwrap_or_default()
    }

    /// The whole record at `offset`: its number, its changes, where the next one begins.
    fn record(&self, offset: u64) -> Option<(u64, &'a [u8], u64)> {
        let mut rest = self.bytes.get(usize::try_from(offset).ok()?..)?;
        if take_u32(&mut rest)? != RECORD {
            return None;
        }
        let len = take_u32(&mut rest)? as usize;
        let number = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
        let stored = take_u32(&mut rest)?;
        let content = take(&mut rest, len)?;
        let next = offset + ((HEAD + len) as u64).next_multiple_of(STEP);
        (crc(self.id, number, content) == stored).then_some((number, content, next))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::mutate::mutated;

    #[derive(Clone)]
    struct Bytes(Arc<Mutex<Vec<u8>>>);

    impl Medium for Bytes {
        fn size(&self) -> io::Result<u64> {
            Ok(self.0.lock().unwrap().len() as u64)
        }
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..out.len()]);
            Ok(())
        }
        fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn change(n: u32) -> Changes {
        [(n.to_be_bytes().to_vec(), (!n.is_multiple_of(3)).then(|| vec![n as u8; n as usize % 5000]))].into()
    }

    /// A journal of 16 steps with records 1.. as long as they fit.
    fn filled() -> (Bytes, u64) {
        let bytes = Bytes(Arc::new(Mutex::new(vec![0; 16 * STEP as usize])));
        let mut journal = Journal::create(Box::new(bytes.clone()), 7, 0).unwrap();
        let mut n = 0;
        while journal.append(&change(n as u32 + 1)).unwrap() {
            n += 1;
        }
        (bytes, n)
    }

    fn open(bytes: &Bytes, applied: u64) -> io::Result<Vec<Changes>> {
        Journal::open(Box::new(bytes.clone()), 7, applied, None).map(|found| found.changes)
    }

    #[test]
    fn the_bytes_of_a_record_are_as_described() {
        let changes: Changes = [(b"k".to_vec(), Some(b"vw".to_vec())), (b"l".to_vec(), None)].into();
        let record = encode(7, 9, &changes);
        assert_eq!(record.len(), 4096);
        let golden = "5252574a140000000900000000000000";
        let hex: String = record[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(&record[20..40], b"\x01\0\0\0\x02\0\0\0kvw\x01\0\0\0\xff\xff\xff\xffl");
    }

    #[test]
    fn what_the_table_does_not_hold_comes_back_in_order() {
        let (bytes, n) = filled();
        assert!(n > 5);
        for applied in 0..=n {
            let changes = open(&bytes, applied).unwrap();
            let expected: Vec<_> = (applied + 1..=n).map(|n| change(n as u32)).collect();
            assert_eq!(changes, expected);
        }
        assert!(Journal::open(Box::new(bytes.clone()), 8, 0, None).is_err(), "another store's journal");
    }

    #[test]
    fn a_new_round_hides_the_old_one() {
        let (bytes, n) = filled();
        let mut journal = Journal::open(Box::new(bytes.clone()), 7, n, None).unwrap().journal;
        assert!(open(&bytes, n).unwrap().is_empty());
        journal.restart(n);
        assert!(journal.append(&change(77)).unwrap());
        assert_eq!(open(&bytes, n).unwrap(), [change(77)]);
    }

    #[test]
    fn a_torn_end_is_dropped_and_damage_before_it_is_told() {
        let (bytes, n) = filled();
        let whole = bytes.0.lock().unwrap().clone();
        let image = Image { bytes: &whole, id: 7 };
        let mut starts = vec![STEP];
        while let Some((_, _, next)) = image.record(*starts.last().unwrap()) {
            starts.push(next);
        }
        for (index, &start) in starts[..n as usize].iter().enumerate() {
            for flip in [0, 5, 9, 17, 24] {
                *bytes.0.lock().unwrap() = whole.clone();
                bytes.0.lock().unwrap()[start as usize + flip] ^= 4;
                match open(&bytes, 0) {
                    Ok(changes) => {
                        assert_eq!(index as u64 + 1, n, "only the last may be dropped");
                        assert_eq!(changes.len() as u64, n - 1);
                    }
                    Err(error) => {
                        assert!((index as u64) < n - 1);
                        assert!(error.to_string().contains(&format!("record {}", index + 1)), "{error}");
                    }
                }
            }
        }
        // The same with a mark: then the last one is missed as well, wherever it is damaged, and so are all that were cut.
        let crc = image.crc_at(starts[n as usize - 1]);
        let acked = |number, crc| Some(Acked { journal: 7, number, crc });
        let open_acked =
            |acked| Journal::open(Box::new(bytes.clone()), 7, 0, acked).map(|found| found.changes.len());
        for flip in [0, 5, 9, 17, 24] {
            *bytes.0.lock().unwrap() = whole.clone();
            bytes.0.lock().unwrap()[starts[n as usize - 1] as usize + flip] ^= 4;
            assert!(open_acked(acked(n, crc)).is_err(), "{flip}");
            assert!(open_acked(acked(n - 1, 0)).is_ok(), "it was never acknowledged");
        }
        for cut in 0..n as usize {
            *bytes.0.lock().unwrap() = whole[..starts[cut] as usize].to_vec();
            let error = open_acked(acked(n, crc)).unwrap_err().to_string();
            assert!(error.contains(&format!("commit {cut}, and commit {n}")), "{error}");
            bytes.0.lock().unwrap().resize(whole.len(), 0);
            assert!(open_acked(acked(n, crc)).is_err());
            assert_eq!(open_acked(acked(cut as u64, 0)).unwrap(), cut);
        }
        *bytes.0.lock().unwrap() = whole.clone();
        assert_eq!(open_acked(acked(n, crc)).unwrap() as u64, n);
        assert!(open_acked(acked(n, crc ^ 1)).is_err(), "another history");
        // Garbage of any kind is refused or ignored, never a panic.
        let mut random = 1u64;
        for _ in 0..2000 {
            *bytes.0.lock().unwrap() = whole.clone();
            for _ in 0..4 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (random >> 33) as usize % whole.len();
                bytes.0.lock().unwrap()[at] = (random >> 20) as u8;
            }
            let _ = open(&bytes, 0);
        }
    }

    /// Records that are damaged, and yet match their CRCs; what is read is bounded by what is there.
    #[test]
    fn changed_journals_are_refused_or_mean_something() {
        let (bytes, _) = filled();
        let whole = bytes.0.lock().unwrap()[..4 * STEP as usize].to_vec();
        mutated(&[whole], 1_000, |journal| {
            let mut journal = journal.to_vec();
            let at = STEP as usize;
            let header = |range: std::ops::Range<usize>| journal.get(range).map(<[u8]>::to_vec);
            let len = header(at + 4..at + 8).map(|len| u32::from_le_bytes(len.try_into().unwrap()) as usize);
            let number = header(at + 8..at + 16).map(|n| u64::from_le_bytes(n.try_into().unwrap()));
            if let (Some(len), Some(number)) = (len, number)
                && let Some(content) = journal.get(at + HEAD..(at + HEAD).saturating_add(len))
            {
                let crc = crc(7, number, content);
                journal[at + 16..at + 20].copy_from_slice(&crc.to_le_bytes());
            }
            let medium = Bytes(Arc::new(Mutex::new(journal)));
            if let Ok(scanned) = scan(&medium, 7, 0, None) {
                let read = scanned.changes.iter().flatten();
                let read: usize =
                    read.map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum();
                assert!(read <= medium.0.lock().unwrap().len());
            }
        });
        let content = encode(7, 1, &change(77))[HEAD..].to_vec();
        mutated(&[content], 30_000, |content| {
            let _ = decode_changes(content);
        });
    }
}
