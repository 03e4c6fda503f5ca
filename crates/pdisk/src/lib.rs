//! The strip store on one disk: strips in and out at the device's speed, whole after every crash.
//!
//! Top-down: [`Pdisk`] (`pdisk`) is opened and closed, and takes batches (`operations`); `put` and `read` carry out the two that move bytes;
//! [`rules`] decide; `store` holds the `state`, `index` the strips (`strip`), `extent`, `space` and `crcmap` where
//! their bytes and CRCs are; `record` and `log` make changes durable in groups (`commit`); `checkpoint`
//! and `keeper` keep the log short; `recover` opens what a crash left; `files` and `io` are the disk, `lock` says who has it.
//! Every byte on disk: docs/format-pdisk.md. Why it is so: docs/pdisk.md.

mod checkpoint;
mod codec;
mod commit;
#[cfg(test)]
mod crash;
mod crcmap;
mod deletes;
mod error;
mod extent;
mod files;
mod index;
mod io;
mod keeper;
mod lock;
mod log;
mod marks;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod operations;
mod options;
mod pdisk;
mod put;
mod random;
mod read;
mod record;
mod recover;
mod report;
pub mod rules;
mod short;
mod space;
mod state;
mod stats;
mod store;
mod strip;
pub mod tools;
mod unfinished;
mod watch;

pub use deletes::DeletesSeen;
pub use error::PdiskError;
pub use io::{
    Engine, FileKind, IoNode, QueueStats,
    fault::{FaultPlan, Trace, TraceEvent},
};
pub use options::{CreateOptions, DMA_MIB_PER_QUEUE, EngineChoice, INDEX_MEMORY_MIN, IoConfig, OpenOptions};
pub use pdisk::Pdisk;
pub use put::Payload;
pub use recover::Damage;
pub use report::{OpenReport, PdiskStats, VerifyReport};
