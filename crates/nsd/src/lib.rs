//! The NSD server: strips in and out of the pdisks of this node, under a lease of the manager and under
//! the epochs of the cluster map; catch-up of pdisks that come back; repair of damaged strips.
//!
//! [`Server`] puts the parts together: `gate` admits requests, `ops` carries them to the pdisks,
//! `catchup` and `repair` make strips anew, deciding with `judge`.
#![forbid(unsafe_code)]

mod catchup;
mod config;
mod error;
mod gate;
pub mod judge;
mod ops;
mod repair;
mod server;
mod settle;
mod statistics;
mod status;

pub use config::{ServedPdisk, ServerConfig, Tuning};
pub use error::ServerError;
pub use server::Server;
pub use status::{CatchUpStatus, PdiskStatus, RepairStatus, ServerStatus};
