//! Being part of the cluster: session, lease and map, kept up against a manager that may be restarted.
//!
//! Owns the session, the lease and the current [`ClusterView`](crate::ClusterView). The lease counts from the sending of the
//! request that renewed it, and only while the map here is at least the one the manager had then: whoever
//! was thought dead learns who was fenced before it serves again. Without the manager the lease runs out by
//! itself; with it back the process renews or registers anew. It is measured by a clock that goes on while the machine
//! sleeps ([`base::presence`]): who was stopped or asleep finds its lease over, and renews before anything else.

mod in_force;
mod link;
mod managers;
mod member;
mod registrar;

pub use in_force::InForce;
pub use link::{LinkError, ManagerLink, NetManager};
pub use managers::{AskError, Managers};
pub use member::{Membership, MembershipConfig};
pub use registrar::{Registered, Registrar, RegistrarError};
