//! Questions about names, attributes and allocation, answered from the last committed snapshot.

use base::{FsId, InodeNo, SessionId};
use libc::{EIO, ENOENT, ETIMEDOUT};
use wire::mgr::{Attr, FileKind, MgrError, MgrReply, MgrRequest};

use super::{Caller, Manager, read_refusal, refusal::refusal};
use crate::{
    cluster::Ask,
    keys::{self, SessionRecord},
    namespace::{self, Fault, FsContext},
    store::Snapshot,
};

impl Manager {
    /// The file system of a session.
    pub(super) fn fs_of(&self, session: SessionId) -> Result<FsId, MgrError> {
        let record = keys::read::<SessionRecord>(&*self.snapshot(), &keys::session_key(session));
        let record = record.map_err(read_refusal)?;
        record.map(|record| record.fs).ok_or(MgrError::NoSession)
    }

    /// Answers a short question from the last committed snapshot.
    pub(super) fn read_now(&self, session: SessionId, request: &MgrRequest) -> Result<MgrReply, MgrError> {
        let outcome =
            answer_from(&self.inner.writer.snapshot(), &self.inner.writer.contexts(), session, request);
        outcome.map_err(refusal)
    }

    /// Attributes in an answer are true only if nobody is changing them. Whoever looks first and then takes
    /// the snapshot sees everything that was committed before a token was given up.
    fn settle_attrs(&self, session: SessionId, reply: MgrReply) -> Result<MgrReply, MgrError> {
        let fs = self.fs_of(session)?;
        let holders = &self.inner.holders;
        let held = |attr: &Attr| match attr.kind {
            FileKind::File => holders.written_by_other(fs, attr.ino, session),
            _ => holders.led_by_other(fs, attr.ino, session),
        };
        match reply {
            MgrReply::Attr(attr) if attr.kind == FileKind::File && held(&attr) => Ok(MgrReply::Held(attr)),
            MgrReply::Attr(attr) if attr.kind == FileKind::File => {
                self.read_now(session, &MgrRequest::GetAttr { ino: attr.ino })
            }
            MgrReply::Entries { mut entries, end, parent } => {
                entries.iter_mut().filter(|e| e.attr.as_ref().is_some_and(&held)).for_each(|e| e.attr = None);
                for attr in entries.iter_mut().filter_map(|entry| entry.attr.as_mut()) {
                    if let Ok(MgrReply::Attr(now)) =
                        self.read_now(session, &MgrRequest::GetAttr { ino: attr.ino })
                    {
                        *attr = *now;
                    }
                }
                Ok(MgrReply::Entries { entries, end, parent })
            }
            other => Ok(other),
        }
    }

    /// Waits until no other session changes this ahead of the manager: names in a directory, attributes of what is no file. What it has
    /// done by then is in the snapshots, and what it does afterwards comes after this.
    pub(super) async fn look(&self, caller: Caller, ino: InodeNo) -> Result<(), MgrError> {
        if !self.inner.holders.is_shared() {
            return Ok(());
        }
        let fs = self.fs_of(caller.session)?;
        // As long as sessions that make names ahead have not said what they hold, any of them may.
        if !self.inner.holders.led_by_other(fs, ino, caller.session) {
            return Ok(());
        }
        match self.ask(caller, Ask::Look(ino)).await? {
            // To a program that looks this is a wait in vain, as others are.
            MgrReply::Error(MgrError::Errno(ETIMEDOUT)) => Err(MgrError::Errno(EIO)),
            MgrReply::Error(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Answers a reading request from the last committed snapshot.
    pub(super) async fn read(&self, caller: Caller, request: MgrRequest) -> Result<MgrReply, MgrError> {
        let session = caller.session;
        self.check_question(caller, &request)?;
        let attrs = matches!(
            request,
            MgrRequest::Lookup { .. } | MgrRequest::GetAttr { .. } | MgrRequest::ReadDir { plus: true, .. }
        );
        let dir = match &request {
            MgrRequest::Lookup { parent: dir, .. } | MgrRequest::ReadDir { ino: dir, .. } => Some(*dir),
            _ => None,
        };
        if let Some(dir) = dir {
            self.look(caller, dir).await?;
        }
        let again = self.inner.holders.is_shared().then(|| request.clone());
        let mut reply = match (self.read_snapshot(session, request).await, &again) {
            (Err(MgrError::Errno(ENOENT)), Some(again @ MgrRequest::GetAttr { ino })) => {
                self.untold(caller, *ino).await?;
                // Of what was not there it was not known who may see it.
                self.check_question(caller, again)?;
                if let Some(refused) = self.beyond_subtree(session, again) {
                    return Err(refused);
                }
                self.read_snapshot(session, again.clone()).await?
            }
            (reply, _) => reply?,
        };
        let mut looked_at = None;
        while let (Some(again), MgrReply::Attr(attr)) = (&again, &reply)
            && attr.kind != FileKind::File
            && looked_at != Some(attr.ino)
        {
            looked_at = Some(attr.ino);
            self.look(caller, attr.ino).await?;
            // Also if that waited for nobody: who changed it may have told and given it up since this was read.
            reply = self.read_snapshot(session, again.clone()).await?;
        }
        if let Some(dir) = dir {
            self.lead(session, dir, &reply)?;
        }
        // Also if all that was held is given up by now.
        let shared = again.is_some() || self.inner.holders.is_shared();
        if attrs && shared { self.settle_attrs(session, reply) } else { Ok(reply) }
    }

    async fn read_snapshot(&self, session: SessionId, request: MgrRequest) -> Result<MgrReply, MgrError> {
        let snapshot = self.inner.writer.snapshot();
        let contexts = self.inner.writer.contexts();
        let long = matches!(
            request,
            MgrRequest::ReadDir { .. } | MgrRequest::Extents { .. } | MgrRequest::ListXattr { .. }
        );
        let read = move || answer_from(&snapshot, &contexts, session, &request);
        let outcome = if long {
            self.inner.writer.aside(read).await? // thousands of records
        } else {
            read()
        };
        outcome.map_err(refusal)
    }
}

fn answer_from(
    snapshot: &Snapshot,
    contexts: &[FsContext],
    session: SessionId,
    request: &MgrRequest,
) -> Result<MgrReply, Fault> {
    let record = keys::read::<SessionRecord>(&**snapshot, &keys::session_key(session))?;
    let Some(record) = record else { return Ok(MgrReply::Error(MgrError::NoSession)) };
    let Some(fs) = contexts.iter().find(|context| context.fs == record.fs) else {
        return Err(Fault::Errno(ENOENT));
    };
    namespace::query(&**snapshot, fs, request)
}
