//! Starting the cluster's processes apart from the terminal, ending them, and what they said at last.

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::pid_file::{Named, make_parent};
use crate::{cluster_dir::access, interrupt, output};

/// How long one that was killed may take to be gone: what it was asking of a disk is waited for, and its memory given back.
const KILLED_PATIENCE: Duration = Duration::from_secs(20);

/// Starts this program again with `args`, in a session of its own, its output in `log`.
pub fn spawn_detached(args: &[&OsStr], log: &Path) -> Result<Child> {
    make_parent(log)?;
    let file = access::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("open log {}", log.display()))?;
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    // A group of its own, so that Ctrl-C in the terminal reaches `up` alone, which ends the others in order.
    command.process_group(0);
    command.spawn().context("start a process of the cluster")
}

/// Asks a process to end (SIGTERM).
pub fn terminate(pid: u32) {
    send(pid, Signal::TERM);
}

/// Ends a process at once (SIGKILL).
pub fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// The same, until it is gone, its files unlocked and its ports free.
pub fn kill_and_wait(name: &str, process: Named) -> Result<()> {
    kill(process.pid);
    if !process.wait_gone(KILLED_PATIENCE) {
        interrupt::check()?;
        bail!(
            "{name} (process {}) was killed and is not gone {KILLED_PATIENCE:?} later: it waits in the kernel, for a disk perhaps; give \
             the command again when it is gone",
            process.pid
        );
    }
    Ok(())
}

fn send(pid: u32, signal: Signal) {
    // A process that is gone already is what was wanted.
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Why a process ended, by the lines of its log from `from` on: the error it said, or the last lines.
pub fn last_words(path: &Path, from: u64) -> String {
    let tail = log_tail(path, from);
    match tail.rsplit_once(output::SAYS) {
        Some((before, error)) if before.is_empty() || before.ends_with('\n') => error.to_owned(),
        _ if tail.is_empty() => format!("it said nothing; its log is {}", path.display()),
        _ => format!("its log {} ends with\n{tail}", path.display()),
    }
}

/// The last lines of a log, for an error message.
fn log_tail(path: &Path, from: u64) -> String {
    let mut text = String::new();
    if let Ok(mut file) = fs::File::open(path) {
        let len = file.metadata().map(|m| m.len()).unwrap_or(0);
        let _ = file.seek(SeekFrom::Start(from.max(len.saturating_sub(4096))));
        let mut bytes = Vec::new();
        let _ = file.take(4096).read_to_end(&mut bytes);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
