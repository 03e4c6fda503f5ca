//! Sharing a file system with other sessions: the tokens held here, how they are got and given back.

pub(crate) mod give;
pub(crate) mod guards;
mod hold;
pub(crate) mod kernel;
mod kernel_attr;
pub(crate) mod linger;
pub(crate) mod page_drop;
mod recall;
mod resolve;
pub(crate) mod state;
pub(crate) mod statistics;
pub mod tokens;
