//! Why a tunable was refused.

use thiserror::Error;

/// Why a tunable was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TunableError {
    /// There is no such tunable.
    #[error("unknown tunable {name:?}: {remedy}")]
    Unknown {
        /// As given.
        name: String,
        /// The nearest name, or what a name of Storage Scale corresponds to.
        remedy: String,
    },
    /// The value is not one of those allowed.
    #[error("bad value {value:?} for {name}: {reason}; allowed: {allowed}")]
    BadValue {
        /// The tunable.
        name: &'static str,
        /// As given.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// The allowed values, the unit and the default.
        allowed: String,
    },
    /// The value is allowed by itself, but not together with others.
    #[error("{name}={value} does not fit: {reason}")]
    Conflict {
        /// The tunable.
        name: &'static str,
        /// Its value.
        value: String,
        /// Which others, and what to do.
        reason: String,
    },
}
