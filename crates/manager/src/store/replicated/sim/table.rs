//! What a manager has in its table, and how a table is copied from the manager that leads.

use std::{collections::BTreeMap, ops::Bound};

use super::{super::part::PART_BYTES, Without};
use crate::store::{Changes, memory};

/// Keys and values: of the cluster, as the shipped code stores them, and of the clients' operations.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Which life has claimed the journal.
const CLAIMS: u8 = 0xfd;
/// How many operations were done: the same row for all.
const COUNT: u8 = 0xfe;
/// Operations.
const OPS: u8 = 0xff;
/// Rows in one part of a copy.
const COPY_ROWS: usize = 4;

fn row(kind: u8, number: u64) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend(number.to_be_bytes());
    key
}

/// Which operation some changes are, if one of the clients'.
pub fn op_of(changes: &Changes) -> Option<u64> {
    let (key, _) = changes.last_key_value()?;
    let number = key.strip_prefix(&[OPS])?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// What a manager says first of all.
pub fn claim_of(life: u64) -> Changes {
    [(row(CLAIMS, 0), Some(life.to_be_bytes().to_vec()))].into()
}

/// See the module.
#[derive(Clone, Default)]
pub struct Table {
    pub applied: u64,
    /// The CRC in the last record that was applied.
    pub crc: Option<u32>,
    /// It is not begun with less than this.
    pub acked: u64,
    /// The CRC in that record.
    pub acked_crc: Option<u32>,
    pub rows: Rows,
}

impl Table {
    pub fn apply(&mut self, number: u64, crc: Option<u32>, changes: Changes) {
        memory::apply(&mut self.rows, changes);
        (self.applied, self.crc) = (number, crc);
        if number >= self.acked {
            (self.acked, self.acked_crc) = (number, crc);
        }
    }

    /// Whether an operation was done, as far as this one knows.
    pub fn has(&self, op: u64) -> bool {
        self.rows.contains_key(&row(OPS, op))
    }

    /// What an operation changes; each third takes two parts.
    pub fn changes_of(&self, op: u64) -> Changes {
        let value = vec![op as u8; if op % 3 == 1 { PART_BYTES } else { 9 }];
        let count = self.rows.get(&row(COUNT, 0)).and_then(|count| count.first_chunk()).copied();
        let count = count.map_or(0, u64::from_be_bytes) + 1;
        [(row(COUNT, 0), Some(count.to_be_bytes().to_vec())), (row(OPS, op), Some(value))].into()
    }
}

/// A copy that is being made, in parts of different moments.
#[derive(Clone, Default)]
pub struct Copying {
    table: Option<Table>,
    after: Vec<u8>,
    /// Whose parts they are.
    life: u64,
}

impl Copying {
    /// No part of that life's table was taken yet.
    pub fn begins(&self, life: u64) -> bool {
        self.table.is_none() || self.life != life
    }

    /// Takes the next part from the table of who leads; the whole table, with the last one.
    pub fn take(&mut self, from: &Table, life: u64, without: Without) -> Option<Table> {
        if self.begins(life) && without != Without::OneLife {
            *self = Copying::default();
        }
        self.life = life;
        let first = self.table.get_or_insert_with(|| Table { rows: Rows::new(), ..from.clone() });
        let behind = (Bound::Excluded(self.after.clone()), Bound::Unbounded);
        let mut rows = from.rows.range::<Vec<u8>, _>(behind);
        for (key, value) in rows.by_ref().take(COPY_ROWS) {
            self.after.clone_from(key);
            first.rows.insert(key.clone(), value.clone());
        }
        if without == Without::FirstMark {
            (first.applied, first.crc) = (from.applied, from.crc);
        }
        let cut_short = without == Without::LastPart && first.rows.len() >= 2 * COPY_ROWS;
        if rows.next().is_some() && !cut_short {
            return None;
        }
        (first.acked, first.acked_crc) =
            if without == Without::LastMark { (first.applied, first.crc) } else { (from.applied, from.crc) };
        std::mem::take(self).table
    }
}
