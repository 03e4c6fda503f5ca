//! What every process says of itself when it is asked, and where changed tunables reach what runs in it.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock, Weak},
};

use base::{
    stats,
    tunables::{Choice, Tunables},
};
use manager::store::Following;
use net::{Endpoint, Response, Role, Service, Status, handler_fn};
use wire::{
    admin::{AdminReply, AdminRequest},
    frame,
};

use super::{control, history::History, host, pdisks::Queues};
use crate::logging;

/// What of a process is known only once it runs.
#[derive(Default)]
pub struct Running {
    /// How a manager stands beside others.
    pub standing: OnceLock<Following>,
    /// What keeps the copy of another manager's store.
    pub keeper: OnceLock<Arc<manager::store::Keeper>>,
    /// A server's I/O queues.
    pub queues: OnceLock<Queues>,
    /// The server.
    pub nsd: OnceLock<nsd::Server>,
    /// The manager.
    pub manager: OnceLock<manager::Manager>,
    /// The client.
    pub client: OnceLock<client::Client>,
    /// Its mount.
    pub mount: OnceLock<Weak<fuse::Mount<client::Client>>>,
    /// The most memory that the kernel's requests take.
    pub requests_memory: OnceLock<u64>,
    /// A server's pdisks by name, and where they lie.
    pub disks: OnceLock<Vec<(String, PathBuf)>>,
    /// What it counted, on disk.
    pub history: History,
}

impl Running {
    /// Passes on changed tunables.
    pub fn retune(&self, tunables: &Tunables) {
        logging::set_level(tunables.log_level().word());
        stats::set_recording(tunables.analytics());
        stats::set_history_bytes(usize::try_from(tunables.analytics_history().0).unwrap_or(usize::MAX));
        self.history.set_bytes(tunables.analytics_disk().0);
        if let Some(client) = self.client.get() {
            client.retune(tunables);
        }
        if let Some(server) = self.nsd.get() {
            server.resize_cache(cache_bytes(tunables));
            server.set_pace(tunables);
        }
        if let Some(queues) = self.queues.get() {
            queues.retune(tunables);
        }
    }

    /// What programs on its mount wait for, longest first.
    fn asked(&self) -> Vec<serde_json::Value> {
        let waiting = self.mount.get().and_then(Weak::upgrade).map(|mount| mount.status().waiting);
        let row = |r: fuse::InFlight| serde_json::json!({ "operation": r.operation, "inode": r.ino, "pid": r.pid, "age_s": r.age.as_secs_f64() });
        waiting.unwrap_or_default().into_iter().map(row).collect()
    }

    /// Of a manager that has its journal in etcd, or keeps a copy: whether it is active, and how far it has come.
    fn standing(&self) -> Option<serde_json::Value> {
        if let Some(keeper) = self.keeper.get() {
            return Some(serde_json::json!({ "active": false, "records": keeper.commits() }));
        }
        let standing = self.standing.get()?;
        let silence = standing.silence();
        Some(serde_json::json!({
            "active": standing.leads(),
            "follows": standing.leader().map(|leader| leader.name),
            "records": standing.last(),
            "etcd_silent_s": silence.as_ref().map(|(since, _)| since.as_secs_f64()),
            "etcd_says": silence.map(|(_, why)| why),
        }))
    }

    /// What is waited for in the process: by its client, for etcd, or for a copy of the store.
    fn inside(&self) -> Vec<serde_json::Value> {
        let silence = self.standing.get().and_then(Following::silence);
        let etcd = silence.map(|(since, why)| {
            serde_json::json!({ "operation": null, "what": format!("etcd to answer: {why}"), "inode": null, "age_s": since.as_secs_f64() })
        });
        let copy = self.manager.get().and_then(manager::Manager::store_waits).map(|(since, what)| {
            serde_json::json!({ "operation": null, "what": what, "inode": null, "age_s": since.as_secs_f64() })
        });
        self.waits().iter().map(|wait| serde_json::json!(wait)).chain(etcd).chain(copy).collect()
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
        let history = stats::history_memory_max();
        serde_json::json!({
            "process": {
                "resident_bytes": resident,
                "resident_most_bytes": resident_most,
                "requests_max_bytes": requests,
                "history_max_bytes": history,
                "bound": bound,
                "max_bytes": bound.map(|bound| bound.total.saturating_add(requests).saturating_add(history)),
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
pub fn cache_bytes(tunables: &Tunables) -> u64 {
    tunables.pagepool().0 / 100 * u64::from(tunables.nsd_buf_space())
}

/// How long a status waits for what it looks up in files.
const LOOK_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// Which machine and network name space this process is on, and what that shows.
fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let facts = advisor::host_facts(&advisor::Tree::below("/"));
    serde_json::json!({ "machine": format!("{}/{}", boot.trim(), net.display()), "facts": facts }).to_string()
}

/// Whether it does more than look, or tells more than of this process.
fn is_for_admins(request: &AdminRequest) -> bool {
    matches!(request, AdminRequest::Shutdown | AdminRequest::Host | AdminRequest::Prove { repair: true, .. })
}

/// Answers what every process answers.
pub fn serve_admin(endpoint: &Endpoint, role: &'static str, name: &str) -> Arc<Running> {
    if let Err(error) = stats::keep() {
        tracing::error!("no history is kept for `ropewalk analytics`: start its thread: {error}");
    }
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
                    Ok(asked)
                        if is_for_admins(&asked)
                            && !matches!(request.peer.role, Role::Admin | Role::Manager) =>
                    {
                        Response::error(Status::BadRequest, "this is for administrators of the cluster")
                    }
                    Ok(AdminRequest::Status) => {
                        // Files of its history and of sysfs: beside the tasks that serve, and no status waits for a disk that hangs.
                        let of = Arc::clone(&running);
                        let looked = tokio::task::spawn_blocking(move || {
                            let disks = of.disks.get().map(Vec::as_slice).unwrap_or_default();
                            (of.history.status(), host::told(disks))
                        });
                        let (history, host) = match tokio::time::timeout(LOOK_MAX, looked).await {
                            Ok(Ok(looked)) => looked,
                            _ => Default::default(), // null
                        };
                        let json = serde_json::json!({
                            "name": &*name,
                            "role": role,
                            "manager": running.standing(),
                            "authority": endpoint.identity().signer().to_string(),
                            "pid": std::process::id(),
                            "version": env!("CARGO_PKG_VERSION"),
                            "build": wire::version::Build::own(),
                            "statistics": stats::registry().snapshot(),
                            "memory": running.memory(),
                            "store_remarks": running.manager.get().map(manager::Manager::store_remarks),
                            "nsd": running.nsd.get().map(nsd::Server::status),
                            "events": base::events::events().after(0),
                            "log_lost_lines": logging::lost(),
                            "history": history,
                            "host": host,
                        });
                        Response::ok(frame::encode(&AdminReply::Json(json.to_string())))
                    }
                    Ok(AdminRequest::Waiters) => {
                        let json = serde_json::json!({
                            "name": &*name,
                            "waiters": endpoint.waiters(),
                            "inside": running.inside(),
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
                    Ok(AdminRequest::Analytics { question }) => {
                        // Reads many seconds, and files: beside the tasks that serve.
                        match tokio::task::spawn_blocking(move || running.history.answer(&question)).await {
                            Ok(Ok(json)) => Response::ok(frame::encode(&AdminReply::Json(json))),
                            Ok(Err(error)) => Response::error(Status::BadRequest, error),
                            Err(error) => Response::error(Status::Internal, error),
                        }
                    }
                    // Reads thousands of small files, and runs programs.
                    Ok(AdminRequest::Host) => match tokio::task::spawn_blocking(host).await {
                        Ok(json) => Response::ok(frame::encode(&AdminReply::Json(json))),
                        Err(error) => Response::error(Status::Internal, error),
                    },
                    Ok(AdminRequest::Shutdown) => {
                        control::terminate(std::process::id());
                        Response::ok(frame::encode(&AdminReply::Done))
                    }
                    Err(error) => Response::error(Status::BadRequest, error),
                }
            }
        }),
    );
    running
}
