//! A map in memory as a snapshot, for tests.

use std::collections::BTreeMap;

use super::{Changes, Read, StoreError, Visit};

/// Applies changes.
pub fn apply(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, changes: Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(map.insert(key, value)),
            None => drop(map.remove(&key)),
        }
    }
}

impl Read for BTreeMap<Vec<u8>, Vec<u8>> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(BTreeMap::get(self, key).cloned())
    }
    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        if start < end {
            for (key, value) in self.range(start.to_vec()..end.to_vec()) {
                if visit(key, value).is_break() {
                    break;
                }
            }
        }
        Ok(())
    }
}
