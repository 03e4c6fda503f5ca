//! Network performance over the real transport, no file system needed: nsdperf's tests and uperf's two.
//!
//! Every host runs a [`Server`]. A [`Controller`] prepares a test on the clients (servers too, or its own
//! process), starts it on all of them at one time, and gathers a [`Report`]. All of it travels over
//! `net`: the data as a file system's would, the control messages on their own connection.
//!
//! The first and last tenth of a test are not counted.

mod controller;
mod endpoint;
mod error;
mod message;
mod payload;
mod report;
mod result;
mod server;
mod spec;
mod tester;
mod times;

pub use controller::{Controller, Progress};
pub use error::NetperfError;
pub use report::{ClientReport, Report, TimesReport};
pub use result::{ClientResult, Connection, ServerResult};
pub use server::Server;
pub use spec::{
    CONNECTIONS_MAX, Dispatching, Kind, NOT_SHARED, PARALLEL_MAX, Parallel, SIZE_MAX, Spec, THREADS_MAX,
    TTIME_MAX, Transporting,
};
pub(crate) use tester::process_cpu_seconds;
pub use times::Times;

/// The port of a server unless told otherwise: nsdperf's.
pub const PORT: u16 = 6668;
