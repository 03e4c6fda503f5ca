//! The long-running processes of a cluster, and how they are found, started and ended on this machine.

pub mod metrics;
pub mod pid_file;
pub mod resolver;
pub mod server;
pub mod tunables;
