//! On whose behalf sessions of squashed machines ask, and what that lets them do. The rules are [`namespace`]'s.

use base::{InodeNo, SessionId};
use wire::{
    credentials::{Credentials, Squash, Who},
    mgr::{MgrError, MgrRequest},
};

use super::{Caller, Manager, read_refusal, refusal::refusal};
use crate::{
    keys::{self, Inode},
    namespace,
};

impl Manager {
    /// On whose behalf somebody asks; `by` is whom he names, if anybody.
    pub(super) fn who(&self, caller: Caller, by: Option<&Credentials>) -> Who {
        let map = self.inner.map.borrow();
        Who::of(map.limits_of(caller.member).map_or(Squash::None, |limits| limits.squash), by)
    }

    /// Refuses a question whose answer no program of the asker's machine may see.
    pub(super) fn check_question(&self, caller: Caller, asked: &MgrRequest) -> Result<(), MgrError> {
        let who = self.who(caller, None);
        if who == Who::Root {
            return Ok(());
        }
        let fs = self.fs_of(caller.session)?;
        let contexts = self.inner.writer.contexts();
        let Some(context) = contexts.iter().find(|context| context.fs == fs) else { return Ok(()) };
        namespace::may_ask(&*self.snapshot(), context, &who, asked).map_err(refusal)
    }

    /// Whether a session may read or write files, by its limits. What is not there it may not.
    pub(super) fn may_use_content(
        &self,
        session: SessionId,
        files: &[InodeNo],
        write: bool,
    ) -> Result<bool, MgrError> {
        let (fs, who) = {
            let map = self.inner.map.borrow();
            let Some(client) = map.client(session) else { return Ok(false) };
            let squash = map.limits_of(client.member).map_or(Squash::None, |limits| limits.squash);
            (client.fs, Who::of(squash, None))
        };
        // A number that is not given yet may become anybody's.
        if !self.may_use(session, files, false)? {
            return Ok(false);
        }
        let snapshot = self.snapshot();
        for &file in files.iter().filter(|_| who != Who::Root) {
            let inode: Option<Inode> =
                keys::read(&*snapshot, &keys::inode_key(fs, file)).map_err(read_refusal)?;
            if !inode.is_some_and(|inode| namespace::may_use(&inode, &who, write)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
