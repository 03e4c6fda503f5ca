//! Values of dimensions, in answers and in filters.

use serde::{Deserialize, Serialize};

use crate::query::Want;

/// A value of a dimension.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A name, or what stands for itself.
    Text(String),
    /// A session, a user, the bucket of a size or of a latency.
    Number(u64),
    /// A file system and an inode.
    File(u32, u64),
    /// What was not kept apart.
    Other,
}

/// Whether a value is the one that is looked for. `bucketed`: it is that of a dimension with an order.
pub(crate) fn is_wanted(want: &Want, value: &Value, bucketed: bool) -> bool {
    match value {
        Value::Other => false,
        Value::Number(n) if bucketed => want.bucket == *n,
        Value::Number(n) => want.text.parse() == Ok(*n),
        Value::Text(text) => want.text == *text,
        // A directory can be hundreds of files: most are none of it by the inode.
        Value::File(fs, inode) => {
            want.bucket == *inode && want.text.split_once(':').is_some_and(|(f, _)| f.parse() == Ok(*fs))
        }
    }
}
