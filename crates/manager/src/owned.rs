//! Which blocks inodes name: for whoever compares the pdisks with it.

use base::{BlockIndex, FsId, InodeNo, PoolId, StripeId};
use wire::{
    mgr::Extent,
    owned::{OWNERS_MAX, OwnedRun, Owner},
};

use crate::{
    keys::{self, ExtentRecord, Inode, Key, ReadError, last_u64},
    store::{Read, open_record, prefix_end},
};

/// Runs of one answer.
const RUNS_MAX: usize = 4096;

/// Runs of blocks of a file system from a block of an inode on, and whether there are more.
pub fn runs(
    from: &dyn Read,
    fs: FsId,
    ino: InodeNo,
    block: BlockIndex,
) -> Result<(Vec<OwnedRun>, bool), ReadError> {
    let (mut runs, mut more) = (Vec::new(), false);
    let mut of: Option<(InodeNo, PoolId)> = None;
    let all = Key::new(b'e').u32(fs.0).done();
    let start = keys::extent_key(fs, ino, block.0.saturating_add(1));
    keys::walk(from, &start, &prefix_end(&all), |key, value| {
        if runs.len() == RUNS_MAX {
            more = true;
            return Ok(false);
        }
        let ino = InodeNo(key.get(5..13).map(last_u64).unwrap_or_default());
        let pool = match of {
            Some((known, pool)) if known == ino => pool,
            _ => {
                let inode: Inode = keys::read(from, &keys::inode_key(fs, ino))?.unwrap_or_default();
                of = Some((ino, inode.pool));
                inode.pool
            }
        };
        let (first, end) = (open_record::<ExtentRecord>(key, value)?.first, last_u64(key));
        let run = Extent { first: BlockIndex(first), count: end.saturating_sub(first) };
        runs.push(OwnedRun { ino, pool, run });
        Ok(true)
    })?;
    Ok((runs, more))
}

/// Whose blocks are, the first [`OWNERS_MAX`] of them.
pub fn owners(from: &dyn Read, blocks: &[StripeId]) -> Result<Vec<Owner>, ReadError> {
    let owner = |stripe: &StripeId| -> Result<Owner, ReadError> {
        let StripeId { fs, inode, block } = *stripe;
        if from.get(&keys::inode_key(fs, inode))?.is_none() {
            return Ok(Owner::Nobody);
        }
        let start = keys::extent_key(fs, inode, block.0.saturating_add(1));
        let mut owner = Owner::Unrecorded;
        keys::walk(from, &start, &prefix_end(&keys::extent_prefix(fs, inode)), |key, value| {
            if open_record::<ExtentRecord>(key, value)?.first <= block.0 {
                owner = Owner::Recorded;
            }
            Ok(false)
        })?;
        Ok(owner)
    };
    blocks.iter().take(OWNERS_MAX).map(owner).collect()
}
