//! `ropewalk pool lost`: which files cannot be read, and what other commands say of that in numbers.

use anyhow::{Result, bail};
use base::units::human_size;
use serde::Serialize;
use wire::{
    map::ClusterMap,
    mgr::{LOST_RUNS_MAX, LostBlocks, MgrReply, MgrRequest, PoolLosses},
};

use crate::{
    args::Listing,
    link::{self, Link},
    lost_blocks::{Lost, lost_files},
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
    /// Of `lost_blocks`, those of which the servers were not asked whether they can be read all the same: the manager
    /// names [`LOST_RUNS_MAX`] runs of blocks a file.
    unproved_blocks: u64,
}

/// `ropewalk pool lost`: exit status 0 only if everything can be read.
pub fn pool_lost(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let rows = link::run(async {
        let link = Link::new(&dir)?;
        let map = link.cluster().await?.map;
        let mut rows = Vec::new();
        for fs in &map.filesystems {
            lost_files(&link, &map, fs.id, |lost| rows.push(row(&fs.name, &lost))).await?;
        }
        Ok(rows)
    })?;
    let count = rows.len();
    let cut = cut(&rows);
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
        cut.into_iter().for_each(output::line);
    }
    if count == 0 { Ok(()) } else { bail!("{count} files cannot be read as a whole") }
}

/// Of which files not all lost blocks could be named one by one, for people.
fn cut(rows: &[LostRow]) -> Option<String> {
    let cut = || rows.iter().filter(|row| row.unproved_blocks > 0);
    let first = cut().next()?;
    let blocks: u64 = cut().map(|row| row.unproved_blocks).sum();
    Some(format!(
        "{} files, {} of {} among them, have more than {LOST_RUNS_MAX} runs of blocks that lack strips: {blocks} blocks behind these count \
         as lost, but it was not asked whether one of them can be read all the same",
        cut().count(),
        output::visible(&first.path),
        first.file_system,
    ))
}

fn row(fs: &str, Lost { file, named }: &Lost) -> LostRow {
    LostRow {
        file_system: fs.to_owned(),
        path: String::from_utf8_lossy(&file.path).into_owned(),
        inode: file.ino.0,
        size_bytes: file.size,
        lost_blocks: file.blocks,
        lost_bytes_at_most: file.blocks * u64::from(file.block_size),
        first_lost_byte: file.first.0 * u64::from(file.block_size),
        unproved_blocks: file.blocks.saturating_sub(named.len() as u64),
    }
}

/// How it is called that the manager has not said what is lost.
pub const UNKNOWN: &str = "how many blocks are lost for good is unknown: the manager did not say";

/// What pools have lost for good, as the manager counts it by itself. None: it did not say; one of an earlier version does not.
pub async fn losses(link: &Link) -> Option<Vec<PoolLosses>> {
    match link.manager(&MgrRequest::Losses).await {
        Ok(MgrReply::Losses(losses)) => Some(losses),
        _ => None,
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
    use base::BlockIndex;
    use wire::mgr::LostFile;

    use super::*;

    /// The manager counts all blocks of a file, and names the first runs of them.
    #[test]
    fn blocks_that_nobody_was_asked_about_are_told() {
        let lost = |path: &str, blocks, named: u64| {
            let file = LostFile { path: path.into(), blocks, block_size: 4096, ..LostFile::default() };
            row("fs1", &Lost { file, named: (0..named).map(BlockIndex).collect() })
        };
        let rows = [lost("/whole", 3, 3), lost("/cut", 5000, 4096), lost("/too", 4100, 4000)];
        assert_eq!(rows.each_ref().map(|row| row.unproved_blocks), [0, 904, 100]);
        let said = cut(&rows).unwrap_or_default();
        assert!(
            said.contains("2 files, /cut of fs1")
                && said.contains("4096 runs")
                && said.contains("1004 blocks"),
            "{said}"
        );
        assert_eq!(cut(&rows[..1]), None);
    }

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
