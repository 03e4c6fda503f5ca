//! Memory that requests are read into. A buffer is as large as the largest request; it is offset so
//! that the data of a WRITE starts on a page. A large write keeps its buffer until it is answered, so
//! that the data is not copied; the reader takes another one. At most `lent_max` are lent out so:
//! beyond that the reader waits, and the kernel keeps the requests.

use std::{ops::Range, sync::Arc};

use base::{AlignedBuf, units::UNIT};
use parking_lot::Mutex;
use tokio::{
    runtime,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::abi;

/// Where a request begins in its buffer: the data of a WRITE then begins at [`UNIT`].
const START: usize = UNIT - size_of::<abi::InHeader>() - size_of::<abi::WriteIn>();
/// Writes up to this size are copied out of the buffer, larger ones take it along.
const COPY_MAX: usize = 16 << 10;

/// The buffers of a mount.
pub struct Buffers {
    idle: Mutex<Vec<AlignedBuf>>,
    idle_max: usize,
    request_size_max: usize,
    lent: Arc<Semaphore>,
    runtime: runtime::Handle,
}

/// A buffer in a reader's hands.
pub struct Buffer {
    memory: Option<AlignedBuf>,
    home: Arc<Buffers>,
    lent: Option<OwnedSemaphorePermit>,
}

/// The data of a WRITE.
pub enum Payload {
    /// Small, copied.
    Copied(Vec<u8>),
    /// In the buffer it was read into.
    Kept(Buffer, Range<usize>),
    /// In the ring entry it came in.
    Entry(Lease),
}

/// Memory that lends the data of one WRITE at a time.
pub trait Lender: Send + Sync {
    /// The first `len` bytes.
    ///
    /// # Safety
    /// Only while they are lent, and at most as many as were.
    unsafe fn lent(&self, len: usize) -> &[u8];
    /// They are not used any more.
    fn take_back(&self);
}

/// The data of a WRITE, in the memory that it came in.
pub struct Lease {
    from: Arc<dyn Lender>,
    len: usize,
}

impl Lease {
    /// `len` bytes that `from` lends until this is dropped.
    ///
    /// # Safety
    /// `from` holds so many, and nobody writes there before [`Lender::take_back`].
    pub unsafe fn new(from: Arc<dyn Lender>, len: usize) -> Lease {
        Lease { from, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: lent since `new`, as it promised, and until the drop.
        unsafe { self.from.lent(self.len) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.from.take_back();
    }
}

impl Payload {
    /// The data.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Copied(bytes) => bytes,
            Payload::Kept(buffer, range) => &buffer.request()[range.clone()],
            Payload::Entry(lease) => lease.bytes(),
        }
    }
}

impl Buffers {
    /// Buffers for requests with up to `max_write` bytes of data; one for each of `readers` and
    /// `lent_max` more at most.
    pub fn new(max_write: usize, readers: usize, lent_max: usize, runtime: runtime::Handle) -> Arc<Buffers> {
        Arc::new(Buffers {
            idle: Mutex::default(),
            idle_max: readers + lent_max,
            request_size_max: UNIT - START + max_write,
            lent: Arc::new(Semaphore::new(lent_max)),
            runtime,
        })
    }

    /// An idle buffer, or a new one.
    pub fn take(self: &Arc<Self>) -> Buffer {
        let idle = self.idle.lock().pop();
        let memory = idle.unwrap_or_else(|| AlignedBuf::zeroed(START + self.request_size_max));
        Buffer { memory: Some(memory), home: self.clone(), lent: None }
    }
}

impl Buffer {
    /// The whole space for a request.
    pub fn space(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Some(memory) => &mut memory[START..],
            None => &mut [],
        }
    }

    /// The same, to read.
    pub fn request(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[START..])
    }

    /// The data at `range` of the request. Small data leaves the buffer to the caller; large data takes
    /// it, waiting if too many are lent.
    pub fn payload(mut self, range: Range<usize>) -> (Payload, Option<Buffer>) {
        if range.len() <= COPY_MAX {
            return (Payload::Copied(self.request()[range].to_vec()), Some(self));
        }
        let lent = self.home.lent.clone();
        let permit = match lent.clone().try_acquire_owned() {
            Ok(permit) => Some(permit),
            // Reader threads are not the runtime's: they may block.
            Err(_) => self.home.runtime.block_on(lent.acquire_owned()).ok(),
        };
        self.lent = permit;
        (Payload::Kept(self, range), None)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        drop(self.lent.take());
        let mut idle = self.home.idle.lock();
        if idle.len() < self.home.idle_max {
            idle.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_data_keeps_its_buffer_and_starts_on_a_page() {
        let buffers = Buffers::new(1 << 20, 1, 4, runtime::Handle::current());
        let mut buffer = buffers.take();
        assert_eq!(buffer.space().len(), 80 + (1 << 20));
        buffer.space()[80] = 42;
        let (payload, left) = buffer.payload(80..80 + (1 << 20));
        assert!(left.is_none());
        assert_eq!(payload.bytes()[0], 42);
        assert_eq!(payload.bytes().as_ptr() as usize % UNIT, 0);
        drop(payload);
        let (payload, left) = buffers.take().payload(80..90);
        assert_eq!((payload.bytes()[0], left.is_some()), (42, true), "the idle buffer came back");
    }
}
