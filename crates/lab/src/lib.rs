//! Measures links, disks and the file system against raw ceilings.
#![forbid(unsafe_code)]

pub mod ceiling;

pub mod perf;
pub mod testbed;
