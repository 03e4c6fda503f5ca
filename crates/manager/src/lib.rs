//! Namespace, sessions, cluster map over an ordered transactional store.
//!
//! ```text
//!             requests
//!                │
//!     ┌──────────┴──────────┐
//!     │ Manager (manager/)  │──── reads: from the last committed snapshot
//!     └───┬─────────────┬───┘
//!  changes│             │leases, map, room, tokens, locks
//!  ┌──────┴─────┐  ┌────┴────────────┐   ┌────────┐
//!  │ namespace  │  │ cluster (state  │   │ reaper │ deletes at the NSD servers
//!  │ (functions)│  │ machine)        │   └───┬────┘
//!  └──────┬─────┘  └────┬────────────┘       │
//!      ┌──┴─────────────┴────────────────────┴──┐
//!      │ apply: one writer, batches into commits│
//!      └──────────────────┬─────────────────────┘
//!                  store (journal in a file or in etcd, redb; behind a trait)
//! ```
//! Nothing is answered before it is committed, and nothing uncommitted is ever shown.

#![forbid(unsafe_code)]

pub mod apply;
pub mod check;
mod closing;
pub mod cluster;
mod delete_queue;
mod error;
mod event_log;
pub mod format;
pub mod keys;
pub mod last_names;
pub mod locks;
mod losses;
mod lost;
mod manager;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
pub mod namespace;
mod owned;
mod paths;
mod reaper;
mod removal;
#[cfg(test)]
#[path = "../../../fuzz/samples.rs"]
mod samples;
mod scrub;
mod serve;
mod statistics;
pub mod store;
#[cfg(test)]
mod tests;
mod ticket;
pub mod tokens;

pub use cluster::{VOTERS, check_node_name, check_rack};
pub use error::ManagerError;
pub use format::{Spec, accept_loss, format, restore};
pub use losses::{Counted, LossRecord, Losses};
pub use manager::{Caller, Manager, Options, Replicated};
pub use reaper::Deleter;
pub use serve::{Running, serve_standby};
pub use statistics::NAMES;
