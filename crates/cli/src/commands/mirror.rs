//! `ropewalk manager mirror` and `promote --from-mirror`: a copy of the manager's store on another disk, and that copy as the store when
//! that is lost. The manager does not run meanwhile.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{self, Path},
};

use anyhow::{Context, Result, bail};

use super::manager::stopped;
use crate::{args::ManagerMirror, cluster_dir::ClusterDir, output};

/// `ropewalk manager mirror`. The next start makes the copy.
pub fn mirror(args: &ManagerMirror) -> Result<()> {
    let mut dir = args.dir.open()?;
    let store = stopped(&dir)?;
    if let Some(etcd) = &dir.file.etcd {
        bail!(
            "the manager's journal is in {}; what follows it there is a standby, and no mirror",
            etcd.place
        );
    }
    let copy = args.copy.as_ref().map(path::absolute).transpose().context("find the copy's directory")?;
    let mut told = vec!["no copy of the manager's store is kept any more".to_owned()];
    if let Some(copy) = &copy {
        let named = copy.display();
        let there =
            fs::metadata(copy).with_context(|| format!("{named} is to be made first, on another disk"))?;
        let foreign = fs::read_dir(copy).with_context(|| format!("read {named}"))?.flatten().find(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !["store.", "new."].iter().any(|own| name.starts_with(own)) && name != "lost+found"
        });
        if let Some(entry) = foreign {
            bail!(
                "{named} holds {}: a copy needs a directory of its own",
                entry.file_name().to_string_lossy()
            );
        }
        told = vec![format!(
            "a copy of the manager's store will be kept in {named}: it is made when the manager starts"
        )];
        if fs::metadata(&store).is_ok_and(|own| own.dev() == there.dev()) {
            told.push("it is on the same file system as the store: when that is lost, so is the copy".into());
        }
    }
    // No copy that was kept before counts.
    dir.mirror_in(copy.clone().unwrap_or_default()).reset()?;
    dir.file.mirror = copy;
    ClusterDir::save(&dir.path, &dir.file)?;
    told.iter().for_each(output::line);
    Ok(())
}

/// `ropewalk manager promote --from-mirror`.
pub fn promote(dir: &ClusterDir, copy: &Path) -> Result<()> {
    let store = stopped(dir)?;
    if let Some(etcd) = &dir.file.etcd {
        bail!("the manager's journal is in {}: what it holds is newer than any copy", etcd.place);
    }
    let copy = path::absolute(copy).context("find the copy's directory")?;
    let last = dir.mirror_in(copy.clone()).promote(&store)?;
    output::line(format!(
        "the copy in {} is the manager's store now, with {last} commits; start it: ropewalk up --dir {}",
        copy.display(),
        dir.path.display()
    ));
    Ok(())
}
