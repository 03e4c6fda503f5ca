//! `ropewalk down`: unmount (everything is written), then the manager, then the servers. The manager goes
//! first so that it does not take the servers' end for a failure.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{args::Down, directory::ClusterDir, mount, output, process};

const END_PATIENCE: Duration = Duration::from_secs(30);

/// Does it.
pub fn down(args: &Down) -> Result<()> {
    let dir = ClusterDir::open(&args.dir.dir)?;
    stop(&dir, args.force)?;
    output::line(format!(
        "cluster {} is down; `ropewalk up --dir {}` brings it back",
        dir.file.name,
        dir.path.display()
    ));
    Ok(())
}

/// Ends every process of the cluster in order.
pub fn stop(dir: &ClusterDir, force: bool) -> Result<()> {
    for mountpoint in mount::mounts_of(dir) {
        mount::unmount(&mountpoint, force)?;
        output::line(format!("unmounted {}", mountpoint.display()));
    }
    for name in dir.servers() {
        let file = dir.pid_file(&name);
        let Some(pid) = process::live_pid(&file) else { continue };
        process::terminate(pid);
        if !process::wait_gone(&file, END_PATIENCE) {
            if !force {
                bail!(
                    "{name} (process {pid}) has not ended after {END_PATIENCE:?}; look at {}, or use --force",
                    dir.log_file(&name).display()
                );
            }
            process::kill(pid);
        }
    }
    Ok(())
}
