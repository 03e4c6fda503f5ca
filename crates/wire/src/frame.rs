//! The frame: what travels on a connection.
//!
//! ```text
//! header  128 bytes, fixed, little-endian (RawHeader)
//! body    body_len bytes, postcard (a message of `wire::{hello, nsd, mgr, ...}`), CRC-32C in the header
//! payload payload_len bytes, opaque here; its CRCs travel in the body, per 4 KiB unit
//! ```
//! A header is trusted only after [`RawHeader::validate`]: magic, version, its own CRC, and lengths
//! within bounds, so that a lying length allocates nothing.

use base::{Epoch, InodeNo, OpClass, SessionId};
use thiserror::Error;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

pub use crate::version::PROTOCOL_VERSION;
use crate::{crc::crc32c, hello::Role};

/// "RWLK", the first four bytes of every frame.
pub const MAGIC: u32 = u32::from_le_bytes(*b"RWLK");
/// Bytes of a header.
pub const HEADER_LEN: usize = 128;
/// Longest body, bytes.
pub const BODY_LEN_MAX: u32 = 8 << 20;
/// Longest payload, bytes: one whole 16 MiB block.
pub const PAYLOAD_LEN_MAX: u32 = 16 << 20;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame on a connection, from the side that connected: what it says of itself.
    Introduction = 1,
    /// The answer to that: accepted with what the other side says of itself, or refused.
    Welcome = 2,
    /// A request; wants one reply with the same id.
    Request = 3,
    /// The reply to a request.
    Reply = 4,
    /// The requester no longer waits; the work may be dropped.
    Cancel = 5,
    /// Heartbeat.
    Ping = 6,
    /// Answer to a heartbeat.
    Pong = 7,
    /// The sender sends no new request on this connection. The side that connected begins, the other
    /// answers in kind; the first closes when nothing is under way any more.
    Drain = 8,
}

/// Which part of a node a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// The transport itself (hello, ping).
    Net = 0,
    /// The manager: `wire::mgr`.
    Manager = 1,
    /// The NSD server: `wire::nsd`.
    Nsd = 2,
    /// The process: status, statistics, shutdown: `wire::admin`.
    Admin = 3,
    /// Measurement traffic of the lab.
    Lab = 4,
    /// Calls from manager to client (revokes, map pushes): `wire::callback`.
    Callback = 5,
}

impl Service {
    /// Whether a process in this role may be what a request of the service is for. A client that sits where the manager was
    /// is not asked what the manager would be.
    pub fn is_served_by(self, role: Role) -> bool {
        match self {
            Service::Manager => role == Role::Manager,
            Service::Nsd => role == Role::Server,
            Service::Net | Service::Admin | Service::Lab | Service::Callback => true,
        }
    }
}

/// How a request ended, as far as the transport is concerned; the finer outcome is in the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u16)]
pub enum Status {
    /// Handled; the body is the service's reply.
    #[default]
    Ok = 0,
    /// The service is not on this node, or not ready yet.
    NoService = 1,
    /// The body could not be decoded.
    BadRequest = 2,
    /// The deadline passed before it was handled; nothing was done.
    Expired = 3,
    /// Refused because a bound was reached; try again later.
    Busy = 4,
    /// The handler failed unexpectedly; the body is a text.
    Internal = 5,
    /// A repeated request that may have been carried out before: that is no longer known.
    Forgotten = 6,
}

/// The header as bytes. See [`Header`] for the meanings.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub struct RawHeader {
    magic: U32,
    version: U16,
    kind: u8,
    service: u8,
    class: u8,
    op: u8,
    status: U16,
    body_len: U32,
    payload_len: U32,
    body_crc: U32,
    deadline_us: U32,
    server_us: U32,
    request_id: U64,
    session: U64,
    inode: U64,
    epoch: U64,
    sent_us: U64,
    offered: U32,
    flags: U32,
    settled: U64,
    /// Zero; room for tracing and security fields.
    reserved: [u8; 36],
    header_crc: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);

/// A validated header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version that the connection speaks.
    pub version: u16,
    /// What the frame is.
    pub kind: FrameKind,
    /// The part it is for.
    pub service: Service,
    /// Kind of work, for statistics and scheduling.
    pub class: OpClass,
    /// The message's number in its service, for statistics only.
    pub op: u8,
    /// Outcome (replies).
    pub status: Status,
    /// Bytes of body after the header.
    pub body_len: u32,
    /// Bytes of payload after the body.
    pub payload_len: u32,
    /// CRC-32C of the body.
    pub body_crc: u32,
    /// Requests: microseconds the requester will still wait. Replies: 0.
    pub deadline_us: u32,
    /// Replies: microseconds from the request's receipt to the reply's sending.
    pub server_us: u32,
    /// Chosen by the requester, unique on its endpoint; repeated in the reply.
    pub request_id: u64,
    /// The session on whose behalf it is; 0 is none.
    pub session: SessionId,
    /// The inode it is about; 0 is none.
    pub inode: InodeNo,
    /// The sender's map version.
    pub epoch: Epoch,
    /// The sender's monotonic clock when the request was sent, microseconds; repeated in the reply.
    pub sent_us: u64,
    /// Requests: bytes of payload that the requester holds ready, for the receiver to fetch with
    /// `NetRequest::Fetch`; there is none behind the body then.
    pub offered: u32,
    /// Requests: it may come again under the same id, on another connection, and takes effect once.
    pub once: bool,
    /// Requests with `once`: the sender waits for no such request of a lower id any more.
    pub settled: u64,
}

/// Bit of the field `flags`: [`Header::once`].
const FLAG_ONCE: u32 = 1;

impl Default for Header {
    fn default() -> Self {
        Header {
            version: PROTOCOL_VERSION,
            kind: FrameKind::Request,
            service: Service::Net,
            class: OpClass::Control,
            op: 0,
            status: Status::Ok,
            body_len: 0,
            payload_len: 0,
            body_crc: 0,
            deadline_us: 0,
            server_us: 0,
            request_id: 0,
            session: SessionId(0),
            inode: InodeNo(0),
            epoch: Epoch(0),
            sent_us: 0,
            offered: 0,
            once: false,
            settled: 0,
        }
    }
}

/// Why bytes are not a frame.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The first bytes are not ours: another program is talking to this port.
    #[error("not a ropewalk frame (magic {0:#010x})")]
    Magic(u32),
    /// The frame is of another version than the connection.
    #[error("protocol version {theirs}, not {expected}")]
    Version {
        /// The frame's.
        theirs: u16,
        /// The connection's.
        expected: u16,
    },
    /// The header does not match its CRC.
    #[error("header CRC mismatch")]
    HeaderCrc,
    /// The body does not match its CRC.
    #[error("body CRC mismatch")]
    BodyCrc,
    /// A field has a value that is not defined.
    #[error("field {field} has undefined value {value}")]
    Field {
        /// Its name.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A length is above its bound.
    #[error("{field} {len} is above {max}")]
    TooLong {
        /// Which length.
        field: &'static str,
        /// Its value.
        len: u32,
        /// The bound.
        max: u32,
    },
    /// The body is not the message it should be.
    #[error("cannot decode the message: {0}")]
    Decode(postcard::Error),
}

impl Header {
    /// The header as it goes on the wire, its CRC filled in.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut raw = RawHeader::new_zeroed();
        raw.magic = MAGIC.into();
        raw.version = self.version.into();
        raw.kind = self.kind as u8;
        raw.service = self.service as u8;
        raw.class = self.class as u8;
        raw.op = self.op;
        raw.status = (self.status as u16).into();
        raw.body_len = self.body_len.into();
        raw.payload_len = self.payload_len.into();
        raw.body_crc = self.body_crc.into();
        raw.deadline_us = self.deadline_us.into();
        raw.server_us = self.server_us.into();
        raw.request_id = self.request_id.into();
        raw.session = self.session.0.into();
        raw.inode = self.inode.0.into();
        raw.epoch = self.epoch.0.into();
        raw.sent_us = self.sent_us.into();
        raw.offered = self.offered.into();
        raw.flags = (if self.once { FLAG_ONCE } else { 0 }).into();
        raw.settled = self.settled.into();
        raw.header_crc = crc32c(&raw.as_bytes()[..HEADER_LEN - 4]).into();
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads and validates a header that came on a connection of this version.
    pub fn decode(bytes: &[u8; HEADER_LEN], version: u16) -> Result<Header, FrameError> {
        let raw = RawHeader::read_from_bytes(bytes).unwrap_or_else(|_| RawHeader::new_zeroed());
        raw.validate(version, crc32c(&bytes[..HEADER_LEN - 4]))
    }
}

impl RawHeader {
    fn validate(&self, expected: u16, crc: u32) -> Result<Header, FrameError> {
        if self.magic.get() != MAGIC {
            return Err(FrameError::Magic(self.magic.get()));
        }
        if self.version.get() != expected {
            return Err(FrameError::Version { theirs: self.version.get(), expected });
        }
        if self.header_crc.get() != crc {
            return Err(FrameError::HeaderCrc);
        }
        let bound = |field, len: u32, max| {
            if len > max { Err(FrameError::TooLong { field, len, max }) } else { Ok(len) }
        };
        let undefined = |field, value: u64| FrameError::Field { field, value };
        Ok(Header {
            version: expected,
            kind: match self.kind {
                1 => FrameKind::Introduction,
                2 => FrameKind::Welcome,
                3 => FrameKind::Request,
                4 => FrameKind::Reply,
                5 => FrameKind::Cancel,
                6 => FrameKind::Ping,
                7 => FrameKind::Pong,
                8 => FrameKind::Drain,
                n => return Err(undefined("kind", n.into())),
            },
            service: match self.service {
                0 => Service::Net,
                1 => Service::Manager,
                2 => Service::Nsd,
                3 => Service::Admin,
                4 => Service::Lab,
                5 => Service::Callback,
                n => return Err(undefined("service", n.into())),
            },
            class: OpClass::from_u8(self.class),
            op: self.op,
            status: match self.status.get() {
                0 => Status::Ok,
                1 => Status::NoService,
                2 => Status::BadRequest,
                3 => Status::Expired,
                4 => Status::Busy,
                5 => Status::Internal,
                6 => Status::Forgotten,
                n => return Err(undefined("status", n.into())),
            },
            body_len: bound("body_len", self.body_len.get(), BODY_LEN_MAX)?,
            payload_len: bound("payload_len", self.payload_len.get(), PAYLOAD_LEN_MAX)?,
            body_crc: self.body_crc.get(),
            deadline_us: self.deadline_us.get(),
            server_us: self.server_us.get(),
            request_id: self.request_id.get(),
            session: SessionId(self.session.get()),
            inode: InodeNo(self.inode.get()),
            epoch: Epoch(self.epoch.get()),
            sent_us: self.sent_us.get(),
            offered: bound("offered", self.offered.get(), PAYLOAD_LEN_MAX)?,
            once: match self.flags.get() {
                0 => false,
                FLAG_ONCE => true,
                n => return Err(undefined("flags", n.into())),
            },
            settled: self.settled.get(),
        })
    }
}

/// Encodes a message body.
pub fn encode<T: serde::Serialize>(message: &T) -> Vec<u8> {
    // Our own in-memory types always serialise; a failure would be a bug in the types themselves.
    postcard::to_stdvec(message).expect("messages serialise")
}

/// Decodes a message body. All bytes must be used. Lengths inside are bounded by the body's own
/// length: serde's collections reserve at most a small fixed amount ahead of the elements.
pub fn decode<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(body).map_err(FrameError::Decode)? {
        (message, []) => Ok(message),
        _ => Err(FrameError::Decode(postcard::Error::DeserializeBadEncoding)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            version: 9,
            kind: FrameKind::Reply,
            service: Service::Nsd,
            class: OpClass::Write,
            op: 9,
            status: Status::Busy,
            body_len: 77,
            payload_len: 1 << 20,
            body_crc: 0xdead_beef,
            deadline_us: 60_000_000,
            server_us: 5,
            request_id: u64::MAX,
            session: SessionId(3),
            inode: InodeNo(4),
            epoch: Epoch(5),
            sent_us: 6,
            offered: 7,
            once: true,
            settled: 8,
        }
    }

    #[test]
    fn headers_round_trip_and_every_bit_is_covered() {
        let bytes = sample().encode();
        assert_eq!(Header::decode(&bytes, 9), Ok(sample()));
        let other = Err(FrameError::Version { theirs: 9, expected: 10 });
        assert_eq!(Header::decode(&bytes, 10), other);
        for bit in 0..HEADER_LEN * 8 {
            let mut torn = bytes;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&torn, 9).is_err(), "bit {bit} flipped unseen");
        }
    }

    #[test]
    fn a_lying_length_is_refused() {
        let header = Header { payload_len: PAYLOAD_LEN_MAX + 1, ..sample() };
        assert!(matches!(
            Header::decode(&header.encode(), 9),
            Err(FrameError::TooLong { field: "payload_len", .. })
        ));
    }

    #[test]
    fn golden_header() {
        let bytes = sample().encode();
        assert_eq!(bytes[..12], [b'R', b'W', b'L', b'K', 9, 0, 4, 2, 2, 9, 4, 0]);
        assert_eq!(bytes[12..20], [77, 0, 0, 0, 0, 0, 16, 0]);
        assert_eq!(bytes[72..92], [7, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
