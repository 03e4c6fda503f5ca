//! The handshake: `Hello` from the side that connects, `HelloReply` from the other. Both log a refusal
//! with its reason. Before it is done nothing is believed and nothing larger than a hello is read.

use std::{net::SocketAddr, time::Duration};

use base::ClusterId;
use bytes::Bytes;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use wire::{
    crc::crc32c,
    frame::{FrameError, FrameKind, HEADER_LEN, Header},
    hello::{Hello, HelloReply, Lane},
};

use crate::{
    conn::{Accepted, Identity},
    endpoint::Core,
};

/// Longest body of a hello or its reply.
const HELLO_LEN_MAX: u32 = 4096;
/// How long a refused peer has to read why.
const REASON_READ: Duration = Duration::from_secs(1);
/// Most addresses taken from a peer.
const ADDRESSES_MAX: usize = 64;

#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("no handshake within {0:?}")]
    Timeout(Duration),
    #[error("the first frame is {0:?}, not a hello")]
    NotHello(FrameKind),
    /// The other side refuses us.
    #[error("refused: {0}")]
    Refused(String),
    /// We refuse the other side.
    #[error("refusing it: {0}")]
    Refusing(String),
}

/// The connecting side.
pub(crate) async fn connect(
    core: &Core,
    stream: &mut TcpStream,
    lane: Lane,
    limit: Duration,
) -> Result<Accepted, HandshakeError> {
    let config = &core.config;
    let hello = Hello {
        cluster: config.cluster,
        node: config.node,
        process: core.process,
        session: core.session(),
        lane,
        conns_max: core.conns_max(),
        window: config.window,
        capabilities: 0,
        software: config.software.clone(),
    };
    let exchange = async {
        send(stream, FrameKind::Hello, &hello).await?;
        let (kind, body) = receive(stream).await?;
        if kind != FrameKind::HelloReply {
            return Err(HandshakeError::NotHello(kind));
        }
        Ok(wire::frame::decode::<HelloReply>(&body)?)
    };
    match within(limit, exchange).await? {
        HelloReply::Refused { reason } => Err(HandshakeError::Refused(reason)),
        HelloReply::Accepted { node, process, conns_max, window, capabilities: _, addresses } => {
            let addresses = addresses.iter().take(ADDRESSES_MAX).filter_map(|a| a.parse().ok()).collect();
            Ok(Accepted {
                peer: Identity { node, process, session: base::SessionId(0), software: String::new() },
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
    let config = &core.config;
    let first = within(config.connect_timeout, async {
        let (kind, body) = receive(stream).await?;
        if kind != FrameKind::Hello {
            return Err(HandshakeError::NotHello(kind));
        }
        Ok(wire::frame::decode::<Hello>(&body)?)
    });
    let verdict = match first.await {
        Ok(hello) => judge(&hello, config.cluster).map(|()| hello),
        Err(HandshakeError::Frame(e @ FrameError::Version { .. })) => {
            // The connecting side is told, in our version's words; it sees at least our number.
            Err(format!("{e}; install the same version of ropewalk on both nodes"))
        }
        Err(e) => return Err(e),
    };
    let answer = match &verdict {
        Ok(_) => HelloReply::Accepted {
            node: config.node,
            process: core.process,
            conns_max: core.conns_max(),
            window: config.window,
            capabilities: 0,
            addresses: core.advertised().iter().map(SocketAddr::to_string).collect(),
        },
        Err(reason) => HelloReply::Refused { reason: reason.clone() },
    };
    within(config.connect_timeout, send(stream, FrameKind::HelloReply, &answer)).await?;
    let hello = match verdict {
        Ok(hello) => hello,
        Err(reason) => {
            // Unread bytes at close would reset the connection before the peer has read the reason.
            let _ = stream.shutdown().await;
            let mut rest = [0; HELLO_LEN_MAX as usize];
            let _ = tokio::time::timeout(REASON_READ, stream.read(&mut rest)).await;
            return Err(HandshakeError::Refusing(reason));
        }
    };
    Ok(Accepted {
        peer: Identity {
            node: hello.node,
            process: hello.process,
            session: hello.session,
            software: hello.software,
        },
        lane: hello.lane,
        conns_max: hello.conns_max,
        window: hello.window,
        addresses: Vec::new(),
        path: None,
    })
}

/// Whether a peer may come in. The reason names what does not match and the remedy.
fn judge(hello: &Hello, ours: ClusterId) -> Result<(), String> {
    if hello.cluster != ours {
        return Err(format!(
            "you belong to cluster {}, this is a node of cluster {ours}; check the address, or join the node \
             to this cluster",
            hello.cluster
        ));
    }
    if !(1..=16).contains(&hello.conns_max) {
        return Err(format!("conns_max {} is not within 1 to 16", hello.conns_max));
    }
    if hello.window.requests == 0 {
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
