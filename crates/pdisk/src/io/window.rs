//! Windows: one read buffer that several disk reads fill at the same time, each its own part.
//! Each window owns a disjoint part, keeps the buffer alive, and is not cloneable; when all windows
//! are gone the buffer comes back. Disjointness is checked where windows are made.

use std::{cell::UnsafeCell, ops::Range as Span, sync::Arc};

use super::buffers::IoBuf;

struct Shared(UnsafeCell<IoBuf>);

// SAFETY: the buffer is reached only through windows, which are disjoint and made before any is used,
// or by the holder after `take` has shown that no window is left.
unsafe impl Sync for Shared {}

/// The right to take the buffer back.
pub(crate) struct Holder(Arc<Shared>);

/// The exclusive right to one part of the buffer.
pub(crate) struct Window {
    _shared: Arc<Shared>,
    start: *mut u8,
    len: usize,
}

// SAFETY: a window is an exclusive reference to its part, as `&mut [u8]` is, and that is Send.
unsafe impl Send for Window {}

/// Cuts `buf` into windows over `spans`, which must rise and not overlap.
pub(crate) fn split(buf: IoBuf, spans: impl IntoIterator<Item = Span<usize>>) -> (Holder, Vec<Window>) {
    let len = buf.len();
    let shared = Arc::new(Shared(UnsafeCell::new(buf)));
    // SAFETY: no window exists yet, nobody else can reach the buffer.
    let start = unsafe { (*shared.0.get()).as_mut_ptr() };
    let mut at = 0;
    let windows = spans
        .into_iter()
        .map(|span| {
            assert!(at <= span.start && span.start <= span.end && span.end <= len, "windows overlap");
            at = span.end;
            // SAFETY: span lies in the buffer, as just asserted.
            let start = unsafe { start.add(span.start) };
            Window { _shared: Arc::clone(&shared), start, len: span.len() }
        })
        .collect();
    (Holder(shared), windows)
}

impl Holder {
    /// The buffer, when the last window is gone.
    pub fn take(self) -> Option<IoBuf> {
        Arc::into_inner(self.0).map(|s| s.0.into_inner())
    }
}

impl Window {
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: start..start+len is initialised memory of the buffer, kept alive by `_shared`, and
        // this window is the only one to it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::AlignedBuf;

    #[test]
    fn the_buffer_returns_when_all_windows_are_gone() {
        let (holder, mut windows) = split(AlignedBuf::zeroed(8192).into(), [0..4096, 4096..8192]);
        windows[1].as_mut()[0] = 9;
        drop(windows);
        assert_eq!(holder.take().unwrap()[4096], 9);
        let (holder, windows) = split(AlignedBuf::zeroed(4096).into(), std::iter::once(0..4096));
        assert!(holder.take().is_none());
        drop(windows);
    }
}
