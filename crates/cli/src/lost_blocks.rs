//! Which blocks of files cannot be read. The manager knows of which groups too few strips are in reach, or were left; whether one of
//! their blocks can be read all the same, or was written anew since, only the servers can say.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use base::{BlockIndex, FsId, GroupId, InodeNo, PdiskId, PoolId, StripeId};
use wire::{
    admin::{AdminReply, AdminRequest},
    map::{ClusterMap, PdiskState, PoolEntry},
    mgr::{LostFile, MgrReply, MgrRequest},
};

use crate::link::Link;

/// How long a page of stripes may take to prove.
pub const PROVE_PATIENCE: Duration = Duration::from_secs(300);
/// Blocks of one question whether they can be read.
const READABLE_PAGE: usize = 256;

/// Groups of a pool.
pub fn group_count(pool: &PoolEntry) -> u32 {
    (pool.table.len() / usize::from(pool.width.max(1))) as u32
}

/// The group of a stripe.
pub fn group_of(map: &ClusterMap, pool: PoolId, stripe: StripeId) -> Option<GroupId> {
    let pool = map.pool(pool)?;
    Some(layout::group_of(pool.seed, group_count(pool), stripe))
}

/// Where the server of a group's first pdisk that counts answers.
pub fn server(map: &ClusterMap, pool: PoolId, group: GroupId) -> Result<SocketAddr> {
    let counts = |id: &PdiskId| map.pdisk(*id).is_some_and(|p| p.state == PdiskState::Ok);
    let mut members = map.group_members(pool, group).iter().copied().filter(counts).peekable();
    members.peek().context("no pdisk of it counts")?;
    let addr = |id: PdiskId| {
        let mut nodes = map.pdisk(id)?.nodes.iter().filter_map(|&n| map.node(n));
        nodes.find(|n| n.session.is_some())?.addrs.iter().find_map(|a| a.parse().ok())
    };
    members.find_map(addr).context("no server")
}

/// A file with blocks that cannot be read.
pub struct Lost {
    /// It: with how many these are, and the first of them.
    pub file: LostFile,
    /// Those of them that the manager named one by one.
    pub named: Vec<BlockIndex>,
}

/// Tells `each` file of a file system with blocks that cannot be read.
pub async fn lost_files(link: &Link, map: &ClusterMap, fs: FsId, mut each: impl FnMut(Lost)) -> Result<()> {
    let mut after = InodeNo(0);
    loop {
        let MgrReply::LostFiles(files) = link.manager(&MgrRequest::LostFiles { fs, after }).await? else {
            bail!("unexpected answer from the manager to LostFiles");
        };
        let Some(last) = files.last() else { return Ok(()) };
        after = last.ino;
        for mut file in files {
            let decoded = decodable(link, map, fs, &file).await;
            let mut named = named(&file);
            named.retain(|block| decoded.binary_search(block).is_err());
            file.blocks -= (decoded.len() as u64).min(file.blocks);
            file.first = named.first().copied().unwrap_or(file.first);
            if file.blocks > 0 {
                each(Lost { file, named });
            }
        }
    }
}

fn named(file: &LostFile) -> Vec<BlockIndex> {
    let blocks = file.runs.iter().flat_map(|run| run.first.0..run.first.0 + run.count);
    blocks.map(BlockIndex).collect()
}

/// Blocks of a file whose groups lack strips and that can be read all the same, as the servers say. Whoever
/// does not answer has none.
async fn decodable(link: &Link, map: &ClusterMap, fs: FsId, file: &LostFile) -> Vec<BlockIndex> {
    let mut by_server: BTreeMap<SocketAddr, Vec<StripeId>> = BTreeMap::new();
    for block in named(file) {
        let stripe = StripeId { fs, inode: file.ino, block };
        let group = group_of(map, file.pool, stripe);
        if let Some(addr) = group.and_then(|g| server(map, file.pool, g).ok()) {
            by_server.entry(addr).or_default().push(stripe);
        }
    }
    let mut found = Vec::new();
    for (addr, stripes) in by_server {
        for some in stripes.chunks(READABLE_PAGE) {
            let request = AdminRequest::Readable { pool: file.pool, stripes: some.to_vec() };
            let Ok(AdminReply::Json(text)) = link.admin(&[addr], &request, PROVE_PATIENCE).await else {
                continue;
            };
            if let Ok(Ok(readable)) = serde_json::from_str::<Result<Vec<bool>, String>>(&text) {
                found.extend(some.iter().zip(readable).filter(|(_, r)| *r).map(|(s, _)| s.block));
            }
        }
    }
    found.sort_unstable();
    found
}
