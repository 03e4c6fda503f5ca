//! What the tests of this crate share: a pdisk in a temporary directory, requests with known bytes.
#![allow(dead_code)]

use std::path::Path;

use base::{
    BlockIndex, ClusterId, FsId, Grant, GroupId, InodeNo, PdiskId, PoolId, StripId, StripIndex, StripSet,
    StripeId, Version,
};
use bytes::Bytes;
use pdisk::{CreateOptions, EngineChoice, IoConfig, IoNode, OpenOptions, OpenReport, Pdisk, PdiskError};
use wire::{
    crc::unit_crcs,
    strip::{PrepareStrip, Range, ReadStrip, ReadVersion, StripRefusal, VersionInfo},
};

pub const CLUSTER: ClusterId = ClusterId(0xC1);
pub const PDISK: PdiskId = PdiskId(7);
pub const UNIT: usize = 4096;

pub fn node(engine: EngineChoice) -> IoNode {
    IoNode::start(IoConfig { engine, num_io_queues: 2, ..IoConfig::default() }).unwrap()
}

pub fn create(dir: &Path, size: u64) {
    let options = CreateOptions { log_size: Some(1 << 20), ..CreateOptions::new(CLUSTER, PDISK, size) };
    Pdisk::create(dir, options).unwrap();
}

pub fn options() -> OpenOptions {
    // Groups are where the tests put them, and there are no others.
    OpenOptions { queues_per_pdisk: 2, prove_after: None, ..OpenOptions::new(CLUSTER, PDISK) }
}

pub fn open(dir: &Path, node: &IoNode) -> (Pdisk, OpenReport) {
    try_open(dir, node).unwrap()
}

pub fn try_open(dir: &Path, node: &IoNode) -> Result<(Pdisk, OpenReport), PdiskError> {
    Pdisk::open(dir, options(), node)
}

pub fn strip(block: u64) -> StripId {
    StripeId { fs: FsId(1), inode: InodeNo(10), block: BlockIndex(block) }.strip(StripIndex(0))
}

pub fn v(grant: u64, seq: u64) -> Version {
    Version { grant: Grant(grant), seq }
}

/// `units` units, each filled by a byte pattern of `seed` and its place.
pub fn content(seed: u64, units: usize) -> Vec<u8> {
    let word =
        |i: usize| (seed.wrapping_mul(0x9E37_79B9).wrapping_add((i / 512) as u64) ^ i as u64).to_le_bytes();
    (0..units * UNIT / 8).flat_map(word).collect()
}

pub fn request(
    strip: StripId,
    version: Version,
    ranges: Vec<Range>,
    len: usize,
    bytes: &[u8],
) -> PrepareStrip {
    PrepareStrip {
        strip,
        pool: PoolId(1),
        group: GroupId(2),
        info: VersionInfo { version, touched: StripSet(1), len: len as u32, covers: vec![] },
        base: None,
        adopt: None,
        ranges,
        crcs: unit_crcs(bytes).collect(),
    }
}

/// The whole strip.
pub fn whole(strip: StripId, version: Version, bytes: &[u8]) -> (PrepareStrip, Bytes) {
    let range = Range { offset: 0, len: bytes.len() as u32 };
    let ranges = if bytes.is_empty() { vec![] } else { vec![range] };
    (request(strip, version, ranges, bytes.len(), bytes), Bytes::copy_from_slice(bytes))
}

/// Units from `first` on, over `base`, of a strip that then has `len` units.
pub fn part(
    strip: StripId,
    version: Version,
    base: Version,
    first: usize,
    bytes: &[u8],
    len: usize,
) -> (PrepareStrip, Bytes) {
    let range = Range { offset: (first * UNIT) as u32, len: bytes.len() as u32 };
    let mut r = request(strip, version, vec![range], len * UNIT, bytes);
    r.base = Some(base);
    (r, Bytes::copy_from_slice(bytes))
}

/// The whole of a version, its CRCs checked.
pub async fn read(pdisk: &Pdisk, strip: StripId, version: ReadVersion) -> Result<Vec<u8>, StripRefusal> {
    let ranges = vec![Range { offset: 0, len: wire::strip::STRIP_LEN_MAX }];
    let answer = pdisk.read(vec![ReadStrip { strip, version, ranges }]).await.pop().unwrap()?;
    let crcs: Vec<u32> = unit_crcs(&answer.1).collect();
    assert_eq!(crcs, answer.0.crcs, "{strip} {version:?} returned bytes that do not match their CRCs");
    assert_eq!(answer.1.len(), answer.0.info.len as usize);
    Ok(answer.1.to_vec())
}

pub async fn prepare(pdisk: &Pdisk, one: (PrepareStrip, Bytes)) -> Result<(), StripRefusal> {
    pdisk.prepare(vec![one]).await.pop().unwrap()
}

pub async fn adopt(pdisk: &Pdisk, strip: StripId, version: Version) {
    assert_eq!(pdisk.adopt(vec![(strip, version)]).await, [Ok(())]);
}

/// Prepares a whole strip and adopts it.
pub async fn write(pdisk: &Pdisk, strip: StripId, version: Version, bytes: &[u8]) {
    prepare(pdisk, whole(strip, version, bytes)).await.unwrap();
    adopt(pdisk, strip, version).await;
}
