//! One stripe over the network: write, read, decode, adopt, resolve, make a strip anew.
//!
//! Used by the client (everything), by the NSD server (catch-up and repair) and by whoever resolves after
//! an unclean end of a session. The rules are those of DESIGN "Stripe versions"; what can be decided
//! without I/O is decided in pure functions: [`plan`], `read_plan`, [`resolve`].
#![forbid(unsafe_code)]

mod adopt;
mod error;
mod geometry;
mod io;
mod latency;
mod membership;
mod meta;
mod pieces;
pub mod plan;
mod prove;
mod read;
mod read_plan;
mod repair;
pub mod resolve;
mod resolve_fs;
mod transport;
mod view;
mod write;

pub use error::{Fault, StripFault, StripFaults, StripeError};
pub use geometry::{Geometry, clip, covers_all, normalise, parity_ranges, subtract, union};
pub use io::{IoConfig, SessionCell, SilenceReporter, StripStates, StripeIo};
pub use membership::{
    InForce, LinkError, ManagerLink, Membership, MembershipConfig, NetManager, Registered, Registrar,
    RegistrarError,
};
pub use meta::BlockMeta;
pub use pieces::Pieces;
pub use prove::{Finding, Proof, compare, compare_content, readable};
pub use read::BlockRead;
pub use repair::StripeTarget;
pub use resolve_fs::{ResolveProgress, ResolveReport, resolve_fs, resolve_inode, unresolved_inodes};
pub use transport::{NetTransport, NsdCall, NsdTransport};
pub use view::{ClusterView, PoolView};
pub use write::WriteStripe;
