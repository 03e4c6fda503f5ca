//! The mixed analytics workload: what its tests and inputs are, the environment of its engines, the data from a seed, what
//! became of a job, and what many jobs say together. The engine that runs it is `engine/analytics`.

pub mod catalogue;
pub mod data;
mod job;
pub mod setup;
mod summary;

pub use job::{Job, Outcome, Used, difference};
pub use summary::{Summary, TestSummary, by_test, summarise};
