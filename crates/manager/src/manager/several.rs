//! One of several managers: its table is copied by another one, and it makes way.

use std::ops::ControlFlow;

use libc::ENOTSUP;
use wire::mgr::{MgrError, MgrReply};

use super::{Manager, stopping};
use crate::store::{Following, Mark, Marked, Snapshot, StoreError, prefix_end};

/// Bytes of records in one part of a copied table, about; an answer may have 8 MiB.
const PART_BYTES: usize = if cfg!(test) { 1 << 10 } else { 512 << 10 };

/// Keys with their values, by rising key, and whether there are more behind.
pub(super) type Records = (Vec<(Vec<u8>, Vec<u8>)>, bool);

/// A part of all there is, from behind a key on.
pub(super) fn records(snapshot: &Snapshot, after: &[u8]) -> Result<Records, StoreError> {
    // The next key that there can be; none is empty.
    let start = [after, &[0]].concat();
    let (mut records, mut bytes, mut more) = (Vec::new(), 0, false);
    snapshot.scan(&start, &prefix_end(&[]), &mut |key, value| {
        if bytes >= PART_BYTES {
            more = true;
            return ControlFlow::Break(());
        }
        bytes += key.len() + value.len();
        records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok((records, more))
}

fn part(of: &Marked, after: &[u8]) -> Result<MgrReply, StoreError> {
    let (records, more) = records(&of.snapshot, after)?;
    let Mark { journal, applied, etcd } = of.mark;
    Ok(MgrReply::TablePart { journal, applied, crc: etcd.unwrap_or_default(), life: of.life, records, more })
}

impl Manager {
    /// A part of the table, from behind a key on.
    pub(super) async fn copy_table(&self, after: Vec<u8>) -> Result<MgrReply, MgrError> {
        // As with the scrub: the store is let go before the lock.
        let (store, lock) = (self.inner.store.clone(), self.inner.scrubbing.clone().lock_owned().await);
        let read = move || {
            let store = store.upgrade();
            let found = store.as_ref().map(|store| {
                let Some(of) = store.marked()? else { return Ok(None) };
                store.copied(after.is_empty().then_some(of.mark.applied));
                part(&of, &after).map(Some)
            });
            drop(store);
            drop(lock);
            found
        };
        match self.inner.writer.aside(read).await? {
            None => Err(stopping()),
            Some(Ok(Some(part))) => Ok(part),
            // Its journal is a file: nobody could follow.
            Some(Ok(None)) => Err(MgrError::Errno(ENOTSUP)),
            Some(Err(error)) => Err(MgrError::Store(error.to_string())),
        }
    }

    /// Makes way for another one: who runs this manager hears it by [`Manager::resigned`].
    pub(super) fn resign(&self, to: &str) -> Result<MgrReply, MgrError> {
        let no = |text: String| Err(MgrError::Config(text));
        let Some(following) = &self.inner.following else {
            return no(
                "the manager's journal is a file: there is no other one (`ropewalk manager migrate`)".into()
            );
        };
        if !self.inner.map.borrow().managers.iter().any(|manager| manager.name == to) {
            return no(format!("there is no manager {to}; `ropewalk manager list` shows which there are"));
        }
        following.set_heir(to);
        self.inner.resigning.notify_one();
        Ok(MgrReply::Done)
    }

    /// Whether others follow its journal, one of which may lead by now.
    pub(crate) fn has_others(&self) -> bool {
        self.inner.following.is_some() && self.inner.map.borrow().managers.len() > 1
    }

    /// Resolves when it is to make way for another one.
    pub async fn resigned(&self) {
        self.inner.resigning.notified().await;
    }

    /// How it stands, where there can be others.
    pub fn following(&self) -> Option<&Following> {
        self.inner.following.as_ref()
    }
}
