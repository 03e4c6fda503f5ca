//! The ways to read the file.

use std::{
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::PathBuf,
};

use crate::{
    calls::{Memory, PIPE_LEN, Pipe, Queue, checked, copy, in_memory, sendfile, splice},
    judge::{BASE, MAX, PAGE},
};

/// One way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Pread,
    Preadv2,
    Readahead,
    Direct,
    Aio,
    AioDirect,
    Ring,
    RingDirect,
    Shared,
    Private,
    Splice,
    Sendfile,
    Copy,
}

/// All of them, by name.
pub const WAYS: [(&str, Way); 13] = [
    ("pread", Way::Pread),
    ("preadv2", Way::Preadv2),
    ("readahead", Way::Readahead),
    ("direct", Way::Direct),
    ("aio", Way::Aio),
    ("aio-direct", Way::AioDirect),
    ("ring", Way::Ring),
    ("ring-direct", Way::RingDirect),
    ("shared", Way::Shared),
    ("private", Way::Private),
    ("splice", Way::Splice),
    ("sendfile", Way::Sendfile),
    ("copy", Way::Copy),
];

impl Way {
    /// Round the page cache.
    pub fn is_direct(self) -> bool {
        matches!(self, Way::Direct | Way::AioDirect | Way::RingDirect)
    }

    /// For these the kernel looks at the end of the file that it knows, and does not ask for it: where another mount made the
    /// file longer they need a stat first.
    fn knows_old_end(self) -> bool {
        matches!(self, Way::Splice | Way::Sendfile | Way::Copy | Way::AioDirect | Way::RingDirect)
    }

    /// How much of the file it can look at: beyond the end of a file a mapping is a fault.
    pub fn limit(self) -> u64 {
        if matches!(self, Way::Shared | Way::Private) { BASE } else { MAX }
    }
}

/// A reader of one way.
pub struct Reader {
    way: Way,
    path: PathBuf,
    /// Whether the file is opened anew for each read.
    again: bool,
    /// Whether others make the file longer.
    elsewhere: bool,
    file: Option<File>,
    map: Option<Memory>,
    queue: Option<Queue>,
    pipe: Pipe,
    other: File,
    memory: Memory,
}

impl Reader {
    /// Of this file, not opened yet; `scratch` is a file of the reader's own beside it.
    pub fn new(
        way: Way,
        path: PathBuf,
        scratch: PathBuf,
        again: bool,
        elsewhere: bool,
    ) -> io::Result<Reader> {
        let other = match way {
            Way::Copy => File::options().read(true).write(true).create(true).truncate(true).open(scratch)?,
            _ => in_memory()?,
        };
        let queue = match way {
            Way::Aio | Way::AioDirect => Some(Queue::aio()?),
            Way::Ring | Way::RingDirect => Some(Queue::ring()?),
            _ => None,
        };
        let memory = Memory::new(MAX as usize)?;
        Ok(Reader {
            way,
            path,
            again,
            elsewhere,
            file: None,
            map: None,
            queue,
            pipe: Pipe::new()?,
            other,
            memory,
        })
    }

    /// The bytes of the file at `at`, fewer than `len` only at its end.
    pub fn read(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        if self.again || self.file.is_none() {
            let flags = if self.way.is_direct() { libc::O_DIRECT } else { 0 };
            let file = File::options().read(true).custom_flags(flags).open(&self.path)?;
            let map = match self.way {
                Way::Shared | Way::Private => Some(Memory::of(&file, BASE, self.way == Way::Shared)?),
                _ => None,
            };
            // What was open before is closed only now, or nothing would ever be closed last.
            (self.file, self.map) = (None, None);
            (self.file, self.map) = (Some(file), map);
        }
        let (Some(file), memory) = (&self.file, self.memory.bytes()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if self.elsewhere && self.way.knows_old_end() {
            file.metadata()?;
        }
        if self.way == Way::Readahead {
            let (fd, at, len) = (file.as_raw_fd(), at as i64, len as i64);
            // SAFETY: no memory is passed. Advice, of which nothing comes back.
            unsafe {
                libc::posix_fadvise(fd, at, len, libc::POSIX_FADV_WILLNEED);
                libc::readahead(fd, at, len as usize);
            }
        }
        if self.way == Way::Private {
            // The first touch of a mapping; later ones must show no change.
            let map = Memory::of(file, BASE, false)?;
            map.load(at, &mut memory[..len]);
            return Ok(&self.memory.shown()[..len]);
        }
        let mut got = 0;
        while got < len {
            let (into, at) = (&mut memory[got..len], at + got as u64);
            let some = match self.way {
                Way::Shared | Way::Private => {
                    let map = self.map.as_ref().ok_or(io::ErrorKind::NotFound)?;
                    map.load(at, into);
                    into.len()
                }
                Way::Pread | Way::Readahead | Way::Direct => file.read_at(into, at)?,
                Way::Preadv2 => {
                    let (a, b) = into.split_at_mut(into.len() / 2);
                    let parts = [a, b]
                        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
                    let fd = file.as_raw_fd();
                    // SAFETY: two pieces of memory that nobody else uses.
                    let read = unsafe { libc::preadv2(fd, parts.as_ptr(), 2, at as i64, 0) };
                    checked(read as i64)?
                }
                Way::Aio | Way::AioDirect | Way::Ring | Way::RingDirect => {
                    let queue = self.queue.as_mut().ok_or(io::ErrorKind::NotFound)?;
                    let mut read = 0;
                    queue.run(file, false, at, &mut [into], |_, some| read = some)?;
                    read
                }
                Way::Splice => {
                    let some = splice(file, Some(at), &self.pipe.1, None, into.len().min(PIPE_LEN))?;
                    io::Read::read_exact(&mut &self.pipe.0, &mut into[..some])?;
                    some
                }
                Way::Sendfile => {
                    io::Seek::rewind(&mut &self.other)?;
                    let some = sendfile(file, at as i64, &self.other, into.len())?;
                    self.other.read_exact_at(&mut into[..some], 0)?;
                    some
                }
                Way::Copy => {
                    let some = copy(file, at, &self.other, at, into.len())?;
                    self.other.read_exact_at(&mut into[..some], at)?;
                    some
                }
            };
            got += some;
            // O_DIRECT ends with what is no whole page, and cannot go on there.
            if some == 0 || self.way.is_direct() && !some.is_multiple_of(PAGE as usize) {
                break;
            }
        }
        if self.again {
            (self.file, self.map) = (None, None);
        }
        Ok(&self.memory.shown()[..got])
    }
}
