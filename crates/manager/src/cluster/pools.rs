//! New pools and new file systems.
//!
//! Several pools may lie over the same pdisks: each has its own table, and all share the room.

use std::time::Duration;

use base::{Epoch, FsId, InodeNo, PdiskId, PoolId};
use layout::{Code, LayoutTable, PdiskDesc};
use wire::{
    map::{FsEntry, PoolEntry, PoolPdisk},
    mgr::{MgrError, Timestamp},
};

use super::{Cluster, Step};
use crate::{keys, namespace::new_root, tokens::Tokens};

/// Most pools, and most file systems, of a cluster: every process holds all of them.
const MANY_MAX: usize = 256;
/// Longest name of either, bytes.
const NAME_MAX: usize = 64;

/// What a new pool is to be.
#[derive(Debug, Clone)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// Redundancy code, as text.
    pub code: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// The pdisks it is laid out over; empty: all that are to hold something.
    pub pdisks: Vec<PdiskId>,
    /// Seed of its table.
    pub seed: u64,
}

fn no(text: String) -> MgrError {
    MgrError::Config(text)
}

fn check_name(name: &str) -> Result<(), MgrError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    Err(no(format!("{name:?} is no name: 1 to {NAME_MAX} letters, digits, '.', '_' or '-'")))
}

impl Cluster {
    pub(super) fn make_pool(
        &mut self,
        wish: NewPool,
        now: Duration,
        step: &mut Step,
    ) -> Result<(), MgrError> {
        let refused = |error: layout::LayoutError| no(error.to_string());
        let code: Code = wish.code.parse().map_err(|error: layout::UnknownCode| no(error.to_string()))?;
        let block_size = Code::check_block_size(wish.block_size.into()).map_err(refused)?;
        if let Some(pool) = self.map.pools.iter().find(|pool| pool.name == wish.name) {
            let same = pool.code == code.to_string() && pool.block_size == block_size;
            return if same { Ok(()) } else { Err(no(format!("there is a pool {} already", wish.name))) };
        }
        check_name(&wish.name)?;
        if self.map.pools.len() >= MANY_MAX {
            return Err(no(format!("there are {MANY_MAX} pools already")));
        }
        if let Some(unknown) = wish.pdisks.iter().find(|id| self.map.pdisk(**id).is_none()) {
            return Err(no(format!("{unknown} is not in the cluster")));
        }
        let here = |id: PdiskId| {
            if wish.pdisks.is_empty() { self.is_to_hold(id, now) } else { wish.pdisks.contains(&id) }
        };
        let over = self.map.pdisks.iter().filter(|p| here(p.id)).map(|p| PdiskDesc {
            id: p.id,
            node: p.nodes.first().copied().unwrap_or_default(),
            enclosure: None,
            weight: p.capacity,
        });
        let over: Vec<PdiskDesc> = over.collect();
        let groups = layout::default_groups(code, over.len() as u32);
        let table = LayoutTable::build(code, &over, 0, groups, wish.seed).map_err(refused)?;
        let pdisk = |p: &PdiskDesc| PoolPdisk {
            id: p.id,
            array: table.array_of(p.id),
            weight: p.weight,
            enclosure: p.enclosure,
        };
        let epoch: Epoch = self.bump();
        let pool = PoolEntry {
            id: PoolId(self.map.pools.iter().map(|pool| pool.id.0).max().unwrap_or(0) + 1),
            name: wish.name,
            code: code.to_string(),
            block_size,
            width: code.width(),
            seed: wish.seed,
            table: table.group_ids().flat_map(|g| table.members(g).to_vec()).collect(),
            changed: epoch,
            pdisks: table.pdisks().iter().map(pdisk).collect(),
            ..PoolEntry::default()
        };
        step.notes.push(format!("pool {} is new: {code} over {} pdisks", pool.name, over.len()));
        step.put(keys::pool_key(pool.id), &pool);
        self.map.pools.push(pool);
        Ok(())
    }

    pub(super) fn make_fs(
        &mut self,
        name: String,
        pool: PoolId,
        now: Timestamp,
        step: &mut Step,
    ) -> Result<(), MgrError> {
        let Some(entry) = self.map.pool(pool) else { return Err(no(format!("there is no {pool}"))) };
        let block_size = entry.block_size;
        if let Some(fs) = self.map.fs_by_name(&name) {
            let same = fs.pool == pool;
            return if same { Ok(()) } else { Err(no(format!("there is a file system {name} already"))) };
        }
        check_name(&name)?;
        if self.map.filesystems.len() >= MANY_MAX {
            return Err(no(format!("there are {MANY_MAX} file systems already")));
        }
        let id = FsId(self.map.filesystems.iter().map(|fs| fs.id.0).max().unwrap_or(0) + 1);
        let (root, counts) = new_root(pool, block_size, now);
        step.put(keys::inode_key(id, InodeNo::ROOT), &root);
        step.put(keys::fs_key(id), &counts);
        step.notes.push(format!("file system {name} is new"));
        self.bump();
        self.map.filesystems.push(FsEntry { id, name, pool });
        self.tokens.insert(id, Tokens::new(false));
        self.endings.insert(id, keys::EndingRecord::default());
        Ok(())
    }
}
