//! Reads a Linux host: procfs, sysfs and a few files below a root, outputs of a few programs, into facts. One file a subject; each function gives
//! facts for what it can see and none for what it cannot. Garbage is no fact and never a panic.

mod block;
pub(crate) mod bridges;
mod commands;
mod counters;
mod cpu;
mod log;
mod manager;
mod memory;
mod net;
pub(crate) mod pcie;
mod probe;
pub(crate) mod program;
mod reader;
mod shaper;
mod system;
mod tree;
mod tuners;

pub(crate) use counters::VMSTAT;
pub use manager::Manager;
pub(crate) use net::STATISTICS as NET_STATISTICS;
pub use probe::probe;
pub use program::output as program_output;
pub(crate) use reader::cpu_list;
pub(crate) use shaper::{UNSHAPED, shaper_of};
pub(crate) use system::runs;
pub(crate) use tree::is_live;
pub use tree::{Entries, Entry, Tree};
pub(crate) use tuners::{OURS as OUR_PROFILE, OWN_PLACES, own_place};

use crate::facts::Facts;
use reader::Reader;

/// The facts of the host whose files these are.
pub fn host_facts(tree: &Tree) -> Facts {
    let mut reader = Reader { tree, facts: Facts::new() };
    system::read(&mut reader);
    cpu::read(&mut reader);
    memory::read(&mut reader);
    block::read(&mut reader);
    pcie::read(&mut reader);
    net::read(&mut reader);
    counters::read(&mut reader);
    log::read(&mut reader);
    tuners::read(&mut reader);
    commands::read(&mut reader);
    reader.facts
}
