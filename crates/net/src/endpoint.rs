//! The endpoint: one per process. Owns the listening sockets, all connection groups and the services.
//! When the last handle is dropped everything it owns ends.

use std::{net::SocketAddr, sync::Arc};

use base::{BufPool, CipherList, Epoch, MemberId, NodeId, SessionId};
use tokio::runtime::Handle;
use trust::Identity;
use wire::{frame::Service, hello::Role};

use crate::{
    calls::{handler::Handler, service},
    config::{EndpointConfig, Transfer, Transport, check_conns_max},
    connections::{
        accept, exchange,
        groups::{self, Groups, Receive},
        socket,
    },
    core::Core,
    error::NetError,
    peer::Peer,
    sight::{PeerStatus, Serving, Waiter},
};

/// Connections the kernel holds until they are accepted.
const BACKLOG: u32 = 4096;

/// The transport of one process. Clones are handles to the same endpoint.
#[derive(Clone)]
pub struct Endpoint {
    owner: Arc<Owner>,
}

/// Its drop is the end of the endpoint; the tasks hold only what is below.
struct Owner(Arc<Groups>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.shut();
    }
}

impl Endpoint {
    /// Binds the addresses and starts accepting. Must be called within a tokio runtime, whose tasks do
    /// the endpoint's work.
    pub fn start(config: EndpointConfig) -> Result<Endpoint, NetError> {
        config.validate()?;
        let identity = config.identity.clone().ok_or(NetError::NoIdentity)?;
        check_identity(&config, &identity)?;
        let runtime = Handle::try_current().map_err(|_| NetError::NoRuntime)?;
        let mut listeners = Vec::new();
        let mut local = Vec::new();
        for &addr in &config.listen {
            let listener = socket::listen(addr, BACKLOG)?;
            local.push(listener.local_addr().map_err(|source| NetError::Listen { addr, source })?);
            listeners.push(listener);
        }
        let identity = identity.speaking(config.build.protocols).preferring(config.cipher_list)?;
        crate::connections::refused::show();
        let groups = Groups::new(Core::new(config, identity, runtime, local));
        groups.services.set(Service::Net, service::handler());
        for listener in listeners {
            groups.core.runtime.spawn(accept::run(Arc::clone(&groups), listener));
        }
        groups.core.runtime.spawn(groups::janitor(Arc::downgrade(&groups)));
        Ok(Endpoint { owner: Arc::new(Owner(groups)) })
    }

    fn groups(&self) -> &Arc<Groups> {
        &self.owner.0
    }

    fn core(&self) -> &Core {
        &self.groups().core
    }

    /// The addresses listened on, with the ports that were chosen.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.core().local()
    }

    /// The number that tells this life of the process from others.
    pub fn process(&self) -> u64 {
        self.core().process
    }

    /// Gives a service its handler; replaces an earlier one. Requests for a service without one are
    /// answered `NoService`.
    pub fn serve(&self, service: Service, handler: Arc<dyn Handler>) {
        self.groups().services.set(service, handler);
    }

    /// Answers visitors: who has no certificate, is heard once, in at most 4096 bytes, and hears as many. Once in the life of an
    /// endpoint whose configuration says `visitors`; until then they are refused.
    pub fn receive_visitors(&self, receive: Receive) {
        let _ = self.groups().visitors.set(receive); // the first one stays
    }

    /// The process at `addrs` (its addresses on one or several networks). Handles for the same addresses
    /// share their connections. Nothing is connected before the first call; without connections, and with no handle for
    /// minutes, it is forgotten.
    pub fn peer(&self, addrs: &[SocketAddr]) -> Peer {
        let (group, user) = self.groups().dialed(addrs);
        Peer::of_user(group, user)
    }

    /// A process that connected to this one.
    pub fn peer_by_process(&self, node: NodeId, process: u64) -> Option<Peer> {
        self.groups().find_accepted(node, process).map(Peer::from_group)
    }

    /// The session named in later handshakes.
    pub fn set_session(&self, session: SessionId) {
        self.core().set_session(session);
    }

    /// Changes `maxTcpConnsPerNodeConn`, 1–16: connections are made and drained accordingly, and peers that
    /// connected to this endpoint are told.
    pub fn set_conns_max(&self, n: u8) -> Result<(), NetError> {
        self.set_conns(n, false)
    }

    /// `maxTcpConnsPerNodeConn` = auto: each group finds the number by measuring, up to 16 and to what its
    /// peer allows.
    pub fn set_conns_auto(&self) {
        // 16 is within the range.
        let _ = self.set_conns(16, true);
    }

    fn set_conns(&self, n: u8, auto: bool) -> Result<(), NetError> {
        check_conns_max(n)?;
        if !self.core().set_conns(n, auto) {
            return Ok(());
        }
        for group in self.groups().all() {
            group.keeper.notify_one();
            if !group.dials() {
                self.core().runtime.spawn(service::tell_conns_max(Peer::from_group(group), n));
            }
        }
        Ok(())
    }

    /// Changes what bulk connections within a machine go by: those that go by something else are replaced, and no call is lost by that.
    pub fn set_transport(&self, transport: Transport) {
        if self.core().set_transport(transport) {
            self.groups().all().iter().for_each(|group| group.keeper.notify_one());
        }
    }

    /// Changes how payloads of more than `inline_max` bytes travel.
    pub fn set_transfer(&self, transfer: Transfer, inline_max: usize) {
        self.core().set_transfer(transfer, inline_max);
    }

    /// The map version named in replies.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.core().set_epoch(epoch);
    }

    /// What this process proves itself by.
    pub fn identity(&self) -> Identity {
        self.core().identity()
    }

    /// Proves itself by another certificate from now on, of the same member: connections that stand go on. Where it is another
    /// authority's, or one is believed no more that was, they are made anew within seconds, and no call is lost by that.
    pub fn set_identity(&self, identity: Identity) -> Result<(), NetError> {
        let config = &self.core().config;
        check_identity(config, &identity)?;
        if identity.member().id != self.identity().member().id {
            return Err(NetError::OtherMember);
        }
        let identity = identity.speaking(config.build.protocols);
        let _one = self.core().changing();
        let identity = identity.preferring(self.core().cipher_list().0)?;
        let before = self.core().set_identity(identity.clone());
        exchange::begin(self.groups(), &before, &identity);
        Ok(())
    }

    /// How connections are protected that begin from now on. Those that stand and are protected otherwise are replaced: first others
    /// are made, where this side connects; where the peer does it is asked to.
    pub fn set_cipher_list(&self, list: CipherList) -> Result<(), NetError> {
        let _one = self.core().changing();
        if self.core().cipher_list().0 == list {
            return Ok(());
        }
        self.core().set_identity(self.identity().preferring(list)?);
        self.core().set_cipher_list(list);
        self.groups().all().iter().for_each(|group| group.keeper.notify_one());
        Ok(())
    }

    /// The processes that have connected by a certificate of another authority than the own one: they have not got a new one yet.
    pub fn of_other_authorities(&self) -> Vec<(MemberId, Role, NodeId)> {
        let own = self.identity();
        let mut all = Vec::new();
        for group in self.groups().all() {
            // Of those that were connected to nothing is known: they may have got one since.
            let others = group.conns().into_iter().filter(|conn| !conn.dialed && !conn.have().leaving);
            let others = others.filter(|conn| conn.peer.shown.signer(&own) != Some(own.signer()));
            all.extend(others.map(|conn| (conn.peer.member, conn.peer.role, conn.peer.node)));
        }
        all.sort_unstable_by_key(|&(member, role, node)| (member, role as u8, node));
        all.dedup();
        all
    }

    /// These members are shut out from now on: connections with them end, and none begins. Who is shut out stays so.
    pub fn shut_out(&self, members: &[MemberId]) {
        if self.core().shut_out(members) {
            self.groups().all().iter().for_each(|group| group.close_if_shut_out());
        }
    }

    /// What people call the others from now on, in logs and listings: each with its node, if it is one, its name, and where it
    /// listens.
    pub fn set_names(&self, all: impl Iterator<Item = (Option<NodeId>, String, Vec<SocketAddr>)>) {
        self.core().names.set(all);
    }

    /// Payload bytes of requests under way, at most.
    pub fn inbound_bytes_max(&self) -> usize {
        self.core().config.inbound_bytes_max
    }

    /// The buffers that payloads are received into, for who keeps them: with one store of freed buffers, what one of them
    /// gives back the other uses.
    pub fn buffers(&self) -> BufPool {
        self.core().pool.clone()
    }

    /// Every call of this process that has not ended, oldest first.
    pub fn waiters(&self) -> Vec<Waiter> {
        let mut out = Vec::new();
        self.groups().all().iter().for_each(|g| g.waiters(&mut out));
        out.sort_by_key(|w| std::cmp::Reverse(w.age));
        out
    }

    /// Every request this process has received and not answered, oldest first.
    pub fn serving(&self) -> Vec<Serving> {
        let mut out = Vec::new();
        self.groups().all().iter().for_each(|g| g.serving(&mut out));
        out.sort_by_key(|w| std::cmp::Reverse(w.age));
        out
    }

    /// All peers and connections.
    pub fn status(&self) -> Vec<PeerStatus> {
        self.groups().all().iter().map(|g| g.status()).collect()
    }

    /// Ends everything: calls end with `Shutdown`, connections and listening sockets are closed. Also
    /// happens when the last handle is dropped.
    pub fn shutdown(&self) {
        self.groups().shut();
    }
}

/// Whether a process may be what it is to be with what it proves itself by.
fn check_identity(config: &EndpointConfig, identity: &Identity) -> Result<(), NetError> {
    match identity.member().speaks_as(config.cluster, config.role, config.node) {
        true => Ok(()),
        false => Err(NetError::NotAllowed(identity.member().to_string(), config.role, config.node)),
    }
}
