//! Locks of programs (flock, fcntl).

mod ask;
pub(crate) mod held;
