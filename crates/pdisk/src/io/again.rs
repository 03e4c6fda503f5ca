//! What follows from the completion of a request in a ring. What the kernel cannot take now is submitted again after a
//! pause, so many times; a short transfer goes on with the rest.

use std::io;

use io_uring::types;

/// Times that a request is submitted again because the kernel could not take it.
pub(super) const AGAIN_MAX: u32 = 10;
/// The pauses before, 1 ms to 512 ms. Constants, for the kernel reads them when it takes the entry.
pub(super) static PAUSES: [types::Timespec; AGAIN_MAX as usize] = {
    let mut pauses = [types::Timespec::new(); AGAIN_MAX as usize];
    let mut at = 0;
    while at < pauses.len() {
        pauses[at] = types::Timespec::new().nsec(1_000_000 << at);
        at += 1;
    }
    pauses
};

/// What follows from a completion.
#[derive(Debug)]
pub(super) enum Next {
    End(io::Result<()>),
    /// The rest is submitted.
    Rest,
    /// All of the rest, after pause number so many.
    Again(u32),
}

/// `done` of `len` bytes were done before, `again` times it was submitted again in vain.
pub(super) fn next(result: i32, done: usize, len: usize, again: u32) -> Next {
    match result {
        r if [libc::EAGAIN, libc::EINTR].contains(&-r) && again < AGAIN_MAX => Next::Again(again),
        r if [libc::EAGAIN, libc::EINTR].contains(&-r) => {
            let error = io::Error::from_raw_os_error(-r);
            Next::End(Err(io::Error::other(format!("not taken {} times in a row: {error}", again + 1))))
        }
        r if r < 0 => Next::End(Err(io::Error::from_raw_os_error(-r))),
        r if done + r as usize >= len => Next::End(Ok(())),
        0 => Next::End(Err(io::ErrorKind::UnexpectedEof.into())),
        _ => Next::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_cannot_take_is_tried_again_so_many_times() {
        assert!(matches!(next(4096, 0, 4096, 3), Next::End(Ok(()))));
        assert!(matches!(next(100, 0, 4096, 0), Next::Rest));
        assert!(
            matches!(next(0, 100, 4096, 0), Next::End(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof)
        );
        let Next::End(Err(e)) = next(-libc::EIO, 0, 4096, 0) else { panic!("EIO is final") };
        assert_eq!(e.raw_os_error(), Some(libc::EIO));
        for number in [libc::EAGAIN, libc::EINTR] {
            for again in 0..AGAIN_MAX {
                assert!(matches!(next(-number, 0, 4096, again), Next::Again(pause) if pause == again));
            }
            let Next::End(Err(e)) = next(-number, 0, 4096, AGAIN_MAX) else { panic!("without end") };
            assert!(e.to_string().contains("11 times"), "{e}");
        }
    }
}
