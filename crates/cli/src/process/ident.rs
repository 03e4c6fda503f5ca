//! Who a process is: its id and start time, and where these mean the same.

use std::{fs, sync::LazyLock};

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

/// What the system calls the processes that this program starts. Not what it calls this one, which may run under the name of a
/// helper of mount(8).
pub fn own_program() -> String {
    /// The kernel's limit (TASK_COMM_LEN), without the null.
    const LEN_MAX: usize = 15;
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.trim_end_matches(" (deleted)").chars().take(LEN_MAX).collect()
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

#[cfg(test)]
mod tests {
    use std::{
        process::Command,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn an_ended_child_that_nobody_waited_for_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        let end = Instant::now() + Duration::from_secs(60);
        while start_ticks(pid).is_some() && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(start_ticks(pid), None);
        child.wait().unwrap();
    }
}
