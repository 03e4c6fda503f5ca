//! The NSD server: strips in and out of the pdisks of this node, under a lease of the manager and under
//! the epochs of the cluster map; catch-up of pdisks that come back; strips that move to other pdisks;
//! repair of damaged strips.
//!
//! [`Server`] puts the parts together: `gate` admits requests, `ops` carries them to the pdisks,
//! `catchup`, `fill` and `repair` make strips anew, deciding with `judge` and by the manager's record (`records`), as fast as `pace` lets them (`strips`: what
//! they need of a pdisk); `leftovers` removes what has moved away; `cache` answers what is read again.
#![forbid(unsafe_code)]

mod cache;
mod catchup;
mod config;
mod error;
mod fill;
mod gate;
mod inbound;
pub mod judge;
mod leftovers;
mod ops;
mod pace;
mod permits;
mod progress;
mod records;
mod repair;
mod scrub;
mod server;
mod settle;
mod statistics;
mod status;
mod strips;

pub use cache::CacheUse;
pub use catchup::CatchUp;
pub use config::{ServedPdisk, ServerConfig, Tuning};
pub use error::ServerError;
pub use fill::Fill;
pub use gate::{BeginLife, Gate, Pass};
pub use pace::Pace;
pub use progress::Progress;
pub use records::Records;
pub use repair::Repairs;
pub use scrub::{Found, Page, Scrub};
pub use server::Server;
pub use statistics::NAMES;
pub use status::{CatchUpStatus, PdiskStatus, RepairStatus, ServerStatus};
pub use strips::Strips;
