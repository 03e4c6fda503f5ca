//! INIT: what the kernel offers and what we take. The first request of every connection.

use std::io;

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    abi::{self, init_flags, opcode},
    device::Channel,
    error::MountError,
    reply::Sink,
    tune,
};

/// Wanted where the kernel has it. Not wanted: WRITEBACK_CACHE (a token must cover what is dirty),
/// POSIX_ACL (not kept),
/// splice flags (slower than a copy here), AUTO_INVAL_DATA (we say when pages are stale),
/// ATOMIC_O_TRUNC (with it the kernel has us empty the file of a running program before it looks
/// whether it may: open(O_RDONLY | O_TRUNC); without it, one more request for each O_TRUNC).
const WANTED: u64 = init_flags::ASYNC_READ
    | init_flags::EXPORT_SUPPORT
    | init_flags::BIG_WRITES
    | init_flags::DO_READDIRPLUS
    | init_flags::READDIRPLUS_AUTO
    | init_flags::ASYNC_DIO
    | init_flags::PARALLEL_DIROPS
    | init_flags::ABORT_ERROR
    | init_flags::MAX_PAGES
    | init_flags::CACHE_SYMLINKS
    | init_flags::NO_OPENDIR_SUPPORT
    | init_flags::EXPLICIT_INVAL_DATA
    | init_flags::HANDLE_KILLPRIV_V2
    | init_flags::INIT_EXT
    | init_flags::DIRECT_IO_ALLOW_MMAP;

/// Limits to agree on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest data of a request, bytes.
    pub max_write: u32,
    /// Requests the kernel may send on its own (read-ahead, direct I/O) before they are answered.
    pub max_background: u16,
    /// The file system below keeps fcntl and flock locks; else the kernel does, of this mount by itself.
    pub keeps_locks: bool,
    /// The rings are there: requests may come by them. The kernel then holds requests back until every
    /// queue is registered, or one is refused.
    pub over_uring: bool,
}

/// What was agreed.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// Protocol minor version of the kernel.
    pub minor: u32,
    /// Capabilities in force.
    pub flags: u64,
    /// Largest data of a request, bytes.
    pub max_write: u32,
}

impl Agreed {
    /// Whether requests come by io_uring.
    pub fn is_over_uring(&self) -> bool {
        self.flags & init_flags::OVER_IO_URING != 0
    }

    /// The kernel has gone back to the classic way.
    pub(crate) fn forget_uring(&mut self) {
        self.flags &= !init_flags::OVER_IO_URING;
    }
}

/// Answers the kernel's INIT.
pub fn shake_hands(channel: &Channel, limits: Limits) -> Result<Agreed, MountError> {
    let mut space = vec![0u8; 64 << 10];
    let receive = |error: io::Error| MountError::Handshake { source: error };
    let len = loop {
        match channel.receive(&mut space) {
            Ok(len) => break len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(receive(error)),
        }
    };
    let unexpected = || receive(io::Error::new(io::ErrorKind::InvalidData, "no INIT from the kernel"));
    let (header, rest) = abi::InHeader::read_from_prefix(&space[..len]).map_err(|_| unexpected())?;
    let (init, rest) = abi::InitIn::read_from_prefix(rest).map_err(|_| unexpected())?;
    if header.opcode != opcode::INIT {
        return Err(unexpected());
    }
    if init.major != abi::KERNEL_VERSION || init.minor < abi::KERNEL_MINOR_VERSION_MIN {
        // The asker of INIT is the mount itself; it fails in any case.
        drop(channel.send(header.unique, libc::EPROTO, &[]));
        return Err(MountError::Protocol { major: init.major, minor: init.minor });
    }
    let mut offered = u64::from(init.flags);
    if offered & init_flags::INIT_EXT != 0 {
        let (more, _) = abi::InitInExt::read_from_prefix(rest).map_err(|_| unexpected())?;
        offered |= u64::from(more.flags2) << 32;
    }
    let (out, agreed) = agree(&init, offered, limits);
    channel.send(header.unique, 0, &[out.as_bytes()]).map_err(receive)?;
    Ok(agreed)
}

fn agree(init: &abi::InitIn, offered: u64, limits: Limits) -> (abi::InitOut, Agreed) {
    let locks = init_flags::POSIX_LOCKS | init_flags::FLOCK_LOCKS;
    let also = [(limits.over_uring, init_flags::OVER_IO_URING), (limits.keeps_locks, locks)];
    let also = also.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, more)| flags | more);
    let flags = offered & (WANTED | also);
    let max_pages = tune::pages_for(limits.max_write).min(u32::from(u16::MAX)) as u16;
    let out = abi::InitOut {
        major: abi::KERNEL_VERSION,
        minor: abi::KERNEL_MINOR_VERSION.min(init.minor),
        max_readahead: init.max_readahead.max(limits.max_write),
        flags: flags as u32,
        max_background: limits.max_background,
        congestion_threshold: (u32::from(limits.max_background) * 3 / 4).max(1) as u16,
        max_write: limits.max_write,
        time_gran: 1,
        max_pages,
        flags2: (flags >> 32) as u32,
        ..Default::default()
    };
    (out, Agreed { minor: init.minor, flags, max_write: limits.max_write })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_is_taken() {
        let init = abi::InitIn { major: 7, minor: 36, max_readahead: 131_072, flags: 0 };
        let limits = Limits { max_write: 1 << 20, max_background: 64, keeps_locks: false, over_uring: false };
        let (out, agreed) = agree(&init, init_flags::ASYNC_READ | 1 << 1 | 1 << 16, limits);
        assert_eq!((agreed.flags, out.flags2, out.minor), (init_flags::ASYNC_READ, 0, 36));
        assert_eq!((out.max_pages, out.congestion_threshold), (257, 48), "memory may begin within a page");
        let (out, _) = agree(&init, u64::MAX, limits);
        assert_eq!(out.flags2, (init_flags::DIRECT_IO_ALLOW_MMAP >> 32) as u32);
        assert_eq!(out.flags & (1 << 16 | 1 << 20), 0, "neither write-back cache nor ACLs");
        let keeping = Limits { keeps_locks: true, ..limits };
        assert_eq!(agree(&init, u64::MAX, keeping).0.flags ^ out.flags, 1 << 1 | 1 << 10, "locks");
        let rings = |offered| agree(&init, offered, Limits { over_uring: true, ..limits }).1.is_over_uring();
        assert!(
            rings(u64::MAX)
                && !rings(!init_flags::OVER_IO_URING)
                && !agree(&init, u64::MAX, limits).1.is_over_uring()
        );
    }
}
