//! What the kernel may keep, and for how long: the one place for it.
//! Now: a file system has one client, so names, attributes and pages stay true until this mount itself
//! changes them, and the kernel sees those changes. With tokens the entry time becomes 0 and pages and
//! attributes go when their token goes.

use std::time::Duration;

use crate::{abi::fopen, calls::OpenFlags};

/// How long a name, present or absent, may be believed.
pub const ENTRY_TTL: Duration = Duration::from_secs(24 * 3600);
/// How long attributes may be believed.
pub const ATTR_TTL: Duration = Duration::from_secs(24 * 3600);

/// Whether a handle goes round the kernel's page cache: O_DIRECT because it asks so, O_APPEND because
/// the client picks the offset.
pub fn is_direct(flags: &OpenFlags) -> bool {
    flags.direct || (flags.append && flags.write)
}

/// Flags of the answer to an open.
pub fn open_answer_flags(flags: &OpenFlags) -> u32 {
    if !is_direct(flags) {
        return fopen::KEEP_CACHE;
    }
    // Appends stay one after the other; other direct writes may overlap in time, the client keeps
    // each of them whole.
    let parallel = if flags.append { 0 } else { fopen::PARALLEL_DIRECT_WRITES };
    fopen::DIRECT_IO | parallel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_and_append_handles_bypass_the_page_cache() {
        let read = OpenFlags { read: true, ..OpenFlags::default() };
        assert_eq!(open_answer_flags(&read), fopen::KEEP_CACHE);
        assert_eq!(open_answer_flags(&OpenFlags { append: true, ..read }), fopen::KEEP_CACHE);
        let append = OpenFlags { write: true, append: true, ..OpenFlags::default() };
        assert_eq!(open_answer_flags(&append), fopen::DIRECT_IO);
        let direct = OpenFlags { direct: true, ..read };
        assert_ne!(open_answer_flags(&direct) & fopen::PARALLEL_DIRECT_WRITES, 0);
    }
}
