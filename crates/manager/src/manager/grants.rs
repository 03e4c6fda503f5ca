//! Tokens with what their holder needs to know at once.

use std::time::Duration;

use base::{InodeNo, SessionId};
use libc::{EINVAL, ENOENT, ETIMEDOUT};
use tokio::time::Instant;
use wire::{
    mgr::{Attr, FileKind, MgrError, MgrReply, MgrRequest},
    token::{Need, TokenMode},
};

use super::{ANSWER_BEFORE, Caller, Manager, read_refusal, refusal::refusal};
use crate::{
    keys::{self, NumbersRecord},
    namespace,
};

/// How long the token of a new file is waited for.
const MADE_WAIT: Duration = Duration::from_millis(50);

impl Manager {
    /// A token, with the inode's attributes as they are after it was given.
    pub(super) async fn acquire(
        &self,
        caller: Caller,
        ino: InodeNo,
        need: Need,
    ) -> Result<MgrReply, MgrError> {
        let session = caller.session;
        // After a restart it is known by the numbers who may have made something.
        let need = if need == Need::Make && !self.makes_names(session)? { Need::Names } else { need };
        let names = matches!(need, Need::Names | Need::Make);
        if names {
            match self.read_now(session, &MgrRequest::GetAttr { ino })? {
                MgrReply::Attr(attr)
                    if attr.kind == FileKind::File
                        || need == Need::Make && attr.kind != FileKind::Directory =>
                {
                    return Err(MgrError::Errno(EINVAL));
                }
                MgrReply::Attr(_) => {}
                other => return Ok(other),
            }
        }
        let (token, resolve) = match self.ask(caller, MgrRequest::Acquire { ino, need }).await? {
            MgrReply::Token { token, resolve, .. } => (token, resolve),
            refused => return Ok(refused),
        };
        if names {
            // Changes that began before cannot know of this grant.
            let ended = self.inner.holders.wait_changes(self.fs_of(session)?, ino);
            let ended = tokio::time::timeout_at(caller.expires - ANSWER_BEFORE, ended).await;
            ended.map_err(|_| MgrError::Errno(ETIMEDOUT))?;
        }
        let attr = match self.read_now(session, &MgrRequest::GetAttr { ino }) {
            Ok(MgrReply::Attr(attr)) if !names || attr.nlink > 0 => Some(attr),
            Ok(_) | Err(MgrError::Errno(ENOENT)) => None,
            Err(error) => return Err(error),
        };
        let empty = names && attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Directory) && {
            let read = self.inner.writer.snapshot();
            let empty = namespace::is_empty(&*read, self.fs_of(session)?, ino);
            empty.map_err(refusal)?
        };
        Ok(MgrReply::Token { token, resolve, attr, empty })
    }

    /// A file or directory was made for somebody who will use it. Nobody else knows it yet; if somebody does (the answer is repeated,
    /// or the name was looked up since), or tokens are not given now, it is asked for when it is used.
    pub(crate) async fn made_held(&self, caller: Caller, attr: Box<Attr>) -> MgrReply {
        let ino = attr.ino;
        let held = match attr.kind {
            FileKind::File => {
                let ask = MgrRequest::Acquire { ino, need: Need::Write };
                self.ask_until(self.inner.now() + MADE_WAIT, caller, ask.into()).await
            }
            FileKind::Directory if self.makes_names(caller.session).unwrap_or(false) => {
                let expires = caller.expires.min(Instant::now() + MADE_WAIT + ANSWER_BEFORE);
                self.acquire(Caller { expires, ..caller }, ino, Need::Make).await
            }
            _ => return MgrReply::Created { attr, new: true },
        };
        if let Ok(MgrReply::Token { token, resolve, .. }) = held
            && token.mode == TokenMode::Write
            && self.is_as_made(caller, &attr)
        {
            return MgrReply::CreatedHeld { attr, token, resolve };
        }
        MgrReply::Created { attr, new: true }
    }

    /// Whether a session has got inode numbers to make names ahead with.
    fn makes_names(&self, session: SessionId) -> Result<bool, MgrError> {
        let numbers = keys::read::<NumbersRecord>(&*self.snapshot(), &keys::numbers_key(session));
        Ok(numbers.map_err(read_refusal)?.is_some())
    }

    /// Whether nobody has changed it since it was made: who held a file before may have written to it, or made a name in a directory,
    /// and its maker would take it for empty.
    fn is_as_made(&self, caller: Caller, made: &Attr) -> bool {
        let now = self.read_now(caller.session, &MgrRequest::GetAttr { ino: made.ino });
        matches!(now, Ok(MgrReply::Attr(now)) if *now == *made)
    }
}
