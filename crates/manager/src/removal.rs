//! Removing a pool: it is closed, then everything that could be in it is looked at, then it goes, or is opened
//! again. A pool is in use as long as an inode names it (a file, or a directory that directs to it) or a
//! delete of its blocks is queued.

use base::{FsId, InodeNo, PoolId};
use tokio::time::Instant;
use wire::{
    map::ClusterMap,
    mgr::{MgrError, MgrReply},
};

use crate::{
    Caller, Manager,
    closing::closed_name,
    cluster::{Ask, Removal},
    keys::{self, DeleteRecord, Inode, ReadError, last_u64},
    manager::{ANSWER_BEFORE, TICK, read_refusal},
    store::{Read, open_record, prefix_end},
};

/// What is in a pool.
#[derive(Debug, Default)]
struct Uses {
    inodes: u64,
    first: Option<(FsId, InodeNo)>,
    deletes: u64,
}

fn uses(from: &dyn Read, pool: PoolId) -> Result<Uses, ReadError> {
    let mut uses = Uses::default();
    keys::walk(from, b"i", &prefix_end(b"i"), |key, value| {
        if open_record::<Inode>(key, value)?.pool == pool {
            let fs = key.get(1..5).and_then(|id| id.first_chunk::<4>()).copied();
            uses.first.get_or_insert((FsId(fs.map_or(0, u32::from_be_bytes)), InodeNo(last_u64(key))));
            uses.inodes += 1;
        }
        Ok(true)
    })?;
    keys::walk(from, b"q", &prefix_end(b"q"), |key, value| {
        uses.deletes += u64::from(open_record::<DeleteRecord>(key, value)?.pool == pool);
        Ok(true)
    })?;
    Ok(uses)
}

impl Manager {
    /// Removes a pool that nothing is in. What is on its way out is waited for until the caller's deadline.
    pub(crate) async fn pool_delete(&self, caller: Caller, name: String) -> Result<MgrReply, MgrError> {
        let closed = self.remove(caller, Removal::ClosePool(name.clone())).await?;
        let map = self.map().borrow().clone();
        let pool = map.pools.iter().find(|pool| closed_name(&pool.name) == Some(&name)).map(|pool| pool.id);
        let Some(pool) = pool else { return Ok(closed) };
        let in_use = match self.in_use(caller, pool, &name, &map).await {
            Ok(None) => return self.remove(caller, Removal::RemovePool(pool)).await,
            Ok(Some(why)) => MgrError::Config(why),
            Err(error) => error,
        };
        self.remove(caller, Removal::ReopenPool(pool)).await?;
        Err(in_use)
    }

    /// Why a closed pool cannot go, for people; none if nothing is in it.
    async fn in_use(
        &self,
        caller: Caller,
        pool: PoolId,
        name: &str,
        map: &ClusterMap,
    ) -> Result<Option<String>, MgrError> {
        let there = |fs: FsId| map.filesystems.iter().find(|entry| entry.id == fs);
        loop {
            let snapshot = self.snapshot();
            // Goes over all inodes.
            let look = self.inner().writer.aside(move || uses(&*snapshot, pool));
            let uses = look.await?.map_err(read_refusal)?;
            if let Some((fs, ino)) = uses.first.filter(|(fs, _)| there(*fs).is_some()) {
                let snapshot = self.snapshot();
                let path = move || crate::paths::paths(&*snapshot, fs, [ino].into_iter());
                let paths = self.inner().writer.aside(path).await?;
                let path = paths.map_err(read_refusal)?.remove(&ino).unwrap_or_default();
                return Ok(Some(format!(
                    "{} files and directories are in pool {name}, the first of them /{} in {}; copy or remove \
                     them, and direct directories elsewhere (`ropewalk fs set-pool`)",
                    uses.inodes,
                    String::from_utf8_lossy(&path),
                    there(fs).map(|entry| entry.name.as_str()).unwrap_or_default()
                )));
            }
            if uses.inodes + uses.deletes == 0 {
                return Ok(None);
            }
            if Instant::now() + 2 * ANSWER_BEFORE > caller.expires {
                return Ok(Some(format!(
                    "blocks of removed files are still on their way out of pool {name}; try again"
                )));
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Takes one step of a removal.
    pub(crate) async fn remove(&self, caller: Caller, what: Removal) -> Result<MgrReply, MgrError> {
        match self.ask(caller, Ask::Remove(what)).await? {
            MgrReply::Error(error) => Err(error),
            reply => Ok(reply),
        }
    }
}
