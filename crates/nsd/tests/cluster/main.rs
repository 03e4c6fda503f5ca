//! Stories of servers, clients and pdisks in one process. One program: what the cluster is made of is compiled for each
//! program anew, and that costs more than these stories take.

mod cached_reads;
mod common;
mod crash;
mod degraded;
mod given_up;
mod hung;
mod moves;
mod small_overwrites;
mod strangers;
mod unreadable;
