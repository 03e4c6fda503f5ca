//! The cluster's processes on this machine: starting them apart from the terminal, finding them by
//! their pid files, ending them. A pid file names a process only while that very process lives: it
//! holds the start time too, so that a reused id is never mistaken, and the namespaces in which both hold. The process
//! keeps it locked: nobody takes its place, from wherever.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use wire::mgr::ProcessIdent;

use crate::{cluster_dir::access, interrupt, output};

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
pub fn own_scope() -> String {
    static SCOPE: LazyLock<String> = LazyLock::new(|| {
        scope().unwrap_or_else(|| {
            let unique = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
            format!("unknown {unique:016x}")
        })
    });
    SCOPE.clone()
}

/// What tells names of files apart that processes of several PID namespaces keep in one directory; `None` in the first one.
pub fn own_namespace() -> Option<String> {
    /// The first one's number, the same on every Linux (PROC_PID_INIT_INO).
    const FIRST: &str = "4026531836";
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let number: String = link.to_str()?.chars().filter(char::is_ascii_digit).collect();
    (number != FIRST).then_some(number)
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
    access::make_dir(dir).with_context(|| format!("create {}", dir.display()))
}

/// How long a pid file may be held by a process that ends, until its last thread has.
pub const HELD_PATIENCE: Duration = Duration::from_secs(5);

/// Writes this process's pid file and holds it, locked, as long as the returned file is open: that is seen in every
/// namespace. `None`: another process holds it, which need not be one that is seen from here.
pub fn claim_pid_file(path: &Path, patience: Duration) -> Result<Option<fs::File>> {
    make_parent(path)?;
    let what = || format!("write {}", path.display());
    let end = Instant::now() + patience;
    loop {
        let mut options = access::options();
        let mut file = options.write(true).create(true).truncate(false).open(path).with_context(what)?;
        match file.try_lock() {
            Ok(()) => {
                // The one before may have taken it away just now.
                let own = file.metadata().with_context(what)?.ino();
                if fs::metadata(path).is_ok_and(|there| there.ino() == own) {
                    file.set_len(0).with_context(what)?;
                    file.write_all(pid_lines().as_bytes()).with_context(what)?;
                    return Ok(Some(file));
                }
            }
            Err(fs::TryLockError::WouldBlock) if Instant::now() > end => return Ok(None),
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(error)) => return Err(error).with_context(what),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pid_lines() -> String {
    let pid = std::process::id();
    format!("{pid}\n{}\n{}\n", start_ticks(pid).unwrap_or(0), own_scope())
}

/// The live process that a pid file names, if its id means anything here.
pub fn live_pid(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    let pid: u32 = lines.next()?.trim().parse().ok()?;
    let ticks: u64 = lines.next()?.trim().parse().ok()?;
    // Files of older versions do not say where their ids mean something.
    let here = lines.next().is_none_or(|scope| scope == own_scope());
    (here && start_ticks(pid) == Some(ticks)).then_some(pid)
}

/// Starts this program again with `args`, in a session of its own, its output in `log`.
pub fn spawn_detached(args: &[&std::ffi::OsStr], log: &Path) -> Result<Child> {
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

fn send(pid: u32, signal: Signal) {
    // A process that is gone already is what was wanted.
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Waits until the process that a pid file names is gone; false if it lives on, or if the command is told to stop.
pub fn wait_gone(path: &Path, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    while live_pid(path).is_some() {
        if Instant::now() > end || interrupt::asked() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_of_a_reused_id_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pid");
        let held = claim_pid_file(&path, Duration::ZERO).unwrap().unwrap();
        assert_eq!(live_pid(&path), Some(std::process::id()));
        let elsewhere = pid_lines().replace(&own_scope(), "another boot pid:[1] time:[1]");
        fs::write(&path, elsewhere).unwrap();
        assert_eq!(live_pid(&path), None, "its number is somebody else's here");
        // It lives all the same, and holds the file.
        assert!(claim_pid_file(&path, Duration::ZERO).unwrap().is_none());
        drop(held);
        // A child that another test begins just now has the file open until it runs its own program.
        assert!(claim_pid_file(&path, HELD_PATIENCE).unwrap().is_some());
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
