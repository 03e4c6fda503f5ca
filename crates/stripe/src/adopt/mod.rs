//! Versions that are complete and not adopted yet ([`table`]), and their adoption.

pub mod flush;
mod settle;
mod table;

pub use table::{Adoption, Written};
