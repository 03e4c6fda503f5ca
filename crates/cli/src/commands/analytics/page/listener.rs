//! Connections of browsers: so many at most, each closed when nothing has passed on it for a while.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 64;
/// A live page gets something every second; longer than a turn and the answers of processes that hang.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// After an error of the system (no descriptor left, say).
const RETRY: Duration = Duration::from_millis(200);

/// Listens.
pub struct Listener {
    tcp: TcpListener,
    seats: Arc<Semaphore>,
}

impl Listener {
    /// On what is bound.
    pub fn new(tcp: TcpListener) -> Listener {
        Listener { tcp, seats: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
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
                    let idle = Box::pin(sleep(IDLE_MAX));
                    return (Held { stream, _seat: seat, idle, answered: true }, addr);
                }
                _ => sleep(RETRY).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// A connection.
pub struct Held {
    stream: TcpStream,
    _seat: OwnedSemaphorePermit,
    idle: Pin<Box<Sleep>>,
    /// Something was sent since the clock was set back for what came: a request takes no longer than that from its first byte.
    answered: bool,
}

impl Held {
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
        let step = Pin::new(&mut self.stream).poll_read(cx, buf);
        if step.is_pending() || std::mem::take(&mut self.answered) { self.step(cx, step) } else { step }
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let step = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.answered |= step.is_ready();
        self.step(cx, step)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
