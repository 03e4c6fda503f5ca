//! The ways to change the file.

use std::{
    fs::File,
    io,
    ops::Range,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::PathBuf,
};

use crate::{
    calls::{Memory, PARTS, PIPE_LEN, Pipe, Queue, checked, copy, in_memory, sendfile, splice},
    judge::{BASE, CELL, Judge, MAX, PAGE, Random, stamp},
};

/// One way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Pwrite,
    Sync,
    Dsync,
    RwfDsync,
    Direct,
    Aio,
    AioDirect,
    Ring,
    RingDirect,
    Map,
    Splice,
    Sendfile,
    Copy,
    Append,
    AppendDirect,
    Punch,
    Zero,
    Truncate,
}

/// All of them, by name.
pub const WAYS: [(&str, Way); 18] = [
    ("pwrite", Way::Pwrite),
    ("sync", Way::Sync),
    ("dsync", Way::Dsync),
    ("rwf-dsync", Way::RwfDsync),
    ("direct", Way::Direct),
    ("aio", Way::Aio),
    ("aio-direct", Way::AioDirect),
    ("ring", Way::Ring),
    ("ring-direct", Way::RingDirect),
    ("map", Way::Map),
    ("splice", Way::Splice),
    ("sendfile", Way::Sendfile),
    ("copy", Way::Copy),
    ("append", Way::Append),
    ("append-direct", Way::AppendDirect),
    ("punch", Way::Punch),
    ("zero", Way::Zero),
    ("truncate", Way::Truncate),
];

/// What asynchronous O_DIRECT writes were seen to leave old pages behind with.
const LARGE: u64 = 655_360;

/// A writer of one way: the only one.
pub struct Writer<'a> {
    way: Way,
    judge: &'a Judge,
    file: File,
    map: Option<Memory>,
    queue: Option<Queue>,
    pipe: Pipe,
    other: File,
    memory: Memory,
    random: Random,
    turn: u64,
    /// O_DIRECT of whole pages only, as other file systems want it.
    whole_pages: bool,
}

impl Writer<'_> {
    /// Of this file; `scratch` is a file of the writer's own beside it.
    pub fn new(
        way: Way,
        path: PathBuf,
        scratch: PathBuf,
        judge: &Judge,
        mut random: Random,
        whole_pages: bool,
    ) -> io::Result<Writer<'_>> {
        let flags = match way {
            Way::Sync => libc::O_SYNC,
            Way::Dsync => libc::O_DSYNC,
            Way::Direct | Way::AioDirect | Way::RingDirect | Way::AppendDirect => libc::O_DIRECT,
            _ => 0,
        };
        let append = matches!(way, Way::Append | Way::AppendDirect);
        // Who may also read may have it mapped.
        let read = way == Way::Map || random.below(2) == 0;
        let file = File::options().read(read).write(true).append(append).custom_flags(flags).open(path)?;
        let map = if way == Way::Map { Some(Memory::to(&file, BASE)?) } else { None };
        let other = match way {
            Way::Copy => File::options().read(true).write(true).create(true).truncate(true).open(scratch)?,
            _ => in_memory()?,
        };
        let queue = match way {
            Way::Aio | Way::AioDirect => Some(Queue::aio()?),
            Way::Ring | Way::RingDirect => Some(Queue::ring()?),
            _ => None,
        };
        let whole_pages = whole_pages && flags == libc::O_DIRECT;
        let (pipe, memory) = (Pipe::new()?, Memory::new(LARGE as usize)?);
        Ok(Writer { way, judge, file, map, queue, pipe, other, memory, random, turn: 0, whole_pages })
    }

    /// How many bytes, and from where they may begin.
    fn size(&mut self) -> (u64, u64) {
        match self.random.below(3) {
            0 => (LARGE, PAGE),
            1 => ((1 + self.random.below(16)) * PAGE, PAGE),
            _ if self.whole_pages => (PAGE, PAGE),
            _ => ((1 + self.random.below(300)) * CELL, CELL),
        }
    }

    /// Where the file always is.
    fn place(&mut self) -> Range<u64> {
        let (len, unit) = self.size();
        let at = self.random.below((BASE - len) / unit + 1) * unit;
        at..at + len
    }

    /// One change; what it was of.
    pub fn step(&mut self) -> io::Result<Range<u64>> {
        self.turn += 1;
        match self.way {
            Way::Append | Way::AppendDirect => self.append(),
            Way::Truncate => self.resize(),
            Way::Punch | Way::Zero if self.turn.is_multiple_of(2) => self.zeros(),
            _ => {
                let range = self.place();
                self.fill(&range)?;
                Ok(range)
            }
        }
    }

    fn append(&mut self) -> io::Result<Range<u64>> {
        let (size, (len, _)) = (self.judge.size(), self.size());
        let len = len.min(128 << 10);
        if size + len > MAX {
            return self.cut(BASE);
        }
        let resized = self.judge.resize(size + len);
        let range = size..size + len;
        self.fill(&range)?;
        resized();
        Ok(range)
    }

    fn resize(&mut self) -> io::Result<Range<u64>> {
        let (size, place) = (self.judge.size(), BASE + self.random.below((MAX - BASE) / CELL) * CELL);
        if place < size {
            return self.cut(place);
        }
        // Longer, and then longer still by a write beyond the end: what is between are zeros.
        let len = (1 + self.random.below(300)) * CELL;
        let resized = self.judge.resize(place);
        self.file.set_len(place)?;
        resized();
        let end = (place + CELL + len).min(MAX);
        if place + CELL < end {
            let resized = self.judge.resize(end);
            self.fill(&(place + CELL..end))?;
            resized();
        }
        Ok(size..end)
    }

    fn cut(&mut self, to: u64) -> io::Result<Range<u64>> {
        let range = to..MAX;
        let generation = self.judge.begin(&range, true);
        let resized = self.judge.resize(to);
        self.file.set_len(to)?;
        self.judge.end(&range, generation);
        resized();
        Ok(to.saturating_sub(PAGE)..MAX)
    }

    fn zeros(&mut self) -> io::Result<Range<u64>> {
        let range = self.place();
        let mode = match self.way {
            Way::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            _ => libc::FALLOC_FL_ZERO_RANGE,
        };
        let generation = self.judge.begin(&range, true);
        let (at, len) = (range.start as i64, (range.end - range.start) as i64);
        // SAFETY: no memory is passed.
        checked(unsafe { libc::fallocate(self.file.as_raw_fd(), mode, at, len) }.into())?;
        self.judge.end(&range, generation);
        Ok(range)
    }

    fn fill(&mut self, range: &Range<u64>) -> io::Result<()> {
        let (at, len) = (range.start, (range.end - range.start) as usize);
        let generation = self.judge.begin(range, false);
        let data = &mut self.memory.bytes()[..len];
        stamp(data, at, generation);
        if self.way == Way::Copy {
            self.other.write_all_at(data, at)?;
        } else if self.way == Way::Sendfile {
            self.other.write_all_at(data, 0)?;
            io::Seek::seek(&mut &self.file, io::SeekFrom::Start(at))?;
        }
        if let Some(map) = &self.map {
            map.store(at, data);
        } else if let Some(queue) = &mut self.queue {
            // Several at once; each is done when it is done.
            let piece =
                len.div_ceil(1 + self.random.below(PARTS as u64) as usize).next_multiple_of(PAGE as usize);
            let mut pieces: Vec<&mut [u8]> = data.chunks_mut(piece).collect();
            let places: Vec<Range<u64>> = (0..pieces.len())
                .map(|n| (at + (n * piece) as u64)..(at + ((n + 1) * piece) as u64).min(range.end))
                .collect();
            let (mut short, judge) = (false, self.judge);
            queue.run(&self.file, true, at, &mut pieces, |number, written| {
                short |= written as u64 != places[number].end - places[number].start;
                judge.end(&places[number], generation);
            })?;
            if short {
                return Err(io::ErrorKind::WriteZero.into());
            }
        } else {
            let mut done = 0;
            while done < len {
                done += match self.write(&self.memory.shown()[done..len], at + done as u64, done)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    some => some,
                };
            }
        }
        self.judge.end(range, generation);
        Ok(())
    }

    /// Some of the data, of which `done` bytes are written.
    fn write(&self, data: &[u8], at: u64, done: usize) -> io::Result<usize> {
        match self.way {
            Way::Append | Way::AppendDirect => io::Write::write(&mut &self.file, data),
            Way::RwfDsync => {
                let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
                // SAFETY: the memory is only read.
                let written = unsafe {
                    libc::pwritev2(self.file.as_raw_fd(), &raw const part, 1, at as i64, libc::RWF_DSYNC)
                };
                checked(written as i64)
            }
            Way::Splice => {
                let some = data.len().min(PIPE_LEN);
                io::Write::write_all(&mut &self.pipe.1, &data[..some])?;
                let mut moved = 0;
                while moved < some {
                    moved += splice(&self.pipe.0, None, &self.file, Some(at + moved as u64), some - moved)?;
                }
                Ok(some)
            }
            Way::Sendfile => sendfile(&self.other, done as i64, &self.file, data.len()),
            Way::Copy => copy(&self.other, at, &self.file, at, data.len()),
            _ => self.file.write_at(data, at),
        }
    }
}
