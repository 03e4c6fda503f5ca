//! The long-running processes: manager, NSD server, mount. Here, and only here, the parts are put together.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::stats;
use net::{Endpoint, EndpointConfig, Response, Role, Service, Status, handler_fn};
use wire::{
    admin::{AdminReply, AdminRequest},
    frame,
    mgr::MgrError,
};

use crate::{
    args::{self, Serve},
    cluster_dir::{ClusterDir, NodeFile, access},
    commands::{config, mount, pdisk_tools},
    link::{self, Stop},
    process::{metrics, pid_file, resolver, tunables},
};

/// `ropewalk serve`.
pub fn serve(args: &Serve) -> Result<()> {
    access::close_what_is_made();
    let dir = args.dir.open()?;
    runtime()?.block_on(async {
        // From now on, whatever it waits for, and before its pid file is there: a signal that nobody listens for would leave that.
        let stop = Stop::listen()?;
        let presence = Presence::claim(&dir, &args.name)?;
        if let Some(addr) = args.metrics {
            metrics::serve(addr).await?;
        }
        if args.name == "manager" {
            return run_manager(&dir, presence, stop).await;
        }
        match dir.file.nodes.iter().find(|n| n.name == args.name) {
            Some(node) => run_node(&dir, node, presence, stop).await,
            None => bail!("--name {}: this cluster has {}", args.name, dir.servers().join(", ")),
        }
    })
}

/// A process's pid file and ready file; both go when it ends cleanly.
struct Presence {
    pid: std::path::PathBuf,
    ready: std::path::PathBuf,
    /// Locked as long as this process is the one of its name.
    _held: fs::File,
}

impl Presence {
    fn claim(dir: &ClusterDir, name: &str) -> Result<Presence> {
        let pid_file = dir.pid_file(name);
        // Before there is a Presence: its end would remove the files of the one that lives.
        if let Some(pid) = pid_file::live_pid(&pid_file) {
            bail!("{name} runs already (process {pid})");
        }
        let Some(held) = pid_file::claim_pid_file(&pid_file, pid_file::HELD_PATIENCE)? else {
            bail!("{name} runs already, in another container perhaps: {} is locked", pid_file.display());
        };
        let presence = Presence { pid: pid_file, ready: dir.ready_file(name), _held: held };
        let _ = fs::remove_file(&presence.ready);
        Ok(presence)
    }

    /// Ends the process that is told to stop while a thread of it is at a step of its start: that cannot be ended and would be
    /// waited for. What it is at is left as after a crash. `closed`: what came of closing the rest.
    fn leave(&self, closed: Result<()>) -> ! {
        told_early();
        if let Err(error) = &closed {
            tracing::error!("{error:#}");
        }
        self.clear();
        crate::logging::flush();
        std::process::exit(i32::from(closed.is_err()))
    }

    fn clear(&self) {
        let _ = fs::remove_file(&self.ready);
        let _ = fs::remove_file(&self.pid);
    }

    fn ready(&self) -> Result<()> {
        let mut options = access::options();
        let made = options.write(true).create(true).truncate(true).open(&self.ready);
        made.map(drop).with_context(|| format!("write {}", self.ready.display()))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.clear();
    }
}

fn told_early() {
    tracing::info!("told to stop before it served");
}

/// A runtime for a process of the cluster.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")
}

/// This process's end of the network.
pub fn start_endpoint(
    dir: &ClusterDir,
    role: Role,
    node: base::NodeId,
    listen: SocketAddr,
) -> Result<Endpoint> {
    let config = EndpointConfig { node, listen: vec![listen], ..dir.file.endpoint(role)? };
    Ok(Endpoint::start(config)?)
}

/// The endpoint of a client: others reach it at the address from which this machine reaches the manager.
pub fn start_client_endpoint(dir: &ClusterDir) -> Result<Endpoint> {
    let manager = dir.file.manager;
    let any = SocketAddr::new(
        if manager.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
        0,
    );
    // Connecting UDP sends nothing; it asks the routes.
    let towards = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(manager)?;
        Ok(socket.local_addr()?.ip())
    };
    let from = towards().with_context(|| format!("find a way to the manager at {manager}"))?;
    start_endpoint(dir, Role::Client, base::NodeId(0), (from, 0).into())
}

/// What of a process is known only once it runs.
#[derive(Default)]
pub struct Running {
    nsd: OnceLock<nsd::Server>,
    client: OnceLock<client::Client>,
    mount: OnceLock<Weak<fuse::Mount<client::Client>>>,
    /// The most memory that the kernel's requests take.
    requests_memory: OnceLock<u64>,
}

impl Running {
    /// Passes on changed tunables.
    pub fn retune(&self, tunables: &base::tunables::Tunables) {
        if let Some(client) = self.client.get() {
            client.retune(tunables);
        }
        if let Some(server) = self.nsd.get() {
            server.resize_cache(cache_bytes(tunables));
        }
    }

    /// What programs on its mount wait for, longest first.
    fn asked(&self) -> Vec<serde_json::Value> {
        let waiting = self.mount.get().and_then(Weak::upgrade).map(|mount| mount.status().waiting);
        let row = |r: fuse::InFlight| serde_json::json!({ "operation": r.operation, "inode": r.ino, "pid": r.pid, "age_s": r.age.as_secs_f64() });
        waiting.unwrap_or_default().into_iter().map(row).collect()
    }

    /// What its client waits for beside servers and manager: memory, locks, turns.
    fn waits(&self) -> Vec<client::Wait> {
        self.client.get().map(client::Client::waits).unwrap_or_default()
    }

    /// The memory it caches in, and what all of it may come to.
    fn memory(&self) -> serde_json::Value {
        let bound = self.client.get().map(client::Client::memory_bound);
        let requests = self.requests_memory.get().copied().unwrap_or(0);
        let (resident, resident_most) = resident();
        serde_json::json!({
            "process": {
                "resident_bytes": resident,
                "resident_most_bytes": resident_most,
                "requests_max_bytes": requests,
                "bound": bound,
                "max_bytes": bound.map(|bound| bound.total.saturating_add(requests)),
            },
            "pagepool": self.client.get().map(client::Client::pool_use),
            "strip_cache": self.nsd.get().map(nsd::Server::cache_use),
        })
    }
}

/// Memory of this process that is backed now, and at most so far, as the system counts it, bytes.
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Memory in which a server caches strips.
fn cache_bytes(tunables: &base::tunables::Tunables) -> u64 {
    tunables.pagepool().0 / 100 * u64::from(tunables.nsd_buf_space())
}

/// Answers what every process answers.
pub fn serve_admin(endpoint: &Endpoint, role: &'static str, name: &str) -> Arc<Running> {
    let running: Arc<Running> = Arc::default();
    let serving = Arc::clone(&running);
    let name: Arc<str> = name.into();
    let inner = endpoint.clone();
    endpoint.serve(
        Service::Admin,
        handler_fn(move |request| {
            let (name, endpoint, running) = (Arc::clone(&name), inner.clone(), Arc::clone(&serving));
            async move {
                match frame::decode(&request.body) {
                    Ok(AdminRequest::Status) => {
                        let json = serde_json::json!({
                            "name": &*name,
                            "role": role,
                            "pid": std::process::id(),
                            "version": env!("CARGO_PKG_VERSION"),
                            "statistics": stats::registry().snapshot(),
                            "memory": running.memory(),
                            "nsd": running.nsd.get().map(nsd::Server::status),
                            "events": base::events::events().after(0),
                            "log_lost_lines": crate::logging::lost(),
                        });
                        Response::ok(frame::encode(&AdminReply::Json(json.to_string())))
                    }
                    Ok(AdminRequest::Waiters) => {
                        let json = serde_json::json!({
                            "name": &*name,
                            "waiters": endpoint.waiters(),
                            "inside": running.waits(),
                            "serving": endpoint.serving(),
                            "asked": running.asked(),
                        });
                        Response::ok(frame::encode(&AdminReply::Json(json.to_string())))
                    }
                    Ok(AdminRequest::Net) => {
                        let json = serde_json::json!(endpoint.status());
                        Response::ok(frame::encode(&AdminReply::Json(json.to_string())))
                    }
                    Ok(AdminRequest::Prove { pool, group, after, limit, repair }) => {
                        let Some(server) = running.nsd.get() else {
                            return Response::error(Status::BadRequest, "not an NSD server that serves");
                        };
                        let page = server.prove(pool, group, after, limit, repair).await;
                        match serde_json::to_string(&page) {
                            Ok(json) => Response::ok(frame::encode(&AdminReply::Json(json))),
                            Err(error) => Response::error(Status::BadRequest, error),
                        }
                    }
                    Ok(AdminRequest::Readable { pool, stripes }) => {
                        let Some(server) = running.nsd.get() else {
                            return Response::error(Status::BadRequest, "not an NSD server that serves");
                        };
                        match serde_json::to_string(&server.readable(pool, &stripes).await) {
                            Ok(json) => Response::ok(frame::encode(&AdminReply::Json(json))),
                            Err(error) => Response::error(Status::BadRequest, error),
                        }
                    }
                    Ok(AdminRequest::Shutdown) => {
                        pid_file::terminate(std::process::id());
                        Response::ok(frame::encode(&AdminReply::Done))
                    }
                    Err(error) => Response::error(Status::BadRequest, error),
                }
            }
        }),
    );
    running
}

/// How long a manager waits for the store of one that was killed.
const STORE_WAIT: Duration = Duration::from_secs(5);

/// Opens the manager's store. The process that had it may be dead for all to see and still have threads that
/// hold the file: who restarts a killed manager at once waits for them.
///
/// `ROPEWALK_MANAGER_UNFLUSHED` is a seed, for tests: what the store has not flushed is lost when this process is killed.
async fn open_manager(dir: &ClusterDir) -> Result<manager::Manager> {
    let seed = std::env::var("ROPEWALK_MANAGER_UNFLUSHED").ok();
    let seed = seed.map(|seed| seed.parse().context("read ROPEWALK_MANAGER_UNFLUSHED")).transpose()?;
    let options = manager::Options { loses_unflushed: seed, ..manager::Options::default() };
    let until = Instant::now() + STORE_WAIT;
    loop {
        let (path, options) = (dir.manager_dir(), options.clone());
        let opening = tokio::task::spawn_blocking(move || manager::Manager::open_with(&path, &options));
        match opening.await.context("open the manager's store")? {
            Err(error) if error.is_in_use() && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => return outcome.context("open the manager's store"),
        }
    }
}

async fn run_manager(dir: &ClusterDir, presence: Presence, mut stop: Stop) -> Result<()> {
    let Some(manager) = stop.before(open_manager(dir)).await else { presence.leave(Ok(())) };
    let manager = manager?;
    let endpoint = start_endpoint(dir, Role::Manager, base::NodeId(0), dir.file.manager)?;
    let about = serve_admin(&endpoint, "manager", "manager");
    let running = manager.serve(&endpoint)?;
    tunables::follow(&endpoint, dir.file.manager, about);
    presence.ready()?;
    tracing::info!("manager serves at {}", dir.file.manager);
    tokio::select! {
        // Neither arm holds state: the signal ends the process, and so does the store's failure.
        () = stop.wait() => {}
        error = running.failed() => bail!("the manager stops: {error}"),
        // What it is at is bounded by its session, which lapses.
        end = resolver::run(dir, running.manager()) => end?,
    }
    running.stop().await;
    Ok(())
}

async fn run_node(dir: &ClusterDir, node: &NodeFile, presence: Presence, mut stop: Stop) -> Result<()> {
    tracing::info!("{} waits for the manager", node.name);
    // Nothing is open yet.
    let Some(found) = stop.before(config::wait_for(dir)).await else {
        told_early();
        return Ok(());
    };
    let (tunables, map) = found?;
    tracing::info!("{} opens its pdisks", node.name);
    let io = pdisk::IoNode::start(pdisk_tools::io_config(&tunables)?).context("start the I/O queues")?;
    let cluster = dir.file.cluster_id()?;
    let (mut pdisks, mut left_out) = (Vec::new(), None);
    for p in &node.pdisks {
        if map.pdisk(p.id).is_none() {
            // `pdisk add` was interrupted: named in the file, not yet at the manager.
            tracing::warn!("{} is in cluster.toml and not in the cluster; it is left out", p.id);
            continue;
        }
        let path = dir.path.join(&p.dir);
        let options = pdisk_tools::open_options(&tunables, cluster, p.id);
        let what = || format!("open {} in {}", p.id, path.display());
        let (at, queues) = (path.clone(), io.clone());
        let opening = tokio::task::spawn_blocking(move || pdisk::Pdisk::open(&at, options, &queues));
        let Some(opened) = stop.before(opening).await else { presence.leave(close_all(pdisks).await) };
        match opened.with_context(what)? {
            Ok((pdisk, report)) => {
                tracing::info!("{}: {report:?}", p.id);
                pdisks.push(nsd::ServedPdisk { id: p.id, pdisk, damaged: report.damaged.strip_ids() });
            }
            // One bad disk is no reason to take the node's others away: its strips are read from the rest.
            Err(error) if error.is_of_the_disk() => {
                let error = anyhow::Error::new(error).context(what());
                tracing::error!("left out, {} serves its other pdisks: {error:#}", node.name);
                left_out.get_or_insert(error);
            }
            Err(error) => return Err(error).with_context(what),
        }
    }
    if let Some(error) = left_out
        && pdisks.is_empty()
    {
        return Err(error);
    }
    let endpoint = start_endpoint(dir, Role::Server, node.id, node.addr)?;
    let running = serve_admin(&endpoint, "nsd", &node.name);
    tunables::follow(&endpoint, dir.file.manager, Arc::clone(&running));
    let agent = lab_agent(dir);
    endpoint.serve(Service::Lab, agent.handler());
    let config = nsd::ServerConfig {
        node: node.id,
        process: pid_file::own_ident(),
        addrs: vec![node.addr.to_string()],
        pdisks: pdisks.clone(),
        manager: Arc::new(stripe::NetManager::new(endpoint.clone(), vec![dir.file.manager])),
        membership: stripe::MembershipConfig::default(),
        io: stripe::IoConfig::default(),
        tuning: nsd::Tuning { cache_bytes: cache_bytes(&tunables), ..nsd::Tuning::default() },
    };
    // It may wait for the manager, and serves nothing before.
    let Some(started) = stop.before(nsd::Server::start(&endpoint, config)).await else {
        told_early();
        return close_all(pdisks).await;
    };
    let server = started.context("start the NSD server")?;
    let _ = running.nsd.set(server.clone()); // once
    presence.ready()?;
    tracing::info!("{} serves at {}", node.name, node.addr);
    tokio::select! {
        // The first ends only with an error; the pdisks are closed either way.
        end = follow_tunables(dir, &io) => end?,
        () = stop.wait() => {}
    }
    agent.end().await;
    server.stop();
    close_all(pdisks).await
}

/// How long a disk may take to end what it is at when its server ends. Shorter than `down` waits.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Closes all pdisks at once. One that hangs holds up no other, and not the process's end for ever: what is not closed is
/// as after a crash, which the next open puts right.
async fn close_all(pdisks: Vec<nsd::ServedPdisk>) -> Result<()> {
    let ids: Vec<_> = pdisks.iter().map(|served| served.id).collect();
    let closing: Vec<_> = pdisks.into_iter().map(|served| tokio::spawn(served.pdisk.close())).collect();
    let until = tokio::time::Instant::now() + CLOSE_PATIENCE;
    let (mut failed, mut hangs) = (None, false);
    for (id, closing) in ids.into_iter().zip(closing) {
        match tokio::time::timeout_at(until, closing).await {
            Ok(closed) => {
                let closed = closed.map_err(anyhow::Error::new).and_then(|closed| Ok(closed?));
                failed = failed.or(closed.err().map(|error| error.context(format!("close {id}"))));
            }
            Err(_) => {
                hangs = true;
                tracing::error!(
                    "{id} has not ended its I/O within {CLOSE_PATIENCE:?}: it is left as after a crash"
                );
            }
        }
    }
    if hangs {
        // Its threads cannot be ended and would be waited for. The pid file stays: it says when the process is gone.
        std::process::exit(1);
    }
    failed.map_or(Ok(()), Err)
}

/// Takes part in the lab's runs on this cluster's mounts of this node.
fn lab_agent(dir: &ClusterDir) -> Arc<lab::agent::Agent> {
    let path = dir.path.clone();
    let mounts = move || ClusterDir::open(&path).map_or(Vec::new(), |dir| mount::mounts_of(&dir));
    let offer = lab::agent::Offer::Mounts(Box::new(mounts));
    lab::agent::Agent::new(offer, dir.path.join("run"), std::env::current_exe().ok())
}

/// What a client of this process mounts, shown under `name`.
pub fn client_config(
    dir: &ClusterDir,
    fs_name: &str,
    name: String,
    endpoint: &Endpoint,
) -> client::ClientConfig {
    client::ClientConfig {
        manager: vec![dir.file.manager],
        fs: fs_name.to_owned(),
        mount: name,
        process: pid_file::own_ident(),
        admin_addr: endpoint.local_addrs().first().map(|a| a.to_string()).unwrap_or_default(),
        tunables: client::Tunables::default(),
    }
}

/// How often a server asks for changed tunables.
const TUNABLES_ROUND: Duration = Duration::from_secs(2);

/// Brings live changes of tunables to the I/O queues. A manager that does not answer changes nothing.
async fn follow_tunables(dir: &ClusterDir, io: &pdisk::IoNode) -> Result<()> {
    let link = link::Link::new(dir)?;
    let mut last = None;
    loop {
        if let Ok(tunables) = config::read(&link).await {
            let config = pdisk_tools::io_config(&tunables)?;
            let live =
                [config.io_coalesce_count, config.io_coalesce_us, config.queue_depth, config.io_spin_us];
            if last.replace(live).is_some_and(|before| before != live) {
                io.reconfigure(&config)?;
                tracing::info!(
                    "I/O queues: coalesce {}/{} us, depth {}, spin {} us",
                    live[0],
                    live[1],
                    live[2],
                    live[3]
                );
            }
        }
        tokio::time::sleep(TUNABLES_ROUND).await;
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
        let map = link::Link::new(dir)?.cluster().await?.map;
        let names: Vec<&str> = map.filesystems.iter().map(|fs| fs.name.as_str()).collect();
        bail!("there is no file system {name}; there are {}", names.join(", "));
    }
    Err(error.into())
}

/// How long the end of a mount may take to write what is dirty.
const FLUSH_PATIENCE: Duration = Duration::from_secs(300);

/// `ropewalk mount --foreground`: until unmounted or told to end.
pub fn run_mount(dir: &ClusterDir, mountpoint: &Path, args: &args::Mount) -> Result<()> {
    access::close_what_is_made();
    let fs_name = &args.fs;
    let name = crate::commands::mount::process_name(mountpoint);
    crate::commands::mount::wait_predecessor(&dir.pid_file(&name), mountpoint);
    let runtime = runtime()?;
    // As with `serve`.
    let mut stop = {
        let _inside = runtime.enter();
        Stop::listen()?
    };
    let presence = Presence::claim(dir, &name)?;
    let ended = runtime.block_on(async {
        tracing::info!("mounts {fs_name} on {}", mountpoint.display());
        if let Some(addr) = args.metrics {
            metrics::serve(addr).await?;
        }
        let endpoint = start_client_endpoint(dir)?;
        let running = serve_admin(&endpoint, "client", &mountpoint.display().to_string());
        tunables::follow(&endpoint, dir.file.manager, Arc::clone(&running));
        let config = client_config(dir, fs_name, mountpoint.display().to_string(), &endpoint);
        // A session that has begun ends like that of a mount that is killed.
        let Some(client) = stop.before(mount_client(dir, &endpoint, config)).await else {
            told_early();
            return Ok(());
        };
        let client = client?;
        let _ = running.client.set(client.clone()); // once
        let options = fuse::MountOptions {
            read_only: args.read_only,
            transport: args.fuse_transport,
            ..fuse::MountOptions::new(mountpoint, fs_name)
        };
        let _ = running.requests_memory.set(options.memory_max()); // once
        let mount = match fuse::Mount::start(Arc::new(client.clone()), options) {
            Ok(mount) => Arc::new(mount),
            Err(error) => {
                let _ = client.shutdown(Instant::now() + Duration::from_secs(10)).await;
                return Err(error.into());
            }
        };
        let _ = running.mount.set(Arc::downgrade(&mount)); // once
        presence.ready()?;
        tracing::info!("{fs_name} is mounted on {}", mountpoint.display());
        let ended = tokio::select! {
            // The kernel's side is gone already in the first case; told to end, it is unmounted first.
            end = mount.unmounted() => end,
            () = stop.wait() => mount.end_on_signal().await,
        };
        tracing::info!("unmounted");
        client.shutdown(Instant::now() + FLUSH_PATIENCE).await.context("write what is left")?;
        ended.context("the mount ended")
    });
    // All that it runs ends before its pid file goes.
    drop(runtime);
    ended
}
