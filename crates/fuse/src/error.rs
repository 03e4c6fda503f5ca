//! Why a mount could not be made, or not be taken away.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why a mount could not be made, or taken away. Each says what to do.
#[derive(Debug, Error)]
pub enum MountError {
    /// No such directory.
    #[error("mount point {} does not exist; make it first: mkdir -p {}", path.display(), path.display())]
    Missing {
        /// The mount point.
        path: PathBuf,
    },
    /// Not a directory.
    #[error("mount point {} is not a directory; give an empty directory", path.display())]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// Something is mounted there.
    #[error(
        "{} already has a mount ({kind} from {from}); unmount it first (umount {}) or give another directory",
        path.display(), path.display()
    )]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// Type of what is there.
        kind: String,
        /// Source of what is there.
        from: String,
    },
    /// It has entries, which a mount would hide.
    #[error("mount point {} is not empty (it holds {entries}, which the mount would hide); give an empty directory", path.display())]
    NotEmpty {
        /// The mount point.
        path: PathBuf,
        /// How many.
        entries: usize,
    },
    /// A FUSE mount without its process, not ours.
    #[error("{} is a mount whose process is gone; take it away first: umount -l {}", path.display(), path.display())]
    Dead {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point cannot be looked at.
    #[error("mount point {} cannot be used: {source}", path.display())]
    Unusable {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No FUSE in this kernel or container.
    #[error(
        "/dev/fuse is not there: load the kernel module (modprobe fuse), or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
    )]
    NoDevice,
    /// /dev/fuse may not be opened.
    #[error("no permission for /dev/fuse: run as root, or have the administrator do chmod 666 /dev/fuse")]
    DevicePermission,
    /// Mounting is not permitted.
    #[error("no permission to mount at {}: {detail}; run as root (in a container with --cap-add SYS_ADMIN), or own the directory and have the fuse3 package installed", path.display())]
    Permission {
        /// The mount point.
        path: PathBuf,
        /// The system's or the helper's words.
        detail: String,
    },
    /// Not root, and no helper.
    #[error("cannot mount at {} without being root: fusermount3 is missing; install it (apt-get install fuse3) or run as root", path.display())]
    NoHelper {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel refused the mount.
    #[error("mounting at {} failed: {source}", path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The first exchange with the kernel failed.
    #[error("the kernel did not start the FUSE connection: {source}")]
    Handshake {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Kernel too old, or of another major version.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or newer is needed")]
    Protocol {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// Threads or device queues could not be made.
    #[error("starting the readers of {} failed: {source}", path.display())]
    Readers {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// FUSE over io_uring was asked for.
    #[error("{} cannot be mounted over io_uring: {source}; mount with the classic transport, or with `auto`", path.display())]
    NoUring {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An option outside its range.
    #[error("mount option {option}: {value} is outside its range, {range}")]
    BadOption {
        /// Its name.
        option: &'static str,
        /// What was given.
        value: u64,
        /// What may be.
        range: &'static str,
    },
    /// In use.
    #[error("{} is in use{}; close what is open there, or unmount by force", path.display(), by(users))]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// Some of the processes, as "name (pid)".
        users: Vec<String>,
    },
    /// The kernel refused to unmount.
    #[error("unmounting {} failed: {source}", path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Unmounted, but the last data is not known to be durable.
    #[error("{} is unmounted, but its last data could not be made durable: {}", path.display(), base::errno::text(*errno))]
    NotDurable {
        /// The mount point.
        path: PathBuf,
        /// Why.
        errno: i32,
    },
}

fn by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_where_and_what_to_do() {
        let path = PathBuf::from("/mnt/fs1");
        let missing = MountError::Missing { path: path.clone() }.to_string();
        assert_eq!(missing, "mount point /mnt/fs1 does not exist; make it first: mkdir -p /mnt/fs1");
        let busy = MountError::Busy { path, users: vec!["bash (42)".into()] }.to_string();
        assert_eq!(busy, "/mnt/fs1 is in use by bash (42); close what is open there, or unmount by force");
    }
}
