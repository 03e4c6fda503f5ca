//! A transaction in the making: two layers of changes above a snapshot.
//!
//! The lower layer is the batch (operations that have succeeded and will be committed together), the
//! upper one the operation that is running. A failed operation is discarded and leaves no trace; the
//! batch never holds a part of an operation.

use std::ops::{Bound, ControlFlow};

use super::{Changes, Read, StoreError, Visit};

/// Changes above a snapshot.
pub struct Txn<'a> {
    base: &'a dyn Read,
    batch: Changes,
    op: Changes,
    /// Of keys and values that joined the batch.
    bytes: usize,
}

impl<'a> Txn<'a> {
    /// No changes yet.
    pub fn new(base: &'a dyn Read) -> Txn<'a> {
        Txn { base, batch: Changes::new(), op: Changes::new(), bytes: 0 }
    }
    /// Sets a key, in the running operation.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.op.insert(key, Some(value));
    }
    /// Removes a key, in the running operation.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.op.insert(key, None);
    }
    /// The running operation succeeded: it joins the batch.
    pub fn keep(&mut self) {
        let len = |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| key.len() + value.as_ref().map_or(0, Vec::len);
        self.bytes += self.op.iter().map(len).sum::<usize>();
        // Not `append`, which builds the whole batch anew.
        self.batch.extend(std::mem::take(&mut self.op));
    }
    /// The running operation failed: it never was.
    pub fn discard(&mut self) {
        self.op.clear();
    }
    /// Whether nothing is to be committed.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }
    /// Bytes that joined the batch, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// The batch.
    pub fn into_changes(self) -> Changes {
        self.batch
    }
}

impl Read for Txn<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.op.get(key).or_else(|| self.batch.get(key)) {
            Some(value) => Ok(value.clone()),
            None => self.base.get(key),
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        let mut lower = |start: &[u8], end: &[u8], visit: Visit<'_>| self.base.scan(start, end, visit);
        let mut middle = |start: &[u8], end: &[u8], visit: Visit<'_>| {
            scan_layer(&self.batch, &mut lower, start, end, visit)
        };
        scan_layer(&self.op, &mut middle, start, end, visit)
    }
}

type ScanFn<'a> = &'a mut dyn FnMut(&[u8], &[u8], Visit<'_>) -> Result<(), StoreError>;

/// Scans `lower` with the changes of one layer laid over it.
pub(super) fn scan_layer(
    layer: &Changes,
    lower: ScanFn<'_>,
    start: &[u8],
    end: &[u8],
    visit: Visit<'_>,
) -> Result<(), StoreError> {
    if start >= end {
        return Ok(());
    }
    let bounds = (Bound::Included(start), Bound::Excluded(end));
    let mut over = layer.range::<[u8], _>(bounds).peekable();
    let mut flow = ControlFlow::Continue(());
    lower(start, end, &mut |key, value| {
        while let Some((changed, new)) = over.next_if(|(changed, _)| changed.as_slice() <= key) {
            if let Some(new) = new {
                flow = visit(changed, new);
            }
            if changed.as_slice() == key || flow.is_break() {
                return flow;
            }
        }
        flow = visit(key, value);
        flow
    })?;
    for (changed, new) in over {
        if flow.is_break() {
            break;
        }
        if let Some(new) = new {
            flow = visit(changed, new);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, u8),
        Delete(u8),
        Keep,
        Discard,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..24u8, any::<u8>()).prop_map(|(k, v)| Step::Put(k, v)),
            4 => (0..24u8).prop_map(Step::Delete),
            1 => Just(Step::Keep),
            1 => Just(Step::Discard),
        ]
    }

    proptest! {
        #[test]
        fn layers_read_like_one_map(
            base in proptest::collection::btree_map(0..24u8, any::<u8>(), 0..12),
            steps in proptest::collection::vec(step(), 0..60),
            start in 0..24u8, end in 0..25u8, limit in 1..30usize,
        ) {
            let base: BTreeMap<Vec<u8>, Vec<u8>> =
                base.into_iter().map(|(k, v)| (vec![k], vec![v])).collect();
            let mut txn = Txn::new(&base);
            let (mut kept, mut now) = (base.clone(), base.clone());
            for step in steps {
                match step {
                    Step::Put(k, v) => { txn.put(vec![k], vec![v]); now.insert(vec![k], vec![v]); }
                    Step::Delete(k) => { txn.delete(vec![k]); now.remove(&vec![k]); }
                    Step::Keep => { txn.keep(); kept = now.clone(); }
                    Step::Discard => { txn.discard(); now = kept.clone(); }
                }
            }
            for k in 0..24u8 {
                prop_assert_eq!(txn.get(&[k]).unwrap(), now.get(&vec![k]).cloned());
            }
            let (mut seen, mut expected) = (Vec::new(), Vec::new());
            txn.scan(&[start], &[end], &mut |k, v| {
                seen.push((k.to_vec(), v.to_vec()));
                if seen.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }).unwrap();
            if start < end {
                expected = now.range(vec![start]..vec![end]).take(limit)
                    .map(|(k, v)| (k.clone(), v.clone())).collect();
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
