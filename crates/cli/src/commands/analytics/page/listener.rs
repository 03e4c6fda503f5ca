//! Connections of browsers: so many at most, each closed when nothing has passed on it for a while. With TLS where others than
//! this machine can come; its handshake is part of the connection, so that nobody waits for another's.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};
use trust::Member;

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 64;
/// Bytes that wait in the system for who does not read them; it doubles that.
const UNREAD_MAX: u32 = 128 << 10;
/// A live page gets something every second; longer than a turn and the answers of processes that hang.
const IDLE_MAX: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 120_000 });
/// Who comes has greeted and asked by then: who only holds a place soon makes room.
const FIRST_MAX: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 10_000 });
/// What a question ends with; none that is answered has a body.
const END: &[u8] = b"\r\n\r\n";
/// After an error of the system (no descriptor left, say).
const RETRY: Duration = Duration::from_millis(200);

/// Begins to listen; who comes has so much room for what he does not read.
pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(UNREAD_MAX)?;
    socket.bind(addr)?;
    socket.listen(CONNECTIONS_MAX as u32)
}

/// Listens.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsAcceptor>,
    seats: Arc<Semaphore>,
}

impl Listener {
    /// On what is bound.
    pub fn new(tcp: TcpListener, tls: Option<TlsAcceptor>) -> Listener {
        Listener { tcp, tls, seats: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl axum::serve::Listener for Listener {
    type Io = Held;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Held, SocketAddr) {
        loop {
            let seat = Arc::clone(&self.seats).acquire_owned().await;
            match (seat, self.tcp.accept().await) {
                (Ok(seat), Ok((stream, addr))) => {
                    let idle = Box::pin(sleep(FIRST_MAX));
                    let way = match &self.tls {
                        Some(tls) => Way::Greeting(Box::new(tls.accept(stream))),
                        None => Way::Plain(stream),
                    };
                    let member = Shown::default();
                    return (Held { way, member, _seat: seat, idle, asked: 0, answered: false }, addr);
                }
                _ => sleep(RETRY).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Who is at the other end, once that is known by a certificate of the cluster.
#[derive(Clone, Default)]
pub struct Shown(pub Arc<OnceLock<Member>>);

impl Connected<IncomingStream<'_, Listener>> for Shown {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Shown {
        stream.io().member.clone()
    }
}

/// How a connection speaks.
enum Way {
    Plain(TcpStream),
    Greeting(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// Its greeting failed: it must not be asked again.
    Refused,
}

/// A connection.
pub struct Held {
    way: Way,
    member: Shown,
    _seat: OwnedSemaphorePermit,
    idle: Pin<Box<Sleep>>,
    /// How much of the end of its first question has come: all of [`END`], then its time begins anew.
    asked: usize,
    /// Something was sent since the clock was set back for what came: a request takes no longer than that from its first byte.
    answered: bool,
}

/// What reads and writes.
trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Held {
    /// The other end, when it has been greeted.
    fn stream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Stream>>> {
        if let Way::Greeting(accept) = &mut self.way {
            let greeted = ready!(Pin::new(accept.as_mut()).poll(cx));
            let stream = greeted.inspect_err(|_| self.way = Way::Refused)?;
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            if let Some(member) = certificate.and_then(|certificate| Member::of(certificate).ok()) {
                let _ = self.member.0.set(member);
            }
            self.way = Way::Tls(Box::new(stream));
        }
        match &mut self.way {
            Way::Plain(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Way::Tls(stream) => Poll::Ready(Ok(Pin::new(stream.as_mut()))),
            Way::Greeting(_) => Poll::Pending,
            Way::Refused => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        }
    }

    /// Of the first question.
    fn look_for_the_end(&mut self, read: &[u8]) {
        for byte in read {
            if self.asked == END.len() {
                return;
            }
            self.asked = match *byte == END[self.asked] {
                true => self.asked + 1,
                false => usize::from(*byte == END[0]),
            };
            self.answered |= self.asked == END.len();
        }
    }

    /// What became of a step: an error if nothing has passed for too long.
    fn step<T>(&mut self, context: &mut Context<'_>, step: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_MAX);
            return step;
        }
        ready!(self.idle.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let step = match self.stream(cx) {
            Poll::Ready(Ok(stream)) => stream.poll_read(cx, buf),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        self.look_for_the_end(buf.filled().get(before..).unwrap_or_default());
        if step.is_pending() || std::mem::take(&mut self.answered) { self.step(cx, step) } else { step }
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let step = match self.stream(cx) {
            Poll::Ready(Ok(stream)) => stream.poll_write(cx, buf),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        self.answered |= step.is_ready();
        self.step(cx, step)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream(cx))?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use axum::serve::Listener as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs, server::ResolvesServerCertUsingSni};

    use super::*;

    #[tokio::test]
    async fn who_asks_nothing_makes_room() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = tcp.local_addr().unwrap();
        let mut listener = Listener::new(tcp, None);
        for (says, asks) in [("GET / HTTP/1.1\r\nHost: a\r\n", false), ("GET / HTTP/1.1\r\n\r\n", true)] {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let (mut held, _) = listener.accept().await;
            stream.write_all(says.as_bytes()).await.unwrap();
            let (mut read, begun) = (vec![0; says.len()], Instant::now());
            held.read_exact(&mut read).await.unwrap();
            match tokio::time::timeout(2 * FIRST_MAX, held.read_u8()).await {
                Ok(read) => {
                    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut, "{says:?}");
                    // Where all stood still meanwhile also who asks has had its time.
                    assert!(!asks || begun.elapsed() >= IDLE_MAX, "{says:?}");
                }
                Err(_) => assert!(asks, "{says:?} still has its place"),
            }
        }
    }

    #[tokio::test]
    async fn who_reads_nothing_is_let_go() {
        let tcp = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = tcp.local_addr().unwrap();
        let mut listener = Listener::new(tcp, None);
        let _unread = TcpStream::connect(addr).await.unwrap();
        let (mut held, _) = listener.accept().await;
        let (piece, mut written) = (vec![b'x'; 1 << 16], 0);
        let error = loop {
            match held.write(&piece).await {
                Ok(bytes) => written += bytes,
                Err(error) => break error,
            }
            assert!(written < 64 << 20, "{written} bytes wait for who reads none");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_does_not_greet_is_refused_however_often_it_is_asked() {
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = tcp.local_addr().unwrap();
        let mut listener = Listener::new(tcp, Some(TlsAcceptor::from(Arc::new(config))));
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let (mut held, _) = listener.accept().await;
        assert!(held.read_u8().await.is_err());
        assert!(held.flush().await.is_err() && held.shutdown().await.is_err());
        assert!(held.read_u8().await.is_err());
    }
}
