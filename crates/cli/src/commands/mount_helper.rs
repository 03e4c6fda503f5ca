//! `mount -t ropewalk`, fstab and `umount`: what mount(8) and umount(8) call. Both come back when it is done: mounted, or
//! unmounted with everything written. Under systemd the mount's process is a service, else it is apart, as with
//! `ropewalk mount`.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    args::{self, Dir, MountHelper, UmountHelper},
    cluster_dir::DEFAULT_DIR,
    commands::mount::{self, Way},
    interrupt, output,
    process::{
        mounts::{UMOUNT_PATIENCE, check_mountpoint, is_mounted, process_name, wait_predecessor},
        units,
    },
};

/// What there is to say, as messages have it.
const KNOWN: &str = "ro, rw, noexec, noatime, dir=DIRECTORY, fuse_transport=auto|classic|uring, metrics=ADDRESS, names=durable|ahead";

/// What is for mount(8), systemd and the administrator, and what holds of each mount anyway.
const PASSED_OVER: [&str; 20] = [
    "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "rw",
    "nosuid", "nodev", "exec", "async", "atime", "relatime", "diratime", "silent", "loud",
];

/// `mount.ropewalk`.
pub fn mount(args: &MountHelper) -> Result<()> {
    let asked = asked(args)?;
    let dir = asked.dir.open()?;
    let mountpoint = check_mountpoint(&asked.mountpoint, &dir.path)?;
    if args.fake {
        return Ok(());
    }
    interrupt::catch()?;
    let way = Way::of(&asked);
    if units::are_here(units::MOUNT) && !is_mounted(&mountpoint) {
        wait_predecessor(&dir.pid_file(&process_name(&mountpoint)), &mountpoint);
        return units::mount(&dir, &asked.fs, &mountpoint, &way.words());
    }
    // The mount goes on when its parent ends.
    mount::start(&dir, &asked.fs, &mountpoint, &way).map(drop)
}

/// `umount.fuse.ropewalk`. It has no more time than others have for what is left to be written, and says when that was too short.
pub fn umount(args: &UmountHelper) -> Result<()> {
    let mountpoint = args.mountpoint.canonicalize().unwrap_or_else(|_| args.mountpoint.clone());
    if !is_mounted(&mountpoint) {
        bail!("{} is not a ropewalk mount", mountpoint.display());
    }
    interrupt::catch()?;
    if args.lazy {
        return lazily(&mountpoint);
    }
    mount::unmount(&mountpoint, args.force)
}

/// Who asks for this does not wait for what is written.
fn lazily(mountpoint: &Path) -> Result<()> {
    let mut command = Command::new("umount");
    let status = command.args(["-i", "-l"]).arg(mountpoint).status().context("call umount")?;
    if !status.success() {
        bail!("{} is not unmounted: umount ended with {status}", mountpoint.display());
    }
    output::note(&format!(
        "{}: what is left is written by its process, within {UMOUNT_PATIENCE:?}",
        mountpoint.display()
    ));
    Ok(())
}

/// What the options come to.
fn asked(args: &MountHelper) -> Result<args::Mount> {
    let mut asked = args::Mount {
        dir: Dir { dir: Some(DEFAULT_DIR.into()) },
        fs: args.fs.clone(),
        mountpoint: args.mountpoint.clone(),
        foreground: false,
        no_service: false,
        read_only: false,
        no_exec: false,
        no_atime: false,
        fuse_transport: fuse::Transport::default(),
        metrics: None,
        names: args::Names::default(),
    };
    for option in args.options.iter().map(|option| option.trim()) {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let wrong = || format!("option {option:?}");
        match (name, value) {
            ("ro", None) => asked.read_only = true,
            ("noexec", None) => asked.no_exec = true,
            ("noatime", None) => asked.no_atime = true,
            ("dir", Some(dir)) if Path::new(dir).is_absolute() => asked.dir.dir = Some(dir.into()),
            ("dir", _) => {
                bail!("option {option:?}: the cluster's directory, from the root: dir={DEFAULT_DIR}")
            }
            ("fuse_transport", Some(how)) => {
                asked.fuse_transport = how.parse().map_err(anyhow::Error::msg).with_context(wrong)?;
            }
            ("metrics", Some(addr)) => asked.metrics = Some(addr.parse().with_context(wrong)?),
            ("names", Some("durable")) => asked.names = args::Names::Durable,
            ("names", Some("ahead")) => asked.names = args::Names::Ahead,
            ("suid" | "dev", None) => {
                bail!(
                    "option {option:?}: set-user-id programs and devices do not work on a mount; leave it out"
                )
            }
            ("remount", None) => {
                bail!("option {option:?}: a mount stays as it was made; unmount it, then mount it again")
            }
            ("" | "comment", _) => {}
            (name, None) if PASSED_OVER.contains(&name) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            _ if args.sloppy => {}
            _ => bail!("option {option:?} is not known; known are {KNOWN}"),
        }
    }
    if asked.read_only
        && args.options.iter().rev().find(|o| *o == "rw" || *o == "ro").is_some_and(|o| o == "rw")
    {
        asked.read_only = false; // the last one holds, as everywhere
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn read(options: &str) -> Result<args::Mount> {
        let words = ["ropewalk", args::MOUNT_HELPER, "fs1", "/mnt/fs1", "-o", options];
        let Command::MountHelper(args) = Cli::parse_from(words).command else { panic!("another command") };
        asked(&args)
    }

    #[test]
    fn what_fstab_says_is_understood_or_passed_over() {
        let plain = read("rw,_netdev,nofail,noauto,user,x-systemd.automount,comment=mine,nosuid").unwrap();
        assert!(!plain.read_only && !plain.no_exec);
        assert_eq!(plain.dir.dir.as_deref(), Some(Path::new(DEFAULT_DIR)));
        let all = read(
            "ro,noexec,noatime,dir=/data/rope,fuse_transport=classic,metrics=127.0.0.1:9410,names=ahead",
        )
        .unwrap();
        assert!(all.read_only && all.no_exec && all.no_atime);
        assert_eq!(all.dir.dir.as_deref(), Some(Path::new("/data/rope")));
        assert_eq!(
            Way::of(&all).words().join(" "),
            "--read-only --no-exec --no-atime --fuse-transport classic --metrics 127.0.0.1:9410 --names ahead"
        );
        assert!(!read("ro,rw").unwrap().read_only && read("rw,ro").unwrap().read_only);
    }

    #[test]
    fn a_bad_option_is_named_with_those_that_there_are() {
        for (options, said) in [
            ("rw,cache=none", "option \"cache=none\" is not known; known are ro"),
            ("dir=rope", "dir=/var/lib/ropewalk"),
            ("dir", "dir=/var/lib/ropewalk"),
            ("fuse_transport=fast", "auto, classic or uring"),
            ("metrics=here", "option \"metrics=here\""),
            ("suid", "leave it out"),
            ("remount,ro", "unmount it"),
            ("ro=1", "is not known"),
        ] {
            let error = format!("{:#}", read(options).err().unwrap());
            assert!(error.contains(said), "{options}: {error}");
        }
        let words = ["ropewalk", args::MOUNT_HELPER, "fs1", "/mnt/fs1", "-sv", "-o", "cache=none"];
        let Command::MountHelper(args) = Cli::parse_from(words).command else { panic!("another command") };
        asked(&args).unwrap();
    }
}
