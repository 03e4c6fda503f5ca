//! Names: what is known of directories, and changes of names.

mod absent;
pub(crate) mod ahead;
pub(crate) mod all;
pub(crate) mod cache;
pub(crate) mod changing;
pub(crate) mod directory;
mod edit;
pub(crate) mod hint;
pub(crate) mod kept;
pub(crate) mod lookup;
pub(crate) mod recent;
mod storm;
pub(crate) mod worth;
