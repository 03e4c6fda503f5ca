//! The cluster's processes on this machine: starting them apart from the terminal, finding them by
//! their pid files, ending them. A pid file names a process only while that very process lives: it
//! holds the start time too, so that a reused id is never mistaken.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use wire::mgr::ProcessIdent;

/// Identity of a process of this boot, if it lives.
pub fn start_ticks(pid: u32) -> Option<u64> {
    base::proc_stat::start_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// This process, as the manager and others may check it.
pub fn own_ident() -> ProcessIdent {
    let read = |path| fs::read_to_string(path).map(|s| s.trim().to_owned()).unwrap_or_default();
    let pid = std::process::id();
    ProcessIdent {
        host: read("/proc/sys/kernel/hostname"),
        scope: own_scope(),
        pid,
        start_ticks: start_ticks(pid).unwrap_or(0),
    }
}

/// Where this process's id and start time mean what they mean to it, see [`ProcessIdent::scope`]. If that is not known it is
/// like no other.
fn own_scope() -> String {
    static SCOPE: LazyLock<String> = LazyLock::new(|| {
        scope().unwrap_or_else(|| {
            let unique = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
            format!("unknown {unique:016x}")
        })
    });
    SCOPE.clone()
}

/// The boot and the namespaces, if `/proc` is that of this process's own namespace of ids.
fn scope() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    // From the namespace of that /proc inwards: one number says that there is none between.
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let namespace = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let pids = namespace("pid")?.to_string_lossy().into_owned();
    // Kernels before 5.6 have no namespaces of time.
    let time = namespace("time").map(|t| t.to_string_lossy().into_owned()).unwrap_or_default();
    (ids.split_whitespace().count() == 1).then(|| format!("{} {pids} {time}", boot.trim()))
}

/// A client's copy of a cluster's directory holds `cluster.toml` only, at first.
fn make_parent(file: &Path) -> Result<()> {
    let Some(dir) = file.parent() else { return Ok(()) };
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))
}

/// Writes this process's pid file.
pub fn write_pid_file(path: &Path) -> Result<()> {
    make_parent(path)?;
    let pid = std::process::id();
    fs::write(path, format!("{pid}\n{}\n", start_ticks(pid).unwrap_or(0)))
        .with_context(|| format!("write {}", path.display()))
}

/// The live process that a pid file names.
pub fn live_pid(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    let pid: u32 = lines.next()?.trim().parse().ok()?;
    let ticks: u64 = lines.next()?.trim().parse().ok()?;
    (start_ticks(pid) == Some(ticks)).then_some(pid)
}

/// Starts this program again with `args`, in a session of its own, its output in `log`.
pub fn spawn_detached(args: &[&std::ffi::OsStr], log: &Path) -> Result<Child> {
    make_parent(log)?;
    let file = fs::OpenOptions::new()
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

fn send(pid: u32, signal: Signal) {
    // A process that is gone already is what was wanted.
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Waits until the process that a pid file names is gone.
pub fn wait_gone(path: &Path, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    while live_pid(path).is_some() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// The last lines of a log, for an error message.
pub fn log_tail(path: &Path, from: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_of_a_reused_id_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pid");
        write_pid_file(&path).unwrap();
        assert_eq!(live_pid(&path), Some(std::process::id()));
        fs::write(&path, format!("{}\n1\n", std::process::id())).unwrap();
        assert_eq!(live_pid(&path), None);
    }

    #[test]
    fn an_ended_child_that_nobody_waited_for_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        let end = Instant::now() + Duration::from_secs(10);
        while start_ticks(pid).is_some() && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(start_ticks(pid), None);
        child.wait().unwrap();
    }
}
