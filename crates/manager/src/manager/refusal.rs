//! What a request is refused with when the store or the manager stands in its way.

use wire::mgr::MgrError;

use crate::{keys::ReadError, namespace::Fault};

/// The manager is about to end.
pub(crate) fn stopping() -> MgrError {
    MgrError::Store("the manager is stopping".into())
}

/// An operation that was not done.
pub(super) fn refusal(fault: Fault) -> MgrError {
    fault.into_reply().unwrap_or_else(|error| MgrError::Store(error.to_string()))
}

/// A question that could not be answered.
pub(crate) fn read_refusal(error: ReadError) -> MgrError {
    refusal(error.into())
}
