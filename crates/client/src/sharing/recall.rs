//! What the manager wants of a session's tokens: it is asked in one question that waits.
//!
//! On failure the manager asks again for what it wants.

use std::{sync::Arc, time::Duration};

use base::{Grant, InodeNo};
use wire::{
    mgr::{FileKind, MgrReply, MgrRequest},
    token::{Recall, TOKENS_MAX, Token, TokenMode},
};

use crate::{calls::unexpected, core::Core, error::Errno, files::inode::Inode};

/// Pause before attributes are asked for again.
const RETRY: Duration = Duration::from_millis(300);
/// One wait for recalls.
const RECALL_POLL: Duration = Duration::from_secs(20);

impl Core {
    /// Follows the manager's wishes until the session ends.
    pub async fn follow_recalls(self: Arc<Core>) {
        while !self.calls.dead() {
            match self.calls.ask_within(MgrRequest::WaitRecalls, RECALL_POLL).await {
                Ok(MgrReply::Recalls(recalls)) => self.obey(recalls).await,
                Ok(other) => drop(unexpected("WaitRecalls", &other)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn obey(self: &Arc<Core>, recalls: Vec<Recall>) {
        for recall in recalls {
            match recall {
                Recall::Token(token) => {
                    let core = self.clone();
                    self.runtime.spawn(async move { core.give_back(token).await });
                }
                Recall::Publish(ino, number) => {
                    let core = self.clone();
                    self.runtime.spawn(async move { core.publish(ino, number).await });
                }
                Recall::Share => self.share().await,
                Recall::Whole(grant) => self.take_whole(grant).await,
                Recall::Locks(life) => self.claim_locks(life).await,
                Recall::Resolve(pass) => {
                    if self.sharing.begin_resolution(pass) {
                        let core = self.clone();
                        self.runtime.spawn(async move { core.resolve_pass(pass).await });
                    }
                }
            }
        }
    }

    /// The session has ended: what is cached is worthless.
    pub async fn drop_caches(&self) {
        self.kernel.tell(|kernel| kernel.drop_all()).await;
    }

    /// Somebody wants to know the times of a file that is held in part.
    async fn publish(self: Arc<Core>, ino: InodeNo, number: Grant) {
        if let Some(inode) = self.inode_known(ino)
            && let Err(error) = self.commit(&inode).await
        {
            // Asked for again.
            tracing::warn!(inode = %ino, %error, "times could not be told");
            return;
        }
        if let Err(error) = self.calls.ask(MgrRequest::Published { ino, number }).await {
            tracing::warn!(inode = %ino, %error, "that times are told could not be told");
        }
    }

    async fn learn(&self, inode: &Inode, grant: Grant) -> Result<(), Errno> {
        let attr = match self.calls.ask(MgrRequest::GetAttr { ino: inode.ino }).await {
            Ok(MgrReply::Attr(attr)) => attr,
            Ok(other) => return Err(unexpected("GetAttr", &other)),
            // Nobody can ask for it any more.
            Err(Errno::ENOENT) => return Ok(()),
            // Nor can this session: it was moved out of its subtree. Another answer does not come, and whoever uses it asks himself.
            Err(Errno(libc::EACCES)) => {
                inode.lock().outdate_attr();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut state = inode.lock();
        state.merge_shared(*attr);
        // Others have allocated where this one held nothing.
        let held = state.token.known(inode.ino).usable();
        state.recorded.doubt_all_but(&held);
        state.token.take_whole(grant);
        Ok(())
    }

    /// Nobody else is there any more.
    async fn take_whole(self: &Arc<Core>, grant: Grant) {
        let part = |inode: &Arc<Inode>| inode.lock().token.mode() == TokenMode::Part;
        // Of files held in part the others' times and blocks are to be learned, before the whole is used.
        for inode in self.all_inodes().into_iter().filter(part) {
            while let Err(error) = self.learn(&inode, grant).await {
                if self.calls.dead() {
                    return;
                }
                tracing::warn!(inode = %inode.ino, %error, "attributes of a file cannot be learned yet");
                tokio::time::sleep(RETRY).await;
            }
        }
        self.sharing.set_whole(grant);
        self.kernel.tell(|kernel| kernel.set_shared(false)).await;
        tracing::info!("the file system is ours alone");
    }

    /// Others come, or the manager begins anew: says what is held. What is only cached and cannot be said
    /// goes.
    pub(crate) async fn share(self: &Arc<Core>) {
        self.sharing.begin_claim();
        // Nothing is made ahead from now on, and nobody may look before they are told. Asked again, or ended, if that fails.
        if let Err(error) = self.calls.told_or_waits().await {
            tracing::warn!(%error, "what was made here cannot be told");
            return;
        }
        self.sharing.note_claim();
        self.kernel.tell(|kernel| kernel.set_shared(true)).await;
        let (mut tokens, mut kept) = (Vec::new(), Vec::new());
        for inode in self.all_inodes() {
            let mut state = inode.lock();
            if state.special {
                state.names.all = None;
            }
            let is_file = state.attr_known && state.attr.kind == FileKind::File;
            let in_use = state.opens.any() || state.token.users() > 0 || state.unsettled();
            if is_file || in_use && !state.special {
                tokens.extend(state.token.token(inode.ino));
            } else {
                // Of what is no file only that it is open.
                state.token.forget(inode.ino);
                if state.opens.any() {
                    state.token.opened();
                    tokens.extend(state.token.token(inode.ino));
                }
                state.outdate_attr();
                state.names.kept.forget();
                if state.kernel_attr {
                    kept.push(inode.clone());
                }
            }
        }
        self.drop_kernel_attrs(kept).await;
        self.sharing.note_given_back();
        tracing::info!(tokens = tokens.len(), "the file system is shared");
        loop {
            let rest = tokens.split_off(message_len(&tokens));
            let last = rest.is_empty();
            let claim = MgrRequest::Claim { tokens: std::mem::replace(&mut tokens, rest), last };
            if let Err(error) = self.calls.ask(claim).await {
                // Asked for again.
                tracing::warn!(%error, "tokens held could not be told");
                return;
            }
            if last {
                self.sharing.end_claim();
                return;
            }
        }
    }
}

/// How many of these tokens fit into one message.
fn message_len(tokens: &[Token]) -> usize {
    let mut room = TOKENS_MAX;
    let fits = |token: &&Token| {
        let size = 1 + token.blocks.runs().len();
        let fits = size <= room;
        room = room.saturating_sub(size);
        fits
    };
    tokens.iter().take_while(fits).count()
}
