//! The history of a process on disk: every second for an hour at least, minutes for weeks, hours for years.
//! A directory for each process, written by it alone ([`Store`]), read by anyone at any time ([`read`], [`histories`]).

pub mod ended;
pub mod merge;
pub mod reader;
pub mod record;
pub mod tier;
pub mod writer;
