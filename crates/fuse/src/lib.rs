//! The mount: FUSE requests to client calls.
