//! Raw ceilings: what this machine's loopback TCP and its disks give without Ropewalk, measured in the same
//! run as the figures that stand beside them. Plain threads and blocking calls, nothing of our own data path.
//! Every measurement has a bound in time and in space, and leaves no file behind, however it ends.

mod disk;
mod echo;
mod pipeline;
mod rate;
mod tcp;

pub use disk::{DISK_BYTES_MAX, DISK_TIME_MAX, DiskRate, disk, disk_read, disk_write};
pub use echo::{ECHO_CONNECTIONS_MAX, echo};
pub use pipeline::{PIPES_MAX, Way, pipeline};
pub use rate::{CeilingError, Rate, TRANSFER_BYTES};
pub use tcp::{CONNECTIONS_MAX, LOOPBACK_TIME_MAX, loopback_tcp};
