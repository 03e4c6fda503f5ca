//! Payloads: what is sent as it lies in memory, and where a reply's payload is received.
//!
//! While a payload is being received its [`ReceiveInto`] is owned by the connection. If the caller gives up
//! it stays there until the payload has ended or the connection is closed, and is dropped then; a page that
//! returns to its pool in `drop` is therefore never written after its reuse.

use std::any::Any;

use base::AlignedBuf;
use bytes::Bytes;

/// A payload to send: parts in order, sent by one vectored write, never copied.
#[derive(Clone, Default, Debug)]
pub struct Payload {
    parts: Vec<Bytes>,
    len: usize,
}

impl Payload {
    /// No payload.
    pub fn new() -> Payload {
        Payload::default()
    }
    /// Appends a part.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }
    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The parts, none of them empty.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }
}

impl From<Bytes> for Payload {
    fn from(part: Bytes) -> Self {
        Payload::from_iter([part])
    }
}
impl From<AlignedBuf> for Payload {
    fn from(buf: AlignedBuf) -> Self {
        Payload::from(buf.freeze())
    }
}
impl From<Vec<Bytes>> for Payload {
    fn from(parts: Vec<Bytes>) -> Self {
        Payload::from_iter(parts)
    }
}
impl FromIterator<Bytes> for Payload {
    fn from_iter<T: IntoIterator<Item = Bytes>>(iter: T) -> Self {
        let mut payload = Payload::new();
        iter.into_iter().for_each(|part| payload.push(part));
        payload
    }
}

/// Memory into which a reply's payload is received: pages of a page pool, for instance.
pub trait ReceiveInto: Any + Send {
    /// Bytes that fit.
    fn room(&self) -> usize;
    /// Appends to `out` the memory from byte `offset` on, in order. It may append only the first few
    /// slices; it is asked again. It appends at least one slice that is not empty while `offset < room()`.
    fn slices<'a>(&'a mut self, offset: usize, out: &mut Vec<&'a mut [u8]>);
}

/// A boxed [`ReceiveInto`]; [`ReplyPayload::downcast`] gives the concrete type back.
pub type Destination = Box<dyn ReceiveInto>;

/// Slices given to one read; the rest is asked for by the next.
const SLICES_MAX: usize = 64;

impl ReceiveInto for AlignedBuf {
    fn room(&self) -> usize {
        self.len()
    }
    fn slices<'a>(&'a mut self, offset: usize, out: &mut Vec<&'a mut [u8]>) {
        out.push(&mut self[offset..]);
    }
}
impl ReceiveInto for Vec<u8> {
    fn room(&self) -> usize {
        self.len()
    }
    fn slices<'a>(&'a mut self, offset: usize, out: &mut Vec<&'a mut [u8]>) {
        out.push(&mut self[offset..]);
    }
}
impl<T: ReceiveInto> ReceiveInto for Vec<T> {
    fn room(&self) -> usize {
        self.iter().map(ReceiveInto::room).sum()
    }
    fn slices<'a>(&'a mut self, mut offset: usize, out: &mut Vec<&'a mut [u8]>) {
        for part in self {
            let room = part.room();
            if offset >= room {
                offset -= room;
                continue;
            }
            part.slices(offset, out);
            offset = 0;
            if out.len() >= SLICES_MAX {
                return;
            }
        }
    }
}

/// A reply's payload.
#[derive(Default)]
pub enum ReplyPayload {
    /// The reply had none (a destination given with the call comes back as `Received` with length 0).
    #[default]
    None,
    /// In one aligned pooled buffer, because the call named no destination.
    Pooled(Bytes),
    /// In the call's destination: its first `len` bytes.
    Received {
        /// What the call gave.
        destination: Destination,
        /// Bytes received into it.
        len: usize,
    },
}

impl ReplyPayload {
    /// Bytes received.
    pub fn len(&self) -> usize {
        match self {
            ReplyPayload::None => 0,
            ReplyPayload::Pooled(bytes) => bytes.len(),
            ReplyPayload::Received { len, .. } => *len,
        }
    }
    /// Whether no bytes were received.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The pooled payload; empty where there is none or it went into a destination.
    pub fn into_bytes(self) -> Bytes {
        match self {
            ReplyPayload::Pooled(bytes) => bytes,
            ReplyPayload::None | ReplyPayload::Received { .. } => Bytes::new(),
        }
    }
    /// The call's destination as the type it was given as, and the bytes received; `None` if it was
    /// another type or there was none.
    pub fn downcast<T: ReceiveInto>(self) -> Option<(T, usize)> {
        match self {
            ReplyPayload::Received { destination, len } => {
                let any: Box<dyn Any> = destination;
                any.downcast::<T>().ok().map(|d| (*d, len))
            }
            ReplyPayload::None | ReplyPayload::Pooled(_) => None,
        }
    }
}

impl std::fmt::Debug for ReplyPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplyPayload({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_filled_in_order_from_any_offset() {
        let mut pages = vec![vec![0u8; 5], vec![0u8; 0], vec![0u8; 7]];
        assert_eq!(pages.room(), 12);
        for offset in 0..12 {
            let mut out = Vec::new();
            pages.slices(offset, &mut out);
            assert_eq!(out.iter().map(|s| s.len()).sum::<usize>(), 12 - offset, "from {offset}");
        }
    }

    #[test]
    fn a_destination_comes_back_as_its_own_type() {
        let payload = ReplyPayload::Received { destination: Box::new(vec![1u8, 2]), len: 1 };
        assert_eq!(payload.downcast::<Vec<u8>>(), Some((vec![1, 2], 1)));
        let payload = ReplyPayload::Received { destination: Box::new(vec![1u8, 2]), len: 1 };
        assert!(payload.downcast::<AlignedBuf>().is_none());
    }
}
