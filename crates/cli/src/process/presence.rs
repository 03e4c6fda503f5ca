//! One process of a name at a time: its pid file, held, and its ready file.

use std::{fs, path::PathBuf, time::SystemTime};

use anyhow::{Context, Result, bail};

use super::{
    pid_file::{self, Said},
    service,
};
use crate::{
    cluster_dir::{ClusterDir, access},
    logging,
};

/// A process's pid file and ready file; both go when it ends cleanly.
pub struct Presence {
    pid: PathBuf,
    ready: PathBuf,
    /// Locked as long as this process is the one of its name.
    held: fs::File,
}

/// Exists while a command has a process stopped to start it again: until the next one of its name begins, also if the command is
/// killed.
pub fn restart_file(dir: &ClusterDir, name: &str) -> PathBuf {
    dir.path.join("run").join(format!("{name}.restart"))
}

impl Presence {
    /// Takes the name, unless a process has it.
    pub fn claim(dir: &ClusterDir, name: &str) -> Result<Presence> {
        let pid_file = dir.pid_file(name);
        // Before there is a Presence: its end would remove the files of the one that lives.
        if let Some(pid) = pid_file::live_pid(&pid_file) {
            bail!("{name} runs already (process {pid})");
        }
        let ready = dir.ready_file(name);
        // Who sees that this one lives takes that file for its own: of one that was killed it may be there still.
        let stopped = restart_file(dir, name);
        let unready = || [&ready, &stopped].into_iter().for_each(|file| drop(fs::remove_file(file)));
        let Some(held) = pid_file::claim_pid_file(&pid_file, pid_file::HELD_PATIENCE, unready)? else {
            bail!("{name} runs already, in another container perhaps: {} is locked", pid_file.display());
        };
        Ok(Presence { pid: pid_file, ready, held })
    }

    /// Ends the process that is told to stop while a thread of it is at a step of its start: that cannot be ended and would be
    /// waited for. What it is at is left as after a crash. `closed`: what came of closing the rest.
    pub fn end_process(&self, closed: Result<()>) -> ! {
        told_early();
        if let Err(error) = &closed {
            tracing::error!("{error:#}");
        }
        self.clear();
        logging::flush();
        std::process::exit(i32::from(closed.is_err()))
    }

    /// Another program takes the place of this one, and is the process of this name as long as it lives.
    pub fn hand_over(self) {
        std::mem::forget(self);
    }

    fn clear(&self) {
        let _ = fs::remove_file(&self.ready);
        let _ = fs::remove_file(&self.pid);
    }

    /// Says that this process, which ends, still writes what is left: to who waits for its end ([`pid_file::held_by`]).
    pub fn goes_on(&self) {
        if let Err(error) = self.held.set_modified(SystemTime::now()) {
            tracing::warn!(%error, "who waits for the end of this process may think that it hangs");
        }
    }

    /// Says that this process will say what is lost ([`Presence::say`]).
    pub fn says_lost(&self) -> Result<()> {
        pid_file::say_so(&self.held).with_context(|| format!("write {}", self.pid.display()))
    }

    /// Says what is lost, if anything, to who waits for the end of this process; before that, what will be if it is killed.
    pub fn say(&self, said: &Said) {
        if let Err(error) = pid_file::say(&self.held, said) {
            tracing::warn!(%error, "who waits for the end of this process does not hear what is lost");
        }
    }

    /// Says that this process serves: to who started it, and to the service manager. Within the runtime.
    pub fn ready(&self) -> Result<()> {
        let mut options = access::options();
        let made = options.write(true).create(true).truncate(true).open(&self.ready);
        made.map(drop).with_context(|| format!("write {}", self.ready.display()))?;
        service::ready();
        Ok(())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Says why a process ends that has not served.
pub fn told_early() {
    tracing::info!("told to stop before it served");
}
