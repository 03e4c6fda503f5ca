//! Files in memory, read where they lie: the mapping of a data file on tmpfs, and lent parts of it. A reply is then sent
//! from the page cache itself, without a copy into a buffer and without another thread.
//! The unsafe code: the file is mapped once, for reading; what is lent is not written while its token lives.

use std::{fs::File, io, os::fd::AsRawFd, ptr::NonNull, sync::Arc};

use base::units::UNIT;
use bytes::Bytes;

/// A file's mapping. Unmapped when the last lent part is gone.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is memory that is only read through it.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// All of the file as it is long now.
    pub fn of(file: &File) -> io::Result<Map> {
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: a new mapping, anywhere.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Map { start, len })
    }

    /// Lends `len` bytes at `offset`, both multiples of 4 KiB. They must stay as they are until `token` is dropped. Pages
    /// that the file does not have any more are an error here. If somebody cuts the file off after that, whoever touches
    /// them gets SIGBUS: the process ends, as by a kill.
    pub fn lend<T: Send + 'static>(
        self: &Arc<Map>,
        offset: usize,
        len: usize,
        token: T,
    ) -> io::Result<Bytes> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || !offset.is_multiple_of(UNIT) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: within the mapping, as just checked.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: within the mapping; the advice does not change its contents.
        if unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_READ) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Bytes::from_owner(Lent { start, len, _map: Arc::clone(self), _token: token }))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length; nobody has a part any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

struct Lent<T> {
    start: NonNull<u8>,
    len: usize,
    _map: Arc<Map>,
    _token: T,
}

// SAFETY: a lent part is a shared reference to bytes, as `&[u8]` is.
unsafe impl<T: Send> Send for Lent<T> {}

impl<T> AsRef<[u8]> for Lent<T> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: within the mapping, which `_map` keeps; whoever lent it keeps the bytes as they are.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_part_lives_on_and_what_is_not_there_is_an_error() {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all(&[7; 4 * UNIT]).unwrap();
        let map = Arc::new(Map::of(&file).unwrap());
        let token = Arc::new(());
        let part = map.lend(UNIT, 2 * UNIT, Arc::clone(&token)).unwrap();
        for (offset, len) in [(3 * UNIT, 2 * UNIT), (usize::MAX - UNIT + 1, UNIT), (1, UNIT)] {
            assert!(map.lend(offset, len, ()).is_err(), "{offset}");
        }
        drop(map);
        assert!(part.iter().all(|b| *b == 7) && Arc::strong_count(&token) == 2);
        drop(part);
        assert_eq!(Arc::strong_count(&token), 1);

        let map = Arc::new(Map::of(&file).unwrap());
        file.set_len(UNIT as u64).unwrap();
        assert!(map.lend(UNIT, UNIT, ()).is_err());
    }
}
