//! What programs ask of a mount, counted one by one: by file, user, operation, class and place in the file; and errors.

use std::{
    sync::{LazyLock, OnceLock},
    time::Instant,
};

use base::stats::{self, Counter, Key, Names, Recorder, Set, offset_octave};
use client::Errno;

use crate::{
    abi::opcode,
    request::{Header, operation_name},
};

/// What operations and classes of a mount are called.
pub const NAMES: Names = Names { op: |op| operation_name(op as u32), class: class_name };

static REQUESTS: LazyLock<&Recorder> = LazyLock::new(|| stats::recorder(Set::File, NAMES));

const CLASSES: [&str; 6] = ["other", "read", "write", "sync", "metadata", "lock"];

fn class_name(class: u8) -> &'static str {
    CLASSES.get(usize::from(class)).copied().unwrap_or("other")
}

fn class_of(operation: u32) -> u8 {
    match operation {
        opcode::READ => 1,
        opcode::WRITE | opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 | opcode::FALLOCATE => 2,
        opcode::FSYNC | opcode::FSYNCDIR | opcode::FLUSH | opcode::SYNCFS => 3,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => 5,
        _ if operation_name(operation) == "other" => 0,
        _ => 4,
    }
}

/// A request that came at `begun` has its answer.
pub fn answered(header: &Header, offset: Option<u64>, bytes: u64, begun: Instant) {
    let key = Key {
        inode: header.ino.0,
        user: header.uid,
        // Those that are known are below 64.
        op: u8::try_from(header.opcode).unwrap_or_default(),
        class: class_of(header.opcode),
        place: offset_octave(offset),
        ..Key::default()
    };
    REQUESTS.record(&key, bytes, begun.elapsed());
}

/// Operations that are known have numbers below; the others are counted together.
const OPERATIONS: usize = 64;

/// Errors that have a name of their own; the others are counted together.
const ERRORS: [(i32, &str); 27] = [
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::EACCES, "EACCES"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::EXDEV, "EXDEV"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EISDIR, "EISDIR"),
    (libc::EINVAL, "EINVAL"),
    (libc::EFBIG, "EFBIG"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::EROFS, "EROFS"),
    (libc::EMLINK, "EMLINK"),
    (libc::ERANGE, "ERANGE"),
    (libc::EDEADLK, "EDEADLK"),
    (libc::ENAMETOOLONG, "ENAMETOOLONG"),
    (libc::ENOLCK, "ENOLCK"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENOTEMPTY, "ENOTEMPTY"),
    (libc::ENODATA, "ENODATA"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ESTALE, "ESTALE"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
];

/// A request of a program ended with an error.
pub fn failed(header: &Header, error: Errno) {
    const KINDS: usize = ERRORS.len() + 1;
    static COUNTED: [OnceLock<Counter>; (OPERATIONS + 1) * KINDS] =
        [const { OnceLock::new() }; (OPERATIONS + 1) * KINDS];
    let kind = ERRORS.iter().position(|(number, _)| *number == error.0).unwrap_or(ERRORS.len());
    let make = || {
        let name = ERRORS.get(kind).map_or("other", |(_, name)| name);
        stats::counter("file_op_errors", &[("op", operation_name(header.opcode)), ("error", name)])
    };
    COUNTED[(header.opcode as usize).min(OPERATIONS) * KINDS + kind].get_or_init(make).inc();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_their_classes() {
        let class = |operation| class_name(class_of(operation));
        assert_eq!(class(opcode::READ), "read");
        assert_eq!(class(opcode::FLUSH), "sync");
        assert_eq!(class(opcode::LOOKUP), "metadata");
        assert_eq!(class(4096), "other");
        // What an operation is called by its number alone.
        assert!((0..64).any(|op| operation_name(op) == "copy_file_range"));
        assert!((64..4096).all(|op| operation_name(op) == "other"));
    }
}
