//! `ropewalk sync`: what sync(2) and syncfs(2) do elsewhere. They never reach a FUSE file system of this kind, so the mount is told by an
//! attribute.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::{
    fs::{fgetxattr_query, major, minor, syncfs},
    io::Errno,
};

use crate::args;

/// `ropewalk sync`. All paths are looked at before anything is done; one that fails keeps no other from it.
pub fn sync(args: &args::Sync) -> Result<()> {
    let opened = args.paths.iter().map(|path| Ok((path, open(path)?))).collect::<Result<Vec<_>>>()?;
    let failed = opened.iter().filter_map(|(path, file)| make_durable(path, file).err());
    let failed: Vec<String> = failed.map(|error| format!("{error:#}")).collect();
    if failed.is_empty() { Ok(()) } else { Err(anyhow!(failed.join("\n"))) }
}

/// How long a mount is asked again that too many sync just now.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(100);

fn make_durable(path: &Path, file: &File) -> Result<()> {
    let place = path.display();
    let not_all = || format!("{place}: not all that was written there is durable");
    // The kernel begins to write what programs have changed in mappings. What it says of what failed before is not lost: see below.
    let begun = syncfs(file);
    let until = Instant::now() + PATIENCE;
    let synced = loop {
        match fgetxattr_query(file, fuse::SYNC_ATTRIBUTE) {
            Err(Errno::AGAIN) if Instant::now() < until => thread::sleep(AGAIN),
            synced => break synced,
        }
    };
    // Of pages that it could not write the kernel tells once: what failed now is not told to who syncs next.
    let ended = syncfs(file);
    begun.and(ended).with_context(not_all)?;
    match synced {
        Ok(_) => Ok(()),
        Err(Errno::ROFS) => {
            bail!("{place} is read-only here; what others write there is synced where they do")
        }
        Err(Errno::OPNOTSUPP) => {
            bail!(
                "{place}: the mount's process is of an older version; mount it anew, or sync each file (fsync)"
            )
        }
        Err(Errno::AGAIN) => bail!("{place}: too many sync that mount just now; try again"),
        Err(error) => Err(error).with_context(not_all),
    }
}

/// Something on a mount of ours.
fn open(path: &Path) -> Result<File> {
    let failed = || format!("{}: open", path.display());
    // Nobody waits for the other end of a fifo.
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).with_context(failed)?;
    let device = file.metadata().with_context(failed)?.dev();
    let device = (major(device), minor(device));
    let mounts = fuse::mounts().context("read what is mounted")?;
    if !mounts.iter().any(|mount| mount.kind == fuse::KIND && mount.device == device) {
        bail!("{} is on no ropewalk mount that is seen from here", path.display());
    }
    Ok(file)
}
