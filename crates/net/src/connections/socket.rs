//! A connected TCP socket: non-blocking vectored reads and writes on tokio's readiness.
//!
//! A transfer that moves less than asked for means that the socket is drained (or full); readiness is then
//! cleared at once instead of by another system call that says so. Nothing is lost by it: data that
//! arrives after the transfer raises readiness again with a newer tick.
//! What is sealed goes through [`Records`] behind the same functions, and below these what goes by memory of both ends through
//! [`Shared`].

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

use base::CipherList;
use serde::Serialize;
use socket2::{Domain, Protocol, SockRef, Socket as Socket2, Type};
use tokio::{
    io::Interest,
    net::{TcpListener, TcpSocket, TcpStream},
};
use trust::Spoken;
use wire::hello::Lane;

use crate::{
    connections::{
        records::{Records, Seal},
        shared::Shared,
    },
    error::NetError,
};

/// Reads of sealed bytes for one read of what is in them: a peer that seals a byte in each record makes much work of little.
const READS_MAX: usize = 4;

pub(crate) struct Socket {
    stream: TcpStream,
    /// What bytes go by instead of the stream.
    shared: Option<Shared>,
    records: Option<Records>,
    /// What both ends speak.
    spoken: Spoken,
    protection: Protection,
    /// Payloads may go in the clear.
    pieces: bool,
    /// The cipher of the handshake.
    cipher: Option<CipherList>,
}

/// How what follows a handshake is protected, as both ends have agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Protection {
    /// Not at all.
    #[serde(rename = "EMPTY")]
    Empty,
    /// All but bulk payloads is encrypted; those have tags.
    #[serde(rename = "AUTHONLY")]
    AuthOnly,
    /// All is encrypted.
    #[serde(rename = "ENCRYPTED")]
    Encrypted,
}

impl Socket {
    /// Whose bytes are sealed, by this cipher.
    pub(crate) fn sealed(
        stream: TcpStream,
        records: Records,
        spoken: Spoken,
        cipher: Option<CipherList>,
    ) -> Socket {
        Socket {
            stream,
            shared: None,
            records: Some(records),
            spoken,
            protection: Protection::Encrypted,
            pieces: false,
            cipher,
        }
    }

    /// The handshake is over, and has agreed on what follows it here.
    pub(crate) fn settle(self, protection: Protection, lane: Lane) -> Socket {
        let pieces = protection == Protection::AuthOnly && lane == Lane::Bulk;
        if let Some(records) = &self.records {
            records.open.lock().settle(pieces);
        }
        let records = self.records.filter(|_| protection != Protection::Empty);
        Socket { records, protection, pieces, ..self }
    }

    /// From now on both ends go by memory of theirs. Nothing may be under way.
    pub(crate) fn share(self, shared: Option<Shared>) -> Socket {
        Socket { shared, ..self }
    }

    /// The memory, if it goes by that.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// How it is protected.
    pub(crate) fn protection(&self) -> Protection {
        self.protection
    }

    /// What encrypts it, or all of it but what goes in the clear.
    pub(crate) fn cipher(&self) -> Option<CipherList> {
        self.cipher.filter(|_| self.protection != Protection::Empty)
    }

    /// The version of the protocol; none: the other end has none in common with this one.
    pub(crate) fn spoken(&self) -> Option<u16> {
        match self.spoken {
            Spoken::Version(version) => Some(version),
            Spoken::Parting => None,
        }
    }

    /// The version of all frames here; 0 where there can be none.
    pub(crate) fn version(&self) -> u16 {
        self.spoken().unwrap_or_default()
    }

    /// What it is for is known. Until then a read takes little at a time.
    pub(crate) fn serve(&mut self, lane: Lane) {
        if let (Some(records), Lane::Bulk) = (&mut self.records, lane) {
            records.open.get_mut().expect_payloads();
        }
    }

    /// At each heartbeat.
    pub(crate) fn beat(&self) {
        if let Some(shared) = &self.shared {
            shared.wake_missed(&self.stream);
        }
    }

    /// Little was sent for a while.
    pub(crate) fn give_back(&self) {
        if let Some(records) = &self.records {
            records.seal.lock().give_back();
        }
    }

    #[cfg(test)]
    pub(crate) fn records(&self) -> Option<&Records> {
        self.records.as_ref()
    }

    pub(crate) fn as_ref(&self) -> &TcpStream {
        &self.stream
    }

    /// Ends when a read may move bytes. Safe to cancel. Only one task may wait for this at a time, the connection's
    /// reader: that needs no list of those who wait.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match &self.shared {
            Some(shared) => poll_fn(|cx| shared.poll_readable(cx)).await,
            None => poll_fn(|cx| self.stream.poll_read_ready(cx)).await,
        }
    }

    /// Ends when there is at least one byte to read, or the stream has ended. Safe to cancel.
    pub(crate) async fn peek(&self) -> io::Result<()> {
        if self.records.as_ref().is_some_and(|records| records.open.lock().has_some()) {
            return Ok(());
        }
        let Some(shared) = &self.shared else { return self.stream.peek(&mut [0]).await.map(|_| ()) };
        loop {
            match shared.peek() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                found => return found,
            }
        }
    }

    /// Ends when a write may move bytes. Safe to cancel.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self.shared {
            Some(_) => self.stream.readable().await,
            None => self.stream.writable().await,
        }
    }

    /// Reads what there is, up to the slices' length, of which so many bytes belong to a payload at the beginning of the slices:
    /// nothing else may come in the clear. A payload is what the peer has sent when all of it is here. `Ok(0)` is the end of
    /// the stream. It may be less than there is: [`READS_MAX`]; `Interrupted`: for that reason it is nothing, and others go first.
    pub(crate) fn try_readv(&self, slices: &mut [IoSliceMut<'_>], payload: usize) -> io::Result<usize> {
        let Some(records) = &self.records else { return self.raw_readv(slices) };
        let wanted: usize = slices.iter().map(|s| s.len()).sum();
        let (mut open, mut moved, mut reads) = (records.open.lock(), 0, 0);
        let mut read = |slices: &mut [IoSliceMut<'_>]| {
            reads += 1;
            if reads > READS_MAX { Err(io::ErrorKind::Interrupted.into()) } else { self.raw_readv(slices) }
        };
        if self.pieces {
            let answer = || drop(self.send_sealed(&mut records.seal.lock()));
            return records.receive_pieces(&mut open, slices, payload, answer, read);
        }
        loop {
            moved += records.open(&mut open, slices, moved)?;
            if open.take_answer() {
                // Where it does not fit, or fails, whoever sends next sees to that.
                let _ = self.send_sealed(&mut records.seal.lock());
            }
            if moved == wanted || open.ended() {
                return Ok(moved);
            }
            match read(&mut [IoSliceMut::new(open.room())]) {
                Ok(0) => return Ok(moved),
                Ok(n) => open.received(n),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    return if moved > 0 { Ok(moved) } else { Err(e) };
                }
                // The kernel says it once.
                Err(e) => return open.fail(e, moved),
            }
        }
    }

    fn raw_readv(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if let Some(shared) = &self.shared {
            return shared.read(slices, &self.stream);
        }
        let wanted: usize = slices.iter().map(|s| s.len()).sum();
        self.transfer(Interest::READABLE, wanted, || {
            let socket = SockRef::from(&self.stream);
            // One place is the common case of small frames, and cheaper for the kernel.
            match &mut *slices {
                [slice] => (&*socket).read(slice),
                slices => (&*socket).read_vectored(slices),
            }
        })
    }

    /// Writes what fits. What was sealed counts as written, though some may wait: see [`Socket::try_flush`]. `payload`: which of
    /// the slices are of a bulk payload; what is not written of one is offered again, whatever else is before.
    pub(crate) fn try_writev(&self, slices: &[IoSlice<'_>], payload: &[bool]) -> io::Result<usize> {
        let wanted: usize = slices.iter().map(|s| s.len()).sum();
        let Some(records) = &self.records else { return self.raw_writev(slices) };
        if self.pieces {
            let write = |slices: &[IoSlice<'_>]| self.raw_writev(slices);
            return records.send_pieces(&mut records.seal.lock(), slices, payload, write);
        }
        self.try_flush()?;
        let (mut seal, mut taken) = (records.seal.lock(), 0);
        while taken < wanted {
            taken += records.seal(&mut seal, slices, taken)?;
            match self.send_sealed(&mut seal) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                outcome => outcome?,
            }
        }
        Ok(taken)
    }

    fn raw_writev(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(shared) = &self.shared {
            return shared.write(slices, &self.stream);
        }
        let wanted = slices.iter().map(|s| s.len()).sum();
        let write = || (&*SockRef::from(&self.stream)).write_vectored(slices);
        self.transfer(Interest::WRITABLE, wanted, write)
    }

    /// The same from one place.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.records.is_some() {
            return self.try_writev(&[IoSlice::new(bytes)], &[]);
        }
        self.raw_write(bytes)
    }

    fn raw_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(shared) = &self.shared {
            return shared.write(&[IoSlice::new(bytes)], &self.stream);
        }
        self.transfer(Interest::WRITABLE, bytes.len(), || (&*SockRef::from(&self.stream)).write(bytes))
    }

    /// Writes what was sealed before and still waits; `WouldBlock`: not all of it fits.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        self.records.as_ref().map_or(Ok(()), |records| self.send_sealed(&mut records.seal.lock()))
    }

    fn send_sealed(&self, seal: &mut Seal) -> io::Result<()> {
        while !seal.pending().is_empty() {
            let n = self.raw_write(seal.pending())?;
            seal.sent(n);
        }
        Ok(())
    }

    /// Reads exactly this, which is of no payload. Not safe to cancel.
    pub(crate) async fn read_exact(&self, place: &mut [u8]) -> io::Result<()> {
        self.read_exactly(place, 0).await
    }

    /// The same of a payload of which so much is due. What was sent in the clear is proven when the last of it is here.
    pub(crate) async fn read_exactly(&self, mut place: &mut [u8], mut payload: usize) -> io::Result<()> {
        while !place.is_empty() {
            match self.try_readv(&mut [IoSliceMut::new(place)], payload) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => (place, payload) = (&mut place[n..], payload.saturating_sub(n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => tokio::task::yield_now().await,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes all of this. Not safe to cancel.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            let written = if bytes.is_empty() { self.try_flush().map(|()| 0) } else { self.try_write(bytes) };
            match written {
                Ok(0) => return Ok(()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(e) => return Err(e),
            }
        }
    }

    fn transfer(
        &self,
        interest: Interest,
        wanted: usize,
        mut once: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut moved = None;
        let result = self.stream.try_io(interest, || {
            loop {
                match once() {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Ok(n) if 0 < n && n < wanted => {
                        moved = Some(n);
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    other => return other,
                }
            }
        });
        match moved {
            Some(n) => Ok(n),
            None => result,
        }
    }

    /// Ends both directions; wakes whoever waits on the socket.
    pub(crate) fn shutdown(&self) {
        if let Some(shared) = &self.shared {
            shared.shutdown();
        }
        // An error means that it is disconnected already.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Both);
    }
}

/// Options every connection has, on both sides.
pub(crate) fn configure(stream: &TcpStream, silence_max: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    // The kernel gives up on unacknowledged data as well, so that a closed socket does not linger for
    // the quarter of an hour that TCP would try.
    socket.set_tcp_user_timeout(Some(silence_max * 2))
}

/// A listening socket; the error names the address and the remedy.
pub(crate) fn listen(addr: SocketAddr, backlog: u32) -> Result<TcpListener, NetError> {
    let bind = || -> io::Result<TcpListener> {
        let socket = Socket2::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        socket.listen(backlog.min(i32::MAX as u32) as i32)?;
        TcpListener::from_std(socket.into())
    };
    bind().map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => NetError::PortTaken { addr },
        _ => NetError::Listen { addr, source },
    })
}

/// Connects to `to`, from address and port `from` if given.
pub(crate) async fn connect(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from {
        socket.bind(from)?;
    }
    socket.connect(to).await
}
