//! gpfsperf's job: one file, one access pattern, some threads, and how fast it went. Through any mounted
//! file system, or straight through the client library. A clean implementation of the known command form
//! and report lines; options whose meaning is not published are defined here and in the command's help.

mod cpu;
mod job;
mod offsets;
mod report;
mod run;
mod target;

pub use cpu::{CLIENT, Cpu, Process, SERVER};
pub use job::{Amount, BadJob, Job, Operation, Pattern, Spec};
pub use report::{Latency, Part, Report, Style};
pub use run::{PerfError, Surroundings, run};
pub use target::{Direct, Mounted, PerfFile, Target};
