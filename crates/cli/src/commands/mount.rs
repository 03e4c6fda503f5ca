//! `ropewalk mount` and `umount`. A mount is a process of its own (`ropewalk mount --foreground`); the
//! command without that option starts it and comes back when the file system is there.

use std::{
    ffi::{OsStr, OsString},
    fs,
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Child,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    args,
    cluster_dir::{ClusterDir, access},
    interrupt::{self, Interrupted},
    output,
    process::{pid_file, server},
};

/// Long enough to wait out the lease of a client that vanished, and to resolve what it left.
const MOUNT_PATIENCE: Duration = Duration::from_secs(120);
/// Long enough to write a whole page pool of dirty data to slow disks.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(300);
/// How long a mount that is told to go by force has to take itself away, with what the kernel holds for it.
const FORCE_PATIENCE: Duration = Duration::from_secs(5);
/// And then to write what it holds itself.
const KILL_PATIENCE: Duration = Duration::from_secs(25);

/// `ropewalk mount`.
pub fn mount(args: &args::Mount) -> Result<()> {
    let dir = args.dir.open()?;
    // On a client's machine it is a copy, made with whatever mode.
    if let Err(error) = access::close(&dir.path.join("cluster.toml")) {
        output::note(&format!("whoever reads the cluster's secret owns its data: {error:#}"));
    }
    let mountpoint = check_mountpoint(&args.mountpoint, &dir.path)?;
    if args.foreground {
        return server::run_mount(&dir, &mountpoint, args);
    }
    interrupt::catch()?;
    // The mount goes on when its parent ends.
    let transport = Some(args.fuse_transport);
    let _child = start(&dir, &args.fs, &mountpoint, args.read_only, transport, args.metrics)?;
    output::line(format!("{} is mounted on {}", args.fs, mountpoint.display()));
    Ok(())
}

/// Starts the mount's process and waits until the file system is there. No transport: what the
/// environment says, or the default.
pub fn start(
    dir: &ClusterDir,
    fs_name: &str,
    mountpoint: &Path,
    read_only: bool,
    transport: Option<fuse::Transport>,
    metrics: Option<SocketAddr>,
) -> Result<Child> {
    if is_mounted(mountpoint) {
        bail!(
            "{} is a mount point already; unmount it first: ropewalk umount {}",
            mountpoint.display(),
            mountpoint.display()
        );
    }
    wait_predecessor(&dir.pid_file(&process_name(mountpoint)), mountpoint);
    interrupt::check()?;
    let log = dir.log_file(&process_name(mountpoint));
    let from = fs::metadata(&log).map(|m| m.len()).unwrap_or(0);
    let mut args: Vec<OsString> = ["mount", "--foreground", "--dir"].map(OsString::from).into();
    args.push(dir.path.clone().into());
    if read_only {
        args.push("--read-only".into());
    }
    if let Some(transport) = transport {
        args.extend(["--fuse-transport".into(), transport.to_string().into()]);
    }
    if let Some(metrics) = metrics {
        args.extend(["--metrics".into(), metrics.to_string().into()]);
    }
    args.extend([fs_name.into(), mountpoint.into()]);
    let args: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
    let mut child = pid_file::spawn_detached(&args, &log)?;
    let end = Instant::now() + MOUNT_PATIENCE;
    let bar = output::spinner("mounting");
    let ready = dir.ready_file(&process_name(mountpoint));
    while !(is_mounted(mountpoint) && ready.exists()) {
        if let Some(status) = child.try_wait().context("look after the mount process")? {
            let why = pid_file::last_words(&log, from);
            bail!("{fs_name} is not mounted on {} ({status}): {why}", mountpoint.display());
        }
        if interrupt::asked() {
            pid_file::terminate(child.id());
            child.wait().context("end the mount process")?;
            bail!(Interrupted(format!("{fs_name} is not mounted on {}", mountpoint.display())));
        }
        if Instant::now() > end {
            pid_file::terminate(child.id());
            bail!(
                "mounting {fs_name} on {} took longer than {MOUNT_PATIENCE:?}; the log is {}",
                mountpoint.display(),
                log.display()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bar.finish_and_clear();
    Ok(child)
}

/// The name of a mount's process in `run/` and `log/`. Containers may mount on the same path, with one directory.
pub fn process_name(mountpoint: &Path) -> String {
    let name = format!("mount{}", mountpoint.to_string_lossy().replace('/', "-"));
    pid_file::own_namespace().map_or(name.clone(), |namespace| format!("{name}@{namespace}"))
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

/// `ropewalk umount`.
pub fn umount(args: &args::Umount) -> Result<()> {
    // The path of a dead mount cannot be resolved; it is taken as it is.
    let mountpoint = args.mountpoint.canonicalize().unwrap_or_else(|_| args.mountpoint.clone());
    if !is_mounted(&mountpoint) {
        let of =
            |dir: &ClusterDir| mounts_of(dir).iter().map(|m| format!(" {}", m.display())).collect::<String>();
        let there = args.dir.open().ok().map(|dir| of(&dir)).filter(|there| !there.is_empty());
        let there = there.map(|there| format!("; mounted are{there}")).unwrap_or_default();
        bail!("{} is not a ropewalk mount{there}", args.mountpoint.display());
    }
    interrupt::catch()?;
    unmount(&mountpoint, args.force)
}

/// Unmounts, and waits until the mount's process has written everything and ended. By force it always returns, and the
/// mount is gone.
pub fn unmount(mountpoint: &Path, force: bool) -> Result<()> {
    let process = mount_pid(mountpoint);
    if force {
        return unmount_by_force(mountpoint, process);
    }
    match fuse::unmount(mountpoint, false) {
        Err(fuse::MountError::Busy { .. }) => bail!(
            "{} is in use; close what is open there (`fuser -vm {}` shows who), or use --force",
            mountpoint.display(),
            mountpoint.display()
        ),
        outcome => outcome?,
    }
    if let Some(process) = process.filter(|process| !ended(*process, UMOUNT_PATIENCE)) {
        if interrupt::asked() {
            bail!(Interrupted(format!(
                "{} is unmounted, and its process {} still writes what is left",
                mountpoint.display(),
                process.0
            )));
        }
        bail!(
            "{} is unmounted, but its process still writes after {UMOUNT_PATIENCE:?}; see its log",
            mountpoint.display()
        );
    }
    Ok(())
}

/// Told to end, a mount's process takes its mount away itself and writes everything. One that hangs is cut off from the
/// kernel, so that nobody waits for it any more, and is killed if it does not end then.
fn unmount_by_force(mountpoint: &Path, process: Option<(u32, u64)>) -> Result<()> {
    let hangs = process.filter(|&process| {
        pid_file::terminate(process.0);
        !ended(process, FORCE_PATIENCE)
    });
    if is_mounted(mountpoint) {
        fuse::unmount(mountpoint, true)?;
    }
    if let Some((pid, _)) = hangs.filter(|&process| !ended(process, KILL_PATIENCE)) {
        pid_file::kill(pid);
        output::note(&format!(
            "{}: process {pid} did not end and was killed; what it had not yet written is lost",
            mountpoint.display()
        ));
    }
    Ok(())
}

/// Waits for the end of a process; false if it lives on.
fn ended((pid, start): (u32, u64), patience: Duration) -> bool {
    let bar = output::spinner("writing what is left");
    let end = Instant::now() + patience;
    while pid_file::start_ticks(pid) == Some(start) {
        if Instant::now() > end || interrupt::asked() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bar.finish_and_clear();
    true
}

/// The process behind a mount, with its start time, found by its command line's mount point.
pub fn mount_pid(mountpoint: &Path) -> Option<(u32, u64)> {
    let entries = fs::read_dir("/proc").ok()?;
    let named = |pid: &str| fs::read(format!("/proc/{pid}/comm")).ok();
    let ours = named("self");
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).find_map(|pid| {
        // The command line of a program that waits in a page fault, for a mount that hangs, may not be read.
        if named(&pid.to_string()) != ours {
            return None;
        }
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|&b| b == 0).filter(|w| !w.is_empty()).collect();
        let ours = words.get(1) == Some(&b"mount".as_slice())
            && words.contains(&b"--foreground".as_slice())
            && words.last() == Some(&mountpoint.as_os_str().as_bytes());
        if ours { Some((pid, pid_file::start_ticks(pid)?)) } else { None }
    })
}

/// The mount point that a file (or the directory where it will be) lies under, and the cluster behind it
/// as its process's command line names it.
pub fn of_file(file: &Path) -> Option<(PathBuf, Option<ClusterDir>)> {
    let path = crate::commands::perf::resolved(file)?;
    let mountpoint = mounts().filter(|m| path.starts_with(m)).max_by_key(|m| m.as_os_str().len())?;
    let cluster = mount_pid(&mountpoint).and_then(|(pid, _)| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|&b| b == 0).skip_while(|w| *w != b"--dir");
        ClusterDir::open(Path::new(OsStr::from_bytes(words.nth(1)?))).ok()
    });
    Some((mountpoint, cluster))
}

/// All mounts of a cluster: those whose process has a pid file in its `run/`.
pub fn mounts_of(dir: &ClusterDir) -> Vec<PathBuf> {
    mounts().filter(|m| dir.pid_file(&process_name(m)).exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
