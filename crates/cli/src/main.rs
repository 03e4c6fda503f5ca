//! The binary ropewalk: the only place where parts are put together.
fn main() {}
