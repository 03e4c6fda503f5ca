//! A dump of all that is stored, while the manager runs: part after part, from the snapshot of one moment, which is kept meanwhile. One
//! at a time: who begins another one ends it. Who asks no more lets it go. One that has ended, because the manager has or another one
//! leads, is begun anew by who wants it.

use tokio::time::Instant;
use wire::mgr::{MgrError, MgrReply};

use super::{Manager, several::records, shared::Dump};
use crate::store::Snapshot;

impl Manager {
    /// A part of a dump, from behind a key on.
    pub(super) async fn dump(&self, number: u64, after: Vec<u8>) -> Result<MgrReply, MgrError> {
        let snapshot = self.dumped(number, after.is_empty())?;
        let read = self.inner.writer.aside(move || records(&snapshot, &after)).await?;
        let (records, more) = read.map_err(|error| MgrError::Store(error.to_string()))?;
        Ok(MgrReply::Dumped { records, more })
    }

    fn dumped(&self, number: u64, first: bool) -> Result<Snapshot, MgrError> {
        let mut kept = self.inner.dump.lock();
        if first && kept.as_ref().is_none_or(|dump| dump.number != number) {
            *kept = Some(Dump { number, snapshot: self.snapshot(), asked: Instant::now() });
        }
        let ended = || {
            let why = "this dump cannot go on: another one was begun, or another manager leads; begin anew";
            MgrError::Config(why.into())
        };
        let dump = kept.as_mut().filter(|dump| dump.number == number).ok_or_else(ended)?;
        dump.asked = Instant::now();
        Ok(dump.snapshot.clone())
    }
}
