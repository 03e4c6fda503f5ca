//! One entry of a queue: memory shared with the kernel, and whose it is.
//!
//! An entry is the kernel's from registration, or from the commit of an answer, until the completion
//! that brings a request; then it is ours until its answer is committed. The memory lives as long as the
//! entry, and the entry as long as the ring, a request or a lent payload needs it.
//!
//! The data of a WRITE is lent to its handler where it is. An answer that comes while it is still lent
//! waits for its return, since the answer is written over it.

use std::{io, ptr::NonNull, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use zerocopy::{FromBytes, IntoBytes};

use super::answered::Answered;
use crate::{
    abi::{self, OutHeader, UringEntInOut},
    buffers::{Lease, Lender, Payload},
    reply::Sink,
    request::{BadRequest, Operation, Request},
    sys,
};

/// Places in the page behind the payload.
const IN_OUT: usize = 0;
const OP_IN: usize = IN_OUT + abi::URING_IN_OUT_HEADER_LEN;
const ENT_IN_OUT: usize = OP_IN + abi::URING_OP_IN_LEN;
const HEADERS_LEN: usize = ENT_IN_OUT + size_of::<UringEntInOut>();
const IOVECS: usize = 512;
const PAGE: usize = 4096;

/// Whose the memory is.
enum Owner {
    Kernel,
    /// A request is being served; its data may be lent, its answer may wait for the return.
    Us {
        lent: bool,
        answer: Option<(OutHeader, Vec<u8>)>,
    },
    /// The answer is in the entry, to be committed.
    Answered,
}

/// See the file's head.
pub struct Entry {
    number: u32,
    memory: NonNull<u8>,
    payload_len: usize,
    owner: Mutex<Owner>,
    queue: Arc<Answered>,
}

// SAFETY: `memory` is a mapping of its own; who may touch it when is kept in `owner`.
unsafe impl Send for Entry {}
// SAFETY: the same; shared access goes through `owner`'s lock or a lease.
unsafe impl Sync for Entry {}

impl Entry {
    /// Fresh memory; the kernel's from the start.
    pub fn new(number: u32, payload_len: usize, queue: Arc<Answered>) -> io::Result<Arc<Entry>> {
        let memory = NonNull::new(sys::map_memory(payload_len + PAGE)?);
        let memory = memory.ok_or(io::Error::other("a mapping at address 0"))?;
        let entry = Entry { number, memory, payload_len, owner: Mutex::new(Owner::Kernel), queue };
        let part = |at: usize, len| libc::iovec { iov_base: entry.at(at).cast(), iov_len: len };
        let iovecs = [part(payload_len, HEADERS_LEN), part(0, payload_len)];
        // SAFETY: IOVECS lies aligned in the last page, behind the headers, with room for two.
        unsafe { entry.at(payload_len + IOVECS).cast::<[libc::iovec; 2]>().write(iovecs) };
        Ok(Arc::new(entry))
    }

    /// Place of the two iovecs (headers, payload) that a registration names.
    pub fn iovecs(&self) -> u64 {
        self.at(self.payload_len + IOVECS) as u64
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.payload_len + PAGE);
        // SAFETY: within the mapping.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    /// Bytes of the mapping. The caller knows that they are ours to read.
    unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        debug_assert!(offset + len <= self.payload_len + PAGE);
        // SAFETY: within the mapping, which lives as long as `self`; initialised (zeros at first).
        unsafe { std::slice::from_raw_parts(self.at(offset), len) }
    }

    /// Copies into the mapping. The caller knows that it is ours to write.
    unsafe fn put(&self, offset: usize, data: &[u8]) {
        debug_assert!(offset + data.len() <= self.payload_len + PAGE);
        // SAFETY: within the mapping; `data` is memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at(offset), data.len()) };
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock()
    }

    fn ent_in_out(&self) -> UringEntInOut {
        // SAFETY: called only while the entry is ours.
        let bytes = unsafe { self.bytes(self.payload_len + ENT_IN_OUT, size_of::<UringEntInOut>()) };
        UringEntInOut::read_from_bytes(bytes).unwrap_or_default()
    }

    /// The kernel has put a request into the entry: takes it, and lends out the data of a WRITE.
    pub fn take_request(self: &Arc<Entry>) -> Result<(Request, Option<Payload>), BadRequest> {
        let mut owner = self.owner();
        *owner = Owner::Us { lent: false, answer: None };
        let header_len = size_of::<abi::InHeader>();
        let payload_len = (self.ent_in_out().payload_sz as usize).min(self.payload_len);
        // SAFETY: the completion was seen, no answer is given yet: the entry is ours to read.
        let header = unsafe { self.bytes(self.payload_len + IN_OUT, header_len) };
        // SAFETY: the same.
        let op = unsafe { self.bytes(self.payload_len + OP_IN, abi::URING_OP_IN_LEN) };
        // SAFETY: the same; `payload_len` is within the payload.
        let payload = unsafe { self.bytes(0, payload_len) };
        let whole = abi::InHeader::read_from_bytes(header).map_or(0, |h| h.len as usize);
        let op_len = whole.saturating_sub(header_len + payload_len).min(op.len());
        let request = Request::decode_apart(header, &op[..op_len], payload)?;
        let payload = matches!(request.operation, Operation::Write { .. }).then(|| {
            *owner = Owner::Us { lent: true, answer: None };
            // SAFETY: `payload_len` is within the payload, and an answer waits while it is lent.
            Payload::Entry(unsafe { Lease::new(self.clone(), payload_len) })
        });
        Ok((request, payload))
    }

    /// What names the request when its answer is committed; the entry is the kernel's again.
    pub fn commit_id(&self) -> u64 {
        let mut owner = self.owner();
        debug_assert!(matches!(*owner, Owner::Answered));
        let id = self.ent_in_out().commit_id;
        *owner = Owner::Kernel;
        id
    }

    /// Writes the answer into the entry. The caller holds the lock, and nothing is lent.
    fn put_answer(&self, owner: &mut Owner, header: OutHeader, parts: &[&[u8]]) {
        let mut end = 0;
        for part in parts {
            // SAFETY: the entry is ours, nothing is lent, and `send` has compared the length.
            unsafe { self.put(end, part) };
            end += part.len();
        }
        let ent = UringEntInOut { payload_sz: end as u32, ..self.ent_in_out() };
        // SAFETY: as above; both structures lie in the last page.
        unsafe { self.put(self.payload_len + ENT_IN_OUT, ent.as_bytes()) };
        // SAFETY: the same.
        unsafe { self.put(self.payload_len + IN_OUT, header.as_bytes()) };
        *owner = Owner::Answered;
    }
}

impl Sink for Entry {
    fn wait_room(&self) -> Option<&Arc<Semaphore>> {
        Some(&self.queue.waits)
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let (error, parts): (i32, &[&[u8]]) =
            if len > self.payload_len { (libc::EIO, &[]) } else { (error, parts) };
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error: -error, unique };
        {
            let mut owner = self.owner();
            match &mut *owner {
                Owner::Us { lent: true, answer } => {
                    *answer = Some((header, parts.concat()));
                    return Ok(());
                }
                Owner::Us { lent: false, .. } => self.put_answer(&mut owner, header, parts),
                // A second answer: the first one stands.
                Owner::Kernel | Owner::Answered => return Ok(()),
            }
        }
        self.queue.ready(self.number);
        Ok(())
    }
}

impl Lender for Entry {
    unsafe fn lent(&self, len: usize) -> &[u8] {
        // SAFETY: while it is lent nobody writes to the payload: the answer waits, and with it the kernel.
        unsafe { self.bytes(0, len) }
    }

    fn take_back(&self) {
        {
            let mut owner = self.owner();
            let Owner::Us { lent, answer } = &mut *owner else { return };
            *lent = false;
            let Some((header, bytes)) = answer.take() else { return };
            self.put_answer(&mut owner, header, &[&bytes]);
        }
        self.queue.ready(self.number);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, with its length; the ring that named it to the kernel is gone.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.payload_len + PAGE) };
    }
}
