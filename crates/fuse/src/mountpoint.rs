//! Mount points: what must hold of one, getting the kernel to mount there, and unmounting.
//! As root by mount(2); as anybody else by the set-user-id helper `fusermount3` of the fuse3 package.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::fd::AsRawFd,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{
    device::DEVICE,
    error::MountError,
    mountinfo::{Mounted, mounted_at, users_of},
    options::MountOptions,
    sys,
};

/// File system type, as `mount` and `df -T` show it.
pub const KIND: &str = "fuse.ropewalk";
const HELPER: &str = "fusermount3";
/// Names of processes in a message at most.
const USERS_MAX: usize = 5;
/// Time for finding them: what a process has mapped cannot be read while it waits in a page fault.
const USERS_PATIENCE: Duration = Duration::from_secs(2);

/// Checks the mount point and gives its real path. A mount of ours whose process is gone is taken away.
pub fn prepare(options: &MountOptions) -> Result<PathBuf, MountError> {
    let given = &options.mountpoint;
    let path = match fs::canonicalize(given) {
        Ok(path) => path,
        Err(error) if is_dead(&error) => replace_dead(given)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(MountError::Missing { path: given.clone() });
        }
        Err(source) => return Err(MountError::Unusable { path: given.clone(), source }),
    };
    let is_dir = match fs::metadata(&path) {
        Ok(metadata) => metadata.is_dir(),
        Err(error) if is_dead(&error) => replace_dead(&path)?.is_dir(),
        Err(source) => return Err(MountError::Unusable { path, source }),
    };
    if !is_dir {
        return Err(MountError::NotADirectory { path });
    }
    let table = |source| MountError::Unusable { path: path.clone(), source };
    if let Some(Mounted { kind, source, .. }) = mounted_at(&path).map_err(table)? {
        return Err(MountError::AlreadyMounted { path, kind, from: source });
    }
    let entries = fs::read_dir(&path).map_err(table)?.count();
    if entries > 0 && !options.allow_non_empty {
        return Err(MountError::NotEmpty { path, entries });
    }
    Ok(path)
}

/// Whether this is what a FUSE mount without its process answers: "aborted" to who asked while the process died,
/// "canceled" while an io_uring of it is being torn down.
pub fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

/// "Transport endpoint is not connected": a FUSE mount without its process. Ours are replaced, since
/// nobody can use them any more; others are left alone.
fn replace_dead(path: &Path) -> Result<PathBuf, MountError> {
    let unusable = |source| MountError::Unusable { path: path.to_owned(), source };
    // The dead mount itself cannot be resolved; its parent can.
    let absolute = std::path::absolute(path).map_err(unusable)?;
    let (parent, name) = (absolute.parent(), absolute.file_name());
    let real = match (parent, name) {
        (Some(parent), Some(name)) => fs::canonicalize(parent).map_err(unusable)?.join(name),
        _ => absolute,
    };
    let mounted = mounted_at(&real).map_err(unusable)?;
    if mounted.is_none_or(|m| m.kind != KIND) {
        return Err(MountError::Dead { path: real });
    }
    tracing::warn!(path = %real.display(), "replacing a mount whose process is gone");
    match unmount(&real, true) {
        Ok(()) => Ok(real),
        Err(MountError::Unmount { path, source }) => Err(MountError::Unusable { path, source }),
        Err(_) => Err(MountError::Dead { path: real }),
    }
}

/// Mounts at `path` and gives the device of the new connection.
pub fn mount(path: &Path, options: &MountOptions) -> Result<File, MountError> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = match device {
        Ok(device) => device,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
            return Err(MountError::NoDevice);
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(MountError::DevicePermission);
        }
        Err(source) => return Err(MountError::Mount { path: path.to_owned(), source }),
    };
    if sys::effective_ids().0 != 0 {
        drop(device);
        return mount_by_helper(path, options);
    }
    match mount_as_root(path, options, &device) {
        Ok(()) => Ok(device),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(MountError::Permission { path: path.to_owned(), detail: error.to_string() })
        }
        Err(source) => Err(MountError::Mount { path: path.to_owned(), source }),
    }
}

fn mount_as_root(path: &Path, options: &MountOptions, device: &File) -> io::Result<()> {
    let (uid, gid) = sys::effective_ids();
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},{}",
        device.as_raw_fd(),
        max_read(options)
    );
    if options.kernel_checks() {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = 0;
    for (set, flag) in [
        (options.read_only, libc::MS_RDONLY),
        (!options.suid, libc::MS_NOSUID),
        (!options.dev, libc::MS_NODEV),
        (options.no_exec, libc::MS_NOEXEC),
        (options.no_atime, libc::MS_NOATIME),
    ] {
        flags |= if set { flag } else { 0 };
    }
    sys::mount(&options.fs_name, path, KIND, flags, &data)
}

/// A request may have a page more than its bytes fill ([`crate::tune::pages_for`]): reads are held to the bytes.
fn max_read(options: &MountOptions) -> String {
    format!("max_read={}", options.max_request)
}

fn mount_by_helper(path: &Path, options: &MountOptions) -> Result<File, MountError> {
    let failed = |source| MountError::Mount { path: path.to_owned(), source };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    // A comma or backslash in the name would end the option.
    let name = options.fs_name.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={name},subtype=ropewalk,nosuid,nodev,{}", max_read(options));
    for (set, option) in [
        (options.kernel_checks(), ",default_permissions"),
        (options.allow_other, ",allow_other"),
        (options.read_only, ",ro"),
        (options.no_exec, ",noexec"),
        (options.no_atime, ",noatime"),
    ] {
        list.push_str(if set { option } else { "" });
    }
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(list).arg("--").arg(path);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    sys::inherit(&mut command, &theirs);
    let child = command.spawn().map_err(|source| helper_missing(path, source))?;
    drop(theirs);
    let received = sys::receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(failed)?;
    match received.map_err(failed)? {
        Some(device) => Ok(File::from(device)),
        None => Err(MountError::Permission { path: path.to_owned(), detail: said(&output) }),
    }
}

fn helper_missing(path: &Path, source: io::Error) -> MountError {
    match source.kind() {
        ErrorKind::NotFound => MountError::NoHelper { path: path.to_owned() },
        _ => MountError::Mount { path: path.to_owned(), source },
    }
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    if text.is_empty() { format!("{HELPER} ended with {}", output.status) } else { text.to_owned() }
}

/// Unmounts what is mounted at `path`, without waiting for its process. With `force` whatever is under way and open:
/// requests end with ECONNABORTED, and so does whoever waits for one, this call included. Without, refused with
/// [`MountError::Busy`] while something is in use.
pub fn unmount(path: &Path, force: bool) -> Result<(), MountError> {
    take_away(path, if force { libc::MNT_FORCE | libc::MNT_DETACH } else { libc::UMOUNT_NOFOLLOW })
}

/// Frees the directory; whatever is under way and open goes on, and the mount with it until that is closed.
pub fn detach(path: &Path) -> Result<(), MountError> {
    take_away(path, libc::MNT_DETACH)
}

fn take_away(path: &Path, flags: libc::c_int) -> Result<(), MountError> {
    let has = |flag| flags & flag != 0;
    let error = match sys::unmount(path, flags) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    if error.kind() != ErrorKind::PermissionDenied || sys::effective_ids().0 == 0 {
        return Err(unmount_error(path, error));
    }
    if has(libc::MNT_FORCE) {
        abort_connection(path);
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(has(libc::MNT_DETACH).then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        // The helper has one exit status for all; whether something is in use can be seen.
        Ok(output) => match unmount_error(path, io::Error::from_raw_os_error(libc::EBUSY)) {
            MountError::Busy { users, path } if !users.is_empty() => Err(MountError::Busy { users, path }),
            _ => Err(MountError::Permission { path: path.to_owned(), detail: said(&output) }),
        },
        Err(error) => Err(unmount_error(path, error)),
    }
}

/// Ends every request of the connection; its owner may do that without being root.
fn abort_connection(path: &Path) {
    let Ok(Some(Mounted { device: (_, minor), .. })) = mounted_at(path) else { return };
    let knob = format!("/sys/fs/fuse/connections/{minor}/abort");
    if let Err(error) = fs::write(&knob, "1") {
        tracing::warn!(%knob, %error, "requests under way could not be ended");
    }
}

fn unmount_error(path: &Path, source: io::Error) -> MountError {
    let path = path.to_owned();
    if source.raw_os_error() != Some(libc::EBUSY) {
        return MountError::Unmount { path, source };
    }
    let (found, users) = mpsc::channel();
    let of = path.clone();
    thread::spawn(move || found.send(users_of(&of, USERS_MAX)));
    MountError::Busy { users: users.recv_timeout(USERS_PATIENCE).unwrap_or_default(), path }
}
