//! A connection within one machine: bytes go through [`Memory`]; sockets only wake who sleeps, and end with the peer.
//!
//! The reader sleeps on the *bell*, a Unix socket; the writer, when the ring is full, on the connection's TCP socket, which
//! carries nothing else any more. A byte is sent on either only when its other end has said that it sleeps. Both close with
//! the process at the other end, however it ends.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
    sync::OwnedSemaphorePermit,
};

use crate::connections::memory::Memory;

/// Looks at a ring before the task gives way to others: each but the first follows a wake-up that came while looking.
const LOOKS: usize = 4;

pub(crate) struct Shared {
    memory: Memory,
    bell: UnixStream,
    /// 0: this side connected.
    side: usize,
    written: Mutex<u64>,
    read: Mutex<u64>,
    /// The peer's process is gone, or has closed the connection.
    gone: AtomicBool,
    /// We have.
    closed: AtomicBool,
    /// Its place among those of the process.
    _share: OwnedSemaphorePermit,
}

impl Shared {
    /// `connected`: this side did.
    pub(crate) fn new(
        memory: Memory,
        bell: UnixStream,
        connected: bool,
        share: OwnedSemaphorePermit,
    ) -> Shared {
        Shared {
            memory,
            bell,
            side: usize::from(!connected),
            written: Mutex::default(),
            read: Mutex::default(),
            gone: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            _share: share,
        }
    }

    /// Bytes of both directions, for who judges how the connection fares.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (*self.written.lock(), *self.read.lock())
    }

    /// Ready when a look may find bytes, or the end.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bell.poll_read_ready(cx)
    }

    /// Copies what there is; `Ok(0)`: the end.
    pub(crate) fn read(&self, slices: &mut [IoSliceMut<'_>], tcp: &TcpStream) -> io::Result<usize> {
        let mut read = self.read.lock();
        if self.look(*read)? == 0 {
            return Ok(0);
        }
        let (n, wakes) = self.memory.ring(1 - self.side).read(&mut read, slices)?;
        if wakes {
            wake(tcp);
        }
        Ok(n)
    }

    /// Whether there is something to read, or the end.
    pub(crate) fn peek(&self) -> io::Result<()> {
        self.look(*self.read.lock()).map(|_| ())
    }

    /// Bytes there are; 0 is the end; `WouldBlock`: the bell rings when there are some.
    fn look(&self, read: u64) -> io::Result<usize> {
        let ring = self.memory.ring(1 - self.side);
        for look in 1..=LOOKS {
            // What the peer wrote before its end is read; what it writes after ours is not.
            let over = self.gone.load(Ordering::Relaxed);
            let filled = ring.filled(read)?;
            if self.closed.load(Ordering::Relaxed) {
                return Ok(0);
            }
            if filled > 0 || over {
                return Ok(filled);
            }
            ring.reader_sleeps();
            if ring.filled(read)? > 0 {
                continue;
            }
            match heard(&self.bell, look == LOOKS, |interest, once| self.bell.try_io(interest, once)) {
                Ok(0) => self.gone.store(true, Ordering::Relaxed),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                    self.gone.store(true, Ordering::Relaxed)
                }
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Copies what fits; `WouldBlock`: the TCP socket is readable when there is room.
    pub(crate) fn write(&self, slices: &[IoSlice<'_>], tcp: &TcpStream) -> io::Result<usize> {
        let wanted: usize = slices.iter().map(|s| s.len()).sum();
        let (mut written, ring) = (self.written.lock(), self.memory.ring(self.side));
        let (mut done, mut looks) = (0, 0);
        while done < wanted {
            if self.closed.load(Ordering::Relaxed) || self.gone.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let (n, wakes) = ring.write(&mut written, slices, done)?;
            done += n;
            if wakes {
                wake(&self.bell);
            }
            if n > 0 {
                continue;
            }
            ring.writer_sleeps();
            if ring.room(*written)? > 0 {
                continue;
            }
            looks += 1;
            match heard(tcp, looks == LOOKS, |interest, once| tcp.try_io(interest, once)) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(_) if looks < LOOKS => {}
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        if done == 0 && wanted > 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(done) }
    }

    /// What a broken peer does: says that it is elsewhere than it is, and wakes both of the other side's tasks.
    #[cfg(test)]
    pub(crate) fn claim(&self, written: u64, read: u64) {
        self.memory.ring(self.side).claim_written(written);
        self.memory.ring(1 - self.side).claim_read(read);
        wake(&self.bell);
    }

    /// Changes anything anywhere in the memory.
    #[cfg(test)]
    pub(crate) fn scribble(&self, at: usize, value: u64) {
        self.memory.scribble(at, value);
        wake(&self.bell);
    }

    /// Ends it, and wakes whoever waits at either end.
    pub(crate) fn shutdown(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // An error means that it is disconnected already.
        let _ = SockRef::from(&self.bell).shutdown(Shutdown::Both);
    }
}

/// Wakes who sleeps at the other end. A full socket has woken it already; a closed one is found by its reader.
fn wake(socket: &impl AsFd) {
    let _ = SockRef::from(socket).send_with_flags(&[1], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
}

/// Takes wake-ups out of a socket; `Ok(0)`: it is closed at the other end; `WouldBlock`: there is none, and the next one raises readiness.
/// Who does not look once more after an `Ok` is the `last`: readiness stays, or the wake-up would be lost.
fn heard(
    socket: &impl AsFd,
    last: bool,
    try_io: impl FnOnce(Interest, &mut dyn FnMut() -> io::Result<usize>) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut place = [std::mem::MaybeUninit::uninit(); 64];
    let mut taken = None;
    let result = try_io(Interest::READABLE, &mut || {
        let n = SockRef::from(socket).recv_with_flags(&mut place, libc::MSG_DONTWAIT)?;
        if 0 < n && n < 64 && !last {
            // It is empty now: another system call would say so.
            taken = Some(n);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(n)
    });
    taken.map_or(result, Ok)
}
