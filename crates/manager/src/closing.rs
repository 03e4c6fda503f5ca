//! A pool that is being removed is closed first: it has a name that no pool can be given, so that nothing is directed to it
//! by name any more, and so that a crash in between leaves a pool that is listed and can be removed again.

/// Behind the name of a pool that is being removed.
const CLOSED: &str = " (being removed)";

/// The name of a pool once it is closed.
pub fn closing_name(name: &str) -> String {
    format!("{name}{CLOSED}")
}

/// The name that a closed pool had.
pub fn closed_name(name: &str) -> Option<&str> {
    name.strip_suffix(CLOSED)
}
