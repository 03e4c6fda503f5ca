//! The latest commits, in memory: what the table does not hold yet.
//!
//! Layers of changes, the newest last, each at least twice as large as the next: a new one swallows those below that are not.
//! So there are few, and each change is copied a few times in all. Views share them: a layer in somebody's view never changes.

use std::sync::Arc;

use super::{Changes, Read, Snapshot, StoreError, Visit, txn::scan_layer};

/// Layers of changes above a table.
#[derive(Clone, Default)]
pub struct Recent {
    layers: Vec<Arc<Changes>>,
}

impl Recent {
    /// Adds a commit.
    pub fn push(&mut self, mut changes: Changes) {
        while let Some(below) = self.layers.pop_if(|below| below.len() < 2 * changes.len()) {
            let mut merged = Arc::unwrap_or_clone(below);
            merged.append(&mut changes);
            changes = merged;
        }
        self.layers.push(Arc::new(changes));
    }

    /// Changes held, about: a key that changed several times may count more than once.
    pub fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.len()).sum()
    }

    /// All of them as one set.
    pub fn merged(&self) -> Changes {
        let mut all = Changes::new();
        self.layers.iter().for_each(|layer| all.extend(layer.iter().map(|(k, v)| (k.clone(), v.clone()))));
        all
    }

    /// What a table looks like with them.
    pub fn above(&self, table: Snapshot) -> Snapshot {
        if self.layers.is_empty() { table } else { Arc::new(View { table, recent: self.clone() }) }
    }
}

struct View {
    table: Snapshot,
    recent: Recent,
}

impl Read for View {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.recent.layers.iter().rev().find_map(|layer| layer.get(key)) {
            Some(value) => Ok(value.clone()),
            None => self.table.get(key),
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        scan(&self.recent.layers, &*self.table, start, end, visit)
    }
}

fn scan(
    layers: &[Arc<Changes>],
    table: &dyn Read,
    start: &[u8],
    end: &[u8],
    visit: Visit<'_>,
) -> Result<(), StoreError> {
    let Some((top, below)) = layers.split_last() else { return table.scan(start, end, visit) };
    let mut lower = |start: &[u8], end: &[u8], visit: Visit<'_>| scan(below, table, start, end, visit);
    scan_layer(top, &mut lower, start, end, visit)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ops::ControlFlow};

    use proptest::prelude::*;

    use super::*;

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    fn all(of: &dyn Read) -> Map {
        let mut map = Map::new();
        of.scan(&[], &[u8::MAX], &mut |key, value| {
            map.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        map
    }

    proptest! {
        #[test]
        fn views_stay_what_they_were_and_read_like_one_map(
            base in proptest::collection::btree_map(0..24u8, any::<u8>(), 0..12),
            commits in proptest::collection::vec(
                proptest::collection::btree_map(0..24u8, any::<Option<u8>>(), 1..5), 1..40),
        ) {
            let base: Map = base.into_iter().map(|(k, v)| (vec![k], vec![v])).collect();
            let (mut recent, mut now, mut views) = (Recent::default(), base.clone(), Vec::new());
            for commit in &commits {
                for (&key, &value) in commit {
                    match value {
                        Some(value) => now.insert(vec![key], vec![value]),
                        None => now.remove(&vec![key]),
                    };
                }
                recent.push(commit.iter().map(|(&k, &v)| (vec![k], v.map(|v| vec![v]))).collect());
                views.push((recent.above(Arc::new(base.clone())), now.clone()));
                let sizes = recent.layers.iter().map(|layer| layer.len());
                prop_assert!(sizes.collect::<Vec<_>>().windows(2).all(|pair| pair[0] >= 2 * pair[1]));
            }
            for (view, expected) in &views {
                prop_assert_eq!(&all(&**view), expected);
                for key in 0..24u8 {
                    prop_assert_eq!(view.get(&[key]).unwrap(), expected.get(&vec![key]).cloned());
                }
            }
            // The table may be ahead of the layers' start: they say the same of what they hold.
            let mut ahead = base;
            for (key, value) in recent.merged() {
                match value {
                    Some(value) => ahead.insert(key, value),
                    None => ahead.remove(&key),
                };
            }
            prop_assert_eq!(&ahead, &now);
            prop_assert_eq!(all(&*recent.above(Arc::new(ahead))), now);
        }
    }
}
