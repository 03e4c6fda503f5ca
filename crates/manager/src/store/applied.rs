//! How far a table has come in its journal.

/// How far the table follows its journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    /// The journal's identity.
    pub journal: u64,
    /// Number of the last change applied.
    pub applied: u64,
    /// The journal is in etcd: the CRC in its record, 0 if there is none.
    pub etcd: Option<u32>,
}
