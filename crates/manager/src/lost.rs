//! Which files have blocks that cannot be read now: for people who must know what is lost, file by file.
//! Goes over all extents of a file system; every other file is whole.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::ControlFlow,
};

use base::{BlockIndex, FsId, GroupId, InodeNo, PoolId, StripeId};
use wire::{
    map::PdiskState,
    mgr::{ClusterReport, LostFile},
};

use crate::{
    cluster::needed,
    keys::{self, ExtentRecord, Inode, Key, ReadError, last_u64},
    paths::paths,
    store::{Read, open_record, prefix_end},
};

/// Most files named in one answer.
pub const LOST_MAX: usize = 1000;

/// The groups of a pool that have fewer strips in reach than it takes to read them.
fn unreadable(report: &ClusterReport, pool: PoolId) -> HashSet<GroupId> {
    let Some(pool) = report.map.pool(pool) else { return HashSet::new() };
    let here = |id: &base::PdiskId| {
        report.pdisks.iter().any(|p| p.id == *id && p.served && p.state == PdiskState::Ok)
    };
    let groups = (0u32..).zip(pool.table.chunks_exact(usize::from(pool.width.max(1))));
    let lost = groups.filter(|(_, members)| members.iter().filter(|m| here(m)).count() < needed(pool));
    lost.map(|(g, _)| GroupId(g)).collect()
}

/// Files of `fs` with inode numbers above `after` that have blocks in unreadable groups, at most
/// [`LOST_MAX`].
pub fn lost_files(
    from: &dyn Read,
    report: &ClusterReport,
    fs: FsId,
    after: InodeNo,
) -> Result<Vec<LostFile>, ReadError> {
    let mut files: BTreeMap<InodeNo, LostFile> = BTreeMap::new();
    let mut groups: HashMap<PoolId, HashSet<GroupId>> = HashMap::new();
    let (mut bad, mut current): (Option<ReadError>, Option<(InodeNo, Inode)>) = (None, None);
    let all = Key::new(b'e').u32(fs.0).done();
    let start = keys::extent_prefix(fs, InodeNo(after.0.saturating_add(1)));
    from.scan(&start, &prefix_end(&all), &mut |key, value| {
        let outcome = (|| -> Result<bool, ReadError> {
            let ino = InodeNo(key.get(5..13).map(last_u64).unwrap_or_default());
            if current.as_ref().is_none_or(|(of, _)| *of != ino) {
                if files.len() >= LOST_MAX {
                    return Ok(false);
                }
                let inode = keys::read::<Inode>(from, &keys::inode_key(fs, ino))?.unwrap_or_default();
                current = Some((ino, inode));
            }
            let Some((_, inode)) = &current else { return Ok(true) };
            let lost = groups.entry(inode.pool).or_insert_with(|| unreadable(report, inode.pool));
            let Some(pool) = report.map.pool(inode.pool).filter(|_| !lost.is_empty()) else {
                return Ok(true);
            };
            let count = (pool.table.len() / usize::from(pool.width.max(1))) as u32;
            let (first, end) = (open_record::<ExtentRecord>(key, value)?.first, last_u64(key));
            for block in first..end {
                let stripe = StripeId { fs, inode: ino, block: BlockIndex(block) };
                if lost.contains(&layout::group_of(pool.seed, count, stripe)) {
                    let file = files.entry(ino).or_insert_with(|| LostFile {
                        ino,
                        size: inode.size,
                        block_size: inode.block_size,
                        first: BlockIndex(block),
                        ..LostFile::default()
                    });
                    file.blocks += 1;
                }
            }
            Ok(true)
        })();
        match outcome {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                bad = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = bad {
        return Err(error);
    }
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
