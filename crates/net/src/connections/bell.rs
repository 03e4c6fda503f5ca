//! What wakes the reader of memory that two processes share: a Unix socket that is waited on for reading only.
//!
//! Tokio's own sockets wait for room to write as well. Taking a byte out of a Unix socket tells who sent it that there is room
//! again: that would wake the sender, for nothing, at each message.
#![allow(unsafe_code)]

use std::{io, os::unix::net::UnixStream};

use tokio::io::{Interest, unix::AsyncFd};

/// See the file's head.
pub(crate) type Bell = AsyncFd<UnixStream>;

/// The socket as a bell. Must be called in a tokio runtime.
pub(crate) fn hang(stream: tokio::net::UnixStream) -> io::Result<Bell> {
    let stream = stream.into_std()?;
    // SAFETY: what this returns owns the socket, and gives it to nobody: it stays open, and the same, until that is dropped.
    let bell = unsafe { AsyncFd::register_with_interest(stream, Interest::READABLE) };
    bell.map_err(|refused| refused.into_parts().1)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        task::{Context, Waker},
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn it_is_rung_and_its_end_is_heard_and_room_to_write_is_not() {
        let (one, other) = tokio::net::UnixStream::pair().unwrap();
        let (bell, mut other) = (hang(one).unwrap(), other.into_std().unwrap());
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..2 {
            other.write_all(&[1]).unwrap();
            let mut rung =
                timeout(Duration::from_secs(60), bell.readable()).await.expect("nobody is woken").unwrap();
            rung.try_io(|bell| bell.get_ref().read(&mut [0; 2])).unwrap().unwrap();
            rung.clear_ready();
            assert!(bell.poll_read_ready(cx).is_pending());
        }
        assert!(bell.poll_write_ready(cx).is_pending(), "a socket that has room all the time");
        drop(other);
        drop(timeout(Duration::from_secs(60), bell.readable()).await.expect("nobody is woken").unwrap());
    }
}
