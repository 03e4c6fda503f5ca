//! The handshake: TLS proves who is at the other end (`tls.rs`), then both sides say what they are, which must be what their
//! certificates say. Before that nothing is believed, nothing is told but our own certificate, and nothing larger than a
//! handshake is read. Once a connection; what it costs later is the sealing. Both sides log a refusal with its reason.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{CipherList, MemberId, NodeId, SessionId};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
};
use trust::{Fingerprint, Member, Visitor};
use wire::{
    crc::crc32c,
    frame::{FrameError, FrameKind, HEADER_LEN, Header},
    hello::{AUTHONLY, Introduction, Lane, Meeting, Role, SHARED, Seen, Welcome, Window},
    version::Build,
};

use crate::{
    broken::Process,
    config::Transport,
    connections::{
        handshake_error::HandshakeError,
        meeting::{self, Place},
        parting,
        shared::Shared,
        socket::{Protection, Socket},
        tls::{self, Shaken, Shown},
    },
    core::Core,
    links::choose::Path,
    names,
};

/// Longest body of a message of the handshake.
const BODY_MAX: u32 = 4096;
/// How long a refused peer has to read why.
const REASON_READ: Duration = Duration::from_secs(1);
/// Most addresses taken from a peer.
const ADDRESSES_MAX: usize = 64;

const REVOKED: &str = "its machine's certificate has been revoked; to be a member again the machine joins with a new token (`ropewalk node token`, \
     `ropewalk join`)";

/// Who the handshake has proven to be at the other end.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub node: NodeId,
    pub process: u64,
    pub role: Role,
    /// What it says that people call it.
    pub name: Arc<str>,
    /// As which member it has proven that: no two processes are one that are different ones.
    pub member: MemberId,
    /// By what it has proven that.
    pub shown: Arc<Shown>,
    pub session: SessionId,
    pub build: Build,
}

impl Identity {
    /// Which process it is.
    pub(crate) fn process(&self) -> Process {
        Process { member: self.member, node: self.node, number: self.process }
    }
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
    /// The endpoint's choice of protection for which it was made.
    pub choice: u64,
    /// The endpoint's choice of what it goes by, for which it was made.
    pub transport: Transport,
    /// The authority of the certificate that this side has shown.
    pub own: Fingerprint,
}

/// The connecting side.
pub(crate) async fn connect(
    core: &Core,
    stream: TcpStream,
    lane: Lane,
    limit: Duration,
) -> Result<(Socket, Accepted), HandshakeError> {
    within(limit, introduce(core, stream, lane)).await
}

async fn introduce(core: &Core, stream: TcpStream, lane: Lane) -> Result<(Socket, Accepted), HandshakeError> {
    let config = &core.config;
    let ((list, choice), transport) = (core.cipher_list(), core.transport());
    let identity = core.identity();
    let (socket, shown) = tls::connect(&identity, stream, lane).await?;
    if socket.spoken().is_none() {
        return Err(parting::part(&socket, config.build.protocols, &parting::own_name(core)).await);
    }
    let (own, other) = (socket.as_ref().local_addr()?, socket.as_ref().peer_addr()?);
    let shares = lane == Lane::Bulk && core.may_share(own.ip(), other.ip());
    let seen = seen(core, own, other);
    let introduction = Introduction {
        node: config.node,
        process: core.process,
        role: config.role,
        session: core.session(),
        lane,
        conns_max: core.conns_max(),
        window: config.window,
        capabilities: if bears(list, Protection::AuthOnly) { AUTHONLY } else { 0 }
            | if shares { SHARED } else { 0 },
        build: config.build,
        clear: bears(list, Protection::Empty).then(|| seen.clone()),
        name: parting::own_name(core),
    };
    send(&socket, FrameKind::Introduction, &introduction).await?;
    let welcome = match receive(&socket).await? {
        (FrameKind::Welcome, body) => wire::frame::decode(&body)?,
        (kind, _) => return Err(HandshakeError::Unexpected(kind)),
    };
    match welcome {
        Welcome::Refused { reason } => Err(HandshakeError::Refused(reason)),
        Welcome::Accepted {
            node,
            process,
            role,
            conns_max,
            window,
            capabilities,
            build,
            addresses,
            clear,
            name,
        } => {
            is_its(core, &shown.member, role, node).map_err(HandshakeError::Refusing)?;
            let protection = match (clear, capabilities & AUTHONLY) {
                (true, _) => Protection::Empty,
                (false, 0) => Protection::Encrypted,
                (false, _) => Protection::AuthOnly,
            };
            if !bears(list, protection) {
                let reason = format!("it wants {protection:?}, and our cipherList is {list}");
                return Err(HandshakeError::Refusing(reason));
            }
            let shared = if shares && capabilities & SHARED != 0 {
                let process = Process { member: shown.member.id, node, number: process };
                bring_memory(core, &socket, process, &seen).await?
            } else {
                None
            };
            let addresses = addresses.iter().take(ADDRESSES_MAX).filter_map(|a| a.parse().ok()).collect();
            let session = SessionId(0);
            let (member, shown, name) = (shown.member.id, Arc::new(shown), names::shown(&name).into());
            let peer = Identity { node, process, role, name, member, shown, session, build };
            let accepted = Accepted {
                peer,
                lane,
                conns_max,
                window,
                addresses,
                path: None,
                choice,
                transport,
                own: identity.signer(),
            };
            Ok((socket.settle(protection, lane).share(shared), accepted))
        }
    }
}

/// The connecting side: memory of both, where that can be.
async fn bring_memory(
    core: &Core,
    socket: &Socket,
    process: Process,
    seen: &Seen,
) -> Result<Option<Shared>, HandshakeError> {
    let meeting: Meeting = answer(socket, FrameKind::Welcome).await?;
    let is_direct = meeting.seen == *seen || core.transport() == Transport::Shm;
    let joined = match core.share_with(process).filter(|_| is_direct) {
        Some(share) => meeting::join(&meeting, share).await,
        None => Err(std::io::Error::other("a relay lies between, or memory was no good, or it is all taken")),
    };
    send(socket, FrameKind::Introduction, &joined.is_ok()).await?;
    match joined {
        Ok(shared) if answer(socket, FrameKind::Welcome).await? => Ok(Some(shared)),
        Ok(_) => Ok(None),
        Err(error) => {
            tracing::debug!("by TCP, no memory of both: {error}");
            Ok(None)
        }
    }
}

/// The accepting side.
async fn receive_memory(
    socket: &Socket,
    (place, meeting): (Place, Meeting),
    share: OwnedSemaphorePermit,
) -> Result<Option<Shared>, HandshakeError> {
    send(socket, FrameKind::Welcome, &meeting).await?;
    if !answer::<bool>(socket, FrameKind::Introduction).await? {
        return Ok(None);
    }
    let shared = place.receive(share).await;
    send(socket, FrameKind::Welcome, &shared.is_ok()).await?;
    Ok(shared.inspect_err(|error| tracing::debug!("by TCP, no memory of both: {error}")).ok())
}

/// What the other side says next, in a frame of this kind.
async fn answer<T: serde::de::DeserializeOwned>(
    socket: &Socket,
    wanted: FrameKind,
) -> Result<T, HandshakeError> {
    match receive(socket).await? {
        (kind, body) if kind == wanted => Ok(wire::frame::decode(&body)?),
        (kind, _) => Err(HandshakeError::Unexpected(kind)),
    }
}

/// Who has connected.
#[expect(clippy::large_enum_variant, reason = "one for each connection, taken apart at once")]
pub(crate) enum Came {
    Member(Socket, Accepted),
    /// Who has no certificate, and what it says.
    Visitor(Socket, Bytes),
}

/// The accepting side.
pub(crate) async fn accept(core: &Core, mut stream: TcpStream) -> Result<Came, HandshakeError> {
    let (limit, began) = (core.config.connect_timeout, Instant::now());
    let (chosen, identity) = (core.cipher_list(), core.identity());
    let (socket, shown) = match within(limit, tls::accept(&identity, &mut stream, core.config.visitors)).await
    {
        Ok(Shaken { records, spoken, cipher, shown }) => {
            (Socket::sealed(stream, records, spoken, cipher), shown)
        }
        Err(error) => {
            if let HandshakeError::Frame(FrameError::Version { .. }) = &error {
                // Its version does not know ours, and reads the number in a header.
                let header = Header { kind: FrameKind::Welcome, ..Header::default() };
                let _ = within(limit, async { Ok(stream.write_all(&header.encode()).await?) }).await;
            }
            read_out(&mut stream).await;
            return Err(error);
        }
    };
    let left = limit.saturating_sub(began.elapsed()).max(Duration::from_millis(100));
    if socket.spoken().is_none() {
        let name = parting::own_name(core);
        let parting = async { Err(parting::part(&socket, core.config.build.protocols, &name).await) };
        return within(left, parting).await;
    }
    let Some(shown) = shown else {
        let (FrameKind::Introduction, said) = within(left, receive(&socket)).await? else {
            return Err(HandshakeError::Stranger);
        };
        return Ok(Came::Visitor(socket, said));
    };
    match within(left, welcome(core, &socket, shown, chosen, identity.signer())).await {
        Ok((accepted, protection, shared)) => {
            Ok(Came::Member(socket.settle(protection, accepted.lane).share(shared), accepted))
        }
        Err(error) => {
            // It was told.
            let _ = tokio::time::timeout(REASON_READ, socket.read_exact(&mut [0])).await;
            Err(error)
        }
    }
}

/// What a visitor is told; it reads that and goes.
pub(crate) async fn answer_visitor(
    core: &Core,
    socket: &Socket,
    answer: &[u8],
) -> Result<(), HandshakeError> {
    let told = async {
        send_bytes(socket, FrameKind::Welcome, answer).await?;
        let _ = socket.read_exact(&mut [0]).await;
        Ok(())
    };
    within(core.config.connect_timeout, told).await
}

/// Says something to a manager without a certificate, and hears what it answers.
pub(crate) async fn visit(
    visitor: &Visitor,
    stream: TcpStream,
    said: &[u8],
    limit: Duration,
) -> Result<Bytes, HandshakeError> {
    within(limit, async {
        let socket = tls::visit(visitor, stream).await?;
        if socket.spoken().is_none() {
            return Err(parting::part(&socket, Build::own().protocols, "a machine that wants to join").await);
        }
        send_bytes(&socket, FrameKind::Introduction, said).await?;
        match receive(&socket).await? {
            (FrameKind::Welcome, answer) => Ok(answer),
            (kind, _) => Err(HandshakeError::Unexpected(kind)),
        }
    })
    .await
}

/// Unread bytes at close would reset the connection before the peer has read why.
async fn read_out(stream: &mut TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = [0; BODY_MAX as usize];
    let _ = tokio::time::timeout(REASON_READ, async {
        while stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
    })
    .await;
}

async fn welcome(
    core: &Core,
    socket: &Socket,
    shown: Shown,
    (list, choice): (CipherList, u64),
    own: Fingerprint,
) -> Result<(Accepted, Protection, Option<Shared>), HandshakeError> {
    let (config, transport) = (&core.config, core.transport());
    let introduction: Introduction = answer(socket, FrameKind::Introduction).await?;
    let verdict =
        judge(&introduction).and_then(|()| is_its(core, &shown.member, introduction.role, introduction.node));
    let (from, to) = (socket.as_ref().peer_addr()?, socket.as_ref().local_addr()?);
    let shares = introduction.capabilities & SHARED != 0
        && introduction.lane == Lane::Bulk
        && verdict.is_ok()
        && core.may_share(to.ip(), from.ip());
    let process = Process { member: shown.member.id, node: introduction.node, number: introduction.process };
    let share = if shares { core.share_with(process) } else { None };
    let seen = seen(core, from, to);
    let meeting = share.and_then(|share| Some((Place::open(seen.clone()).ok()?, share)));
    let protection = agreed(list, &introduction, &seen);
    let welcome = match &verdict {
        Ok(()) => Welcome::Accepted {
            node: config.node,
            process: core.process,
            role: config.role,
            conns_max: core.conns_max(),
            window: config.window,
            capabilities: if protection == Protection::AuthOnly { AUTHONLY } else { 0 }
                | if meeting.is_some() { SHARED } else { 0 },
            build: config.build,
            addresses: core.advertised().iter().map(SocketAddr::to_string).collect(),
            clear: protection == Protection::Empty,
            name: parting::own_name(core),
        },
        Err(reason) => Welcome::Refused { reason: reason.clone() },
    };
    send(socket, FrameKind::Welcome, &welcome).await?;
    let Introduction { node, process, role, session, lane, conns_max, window, build, name, .. } =
        introduction;
    let name = names::shown(&name);
    verdict
        .map_err(|reason| HandshakeError::Refusing(format!("{}: {reason}", core.names.of(node, &name))))?;
    let (member, shown, name) = (shown.member.id, Arc::new(shown), name.into());
    let peer = Identity { node, process, role, name, member, shown, session, build };
    let shared = match meeting {
        Some((place, share)) => receive_memory(socket, place, share).await?,
        None => None,
    };
    let addresses = Vec::new();
    let accepted = Accepted { peer, lane, conns_max, window, addresses, path: None, choice, transport, own };
    Ok((accepted, protection, shared))
}

/// Whether a side with this list lets a connection be protected so.
fn bears(list: CipherList, protection: Protection) -> bool {
    match protection {
        Protection::Encrypted => true,
        Protection::AuthOnly => matches!(list, CipherList::AuthOnly | CipherList::Empty),
        Protection::Empty => list == CipherList::Empty,
    }
}

/// The stricter of what both sides want. Where neither wants any protection and a relay lies between, it is all there is.
fn agreed(list: CipherList, introduction: &Introduction, seen: &Seen) -> Protection {
    let theirs = match (&introduction.clear, introduction.capabilities & AUTHONLY) {
        (Some(_), _) => CipherList::Empty,
        (None, 0) => CipherList::Default,
        (None, _) => CipherList::AuthOnly,
    };
    let both = |protection| bears(list, protection) && bears(theirs, protection);
    if both(Protection::Empty) {
        let is_direct = introduction.clear.as_ref() == Some(seen);
        return if is_direct { Protection::Empty } else { Protection::Encrypted };
    }
    if both(Protection::AuthOnly) { Protection::AuthOnly } else { Protection::Encrypted }
}

/// A connection as both ends see it, whatever socket they have.
fn seen(core: &Core, from: SocketAddr, to: SocketAddr) -> Seen {
    let [from, to] = [from, to].map(|of| SocketAddr::new(of.ip().to_canonical(), of.port()));
    let local = from.ip().is_loopback() || to.ip().is_loopback();
    Seen { from, to, place: if local { core.place.clone() } else { String::new() } }
}

/// Whether the other side's certificate holds, and allows what it says it is.
fn is_its(core: &Core, member: &Member, role: Role, node: NodeId) -> Result<(), String> {
    if core.is_shut_out(member.id) {
        return Err(REVOKED.to_owned());
    }
    if member.speaks_as(core.config.cluster, role, node) {
        return Ok(());
    }
    Err(format!(
        "its certificate is for {} ({member}), and it says that it is {role:?} on {node}",
        member.roles
    ))
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
    socket: &Socket,
    kind: FrameKind,
    message: &T,
) -> Result<(), HandshakeError> {
    send_bytes(socket, kind, &wire::frame::encode(message)).await
}

async fn send_bytes(socket: &Socket, kind: FrameKind, body: &[u8]) -> Result<(), HandshakeError> {
    let header = Header {
        version: socket.version(),
        kind,
        body_len: body.len() as u32,
        body_crc: crc32c(body),
        ..Header::default()
    };
    Ok(socket.write_all(&[&header.encode()[..], body].concat()).await?)
}

async fn receive(socket: &Socket) -> Result<(FrameKind, Bytes), HandshakeError> {
    let mut bytes = [0; HEADER_LEN];
    socket.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes, socket.version())?;
    for (field, len) in [("body_len", header.body_len), ("payload_len", header.payload_len)] {
        let max = if field == "body_len" { BODY_MAX } else { 0 };
        if len > max {
            return Err(FrameError::TooLong { field, len, max }.into());
        }
    }
    let mut body = vec![0; header.body_len as usize];
    socket.read_exact(&mut body).await?;
    if crc32c(&body) != header.body_crc {
        return Err(FrameError::BodyCrc.into());
    }
    Ok((header.kind, body.into()))
}
