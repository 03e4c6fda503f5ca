//! `ropewalk manager migrate`: the manager's journal goes into etcd, or back into a file. The manager does not run meanwhile.
//! The table stays. `cluster.toml` says last where the journal is: what ends it before is done again by the same command.

use anyhow::{Context, Result, bail};
use manager::{format::store_path, store};

use super::manager::{CACHE_BYTES, stopped};
use crate::{
    args::{Migrate, StoreAt},
    cluster_dir::{EtcdFile, host::host_name},
    output,
};

/// Takes it there.
pub fn migrate(args: &Migrate) -> Result<()> {
    let mut dir = args.dir.open()?;
    // Others could not follow a file, and to a place in etcd they come when it is there.
    let path = store_path(&stopped(&dir)?);
    let who = format!("`manager migrate` on {}", host_name());
    if matches!(args.journal.store, Some(StoreAt::Own)) {
        bail!("--store etcd is for a new cluster, to try it; name the members: etcd://HOST,HOST,HOST/PREFIX");
    }
    let etcd = EtcdFile::asked(&args.journal)?;
    if let (Some(name), Some(_)) = (&dir.file.mirror_on, &etcd) {
        bail!(
            "a copy of the store is kept on {name}, which would not follow there: end it first (`ropewalk manager mirror --off`)"
        );
    }
    if let (Some(copy), Some(_)) = (&dir.file.mirror, &etcd) {
        bail!(
            "a copy of the store is kept in {}, which would not go there: end it first (`ropewalk manager mirror --off`)",
            copy.display()
        );
    }
    let told = match (&dir.file.etcd, &etcd) {
        (None, Some(to)) => {
            let place = to.place()?;
            store::to_etcd(&path, CACHE_BYTES, &place, &who).context("take the journal into etcd")?;
            format!("the manager's journal is in {place} now")
        }
        (Some(from), None) => {
            let place = from.place()?;
            store::to_file(&path, CACHE_BYTES, &place, &who).context("take the journal out of etcd")?;
            format!(
                "the manager's journal will be a file beside {}; what {place} has is not needed any more: etcdctl del --prefix {}/",
                path.display(),
                place.prefix
            )
        }
        (Some(from), Some(_)) => {
            bail!(
                "the journal is in {}: take it into a file first (--to-file), then to another place",
                from.place
            )
        }
        (None, None) => bail!("the journal is a file already"),
    };
    dir.keep(|file| file.etcd = etcd)?;
    output::line(format!("{told}; start it: ropewalk up --dir {}", dir.path.display()));
    Ok(())
}
