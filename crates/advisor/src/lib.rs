//! Reads host facts, applies rules, says what to tune and why.
//! [`host_facts`] reads, [`advise`] decides (plain functions of facts and context), the caller prints.
//! A fact that is not there never triggers a rule: containers hide many.
#![forbid(unsafe_code)]

pub mod dumps;
pub mod facts;
mod host;
mod read;
mod rules;

pub use facts::{Fact, Facts, Origin, Path, Value};
pub use host::{Bond, BondMode, HostFacts, Nic, NumaNode, TcpBuffers};
pub use read::host_facts;
pub use rules::{Context, Finding, RULES, Rule, Severity, advise, memory_bytes};
