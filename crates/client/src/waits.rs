//! Who waits for what inside a client, since when; and the bound of a whole operation.
//!
//! Every wait here is listed while it lasts (`ropewalk waiters` shows the list) and ends by its own deadline. What a
//! program asked for is an operation: however many waits it consists of, it ends with `EIO` when it has not moved on
//! for the client's deadline. It moves on when bytes of it are done, when it gets a token, or when what it waits for
//! becomes less (memory is freed, blocks are stored). When the session ends, so does every wait and every operation ([`Calls::alive`]). An
//! operation that is ended leaves the files' state as it is: all calls are cancel-safe.
//!
//! [`Calls::alive`]: crate::calls::Calls::alive

use std::{
    cell::Cell,
    collections::BTreeMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use base::InodeNo;
use parking_lot::Mutex;
use serde::Serialize;

tokio::task_local! {
    static OPERATION: Operation;
}

/// What a program waits for, in the task that does it.
struct Operation {
    name: &'static str,
    moved: Cell<Instant>,
    waits_for: Cell<&'static str>,
}

/// One wait, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// What a program asked for; nothing for work in the background.
    pub operation: Option<&'static str>,
    /// What is waited for.
    pub what: &'static str,
    /// Of which inode.
    pub inode: Option<InodeNo>,
    /// Since when.
    #[serde(rename = "age_s", serialize_with = "base::units::as_seconds")]
    pub age: Duration,
}

/// The list. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Waits(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    rows: BTreeMap<u64, (Instant, Wait)>,
}

/// A wait that lasts.
pub(crate) struct Entered<'a> {
    waits: &'a Waits,
    number: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.waits.0.lock().rows.remove(&self.number);
    }
}

impl Waits {
    /// A wait begins; it ends when this is dropped.
    pub fn enter(&self, what: &'static str, inode: Option<InodeNo>) -> Entered<'_> {
        let named = |operation: &Operation| {
            operation.waits_for.set(what);
            operation.name
        };
        let operation = OPERATION.try_with(named).ok();
        let wait = Wait { operation, what, inode, age: Duration::ZERO };
        let mut table = self.0.lock();
        table.next += 1;
        let number = table.next;
        table.rows.insert(number, (Instant::now(), wait));
        Entered { waits: self, number }
    }

    /// All waits, longest first.
    pub fn list(&self) -> Vec<Wait> {
        let table = self.0.lock();
        table.rows.values().map(|(since, wait)| Wait { age: since.elapsed(), ..wait.clone() }).collect()
    }
}

/// The operation in whose task this is called has moved on.
pub(crate) fn moved() {
    // In the background there is none.
    let _ = OPERATION.try_with(|operation| operation.moved.set(Instant::now()));
}

/// The outcome of `work`, or what it waited for last when it had not moved on for `patience`.
pub(crate) async fn bounded<T>(
    name: &'static str,
    patience: Duration,
    work: impl Future<Output = T>,
) -> Result<T, &'static str> {
    let operation = Operation { name, moved: Cell::new(Instant::now()), waits_for: Cell::new("an answer") };
    let bounded = async {
        tokio::pin!(work);
        loop {
            let until = OPERATION.with(|operation| operation.moved.get()) + patience;
            if let Ok(done) = tokio::time::timeout_at(until.into(), work.as_mut()).await {
                return Ok(done);
            }
            let (moved, waits_for) = OPERATION.with(|o| (o.moved.get(), o.waits_for.get()));
            if moved.elapsed() >= patience {
                return Err(waits_for);
            }
        }
    };
    OPERATION.scope(operation, bounded).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_short_waits_have_one_bound_that_begins_anew_with_progress() {
        let waits = Waits::default();
        let steps = async |count: u32, moves: bool| {
            for _ in 0..count {
                let _entered = waits.enter("its turn", Some(InodeNo(7)));
                tokio::time::sleep(Duration::from_millis(400)).await;
                if moves {
                    moved();
                }
            }
        };
        // Ten steps: a busy machine may stand still for some of them.
        let patience = Duration::from_secs(4);
        // The first is polled first: it waits by now.
        let (stuck, ()) = tokio::join!(bounded("write", patience, steps(1000, false)), async {
            let list = waits.list();
            assert_eq!((list.len(), list[0].operation, list[0].what), (1, Some("write"), "its turn"));
        });
        assert_eq!(stuck, Err("its turn"));
        assert!(waits.list().is_empty());
        assert_eq!(bounded("write", patience, steps(12, true)).await, Ok(()));
    }
}
