//! Why an operation is not done, and what its caller is told then.

use libc::EIO;
use thiserror::Error;
use wire::mgr::MgrError;

use crate::{
    keys::ReadError,
    store::{BadRecord, StoreError},
};

/// Why an operation is not done.
#[derive(Debug, Clone, Error)]
pub enum Fault {
    /// As POSIX names it.
    #[error("{}", base::errno::text(*.0))]
    Errno(i32),
    /// A damaged record: EIO.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// The store failed: the manager stops. Only a part of it is damaged: EIO.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Fault {
        match error {
            ReadError::Store(error) => Fault::Store(error),
            ReadError::Record(error) => Fault::Record(error),
        }
    }
}

impl Fault {
    /// As the client sees it. Damaged records are logged here, once.
    pub fn into_reply(self) -> Result<MgrError, StoreError> {
        match self {
            Fault::Errno(errno) => Ok(MgrError::Errno(errno)),
            Fault::Record(record) => {
                tracing::error!(%record, "damaged record");
                Ok(MgrError::Errno(EIO))
            }
            Fault::Store(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "what is needed cannot be read");
                Ok(MgrError::Errno(EIO))
            }
            Fault::Store(error) => Err(error),
        }
    }
}

/// Outcome of an operation.
pub type Op<T> = Result<T, Fault>;

pub(super) fn errno<T>(number: i32) -> Op<T> {
    Err(Fault::Errno(number))
}
