//! Tools for administrators, as functions: [`verify`] a pdisk that is not in use, [`dump`] what its files
//! say, and [`bench`] the store on a disk. They print nothing; their reports can be shown as text or JSON.

pub mod bench;
mod dump;
mod offline;
mod verify;

pub use dump::{DumpItem, DumpVersion, dump};
#[cfg(test)]
pub(crate) use verify::check_image;
pub use verify::{Finding, Verification, verify};
