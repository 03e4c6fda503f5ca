//! What mount(8) and umount(8) call: this program under two other names, with the arguments that they give every helper.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

/// What mount(8) looks for when the type is `ropewalk`.
pub const MOUNT_HELPER: &str = "mount.ropewalk";
/// What umount(8) looks for when it finds a mount of ours, whose type the kernel calls so.
pub const UMOUNT_HELPER: &str = "umount.fuse.ropewalk";

/// A program that was called by the name of a helper was asked for the command of that name.
pub fn with_helper_name(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut args = args.peekable();
    let called = args.peek().and_then(|path| Some(PathBuf::from(path).file_name()?.to_owned()));
    let helper = called.filter(|name| name == MOUNT_HELPER || name == UMOUNT_HELPER);
    args.next().into_iter().chain(helper).chain(args)
}

/// `mount.ropewalk FS DIRECTORY [-sfnv] [-o OPTIONS] [-t TYPE]`.
#[derive(Args)]
pub struct MountHelper {
    /// Name of the file system
    pub fs: String,
    /// An empty directory
    pub mountpoint: PathBuf,
    /// Options, with commas between
    #[arg(short = 'o', value_delimiter = ',')]
    pub options: Vec<String>,
    /// Options that are not known are passed over
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Check everything, and do not mount
    #[arg(short = 'f')]
    pub fake: bool,
    /// For mtab, which is no more
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Say more
    #[arg(short = 'v')]
    _verbose: bool,
    /// The type: always ours
    #[arg(short = 't')]
    _kind: Option<String>,
}

/// `umount.fuse.ropewalk DIRECTORY [-flnrv] [-t TYPE]`.
#[derive(Args)]
pub struct UmountHelper {
    /// The mount point
    pub mountpoint: PathBuf,
    /// Also when files are open
    #[arg(short = 'f')]
    pub force: bool,
    /// Out of sight at once, and gone when nothing uses it any more
    #[arg(short = 'l')]
    pub lazy: bool,
    /// For mtab, which is no more
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// For disks that cannot be unmounted
    #[arg(short = 'r')]
    _read_only: bool,
    /// Say more
    #[arg(short = 'v')]
    _verbose: bool,
    /// The type: always ours
    #[arg(short = 't')]
    _kind: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_it_is_called_by_is_the_command() {
        let asked = |words: &[&str]| {
            let words = words.iter().map(OsString::from);
            with_helper_name(words).map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            asked(&["/sbin/mount.ropewalk", "fs1", "/mnt"]),
            "/sbin/mount.ropewalk mount.ropewalk fs1 /mnt"
        );
        assert_eq!(
            asked(&["umount.fuse.ropewalk", "/mnt"]),
            "umount.fuse.ropewalk umount.fuse.ropewalk /mnt"
        );
        assert_eq!(asked(&["ropewalk", "status"]), "ropewalk status");
        assert_eq!(asked(&[]), "");
    }
}
