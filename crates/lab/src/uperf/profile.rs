//! What a profile says.

use std::time::Duration;

/// Why a profile cannot be read or run.
#[derive(Debug, thiserror::Error)]
pub enum UperfError {
    /// It is not what a profile may be.
    #[error("line {line}: {why}")]
    Line {
        /// Where, from 1.
        line: u32,
        /// What is wrong, and the remedy.
        why: String,
    },
    /// It is a profile, and none of our tests does what it says.
    #[error("this profile cannot be run here: {0}")]
    NoTest(String),
}

/// A file.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// All groups; one that stood within another follows it, with as many strands as both together make.
    pub groups: Vec<Group>,
}

/// Strands that do the same.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// How many.
    pub strands: u32,
    /// Whether they are threads (`nthreads`) or processes (`nprocs`); all the same here.
    pub threads: bool,
    /// What each does, one after the other.
    pub transactions: Vec<Transaction>,
}

/// Flowops that are repeated.
#[derive(Clone, PartialEq, Debug)]
pub struct Transaction {
    /// How long.
    pub until: Until,
    /// What is kept to, such as `500/s`; not kept to here.
    pub rate: Option<String>,
    /// What is done.
    pub flowops: Vec<Flowop>,
}

/// When a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After so many rounds.
    Iterations(u64),
    /// After this time.
    Duration(Duration),
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flowop {
    /// Which, in small letters.
    pub kind: String,
    /// Its options in their order, names in small letters; a bare word has no value.
    pub options: Vec<(String, Option<String>)>,
}

impl Flowop {
    /// An option's value; `None` where it is not there or has none.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(key, _)| key == name)?.1.as_deref()
    }
}
