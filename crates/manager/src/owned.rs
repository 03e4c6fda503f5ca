//! Which blocks inodes name: for whoever compares the pdisks with it, and for servers that must know whether a block was
//! deleted.

use base::{BlockIndex, FsId, InodeNo, PoolId, StripeId};
use wire::{
    mgr::Extent,
    owned::{OWNERS_MAX, OwnedRun, Owner},
};

use crate::{
    format::RESTORE_LEAP,
    keys::{self, ExtentRecord, FsRecord, Inode, Key, LeapRecord, ReadError, RemovedFsRecord, last_u64},
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
    blocks.iter().take(OWNERS_MAX).map(|stripe| owner(from, stripe)).collect()
}

fn owner(from: &dyn Read, stripe: &StripeId) -> Result<Owner, ReadError> {
    let StripeId { fs, inode, block } = *stripe;
    let extents = keys::extent_prefix(fs, inode);
    if from.get(&keys::inode_key(fs, inode))?.is_none() {
        let mut named = false;
        keys::walk(from, &extents, &prefix_end(&extents), |_, _| {
            named = true;
            Ok(false)
        })?;
        // An inode goes in one transaction with its extents. Its number was given in the transaction that made it, which was
        // durable before anybody could write a block of it.
        return Ok(if !named && was_given(from, fs, inode)? { Owner::Nobody } else { Owner::Unknown });
    }
    let start = keys::extent_key(fs, inode, block.0.saturating_add(1));
    let mut owner = Owner::Unrecorded;
    keys::walk(from, &start, &prefix_end(&extents), |key, value| {
        if open_record::<ExtentRecord>(key, value)?.first <= block.0 {
            owner = Owner::Recorded;
        }
        Ok(false)
    })?;
    Ok(owner)
}

/// Whether an inode's number was given, or is of a file system that was removed.
fn was_given(from: &dyn Read, fs: FsId, inode: InodeNo) -> Result<bool, ReadError> {
    if let Some(record) = keys::read::<FsRecord>(from, &keys::fs_key(fs))? {
        // Numbers that a restore went past may have been given by the store that was lost.
        let (mut leapt, mut known) = (false, false);
        let all = Key::new(b'y').u32(fs.0).done();
        keys::walk(from, &all, &prefix_end(&all), |key, value| {
            known = true;
            leapt |= inode.0 <= last_u64(key) && inode > open_record::<LeapRecord>(key, value)?.after;
            Ok(true)
        })?;
        // A store that was restored before there were such records.
        let unknown = leapt || !known && record.last_ino.0 >= RESTORE_LEAP;
        return Ok(inode <= record.last_ino && !unknown);
    }
    Ok(keys::read::<RemovedFsRecord>(from, &keys::removed_fs_key(fs))?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Txn;

    #[test]
    fn only_what_was_given_and_is_gone_belongs_to_nobody() {
        let empty = std::collections::BTreeMap::new();
        let mut txn = Txn::new(&empty);
        let (one, gone) = (FsId(1), FsId(2));
        let record = FsRecord { last_ino: InodeNo(9), ..FsRecord::default() };
        keys::write(&mut txn, keys::fs_key(one), &record);
        keys::write(&mut txn, keys::removed_fs_key(gone), &RemovedFsRecord { emptied: true });
        keys::write(&mut txn, keys::inode_key(one, InodeNo(5)), &Inode::default());
        for of in [5, 7] {
            keys::write(&mut txn, keys::extent_key(one, InodeNo(of), 4), &ExtentRecord { first: 2 });
        }
        let cases = [
            (one, 5, 2, Owner::Recorded),
            (one, 5, 3, Owner::Recorded),
            (one, 5, 1, Owner::Unrecorded),
            (one, 5, 4, Owner::Unrecorded),
            (one, 6, 0, Owner::Nobody),
            // Its extents are there without it.
            (one, 7, 9, Owner::Unknown),
            // Never given: this store is older than who wrote it.
            (one, 10, 0, Owner::Unknown),
            (gone, 10, 0, Owner::Nobody),
            (FsId(3), 1, 0, Owner::Unknown),
        ];
        let blocks: Vec<StripeId> = cases
            .iter()
            .map(|(fs, inode, block, _)| StripeId {
                fs: *fs,
                inode: InodeNo(*inode),
                block: BlockIndex(*block),
            })
            .collect();
        let wanted: Vec<Owner> = cases.iter().map(|case| case.3).collect();
        assert_eq!(owners(&txn, &blocks).expect("answers"), wanted);
    }
}
