//! What the transport tests share: a server with a lab service, a client, raw frames.
#![allow(dead_code)] // each test file uses its part

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{ClusterId, NodeId};
use net::{Call, Endpoint, EndpointConfig, Handler, Lane, Payload, Response, Service, Status, handler_fn};
use wire::{
    crc::crc32c,
    frame::{FrameKind, HEADER_LEN, Header},
    hello::{Hello, HelloReply, Window},
};

pub const CLUSTER: ClusterId = ClusterId(7);
/// Operations of the lab service below.
pub const ECHO: u8 = 1;
pub const SINK: u8 = 2;
pub const SOURCE: u8 = 3;
pub const NEVER: u8 = 4;
pub const PANIC: u8 = 5;
pub const CALL_BACK: u8 = 6;

/// Ends a test that would otherwise hang, as a failure.
pub const SOON: Duration = Duration::from_secs(30);

pub fn config(node: u32) -> EndpointConfig {
    EndpointConfig { cluster: CLUSTER, node: NodeId(node), ..EndpointConfig::default() }
}

pub fn listening(node: u32) -> EndpointConfig {
    EndpointConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..config(node) }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

pub fn lab() -> Arc<dyn Handler> {
    handler_fn(|request| async move {
        match request.header.op {
            ECHO => Response::with_payload(request.body.to_vec(), request.payload.clone()),
            SINK => Response::ok(crc32c(&request.payload).to_le_bytes().to_vec()),
            SOURCE => {
                let len = u32::from_le_bytes(request.body[..4].try_into().unwrap());
                Response::with_payload(vec![], bytes::Bytes::from(pattern(len as usize, 1)))
            }
            NEVER => {
                request.cancelled().await;
                Response::ok(vec![])
            }
            PANIC => panic!("as asked"),
            CALL_BACK => {
                let deadline = request.expires;
                let call = Call::new(Service::Callback, 1, b"from the server".to_vec(), deadline);
                match request.peer.reply_to().call(call).await {
                    Ok(reply) => Response::ok(reply.body.to_vec()),
                    Err(e) => Response::error(Status::Internal, e),
                }
            }
            _ => Response::error(Status::BadRequest, "no such operation"),
        }
    })
}

pub fn server() -> (Endpoint, SocketAddr) {
    server_with(listening(1))
}

pub fn server_with(config: EndpointConfig) -> (Endpoint, SocketAddr) {
    let endpoint = Endpoint::start(config).unwrap();
    endpoint.serve(Service::Lab, lab());
    let addr = endpoint.local_addrs()[0];
    (endpoint, addr)
}

pub fn call(op: u8, body: &[u8]) -> Call {
    Call::new(Service::Lab, op, body.to_vec(), Instant::now() + SOON)
}

pub fn bulk(op: u8, body: &[u8], payload: impl Into<Payload>) -> Call {
    Call { lane: Lane::Bulk, payload: payload.into(), ..call(op, body) }
}

/// A frame as bytes.
pub fn frame(header: Header, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = Header {
        body_len: body.len() as u32,
        payload_len: payload.len() as u32,
        body_crc: crc32c(body),
        ..header
    };
    [&header.encode()[..], body, payload].concat()
}

pub fn hello(cluster: ClusterId, lane: Lane) -> Vec<u8> {
    hello_of(cluster, lane, 99)
}

pub fn hello_of(cluster: ClusterId, lane: Lane, process: u64) -> Vec<u8> {
    let body = wire::frame::encode(&Hello {
        cluster,
        node: NodeId(9),
        process,
        session: base::SessionId(0),
        lane,
        conns_max: 2,
        window: Window { requests: 64, bytes: 1 << 20 },
        capabilities: 0,
        software: "test".to_owned(),
    });
    frame(Header { kind: FrameKind::Hello, ..Header::default() }, &body, &[])
}

pub fn hello_reply() -> Vec<u8> {
    hello_reply_of(11)
}

pub fn hello_reply_of(process: u64) -> Vec<u8> {
    let body = wire::frame::encode(&HelloReply::Accepted {
        node: NodeId(1),
        process,
        conns_max: 2,
        window: Window { requests: 64, bytes: 64 << 20 },
        capabilities: 0,
        addresses: vec![],
    });
    frame(Header { kind: FrameKind::HelloReply, ..Header::default() }, &body, &[])
}

pub fn request(id: u64) -> Header {
    Header { service: Service::Lab, op: ECHO, request_id: id, deadline_us: 10_000_000, ..Header::default() }
}

/// Reads one frame from a raw socket.
pub async fn read_frame(stream: &mut tokio::net::TcpStream) -> std::io::Result<(Header, Vec<u8>, Vec<u8>)> {
    use tokio::io::AsyncReadExt;
    let mut bytes = [0; HEADER_LEN];
    stream.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes).map_err(std::io::Error::other)?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await?;
    let mut payload = vec![0; header.payload_len as usize];
    stream.read_exact(&mut payload).await?;
    Ok((header, body, payload))
}
