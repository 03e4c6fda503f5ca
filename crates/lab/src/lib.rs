//! Measures links, disks and the file system against what their single parts promise.
//!
//! A [`plan`] says what is stepped up. [`run`] measures its cells with [`engine`]s while [`observe`] watches what
//! is busy, and leaves them in a [`results`] directory. [`expect`] holds each point against the single parts,
//! [`verdict`] says what the limit was, [`report`] shows it, [`compare`] holds two runs against each other.
//! [`ceiling`] and [`perf`] are measurements that also stand alone.
#![forbid(unsafe_code)]

pub mod agent;
pub mod builtin;
pub mod calibrate;
pub mod ceiling;
pub mod cell;
pub mod compare;
mod cpu_ticks;
pub mod draw;
pub mod engine;
pub mod environment;
pub mod expect;
pub mod key;
mod limits;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
pub mod netfigures;
pub mod netperf;
pub mod observe;
pub mod perf;
pub mod plan;
mod removal;
pub mod report;
pub mod results;
pub mod run;
pub mod schedule;
pub mod selftest;
pub mod standin;
pub mod targets;
pub mod testbed;
pub mod uperf;
pub mod verdict;
pub mod workload;
