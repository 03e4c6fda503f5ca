//! Commands that change what nodes of this machine serve, and restart their servers: one at a time. So what one of them finds begun
//! was left by another that was interrupted.

use std::{
    ffi::OsStr,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::NodeId;

use crate::{
    cluster_dir::{ClusterDir, access},
    interrupt,
    link::{self, Link},
    output,
    process::{control, pid_file, presence::restart_file, units},
};

/// How long a node may take to stop and to serve again.
const RESTART_PATIENCE: Duration = Duration::from_secs(60);
/// How long another command may take that does such a thing: a pdisk is made, and a server restarted.
const HOLD_PATIENCE: Duration = Duration::from_secs(180);

/// Held by such a command as long as it is at it, and with the file in `dir` as it is then.
pub fn hold_nodes(dir: &mut ClusterDir) -> Result<fs::File> {
    let path = dir.path.join("run/nodes.lock");
    let what = || format!("lock {}", path.display());
    pid_file::make_parent(&path)?;
    let held = access::options().write(true).create(true).truncate(false).open(&path).with_context(what)?;
    let (end, mut told) = (Instant::now() + HOLD_PATIENCE, false);
    loop {
        match held.try_lock() {
            Ok(()) => break,
            Err(fs::TryLockError::Error(error)) => return Err(error).with_context(what),
            Err(fs::TryLockError::WouldBlock) if Instant::now() > end => {
                bail!(
                    "another command changes what nodes of this machine serve; give this one again when that has ended"
                );
            }
            Err(fs::TryLockError::WouldBlock) => {}
        }
        interrupt::check()?;
        if !std::mem::replace(&mut told, true) {
            output::note("another command changes what nodes of this machine serve, and is waited for");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    dir.file = ClusterDir::open(&dir.path)?.file;
    Ok(held)
}

/// A node's server learns of its pdisks when it starts: it is stopped cleanly and started again.
pub fn restart_node(dir: &ClusterDir, name: &str, id: NodeId) -> Result<()> {
    let (process, stopped) = (pid_file::live(&dir.pid_file(name)), restart_file(dir, name));
    if process.is_none() && !stopped.exists() {
        output::line(format!(
            "{name} does not run; it knows its pdisks when it is started (`ropewalk up --detach`)"
        ));
        return Ok(());
    }
    let before = link::run(async { Link::new(dir)?.cluster().await })?;
    let session = before.map.node(id).and_then(|n| n.session);
    // A service is systemd's to restart, or it would be started apart from its unit.
    let mut child = None;
    if !process.is_some_and(|process| units::restart(process.pid)) {
        // Whoever goes on with this, or `up`, starts it then.
        let made = access::options().write(true).create(true).truncate(true).open(&stopped);
        made.with_context(|| format!("write {}", stopped.display()))?;
        if let Some(process) = process {
            control::terminate(process.pid);
            if !process.wait_gone(RESTART_PATIENCE) {
                bail!("{name} (process {}) does not end; start it again when it has", process.pid);
            }
        }
        let args: [&OsStr; 5] =
            ["serve".as_ref(), "--dir".as_ref(), dir.path.as_ref(), "--name".as_ref(), name.as_ref()];
        child = Some(control::spawn_detached(&args, &dir.log_file(name))?);
    }
    let end = Instant::now() + RESTART_PATIENCE;
    loop {
        let ended = child.as_mut().map(std::process::Child::try_wait).transpose();
        // Somebody else may have started it meanwhile: `up`.
        if let Some(status) = ended.context("look after a child process")?.flatten()
            && pid_file::live(&dir.pid_file(name)).is_none()
        {
            bail!("{name} ended at its start ({status}); see {}", dir.log_file(name).display());
        }
        let report = link::run(async { Link::new(dir)?.cluster().await })?;
        let now = report.map.node(id).and_then(|n| n.session);
        if now.is_some() && now != session && dir.ready_file(name).exists() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{name} does not serve after {RESTART_PATIENCE:?}; see {}", dir.log_file(name).display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
