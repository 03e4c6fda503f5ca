//! Where two processes of one machine pass memory to each other: a Unix socket without a file, which stands for one handshake
//! only. Its name and a secret are told within TLS, to a peer whose certificate was found good; who connects to it without the
//! secret, or as another user, is nobody. Whatever fails here leaves the connection what it was, one over TCP.
#![allow(unsafe_code)]

use std::{
    ffi::OsStr,
    io, mem,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    time::Duration,
};

use aws_lc_rs::{constant_time::verify_slices_are_equal, rand};
use rustix::process::geteuid;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::OwnedSemaphorePermit,
    time::timeout,
};
use wire::hello::{Meeting, Seen};

use crate::connections::{memory::Memory, shared::Shared};

/// How long the side that connected is waited for: it is there already, or does not come.
const WITHIN: Duration = Duration::from_secs(1);
/// Others that connect meanwhile and are let go, at most.
const STRANGERS_MAX: usize = 64;
/// Longest name that is believed.
const NAME_MAX: usize = 64;

/// The side that accepts: waits here for the one that connected.
pub(crate) struct Place {
    listener: UnixListener,
    secret: [u8; 32],
}

/// A socket without a file: the name is one of the network namespace.
fn address(name: &str) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&[b"\0", name.as_bytes()].concat()))
}

fn is_own_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

impl Place {
    /// `seen`: the connection for which it is.
    pub(crate) fn open(seen: Seen) -> io::Result<(Place, Meeting)> {
        let mut bytes = [0; 48];
        rand::fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
        let (name, secret) = bytes.split_at(16);
        let name = name.iter().fold("ropewalk-".to_owned(), |text, byte| format!("{text}{byte:02x}"));
        let mut place = Place { listener: UnixListener::bind(address(&name))?, secret: [0; 32] };
        place.secret.copy_from_slice(secret);
        let meeting = Meeting { name, secret: place.secret, seen };
        Ok((place, meeting))
    }

    /// The memory of who knows the secret, which has sent it by now: nobody is waited for.
    pub(crate) async fn receive(self, share: OwnedSemaphorePermit) -> io::Result<Shared> {
        let found = async {
            for _ in 0..STRANGERS_MAX {
                let (stream, _) = self.listener.accept().await?;
                let mut said = [0; 32];
                if is_own_user(&stream)
                    && let Ok((32, files)) = receive(stream.as_raw_fd(), &mut said)
                    && verify_slices_are_equal(&said, &self.secret).is_ok()
                    && let [file] = &files[..]
                {
                    return Ok((Memory::map(file)?, stream));
                }
            }
            Err(io::Error::other("only strangers came"))
        };
        let (memory, stream) = timeout(WITHIN, found).await.map_err(|_| io::ErrorKind::TimedOut)??;
        Shared::new(memory, stream, false, share)
    }
}

/// The side that connected: makes the memory, and brings it there.
pub(crate) async fn join(meeting: &Meeting, share: OwnedSemaphorePermit) -> io::Result<Shared> {
    if meeting.name.is_empty() || meeting.name.len() > NAME_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let stream = timeout(WITHIN, UnixStream::connect(address(&meeting.name)));
    let stream = stream.await.map_err(|_| io::ErrorKind::TimedOut)??;
    if !is_own_user(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (memory, file) = Memory::create()?;
    let sent = send(stream.as_raw_fd(), &meeting.secret, &file)?;
    if sent < meeting.secret.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Shared::new(memory, stream, true, share)
}

/// Room for what comes beside the bytes: aligned as the kernel wants it.
type Beside = [u64; 8];

/// SAFETY of its use: the pointers are valid as long as the three are borrowed.
fn message(bytes: &mut libc::iovec, beside: &mut Beside, len: usize) -> libc::msghdr {
    // SAFETY: integers and pointers, for all of which 0 is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (bytes, 1);
    (message.msg_control, message.msg_controllen) = (beside.as_mut_ptr().cast(), len as _);
    message
}

fn send(socket: RawFd, bytes: &[u8], file: &OwnedFd) -> io::Result<usize> {
    let mut bytes = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut beside: Beside = [0; 8];
    // SAFETY: computes lengths only.
    let (space, len) = unsafe { (libc::CMSG_SPACE(4), libc::CMSG_LEN(4)) };
    let message = message(&mut bytes, &mut beside, space as usize);
    // SAFETY: the message has room for one header and one descriptor.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = len as _;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(file.as_raw_fd());
    }
    // SAFETY: everything that the message points to lives until the call has returned.
    let n = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Bytes, and all descriptors that came with them: each is owned at once, so that none stays open whatever was sent.
fn receive(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut bytes = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut beside: Beside = [0; 8];
    let mut message = message(&mut bytes, &mut beside, size_of::<Beside>());
    // SAFETY: everything that the message points to lives until the call has returned.
    let n = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let mut files = Vec::new();
    // SAFETY: the kernel has written the headers, within the room it was given.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !head.is_null() {
        // SAFETY: `head` is one of the kernel's headers.
        let (level, kind, len) =
            unsafe { ((*head).cmsg_level, (*head).cmsg_type, (*head).cmsg_len as usize) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: computes a length only.
            let count = len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<RawFd>();
            for i in 0..count {
                // SAFETY: so many descriptors follow the header; each is new and nobody else's.
                files.push(unsafe {
                    OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<RawFd>().add(i).read_unaligned())
                });
            }
        }
        // SAFETY: the same message and header.
        head = unsafe { libc::CMSG_NXTHDR(&raw const message, head) };
    }
    Ok((n, files))
}
