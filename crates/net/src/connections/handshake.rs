//! The handshake: both sides prove that they know the cluster's secret ([`wire::auth`]), then say who they are.
//! Before that nothing is believed, nothing is told (a stranger hears "refused"), and nothing larger than a hello
//! is read. Once a connection; requests cost nothing more. Both sides log a refusal with its reason.

use std::{net::SocketAddr, time::Duration};

use base::{NodeId, SessionId};
use bytes::Bytes;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use wire::{
    auth::{Exchange, NONCE_LEN, Nonce, Proven, Side},
    crc::crc32c,
    frame::{FrameError, FrameKind, HEADER_LEN, Header},
    hello::{Challenge, Hello, HelloReply, Introduction, Lane, Role, Welcome, Window},
};

use crate::{core::Core, links::choose::Path};

/// Longest body of a message of the handshake.
const HELLO_LEN_MAX: u32 = 4096;
/// How long a refused peer has to read why.
const REASON_READ: Duration = Duration::from_secs(1);
/// Most addresses taken from a peer.
const ADDRESSES_MAX: usize = 64;

/// Who the handshake has proven to be at the other end.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub node: NodeId,
    pub process: u64,
    pub role: Role,
    pub session: SessionId,
    pub software: String,
}

/// What a finished handshake yields.
pub(crate) struct Accepted {
    pub peer: Identity,
    pub lane: Lane,
    /// The peer's `conns_max`.
    pub conns_max: u8,
    /// What the peer accepts of requests from us.
    pub window: Window,
    /// All its addresses.
    pub addresses: Vec<SocketAddr>,
    /// The links it uses, where that was tried.
    pub path: Option<Path>,
}

#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("no handshake within {0:?}")]
    Timeout(Duration),
    #[error("a frame {0:?} where the handshake has another")]
    Unexpected(FrameKind),
    /// The other side cannot prove that it belongs to this cluster, or we cannot to it.
    #[error(
        "permission denied: {0} and this process do not have the same cluster secret; use the cluster's own \
         cluster.toml, as its owner"
    )]
    Stranger(&'static str),
    /// It saw our proof and closed: another secret, or an attempt that was not needed any more.
    #[error("it went without a proof of its own; it has another secret, or gave up")]
    Left,
    /// The other side, which is who it says, refuses us.
    #[error("refused: {0}")]
    Refused(String),
    /// We refuse the other side.
    #[error("refusing it: {0}")]
    Refusing(String),
}

impl HandshakeError {
    /// In few words, for the statistics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            HandshakeError::Io(_) => "broken",
            HandshakeError::Left => "left",
            HandshakeError::Frame(FrameError::Version { .. }) => "version",
            HandshakeError::Frame(_) | HandshakeError::Unexpected(_) => "garbage",
            HandshakeError::Timeout(_) => "silent",
            HandshakeError::Stranger(_) => "stranger",
            HandshakeError::Refused(_) | HandshakeError::Refusing(_) => "refused",
        }
    }
}

fn nonce() -> Result<Nonce, HandshakeError> {
    let mut nonce = [0; NONCE_LEN];
    let got = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    if got.map_err(std::io::Error::from)? != NONCE_LEN {
        return Err(std::io::Error::other("the system gave too few random bytes").into());
    }
    Ok(nonce)
}

/// What both sides see of this connection. `dialed`: this side connected.
fn exchange(
    core: &Core,
    stream: &TcpStream,
    dialed: bool,
    nonces: [Nonce; 2],
) -> Result<Exchange, HandshakeError> {
    let (own, other) = (stream.local_addr()?, stream.peer_addr()?);
    let addresses = if dialed { (own, other) } else { (other, own) };
    let [connecting, accepting] = nonces;
    Ok(Exchange {
        cluster: core.config.cluster,
        connecting,
        accepting,
        addresses: (!core.config.relays).then_some(addresses),
    })
}

/// The connecting side.
pub(crate) async fn connect(
    core: &Core,
    stream: &mut TcpStream,
    lane: Lane,
    limit: Duration,
) -> Result<Accepted, HandshakeError> {
    within(limit, introduce(core, stream, lane)).await
}

async fn introduce(core: &Core, stream: &mut TcpStream, lane: Lane) -> Result<Accepted, HandshakeError> {
    let (config, secret) = (&core.config, &core.secret);
    let own = nonce()?;
    send(stream, FrameKind::Hello, &Hello { nonce: own }).await?;
    let challenge: Challenge = match receive(stream).await? {
        (FrameKind::Challenge, body) => wire::frame::decode(&body)?,
        (FrameKind::HelloReply, _) => return Err(HandshakeError::Stranger("the process there")),
        (kind, _) => return Err(HandshakeError::Unexpected(kind)),
    };
    let exchange = exchange(core, stream, true, [own, challenge.nonce])?;
    if !exchange.holds(secret, Side::Accepting, &[], &challenge.proof) {
        return Err(HandshakeError::Stranger("the process there"));
    }
    let introduction = wire::frame::encode(&Introduction {
        node: config.node,
        process: core.process,
        role: config.role,
        session: core.session(),
        lane,
        conns_max: core.conns_max(),
        window: config.window,
        capabilities: 0,
        software: config.software.clone(),
    });
    let proven = Proven::seal(&exchange, secret, Side::Connecting, introduction);
    send(stream, FrameKind::Introduction, &proven).await?;
    let reply: HelloReply = match receive(stream).await? {
        (FrameKind::HelloReply, body) => wire::frame::decode(&body)?,
        (kind, _) => return Err(HandshakeError::Unexpected(kind)),
    };
    let HelloReply::Known(proven) = reply else { return Err(HandshakeError::Stranger("the process there")) };
    let said = proven.open(&exchange, secret, Side::Answering);
    match wire::frame::decode(said.ok_or(HandshakeError::Stranger("the process there"))?)? {
        Welcome::Refused { reason } => Err(HandshakeError::Refused(reason)),
        Welcome::Accepted { node, process, role, conns_max, window, capabilities: _, addresses } => {
            let addresses = addresses.iter().take(ADDRESSES_MAX).filter_map(|a| a.parse().ok()).collect();
            let session = base::SessionId(0);
            Ok(Accepted {
                peer: Identity { node, process, role, session, software: String::new() },
                lane,
                conns_max,
                window,
                addresses,
                path: None,
            })
        }
    }
}

/// The accepting side.
pub(crate) async fn accept(core: &Core, stream: &mut TcpStream) -> Result<Accepted, HandshakeError> {
    let limit = core.config.connect_timeout;
    let error = match within(limit, welcome(core, stream)).await {
        Ok(accepted) => return Ok(accepted),
        Err(error) => error,
    };
    let reason = match &error {
        // The connecting side is told, in our version's words; it sees at least our number.
        HandshakeError::Frame(e @ FrameError::Version { .. }) => {
            format!("{e}; install the same version of ropewalk on both nodes")
        }
        HandshakeError::Stranger(_) => "refused".to_owned(),
        // Told already.
        HandshakeError::Refusing(_) => {
            read_out(stream).await;
            return Err(error);
        }
        _ => return Err(error),
    };
    if within(limit, send(stream, FrameKind::HelloReply, &HelloReply::Refused { reason })).await.is_ok() {
        read_out(stream).await;
    }
    Err(error)
}

/// Unread bytes at close would reset the connection before the peer has read why.
async fn read_out(stream: &mut TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = [0; HELLO_LEN_MAX as usize];
    let _ = tokio::time::timeout(REASON_READ, stream.read(&mut rest)).await;
}

async fn welcome(core: &Core, stream: &mut TcpStream) -> Result<Accepted, HandshakeError> {
    let (config, secret) = (&core.config, &core.secret);
    let hello: Hello = match receive(stream).await? {
        (FrameKind::Hello, body) => wire::frame::decode(&body)?,
        (kind, _) => return Err(HandshakeError::Unexpected(kind)),
    };
    let own = nonce()?;
    let exchange = exchange(core, stream, false, [hello.nonce, own])?;
    let proof = exchange.proof(secret, Side::Accepting, &[]);
    send(stream, FrameKind::Challenge, &Challenge { nonce: own, proof }).await?;
    let proven: Proven = match receive(stream).await {
        Ok((FrameKind::Introduction, body)) => wire::frame::decode(&body)?,
        Ok((kind, _)) => return Err(HandshakeError::Unexpected(kind)),
        Err(HandshakeError::Io(_)) => return Err(HandshakeError::Left),
        Err(other) => return Err(other),
    };
    let said = proven.open(&exchange, secret, Side::Connecting);
    let introduction: Introduction = wire::frame::decode(said.ok_or(HandshakeError::Stranger("it"))?)?;
    let verdict = judge(&introduction);
    let welcome = match &verdict {
        Ok(()) => Welcome::Accepted {
            node: config.node,
            process: core.process,
            role: config.role,
            conns_max: core.conns_max(),
            window: config.window,
            capabilities: 0,
            addresses: core.advertised().iter().map(SocketAddr::to_string).collect(),
        },
        Err(reason) => Welcome::Refused { reason: reason.clone() },
    };
    let proven = Proven::seal(&exchange, secret, Side::Answering, wire::frame::encode(&welcome));
    send(stream, FrameKind::HelloReply, &HelloReply::Known(proven)).await?;
    verdict.map_err(HandshakeError::Refusing)?;
    let Introduction { node, process, role, session, lane, conns_max, window, software, .. } = introduction;
    Ok(Accepted {
        peer: Identity { node, process, role, session, software },
        lane,
        conns_max,
        window,
        addresses: Vec::new(),
        path: None,
    })
}

/// Whether a member of the cluster may come in. The reason names what does not fit.
fn judge(introduction: &Introduction) -> Result<(), String> {
    if !(1..=16).contains(&introduction.conns_max) {
        return Err(format!("conns_max {} is not within 1 to 16", introduction.conns_max));
    }
    if introduction.window.requests == 0 {
        return Err("a window of 0 requests".to_owned());
    }
    Ok(())
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, HandshakeError> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(HandshakeError::Timeout(limit)))
}

async fn send<T: serde::Serialize>(
    stream: &mut TcpStream,
    kind: FrameKind,
    message: &T,
) -> Result<(), HandshakeError> {
    let body = wire::frame::encode(message);
    let header = Header { kind, body_len: body.len() as u32, body_crc: crc32c(&body), ..Header::default() };
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(&body);
    Ok(stream.write_all(&bytes).await?)
}

async fn receive(stream: &mut TcpStream) -> Result<(FrameKind, Bytes), HandshakeError> {
    let mut bytes = [0; HEADER_LEN];
    stream.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes)?;
    for (field, len) in [("body_len", header.body_len), ("payload_len", header.payload_len)] {
        let max = if field == "body_len" { HELLO_LEN_MAX } else { 0 };
        if len > max {
            return Err(FrameError::TooLong { field, len, max }.into());
        }
    }
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await?;
    if crc32c(&body) != header.body_crc {
        return Err(FrameError::BodyCrc.into());
    }
    Ok((header.kind, body.into()))
}
