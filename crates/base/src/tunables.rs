//! The one table of tunables.
