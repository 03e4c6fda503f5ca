//! Writing through a shared mapping without a signal: the kernel copies into our own mapping for us, and a page that cannot
//! be had is an error (EFAULT) and no SIGBUS, which would end the campaign when a mount dies.

use std::{fs::File, io, os::fd::AsRawFd};

/// Writes `bytes` at `offset` of the file by a mapping. The file must reach so far.
pub fn write(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let from = offset / 4096 * 4096;
    let skip = (offset - from) as usize;
    let len = skip + bytes.len();
    // SAFETY: a new mapping at an address of the kernel's choice; nothing else is touched.
    let map = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), from as i64)
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: map.wrapping_byte_add(skip), iov_len: bytes.len() };
    // SAFETY: both vectors live through the call; it reads `bytes` and writes into the mapping only.
    let done = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    let result = match done {
        n if n == bytes.len() as isize => Ok(()),
        n if n < 0 => Err(io::Error::last_os_error()),
        n => Err(io::Error::other(format!("{n} of {} bytes by the mapping", bytes.len()))),
    };
    // SAFETY: the mapping made above, which nobody else knows.
    unsafe { libc::munmap(map, len) };
    result
}
