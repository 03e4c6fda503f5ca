//! A connection within one machine: bytes go through [`Memory`]; sockets only wake who sleeps, and end with the peer.
//!
//! The reader sleeps on the *bell*, a Unix socket; the writer, when the ring is full, on the connection's TCP socket, which
//! carries nothing else any more. A byte is sent on either only when its other end has said that it sleeps. Both close with
//! the process at the other end, however it ends.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
    runtime::Handle,
    sync::OwnedSemaphorePermit,
};

use crate::connections::{
    bell::{self, Bell},
    memory::{Memory, untrue},
};

/// Bytes that one write moves at most, however fast they are read: it keeps a thread, and who asks how much has moved waits for it.
pub(crate) const WRITE_MAX: usize = 1 << 20;
/// Looks at a ring before the task gives way to others: each but the first follows a wake-up that came while looking.
const LOOKS: usize = 4;
/// Pause before a wake-up that the kernel did not take is tried again, and how often: then at each heartbeat.
const AGAIN: (Duration, u32) = (Duration::from_millis(1), 1000);

pub(crate) struct Shared {
    memory: Memory,
    bell: Bell,
    /// 0: this side connected.
    side: usize,
    written: Mutex<u64>,
    read: Mutex<u64>,
    /// The peer's process is gone, or has closed the connection.
    gone: AtomicBool,
    /// We have.
    closed: AtomicBool,
    /// By bell and TCP socket.
    owed: [Arc<Owed>; 2],
    runtime: Handle,
    /// Its place among those of the process.
    _share: OwnedSemaphorePermit,
}

/// A wake-up that the kernel did not take. Who sleeps has said so, and does not say it again.
#[derive(Default)]
struct Owed {
    /// It is tried again.
    tried: AtomicBool,
    /// It is not: the next heartbeat does.
    missed: AtomicBool,
}

impl Owed {
    fn give_up(&self) {
        self.missed.store(true, Ordering::SeqCst);
        self.tried.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    /// `connected`: this side did. Must be called in a tokio runtime.
    pub(crate) fn new(
        memory: Memory,
        bell: UnixStream,
        connected: bool,
        share: OwnedSemaphorePermit,
    ) -> io::Result<Shared> {
        let side = usize::from(!connected);
        memory.ring(1 - side).follow();
        Ok(Shared {
            memory,
            bell: bell::hang(bell)?,
            side,
            written: Mutex::default(),
            read: Mutex::default(),
            gone: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            owed: Default::default(),
            runtime: Handle::current(),
            _share: share,
        })
    }

    /// Bytes of both directions, for who judges how the connection fares.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (*self.written.lock(), *self.read.lock())
    }

    /// How far the peer says that it has read what is sent here.
    pub(crate) fn read_by_peer(&self) -> u64 {
        self.memory.ring(self.side).told_read()
    }

    /// Ready when a look may find bytes, or the end.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bell.poll_read_ready(cx).map_ok(drop)
    }

    /// Copies what there is; `Ok(0)`: the end.
    pub(crate) fn read(&self, slices: &mut [IoSliceMut<'_>], tcp: &TcpStream) -> io::Result<usize> {
        let mut read = self.read.lock();
        if self.look(*read)? == 0 {
            return Ok(0);
        }
        let (n, wakes) = self.memory.ring(1 - self.side).read(&mut read, slices)?;
        if wakes {
            self.wake(tcp, 1);
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
            match heard(&self.bell, look == LOOKS, |interest, once| self.bell.try_io(interest, |_| once())) {
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

    /// Copies what fits, [`WRITE_MAX`] bytes at most; `WouldBlock`, or less than that and than there is: the TCP socket is readable
    /// when there is room. Each turn but a few moves 4 KiB or all that is left, whatever the peer says of itself meanwhile.
    pub(crate) fn write(&self, slices: &[IoSlice<'_>], tcp: &TcpStream) -> io::Result<usize> {
        let wanted = slices.iter().map(|s| s.len()).sum::<usize>().min(WRITE_MAX);
        let (mut written, ring) = (self.written.lock(), self.memory.ring(self.side));
        let (mut done, mut looks, mut promised) = (0, 0, false);
        while done < wanted {
            if self.closed.load(Ordering::Relaxed) || self.gone.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let (n, wakes) = ring.write(&mut written, slices, done, wanted - done)?;
            done += n;
            if wakes {
                self.wake(&self.bell, 0);
            }
            if n > 0 {
                promised = false;
                continue;
            }
            if promised {
                return Err(untrue()); // a reader does not go back
            }
            ring.writer_sleeps();
            promised = ring.room(*written, wanted - done)? > 0;
            if promised {
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

    /// Wakes who sleeps at the other end; `which` of the two sockets. A full one has woken it already, but one that takes nothing
    /// need not be full: the kernel may lack memory. So it is tried again.
    fn wake(&self, socket: &impl AsFd, which: usize) {
        self.wake_by(socket, which, |socket| socket.try_clone_to_owned());
    }

    /// The same by a copy of the socket that `copied` makes.
    fn wake_by(
        &self,
        socket: &impl AsFd,
        which: usize,
        copied: impl FnOnce(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    ) {
        let owed = &self.owed[which];
        if rung(socket) || owed.tried.swap(true, Ordering::SeqCst) {
            return;
        }
        let Ok(again) = copied(socket.as_fd()) else { return owed.give_up() };
        let owed = Arc::clone(owed);
        self.runtime.spawn(async move {
            for _ in 0..AGAIN.1 {
                tokio::time::sleep(AGAIN.0).await;
                // Before the try: who finds it set from now on has a try of his own.
                owed.tried.store(false, Ordering::SeqCst);
                if rung(&again) || owed.tried.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
            owed.give_up();
        });
    }

    /// At each heartbeat: a wake-up that nobody tries any more. A call on the connection would not bring it: who waits for room sends none,
    /// and the other end's flag is down.
    pub(crate) fn wake_missed(&self, tcp: &TcpStream) {
        let missed = |which: usize| self.owed[which].missed.swap(false, Ordering::SeqCst);
        if missed(0) {
            self.wake(&self.bell, 0);
        }
        if missed(1) {
            self.wake(tcp, 1);
        }
    }

    /// What a broken peer does: says that it is elsewhere than it is, and wakes both of the other side's tasks.
    #[cfg(test)]
    pub(crate) fn claim(&self, written: u64, read: u64) {
        self.memory.ring(self.side).claim_written(written);
        self.memory.ring(1 - self.side).claim_read(read);
        self.wake(&self.bell, 0);
    }

    /// Changes anything anywhere in the memory.
    #[cfg(test)]
    pub(crate) fn scribble(&self, at: usize, value: u64) {
        self.memory.scribble(at, value);
        self.wake(&self.bell, 0);
    }

    /// Ends it, and wakes whoever waits at either end.
    pub(crate) fn shutdown(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // An error means that it is disconnected already.
        let _ = SockRef::from(&self.bell).shutdown(Shutdown::Both);
    }
}

/// Whether a byte went to who sleeps at the other end. A closed socket is found by its reader: it needs none.
fn rung(socket: &impl AsFd) -> bool {
    let sent = SockRef::from(socket).send_with_flags(&[1], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let later = [libc::EAGAIN, libc::EINTR, libc::ENOBUFS, libc::ENOMEM];
    !sent.is_err_and(|e| e.raw_os_error().is_some_and(|errno| later.contains(&errno)))
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

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

    use super::*;

    fn one_side(share: &Arc<Semaphore>) -> (Shared, UnixStream) {
        let (bell, ear) = UnixStream::pair().unwrap();
        let (memory, _) = Memory::create().unwrap();
        (Shared::new(memory, bell, true, Arc::clone(share).try_acquire_owned().unwrap()).unwrap(), ear)
    }

    /// Both ends of a connection.
    async fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (stream, listener.accept().await.unwrap().0)
    }

    /// However fast what is written is read, a write ends: it keeps the thread that calls it, and others wait for its lock.
    #[tokio::test]
    async fn a_fast_reader_keeps_no_writer() {
        let share = Arc::new(Semaphore::new(1));
        let ((shared, _ear), (tcp, _other)) = (one_side(&share), tcp().await);
        let stop = AtomicBool::new(false);
        let (bytes, mut largest, mut total) = (vec![7; 16 << 20], 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (ring, mut read) = (shared.memory.ring(0), 0);
                while !stop.load(Ordering::Relaxed) {
                    read += ring.filled(read).unwrap() as u64;
                    ring.claim_read(read);
                }
            });
            while total < 16 * bytes.len() {
                match shared.write(&[IoSlice::new(&bytes)], &tcp) {
                    Ok(n) => (total, largest) = (total + n, largest.max(n)),
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(largest <= WRITE_MAX, "{largest} bytes by one call");
    }

    /// The socket takes no byte now, and nobody has been woken by what it has: the wake-up comes all the same.
    #[tokio::test]
    async fn a_wake_up_that_the_kernel_did_not_take_comes_later() {
        let ((shared, ear), (tcp, _other)) = (one_side(&Arc::new(Semaphore::new(1))), tcp().await);
        while rung(&shared.bell) {}
        shared.memory.ring(0).reader_sleeps();
        shared.write(&[IoSlice::new(b"bytes")], &tcp).unwrap();
        let mut place = [0; 4096];
        ear.readable().await.unwrap();
        while ear.try_read(&mut place).is_ok() {}
        let woken = async {
            loop {
                ear.readable().await.unwrap();
                match ear.try_read(&mut place) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read.unwrap(),
                }
            }
        };
        assert_eq!(timeout(Duration::from_secs(60), woken).await.expect("nobody is woken"), 1);
    }

    /// There is not even a descriptor to try it again with: the heartbeat does, by either socket.
    #[tokio::test]
    async fn a_wake_up_that_cannot_be_tried_again_comes_with_the_heartbeat() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let (shared, ear) = one_side(&Arc::new(Semaphore::new(1)));
        let mut place = [std::mem::MaybeUninit::uninit(); 1 << 16];
        let mut taken = |ear: &dyn AsFd| {
            let ear = ear.as_fd().try_clone_to_owned().unwrap();
            let mut all = 0;
            while let Ok(n) = SockRef::from(&ear).recv_with_flags(&mut place, libc::MSG_DONTWAIT) {
                all += n;
            }
            all
        };
        while rung(&shared.bell) {}
        shared.wake_by(&shared.bell, 0, |_| Err(io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(taken(&ear) > 0);
        shared.wake_missed(&tcp);
        assert_eq!(taken(&ear), 1);
        shared.owed[1].give_up();
        [(); 2].iter().for_each(|()| shared.wake_missed(&tcp));
        accepted.readable().await.unwrap();
        assert_eq!((taken(&accepted), taken(&ear)), (1, 0), "once, and nobody else");
    }
}
