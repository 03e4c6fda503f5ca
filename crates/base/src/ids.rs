//! The identifiers of the protocol. One type per glossary word, so that a grant can never be passed
//! where an epoch is meant. All are fixed-width, little-endian on disk and wire.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A node: one machine, one daemon process of the cluster.
    NodeId(u32), "node"
);
id!(
    /// A pdisk, unique in the cluster, never used again.
    PdiskId(u32), "pdisk"
);
id!(
    /// A pool: an array with a redundancy code and a block size.
    PoolId(u32), "pool"
);
id!(
    /// A file system of the cluster.
    FsId(u32), "fs"
);
id!(
    /// The index of a group in its pool's layout table.
    GroupId(u32), "group"
);
id!(
    /// An inode number, unique in its file system, never used again. The root is 1.
    InodeNo(u64), "inode"
);
id!(
    /// The index of a block in its file: byte offset / block size.
    BlockIndex(u64), "block"
);
id!(
    /// The index of a strip in its stripe: 0..K are data, K..K+M parity (or further copies).
    StripIndex(u8), "strip"
);
id!(
    /// The version number of the cluster map, and nothing else.
    Epoch(u64), "epoch"
);
id!(
    /// The number under which a token was given; it only grows.
    Grant(u64), "grant"
);
id!(
    /// A session: one life of a client or server as the manager knows it. Grows; 0 is "none".
    SessionId(u64), "session"
);
id!(
    /// A member of the cluster: who holds one of its certificates. It stays the same when that is renewed; 0 is who has the
    /// cluster's secret.
    MemberId(u64), "member"
);
id!(
    /// One life of a pdisk; raised at every open.
    Incarnation(u64), "incarnation"
);

impl InodeNo {
    /// The root directory of every file system (FUSE demands 1 as well).
    pub const ROOT: InodeNo = InodeNo(1);
}

/// Identity of a cluster: 128 random bits, drawn when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The version of a strip: (grant, sequence), ordered by grant first. The writer holds the grant and
/// counts the sequence; 0.0 is "before any version".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Version {
    /// The grant under which it was written.
    pub grant: Grant,
    /// Its place in that grant; grows with each stripe version the writer makes.
    pub seq: u64,
}

impl Version {
    /// Below every version that is ever written.
    pub const ZERO: Version = Version { grant: Grant(0), seq: 0 };
    /// Above every version that is ever written: "all versions" in a delete.
    pub const MAX: Version = Version { grant: Grant(u64::MAX), seq: u64::MAX };
}
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.grant.0, self.seq)
    }
}
impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A stripe: one block of one file with its redundancy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct StripeId {
    /// File system of the inode.
    pub fs: FsId,
    /// The file.
    pub inode: InodeNo,
    /// The block of the file.
    pub block: BlockIndex,
}

impl StripeId {
    /// The strip of this stripe at `index`.
    pub fn strip(self, index: StripIndex) -> StripId {
        StripId { stripe: self, index }
    }
}
impl fmt::Display for StripeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.fs, self.inode, self.block)
    }
}
impl fmt::Debug for StripeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A strip: one pdisk's share of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct StripId {
    /// The stripe it belongs to.
    pub stripe: StripeId,
    /// Its place in the stripe.
    pub index: StripIndex,
}
impl fmt::Display for StripId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stripe, self.index)
    }
}
impl fmt::Debug for StripId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The set of strips of one stripe as a bit mask: bit i is strip i. A stripe has at most 32 strips.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StripSet(pub u32);

impl StripSet {
    /// Strips 0..n.
    pub fn first(n: u8) -> StripSet {
        debug_assert!(n <= 32);
        StripSet(((1u64 << n) - 1) as u32)
    }
    /// Whether strip `i` is in the set.
    pub fn contains(self, i: StripIndex) -> bool {
        i.0 < 32 && self.0 & (1 << i.0) != 0
    }
    /// Adds strip `i`.
    pub fn insert(&mut self, i: StripIndex) {
        debug_assert!(i.0 < 32);
        self.0 |= 1 << i.0;
    }
    /// Removes strip `i`.
    pub fn remove(&mut self, i: StripIndex) {
        self.0 &= !(1u32.checked_shl(i.0.into()).unwrap_or(0));
    }
    /// How many strips are in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
    /// Whether every strip of `other` is in this set.
    pub fn contains_all(self, other: StripSet) -> bool {
        other.0 & !self.0 == 0
    }
    /// Whether no strip is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The strips in rising order.
    pub fn iter(self) -> impl Iterator<Item = StripIndex> {
        (0..32u8).filter(move |i| self.0 & (1 << i) != 0).map(StripIndex)
    }
}
impl fmt::Debug for StripSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|i| i.0)).finish()
    }
}
impl FromIterator<StripIndex> for StripSet {
    fn from_iter<T: IntoIterator<Item = StripIndex>>(iter: T) -> Self {
        let mut set = StripSet::default();
        iter.into_iter().for_each(|i| set.insert(i));
        set
    }
}

/// What kind of work a request is part of: statistics are kept by it, and later scheduling.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum OpClass {
    /// Leases, map, configuration, status.
    #[default]
    Control = 0,
    /// File data read for an application.
    Read = 1,
    /// File data written for an application.
    Write = 2,
    /// Names and attributes.
    Metadata = 3,
    /// Read ahead of the application.
    Prefetch = 4,
    /// Catch-up, rebuild, drain, rebalance.
    Rebuild = 5,
    /// Checking what is stored.
    Scrub = 6,
    /// Measurements of the lab.
    Lab = 7,
}

impl OpClass {
    /// All classes, in the order of their numbers.
    pub const ALL: [OpClass; 8] = [
        OpClass::Control,
        OpClass::Read,
        OpClass::Write,
        OpClass::Metadata,
        OpClass::Prefetch,
        OpClass::Rebuild,
        OpClass::Scrub,
        OpClass::Lab,
    ];
    /// From its number on the wire; unknown numbers are `Control`, which only misfiles a statistic.
    pub fn from_u8(n: u8) -> OpClass {
        OpClass::ALL.get(n as usize).copied().unwrap_or_default()
    }
    /// Lower-case name, as in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::Control => "control",
            OpClass::Read => "read",
            OpClass::Write => "write",
            OpClass::Metadata => "metadata",
            OpClass::Prefetch => "prefetch",
            OpClass::Rebuild => "rebuild",
            OpClass::Scrub => "scrub",
            OpClass::Lab => "lab",
        }
    }
}
