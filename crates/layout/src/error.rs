//! The errors of this crate. Each names the value that is wrong and the remedy.

use base::{GroupId, PdiskId};
use thiserror::Error;

use crate::code::{BadBlockSize, Code, UnknownCode};

/// Why a layout table could not be built or changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Not one of the codes.
    #[error(transparent)]
    UnknownCode(#[from] UnknownCode),
    /// Not one of the block sizes.
    #[error(transparent)]
    BlockSize(#[from] BadBlockSize),
    /// Fewer pdisks than strips.
    #[error(
        "code {code} does not fit {pdisks} pdisk(s): each of its {need} strips needs a pdisk of its own; \
         add {} pdisk(s) or use a code with fewer strips", need - pdisks
    )]
    DoesNotFit {
        /// The pool's code.
        code: Code,
        /// K+M.
        need: u32,
        /// Pdisks with a capacity above zero.
        pdisks: u32,
    },
    /// Spare space that could never be used.
    #[error(
        "spare space of {spare} pdisk(s) does not fit code {code} on {pdisks} pdisks: {need} must remain; \
         use a spare of at most {}", pdisks - need
    )]
    SpareDoesNotFit {
        /// The pool's code.
        code: Code,
        /// Spare asked for, in pdisks.
        spare: u32,
        /// K+M.
        need: u32,
        /// Pdisks with a capacity above zero.
        pdisks: u32,
    },
    /// No group, or more than a table may have.
    #[error("{groups} groups are not possible; use 1 to {max} (default for these pdisks: {default})")]
    Groups {
        /// What was given.
        groups: u32,
        /// Most groups of a table.
        max: u32,
        /// What is used if nothing is given.
        default: u32,
    },
    /// The same pdisk twice.
    #[error("{pdisk} is named twice; every pdisk has one place in a table")]
    Duplicate {
        /// Which one.
        pdisk: PdiskId,
    },
    /// A pdisk to remove that the table does not have.
    #[error("{pdisk} is not in this layout table; see the pool's pdisks")]
    NotInTable {
        /// Which one.
        pdisk: PdiskId,
    },
    /// All arrays are full, and too few pdisks are added to open another.
    #[error(
        "{pdisks} more pdisk(s) do not fit this pool's arrays, which have room for {room}, and are too few \
         to open another; add at most {room} or at least {need} at once"
    )]
    ArraysFull {
        /// New pdisks.
        pdisks: u32,
        /// What the arrays can still take.
        room: u32,
        /// New pdisks that would open the array or arrays.
        need: u32,
    },
    /// More pdisks than a table may have.
    #[error("{pdisks} pdisks are more than the {max} a pool may span; make a second pool")]
    TooManyPdisks {
        /// What was given.
        pdisks: u32,
        /// Most pdisks of a table.
        max: u32,
    },
}

/// Why bytes that claim to be a layout table are none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadTable {
    /// A construction this program does not know.
    #[error("layout table of format {format}: this program knows format {known}; upgrade this node")]
    Format {
        /// What the bytes say.
        format: u16,
        /// What we know.
        known: u16,
    },
    /// The list of members does not divide into groups.
    #[error("layout table: {members} members do not make whole groups of {width}")]
    Length {
        /// Entries found.
        members: usize,
        /// K+M.
        width: u8,
    },
    /// A group names a pdisk that is not in the table's list, or twice.
    #[error("layout table: {group} names {pdisk}, which is unknown or named twice in it")]
    Member {
        /// Which group.
        group: GroupId,
        /// Which pdisk.
        pdisk: PdiskId,
    },
    /// The pdisks are not in rising order, or one is there twice.
    #[error("layout table: {pdisk} is out of order in the list of pdisks")]
    Order {
        /// Which pdisk.
        pdisk: PdiskId,
    },
}
