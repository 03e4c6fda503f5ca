//! `ropewalk manager mirror` and `promote --from-mirror`: a copy of the manager's store on another disk or another machine, and that
//! copy as the store when that is lost. The manager does not run meanwhile.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{self, Path, PathBuf},
    sync::atomic::AtomicBool,
};

use anyhow::{Context, Result, bail};
use manager::store::{self, CopyPlace as _, KeptBy, Look, NetWay};
use net::{Endpoint, EndpointConfig, Role};

use super::manager::{CACHE_BYTES, own_stopped, stopped};
use crate::{
    args::ManagerMirror,
    cluster_dir::{ClusterDir, host::host_name},
    link::COMMAND,
    output,
    process::{self, presence::Presence},
};

/// Where a copy is to be.
enum Place {
    Disk(PathBuf),
    On(String),
}

/// `ropewalk manager mirror`. The next start makes the copy.
pub fn mirror(args: &ManagerMirror) -> Result<()> {
    let mut dir = args.dir.open()?;
    let named = args.copy.as_ref().map(|copy| place(&dir, copy)).transpose()?;
    let store = match &named {
        // It is one of the managers, and has no store.
        Some(Place::On(name)) => {
            let others = dir.file.all_managers().len() > 2;
            if dir.file.keeps_copy || others && dir.file.mirror_on.as_ref() != Some(name) {
                stopped(&dir)?;
            }
            own_stopped(&dir)?
        }
        _ => stopped(&dir)?,
    };
    if let Some(etcd) = &dir.file.etcd {
        bail!(
            "the manager's journal is in {}; what follows it there is a standby, and no mirror",
            etcd.place
        );
    }
    let mut told = Vec::new();
    match &named {
        None => told.push("no copy of the manager's store is kept any more".to_owned()),
        Some(Place::On(name)) => told.push(format!(
            "a copy of the manager's store will be kept on {name}: it is made when the manager starts, and {name} answers"
        )),
        Some(Place::Disk(copy)) => {
            let shown = copy.display();
            let there =
                fs::metadata(copy).with_context(|| format!("{shown} is to be made first, on another disk"))?;
            let foreign = fs::read_dir(copy).with_context(|| format!("read {shown}"))?.flatten().find(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                !["store.", "new."].iter().any(|own| name.starts_with(own)) && name != "lost+found"
            });
            if let Some(entry) = foreign {
                bail!(
                    "{shown} holds {}: a copy needs a directory of its own",
                    entry.file_name().to_string_lossy()
                );
            }
            told.push(format!(
                "a copy of the manager's store will be kept in {shown}: it is made when the manager starts"
            ));
            if fs::metadata(&store).is_ok_and(|own| own.dev() == there.dev()) {
                told.push("it is on the same file system as the store: when that is lost, so is the copy".into());
            }
        }
    }
    // No copy that was kept before counts.
    if let Some(name) = dir.file.mirror_on.as_ref().filter(|_| !args.destroyed) {
        dismiss(&dir, name, &store)?;
    }
    dir.witness_of(&store).reset()?;
    dir.keep(|file| {
        (file.mirror, file.mirror_on) = match named {
            None => (None, None),
            Some(Place::Disk(copy)) => (Some(copy), None),
            Some(Place::On(name)) => (None, Some(name)),
        }
    })?;
    told.iter().for_each(output::line);
    Ok(())
}

/// The name of a manager on another machine, or a directory.
fn place(dir: &ClusterDir, copy: &Path) -> Result<Place> {
    let word = copy.to_string_lossy();
    let all = dir.file.all_managers();
    match all.iter().find(|one| *one.name == word) {
        Some(one) if one.local.is_some() => bail!("{word} is this machine's own manager"),
        Some(one) => Ok(Place::On(one.name.clone())),
        None => Ok(Place::Disk(path::absolute(copy).context("find the copy's directory")?)),
    }
}

/// Speaks as a manager of the cluster, whose secret is here.
async fn way(dir: &ClusterDir, keeper: Vec<std::net::SocketAddr>) -> Result<NetWay> {
    let name = format!("{COMMAND} on {}", host_name());
    let config = EndpointConfig { conns_max: 1, name, ..dir.endpoint_as(&[Role::Manager])? };
    Ok(NetWay::new(&Endpoint::start(config)?, keeper))
}

/// Has the copy on another machine not count any more.
fn dismiss(dir: &ClusterDir, name: &str, store: &Path) -> Result<()> {
    let runtime = process::endpoint::runtime()?;
    let way = runtime.block_on(way(dir, dir.keeper_addrs(name)))?;
    let look = Look::open(&manager::format::store_path(store), CACHE_BYTES)?;
    let kept = KeptBy::new(Box::new(way), name, dir.witness_of(store), manager::VOTERS)?;
    // Once: whoever does not answer now is named.
    let once = AtomicBool::new(true);
    kept.dismiss(&*look.snapshot()?, &once).context(
        "the copy that was kept may still be promoted; nothing was changed. If it is gone for good, and nobody will: --destroyed",
    )
}

/// `ropewalk manager promote --from-mirror`.
pub fn promote(dir: &ClusterDir, copy: Option<&Path>) -> Result<()> {
    if let Some(etcd) = &dir.file.etcd {
        bail!("the manager's journal is in {}: what it holds is newer than any copy", etcd.place);
    }
    let Some(copy) = copy else { return promote_kept(dir) };
    let store = stopped(dir)?;
    let copy = path::absolute(copy).context("find the copy's directory")?;
    let last = dir.mirror_in(&copy).promote(&store)?;
    output::line(format!(
        "the copy in {} is the manager's store now, with {last} commits; start it: ropewalk up --dir {}",
        copy.display(),
        dir.path.display()
    ));
    Ok(())
}

/// The copy that this machine keeps.
fn promote_kept(dir: &ClusterDir) -> Result<()> {
    if !dir.file.keeps_copy {
        bail!("this machine keeps no copy for another one; a copy on a disk is named: --from-mirror DIR");
    }
    let (store, copy) = (own_stopped(dir)?, dir.kept_copy());
    // Who keeps the copy does not begin meanwhile: it would take what the manager commits, and say that nobody has promoted it.
    let own = dir.file.own_managers();
    let _held = own.iter().map(|own| Presence::claim(dir, &own.local)).collect::<Result<Vec<_>>>()?;
    let runtime = process::endpoint::runtime()?;
    let way = runtime.block_on(way(dir, Vec::new()))?;
    let last = store::promote_kept(&copy, &store, manager::VOTERS, &way)?;
    ClusterDir::change(&dir.path, |file| std::mem::replace(&mut file.keeps_copy, false))?;
    // It is older than the store from now on.
    let _ = fs::remove_dir_all(&copy); // nothing takes it any more
    output::line(format!(
        "the copy is the manager's store now, with {last} commits; start it: ropewalk up --dir {}",
        dir.path.display()
    ));
    Ok(())
}
