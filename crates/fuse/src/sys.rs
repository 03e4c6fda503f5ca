//! The system calls of a mount that std has not: mount, unmount, cloning the FUSE device, receiving a
//! descriptor from the mount helper, threads and memory of rings. All unsafe code of this crate is here
//! (one call a function) and in [`crate::uring::entry`] and [`crate::uring::queue`].

use std::{
    ffi::CString,
    fs::File,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::Command,
};

use crate::abi;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// mount(2).
pub fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    let source = c_string(source.as_bytes())?;
    let target = c_string(target.as_os_str().as_bytes())?;
    let kind = c_string(kind.as_bytes())?;
    let data = c_string(data.as_bytes())?;
    // SAFETY: four NUL-terminated strings that live over the call.
    check(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    })
}

/// umount2(2).
pub fn unmount(target: &Path, flags: libc::c_int) -> io::Result<()> {
    let target = c_string(target.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated string that lives over the call.
    check(unsafe { libc::umount2(target.as_ptr(), flags) })
}

/// Writes everything of the file system that `file` is on.
pub fn syncfs(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open over the call.
    check(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// Makes `clone`, a fresh open of the device, another queue of the connection of `device`.
pub fn clone_device(device: &File, clone: &File) -> io::Result<()> {
    let fd = device.as_raw_fd() as u32;
    // SAFETY: the request reads one u32.
    check(unsafe { libc::ioctl(clone.as_raw_fd(), abi::DEV_IOC_CLONE as libc::Ioctl, &fd) })
}

/// An eventfd.
pub fn event() -> io::Result<File> {
    // SAFETY: eventfd takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for us; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Keeps the calling thread on one CPU.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain data, all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the CPU lies within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives over the call; 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) })
}

/// `len` bytes of fresh memory, zeros, not backed until touched.
pub fn map_memory(len: usize) -> io::Result<*mut u8> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(memory.cast()) }
}

/// Effective user and group of this process.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: these calls cannot fail and touch no memory.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Lets the child keep `socket` open over exec.
pub fn inherit(command: &mut Command, socket: &UnixStream) {
    let fd = socket.as_raw_fd();
    let keep = move || {
        // SAFETY: the parent holds `socket` open until the child is started; fcntl is async-signal-safe.
        check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })
    };
    // SAFETY: the closure makes one async-signal-safe call and allocates nothing.
    unsafe { command.pre_exec(keep) };
}

/// Receives one descriptor; `None` if the other side closed without sending one.
pub fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 8]; // aligned for cmsghdr; one descriptor needs 24 bytes
    // SAFETY: msghdr is plain data, all zeros is a valid empty one.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: all pointers in the message are to locals that live over the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    if got == 0 {
        return Ok(None);
    }
    // SAFETY: the kernel filled `message`; the macro looks only at msg_control and msg_controllen.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so a whole header stands in `control`.
    let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Ok(None);
    }
    // SAFETY: SCM_RIGHTS carries at least one descriptor at CMSG_DATA.
    let fd = unsafe { libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned() };
    // SAFETY: the kernel made this descriptor for us; nobody else owns it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}
