//! Why a server cannot start.

use base::PdiskId;
use thiserror::Error;

/// What goes wrong at a server's start. What concerns one request is answered to its sender.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The manager does not take it.
    #[error("register at the manager")]
    Register(#[source] stripe::RegistrarError),
    /// The same pdisk was given twice.
    #[error("{pdisk} is given twice")]
    Twice {
        /// Which.
        pdisk: PdiskId,
    },
}
