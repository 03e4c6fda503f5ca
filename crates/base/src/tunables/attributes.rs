//! What a row says of its tunable beside its value.

/// Where a tunable has one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One value for the cluster.
    Cluster,
    /// Each node may have its own.
    Node,
    /// Each mount may have its own.
    Mount,
}

/// When a change takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// At once.
    Live,
    /// When the pdisk, the connection group or the mount is opened again.
    Reopen,
    /// When the process starts again.
    Restart,
}
