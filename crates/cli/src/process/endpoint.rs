//! A process's end of the network, and the client over it.

use std::{
    env::VarError,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use net::{Endpoint, EndpointConfig, Role};
use stripe::Managers;
use wire::{map::ManagerEntry, mgr::MgrError};

use super::{certificate, ident};
use crate::{cluster_dir::ClusterDir, link::Link};

/// Says how many threads the runtime of a process has.
const THREADS: &str = "ROPEWALK_RUNTIME_THREADS";
const THREADS_MAX: usize = 1024;

/// Refuses what [`THREADS`] says, if the processes that are about to be started would: before anything is made or changed for them.
pub fn check_environment() -> Result<()> {
    threads(std::env::var(THREADS), 1).map(drop)
}

/// A runtime for a process of the cluster.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    base::beat::begin();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(threads(std::env::var(THREADS), cpus)?)
        .enable_all()
        .build()
        .context("start the runtime")
}

/// What [`THREADS`] says, else one thread for two CPUs: each that is woken for something wakes another to look for more, and both go to
/// sleep again (docs/path.md, "Threads of the runtime"). What computes or waits for a disk has threads of its own.
fn threads(said: Result<String, VarError>, cpus: usize) -> Result<usize> {
    match said {
        Err(VarError::NotPresent) => Ok(cpus.div_ceil(2)),
        Err(VarError::NotUnicode(_)) => bail!("{THREADS} is no number"),
        Ok(text) => match text.parse() {
            Ok(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(threads),
            _ => bail!("{THREADS}={text}: give a number from 1 to {THREADS_MAX}, or leave it out"),
        },
    }
}

/// This process's end of the network; its certificate is kept fresh.
pub fn start_endpoint(
    dir: &ClusterDir,
    role: Role,
    node: base::NodeId,
    listen: &[SocketAddr],
) -> Result<Endpoint> {
    let config = EndpointConfig {
        node,
        name: name(dir, role, node, listen),
        listen: listen.to_vec(),
        visitors: role == Role::Manager,
        ..dir.endpoint(role)?
    };
    let endpoint = Endpoint::start(config)?;
    certificate::follow(dir, &endpoint);
    tokio::spawn(keep_managers(dir.path.clone(), dir.managers.clone()));
    Ok(endpoint)
}

/// Keeps the list of managers in `cluster.toml` as this process learns of it: who starts here next finds the active one, also if
/// those are gone by then that were known before.
async fn keep_managers(path: PathBuf, managers: Managers) {
    let mut now = managers.known();
    loop {
        now = managers.changed(&now).await;
        if let Err(error) = ClusterDir::learn_managers(&path, &now) {
            tracing::warn!("{error:#}");
        }
    }
}

/// What people call the process.
fn name(dir: &ClusterDir, role: Role, node: base::NodeId, listen: &[SocketAddr]) -> String {
    match (role, dir.file.node(node)) {
        (Role::Manager, _) => {
            let names = dir.managers.names();
            let own = names.into_iter().find(|(_, _, addrs)| addrs == listen);
            own.map_or_else(|| "the manager".to_owned(), |(_, name, _)| name)
        }
        (Role::Server, Some(node)) => node.name.clone(),
        _ => format!("a {} on {}", format!("{role:?}").to_lowercase(), ident::own_ident().host),
    }
}

/// The endpoint of a client: others reach it at the address from which this machine reaches the manager.
pub fn start_client_endpoint(dir: &ClusterDir) -> Result<Endpoint> {
    // Connecting UDP sends nothing; it asks the routes.
    let towards = |manager: &SocketAddr| -> std::io::Result<IpAddr> {
        let unspecified: IpAddr =
            if manager.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let any = SocketAddr::new(unspecified, 0);
        let socket = UdpSocket::bind(any)?;
        socket.connect(manager)?;
        Ok(socket.local_addr()?.ip())
    };
    let managers: Vec<SocketAddr> = dir.managers.known().iter().flat_map(ManagerEntry::sockets).collect();
    let from = match managers.iter().find_map(|manager| towards(manager).ok()) {
        Some(from) => from,
        None => towards(&dir.file.manager.main())
            .with_context(|| format!("find a way to the manager at {}", dir.managers.places()))?,
    };
    start_endpoint(dir, Role::Client, base::NodeId(0), &[(from, 0).into()])
}

/// What a client of this process mounts, shown under `name`.
pub fn client_config(
    dir: &ClusterDir,
    fs_name: &str,
    name: String,
    endpoint: &Endpoint,
) -> client::ClientConfig {
    client::ClientConfig {
        managers: dir.managers.clone(),
        fs: fs_name.to_owned(),
        mount: name,
        process: ident::own_ident(),
        admin_addr: endpoint.local_addrs().first().map(|a| a.to_string()).unwrap_or_default(),
        tunables: client::Tunables::default(),
    }
}

/// Mounts in this process. A file system that is not there is named beside those that are.
pub async fn mount_client(
    dir: &ClusterDir,
    endpoint: &Endpoint,
    config: client::ClientConfig,
) -> Result<client::Client> {
    let name = config.fs.clone();
    let error = match client::Client::mount(endpoint, config).await {
        Ok(client) => return Ok(client),
        Err(error) => error,
    };
    if let client::MountError::Refused { reason: MgrError::Errno(libc::ENOENT), .. } = error {
        let map = Link::new(dir)?.cluster().await?.map;
        let names: Vec<&str> = map.filesystems.iter().map(|fs| fs.name.as_str()).collect();
        bail!("there is no file system {name}; there are {}", names.join(", "));
    }
    Err(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_has_a_thread_for_two_cpus_or_as_many_as_are_asked_for() {
        let by_cpus = [1, 2, 3, 64].map(|cpus| threads(Err(VarError::NotPresent), cpus).unwrap());
        assert_eq!(by_cpus, [1, 1, 2, 32]);
        assert_eq!(threads(Ok("3".into()), 64).unwrap(), 3);
        for wrong in ["", "0", "1025", "-1", " 1", "two"] {
            let error = threads(Ok(wrong.into()), 2).unwrap_err().to_string();
            assert!(error.contains("ROPEWALK_RUNTIME_THREADS=") && error.contains("1 to 1024"), "{error}");
        }
    }
}
