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

use crate::{args, directory::ClusterDir, output, process, server};

/// Long enough to wait out the lease of a client that vanished, and to resolve what it left.
const MOUNT_PATIENCE: Duration = Duration::from_secs(120);
/// Long enough to write a whole page pool of dirty data to slow disks.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(300);

/// `ropewalk mount`.
pub fn mount(args: &args::Mount) -> Result<()> {
    let dir = ClusterDir::open(&args.dir.dir)?;
    let mountpoint = check_mountpoint(&args.mountpoint, &dir.path)?;
    if args.foreground {
        return server::run_mount(&dir, &mountpoint, args);
    }
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
    let mut child = process::spawn_detached(&args, &log)?;
    let end = Instant::now() + MOUNT_PATIENCE;
    let bar = output::spinner("mounting");
    let ready = dir.ready_file(&process_name(mountpoint));
    while !(is_mounted(mountpoint) && ready.exists()) {
        if let Some(status) = child.try_wait().context("look after the mount process")? {
            bail!(
                "mounting {fs_name} on {} failed ({status}):\n{}",
                mountpoint.display(),
                process::log_tail(&log, from)
            );
        }
        if Instant::now() > end {
            process::terminate(child.id());
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

/// The name of a mount's process in `run/` and `log/`.
pub fn process_name(mountpoint: &Path) -> String {
    format!("mount{}", mountpoint.to_string_lossy().replace('/', "-"))
}

/// A directory that can be mounted on, as an absolute path.
pub fn check_mountpoint(mountpoint: &Path, cluster: &Path) -> Result<PathBuf> {
    // A mount whose process was killed answers nothing but ENOTCONN; it is cleared.
    if is_dead(mountpoint) {
        clear_dead_mount(mountpoint)?;
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
    if !path.is_dir() {
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
    // ECANCELED while the rings of a killed process are torn down.
    let dead = |e: std::io::Error| matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECANCELED));
    fs::metadata(mountpoint).is_err_and(dead)
}

/// A killed process holds its mount until its last thread has ended: waits for that, but not for long.
pub fn wait_dead(mountpoint: &Path) {
    let end = Instant::now() + Duration::from_secs(2);
    while is_mounted(mountpoint) && !is_dead(mountpoint) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Detaches a mount whose process is gone.
fn clear_dead_mount(mountpoint: &Path) -> Result<()> {
    rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH).with_context(|| {
        format!(
            "{} is a dead mount; clear it as root: umount -l {}",
            mountpoint.display(),
            mountpoint.display()
        )
    })
}

/// Whether something of ours is mounted there.
pub fn is_mounted(mountpoint: &Path) -> bool {
    mounts().iter().any(|m| m == mountpoint)
}

/// Our mount points, from /proc/self/mountinfo.
fn mounts() -> Vec<PathBuf> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|&b| b == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|&b| b == b' ');
            let path = unescape(fields.nth(4)?);
            let kind = fields.skip_while(|f| *f != b"-").nth(1)?;
            (kind == b"fuse.ropewalk").then(|| PathBuf::from(OsStr::from_bytes(&path)))
        })
        .collect()
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(value) if byte == b'\\' => {
                out.push(value);
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

/// `ropewalk umount`.
pub fn umount(args: &args::Umount) -> Result<()> {
    // The path of a dead mount cannot be resolved; it is taken as it is.
    let mountpoint = args.mountpoint.canonicalize().unwrap_or_else(|_| args.mountpoint.clone());
    if !is_mounted(&mountpoint) {
        bail!("{} is not a ropewalk mount", args.mountpoint.display());
    }
    unmount(&mountpoint, args.force)
}

/// Unmounts, and waits until the mount's process has written everything and ended.
pub fn unmount(mountpoint: &Path, force: bool) -> Result<()> {
    let pid = mount_pid(mountpoint);
    let flags =
        if force { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => {}
        Err(rustix::io::Errno::BUSY) => bail!(
            "{} is in use; close what is open there (`fuser -vm {}` shows who), or use --force",
            mountpoint.display(),
            mountpoint.display()
        ),
        Err(rustix::io::Errno::PERM) => fusermount(mountpoint, force)?,
        Err(e) => return Err(e).with_context(|| format!("unmount {}", mountpoint.display())),
    }
    let Some(pid) = pid else { return Ok(()) };
    if force {
        process::terminate(pid.0);
    }
    let bar = output::spinner("writing what is left");
    let end = Instant::now() + UMOUNT_PATIENCE;
    while process::start_ticks(pid.0) == Some(pid.1) {
        if Instant::now() > end {
            bail!(
                "{} is unmounted, but its process {} still writes after {UMOUNT_PATIENCE:?}; see its log",
                mountpoint.display(),
                pid.0
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bar.finish_and_clear();
    Ok(())
}

fn fusermount(mountpoint: &Path, force: bool) -> Result<()> {
    let mut command = std::process::Command::new("fusermount3");
    command.arg(if force { "-uz" } else { "-u" }).arg(mountpoint);
    let status = command.status().context("run fusermount3 (package fuse3)")?;
    if !status.success() {
        bail!("fusermount3 could not unmount {} ({status})", mountpoint.display());
    }
    Ok(())
}

/// The process behind a mount, with its start time, found by its command line's mount point.
pub fn mount_pid(mountpoint: &Path) -> Option<(u32, u64)> {
    let entries = fs::read_dir("/proc").ok()?;
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).find_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|&b| b == 0).filter(|w| !w.is_empty()).collect();
        let ours = words.get(1) == Some(&b"mount".as_slice())
            && words.contains(&b"--foreground".as_slice())
            && words.last() == Some(&mountpoint.as_os_str().as_bytes());
        if ours { Some((pid, process::start_ticks(pid)?)) } else { None }
    })
}

/// The mount point that a file (or the directory where it will be) lies under, and the cluster behind it
/// as its process's command line names it.
pub fn of_file(file: &Path) -> Option<(PathBuf, Option<ClusterDir>)> {
    let path = crate::perf::resolved(file)?;
    let mountpoint =
        mounts().into_iter().filter(|m| path.starts_with(m)).max_by_key(|m| m.as_os_str().len())?;
    let cluster = mount_pid(&mountpoint).and_then(|(pid, _)| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|&b| b == 0).skip_while(|w| *w != b"--dir");
        ClusterDir::open(Path::new(OsStr::from_bytes(words.nth(1)?))).ok()
    });
    Some((mountpoint, cluster))
}

/// All mounts of a cluster: those whose process has a pid file in its `run/`.
pub fn mounts_of(dir: &ClusterDir) -> Vec<PathBuf> {
    mounts().into_iter().filter(|m| dir.pid_file(&process_name(m)).exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_escapes() {
        assert_eq!(unescape(br"/mnt/with\040space\134end"), b"/mnt/with space\\end");
        assert_eq!(unescape(br"/plain\x"), br"/plain\x");
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
