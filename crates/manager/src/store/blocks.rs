//! The table's file as the engine sees it: every block has a CRC, checked whenever it is read.
//!
//! ```text
//!    0  identification: "ropewalk table\0\0", version u32, CRC-32C of these u32
//!  512  the engine's header: 320 bytes, CRC-32C of block number 0 and these u32; and once more at 1024. The second is
//!       written first: one of the two is whole, whatever was torn
//! 4096  blocks 1.., each 4096 bytes, then the CRC-32C of its number (u64) and these u32
//! ```
//! All numbers are little-endian. The engine keeps checksums of its own, but looks at them only when it repairs: a damaged
//! key, or a damaged page above it, would make names absent without a word. A page with a block that does not match reads
//! as a branch to nowhere: the engine refuses to follow it, for every key below, and goes on with the others. (An
//! error instead would end the engine for good.) What no CRC of a block can tell is an old block in its place: the
//! engine's checksums do, when `manager check` asks for them.
//!
//! A file can also be opened to be looked at only: then what the engine writes stays in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    ops::Bound,
    path::Path,
    sync::Arc,
};

use crc_fast::{CrcAlgorithm, Digest};
use parking_lot::{Mutex, MutexGuard};
use redb::{BackendError, StorageBackend};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
const MAGIC: &[u8; 16] = b"ropewalk table\0\0";
const VERSION: u32 = 1;
/// Where the engine's header is, twice, in the order of reading; and its bytes.
const HEADERS_AT: [u64; 2] = [512, 1024];
const HEADER: usize = 320;
/// Bytes before block 1.
const HEAD: u64 = 4096;
/// Bytes of a block with its CRC.
const STRIDE: u64 = BLOCK + 4;
/// Blocks of which damage is remembered, at most.
pub const DAMAGED_MAX: usize = 1000;
/// How a file of the engine alone begins: those that were made before blocks had CRCs.
const FORMER: &[u8; 9] = b"redb\x1a\x0a\xa9\x0d\x0a";
/// How often a block that does not match is read again: it may be on its way to the disk.
const SCRUB_READS: u32 = 5;
const SCRUB_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// What a file that should hold a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A table with a CRC for each block.
    Blocks,
    /// The engine's own, as made by earlier versions of this program.
    Former,
}

/// What the file at `path` is; `InvalidData` if it is no table.
pub fn kind_of(path: &Path) -> io::Result<Kind> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::open(path)?;
    let mut head = vec![0; HEAD.min(file.metadata()?.len()) as usize];
    file.read_exact_at(&mut head, 0)?;
    kind(&head)
}

fn kind(head: &[u8]) -> io::Result<Kind> {
    if head.get(..FORMER.len()) == Some(FORMER) {
        return Ok(Kind::Former);
    }
    if head.get(..identification().len()) == Some(&identification()) && head.len() as u64 == HEAD {
        return Ok(Kind::Blocks);
    }
    Err(invalid("its first bytes are not those of a table: it is cut, damaged, or another file".into()))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn identification() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    let crc = crc_of(&[&bytes]);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn crc_of(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

fn crc(block: u64, bytes: &[u8]) -> u32 {
    crc_of(&[&block.to_le_bytes(), bytes])
}

/// A page that the engine refuses to follow: a branch whose only child is of an order that no page has.
fn poison(page: &mut [u8]) {
    page.fill(0);
    page[0] = 2;
    page[24..32].fill(u8::MAX);
}

/// What was found damaged since the file was opened.
#[derive(Debug, Default)]
pub struct Damage {
    blocks: Mutex<BTreeSet<u64>>,
}

impl Damage {
    fn add(&self, block: u64) {
        let mut blocks = self.blocks.lock();
        if blocks.len() < DAMAGED_MAX && blocks.insert(block) {
            tracing::error!(block, "a block of the manager's table is damaged: its CRC does not match");
        }
    }

    /// How many blocks were found, the first 1,000 counted.
    pub fn count(&self) -> usize {
        self.blocks.lock().len()
    }

    /// The blocks, the first 1,000.
    pub fn blocks(&self) -> Vec<u64> {
        self.blocks.lock().iter().copied().collect()
    }
}

/// See the module.
pub struct Blocks<B> {
    inner: B,
    kind: Kind,
    damage: Arc<Damage>,
    /// Which blocks are known to be good on the disk: read or written since the file was opened.
    known: Mutex<Vec<u64>>,
    /// What the engine wrote and how long it made the file, when it is only looked at.
    scratch: Option<Mutex<Scratch>>,
}

#[derive(Default)]
struct Scratch {
    pages: BTreeMap<u64, Vec<u8>>,
    len: u64,
}

impl<B> fmt::Debug for Blocks<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<B: StorageBackend> Blocks<B> {
    fn with(inner: B, kind: Kind, scratch: Option<Mutex<Scratch>>) -> Blocks<B> {
        Blocks { inner, kind, damage: Arc::default(), known: Mutex::default(), scratch }
    }

    /// Over an empty medium.
    pub fn create(inner: B) -> io::Result<Blocks<B>> {
        inner.set_len(HEAD)?;
        inner.write(0, &identification())?;
        Ok(Blocks::with(inner, Kind::Blocks, None))
    }

    /// Over a table whose blocks have CRCs.
    pub fn open(inner: B) -> io::Result<Blocks<B>> {
        match kind_on(&inner)? {
            Kind::Blocks => Ok(Blocks::with(inner, Kind::Blocks, None)),
            Kind::Former => Err(invalid("was made by an earlier version of this program".into())),
        }
    }

    /// Over a table of either kind, to which nothing is written.
    pub fn look(inner: B) -> io::Result<Blocks<B>> {
        let kind = kind_on(&inner)?;
        let mut blocks = Blocks::with(inner, kind, None);
        let scratch = Scratch { pages: BTreeMap::new(), len: blocks.stored_len()? };
        blocks.scratch = Some(Mutex::new(scratch));
        Ok(blocks)
    }

    /// What is found damaged from now on.
    pub fn damage(&self) -> Arc<Damage> {
        self.damage.clone()
    }

    fn scratch(&self) -> Option<MutexGuard<'_, Scratch>> {
        self.scratch.as_ref().map(Mutex::lock)
    }

    fn known(&self) -> MutexGuard<'_, Vec<u64>> {
        self.known.lock()
    }

    fn set_known(&self, block: u64) {
        let mut known = self.known();
        let (word, bit) = (block as usize / 64, block % 64);
        if known.len() <= word {
            known.resize(word + 1, 0);
        }
        known[word] |= 1 << bit;
    }

    fn is_known(&self, block: u64) -> bool {
        self.known().get(block as usize / 64).is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    /// Bytes of the table on the medium.
    fn stored_len(&self) -> io::Result<u64> {
        let len = self.inner.len()?;
        Ok(match self.kind {
            Kind::Former => len,
            Kind::Blocks if len <= HEAD => 0,
            Kind::Blocks => BLOCK * (1 + (len - HEAD) / STRIDE),
        })
    }

    /// The engine's header: the first that is whole. Zeros if none was ever written.
    fn read_header(&self) -> io::Result<[u8; HEADER]> {
        let mut empty = true;
        for at in HEADERS_AT {
            let mut bytes = [0; HEADER + 4];
            self.inner.read(at, &mut bytes)?;
            let (header, stored) = bytes.split_at(HEADER);
            empty &= bytes.iter().all(|byte| *byte == 0);
            if crc(0, header).to_le_bytes() == stored
                && let Some(header) = header.first_chunk::<HEADER>()
            {
                return Ok(*header);
            }
        }
        if empty { Ok([0; HEADER]) } else { Err(invalid("its header is damaged: CRC mismatch".into())) }
    }

    fn write_header(&self, offset: usize, data: &[u8]) -> io::Result<()> {
        let mut header = if data.len() == HEADER { [0; HEADER] } else { self.read_header()? };
        let place = header.get_mut(offset..).and_then(|header| header.get_mut(..data.len()));
        place.ok_or_else(|| invalid("a header longer than is known".into()))?.copy_from_slice(data);
        let crc = crc(0, &header);
        let bytes = [&header[..], &crc.to_le_bytes()].concat();
        HEADERS_AT.iter().rev().try_for_each(|at| self.inner.write(*at, &bytes))
    }

    /// Whether a block, as it is stored, matches its CRC.
    fn check(block: u64, stored: &[u8]) -> bool {
        let (bytes, stored) = stored.split_at(BLOCK as usize);
        crc(block, bytes).to_le_bytes() == stored
    }

    /// The blocks of `out` from the medium; the numbers of those that do not match.
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> io::Result<Vec<u64>> {
        let count = out.len() as u64 / BLOCK;
        let mut stored = vec![0; (count * STRIDE) as usize];
        match self.inner.read(HEAD + (first - 1) * STRIDE, &mut stored) {
            Ok(()) => {}
            // The file is cut.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(vec![first]),
            Err(error) => return Err(error),
        }
        let mut bad = Vec::new();
        let pieces = stored.chunks_exact(STRIDE as usize).zip(out.chunks_exact_mut(BLOCK as usize));
        for (block, (stored, out)) in (first..).zip(pieces) {
            out.copy_from_slice(&stored[..BLOCK as usize]);
            if !Self::check(block, stored) {
                bad.push(block);
            }
        }
        Ok(bad)
    }

    /// What the medium holds at `offset`: the engine's header, or whole blocks.
    fn read_stored(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.kind == Kind::Former {
            return self.inner.read(offset, out);
        }
        if offset < BLOCK {
            let header = self.read_header()?;
            let from = header.get(offset as usize..).and_then(|header| header.get(..out.len()));
            out.copy_from_slice(from.ok_or_else(|| invalid("a header longer than is known".into()))?);
            return Ok(());
        }
        if !offset.is_multiple_of(BLOCK) || !(out.len() as u64).is_multiple_of(BLOCK) {
            return Err(invalid(format!("{} bytes at {offset} are no whole blocks", out.len())));
        }
        let (first, count) = (offset / BLOCK, out.len() as u64 / BLOCK);
        let bad = self.read_blocks(first, out)?;
        (first..first + count).filter(|block| !bad.contains(block)).for_each(|block| self.set_known(block));
        if !bad.is_empty() {
            bad.into_iter().for_each(|block| self.damage.add(block));
            poison(out);
        }
        Ok(())
    }

    /// Reads up to `count` blocks from `first` on, round the engine and its memory; the block to go on with, none at the
    /// end. A block is damaged if it does not match and did when it was last read or written. (One that nobody has
    /// asked for may be the rest of a commit that a power cut ended; the engine does not use it.)
    pub fn scrub(&self, first: u64, count: u64) -> io::Result<Option<u64>> {
        if self.kind == Kind::Former {
            return Ok(None);
        }
        let end = self.stored_len()? / BLOCK;
        let first = first.max(1);
        let last = end.min(first + count);
        let mut page = vec![0; BLOCK as usize];
        let mut turns = SCRUB_READS;
        for block in first..last {
            let mut bad = true;
            for turn in 0..turns {
                bad = !self.read_blocks(block, &mut page)?.is_empty();
                if !bad || !self.is_known(block) {
                    break;
                }
                if turn + 1 < turns {
                    std::thread::sleep(SCRUB_PAUSE);
                }
            }
            if !bad {
                self.set_known(block);
            } else if self.is_known(block) && self.stored_len()? / BLOCK > block {
                self.damage.add(block);
                turns = 2; // it is the disk: the rest is not waited for that long
            }
        }
        Ok((last < end).then_some(last))
    }
}

fn kind_on(inner: &impl StorageBackend) -> io::Result<Kind> {
    let mut head = vec![0; HEAD.min(inner.len()?) as usize];
    inner.read(0, &mut head)?;
    kind(&head)
}

impl<B: StorageBackend> StorageBackend for Blocks<B> {
    fn len(&self) -> io::Result<u64> {
        match self.scratch() {
            Some(scratch) => Ok(scratch.len),
            None => self.stored_len(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Some(page) = self.scratch().as_ref().and_then(|scratch| scratch.pages.get(&offset)) {
            // The engine reads what it wrote, or the beginning of it.
            let page = page.get(..out.len()).ok_or_else(|| invalid("longer than what was written".into()))?;
            out.copy_from_slice(page);
            return Ok(());
        }
        self.read_stored(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if let Some(mut scratch) = self.scratch() {
            scratch.len = len;
            return Ok(());
        }
        if self.kind == Kind::Former || !len.is_multiple_of(BLOCK) {
            return Err(invalid(format!("a table of {len} bytes")));
        }
        // What is cut off comes back as zeros.
        let (word, bit) = ((len / BLOCK) as usize / 64, len / BLOCK % 64);
        let mut known = self.known();
        known.truncate(word + 1);
        if let Some(last) = known.get_mut(word) {
            *last &= (1 << bit) - 1;
        }
        drop(known);
        self.inner.set_len(HEAD + (len / BLOCK).saturating_sub(1) * STRIDE)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.scratch.is_some() { Ok(()) } else { self.inner.sync_data() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(mut scratch) = self.scratch() {
            scratch.pages.insert(offset, data.to_vec());
            return Ok(());
        }
        if self.kind == Kind::Former {
            return Err(invalid("tables of this kind are only read".into()));
        }
        if offset < BLOCK {
            return self.write_header(offset as usize, data);
        }
        if !offset.is_multiple_of(BLOCK) || !(data.len() as u64).is_multiple_of(BLOCK) {
            return Err(invalid(format!("{} bytes at {offset} are no whole blocks", data.len())));
        }
        let first = offset / BLOCK;
        let mut stored = Vec::with_capacity(data.len() / BLOCK as usize * STRIDE as usize);
        for (block, bytes) in (first..).zip(data.chunks_exact(BLOCK as usize)) {
            stored.extend_from_slice(bytes);
            stored.extend_from_slice(&crc(block, bytes).to_le_bytes());
        }
        self.inner.write(HEAD + (first - 1) * STRIDE, &stored)?;
        (first..first + data.len() as u64 / BLOCK).for_each(|block| self.set_known(block));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
