//! The kernel's pages of an inode while they are dropped.
//!
//! The kernel waits there for pages that are being read or written; requests for these are let in under the token that
//! is going. So their pages come back, and are dropped once more: that ends when nobody was let in during a pass. Where what they are to be
//! filled with is out of reach, programs that try again and again would have it go on for ever: so nobody is let in to read any more
//! once somebody who read meanwhile has waited in vain.

/// Offset and length, bytes.
pub(crate) type ByteRange = (u64, u64);

/// See the file's head.
#[derive(Default)]
pub(crate) struct PageDrop {
    /// While they are dropped: what was let in since the pass began.
    let_in: Option<Vec<ByteRange>>,
    /// Somebody who read meanwhile had nothing when his time was over.
    in_vain: bool,
}

impl PageDrop {
    /// Begins.
    pub fn begin(&mut self) {
        debug_assert!(self.let_in.is_none(), "a token is given up by one");
        (self.let_in, self.in_vain) = (Some(Vec::new()), false);
    }

    /// Somebody has waited to read for as long as an operation may take, and has nothing. True: the first since they are dropped.
    pub fn read_in_vain(&mut self) -> bool {
        self.is_under_way() && !std::mem::replace(&mut self.in_vain, true)
    }

    /// Whether whoever comes to read is let in no more.
    pub fn bars_readers(&self) -> bool {
        self.is_under_way() && self.in_vain
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
        assert!(!dropped.read_in_vain());
        dropped.begin();
        assert!(!dropped.bars_readers());
        assert!(dropped.read_in_vain() && !dropped.read_in_vain() && dropped.bars_readers());
        dropped.let_in(Some((4096, 4096)));
        dropped.let_in(None);
        assert_eq!(dropped.next_pass(), [(4096, 4096)]);
        assert!(dropped.is_under_way());
        assert!(dropped.next_pass().is_empty() && !dropped.is_under_way());
        assert!(!dropped.bars_readers());
        dropped.begin();
        assert!(!dropped.bars_readers(), "it was of another time");
    }
}
