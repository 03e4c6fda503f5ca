//! The cluster: who serves, whose sessions live, which pdisks count; the only author of the map.
//!
//! A plain state machine: [`Cluster::handle`] takes an event and the time, changes its state and
//! returns a [`Step`]: what to store, whom to answer, what to tell. The driver stores first, publishes
//! the map then, and answers last, before it feeds the next event; so nobody ever sees state that is
//! not durable. Time only grows and starts anywhere; after a restart everybody has a full lease, the longest that may be out.
//! What comes first in each life of the manager is [`Cluster::begin_life`].
//!
//! Time here is the time that the manager was present ([`base::presence`]): it stands while the process is stopped, the
//! machine asleep, the store stuck. So nobody's silence is judged by a time in which the manager itself heard nothing; and after
//! a longer absence ([`Event::Away`]) everybody has a full lease. What was fenced stays fenced: it is in the map.
//! A lease given counts here from a later moment, and by a slower clock, than at whom it was given to: so it has ended there
//! when it has ended here. The other way round nothing is concluded from a lease that still runs here: servers and clients
//! look at their own. (With several managers one of them would need a lease itself, to be the only one who judges: that one it
//! must measure by `boot_time`, as servers and clients do theirs, and look at when an answer leaves.)

#[cfg(test)]
mod absence_tests;
mod builds;
mod clients;
mod code;
mod event;
mod grants;
mod handle;
mod holders;
mod invitations;
mod lives;
#[cfg(test)]
mod lives_tests;
mod locks;
#[cfg(test)]
mod locks_tests;
mod longest_lease;
mod losses;
mod managers;
mod members;
mod moves;
#[cfg(test)]
mod moves_tests;
mod moving;
mod nodes;
#[cfg(test)]
mod nodes_tests;
mod overdue;
mod pdisks;
mod pools;
#[cfg(test)]
mod pools_tests;
mod report;
mod rest;
mod room;
mod servers;
mod space;
#[cfg(test)]
pub(crate) mod stage;
mod state;
mod step;
mod stored;
#[cfg(test)]
mod tests;
mod tokens;
mod versions;
#[cfg(test)]
mod versions_tests;
mod wishes;

use std::time::Duration;

pub use self::{
    code::data_strips,
    event::{Ask, Event, Question},
    holders::{Holders, UnderWay},
    nodes::{check_name as check_node_name, check_rack},
    pools::{NewPool, Removal},
    state::Cluster,
    step::{HolderList, Step, StoreOp},
    stored::{VOTERS, given_nodes, last_removed_fs, last_told_pdisk, load_map, map_record},
};
pub(crate) use self::{
    code::needed,
    longest_lease::LEASE_MAX,
    rest::{Kind, Rest},
};
pub use crate::ticket::Ticket;

/// How long a lease lasts unless configured.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(10);
