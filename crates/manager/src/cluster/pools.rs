//! New pools and file systems, and their removal.
//!
//! Several pools may lie over the same pdisks: each has its own table, and all share the room.
//!
//! A pool is removed in two steps: it is closed, so that nothing can be directed to it any more, and goes when
//! what is there has been looked at (`crate::removal`). Closing is a name that no name can be, so that a crash
//! in between leaves a pool that is listed and can be removed again.

use std::time::Duration;

use base::{Epoch, FsId, InodeNo, PdiskId, PoolId};
use layout::{Code, LayoutTable, PdiskDesc};
use wire::{
    map::{FailureDomain, FsEntry, PdiskState, PoolEntry, PoolPdisk},
    mgr::{MgrError, Timestamp},
};

use super::{Cluster, Step, StoreOp, nodes::check_word};
use crate::{
    closing::{closed_name, closing_name},
    keys,
    namespace::new_root,
    tokens::Tokens,
};

/// Most pools, and most file systems, of a cluster: every process holds all of them.
const MANY_MAX: usize = 256;

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
    /// It is made only if the loss of any one of these is survived.
    pub survives: Option<FailureDomain>,
    /// Seed of its table.
    pub seed: u64,
}

/// One step of a removal.
#[derive(Debug, Clone)]
pub enum Removal {
    /// From now on nothing is directed to the pool of this name.
    ClosePool(String),
    /// The pool stays after all.
    ReopenPool(PoolId),
    /// The closed pool goes: nothing is in it.
    RemovePool(PoolId),
    /// The file system of this name goes, with everything in it.
    RemoveFs(String),
}

fn no(text: String) -> MgrError {
    MgrError::Config(text)
}

impl Cluster {
    pub(super) fn make_pool(&mut self, new: NewPool, now: Duration, step: &mut Step) -> Result<(), MgrError> {
        let refused = |error: layout::LayoutError| no(error.to_string());
        let code: Code = new.code.parse().map_err(|error: layout::UnknownCode| refused(error.into()))?;
        let block_size =
            Code::check_block_size(new.block_size.into()).map_err(|error| refused(error.into()))?;
        if let Some(pool) = self.map.pools.iter().find(|pool| pool.name == new.name) {
            let same = pool.code == code.to_string() && pool.block_size == block_size;
            return if same { Ok(()) } else { Err(no(format!("there is a pool {} already", new.name))) };
        }
        check_word("pool", &new.name)?;
        if self.map.pools.len() >= MANY_MAX {
            return Err(no(format!("there are {MANY_MAX} pools already")));
        }
        if let Some(unknown) = new.pdisks.iter().find(|id| self.map.pdisk(**id).is_none()) {
            return Err(no(format!("{unknown} is not in the cluster")));
        }
        let here = |id: PdiskId| {
            if new.pdisks.is_empty() { self.is_to_hold(id, now) } else { new.pdisks.contains(&id) }
        };
        let over = self.map.pdisks.iter().filter(|p| here(p.id)).map(|p| PdiskDesc {
            id: p.id,
            node: p.nodes.first().copied().unwrap_or_default(),
            enclosure: self.map.rack_number(p.id),
            weight: p.capacity,
        });
        let over: Vec<PdiskDesc> = over.collect();
        let groups = layout::default_groups(code, over.len() as u32);
        let table = LayoutTable::build(code, &over, 0, groups, new.seed).map_err(refused)?;
        self.check_survives(new.survives, &table)?;
        let pdisk = |p: &PdiskDesc| PoolPdisk {
            id: p.id,
            array: table.array_of(p.id),
            weight: p.weight,
            enclosure: p.enclosure,
        };
        let epoch: Epoch = self.bump();
        let pool = PoolEntry {
            id: PoolId(self.map.pools.iter().map(|pool| pool.id.0).max().unwrap_or(0) + 1),
            name: new.name,
            code: code.to_string(),
            block_size,
            width: code.width(),
            seed: new.seed,
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

    /// Refuses a table that the loss of a node, or of a rack, would make unreadable.
    fn check_survives(&self, what: Option<FailureDomain>, table: &LayoutTable) -> Result<(), MgrError> {
        let (survived, each) = match what {
            None => return Ok(()),
            Some(FailureDomain::Node) => (table.node_losses_survived(), "node"),
            Some(FailureDomain::Rack) if self.map.racks.is_empty() => {
                return Err(no(
                    "no node is in a rack: say which are (`ropewalk node set NODE --rack RACK`)".to_owned()
                ));
            }
            Some(FailureDomain::Rack) => (table.enclosure_losses_survived(), "rack"),
        };
        let code = table.code();
        if survived > 0 {
            return Ok(());
        }
        Err(no(match code.parity() {
            0 => format!("{code} has no redundancy: no loss of a {each} is survived; choose another code"),
            parity => format!(
                "the loss of a {each} would not be survived: {code} bears {parity} lost strips of {}, and some {each} would \
                 hold more; add a {each}, put pdisks on others, or choose a code of fewer strips, or with more parity",
                code.width()
            ),
        }))
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
        if let Some(name) = closed_name(&entry.name) {
            return Err(no(format!("pool {name} is being removed")));
        }
        if let Some(fs) = self.map.fs_by_name(&name) {
            let same = fs.pool == pool;
            return if same { Ok(()) } else { Err(no(format!("there is a file system {name} already"))) };
        }
        check_word("file system", &name)?;
        if self.map.filesystems.len() >= MANY_MAX {
            return Err(no(format!("there are {MANY_MAX} file systems already")));
        }
        let last = self.map.filesystems.iter().map(|fs| fs.id).max().unwrap_or_default();
        let Some(id) = last.max(self.removed_fs).0.checked_add(1).map(FsId) else {
            return Err(no("every number of a file system was given".to_owned()));
        };
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

    pub(super) fn remove_step(&mut self, what: Removal, step: &mut Step) -> Result<(), MgrError> {
        match what {
            Removal::ClosePool(name) => self.close_pool(&name, step),
            Removal::ReopenPool(id) => {
                self.rename_pool(id, |name| closed_name(name).map(str::to_owned), step)
            }
            Removal::RemovePool(id) => self.remove_pool(id, step),
            Removal::RemoveFs(name) => self.remove_fs(&name, step),
        }
    }

    fn close_pool(&mut self, name: &str, step: &mut Step) -> Result<(), MgrError> {
        let named = |p: &&PoolEntry| p.name == name || closed_name(&p.name) == Some(name);
        let Some(pool) = self.map.pools.iter().find(named) else {
            let names: Vec<&str> = self.map.pools.iter().map(|p| p.name.as_str()).collect();
            return Err(no(format!("there is no pool {name}; there are {}", names.join(", "))));
        };
        if let Some(fs) = self.map.filesystems.iter().find(|fs| fs.pool == pool.id) {
            return Err(no(format!("file system {} begins in pool {name}; remove it first", fs.name)));
        }
        let away = |p: &&wire::map::PdiskEntry| {
            pool.table.contains(&p.id) && matches!(p.state, PdiskState::Missing | PdiskState::Returning)
        };
        if let Some(pdisk) = self.map.pdisks.iter().find(away) {
            return Err(no(format!(
                "{} is {}: what it holds of pool {name} could not be removed; bring it back, or give it up \
                 (`ropewalk pdisk fail`)",
                pdisk.name,
                pdisk.state.name()
            )));
        }
        self.rename_pool(pool.id, |name| closed_name(name).is_none().then(|| closing_name(name)), step)
    }

    fn rename_pool(
        &mut self,
        id: PoolId,
        new_name: impl Fn(&str) -> Option<String>,
        step: &mut Step,
    ) -> Result<(), MgrError> {
        let Some(at) = self.map.pools.iter().position(|p| p.id == id) else {
            return Err(no(format!("there is no {id}")));
        };
        if let Some(name) = new_name(&self.map.pools[at].name) {
            self.bump();
            self.map.pools[at].name = name;
            step.put(keys::pool_key(id), &self.map.pools[at]);
        }
        Ok(())
    }

    fn remove_pool(&mut self, id: PoolId, step: &mut Step) -> Result<(), MgrError> {
        let closed = |p: &PoolEntry| p.id == id && closed_name(&p.name).is_some();
        let Some(at) = self.map.pools.iter().position(closed) else {
            return Err(no(format!("{id} is not being removed")));
        };
        let pool = self.map.pools.remove(at);
        self.bump();
        self.moving.remove(&id);
        self.space.forget_pool(id);
        self.forget_losses_of(id, step);
        step.store.push(StoreOp::Delete(keys::pool_key(id)));
        step.notes.push(format!("pool {} is removed", closed_name(&pool.name).unwrap_or(&pool.name)));
        Ok(())
    }

    fn remove_fs(&mut self, name: &str, step: &mut Step) -> Result<(), MgrError> {
        let Some(id) = self.map.fs_by_name(name).map(|fs| fs.id) else {
            let names: Vec<&str> = self.map.filesystems.iter().map(|fs| fs.name.as_str()).collect();
            return Err(no(format!("there is no file system {name}; there are {}", names.join(", "))));
        };
        if let Some(client) = self.clients.values().find(|client| client.record.fs == id) {
            let (host, mount) = (&client.record.process.host, &client.record.mount);
            return Err(no(format!("{name} is mounted at {host}:{mount}; unmount it first")));
        }
        let fenced = self.endings.get(&id).is_some_and(|ending| ending.fence.is_some());
        if fenced || self.opens.iter().any(|open| open.fs == id) {
            return Err(no(format!(
                "a mount of {name} begins or is being fenced; try again in some seconds"
            )));
        }
        self.bump();
        self.map.filesystems.retain(|fs| fs.id != id);
        self.tokens.remove(&id);
        self.locks.remove(&id);
        self.endings.remove(&id);
        self.removed_fs = self.removed_fs.max(id);
        step.put(keys::removed_fs_key(id), &keys::RemovedFsRecord { emptied: false });
        step.notes.push(format!("file system {name} is removed"));
        step.collect = true;
        Ok(())
    }
}
