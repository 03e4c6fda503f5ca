//! What the transport tests share: a server with a lab service, a client, raw frames.
#![allow(dead_code)] // each test file uses its part

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{ClusterId, NodeId};
use net::{Call, Endpoint, EndpointConfig, Handler, Lane, Payload, Response, Service, Status, handler_fn};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use wire::{
    auth::{Exchange, Nonce, Proven, Secret, Side},
    crc::crc32c,
    frame::{FrameKind, HEADER_LEN, Header},
    hello::{Challenge, Hello, HelloReply, Introduction, Role, Welcome, Window},
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

pub fn secret() -> Secret {
    Secret::new([7; 32])
}

pub fn config(node: u32) -> EndpointConfig {
    EndpointConfig {
        cluster: CLUSTER,
        secret: Some(secret()),
        node: NodeId(node),
        ..EndpointConfig::default()
    }
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

/// The first frame of a handshake.
pub fn hello() -> Vec<u8> {
    let body = wire::frame::encode(&Hello { nonce: [5; 32] });
    frame(Header { kind: FrameKind::Hello, ..Header::default() }, &body, &[])
}

pub fn introduction(lane: Lane, process: u64) -> Introduction {
    Introduction {
        node: NodeId(9),
        process,
        role: Role::Lab,
        session: base::SessionId(0),
        lane,
        conns_max: 2,
        window: Window { requests: 64, bytes: 1 << 20 },
        capabilities: 0,
        software: "test".to_owned(),
    }
}

/// What both ends of a connection see, from the connecting one's side if `dialed`.
pub fn exchange(stream: &TcpStream, dialed: bool, connecting: Nonce, accepting: Nonce) -> Exchange {
    let (own, other) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let addresses = Some(if dialed { (own, other) } else { (other, own) });
    Exchange { cluster: CLUSTER, connecting, accepting, addresses }
}

/// A frame of the handshake.
pub fn step<T: serde::Serialize>(kind: FrameKind, message: &T) -> Vec<u8> {
    frame(Header { kind, ..Header::default() }, &wire::frame::encode(message), &[])
}

/// The handshake of the connecting side up to its introduction, which is returned unsent, and the sides' exchange.
pub async fn challenged(
    stream: &mut TcpStream,
    introduction: &Introduction,
) -> std::io::Result<(Vec<u8>, Exchange)> {
    stream.write_all(&hello()).await?;
    let (header, body, _) = read_frame(stream).await?;
    assert_eq!(header.kind, FrameKind::Challenge);
    let challenge: Challenge = wire::frame::decode(&body).unwrap();
    let exchange = exchange(stream, true, [5; 32], challenge.nonce);
    assert!(exchange.holds(&secret(), Side::Accepting, &[], &challenge.proof));
    let said = wire::frame::encode(introduction);
    let proven = Proven::seal(&exchange, &secret(), Side::Connecting, said);
    Ok((step(FrameKind::Introduction, &proven), exchange))
}

/// The whole handshake of the connecting side.
pub async fn shake_hands(stream: &mut TcpStream, lane: Lane, process: u64) -> std::io::Result<()> {
    let (introduction, exchange) = challenged(stream, &introduction(lane, process)).await?;
    stream.write_all(&introduction).await?;
    let (header, body, _) = read_frame(stream).await?;
    assert_eq!(header.kind, FrameKind::HelloReply);
    let HelloReply::Known(proven) = wire::frame::decode(&body).unwrap() else { panic!("refused") };
    assert!(proven.open(&exchange, &secret(), Side::Answering).is_some());
    Ok(())
}

/// The whole handshake of the accepting side.
pub async fn greet(stream: &mut TcpStream, process: u64) -> std::io::Result<Introduction> {
    let (_, body, _) = read_frame(stream).await?;
    let hello: Hello = wire::frame::decode(&body).map_err(std::io::Error::other)?;
    let exchange = exchange(stream, false, hello.nonce, [6; 32]);
    let proof = exchange.proof(&secret(), Side::Accepting, &[]);
    stream.write_all(&step(FrameKind::Challenge, &Challenge { nonce: [6; 32], proof })).await?;
    let (_, body, _) = read_frame(stream).await?;
    let proven: Proven = wire::frame::decode(&body).map_err(std::io::Error::other)?;
    let said = proven.open(&exchange, &secret(), Side::Connecting).expect("a member").to_vec();
    let welcome = wire::frame::encode(&Welcome::Accepted {
        node: NodeId(1),
        process,
        role: Role::Lab,
        conns_max: 2,
        window: Window { requests: 64, bytes: 64 << 20 },
        capabilities: 0,
        addresses: vec![],
    });
    let proven = Proven::seal(&exchange, &secret(), Side::Answering, welcome);
    stream.write_all(&step(FrameKind::HelloReply, &HelloReply::Known(proven))).await?;
    wire::frame::decode(&said).map_err(std::io::Error::other)
}

pub fn request(id: u64) -> Header {
    Header { service: Service::Lab, op: ECHO, request_id: id, deadline_us: 10_000_000, ..Header::default() }
}

/// Reads one frame from a raw socket.
pub async fn read_frame(stream: &mut TcpStream) -> std::io::Result<(Header, Vec<u8>, Vec<u8>)> {
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
