//! Signals to processes, each followed by what it is sent for: a process that was killed is not gone yet, and one that was stopped runs on
//! for a moment.

use std::{
    fs,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to be gone, or to stand still.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends it. After SIGKILL nothing of the process is left, but what its parent may reap; after SIGSTOP none of its threads runs.
pub fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap_or_else(|error| panic!("{signal:?} to {pid}: {error}"));
    took(pid, signal);
}

/// Waits until a process that was sent this signal, and may have ended, is as it is sent for.
pub fn took(pid: Pid, signal: Signal) {
    let pid = pid.as_raw_nonzero().get();
    if signal == Signal::KILL {
        wait("does not end", || is_gone(pid));
    } else if signal == Signal::STOP {
        wait("does not stand still", || stands_still(pid));
    }
}

fn wait(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "a process {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether nothing of a process runs any more. It may wait to be reaped; its first thread can do so before the others have let go of
/// its files.
pub fn is_gone(pid: i32) -> bool {
    start_ticks(pid).is_none() && fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1
}

/// Whether a process waits for a lock of a whole file (flock).
pub fn waits_for_lock(pid: u32) -> bool {
    let line = format!("-> FLOCK  ADVISORY  WRITE {pid} ");
    fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&line))
}

/// When a process began, if it lives.
pub fn start_ticks(pid: i32) -> Option<u64> {
    base::proc_stat::start_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether none of its threads runs.
fn stands_still(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // None: it has just ended.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, None | Some('T' | 't' | 'Z' | 'X'))
    })
}
