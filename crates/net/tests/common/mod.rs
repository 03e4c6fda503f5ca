//! What the transport tests share: a server with a lab service, a client, raw frames.
#![allow(dead_code, clippy::print_stdout)] // each test file uses its part

use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{CipherList, ClusterId, NodeId};
use net::{
    Call, Endpoint, EndpointConfig, Handler, Identity, Lane, Payload, Response, Secret, Service, Status,
    handler_fn,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use wire::{
    crc::crc32c,
    frame::{FrameKind, HEADER_LEN, Header, PROTOCOL_VERSION},
    hello::{Introduction, Role, Seen, Welcome, Window},
    version::Build,
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
pub const SOON: Duration = Duration::from_secs(90);

pub fn secret() -> Secret {
    Secret::new([7; 32])
}

/// Of this process.
pub fn identity() -> Identity {
    static OWN: std::sync::OnceLock<Identity> = std::sync::OnceLock::new();
    OWN.get_or_init(another_identity).clone()
}

/// As another process would have it.
pub fn another_identity() -> Identity {
    Identity::from_secret(CLUSTER, &secret()).unwrap()
}

/// Its connections are encrypted. A machine that stands still for a while ends nothing: who wants that says so.
pub fn config(node: u32) -> EndpointConfig {
    EndpointConfig {
        cluster: CLUSTER,
        identity: Some(identity()),
        node: NodeId(node),
        patience_default: SOON,
        connect_timeout: SOON,
        heartbeat_timeout: SOON,
        ..EndpointConfig::default()
    }
}

/// The seed of a test that draws: always the same, `ROPEWALK_TEST_SEED=N`, or another one each time (`ROPEWALK_TEST_SEED=random`, a soak).
pub fn seed() -> u64 {
    let given = std::env::var("ROPEWALK_TEST_SEED").ok();
    let draws =
        given.as_deref() == Some("random") || given.is_none() && std::env::var_os("ROPEWALK_SOAK").is_some();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let drawn = draws.then(|| now.map_or(1, |time| time.as_nanos() as u64));
    let seed = drawn.or_else(|| given?.parse().ok()).unwrap_or(7);
    println!("ROPEWALK_TEST_SEED={seed} repeats it");
    seed
}

/// Wants its connections in the clear: raw frames of tests, for instance.
pub fn plain(node: u32) -> EndpointConfig {
    EndpointConfig { cipher_list: CipherList::Empty, ..config(node) }
}

/// To whom it wants it connections are in the clear: raw frames of tests, for instance.
pub fn listening(node: u32) -> EndpointConfig {
    EndpointConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..plain(node) }
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

/// The first bytes of a handshake.
pub fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    Tls::connecting(&identity()).0.write_tls(&mut bytes).unwrap();
    bytes
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
        build: Build::own(),
        clear: None,
        name: String::new(),
    }
}

/// Where loopback addresses mean the same.
pub fn place() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    format!("{} {}", boot.trim(), std::fs::read_link("/proc/self/ns/net").unwrap().display())
}

/// A frame of the handshake.
pub fn step<T: serde::Serialize>(kind: FrameKind, message: &T) -> Vec<u8> {
    frame(Header { kind, ..Header::default() }, &wire::frame::encode(message), &[])
}

/// One end of a connection with the TLS of another implementation (rustls' own records).
pub struct Tls(rustls::Connection);

impl Tls {
    pub fn connecting(identity: &Identity) -> Tls {
        let name = "ropewalk".try_into().unwrap();
        Tls(rustls::ClientConnection::new(identity.client_config(), name).unwrap().into())
    }

    pub fn accepting(identity: &Identity) -> Tls {
        Tls(rustls::ServerConnection::new(identity.server_config()).unwrap().into())
    }

    /// A connecting end with a configuration of the test's own.
    pub fn with(config: Arc<rustls::ClientConfig>) -> Tls {
        Tls(rustls::ClientConnection::new(config, "ropewalk".try_into().unwrap()).unwrap().into())
    }

    /// The same of an accepting end.
    pub fn serving(config: Arc<rustls::ServerConfig>) -> Tls {
        Tls(rustls::ServerConnection::new(config).unwrap().into())
    }

    /// Up to the end of the handshake of this side.
    pub async fn shake(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        loop {
            self.send_records(stream).await?;
            if !self.0.is_handshaking() {
                return Ok(());
            }
            if let Err(error) = self.read_record(stream).await {
                let _ = self.send_records(stream).await;
                return Err(error);
            }
        }
    }

    async fn send_records(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        while self.0.wants_write() {
            self.0.write_tls(&mut bytes)?;
        }
        stream.write_all(&bytes).await
    }

    /// One record, not a byte beyond.
    async fn read_record(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut record = vec![0; 5];
        stream.read_exact(&mut record).await?;
        record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
        stream.read_exact(&mut record[5..]).await?;
        let mut rest = &record[..];
        while !rest.is_empty() {
            self.0.read_tls(&mut rest)?; // not all of a large one at once
            self.0.process_new_packets().map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    pub async fn send(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        for part in bytes.chunks(10_000) {
            self.0.writer().write_all(part)?;
            self.send_records(stream).await?;
        }
        Ok(())
    }

    pub async fn receive(&mut self, stream: &mut TcpStream, len: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.0.reader().read(&mut bytes[done..]) {
                Ok(n) if n > 0 => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.read_record(stream).await?,
                Ok(_) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Err(e) => return Err(e),
            }
        }
        Ok(bytes)
    }

    pub async fn receive_frame(
        &mut self,
        stream: &mut TcpStream,
    ) -> std::io::Result<(Header, Vec<u8>, Vec<u8>)> {
        let head = self.receive(stream, HEADER_LEN).await?;
        let header =
            Header::decode(head[..].try_into().unwrap(), PROTOCOL_VERSION).map_err(std::io::Error::other)?;
        let body = self.receive(stream, header.body_len as usize).await?;
        let payload = self.receive(stream, header.payload_len as usize).await?;
        Ok((header, body, payload))
    }

    /// The next keys for what is sent, and the other side is asked for the same.
    pub fn renew_keys(&mut self) {
        self.0.refresh_traffic_keys().unwrap();
    }
}

/// The handshake of the connecting side up to its introduction, which is not sent.
pub async fn before_introduction(identity: &Identity, stream: &mut TcpStream) -> std::io::Result<Tls> {
    let mut tls = Tls::connecting(identity);
    tls.shake(stream).await?;
    Ok(tls)
}

/// The whole handshake of the connecting side; what follows is in the clear if `clear`, and the server wants it, too.
pub async fn introduced_as(
    identity: &Identity,
    stream: &mut TcpStream,
    lane: Lane,
    process: u64,
    clear: bool,
) -> std::io::Result<Tls> {
    let mut tls = before_introduction(identity, stream).await?;
    let seen = clear.then(|| Seen {
        from: stream.local_addr().unwrap(),
        to: stream.peer_addr().unwrap(),
        place: place(),
    });
    let introduction = Introduction { clear: seen, ..introduction(lane, process) };
    tls.send(stream, &step(FrameKind::Introduction, &introduction)).await?;
    let (header, body, _) = tls.receive_frame(stream).await?;
    assert_eq!(header.kind, FrameKind::Welcome);
    let welcome = wire::frame::decode(&body).unwrap();
    assert!(matches!(welcome, Welcome::Accepted { clear: c, .. } if c == clear), "{welcome:?}");
    Ok(tls)
}

/// The same as this process.
pub async fn introduced(
    stream: &mut TcpStream,
    lane: Lane,
    process: u64,
    clear: bool,
) -> std::io::Result<Tls> {
    introduced_as(&identity(), stream, lane, process, clear).await
}

/// The same; everything after it is in the clear.
pub async fn shake_hands(stream: &mut TcpStream, lane: Lane, process: u64) -> std::io::Result<()> {
    introduced(stream, lane, process, true).await.map(drop)
}

/// The whole handshake of the accepting side; everything after it is in the clear.
pub async fn greet(stream: &mut TcpStream, process: u64) -> std::io::Result<Introduction> {
    let mut tls = Tls::accepting(&identity());
    tls.shake(stream).await?;
    let (_, body, _) = tls.receive_frame(stream).await?;
    let welcome = Welcome::Accepted {
        node: NodeId(1),
        process,
        role: Role::Lab,
        conns_max: 2,
        window: Window { requests: 64, bytes: 64 << 20 },
        capabilities: 0,
        build: Build::own(),
        addresses: vec![],
        clear: true,
        name: String::new(),
    };
    tls.send(stream, &step(FrameKind::Welcome, &welcome)).await?;
    wire::frame::decode(&body).map_err(std::io::Error::other)
}

pub fn request(id: u64) -> Header {
    Header { service: Service::Lab, op: ECHO, request_id: id, deadline_us: 120_000_000, ..Header::default() }
}

/// Reads one frame from a raw socket.
pub async fn read_frame(stream: &mut TcpStream) -> std::io::Result<(Header, Vec<u8>, Vec<u8>)> {
    let mut bytes = [0; HEADER_LEN];
    stream.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes, PROTOCOL_VERSION).map_err(std::io::Error::other)?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await?;
    let mut payload = vec![0; header.payload_len as usize];
    stream.read_exact(&mut payload).await?;
    Ok((header, body, payload))
}

/// Believes every server.
#[derive(Debug)]
struct Anybody(Arc<rustls::crypto::CryptoProvider>);
impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The configuration of a connecting end that shows no certificate.
pub fn nobody() -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut nobody = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    nobody.alpn_protocols = identity().client_config().alpn_protocols.clone();
    Arc::new(nobody)
}
