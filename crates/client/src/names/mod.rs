//! Names: what is known of directories, and changes of names.

pub(crate) mod directory;
pub(crate) mod made;
