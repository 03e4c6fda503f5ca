//! The queue of strips that are to be deleted: entries by rising number, and a record of how many there are.
//!
//! Invariant: the record counts the entries and their blocks, and no number is given twice; an entry goes once. In debug builds
//! this is looked at around each change of a short queue: where it held before, it holds after. What was wrong in the store
//! stays wrong and is [`crate::check`]'s to tell.

use std::ops::ControlFlow;

use crate::{
    keys::{self, DeleteQueueRecord, DeleteRecord, ReadError, delete_key, delete_queue_key, last_u64},
    store::{Read, Txn, open_record, prefix_end},
};

/// Longer queues are not looked at.
const CHECKED_MAX: usize = 64;

/// Adds an entry at the end.
pub fn push(txn: &mut Txn<'_>, record: &DeleteRecord) -> Result<(), ReadError> {
    let was_sound = is_sound(txn) == Some(true);
    let mut queue = keys::read::<DeleteQueueRecord>(txn, &delete_queue_key())?.unwrap_or_default();
    queue.last += 1;
    queue.entries += 1;
    queue.blocks = queue.blocks.saturating_add(record.blocks);
    keys::write(txn, delete_key(queue.last), record);
    keys::write(txn, delete_queue_key(), &queue);
    debug_assert!(!was_sound || is_sound(txn) != Some(false), "an entry more: {queue:?}");
    Ok(())
}

/// Removes entries, which have so many blocks.
pub fn remove(txn: &mut Txn<'_>, numbers: &[u64], blocks: u64) -> Result<(), ReadError> {
    let was_sound = is_sound(txn) == Some(true);
    let mut queue = keys::read::<DeleteQueueRecord>(txn, &delete_queue_key())?.unwrap_or_default();
    queue.entries = queue.entries.saturating_sub(numbers.len() as u64);
    queue.blocks = queue.blocks.saturating_sub(blocks);
    numbers.iter().for_each(|&number| txn.delete(delete_key(number)));
    keys::write(txn, delete_queue_key(), &queue);
    debug_assert!(!was_sound || is_sound(txn) != Some(false), "entries {numbers:?} less: {queue:?}");
    Ok(())
}

/// Whether the record says what there is; `None` where that is too long to look at, cannot be read, or is not looked at.
fn is_sound(from: &dyn Read) -> Option<bool> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let queue = keys::read::<DeleteQueueRecord>(from, &delete_queue_key()).ok()?.unwrap_or_default();
    let mut found = Some(DeleteQueueRecord::default());
    let scanned = from.scan(b"q", &prefix_end(b"q"), &mut |key, value| {
        let record = open_record::<DeleteRecord>(key, value).ok();
        found = found.take().zip(record).filter(|(all, _)| all.entries < CHECKED_MAX as u64).map(
            |(all, record)| DeleteQueueRecord {
                last: last_u64(key),
                entries: all.entries + 1,
                blocks: all.blocks.saturating_add(record.blocks),
            },
        );
        if found.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    scanned.ok()?;
    let found = found?;
    Some((found.entries, found.blocks) == (queue.entries, queue.blocks) && found.last <= queue.last)
}
