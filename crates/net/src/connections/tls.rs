//! The TLS 1.3 handshake over a socket. No byte beyond it is read: what follows is `records.rs`' business.

use std::sync::OnceLock;

use base::CipherList;
use rustls::{
    Error, SupportedCipherSuite,
    client::{ClientConnectionData, UnbufferedClientConnection},
    pki_types::CertificateDer,
    server::{ServerConnectionData, UnbufferedServerConnection},
    unbuffered::{ConnectionState, EncodeError, UnbufferedStatus},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use trust::{Fingerprint, Identity, Member, Spoken, Visitor};
use wire::{
    frame::{FrameError, HEADER_LEN, Header, PROTOCOL_VERSION},
    hello::Lane,
};

use crate::connections::{
    handshake_error::HandshakeError,
    records::{HEAD, Keys, Records, record_len},
    socket::Socket,
};

/// Most bytes of a handshake that are kept: some certificates.
const HELD_MAX: usize = 64 << 10;

/// Kinds of records (RFC 8446 section 5.1).
const ALERT: u8 = 21;
const SEALED: u8 = 23;
/// Level, description, the kind, and the tag.
const SEALED_ALERT_LEN: usize = 2 + 1 + 16;

/// What the other end has shown: a certificate that was found good.
#[derive(Debug)]
pub(crate) struct Shown {
    /// What it says.
    pub member: Member,
    certificate: CertificateDer<'static>,
    /// Found once.
    signer: OnceLock<Fingerprint>,
}

impl Shown {
    /// The authority that has signed it, of those that `own` believes.
    pub(crate) fn signer(&self, own: &Identity) -> Option<Fingerprint> {
        let known = self.signer.get().copied().or_else(|| own.signer_of(&self.certificate));
        let known = known.filter(|signer| own.believed().contains(signer))?;
        Some(*self.signer.get_or_init(|| known))
    }
}

/// Either end of a handshake.
trait End {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}
impl End for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}
impl End for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

/// The connecting side: a socket whose other end is a member, and which one.
pub(crate) async fn connect(
    identity: &Identity,
    mut stream: TcpStream,
    lane: Lane,
) -> Result<(Socket, Shown), HandshakeError> {
    let mut end = identity.connect()?;
    drive(&mut end, &mut stream).await?;
    let shown = shown(end.peer_certificates())?;
    let spoken = spoken(end.alpn_protocol())?;
    let cipher = cipher(end.negotiated_cipher_suite());
    let (secrets, keys) = end.dangerous_into_kernel_connection()?;
    let records = Records::new(secrets, Keys::Connecting(keys))?;
    let mut socket = Socket::sealed(stream, records, spoken, cipher);
    socket.serve(lane);
    Ok((socket, shown))
}

/// The connecting side that has no certificate.
pub(crate) async fn visit(visitor: &Visitor, mut stream: TcpStream) -> Result<Socket, HandshakeError> {
    let mut end = visitor.connect()?;
    drive(&mut end, &mut stream).await?;
    let spoken = spoken(end.alpn_protocol())?;
    let cipher = cipher(end.negotiated_cipher_suite());
    let (secrets, keys) = end.dangerous_into_kernel_connection()?;
    Ok(Socket::sealed(stream, Records::new(secrets, Keys::Connecting(keys))?, spoken, cipher))
}

/// What an accepted handshake has led to.
pub(crate) struct Shaken {
    pub records: Records,
    pub spoken: Spoken,
    pub cipher: Option<CipherList>,
    /// Who is at the other end; nobody: it is a visitor.
    pub shown: Option<Shown>,
}

/// The accepting side. What refuses the other end has said so to it.
pub(crate) async fn accept(
    identity: &Identity,
    stream: &mut TcpStream,
    visitors: bool,
) -> Result<Shaken, HandshakeError> {
    let mut end = identity.accept(visitors)?;
    drive(&mut end, stream).await?;
    let certificates = end.peer_certificates();
    let shown = certificates.map(|all| shown(Some(all))).transpose()?;
    let spoken = spoken(end.alpn_protocol())?;
    let cipher = cipher(end.negotiated_cipher_suite());
    let (secrets, keys) = end.dangerous_into_kernel_connection()?;
    Ok(Shaken { records: Records::new(secrets, Keys::Accepting(keys))?, spoken, cipher, shown })
}

fn cipher(suite: Option<SupportedCipherSuite>) -> Option<CipherList> {
    trust::cipher_of(suite.map(|suite| suite.suite()))
}

fn spoken(agreed: Option<&[u8]>) -> Result<Spoken, HandshakeError> {
    Spoken::of(agreed).ok_or(HandshakeError::OtherVersion)
}

/// What the certificate at the other end says.
fn shown(certificates: Option<&[CertificateDer<'_>]>) -> Result<Shown, HandshakeError> {
    let certificate = certificates.and_then(<[_]>::first).ok_or(Error::NoCertificatesPresented)?;
    let member = Member::of(certificate).map_err(|error| HandshakeError::Refusing(error.to_string()))?;
    Ok(Shown { member, certificate: certificate.clone().into_owned(), signer: OnceLock::new() })
}

/// What the state machine wants next.
enum Step {
    Again,
    Send,
    Receive,
    Done,
    Failed(Error),
}

async fn drive(end: &mut impl End, stream: &mut TcpStream) -> Result<(), HandshakeError> {
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    let mut failed: Option<Error> = None;
    loop {
        let UnbufferedStatus { discard, state } = end.process(&mut incoming);
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut outgoing, |place| data.encode(place)),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Step::Send
            }
            Ok(ConnectionState::BlockedHandshake) => Step::Receive,
            Ok(ConnectionState::WriteTraffic(_)) => Step::Done,
            Ok(_) => Step::Failed(Error::General("it ended in the middle of the handshake".to_owned())),
            Err(error) => Step::Failed(error),
        };
        incoming.drain(..discard);
        // After a failure the machine is asked on for its alert to the other side, and no further: it would judge what else came,
        // and takes that for a fault of its caller.
        let ended = !matches!(step, Step::Again | Step::Send) || ends_with_alert(&outgoing);
        match (step, failed.take()) {
            (_, Some(error)) if ended => {
                let _ = stream.write_all(&outgoing).await;
                return Err(error.into());
            }
            (Step::Again, before) => failed = before,
            (Step::Send, before) => {
                stream.write_all(&outgoing).await?;
                outgoing.clear();
                failed = before;
            }
            (Step::Failed(error), _) => failed = Some(error),
            (Step::Done, _) => {
                stream.write_all(&outgoing).await?;
                return Ok(());
            }
            (Step::Receive, _) => receive(stream, &mut incoming).await?,
        }
    }
}

/// Whether the last of these records is an alert: two bytes, or as many as those take sealed, which nothing else in a handshake does.
fn ends_with_alert(mut records: &[u8]) -> bool {
    let mut is_alert = false;
    while let Some((&[kind, _, _, high, low], rest)) = records.split_first_chunk::<HEAD>() {
        let len = usize::from(u16::from_be_bytes([high, low]));
        is_alert = kind == ALERT || kind == SEALED && len == SEALED_ALERT_LEN;
        records = rest.get(len..).unwrap_or_default();
    }
    is_alert
}

fn encode(outgoing: &mut Vec<u8>, mut to: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) -> Step {
    let start = outgoing.len();
    loop {
        match to(&mut outgoing[start..]) {
            Ok(n) => {
                outgoing.truncate(start + n);
                return Step::Again;
            }
            Err(EncodeError::InsufficientSize(size)) => outgoing.resize(start + size.required_size, 0),
            Err(error) => return Step::Failed(Error::General(error.to_string())),
        }
    }
}

/// One record, and nothing beyond.
async fn receive(stream: &mut TcpStream, incoming: &mut Vec<u8>) -> Result<(), HandshakeError> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).await?;
    if head[..4] == wire::frame::MAGIC.to_le_bytes() {
        return Err(former_version(stream, &head).await);
    }
    let len = record_len(&head)?;
    let start = incoming.len() + HEAD;
    if start + len > HELD_MAX {
        return Err(Error::General("a handshake without end".to_owned()).into());
    }
    incoming.extend_from_slice(&head);
    incoming.resize(start + len, 0);
    stream.read_exact(&mut incoming[start..]).await?;
    Ok(())
}

/// Programs before TLS began with a frame, which names its version.
async fn former_version(stream: &mut TcpStream, head: &[u8; HEAD]) -> HandshakeError {
    let mut bytes = [0; HEADER_LEN];
    bytes[..HEAD].copy_from_slice(head);
    match stream.read_exact(&mut bytes[HEAD..]).await.map(|_| Header::decode(&bytes, PROTOCOL_VERSION)) {
        Ok(Err(error @ FrameError::Version { .. })) => error.into(),
        Ok(_) => Error::General("a frame where TLS begins".to_owned()).into(),
        Err(error) => error.into(),
    }
}
