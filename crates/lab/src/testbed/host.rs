//! One host of a testbed: running commands, threads and whole runtimes in its namespace.

use std::{fs::File, io, net::IpAddr, path::PathBuf, process::Command, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::TestbedError;

/// A host. It has its own loopback, ports and routes; files and processes are the machine's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Host {
    /// `h1`, `h2`, ...
    pub name: String,
    /// The namespace, as `ip netns` lists it.
    pub netns: String,
    /// One for ECMP, one for each link for subnets.
    pub addrs: Vec<IpAddr>,
}

impl Host {
    /// A command that runs on this host. The process started is the program itself, so that killing it
    /// works. Not by `ip netns exec`: that gives a mount namespace of its own as well, in which mounts of the machine
    /// go on after they are unmounted.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", path(&self.netns).display())).arg("--").arg(program);
        command
    }

    /// Runs `f` on a new thread in this host's namespace. Sockets opened there stay there.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, TestbedError> {
        within(&self.netns, f)
    }

    /// A runtime whose threads, and with them all its sockets, are in this host's namespace. Enter it only
    /// by `spawn`: what `block_on` runs on the calling thread is where the caller is.
    pub fn runtime(&self, worker_threads: usize) -> Result<tokio::runtime::Runtime, TestbedError> {
        let path = path(&self.netns);
        let action = || format!("start threads in namespace {}", self.netns);
        let netns = File::open(&path).map_err(|source| TestbedError::System { action: action(), source })?;
        let begin = move || {
            // A thread that is elsewhere would measure the wrong network, silently.
            let entered = enter(&netns);
            assert!(entered.is_ok(), "enter {}: {entered:?}", path.display());
        };
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(worker_threads)
            .on_thread_start(begin)
            .enable_all()
            .build()
            .map_err(|source| TestbedError::System { action: action(), source })
    }
}

fn path(netns: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(netns)
}

/// Whether there is such a namespace: while one is made or removed its file is there without it.
pub(super) fn is_there(netns: &str) -> bool {
    /// `NSFS_MAGIC`, linux/magic.h.
    const NAMESPACES: u64 = 0x6e73_6673;
    rustix::fs::statfs(path(netns)).is_ok_and(|found| found.f_type as u64 == NAMESPACES)
}

fn enter(netns: &File) -> io::Result<()> {
    use std::os::fd::AsFd;
    Ok(move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Runs `f` on a thread of its own in a namespace; the caller's thread stays where it is.
pub(crate) fn within<T: Send>(netns: &str, f: impl FnOnce() -> T + Send) -> Result<T, TestbedError> {
    let failed = |source| TestbedError::System { action: format!("enter namespace {netns}"), source };
    let file = File::open(path(netns)).map_err(failed)?;
    thread::scope(|scope| {
        let thread = scope.spawn(move || enter(&file).map(|()| f()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .map_err(failed)
}
