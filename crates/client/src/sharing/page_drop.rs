//! The kernel's pages of an inode while they are dropped.
//!
//! The kernel waits there for pages that are being read or written; requests for these are let in under the token that
//! is going. So their pages come back, and are dropped once more: that ends when nobody was let in during a pass. Where what they are to be
//! filled with is out of reach, programs that try again and again would have it go on for ever: so they are let in only for as long as an
//! operation may take.

use std::time::{Duration, Instant};

/// Offset and length, bytes.
pub(crate) type ByteRange = (u64, u64);

/// See the file's head.
#[derive(Default)]
pub(crate) struct PageDrop {
    /// While they are dropped: what was let in since the pass began.
    let_in: Option<Vec<ByteRange>>,
    /// Since when the token that they were under is being given up.
    since: Option<Instant>,
}

impl PageDrop {
    /// Begins, of a token that is being given up since then.
    pub fn begin(&mut self, since: Instant) {
        debug_assert!(self.let_in.is_none(), "a token is given up by one");
        (self.let_in, self.since) = (Some(Vec::new()), Some(since));
    }

    /// Whether whoever comes now to read is let in no more: it has been under way for longer than an operation may take.
    pub fn bars_readers(&self, now: Instant, patience: Duration) -> bool {
        self.is_under_way() && self.since.is_some_and(|since| now >= since + patience)
    }

    pub fn is_under_way(&self) -> bool {
        self.let_in.is_some()
    }

    /// Somebody is let in; their pages are dropped once more.
    pub fn let_in(&mut self, range: Option<ByteRange>) {
        self.let_in.iter_mut().for_each(|let_in| let_in.extend(range));
    }

    /// A pass is over: what the next one drops. With nothing it is done.
    pub fn next_pass(&mut self) -> Vec<ByteRange> {
        match &mut self.let_in {
            Some(let_in) if !let_in.is_empty() => std::mem::take(let_in),
            let_in => {
                *let_in = None;
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_let_in_is_dropped_once_more() {
        let mut dropped = PageDrop::default();
        dropped.let_in(Some((0, 1)));
        assert!(!dropped.is_under_way() && dropped.next_pass().is_empty(), "nothing is dropped");
        let begun = Instant::now();
        dropped.begin(begun);
        let patience = Duration::from_secs(60);
        assert!(!dropped.bars_readers(begun, patience) && dropped.bars_readers(begun + patience, patience));
        dropped.let_in(Some((4096, 4096)));
        dropped.let_in(None);
        assert_eq!(dropped.next_pass(), [(4096, 4096)]);
        assert!(dropped.is_under_way());
        assert!(dropped.next_pass().is_empty() && !dropped.is_under_way());
        assert!(!dropped.bars_readers(begun + patience, patience));
    }
}
