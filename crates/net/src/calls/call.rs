//! One request from its caller's side.

use std::time::{Duration, Instant};

use base::{Epoch, InodeNo, OpClass, SessionId};
use bytes::Bytes;
use wire::{
    frame::{BODY_LEN_MAX, FrameError, Header, PAYLOAD_LEN_MAX, Service},
    hello::Lane,
};

use crate::calls::payload::{Destination, Payload, ReplyPayload};

/// A request to send.
pub struct Call {
    /// The part of the peer it is for.
    pub service: Service,
    /// Kind of work, for statistics.
    pub class: OpClass,
    /// The message's number in its service, for statistics.
    pub op: u8,
    /// Which connections carry it; `Control` is never behind bulk data.
    pub lane: Lane,
    /// The session on whose behalf it is.
    pub session: SessionId,
    /// The inode it is about; 0 is none.
    pub inode: InodeNo,
    /// The sender's map version.
    pub epoch: Epoch,
    /// The encoded message.
    pub body: Vec<u8>,
    /// Sent as it lies in memory.
    pub payload: Payload,
    /// Where the reply's payload goes; `None`: one pooled buffer.
    pub into: Option<Destination>,
    /// The CRC-32C of each 4 KiB of a pooled payload is computed as the bytes come, while the CPU's cache has them.
    pub unit_crcs: bool,
    /// When the caller gives up.
    pub deadline: Instant,
    /// Whether it may be carried out several times. When its connection is lost after it was sent it is sent
    /// again on another, either way; without this flag the peer remembers it, so that it takes effect once,
    /// and it ends with `Disconnected { maybe_executed: true }` if the peer has started anew meanwhile.
    pub idempotent: bool,
    /// The first version of the protocol that has this message: it goes to no peer that speaks an older one; 0: all have it.
    pub since: u16,
    /// How long it waits while there is no connection at all; `None`: the endpoint's `patience_default`.
    pub patience: Option<Duration>,
}

impl Call {
    /// A control-lane call without payload; the other fields are set with `Call { .., ..Call::new(..) }`.
    pub fn new(service: Service, op: u8, body: Vec<u8>, deadline: Instant) -> Call {
        Call {
            service,
            class: OpClass::Control,
            op,
            lane: Lane::Control,
            session: SessionId(0),
            inode: InodeNo(0),
            epoch: Epoch(0),
            body,
            payload: Payload::new(),
            into: None,
            unit_crcs: false,
            deadline,
            idempotent: false,
            since: 0,
            patience: None,
        }
    }

    /// Refuses what no peer would accept.
    pub(crate) fn check_lengths(&self) -> Result<(), FrameError> {
        check_len("body_len", self.body.len(), BODY_LEN_MAX)?;
        check_len("payload_len", self.payload.len(), PAYLOAD_LEN_MAX)
    }
}

pub(crate) fn check_len(field: &'static str, len: usize, max: u32) -> Result<(), FrameError> {
    if len <= max as usize {
        Ok(())
    } else {
        Err(FrameError::TooLong { field, len: u32::try_from(len).unwrap_or(u32::MAX), max })
    }
}

/// The answer to a call.
#[derive(Debug)]
pub struct Reply {
    /// Its header; the status is `Ok`.
    pub header: Header,
    /// The encoded message.
    pub body: Bytes,
    /// Its payload.
    pub payload: ReplyPayload,
    /// CRC-32C of each whole 4 KiB of a pooled payload as it lies in memory, if the call asked for them.
    pub unit_crcs: Vec<u32>,
    /// From sending to the reply's last byte, without the time the peer had it: network and queues.
    pub rtt: Duration,
    /// The number of the connection it came on, as in `Endpoint::status`.
    pub connection: u64,
}
