//! The manager: requests in, answers out. Puts namespace, cluster and writer together; knows no network.
//!
//! A request goes through [`dispatch`]: reads are answered from the last committed snapshot ([`reads`]), changes go through
//! the writer ([`changes`]), everything about leases, tokens, locks and the map through one task that owns the cluster's state
//! machine ([`driver`]).

mod changes;
mod collect;
mod config;
mod dispatch;
mod driver;
mod dump;
mod grants;
mod lifecycle;
mod losses;
mod reads;
mod refusal;
mod rights;
mod several;
mod shared;
mod subtree;
mod tend;
mod tunables;
mod untold;

pub use self::lifecycle::{Caller, Manager, Options, Replicated};
use self::refusal::stopping;
pub(crate) use self::{
    refusal::read_refusal,
    shared::{ANSWER_BEFORE, Inner, TICK},
};
