//! The strip store on one disk.
