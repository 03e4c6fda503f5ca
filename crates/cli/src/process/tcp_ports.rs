//! TCP ports of this machine that processes of a cluster are to have beside those of its servers: the page's, and those at which
//! metrics are shown. Each is for one of them, and what two would have is refused before anything is changed. So is one that another
//! program has; what the cluster's own processes have is no stranger's.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::pid_file;
use crate::{cluster_dir::ClusterDir, interrupt};

/// How long a killed process may keep its port: until the last of its threads has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes ports. Where a process was `killed` that may have them still, it is tried again for a moment.
pub fn take<T>(killed: bool, mut take: impl FnMut() -> Result<T>) -> Result<T> {
    let until = Instant::now() + if killed { PATIENCE } else { Duration::ZERO };
    loop {
        match take() {
            Err(_) if Instant::now() < until => {}
            taken => return taken,
        }
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether who listens at one leaves no room for the other.
pub fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && (any || a.ip() == b.ip())
}

/// Addresses that are not for servers.
#[derive(Default)]
pub struct Beside {
    page: Option<SocketAddr>,
    metrics: Vec<SocketAddr>,
    /// So many want a port for metrics.
    processes: usize,
}

/// The port so many behind one, if there is one.
pub fn nth(first: SocketAddr, n: usize) -> Option<SocketAddr> {
    Some(SocketAddr::new(first.ip(), first.port().checked_add(u16::try_from(n).ok()?)?))
}

/// Which server has an address for itself, or is to have it.
pub fn server_at(dir: &ClusterDir, at: SocketAddr) -> Option<String> {
    let peers =
        dir.file.etcd.iter().flat_map(|etcd| &etcd.members).map(|one| (one.name.clone(), one.peer.into()));
    let all = dir.servers().into_iter().chain(peers);
    let mut those = all.filter(|(_, addrs)| addrs.iter().any(|&addr| collide(addr, at)));
    those.next().map(|(name, _)| name)
}

impl Beside {
    /// Of a machine with so many processes that show metrics, the first of them there. Ports that there are not are left out.
    pub fn new(page: Option<SocketAddr>, metrics: Option<SocketAddr>, processes: usize) -> Beside {
        let at = |n| metrics.and_then(|first| nth(first, n));
        Beside { page, metrics: (0..processes).map_while(at).collect(), processes }
    }

    /// What `cluster.toml` remembers, once there are `more` servers.
    pub fn of(dir: &ClusterDir, more: usize) -> Beside {
        Beside::new(dir.file.analytics, dir.file.metrics, showing(dir, dir.file.mount.is_some()) + more)
    }

    /// Refuses metrics for which there are too few ports, or one that is the page's.
    pub fn check_apart(&self) -> Result<()> {
        let (processes, Some(first)) = (self.processes, self.metrics.first()) else { return Ok(()) };
        if self.metrics.len() < processes {
            bail!(
                "--metrics {first}: {processes} processes need a port each, and there is none beyond 65535"
            );
        }
        if let Some(page) = self.page.filter(|&page| self.metrics.iter().any(|&at| collide(at, page))) {
            bail!(
                "--metrics {first}: {processes} processes need a port each, and {page} is for the page of analytics; name another \
                 port for one of them (--metrics, --analytics)"
            );
        }
        Ok(())
    }

    /// Refuses an address for a server that is for something else.
    pub fn check(&self, server: SocketAddr) -> Result<()> {
        let is = |at: &SocketAddr| collide(*at, server);
        let whose = match self.page.as_ref().is_some_and(is) {
            true => "the page of analytics (--analytics)",
            false if self.metrics.iter().any(is) => "metrics (--metrics)",
            false => return Ok(()),
        };
        bail!("{server} is for {whose}; choose another port for one of them")
    }

    /// Holds the ports for metrics. Those that processes of this directory have are no stranger's.
    pub fn hold(&self, dir: Option<&ClusterDir>) -> Result<Vec<TcpListener>> {
        let mut held = Vec::new();
        for &at in &self.metrics {
            if let Some(name) = dir.and_then(|dir| server_at(dir, at)) {
                bail!(
                    "--metrics {}: {at}, one of its ports, is that of {name}; name others",
                    self.metrics[0]
                );
            }
            let not_had = || {
                format!(
                    "--metrics {}: {at}, one of its ports, cannot be had; stop the program that has it (`ss -ltnp` shows which), or \
                     name others",
                    self.metrics[0]
                )
            };
            let listen = || match TcpListener::bind(at) {
                Err(_) if dir.is_some_and(|dir| is_own(dir, at.port())) => Ok(None),
                listener => listener.map(Some).with_context(not_had),
            };
            held.extend(take(dir.is_some_and(was_killed), listen)?);
        }
        Ok(held)
    }
}

/// How many processes have a port for metrics: the servers, and the mount that is remembered.
pub fn showing(dir: &ClusterDir, mount: bool) -> usize {
    dir.servers().len() + usize::from(mount)
}

/// Pid files of a directory, each with its process if that lives.
fn processes(dir: &ClusterDir) -> impl Iterator<Item = Option<u32>> {
    let run = fs::read_dir(dir.path.join("run")).into_iter().flatten().flatten().map(|entry| entry.path());
    run.filter(|path| path.extension().is_some_and(|end| end == "pid")).map(|path| pid_file::live_pid(&path))
}

fn was_killed(dir: &ClusterDir) -> bool {
    processes(dir).any(|process| process.is_none())
}

/// Whether a process of this directory listens on a port.
fn is_own(dir: &ClusterDir, port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines());
    let sockets: Vec<String> = lines.filter_map(|line| listening(line, port)).collect();
    let has = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
    };
    processes(dir).flatten().any(has)
}

/// What the descriptor of a socket is a link to, if it listens on this port, by its line in `/proc/net/tcp`.
fn listening(line: &str, port: u16) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
    let listens = *state == "0A" && local.ends_with(&format!(":{port:04X}"));
    listens.then(|| format!("socket:[{inode}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_two_would_have_is_refused() {
        let new = |page: &str, first: &str| Beside::new(Some(at(page)), Some(at(first)), 6);
        for (page, first, says) in [
            ("127.0.0.1:9470", "127.0.0.1:9466", "page of analytics"),
            ("127.0.0.1:9471", "0.0.0.0:9466", "page of analytics"),
            ("127.0.0.1:1", "127.0.0.1:65531", "beyond 65535"),
        ] {
            let said = new(page, first).check_apart().unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        new("127.0.0.1:9472", "127.0.0.1:9466").check_apart().unwrap();
        new("10.0.0.1:9470", "127.0.0.1:9466").check_apart().unwrap();
        new("127.0.0.1:1", "127.0.0.1:65530").check_apart().unwrap();
        let beside = new("0.0.0.0:9470", "127.0.0.1:9400");
        for (server, says) in [("10.0.0.1:9470", "--analytics"), ("127.0.0.1:9405", "--metrics")] {
            let said = beside.check(at(server)).unwrap_err().to_string();
            assert!(said.starts_with(server) && said.contains(says), "{said}");
        }
        beside.check(at("127.0.0.1:9406")).unwrap();
    }

    #[test]
    fn who_listens_is_found_by_the_line_of_the_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let sockets: Vec<_> = table.lines().filter_map(|line| listening(line, port)).collect();
        let own = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&listener)));
        assert_eq!(sockets, [own.unwrap().to_str().unwrap()]);
    }
}
