//! `pool create|delete`, `fs create|delete|set-pool`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use wire::mgr::{MgrRequest, POOL_XATTR};

use crate::{
    args::{Dir, PoolCreate, Removal},
    commands::pdisks::find_pdisk,
    link::{self, Link},
    output,
};

/// `ropewalk pool create`.
pub fn pool_create(args: &PoolCreate) -> Result<()> {
    let dir = args.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let map = link.cluster().await?.map;
        let pdisks = args.pdisks.iter().map(|name| find_pdisk(&map, name)).collect::<Result<_>>()?;
        let (name, code) = (args.name.clone(), args.code.clone());
        let block_size = u32::try_from(args.block_size.0)
            .with_context(|| format!("--block-size {}: at most 16m", args.block_size))?;
        let survives = args.failure_domain.map(Into::into);
        link.manager(&MgrRequest::PoolCreate { name, code, block_size, pdisks, survives }).await?;
        output::line(format!(
            "pool {} is there; `ropewalk fs set-pool` directs a directory to it",
            args.name
        ));
        Ok(())
    })
}

/// `ropewalk fs create`.
pub fn fs_create(dir: &Dir, name: &str, pool: &str) -> Result<()> {
    let dir = dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let map = link.cluster().await?.map;
        let found = map.pools.iter().find(|p| p.name == pool).map(|p| p.id);
        let pool = found.with_context(|| {
            let names: Vec<&str> = map.pools.iter().map(|p| p.name.as_str()).collect();
            format!("there is no pool {pool}; there are {}", names.join(", "))
        })?;
        link.manager(&MgrRequest::FsCreate { name: name.to_owned(), pool }).await?;
        output::line(format!("file system {name} is there; `ropewalk mount` mounts it"));
        Ok(())
    })
}

/// `ropewalk pool delete`.
pub fn pool_delete(Removal { dir, name, yes }: &Removal) -> Result<()> {
    let dir = dir.open()?;
    if !yes {
        bail!("--yes says that pool {name} is to go");
    }
    link::run(async { Link::new(&dir)?.manager(&MgrRequest::PoolDelete { name: name.clone() }).await })?;
    output::line(format!("pool {name} is removed"));
    Ok(())
}

/// `ropewalk fs delete`.
pub fn fs_delete(Removal { dir, name, yes }: &Removal) -> Result<()> {
    let dir = dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        if !yes {
            let report = link.cluster().await?;
            let at = report.map.filesystems.iter().position(|fs| fs.name == *name);
            let inodes = at.and_then(|at| report.inodes.get(at)).copied();
            let inodes = inodes.with_context(|| format!("there is no file system {name}"))?;
            bail!(
                "--yes says that file system {name} is to go, with the {inodes} files and directories in it"
            );
        }
        link.manager(&MgrRequest::FsDelete { name: name.clone() }).await?;
        output::line(format!(
            "file system {name} is removed; its blocks are given back in the background (`ropewalk status`)"
        ));
        Ok(())
    })
}

/// `ropewalk fs set-pool`: an extended attribute, so that whoever may write to the directory may do it.
pub fn fs_set_pool(directory: &Path, pool: &str) -> Result<()> {
    let name = std::str::from_utf8(POOL_XATTR).context("the attribute's name")?;
    let said = |errno| match errno {
        rustix::io::Errno::INVAL => format!("there is no pool {pool} (`ropewalk pool list`)"),
        rustix::io::Errno::NOTDIR => "not a directory; what a file holds stays in its pool".to_owned(),
        rustix::io::Errno::OPNOTSUPP => "not on a file system of ropewalk".to_owned(),
        other => other.to_string(),
    };
    rustix::fs::setxattr(directory, name, pool.as_bytes(), rustix::fs::XattrFlags::empty())
        .map_err(|errno| anyhow::anyhow!("{}: {}", directory.display(), said(errno)))?;
    output::line(format!("what is made in {} from now on goes to pool {pool}", directory.display()));
    Ok(())
}
