//! The mounts of this machine, and the processes behind them.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{ident, pid_file};
use crate::{cluster_dir::ClusterDir, interrupt, output};

/// Long enough to write a whole page pool of dirty data to slow disks.
pub const UMOUNT_PATIENCE: Duration = Duration::from_secs(400);

/// The name of a mount's process in `run/` and `log/`. Containers may mount on the same path, with one directory.
pub fn process_name(mountpoint: &Path) -> String {
    let name = format!("mount{}", mountpoint.to_string_lossy().replace('/', "-"));
    ident::own_namespace().map_or(name.clone(), |namespace| format!("{name}@{namespace}"))
}

/// A directory that can be mounted on, as an absolute path.
pub fn check_mountpoint(mountpoint: &Path, cluster: &Path) -> Result<PathBuf> {
    // A mount whose process was killed answers nothing any more; it is cleared.
    if is_dead(mountpoint) {
        fuse::unmount(mountpoint, true)?;
    }
    let path = match mountpoint.canonicalize() {
        Ok(path) => path,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "mount point {} does not exist; create it: mkdir -p {}",
                mountpoint.display(),
                mountpoint.display()
            )
        }
        Err(e) => return Err(e).with_context(|| format!("mount point {}", mountpoint.display())),
    };
    let found = fs::metadata(&path).with_context(|| format!("mount point {}", path.display()))?;
    if !found.is_dir() {
        bail!("mount point {} is not a directory", mountpoint.display());
    }
    if let Ok(cluster) = cluster.canonicalize()
        && path.starts_with(&cluster)
    {
        bail!(
            "mount point {} lies inside the cluster's own directory {}",
            mountpoint.display(),
            cluster.display()
        );
    }
    Ok(path)
}

fn is_dead(mountpoint: &Path) -> bool {
    fs::metadata(mountpoint).is_err_and(|error| fuse::is_dead(&error))
}

/// A killed process holds its mount until its last thread has ended: waits for that, but not for long.
pub fn wait_dead(mountpoint: &Path) {
    let end = Instant::now() + Duration::from_secs(2);
    while is_mounted(mountpoint) && !is_dead(mountpoint) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `umount(8)` does not wait for the mount's process, which writes what is left and ends then: waits for that.
pub fn wait_predecessor(pid_file: &Path, mountpoint: &Path) {
    let bar = output::spinner("the mount before writes what is left");
    let end = Instant::now() + UMOUNT_PATIENCE;
    while pid_file::live_pid(pid_file).is_some() && !is_mounted(mountpoint) && Instant::now() < end {
        if interrupt::asked() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bar.finish_and_clear();
}

/// Whether something of ours is mounted there.
pub fn is_mounted(mountpoint: &Path) -> bool {
    mounts().any(|m| m == mountpoint)
}

fn mounts() -> impl Iterator<Item = PathBuf> {
    let all = fuse::mounts().unwrap_or_default().into_iter();
    all.filter(|mount| mount.kind == fuse::KIND).map(|mount| mount.path)
}

/// The process that serves the mount at a path, with its start time: the one that has this very mount's connection, wherever its
/// own mount namespace is, and whoever else mounts on the same path in another. `None`: nobody serves it any more. An error:
/// who does is not seen from here.
pub fn server_of(mountpoint: &Path) -> Result<Option<(u32, u64)>> {
    let mounted = fuse::mounted_at(mountpoint).context("read what is mounted")?;
    let Some(fuse::Mounted { device, .. }) = mounted else { return Ok(None) };
    let claims = mount_processes().filter_map(|(pid, place)| {
        let sees_it = fuse::mounted_for(pid, &place).ok().flatten().is_some_and(|at| at.device == device);
        let claim = Claim::of(fuse::has_connection(pid, device), sees_it)?;
        Some(((pid, ident::start_ticks(pid)?), claim))
    });
    match chosen(&claims.collect::<Vec<_>>()) {
        Ok(None) if ident::own_namespace().is_some() => bail!(
            "no process of this PID namespace serves {}; if one of another does, only there can it be told to end",
            mountpoint.display()
        ),
        Ok(process) => Ok(process),
        Err(pids) => bail!(
            "which process serves {} cannot be told: it may be any of {pids:?}; end the right one (kill PID), and then unmount",
            mountpoint.display()
        ),
    }
}

/// How much speaks for a process as the server of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    /// It has the mount's connection, and the mount where it has mounted.
    Sure,
    /// One of the two. The mount may be gone in its own namespace; or the kernel does not tell of connections; or the connection is that
    /// of a mount that is gone, whose number this one has now.
    Possible,
}

impl Claim {
    fn of(has_connection: Option<bool>, sees_it: bool) -> Option<Claim> {
        match (has_connection, sees_it) {
            (Some(true), true) => Some(Claim::Sure),
            (Some(true), false) | (None, true) => Some(Claim::Possible),
            (Some(false), _) | (None, false) => None,
        }
    }
}

/// The one with the best claim, if there is one. An error: the processes that have the same.
fn chosen(claims: &[((u32, u64), Claim)]) -> Result<Option<(u32, u64)>, Vec<u32>> {
    let with = |claim| claims.iter().filter(|(_, its)| *its == claim).map(|(process, _)| *process).collect();
    let (sure, possible): (Vec<_>, Vec<_>) = (with(Claim::Sure), with(Claim::Possible));
    match if sure.is_empty() { &possible } else { &sure }[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        ref several => Err(several.iter().map(|(pid, _)| *pid).collect()),
    }
}

/// All processes of mounts that are seen from here, and where each has mounted, as it calls that itself.
fn mount_processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = ident::own_program();
    entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).filter_map(move |pid| {
        // The command line of a program that waits in a page fault, for a mount that hangs, may not be read.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        if name.trim_end() != ours {
            return None;
        }
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|&b| b == 0).filter(|w| !w.is_empty()).collect();
        let mounts =
            words.get(1) == Some(&b"mount".as_slice()) && words.contains(&b"--foreground".as_slice());
        words.last().filter(|_| mounts).map(|place| (pid, PathBuf::from(OsStr::from_bytes(place))))
    })
}

/// The mount point that a file (or the directory where it will be) lies under, and the cluster behind it
/// as its process's command line names it.
pub fn of_file(file: &Path) -> Option<(PathBuf, Option<ClusterDir>)> {
    let path = resolved(file)?;
    let mountpoint = mounts().filter(|m| path.starts_with(m)).max_by_key(|m| m.as_os_str().len())?;
    let cluster = server_of(&mountpoint).ok().flatten().and_then(|(pid, _)| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|&b| b == 0).skip_while(|w| *w != b"--dir");
        ClusterDir::open(Path::new(OsStr::from_bytes(words.nth(1)?))).ok()
    });
    Some((mountpoint, cluster))
}

/// All mounts of a cluster: those whose process has a pid file in its `run/`. One that another process serves belongs to another
/// cluster, whatever file was left there.
pub fn mounts_of(dir: &ClusterDir) -> Vec<PathBuf> {
    let of_cluster = |mount: &PathBuf| {
        let file = dir.pid_file(&process_name(mount));
        let server = server_of(mount).ok().flatten();
        file.exists() && server.is_none_or(|(pid, _)| pid_file::live_pid(&file) == Some(pid))
    };
    mounts().filter(of_cluster).collect()
}

/// All mounts of a cluster that a process of this machine serves, with its id.
pub fn served(dir: &ClusterDir) -> Vec<(PathBuf, u32)> {
    let by = |mount: PathBuf| {
        let pid = pid_file::live_pid(&dir.pid_file(&process_name(&mount)))?;
        Some((mount, pid))
    };
    mounts_of(dir).into_iter().filter_map(by).collect()
}

/// The directory a new file would lie in, or the file itself, without symbolic links.
fn resolved(file: &Path) -> Option<PathBuf> {
    fs::canonicalize(file).ok().or_else(|| {
        let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::canonicalize(parent).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_one_server_or_it_is_not_told() {
        let (sure, possible) = (Claim::of(Some(true), true).unwrap(), Claim::of(Some(true), false).unwrap());
        assert_eq!(Claim::of(None, true), Some(possible), "an older kernel");
        assert_eq!((Claim::of(Some(false), true), Claim::of(None, false)), (None, None));
        assert_eq!(chosen(&[]), Ok(None));
        assert_eq!(chosen(&[((7, 1), possible)]), Ok(Some((7, 1))));
        assert_eq!(chosen(&[((7, 1), possible), ((8, 1), sure)]), Ok(Some((8, 1))));
        assert_eq!(chosen(&[((7, 1), possible), ((8, 1), possible)]), Err(vec![7, 8]));
        assert_eq!(chosen(&[((7, 1), sure), ((8, 1), sure), ((9, 1), possible)]), Err(vec![7, 8]));
    }

    #[test]
    fn a_mount_point_inside_the_cluster_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("mnt");
        fs::create_dir(&inside).unwrap();
        assert!(check_mountpoint(&inside, dir.path()).unwrap_err().to_string().contains("inside"));
        let missing =
            check_mountpoint(&dir.path().join("no"), Path::new("/nowhere")).unwrap_err().to_string();
        assert!(missing.contains("mkdir -p"), "{missing}");
    }
}
