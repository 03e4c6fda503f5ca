//! Memory of two processes: a ring of bytes for each direction. It owns the mapping, and nothing else of this crate touches it.
//!
//! Each ring has one writer and one reader. How far either is, it keeps for itself and only tells the other: what the other
//! tells is compared with the ring's length before use, and nothing in the memory is ever referred to, only copied out of it.
//! So the worst that a peer can do is to send other bytes, which it could anyway. The memory cannot change its length (it is sealed), so
//! that touching it cannot fail.
//!
//! A ring that is empty begins again at its first byte for a small message, so that these go by the same few pages, which are in the CPU's cache, and
//! the others are not taken from the system before something large comes. Its writer says where in the stream that was.
#![allow(unsafe_code)]

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

/// Bytes of each ring: few enough that what was written is in the CPU's cache when it is read.
pub(crate) const RING: usize = 512 << 10;
/// Where the first ring begins: before are the numbers of both.
const HEAD: usize = 4096;
const LEN: usize = HEAD + 2 * RING;
/// Bytes between numbers: each has its own cache lines.
const APART: usize = 128;
/// Bytes copied before the other side is told, so that it begins while more is copied.
const STEP: usize = 128 << 10;
/// What an empty ring begins again for, bytes at most. Of more than this the copy would wait for what the reader's CPU has in its cache still.
const SMALL: usize = 16 << 10;
/// Less room than this is none, unless all that is left fits: a reader that makes room byte by byte does not have it filled so.
const ROOM_MIN: usize = 4 << 10;

/// The memory of a connection. Whoever has mapped it last gives it back.
pub(crate) struct Memory(NonNull<u8>);

// SAFETY: the mapping belongs to this value, and is changed by atomics and copies of raw memory only.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, of this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), LEN) };
    }
}

impl Memory {
    /// New memory, and what another process maps it by.
    pub(crate) fn create() -> io::Result<(Memory, OwnedFd)> {
        let file = memfd_create("ropewalk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, LEN as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Memory::map(&file)?, file))
    }

    /// Maps what another process has created. It must be such memory, of the length that both know, and sealed.
    pub(crate) fn map(file: &OwnedFd) -> io::Result<Memory> {
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK | SealFlags::GROW);
        if !sealed || fstat(file.as_fd())?.st_size != LEN as i64 {
            return Err(nonsense("what it passed is no memory for a connection"));
        }
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping, of the whole of a file that is open.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Memory(at))
    }

    /// Eight bytes anywhere.
    #[cfg(test)]
    pub(crate) fn scribble(&self, at: usize, value: u64) {
        // SAFETY: within the mapping, aligned, and an atomic as the numbers are; a ring's bytes may change at any time.
        let place = unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(at % (LEN / 8) * 8).cast()) };
        place.store(value, Ordering::SeqCst);
    }

    /// The ring by which one side sends: 0 is the one that connected.
    pub(crate) fn ring(&self, side: usize) -> Ring<'_> {
        Ring { memory: self, side: side & 1 }
    }
}

fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What a peer says of itself cannot be.
pub(super) fn untrue() -> io::Error {
    nonsense("its numbers in the memory of both cannot be true")
}

/// One direction.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    memory: &'a Memory,
    side: usize,
}

/// Its numbers, by their places: those of one line are told together.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Number {
    /// Bytes written since the beginning.
    Written = 0,
    /// How many these were when the ring last began again: the byte after them is its first.
    Began = 8,
    /// Bytes read.
    Read = APART,
    /// The reader knows of `Began`. One built before it did not, and leaves it 0.
    Follows = APART + 8,
    /// The reader waits for bytes, and wants to be woken.
    ReaderSleeps = 2 * APART,
    /// The writer waits for room.
    WriterSleeps = 3 * APART,
}

impl Ring<'_> {
    fn number(&self, number: Number) -> &AtomicU64 {
        let at = self.side * (HEAD / 2) + number as usize;
        // SAFETY: within the first page of the mapping, aligned, and only used as an atomic by this crate. Another process may
        // change it at any time, which an atomic allows.
        unsafe { AtomicU64::from_ptr(self.memory.0.as_ptr().add(at).cast()) }
    }

    /// What the peer says of itself, as bytes between both: it must be possible.
    fn between(written: u64, read: u64) -> io::Result<usize> {
        match written.checked_sub(read) {
            Some(between) if between <= RING as u64 => Ok(between as usize),
            _ => Err(untrue()),
        }
    }

    /// Bytes to read, for the reader, who has read so many.
    pub(crate) fn filled(&self, read: u64) -> io::Result<usize> {
        Self::between(self.number(Number::Written).load(Ordering::Acquire), read)
    }

    /// The reader tells the writer that the ring may begin again.
    pub(crate) fn follow(&self) {
        self.number(Number::Follows).store(1, Ordering::Relaxed);
    }

    /// Where in the stream the ring begins. Whatever the peer makes of it, a place is taken modulo the ring's length.
    fn began(&self) -> u64 {
        self.number(Number::Began).load(Ordering::Relaxed)
    }

    /// Room to write, for the writer, who has written so many and has `left` more: 0 if it is too little to be worth a turn.
    pub(crate) fn room(&self, written: u64, left: usize) -> io::Result<usize> {
        let room = RING - Self::between(written, self.number(Number::Read).load(Ordering::Acquire))?;
        Ok(if room < left.min(ROOM_MIN) { 0 } else { room })
    }

    /// How far the reader says that it is: only to see whether it changes.
    pub(crate) fn told_read(&self) -> u64 {
        self.number(Number::Read).load(Ordering::Relaxed)
    }

    /// The reader looks once more after this, and then waits.
    pub(crate) fn reader_sleeps(&self) {
        self.number(Number::ReaderSleeps).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The same of the writer.
    pub(crate) fn writer_sleeps(&self) {
        self.number(Number::WriterSleeps).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether the other one waits and is to be woken, after it was told something.
    fn wakes(&self, number: Number) -> bool {
        // With the fence of who goes to sleep: one of both sees what the other one wrote.
        fence(Ordering::SeqCst);
        let sleeps = self.number(number);
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::SeqCst) != 0
    }

    /// Copies what fits, in one step at most, from `skip` bytes on, of which there are `rest` then. Returns how many bytes, at least
    /// the smaller of `rest` and 4 KiB if any, and whether the reader is to be woken.
    pub(crate) fn write(
        &self,
        written: &mut u64,
        slices: &[IoSlice<'_>],
        mut skip: usize,
        rest: usize,
    ) -> io::Result<(usize, bool)> {
        let room = self.room(*written, rest)?;
        // All is read: the reader looks at nothing before it is told of more, and sees this then.
        if room == RING && rest <= SMALL && self.number(Number::Follows).load(Ordering::Relaxed) == 1 {
            self.number(Number::Began).store(*written, Ordering::Relaxed);
        }
        let (mut left, mut done) = (room.min(STEP).min(rest), 0);
        for slice in slices {
            if skip >= slice.len() {
                skip -= slice.len();
                continue;
            }
            let part = &slice[skip..slice.len().min(skip + left)];
            self.each(*written, part.len(), |at, from, len| {
                // SAFETY: `at` has room for `len` bytes in the ring, which is nobody's memory but the two processes'.
                unsafe { std::ptr::copy_nonoverlapping(part[from..from + len].as_ptr(), at, len) }
            });
            *written += part.len() as u64;
            (left, done, skip) = (left - part.len(), done + part.len(), 0);
            if left == 0 {
                break;
            }
        }
        if done == 0 {
            return Ok((0, false));
        }
        self.number(Number::Written).store(*written, Ordering::Release);
        Ok((done, self.wakes(Number::ReaderSleeps)))
    }

    /// Copies what there is and is wanted. Returns how many bytes, and whether the writer is to be woken: when half of the ring is free.
    pub(crate) fn read(&self, read: &mut u64, slices: &mut [IoSliceMut<'_>]) -> io::Result<(usize, bool)> {
        let filled = self.filled(*read)?;
        let mut left = filled;
        for slice in slices {
            let n = slice.len().min(left);
            let part = &mut slice[..n];
            self.each(*read, n, |at, to, len| {
                // SAFETY: `at` has `len` bytes in the ring. They may change meanwhile: any value is a byte.
                unsafe {
                    std::ptr::copy_nonoverlapping(at.cast_const(), part[to..to + len].as_mut_ptr(), len)
                }
            });
            *read += n as u64;
            left -= n;
            if left == 0 {
                break;
            }
        }
        if left == filled {
            return Ok((0, false));
        }
        self.number(Number::Read).store(*read, Ordering::Release);
        Ok((filled - left, left <= RING / 2 && self.wakes(Number::WriterSleeps)))
    }

    /// The one or two places of `len` bytes from `count` on, each with where it begins among them.
    fn each(&self, count: u64, len: usize, mut copy: impl FnMut(*mut u8, usize, usize)) {
        let at = (count.wrapping_sub(self.began()) % RING as u64) as usize;
        let first = len.min(RING - at);
        // SAFETY: both are within the ring of this side, which is within the mapping.
        let ring = unsafe { self.memory.0.as_ptr().add(HEAD + self.side * RING) };
        // SAFETY: the same.
        copy(unsafe { ring.add(at) }, 0, first);
        if first < len {
            copy(ring, first, len - first);
        }
    }

    #[cfg(test)]
    pub(crate) fn claim_written(&self, written: u64) {
        self.number(Number::Written).store(written, Ordering::SeqCst);
    }

    #[cfg(test)]
    pub(crate) fn claim_read(&self, read: u64) {
        self.number(Number::Read).store(read, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length and place, also round the ring's end, comes as it was sent; what does not fit waits. So also to a reader who does not
    /// know that a ring may begin again.
    #[test]
    fn bytes_come_as_they_were_sent() {
        bytes_come(true);
        bytes_come(false);
    }

    fn bytes_come(follows: bool) {
        let (here, file) = Memory::create().unwrap();
        let there = Memory::map(&file).unwrap();
        if follows {
            there.ring(0).follow();
        }
        let (mut written, mut read, mut sent) = (0, 0, 0u32);
        let mut next = |n: usize| -> Vec<u8> {
            sent += 1;
            (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ sent as u8).collect()
        };
        for len in [1, 127, 4096, STEP, 300_000, RING - 1, RING, RING + 1, 3 * RING] {
            let (a, b) = (next(len), next(7));
            let slices = [IoSlice::new(&a), IoSlice::new(&b)];
            let (mut done, mut got) = (0, Vec::new());
            while got.len() < len + 7 {
                while done < len + 7 {
                    let left = len + 7 - done;
                    let (n, _) = here.ring(0).write(&mut written, &slices, done, left).unwrap();
                    assert!(n > 0 || here.ring(0).room(written, left).unwrap() == 0);
                    done += n;
                    if n == 0 {
                        break;
                    }
                }
                let (mut x, mut y) = (vec![0; 1000], vec![0; 100_000]);
                let places = &mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y)];
                let (n, _) = there.ring(0).read(&mut read, places).unwrap();
                assert!(n > 0);
                got.extend([x, y].concat().into_iter().take(n));
            }
            assert!(got == [a, b].concat(), "{len}");
        }
        assert_eq!(there.ring(1).filled(0).unwrap(), 0);
    }

    /// Small messages that are read one by one go by the ring's first pages, however many; large ones, and all to a reader who does not know
    /// of it, round the ring. One that is not read whole yet stays where it is.
    #[test]
    fn an_empty_ring_begins_again() {
        let all = 1 + RING / 4096;
        for (follows, len, pages) in [(true, 5000, 3), (true, 2 * SMALL, all), (false, 5000, all)] {
            let (memory, file) = Memory::create().unwrap();
            let (ring, mut written, mut read, mut place) = (memory.ring(0), 0, 0, vec![0; len]);
            if follows {
                ring.follow();
            }
            for n in 0..1000u32 {
                let sent = vec![n as u8; len];
                ring.write(&mut written, &[IoSlice::new(&sent)], 0, len - 1000).unwrap();
                ring.read(&mut read, &mut [IoSliceMut::new(&mut place[..len - 2000])]).unwrap();
                ring.write(&mut written, &[IoSlice::new(&sent)], len - 1000, 1000).unwrap();
                let (n, _) = ring.read(&mut read, &mut [IoSliceMut::new(&mut place[len - 2000..])]).unwrap();
                assert!(n == 2000 && place == sent);
            }
            assert_eq!(fstat(&file).unwrap().st_blocks as usize, pages * 4096 / 512, "{follows} {len}");
        }
    }

    /// Who sleeps is woken once: the reader by any byte, the writer by half of the ring.
    #[test]
    fn who_sleeps_is_woken_once() {
        let (memory, _) = Memory::create().unwrap();
        let (ring, mut written, mut read) = (memory.ring(1), 0, 0);
        let mut place = vec![0; RING / 2];
        ring.reader_sleeps();
        assert_eq!(ring.write(&mut written, &[IoSlice::new(b"a")], 0, 1).unwrap(), (1, true));
        assert_eq!(ring.write(&mut written, &[IoSlice::new(b"b")], 0, 1).unwrap(), (1, false));
        let all = vec![7; RING];
        while ring.write(&mut written, &[IoSlice::new(&all)], 0, RING).unwrap().0 > 0 {}
        ring.writer_sleeps();
        assert_eq!(ring.read(&mut read, &mut [IoSliceMut::new(&mut place[..9])]).unwrap(), (9, false));
        assert_eq!(ring.read(&mut read, &mut [IoSliceMut::new(&mut place)]).unwrap(), (RING / 2, true));
        assert_eq!(ring.read(&mut read, &mut [IoSliceMut::new(&mut place)]).unwrap(), (RING / 2 - 9, false));
    }

    /// A reader that makes room byte by byte is not followed so: a turn of the writer is for 4 KiB, or for all that is left.
    #[test]
    fn little_room_is_none() {
        let (memory, _) = Memory::create().unwrap();
        let (ring, mut written, all) = (memory.ring(0), 0, vec![7; 2 * RING]);
        let mut write =
            |left: usize| ring.write(&mut written, &[IoSlice::new(&all[..left])], 0, left).unwrap().0;
        assert_eq!((0..RING / STEP).map(|_| write(2 * RING)).sum::<usize>(), RING);
        for read in [0, 1, 100, ROOM_MIN - 1] {
            ring.claim_read(read as u64);
            assert_eq!(write(2 * RING), 0, "{read}");
        }
        ring.claim_read(ROOM_MIN as u64);
        assert_eq!(write(2 * RING), ROOM_MIN);
        ring.claim_read(ROOM_MIN as u64 + 9);
        assert_eq!((write(10), write(9)), (0, 9));
    }

    /// Numbers that cannot be are refused by both sides, whatever they are; no byte moves.
    #[test]
    fn impossible_numbers_are_refused() {
        let (memory, _) = Memory::create().unwrap();
        let ring = memory.ring(0);
        for claimed in [RING as u64 + 1, u64::MAX, u64::MAX / 2, 1 << 32] {
            ring.claim_written(claimed);
            ring.claim_read(claimed);
            let (mut place, mut count) = ([0; 9], 0);
            let error = ring.read(&mut count, &mut [IoSliceMut::new(&mut place)]).unwrap_err();
            assert!(
                error.kind() == io::ErrorKind::InvalidData && error.to_string().contains("memory of both")
            );
            assert!(ring.write(&mut count, &[IoSlice::new(b"x")], 0, 1).is_err());
            assert_eq!((count, place), (0, [0; 9]));
        }
    }

    /// Memory that could be taken away under the reader, or that is something else, is not mapped.
    #[test]
    fn only_sealed_memory_is_mapped() {
        let file = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, LEN as u64).unwrap();
        assert!(Memory::map(&file).is_err());
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert!(Memory::map(&file).is_ok());
        let short = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&short, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert!(Memory::map(&short).is_err());
        assert!(Memory::map(&std::fs::File::open("/dev/null").unwrap().into()).is_err());
    }
}
