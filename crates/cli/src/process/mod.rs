//! The long-running processes of a cluster (manager, NSD servers, mounts), put together here and only here; and how they are
//! found, started and ended on this machine.

pub mod admin;
mod callback;
pub mod certificate;
pub mod control;
pub mod endpoint;
mod etcd;
mod history;
mod host;
pub mod ident;
mod joining;
mod keeper;
mod losses;
mod manager;
mod metrics;
pub mod mount;
pub mod mounts;
mod node;
mod pdisks;
pub mod pid_file;
pub mod presence;
mod resolver;
mod secrets;
pub mod serve;
pub mod service;
mod shut_out;
pub mod stop;
pub mod tcp_ports;
pub mod tunables;
pub mod units;
mod usage;
