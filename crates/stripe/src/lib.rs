//! One stripe over the network: write, read, decode, adopt, resolve, make a strip anew.
//!
//! Used by the client (everything), by the NSD server (catch-up and repair) and by whoever resolves after
//! an unclean end of a session. The rules are those of DESIGN "Stripe versions"; what can be decided
//! without I/O is decided in pure functions: `write/plan.rs`, `read/plan.rs`, [`resolve`].
#![forbid(unsafe_code)]

mod adopt;
mod compute;
mod config;
mod error;
mod geometry;
mod io;
mod membership;
mod meta;
mod pieces;
mod prove;
mod read;
pub mod resolve;
mod session;
mod shared;
mod statistics;
mod target;
mod transport;
mod view;
mod write;

pub use config::IoConfig;
pub use error::{Fault, StripFault, StripFaults, StripeError};
pub use geometry::{Geometry, clip, covers_all, normalise, parity_ranges, subtract, union};
pub use io::StripeIo;
pub use membership::{
    InForce, LinkError, ManagerLink, Membership, MembershipConfig, NetManager, Registered, Registrar,
    RegistrarError,
};
pub use meta::BlockMeta;
pub use pieces::Pieces;
pub use prove::{Finding, Proof, compare, compare_content, readable};
pub use read::BlockRead;
pub use resolve::{ResolveProgress, ResolveReport, resolve_fs, resolve_inode, unresolved_inodes};
pub use session::{SessionCell, SilenceReporter};
pub use shared::StripStates;
pub use target::StripeTarget;
pub use transport::{NetTransport, NsdCall, NsdTransport};
pub use view::{ClusterView, PoolView};
pub use write::WriteStripe;
