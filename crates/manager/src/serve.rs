//! The manager on the network: decodes requests, hands them to [`Manager::handle`], encodes answers;
//! and the way to the NSD servers for the reaper.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{PdiskId, SessionId};
use net::{BoxFuture, Call, Endpoint, Handler, Request, Response, Role, Service, Status};
use wire::{
    frame,
    map::ClusterMap,
    mgr::{MgrError, MgrReply, MgrRequest, PdiskWish},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::DeleteStrips,
};

use crate::{
    Caller, Manager, ManagerError,
    reaper::{self, Deleter},
    statistics,
    store::{Following, StoreError},
};

/// How long a server has for one batch of deletes.
const DELETE_DEADLINE: Duration = Duration::from_secs(30);

/// How often it is looked whether it may be answered again.
const CONFIRM_PAUSE: Duration = Duration::from_millis(20);

/// A manager that may have been deposed keeps those who ask for so long, if there are others to ask.
const UNSURE_MAX: Duration = Duration::from_secs(1);

/// Answers all who ask a manager that is not the active one that it is not, and which one is.
pub fn serve_standby(endpoint: &Endpoint, following: Following) {
    let handler = net::handler_fn(move |_| {
        let refusal = MgrReply::Error(MgrError::NotActive { active: following.leader() });
        async move { Response::ok(frame::encode(&refusal)) }
    });
    endpoint.serve(Service::Manager, handler);
}

/// A manager that serves.
pub struct Running {
    manager: Manager,
}

impl Manager {
    /// Answers requests that arrive at `endpoint`, and starts the background work that needs the
    /// network. Must be called within a tokio runtime.
    pub fn serve(self, endpoint: &Endpoint) -> Result<Running, ManagerError> {
        endpoint.serve(Service::Manager, Arc::new(Front { manager: self.clone() }));
        let mut map = self.map();
        let told = endpoint.clone();
        self.spawn(async move {
            loop {
                {
                    let map = map.borrow_and_update();
                    told.set_epoch(map.epoch);
                    told.shut_out(&map.revoked);
                    told.set_names(map.names());
                }
                if map.changed().await.is_err() {
                    return;
                }
            }
        });
        self.delete_by(NsdDeleter { endpoint: endpoint.clone() });
        Ok(Running { manager: self })
    }

    /// Has the strips of deleted and truncated files removed, until it is stopped.
    pub fn delete_by(&self, deleter: impl Deleter) {
        self.spawn(reaper::run(self.inner().clone(), deleter));
    }
}

impl Running {
    /// The manager.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }
    /// Resolves when the store has failed: the process must end.
    pub async fn failed(&self) -> StoreError {
        self.manager.failed().await
    }
    /// Ends serving; what was acknowledged is stored.
    pub async fn stop(self) {
        self.manager.stop().await;
    }
}

impl Manager {
    /// Why a request is not its sender's business: a session is its member's, and a server speaks for its own node.
    fn not_its_own(&self, request: &Request, asked: &MgrRequest) -> Option<String> {
        let (peer, session) = (&request.peer, request.header.session);
        if let MgrRequest::RegisterServer { node, .. } | MgrRequest::PdiskAdd { node, .. } = asked
            && peer.server() != Some(*node)
            && !matches!(peer.role, Role::Admin | Role::Manager)
        {
            return Some(format!("only {node} itself may ask that for it"));
        }
        // A server may give up its own pdisks. What an administrator has given up it does not take back.
        if let (MgrRequest::PdiskSet { pdisk, wish }, Role::Server) = (asked, peer.role) {
            let map = self.inner().map.borrow();
            let own =
                map.pdisk(*pdisk).is_some_and(|p| peer.server().is_some_and(|node| p.nodes.contains(&node)));
            if !own || *wish == PdiskWish::Keep {
                return Some(format!(
                    "{pdisk}: a server may fail, drain and remove its own pdisks; the rest is an administrator's"
                ));
            }
        }
        if let MgrRequest::Renew { pdisks, .. } = asked
            && !pdisks.is_empty()
            && peer.server().is_none()
        {
            return Some("only servers have pdisks".to_owned());
        }
        let map = self.inner().map.borrow();
        let is_its = session == SessionId(0) || map.is_session_of(session, peer.member, peer.server());
        (!is_its && map.has_session(session)).then(|| format!("{session} is not the asker's"))
    }
}

impl Manager {
    /// Why a request is more than the token allows with which its machine has joined.
    fn beyond_limits(&self, request: &Request, asked: &MgrRequest) -> Option<MgrError> {
        let map = self.inner().map.borrow();
        let limits = &map.limits_of(request.peer.member)?.clone();
        if limits.read_only && asked.is_for_writers() || limits.is_guest() && asked.is_of_resolver() {
            return Some(MgrError::Errno(libc::EROFS));
        }
        // Names behind closed doors, too.
        let part = limits.is_checked();
        if asked.is_beyond(limits) || part && asked.is_about_all() {
            return Some(MgrError::Errno(libc::EACCES));
        }
        drop(map);
        if part { self.beyond_subtree(request.header.session, asked) } else { None }
    }
}

impl Manager {
    /// Waits until it is certain that no other manager has taken over by now; false: not before `expires`. Called after the
    /// answer was found.
    pub(crate) async fn is_confirmed(&self, expires: tokio::time::Instant) -> bool {
        let Some(confirmed) = &self.inner().confirmed else { return true };
        while !confirmed.holds() {
            if tokio::time::Instant::now() + CONFIRM_PAUSE > expires {
                return false;
            }
            tokio::time::sleep(CONFIRM_PAUSE).await;
        }
        true
    }
}

impl Manager {
    /// Resolves when it has not been certain for a while that it leads, where others could be asked: it may never be again.
    async fn unsure(&self) {
        let Some(confirmed) = &self.inner().confirmed else { return std::future::pending().await };
        let mut since = Instant::now();
        loop {
            tokio::time::sleep(UNSURE_MAX / 4).await;
            if confirmed.holds() || self.inner().map.borrow().managers.len() < 2 {
                since = Instant::now();
            }
            if since.elapsed() > UNSURE_MAX {
                return;
            }
        }
    }

    /// What a caller hears, who stops waiting then. What is asked goes on, if it has begun, when nobody waits for it any more.
    /// `refusal`: what the map and the table of now say against it; they may be those of a manager that leads no more.
    async fn reply(&self, caller: Caller, asked: MgrRequest, refusal: Option<MgrError>) -> MgrReply {
        let work = async {
            let reply = match refusal {
                Some(refusal) => MgrReply::Error(refusal),
                None => self.handle(caller, asked).await,
            };
            match self.is_confirmed(caller.expires).await {
                true => reply,
                false => MgrReply::Error(MgrError::Store(
                    "it is not certain that this manager still leads: neither etcd nor a copy says so"
                        .to_owned(),
                )),
            }
        };
        tokio::select! {
            // Not polled again once the other is ready: what the store has taken over goes on there.
            reply = work => reply,
            () = self.unsure() => MgrReply::Error(MgrError::NotActive { active: None }),
        }
    }
}

struct Front {
    manager: Manager,
}

impl Handler for Front {
    fn handle(&self, request: Request) -> BoxFuture<'static, Response> {
        let manager = self.manager.clone();
        Box::pin(async move {
            let mut decoded: MgrRequest = match frame::decode(&request.body) {
                Ok(decoded) => decoded,
                Err(error) => return Response::error(Status::BadRequest, error),
            };
            let not_its_own = manager.not_its_own(&request, &decoded).map(MgrError::Config);
            if not_its_own.is_none() && !decoded.is_for(request.peer.role) {
                let role = format!("{:?}", request.peer.role).to_lowercase();
                return Response::ok(frame::encode(&MgrReply::Error(MgrError::Role(role))));
            }
            let refusal = not_its_own.or_else(|| manager.beyond_limits(&request, &decoded));
            manager.drop_foreign_claims(request.header.session, &mut decoded);
            if manager.is_behind(request.header.epoch) {
                if manager.has_others() {
                    // Another one has taken over: that is found out at etcd, and this one starts anew.
                    let refusal = MgrError::NotActive { active: None };
                    return Response::ok(frame::encode(&MgrReply::Error(refusal)));
                }
                // Whoever mounts could end it by a number.
                if !matches!(request.peer.role, Role::Server | Role::Manager) {
                    return Response::error(Status::BadRequest, manager.unknown_epoch(request.header.epoch));
                }
                manager.overtaken(request.header.epoch);
                return Response::error(Status::BadRequest, "this manager's store is an older copy");
            }
            let (session, member) = (request.header.session, request.peer.member);
            let (expires, build) = (request.expires.into(), Some(request.peer.build));
            let caller = Caller { session, member, expires, build };
            let reply = Response::ok(frame::encode(&manager.reply(caller, decoded, refusal).await));
            statistics::answered(&request);
            reply
        })
    }
}

/// Deletes over the network. The manager has no session: deletes are the one request that a server takes
/// without one, since what is queued may always be deleted, whoever asks, however late.
struct NsdDeleter {
    endpoint: Endpoint,
}

impl Deleter for NsdDeleter {
    async fn delete(&self, map: &ClusterMap, pdisk: PdiskId, items: Vec<DeleteStrips>) -> Result<(), String> {
        let nodes = map.pdisk(pdisk).map(|entry| entry.nodes.as_slice()).unwrap_or_default();
        let node = nodes.iter().filter_map(|&id| map.node(id)).find(|node| node.session.is_some());
        let Some(node) = node else { return Err("no server".into()) };
        let addrs: Vec<SocketAddr> = node.addrs.iter().filter_map(|addr| addr.parse().ok()).collect();
        let request = NsdRequest::Delete { pdisk, items };
        let deadline = Instant::now() + DELETE_DEADLINE;
        let call = Call {
            epoch: map.epoch,
            idempotent: true,
            ..Call::new(Service::Nsd, request.op(), frame::encode(&request), deadline)
        };
        let reply = self.endpoint.peer(&addrs).call(call).await.map_err(|error| error.to_string())?;
        match frame::decode(&reply.body) {
            Ok(NsdReply::Done) => Ok(()),
            Ok(NsdReply::Refused(refusal)) => Err(refusal_text(&refusal)),
            Ok(_) => Err("unexpected answer".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn refusal_text(refusal: &NsdRefusal) -> String {
    refusal.to_string()
}
