//! Where the readers of sentences put what a line states.

use super::listing::{Entry, segment};

/// Collects entries of the line at hand.
#[derive(Default)]
pub(super) struct Says {
    pub entries: Vec<Entry>,
    /// The line at hand, from 1.
    pub line: u32,
}

impl Says {
    pub fn say(&mut self, path: &[&str], value: &str) {
        let path =
            std::iter::once("says").chain(path.iter().copied()).map(segment).collect::<Vec<_>>().join("/");
        self.entries.push(Entry { path, value: value.trim().to_owned(), line: self.line });
    }
}
