//! `ropewalk down`: unmount (everything is written), then the page, the manager, and the servers, of those that this machine runs.
//! The manager goes first so that it does not take the servers' end for a failure.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{
    args::Down,
    cluster_dir::{ClusterDir, PAGE},
    commands::mount,
    interrupt::{self, Interrupted},
    output,
    process::{control, mounts, pid_file, presence, units},
};

const END_PATIENCE: Duration = Duration::from_secs(30);

/// Does it.
pub fn down(args: &Down) -> Result<()> {
    let dir = args.dir.open()?;
    interrupt::catch()?;
    stop(&dir, args.force).map_err(|error| match error.is::<Interrupted>() {
        true => Interrupted(left_running(&dir)).into(),
        false => error,
    })?;
    let here = if dir.file.manager_here { "" } else { " on this machine" };
    output::line(format!(
        "cluster {} is down{here}; `ropewalk up --dir {}` brings it back",
        dir.file.name,
        dir.path.display()
    ));
    Ok(())
}

/// What still runs, for a command that was interrupted.
pub fn left_running(dir: &ClusterDir) -> String {
    let mounts = mounts::mounts_of(dir).into_iter().map(|m| format!("the mount {}", m.display()));
    let servers =
        dir.process_names().into_iter().filter(|name| pid_file::live_pid(&dir.pid_file(name)).is_some());
    let names: Vec<String> = servers.chain(mounts).collect();
    match names.is_empty() {
        true => format!("nothing of the cluster in {} runs", dir.path.display()),
        false => format!("of the cluster in {} still run: {}", dir.path.display(), names.join(", ")),
    }
}

/// Ends every process that the cluster has on this machine, in order.
pub fn stop(dir: &ClusterDir, force: bool) -> Result<()> {
    // What a mount has lost is no reason to go on running; nor is one that does not go for the others.
    let mut lost = Ok(());
    for mountpoint in mounts::mounts_of(dir) {
        match mount::unmount(&mountpoint, force) {
            Err(error) if error.is::<mount::Lost>() => lost = lost.and(Err(error)),
            outcome => outcome?,
        }
        output::line(format!("unmounted {}", mountpoint.display()));
    }
    for name in dir.process_names() {
        // Nobody is to start what was being restarted.
        let _ = std::fs::remove_file(presence::restart_file(dir, &name)); // it is hardly ever there
        let Some(process) = pid_file::live(&dir.pid_file(&name)) else { continue };
        let pid = process.pid;
        units::end(pid);
        if !process.wait_gone(END_PATIENCE) {
            interrupt::check()?;
            // The page holds no data: one that hangs keeps nothing else.
            if !force && name != PAGE {
                bail!(
                    "{name} (process {pid}) has not ended after {END_PATIENCE:?}; look at {}, or use --force",
                    dir.log_file(&name).display()
                );
            }
            lost = lost.and(control::kill_and_wait(&name, process));
        }
    }
    lost
}
