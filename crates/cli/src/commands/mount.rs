//! `ropewalk mount` and `umount`. A mount is a process of its own (`ropewalk mount --foreground`); the
//! command without that option starts it and comes back when the file system is there.

use std::{
    ffi::{OsStr, OsString},
    fs,
    net::SocketAddr,
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
    process::{
        self, control, ident,
        mounts::{
            UMOUNT_PATIENCE, check_mountpoint, is_mounted, mounts_of, process_name, server_of,
            wait_predecessor,
        },
        pid_file::{self, Said},
        units,
    },
};

/// Long enough to wait out the lease of a client that vanished, and to resolve what it left.
const MOUNT_PATIENCE: Duration = Duration::from_secs(120);

/// How long a mount that is told to go by force may write nothing of what the kernel holds for it, before it is cut off.
const FORCE_PATIENCE: Duration = Duration::from_secs(15);

/// And then nothing of what it holds itself, before it is killed.
const KILL_PATIENCE: Duration = Duration::from_secs(15);

/// How long the end of a process is waited for that goes on writing.
const END_TIMEOUT: Duration = Duration::from_secs(3600);

/// A mount whose process has not ended so long after may be held by others.
const HELD_AFTER: Duration = Duration::from_secs(2);

/// `ropewalk mount`.
pub fn mount(args: &args::Mount) -> Result<()> {
    let dir = args.dir.open()?;
    // It may have been copied here, or restored, with whatever mode.
    if let Err(error) = access::close(&dir.path.join("cluster.toml")) {
        output::note(&format!("whoever reads the cluster's secret owns its data: {error:#}"));
    }
    let mountpoint = check_mountpoint(&args.mountpoint, &dir.path)?;
    if args.foreground {
        return process::mount::run(&dir, &mountpoint, args);
    }
    interrupt::catch()?;
    let way = Way::of(args);
    if units::are_here(units::MOUNT) && !args.no_service && !is_mounted(&mountpoint) {
        units::mount(&dir, &args.fs, &mountpoint, &way.words())?;
    } else {
        // The mount goes on when its parent ends.
        start(&dir, &args.fs, &mountpoint, &way)?;
    }
    output::line(format!("{} is mounted on {}", args.fs, mountpoint.display()));
    Ok(())
}

/// How a mount is to be.
#[derive(Default)]
pub struct Way {
    read_only: bool,
    no_exec: bool,
    no_atime: bool,
    /// None: what the environment says, or the default.
    transport: Option<fuse::Transport>,
    metrics: Option<SocketAddr>,
    /// None: what the environment says, or the default.
    names: Option<args::Names>,
}

impl Way {
    /// As it was asked for.
    pub fn of(args: &args::Mount) -> Way {
        Way {
            read_only: args.read_only,
            no_exec: args.no_exec,
            no_atime: args.no_atime,
            transport: Some(args.fuse_transport),
            metrics: args.metrics,
            names: Some(args.names),
        }
    }

    /// The options by which the mount's process is told. None has a space in it.
    pub fn words(&self) -> Vec<String> {
        let flags =
            [(self.read_only, "--read-only"), (self.no_exec, "--no-exec"), (self.no_atime, "--no-atime")];
        let mut words: Vec<String> =
            flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag.to_string()).collect();
        if let Some(transport) = self.transport {
            words.extend(["--fuse-transport".into(), transport.to_string()]);
        }
        if let Some(metrics) = self.metrics {
            words.extend(["--metrics".into(), metrics.to_string()]);
        }
        if let Some(names) = self.names {
            let names = match names {
                args::Names::Durable => "durable",
                args::Names::Ahead => "ahead",
            };
            words.extend(["--names".into(), names.into()]);
        }
        words
    }
}

/// Starts the mount's process and waits until the file system is there.
pub fn start(dir: &ClusterDir, fs_name: &str, mountpoint: &Path, way: &Way) -> Result<Child> {
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
    args.extend(way.words().into_iter().map(OsString::from));
    args.extend([fs_name.into(), mountpoint.into()]);
    let args: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
    let mut child = control::spawn_detached(&args, &log)?;
    let end = Instant::now() + MOUNT_PATIENCE;
    let bar = output::spinner("mounting");
    let ready = dir.ready_file(&process_name(mountpoint));
    while !(is_mounted(mountpoint) && ready.exists()) {
        if let Some(status) = child.try_wait().context("look after the mount process")? {
            let why = control::last_words(&log, from);
            bail!("{fs_name} is not mounted on {} ({status}): {why}", mountpoint.display());
        }
        if interrupt::asked() {
            control::terminate(child.id());
            child.wait().context("end the mount process")?;
            bail!(Interrupted(format!("{fs_name} is not mounted on {}", mountpoint.display())));
        }
        if Instant::now() > end {
            control::terminate(child.id());
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
/// mount is gone. An error ([`Lost`]) also if it is gone and not all is stored that was written there, or that is not known.
pub fn unmount(mountpoint: &Path, force: bool) -> Result<()> {
    let Some(device) = device_at(mountpoint) else { return Ok(()) };
    // Bound to several places, it goes on with what is left.
    let places = || fuse::mounts().map_or(0, |mounts| mounts.iter().filter(|m| m.device == device).count());
    let in_several = places() > 1;
    let goes_on = || in_several && places() > 0;
    let server = server_of(mountpoint);
    // Before it can end.
    let file = server.as_ref().ok().copied().flatten().and_then(|(pid, _)| pid_file::held_by(pid));
    let file = file.as_ref();
    let not_known = |error: anyhow::Error| {
        let lost = format!("whether all is stored that was written there is not known: {error:#}");
        Err(Lost { mountpoint: mountpoint.into(), lost }.into())
    };
    if force {
        // Nobody is cut off who may go on elsewhere.
        if in_several || server.is_err() {
            fuse::detach(mountpoint)?;
        }
        return match server {
            Err(error) => not_known(error),
            Ok(process) if !goes_on() => unmount_by_force(mountpoint, device, process, file),
            Ok(_) => Ok(()),
        };
    }
    match fuse::unmount(mountpoint, false) {
        Err(fuse::MountError::Busy { .. }) => bail!(
            "{} is in use; close what is open there (`fuser -vm {}` shows who), or use --force",
            mountpoint.display(),
            mountpoint.display()
        ),
        outcome => outcome?,
    }
    let process = match server {
        Err(error) => return not_known(error),
        Ok(process) => process.filter(|_| !goes_on()),
    };
    let Some(process) = process else { return Ok(()) };
    let is_lost = || outcome(mountpoint, file, false);
    if ended(process, file, HELD_AFTER) {
        return is_lost();
    }
    let holders = || fuse::held_elsewhere(device);
    let held = holders();
    if !held.is_empty() {
        output::note(&held_by(mountpoint, &held));
    }
    if ended(process, file, UMOUNT_PATIENCE) {
        return is_lost();
    }
    if interrupt::asked() {
        bail!(Interrupted(format!(
            "{} is unmounted, and its process {} still writes what is left",
            mountpoint.display(),
            process.0
        )));
    }
    let held = holders();
    if !held.is_empty() {
        bail!(held_by(mountpoint, &held));
    }
    bail!(
        "{} is unmounted, but its process has not ended after {UMOUNT_PATIENCE:?}: it still writes, or a mount namespace \
         without processes holds the mount; see its log",
        mountpoint.display()
    )
}

/// Which mount of ours is there.
fn device_at(mountpoint: &Path) -> Option<(u32, u32)> {
    let mounted = fuse::mounted_at(mountpoint).ok().flatten();
    mounted.filter(|mounted| mounted.kind == fuse::KIND).map(|mounted| mounted.device)
}

/// Who keeps a mount that is unmounted here, and what to do about it.
fn held_by(mountpoint: &Path, holders: &[fuse::Holder]) -> String {
    let of = |holder: &fuse::Holder| {
        let fuse::Holder { pid, name, path } = holder;
        // Whoever holds it chose its path there: to be pasted it is quoted.
        let path = path.to_string_lossy().escape_debug().to_string().replace("\\'", "'\\''");
        format!("\n  {} ({pid}): nsenter --target {pid} --mount umount '{path}'", name.escape_debug())
    };
    let each: String = holders.iter().map(of).collect();
    format!(
        "{} is unmounted here, but goes on in mount namespaces of others (containers); it ends when they do, or is unmounted there by{each}",
        mountpoint.display()
    )
}

/// Told to end, a mount's process takes its mount away itself and writes everything. As long as it does it has time. One that hangs
/// is cut off from the kernel, so that nobody waits for it any more, and is killed if it does not end then.
fn unmount_by_force(
    mountpoint: &Path,
    device: (u32, u32),
    process: Option<(u32, u64)>,
    file: Option<&fs::File>,
) -> Result<()> {
    let hangs = process.filter(|&process| {
        units::end(process.0);
        !ended(process, file, FORCE_PATIENCE)
    });
    let is_interrupted = |pid| match interrupt::asked() {
        true => bail!(Interrupted(format!(
            "{}: its process {pid} was told to end, and goes on",
            mountpoint.display()
        ))),
        false => Ok(()),
    };
    hangs.map_or(Ok(()), |(pid, _)| is_interrupted(pid))?;
    if device_at(mountpoint) == Some(device) {
        fuse::unmount(mountpoint, true)?;
    }
    let Some((pid, _)) = hangs.filter(|&process| !ended(process, file, KILL_PATIENCE)) else {
        return outcome(mountpoint, file, false);
    };
    is_interrupted(pid)?;
    control::kill(pid);
    output::note(&format!("{}: process {pid} did not end and was killed", mountpoint.display()));
    outcome(mountpoint, file, true)
}

/// An error if something is lost, or may be, with a mount whose process has ended, by what that has said in its pid file. `killed`: not
/// by itself.
fn outcome(mountpoint: &Path, file: Option<&fs::File>, killed: bool) -> Result<()> {
    let lost = match file.map_or(Said::Never, pid_file::said) {
        Said::NothingLost => return Ok(()),
        Said::Never if !killed => return Ok(()),
        Said::Lost(lost) => format!("lost is {lost}"),
        Said::Never | Said::NotYet => {
            "what its process had not stored when it was killed is lost; it has not said whether there is any"
                .to_owned()
        }
    };
    Err(Lost { mountpoint: mountpoint.into(), lost }.into())
}

/// A mount is gone, and with it something that was written there, as far as is known.
#[derive(Debug, thiserror::Error)]
#[error("{} is unmounted, and {lost}", mountpoint.display())]
pub struct Lost {
    mountpoint: PathBuf,
    lost: String,
}

/// Waits for the end of a process; false if it lives on, and was not seen to write for so long.
fn ended((pid, start): (u32, u64), file: Option<&fs::File>, patience: Duration) -> bool {
    let bar = output::spinner("writing what is left");
    let wrote = || file?.metadata().ok()?.modified().ok();
    let (begun, mut before, mut last) = (Instant::now(), wrote(), Instant::now());
    while ident::start_ticks(pid) == Some(start) {
        let now = wrote();
        if now != before {
            (before, last) = (now, Instant::now());
        }
        if last.elapsed() > patience || begun.elapsed() > END_TIMEOUT || interrupt::asked() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bar.finish_and_clear();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_holder_chose_is_one_word_in_the_command_to_paste() {
        let holder = fuse::Holder { pid: 7, name: "a\u{1b}b".into(), path: "/x; it's\n".into() };
        let said = held_by(Path::new("/mnt"), &[holder]);
        let line = said.lines().last().unwrap_or_default();
        assert_eq!(line, r"  a\u{1b}b (7): nsenter --target 7 --mount umount '/x; it'\''s\n'");
    }
}
