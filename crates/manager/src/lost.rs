//! Which files have blocks that cannot be read now: for people who must know what is lost, file by file.
//! Goes over all extents of a file system; every other file is whole. A short block that is named may be readable
//! all the same, from parity: the servers of its group can say.

use std::collections::{BTreeMap, HashMap};

use base::{BlockIndex, FsId, GroupId, InodeNo, PoolId, StripIndex, StripSet, StripeId};
use wire::{
    map::PdiskState,
    mgr::{ClusterReport, Extent, LOST_RUNS_MAX, LostFile},
};

use crate::{
    cluster::needed,
    keys::{self, ExtentRecord, Inode, Key, ReadError, last_u64},
    losses::{self, Losses},
    paths::paths,
    store::{Read, open_record, prefix_end},
};

/// Most files named in one answer.
pub const LOST_MAX: usize = 1000;
/// Runs of blocks after which an answer ends with the file it is at.
const RUNS_MAX: usize = 1 << 16;

/// The groups of a pool that have fewer strips in reach than it takes to read them, and which these are. Of a group that has lost
/// blocks for good only those that were never lost count.
fn unreadable(report: &ClusterReport, losses: &Losses, pool: PoolId) -> HashMap<GroupId, StripSet> {
    let Some(pool) = report.map.pool(pool) else { return HashMap::new() };
    let never_lost = |group| losses.get(&(pool.id, group)).map_or(u32::MAX, |loss| loss.left.0);
    let here = |id: &base::PdiskId| {
        report.pdisks.iter().any(|p| p.id == *id && p.served && p.state == PdiskState::Ok)
    };
    let groups = (0u32..).zip(pool.table.chunks_exact(usize::from(pool.width.max(1))));
    let in_reach = |members: &[base::PdiskId]| -> StripSet {
        (0u8..).zip(members).filter(|(_, m)| here(m)).map(|(i, _)| StripIndex(i)).collect()
    };
    let lost = groups.map(|(g, members)| {
        let here = in_reach(members).0 & never_lost(GroupId(g));
        (GroupId(g), StripSet(here))
    });
    lost.filter(|(_, here)| (here.count() as usize) < needed(pool)).collect()
}

/// Whether all bytes of a block stand in strips that are in reach. (Whether more can be decoded, because the
/// rest of a short block was never written, only its strips could say.)
fn stands_in(here: StripSet, block: u64, inode: &Inode, data_strips: usize) -> bool {
    let block_size = u64::from(inode.block_size.max(1));
    let bytes = inode.size.saturating_sub(block * block_size).min(block_size);
    let strip = (block_size / data_strips.max(1) as u64).max(1);
    (0..bytes.div_ceil(strip)).all(|i| here.contains(StripIndex(i as u8)))
}

/// Files of `fs` with inode numbers above `after` that have blocks in unreadable groups, or in such as have lost blocks, at most
/// [`LOST_MAX`].
pub fn lost_files(
    from: &dyn Read,
    report: &ClusterReport,
    fs: FsId,
    after: InodeNo,
) -> Result<Vec<LostFile>, ReadError> {
    let mut files: BTreeMap<InodeNo, LostFile> = BTreeMap::new();
    let losses = losses::load(from)?;
    let mut groups: HashMap<PoolId, HashMap<GroupId, StripSet>> = HashMap::new();
    let mut named = 0;
    let mut current: Option<(InodeNo, Inode)> = None;
    let all = Key::new(b'e').u32(fs.0).done();
    let start = keys::extent_prefix(fs, InodeNo(after.0.saturating_add(1)));
    keys::walk(from, &start, &prefix_end(&all), |key, value| {
        let ino = InodeNo(key.get(5..13).map(last_u64).unwrap_or_default());
        if current.as_ref().is_none_or(|(of, _)| *of != ino) {
            if files.len() >= LOST_MAX || named >= RUNS_MAX {
                return Ok(false);
            }
            let inode = keys::read::<Inode>(from, &keys::inode_key(fs, ino))?.unwrap_or_default();
            current = Some((ino, inode));
        }
        let Some((_, inode)) = &current else { return Ok(true) };
        let lost = groups.entry(inode.pool).or_insert_with(|| unreadable(report, &losses, inode.pool));
        let Some(pool) = report.map.pool(inode.pool).filter(|_| !lost.is_empty()) else {
            return Ok(true);
        };
        let count = (pool.table.len() / usize::from(pool.width.max(1))) as u32;
        let (first, end) = (open_record::<ExtentRecord>(key, value)?.first, last_u64(key));
        for block in first..end {
            let stripe = StripeId { fs, inode: ino, block: BlockIndex(block) };
            let here = lost.get(&layout::group_of(pool.seed, count, stripe));
            if here.is_some_and(|here| !stands_in(*here, block, inode, needed(pool))) {
                let file = files.entry(ino).or_insert_with(|| LostFile {
                    ino,
                    size: inode.size,
                    block_size: inode.block_size,
                    first: BlockIndex(block),
                    pool: inode.pool,
                    ..LostFile::default()
                });
                file.blocks += 1;
                let full = file.runs.len() >= LOST_RUNS_MAX;
                match file.runs.last_mut() {
                    Some(run) if run.first.0 + run.count == block => run.count += 1,
                    _ if full => {}
                    _ => {
                        named += 1;
                        file.runs.push(Extent { first: BlockIndex(block), count: 1 });
                    }
                }
            }
        }
        Ok(true)
    })?;
    let mut files: Vec<LostFile> = files.into_values().collect();
    name(from, fs, &mut files)?;
    Ok(files)
}

/// Fills in a path of each file.
fn name(from: &dyn Read, fs: FsId, files: &mut [LostFile]) -> Result<(), ReadError> {
    let mut paths = paths(from, fs, files.iter().map(|file| file.ino))?;
    files.iter_mut().for_each(|file| file.path = paths.remove(&file.ino).unwrap_or_default());
    Ok(())
}
