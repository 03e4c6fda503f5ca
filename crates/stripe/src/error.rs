//! What can go wrong with a stripe. Every error names the stripe; those that depend on servers name each
//! strip, its pdisk and what was wrong with it.

use std::fmt;

use base::{FsId, Grant, InodeNo, PdiskId, PoolId, StripIndex, StripeId, Version};
use thiserror::Error;
use wire::{
    map::PdiskState,
    nsd::NsdRefusal,
    strip::{Range, StripRefusal},
};

/// Why one strip could not be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// The map says that its pdisk does not count.
    #[error("pdisk is {}", .0.name())]
    NotOk(PdiskState),
    /// It is the strip to be made.
    #[error("to be made anew")]
    Avoided,
    /// The map names no pdisk, or no node for it, or a node that is down.
    #[error("no server for it in the map")]
    NoServer,
    /// The server or the pdisk refused.
    #[error(transparent)]
    Refused(#[from] NsdRefusal),
    /// The server could not be reached.
    #[error("server not reached: {0}")]
    Unreachable(String),
    /// No answer before the deadline.
    #[error("no answer in time")]
    Timeout,
    /// The bytes received do not match their CRCs.
    #[error("CRC mismatch in unit {unit} of the answer")]
    BadCrc {
        /// Index of the unit in the payload.
        unit: u32,
    },
    /// The strip holds another version than the parity covers.
    #[error("holds {found}, {wanted} is current")]
    OtherVersion {
        /// What it holds.
        found: Version,
        /// What it should hold.
        wanted: Version,
    },
    /// The answer is not one to the question.
    #[error("answer does not fit the request")]
    Protocol,
}

impl Fault {
    /// Whether the session in whose name it was asked was declared dead: asked again it is refused again.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Fault::Refused(NsdRefusal::Fenced))
    }
    /// The refusal of the pdisk itself, if it is one.
    pub fn strip_refusal(&self) -> Option<&StripRefusal> {
        match self {
            Fault::Refused(NsdRefusal::Strip(refusal)) => Some(refusal),
            _ => None,
        }
    }
}

/// A strip that could not be used, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripFault {
    /// Which strip.
    pub index: StripIndex,
    /// Where it is, if the map says so.
    pub pdisk: Option<PdiskId>,
    /// Why.
    pub fault: Fault,
}

impl fmt::Display for StripFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pdisk {
            Some(pdisk) => write!(f, "{} on {pdisk}: {}", self.index, self.fault),
            None => write!(f, "{}: {}", self.index, self.fault),
        }
    }
}

/// Several of them in one line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StripFaults(pub Vec<StripFault>);

impl fmt::Display for StripFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// Why a stripe could not be read or written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StripeError {
    /// The caller's request contradicts itself.
    #[error("{stripe}: {reason} ({range:?})")]
    BadRequest {
        /// The stripe.
        stripe: StripeId,
        /// What is wrong.
        reason: &'static str,
        /// Where.
        range: Range,
    },
    /// The map has no such pool.
    #[error("{pool} is not in the cluster map")]
    NoSuchPool {
        /// The pool.
        pool: PoolId,
    },
    /// The session was declared dead: nothing it does counts any more.
    #[error("{stripe}: this session is fenced")]
    Fenced {
        /// The stripe.
        stripe: StripeId,
    },
    /// A resolver sealed the stripe: the grant is over.
    #[error("{stripe}: sealed below {below}")]
    Sealed {
        /// The stripe.
        stripe: StripeId,
        /// The seal.
        below: Grant,
    },
    /// A strip holds a version the writer does not know of: what it knows of the block is out of date.
    #[error("{stripe}: {index} holds {present}, the writer of {version} does not know of it")]
    Conflict {
        /// The stripe.
        stripe: StripeId,
        /// The strip.
        index: StripIndex,
        /// What it holds.
        present: Version,
        /// What was to be written.
        version: Version,
    },
    /// A pdisk has no room.
    #[error("{stripe}: {pdisk} is full")]
    NoSpace {
        /// The stripe.
        stripe: StripeId,
        /// The pdisk.
        pdisk: PdiskId,
    },
    /// More strips are lost or out of reach than the code replaces.
    #[error("{stripe} is unavailable: {faults}")]
    Unavailable {
        /// The stripe.
        stripe: StripeId,
        /// Strip by strip.
        faults: StripFaults,
    },
    /// No progress before the deadline.
    #[error("{stripe}: no progress before the deadline: {faults}")]
    Deadline {
        /// The stripe.
        stripe: StripeId,
        /// What was waited for.
        faults: StripFaults,
    },
    /// Complete versions could not be adopted before the deadline.
    #[error("{stripes} stripes are complete and not adopted")]
    NotAdopted {
        /// How many.
        stripes: usize,
    },
    /// Strips with prepared versions could not be listed, so that it is not known what to resolve.
    #[error("{fs}: cannot list what is prepared on {pdisk}: {fault}")]
    CannotList {
        /// The file system.
        fs: FsId,
        /// The pdisk.
        pdisk: PdiskId,
        /// Why.
        fault: Fault,
    },
}

impl StripeError {
    /// Whether the session was declared dead: a repetition cannot succeed.
    pub fn is_fenced(&self) -> bool {
        match self {
            StripeError::Fenced { .. } => true,
            StripeError::CannotList { fault, .. } => fault.is_fenced(),
            _ => false,
        }
    }

    /// The inode it is about, where there is one.
    pub fn inode(&self) -> Option<InodeNo> {
        match self {
            StripeError::BadRequest { stripe, .. }
            | StripeError::Fenced { stripe }
            | StripeError::Sealed { stripe, .. }
            | StripeError::Conflict { stripe, .. }
            | StripeError::NoSpace { stripe, .. }
            | StripeError::Unavailable { stripe, .. }
            | StripeError::Deadline { stripe, .. } => Some(stripe.inode),
            StripeError::NoSuchPool { .. }
            | StripeError::NotAdopted { .. }
            | StripeError::CannotList { .. } => None,
        }
    }
}
