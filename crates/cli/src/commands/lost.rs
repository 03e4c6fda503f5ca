//! `ropewalk pool lost`: which files cannot be read, and what other commands say of that in numbers.

use anyhow::{Result, bail};
use base::units::human_size;
use serde::Serialize;
use wire::{
    map::ClusterMap,
    mgr::{LostBlocks, LostFile, MgrReply, MgrRequest, PoolLosses},
};

use crate::{
    args::Listing,
    link::{self, Link},
    lost_blocks::lost_files,
    output,
};

#[derive(Serialize)]
struct LostRow {
    file_system: String,
    path: String,
    inode: u64,
    size_bytes: u64,
    lost_blocks: u64,
    lost_bytes_at_most: u64,
    first_lost_byte: u64,
}

/// `ropewalk pool lost`: exit status 0 only if everything can be read.
pub fn pool_lost(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let rows = link::run(async {
        let link = Link::new(&dir)?;
        let map = link.cluster().await?.map;
        let mut rows = Vec::new();
        for fs in &map.filesystems {
            lost_files(&link, &map, fs.id, |lost| rows.push(row(&fs.name, &lost.file))).await?;
        }
        Ok(rows)
    })?;
    let count = rows.len();
    if listing.json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line("every file can be read");
    } else {
        let cells = |r: LostRow| {
            vec![
                r.file_system,
                r.path,
                human_size(r.size_bytes),
                r.lost_blocks.to_string(),
                r.first_lost_byte.to_string(),
            ]
        };
        let header = ["FILE SYSTEM", "FILE", "SIZE", "LOST BLOCKS", "FIRST LOST BYTE"];
        output::table(&header, rows.into_iter().map(cells).collect());
    }
    if count == 0 { Ok(()) } else { bail!("{count} files cannot be read as a whole") }
}

fn row(fs: &str, file: &LostFile) -> LostRow {
    LostRow {
        file_system: fs.to_owned(),
        path: String::from_utf8_lossy(&file.path).into_owned(),
        inode: file.ino.0,
        size_bytes: file.size,
        lost_blocks: file.blocks,
        lost_bytes_at_most: file.blocks * u64::from(file.block_size),
        first_lost_byte: file.first.0 * u64::from(file.block_size),
    }
}

/// What pools have lost for good, as the manager counts it by itself. One of an earlier version does not.
pub async fn losses(link: &Link) -> Vec<PoolLosses> {
    match link.manager(&MgrRequest::Losses).await {
        Ok(MgrReply::Losses(losses)) => losses,
        _ => Vec::new(),
    }
}

/// Lost blocks of all pools; none: they are still being counted.
pub fn total(losses: &[PoolLosses]) -> Option<u64> {
    losses.iter().map(|loss| loss.counted.map(|counted| counted.blocks)).sum()
}

/// What is lost of a pool for good, and what can be done, for people.
pub fn remark(map: &ClusterMap, loss: &PoolLosses) -> Option<String> {
    let name = map.pool(loss.pool).map(|pool| pool.name.as_str()).unwrap_or_default();
    match loss.counted {
        Some(LostBlocks { blocks: 0, .. }) => None,
        Some(LostBlocks { blocks, files }) => Some(format!(
            "pool {name}: {blocks} blocks of {files} files are lost for good; `ropewalk pool lost` names the files. Write these \
             blocks anew, or remove the files"
        )),
        None => Some(format!(
            "pool {name}: {} groups have lost more strips than their code bears; how many blocks that concerns is being \
             counted, `ropewalk pool lost` names the files",
            loss.groups
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_yet_is_not_nothing() {
        let loss = |blocks: Option<u64>| PoolLosses {
            groups: 2,
            counted: blocks.map(|blocks| LostBlocks { blocks, files: 1 }),
            ..PoolLosses::default()
        };
        assert_eq!((total(&[]), total(&[loss(Some(3)), loss(Some(4))])), (Some(0), Some(7)));
        assert_eq!(total(&[loss(Some(3)), loss(None)]), None);
        let said = |blocks| remark(&ClusterMap::default(), &loss(blocks)).unwrap_or_default();
        assert!(said(None).contains("2 groups") && said(Some(3)).contains("3 blocks of 1 files"));
        assert_eq!(said(Some(0)), "");
    }
}
