//! Reads a machine, applies rules, says what to tune and why, sets it and takes it back.
//! [`host_facts`] reads a live host or an archive of one into [`Facts`]; [`Catalogue`] holds the rules, most of them
//! data; [`advise`] makes findings of both. A fact that is not there never triggers a rule.
#![forbid(unsafe_code)]

pub mod apply;
pub mod archive;
pub mod catalogue;
pub mod code;
pub mod compare;
pub mod counted;
mod crash;
pub mod dumps;
pub mod ends;
mod ethtool;
pub mod expr;
pub mod facts;
pub mod finding;
mod host;
pub mod journal;
mod permanent;
mod rank;
mod replace;
mod rule;
mod settable;
mod shaping;
mod shell;
mod together;
mod topology;
mod tuned;

pub use catalogue::{Catalogue, CatalogueError};
pub use facts::{Fact, Facts, Origin, Path, Value};
pub use finding::{Change, Evidence, Finding};
pub use host::{Entries, Entry, Tree, host_facts, probe, program_output};
pub use rank::{advise, assumed, tunables, worst};
pub use rule::{Confidence, Gain, Role, Rule, Severity};
pub use settable::Settable;
pub use topology::topology;
