//! What the kernel may keep, and for how long: the one place for it.

use std::time::Duration;

use crate::{abi::fopen, calls::OpenFlags, inodes::Way};

/// What the kernel may keep on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// How long a name, present or absent, may be believed.
    pub entry_ttl: Duration,
    /// How long attributes may be believed.
    pub attr_ttl: Duration,
    /// Where that is nothing, the file system below says it of each answer to a question about them
    /// ([`Calls::attr_ttl`](crate::calls::Calls::attr_ttl)).
    pub attr_by_token: bool,
    /// Pages stay when a file is closed and opened again.
    pub keep_pages: bool,
    /// Who finds the end of the file for O_APPEND. False: the kernel, by the size it knows, through its
    /// page cache. True: the client, under the size token; such handles go round the page cache, and a
    /// reader through the page cache on the same mount may for a moment see zeros in place of what is
    /// just being appended (the kernel compares the size it is told with a page it took before).
    pub client_appends: bool,
    /// Every writable handle goes round the page cache: a write that has to wait for a token holds no pages
    /// that somebody else must have dropped first.
    pub direct_writes: bool,
    /// O_DSYNC handles go round the page cache, where their writes are in parallel.
    pub parallel_durable: bool,
}

impl Caching {
    /// One client has the file system: names, attributes, pages and sizes stay true until this mount
    /// itself changes them, and the kernel sees those changes.
    pub const EXCLUSIVE: Caching = Caching {
        entry_ttl: Duration::from_secs(24 * 3600),
        attr_ttl: Duration::from_secs(24 * 3600),
        attr_by_token: true,
        keep_pages: true,
        client_appends: false,
        direct_writes: false,
        parallel_durable: true,
    };
    /// Others change it as well; pages of open files, and attributes of directories, are good until the client has them dropped.
    pub const SHARED: Caching = Caching { direct_writes: true, attr_by_token: true, ..Caching::UNCACHED };
    /// Others change it as well, and nobody tells the kernel: it asks every time.
    pub const UNCACHED: Caching = Caching {
        entry_ttl: Duration::ZERO,
        attr_ttl: Duration::ZERO,
        attr_by_token: false,
        keep_pages: false,
        client_appends: true,
        direct_writes: false,
        parallel_durable: false,
    };

    /// Whether names are kept, one by one or as a listing.
    pub fn keeps_names(&self) -> bool {
        !self.entry_ttl.is_zero()
    }

    /// The way that a handle's flags ask for. Through the page cache the kernel does a file's durable writes
    /// one after the other, each followed by an fsync of its own; round it they come in parallel, and the
    /// client makes many durable at once. Appends stay where the kernel knows the end.
    pub fn way(&self, flags: &OpenFlags) -> Way {
        if flags.direct || flags.write && (self.direct_writes || self.client_appends && flags.append) {
            return Way::Direct;
        }
        let durable = self.parallel_durable && flags.write && flags.dsync && !flags.append;
        if durable { Way::Durable } else { Way::Buffered }
    }

    /// The flags for the file system below.
    pub fn flags_below(&self, flags: OpenFlags) -> OpenFlags {
        OpenFlags { caller_appends: !self.client_appends, ..flags }
    }

    /// Flags of the answer to an open.
    pub fn open_answer_flags(&self, flags: &OpenFlags, direct: bool) -> u32 {
        if !direct {
            return if self.keep_pages { fopen::KEEP_CACHE } else { 0 };
        }
        // Appends stay one after the other; other direct writes may overlap in time, the client keeps
        // each of them whole.
        let parallel = if flags.append { 0 } else { fopen::PARALLEL_DIRECT_WRITES };
        fopen::DIRECT_IO | parallel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_the_end_decides_the_way_round_the_page_cache() {
        let read = OpenFlags { read: true, ..OpenFlags::default() };
        let append = OpenFlags { write: true, append: true, ..OpenFlags::default() };
        let answer = |c: Caching, flags| c.open_answer_flags(&flags, c.way(&flags) != Way::Buffered);
        let one = Caching::EXCLUSIVE;
        assert_eq!(answer(one, read), fopen::KEEP_CACHE);
        assert_eq!(answer(one, append), fopen::KEEP_CACHE);
        assert!(one.flags_below(append).caller_appends, "the kernel's offset counts");
        let many = Caching::UNCACHED;
        assert_eq!(answer(many, read), 0);
        assert_eq!(answer(many, OpenFlags { append: true, ..read }), 0);
        assert_eq!(answer(many, append), fopen::DIRECT_IO);
        assert!(!many.flags_below(append).caller_appends);
        let write = OpenFlags { write: true, ..OpenFlags::default() };
        assert_eq!(answer(many, write), 0);
        assert_ne!(answer(Caching::SHARED, write) & fopen::DIRECT_IO, 0);
        let direct = OpenFlags { direct: true, ..read };
        assert_ne!(answer(one, direct) & fopen::PARALLEL_DIRECT_WRITES, 0);
        let durable = OpenFlags { dsync: true, ..write };
        assert_eq!(
            (one.way(&durable), one.way(&OpenFlags { append: true, ..durable })),
            (Way::Durable, Way::Buffered)
        );
        assert_eq!(one.way(&OpenFlags { dsync: true, ..read }), Way::Buffered);
    }
}
