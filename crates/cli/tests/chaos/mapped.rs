//! Writing through a shared mapping without a signal: the kernel's read(2) stores the bytes for us, and a page that cannot be had
//! is an error (EFAULT) and no SIGBUS, which would end the campaign when a mount dies.
//!
//! Not by `process_vm_writev`, which holds pages while it stores: the kernel takes such a page out of its cache all the same when
//! another mount wants the bytes, and what is stored then is lost (docs/reliability.md).

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

use rustix::fs::{MemfdFlags, memfd_create};

/// Writes `bytes` at `offset` of the file by a mapping. The file must reach so far.
pub fn write(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let source = File::from(memfd_create("mapped", MemfdFlags::CLOEXEC)?);
    source.write_all_at(bytes, 0)?;
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
    let to = map.wrapping_byte_add(skip);
    // SAFETY: the call stores `bytes.len()` bytes in the mapping made above, which reaches so far.
    let done = unsafe { libc::pread(source.as_raw_fd(), to, bytes.len(), 0) };
    let result = match done {
        n if n == bytes.len() as isize => Ok(()),
        n if n < 0 => Err(io::Error::last_os_error()),
        n => Err(io::Error::other(format!("{n} of {} bytes by the mapping", bytes.len()))),
    };
    // SAFETY: the mapping made above, which nobody else knows.
    unsafe { libc::munmap(map, len) };
    result
}
