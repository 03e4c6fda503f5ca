//! One file for what a group of commands does; what they are asked by is in `args`.

pub mod clients;
pub mod config;
pub mod down;
pub mod events;
pub mod lab;
pub mod lab_run;
pub mod listing;
pub mod locks;
pub mod manager;
pub mod mount;
pub mod net_figures;
pub mod net_status;
pub mod netperf;
pub mod pagepool;
pub mod pdisk_bench;
pub mod pdisk_tools;
pub mod pdisks;
pub mod perf;
pub mod pools;
pub mod testbed;
pub mod up;
pub mod verify;
pub mod waiters;
