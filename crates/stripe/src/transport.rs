//! How requests reach NSD servers: one small trait, so that everything above it runs over a simulated
//! network as well as over TCP.

use std::{net::SocketAddr, time::Instant};

use base::{Epoch, InodeNo, NodeId, OpClass, SessionId, units::UNIT};
use bytes::Bytes;
use net::{BoxFuture, Call, CallError, Endpoint, Lane, Payload, Service};
use wire::{
    frame,
    nsd::{NsdReply, NsdRequest},
};

use crate::Fault;

/// A request to an NSD server.
#[derive(Debug)]
pub struct NsdCall {
    /// To which node.
    pub node: NodeId,
    /// Its addresses.
    pub addrs: Vec<SocketAddr>,
    /// What.
    pub request: NsdRequest,
    /// Bytes that go with it.
    pub payload: Vec<Bytes>,
    /// Kind of work.
    pub class: OpClass,
    /// On whose behalf.
    pub session: SessionId,
    /// About which inode.
    pub inode: InodeNo,
    /// Made under which map.
    pub epoch: Epoch,
    /// When the caller gives up.
    pub deadline: Instant,
}

/// Carries requests to NSD servers. `Ok` is any reply of the server that is not a refusal; what was read has the CRCs that
/// the reply says ([`Fault::BadCrc`] otherwise): they are compared where the bytes arrive.
pub trait NsdTransport: Send + Sync + 'static {
    /// Sends one request and waits for its answer, at most until its deadline.
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>>;
}

/// Over connection groups.
pub struct NetTransport {
    endpoint: Endpoint,
}

impl NetTransport {
    /// Over the connections of `endpoint`.
    pub fn new(endpoint: Endpoint) -> NetTransport {
        NetTransport { endpoint }
    }
}

impl NsdTransport for NetTransport {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let peer = self.endpoint.peer(&call.addrs);
        Box::pin(async move {
            let bulk = matches!(
                call.request,
                NsdRequest::Prepare { .. }
                    | NsdRequest::Read { .. }
                    | NsdRequest::Install { .. }
                    | NsdRequest::ListGroup { .. }
                    | NsdRequest::ListPrepared { .. }
            );
            let sent = Call {
                class: call.class,
                lane: if bulk { Lane::Bulk } else { Lane::Control },
                session: call.session,
                inode: call.inode,
                epoch: call.epoch,
                payload: Payload::from(call.payload),
                idempotent: true,
                unit_crcs: matches!(call.request, NsdRequest::Read { .. }),
                ..Call::new(Service::Nsd, call.request.op(), frame::encode(&call.request), call.deadline)
            };
            let reply = peer.call(sent).await.map_err(|error| match error {
                CallError::Deadline => Fault::Timeout,
                other => Fault::Unreachable(other.to_string()),
            })?;
            let message: NsdReply = frame::decode(&reply.body).map_err(|_| Fault::Protocol)?;
            match message {
                NsdReply::Refused(refusal) => Err(Fault::Refused(refusal)),
                NsdReply::Read(read) => {
                    check(&read.crcs, &reply.unit_crcs, reply.payload.len())?;
                    Ok((NsdReply::Read(read), reply.payload.into_bytes()))
                }
                message => Ok((message, reply.payload.into_bytes())),
            }
        })
    }
}

/// Whether `len` bytes with the CRCs `came` are those that the reply is about.
fn check(stored: &[u32], came: &[u32], len: usize) -> Result<(), Fault> {
    if came.len() * UNIT != len || stored.len() != came.len() {
        return Err(Fault::Protocol);
    }
    match stored.iter().zip(came).position(|(stored, came)| stored != came) {
        Some(unit) => Err(Fault::BadCrc { unit: unit as u32 }),
        None => Ok(()),
    }
}
