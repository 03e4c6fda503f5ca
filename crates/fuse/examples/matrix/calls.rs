//! The system calls of the matrix that have no safe form elsewhere: libaio, io_uring, splice, mappings, aligned memory.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd},
};

use io_uring::{IoUring, opcode, types};

/// A number that a system call gave, or its error.
pub fn checked(result: i64) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

fn answered(result: i64) -> io::Result<usize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

/// Memory that begins at a page, as O_DIRECT wants it; a mapping of no file, or of one.
pub struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is memory like any other; what a mapping of a file shows may change at any time, and is read and written by
// whole words only (`load`, `store`).
unsafe impl Send for Memory {}

impl Memory {
    fn map(len: usize, protection: i32, flags: i32, file: i32) -> io::Result<Memory> {
        // SAFETY: a new mapping where the kernel likes it.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Memory { start: start.cast(), len })
        }
    }

    /// Of zeros.
    pub fn new(len: usize) -> io::Result<Memory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Memory::map(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// The first bytes of a file, to read.
    pub fn of(file: &File, len: u64, shared: bool) -> io::Result<Memory> {
        let flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        Memory::map(len as usize, libc::PROT_READ, flags, file.as_raw_fd())
    }

    /// The same, to write.
    pub fn to(file: &File, len: u64) -> io::Result<Memory> {
        Memory::map(len as usize, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Own memory only, not a mapping of a file.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is that long, and this borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// The same, to look at.
    pub fn shown(&self) -> &[u8] {
        // SAFETY: as above, but for others who look.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Copies out of a mapping of a file.
    pub fn load(&self, at: u64, into: &mut [u8]) {
        assert!(at as usize + into.len() <= self.len && at.is_multiple_of(8));
        for (number, word) in into.chunks_exact_mut(8).enumerate() {
            // SAFETY: inside the mapping, aligned to its words.
            let value = unsafe { self.start.add(at as usize + 8 * number).cast::<u64>().read_volatile() };
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// Copies into a mapping of a file.
    pub fn store(&self, at: u64, from: &[u8]) {
        assert!(at as usize + from.len() <= self.len && at.is_multiple_of(8));
        for (number, word) in from.chunks_exact(8).enumerate() {
            let value = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            // SAFETY: inside the mapping, aligned to its words.
            unsafe { self.start.add(at as usize + 8 * number).cast::<u64>().write_volatile(value) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and nothing borrows of it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// `struct iocb` of little-endian machines.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct IoEvent {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// How operations are handed to the kernel and come back.
pub enum Queue {
    /// libaio: a context.
    Aio(libc::c_ulong),
    /// io_uring.
    Ring(Box<IoUring>),
}

/// Operations of one call, at most.
pub const PARTS: usize = 8;

impl Queue {
    /// libaio.
    pub fn aio() -> io::Result<Queue> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number there.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, PARTS as libc::c_long, &raw mut context) })?;
        Ok(Queue::Aio(context))
    }

    /// io_uring.
    pub fn ring() -> io::Result<Queue> {
        Ok(Queue::Ring(Box::new(IoUring::new(PARTS as u32)?)))
    }

    /// Reads or writes consecutive pieces of `memory` at `at`, all at once; `done` is told of each (its number and what it
    /// gave) as it completes.
    pub fn run(
        &mut self,
        file: &File,
        write: bool,
        at: u64,
        pieces: &mut [&mut [u8]],
        mut done: impl FnMut(usize, usize),
    ) -> io::Result<()> {
        assert!(pieces.len() <= PARTS);
        let mut offset = at;
        let mut all = Vec::new();
        for piece in pieces.iter_mut() {
            all.push((piece.as_mut_ptr(), piece.len(), offset));
            offset += piece.len() as u64;
        }
        match self {
            Queue::Aio(context) => Queue::run_aio(*context, file, write, &all, &mut done),
            Queue::Ring(ring) => Queue::run_ring(ring, file, write, &all, &mut done),
        }
    }

    fn run_aio(
        context: libc::c_ulong,
        file: &File,
        write: bool,
        pieces: &[(*mut u8, usize, u64)],
        done: &mut dyn FnMut(usize, usize),
    ) -> io::Result<()> {
        let block = |(number, (start, len, offset)): (usize, &(*mut u8, usize, u64))| Iocb {
            data: number as u64,
            opcode: u16::from(write),
            file: file.as_raw_fd() as u32,
            buffer: *start as u64,
            len: *len as u64,
            offset: *offset as i64,
            ..Iocb::default()
        };
        let mut blocks: Vec<Iocb> = pieces.iter().enumerate().map(block).collect();
        let mut list: Vec<*mut Iocb> = blocks.iter_mut().map(|b| b as *mut Iocb).collect();
        let (mut submitted, mut failed) = (0, None);
        while submitted < list.len() && failed.is_none() {
            let rest = &mut list[submitted..];
            // SAFETY: the blocks and what they point to live until all of them came back, below.
            let taken = unsafe {
                libc::syscall(libc::SYS_io_submit, context, rest.len() as libc::c_long, rest.as_mut_ptr())
            };
            match checked(taken) {
                Ok(taken) => submitted += taken,
                Err(error) => failed = Some(error),
            }
        }
        let mut came = 0;
        while came < submitted {
            let mut events = [IoEvent::default(); PARTS];
            // SAFETY: there is room for as many events.
            let some = unsafe {
                let none = std::ptr::null_mut::<libc::timespec>();
                libc::syscall(
                    libc::SYS_io_getevents,
                    context,
                    1 as libc::c_long,
                    PARTS as libc::c_long,
                    events.as_mut_ptr(),
                    none,
                )
            };
            let some = match checked(some) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                some => some?,
            };
            for event in &events[..some] {
                came += 1;
                match answered(event.result) {
                    Ok(len) => done(event.data as usize, len),
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn run_ring(
        ring: &mut IoUring,
        file: &File,
        write: bool,
        pieces: &[(*mut u8, usize, u64)],
        done: &mut dyn FnMut(usize, usize),
    ) -> io::Result<()> {
        let file = types::Fd(file.as_raw_fd());
        for (number, &(start, len, offset)) in pieces.iter().enumerate() {
            let entry = match write {
                true => opcode::Write::new(file, start, len as u32).offset(offset).build(),
                false => opcode::Read::new(file, start, len as u32).offset(offset).build(),
            };
            // SAFETY: what it points to lives until all came back, below.
            unsafe { ring.submission().push(&entry.user_data(number as u64)) }.map_err(io::Error::other)?;
        }
        let (mut came, mut failed) = (0, None);
        while came < pieces.len() {
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in ring.completion() {
                came += 1;
                match answered(event.result().into()) {
                    Ok(len) => done(event.user_data() as usize, len),
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Queue::Aio(context) = self {
            // SAFETY: a context of this process, with nothing under way.
            unsafe { libc::syscall(libc::SYS_io_destroy, *context) };
        }
    }
}

/// The two ends of a pipe, to read and to write.
pub struct Pipe(pub File, pub File);

/// Bytes that fit into a pipe at once.
pub const PIPE_LEN: usize = 64 << 10;

impl Pipe {
    /// An empty one.
    pub fn new() -> io::Result<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: the kernel writes two descriptors there, which nobody else has.
        unsafe {
            checked(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC).into())?;
            Ok(Pipe(File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])))
        }
    }
}

/// splice(2) of at most `len` bytes; a pipe has no offset.
pub fn splice(
    from: &File,
    from_at: Option<u64>,
    to: &File,
    to_at: Option<u64>,
    len: usize,
) -> io::Result<usize> {
    let (mut from_at, mut to_at) = (from_at.map(|at| at as i64), to_at.map(|at| at as i64));
    let place = |at: &mut Option<i64>| at.as_mut().map_or(std::ptr::null_mut(), |at| at as *mut i64);
    // SAFETY: offsets are on the stack, or none.
    let moved = unsafe {
        libc::splice(from.as_raw_fd(), place(&mut from_at), to.as_raw_fd(), place(&mut to_at), len, 0)
    };
    checked(moved as i64)
}

/// sendfile(2) to where `to` stands.
pub fn sendfile(from: &File, mut at: i64, to: &File, len: usize) -> io::Result<usize> {
    // SAFETY: the offset is on the stack.
    checked(unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), &raw mut at, len) } as i64)
}

/// copy_file_range(2).
pub fn copy(from: &File, from_at: u64, to: &File, to_at: u64, len: usize) -> io::Result<usize> {
    let (mut from_at, mut to_at) = (from_at as i64, to_at as i64);
    // SAFETY: offsets are on the stack.
    let copied = unsafe {
        libc::copy_file_range(from.as_raw_fd(), &raw mut from_at, to.as_raw_fd(), &raw mut to_at, len, 0)
    };
    checked(copied as i64)
}

/// A file of no file system but memory.
pub fn in_memory() -> io::Result<File> {
    // SAFETY: a new descriptor, which nobody else has.
    unsafe {
        let file = checked(libc::memfd_create(c"matrix".as_ptr(), libc::MFD_CLOEXEC).into())?;
        Ok(File::from_raw_fd(file as i32))
    }
}
