//! Tokens are got before an inode is used (docs/tokens.md has the protocol, [`super::tokens`] the states of one token).
//!
//! While nobody else has the file system mounted the session is whole: every token is held and nothing is asked.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{Grant, InodeNo};
use wire::{
    mgr::{Attr, MgrReply, MgrRequest},
    token::{Need, Token, TokenMode},
};

use super::{
    guards::{Asking, TokenHold},
    kernel::KernelCache,
    state::Moment,
    statistics::TokenWait,
    tokens::{Cell, Enter, writes},
};
use crate::{
    calls::unexpected,
    core::Core,
    error::Errno,
    files::{inode::Inode, state::FileState},
};

/// Somebody who holds locked kernel pages is let in after this, if the pages are waited for.
pub(super) const LATE_AFTER: Duration = Duration::from_millis(5);

impl Core {
    /// The grant under which everything is held, while nobody else is there.
    pub fn whole(&self) -> Option<Grant> {
        self.sharing.whole_grant()
    }

    /// The token of an inode whose entry is made now.
    pub fn first_token(&self) -> Cell {
        self.whole().map(Cell::whole).unwrap_or_default()
    }

    /// What has the kernel's part of the cache.
    pub fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        self.kernel.set(kernel.clone());
        // Others may come, or go, before it is set, and tell nobody.
        loop {
            let shared = self.whole().is_none();
            kernel.set_shared(shared);
            if shared == self.whole().is_none() {
                return;
            }
        }
    }

    /// Whether an answer with attributes of a file may be older than what was known here: tokens were given back
    /// since it was `asked` for, or others change the times.
    pub fn is_behind(&self, ino: InodeNo, asked: Moment) -> bool {
        let part = |inode: Arc<Inode>| inode.lock().token.mode() == TokenMode::Part;
        self.sharing.gave_back_since(asked) || self.inode_known(ino).is_some_and(part)
    }

    /// Waits for the right to use an inode.
    pub async fn hold(self: &Arc<Core>, inode: &Arc<Inode>, need: Need) -> Result<TokenHold, Errno> {
        self.hold_for(inode, None, |_| need).await
    }

    /// The same where what is needed depends on the file's state, for somebody who may have the kernel's pages of
    /// a range (offset, length) locked.
    pub async fn hold_for(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        range: Option<(u64, u64)>,
        need: impl Fn(&FileState) -> Need + Send,
    ) -> Result<TokenHold, Errno> {
        if self.calls.lease_valid() && !self.calls.dead() {
            let mut state = inode.lock();
            let need = need(&state);
            if state.attr_known && state.token.enter_now(need) {
                return Ok(TokenHold::new(inode, &mut state, need));
            }
        }
        // Counted when it is over, however it ends.
        let mut waits: Option<TokenWait> = None;
        loop {
            if self.calls.dead() {
                return Err(Errno::EIO);
            }
            self.wait_lease().await?;
            let changed = inode.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (mut wanted, mut step, dropping) = {
                let mut state = inode.lock();
                if let Some(grant) = self.whole() {
                    state.token.take_whole(grant);
                }
                let wanted = need(&state);
                (wanted, state.token.enter(wanted), state.page_drop.is_under_way())
            };
            let mut late = false;
            if step == Enter::Wait && dropping && range.is_some() {
                if tokio::time::timeout(LATE_AFTER, changed.as_mut()).await.is_ok() {
                    continue;
                }
                let mut state = inode.lock();
                wanted = need(&state);
                if !writes(wanted) && state.page_drop.bars_readers() {
                    return Err(Errno::EIO);
                }
                if state.page_drop.is_under_way() && state.token.enter_late(wanted) {
                    state.page_drop.let_in(range);
                    return Ok(TokenHold::new(inode, &mut state, wanted));
                }
                if !state.page_drop.is_under_way() || !state.token.ask_late(wanted) {
                    continue;
                }
                (step, late) = (Enter::Ask, true);
            }
            if step != Enter::In {
                waits.get_or_insert_with(|| TokenWait::begin(wanted));
            }
            match step {
                Enter::In => {
                    let hold = TokenHold::new(inode, &mut inode.lock(), wanted);
                    crate::waits::moved();
                    self.know_attr(inode).await?;
                    let state = inode.lock();
                    if state.token.allows(need(&state)) {
                        return Ok(hold);
                    }
                }
                Enter::Ask => {
                    let Some(hold) = self.ask_token(inode, wanted, range, late).await? else { continue };
                    crate::waits::moved();
                    self.know_attr(inode).await?;
                    let state = inode.lock();
                    let now = need(&state);
                    // Attributes came with the grant, whatever others do to them afterwards.
                    if now == Need::Attr || state.token.allows(now) {
                        return Ok(hold);
                    }
                }
                Enter::Wait => {
                    self.patient("a token", Some(inode.ino), changed).await?;
                }
            }
        }
    }

    /// Attributes are known while the token is used.
    async fn know_attr(self: &Arc<Core>, inode: &Arc<Inode>) -> Result<(), Errno> {
        if inode.lock().attr_known {
            return Ok(());
        }
        let asked = self.sharing.now();
        match self.calls.ask(MgrRequest::GetAttr { ino: inode.ino }).await? {
            MgrReply::Attr(attr) => drop(self.seen_attr_of(inode, *attr, asked)),
            other => return Err(unexpected("GetAttr", &other)),
        }
        Ok(())
    }

    /// Without a lease nothing cached counts: others may have been given it.
    async fn wait_lease(&self) -> Result<(), Errno> {
        if self.calls.lease_valid() {
            return Ok(());
        }
        let until = Instant::now() + self.patience();
        let _entered = self.pool.waits().enter("the lease to be renewed", None);
        while !self.calls.lease_valid() {
            if self.calls.dead() || Instant::now() >= until {
                return Err(Errno::EIO);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Gets a token from the manager; none if it was recalled before it could be used.
    async fn ask_token(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        need: Need,
        range: Option<(u64, u64)>,
        late: bool,
    ) -> Result<Option<TokenHold>, Errno> {
        let asking = Asking { inode, late };
        let (asked, begun) = (self.sharing.now(), Instant::now());
        let (token, resolve, attr) = match self.calls.ask(MgrRequest::Acquire { ino: inode.ino, need }).await
        {
            Ok(MgrReply::Token { token, resolve, attr, .. }) => (token, resolve, attr),
            Ok(other) => return Err(unexpected("Acquire", &other)),
            Err(Errno(libc::ETIMEDOUT)) => {
                tracing::error!(inode = %inode.ino, "gave up waiting for a token");
                return Err(Errno::EIO);
            }
            Err(error) => return Err(error),
        };
        self.wait_given(inode, range).await?;
        let exists = attr.is_some();
        if let Some(attr) = &attr {
            self.set_geometry(inode, attr);
        }
        let unused = {
            let mut state = inode.lock();
            // A claim that went out meanwhile does not name this grant; attributes that were given up meanwhile are
            // newer than those that came.
            let outdated = self.sharing.claimed_since(asked) || state.token.is_outdated();
            let before = state.token.known(inode.ino);
            let pages = state.page_drop.is_under_way() && range.is_some();
            if outdated {
                Some(Some(asking.take(&mut state.token, |cell| cell.unused(&token))))
            } else if !asking.take(&mut state.token, |cell| cell.granted(&token, resolve, pages)) {
                Some(None)
            } else {
                state.page_drop.let_in(range);
                state.linger.granted(begun, Instant::now());
                if state.token.has_more_than(&before) {
                    // Others may have allocated there.
                    state.recorded.doubt_all_but(&before.usable());
                }
                match attr {
                    Some(attr) if before.mode < TokenMode::Part => {
                        state.attr_known = false;
                        state.merge(*attr);
                    }
                    Some(attr) if before.mode == TokenMode::Part => state.merge_shared(*attr),
                    _ => {}
                }
                None
            }
        };
        asking.answered();
        if let Some(left) = unused {
            if let Some(left) = left {
                self.release(vec![left]).await;
            }
            return Ok(None);
        }
        let hold = TokenHold::new(inode, &mut inode.lock(), need);
        let hold = if resolve { self.resolve_under(hold, inode, token).await? } else { hold };
        if exists {
            return Ok(Some(hold));
        }
        // Nothing is there to hold.
        let left = {
            let mut state = inode.lock();
            state.gone = true;
            state.token.forget(inode.ino)
        };
        drop(hold);
        self.release(vec![left]).await;
        Err(Errno::ENOENT)
    }

    /// Takes the token that came with a new file or directory. It is used only if nothing was recalled or claimed meanwhile: a recall
    /// of an inode that is not known here leaves no trace.
    pub fn take_made(self: &Arc<Core>, attr: Attr, token: &Token, resolve: bool, asked: Moment) {
        let inode = self.inode(attr.ino);
        self.set_geometry(&inode, &attr);
        let left = {
            let mut state = inode.lock();
            state.learn_kind(attr.kind);
            if !state.token.begin_asking() {
                return; // it is asked for already, and what comes then counts
            }
            if resolve || self.sharing.claimed_or_recalled_since(asked) {
                Some(state.token.unused(token))
            } else {
                if state.token.granted(token, false, false) {
                    state.token.leave(Need::Attr);
                    // Whoever found a directory already may have changed it.
                    let newest = !state.special || state.settled_since(0);
                    state.attr_known = false;
                    if newest {
                        state.merge(attr);
                    }
                }
                None
            }
        };
        inode.changed.notify_waiters();
        self.release_soon(left.into_iter().collect());
    }

    /// What is being given up may not be mixed with what comes; but who holds pages locked that this waits for
    /// goes in between. Others give their grant up then, and ask again.
    async fn wait_given(&self, inode: &Inode, range: Option<(u64, u64)>) -> Result<(), Errno> {
        loop {
            let changed = inode.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (giving, dropping) = {
                let state = inode.lock();
                (state.token.is_giving(), state.page_drop.is_under_way())
            };
            if !giving || dropping && range.is_none() {
                return Ok(());
            }
            if !dropping {
                self.patient("a token being given up", Some(inode.ino), changed).await?;
            } else if tokio::time::timeout(LATE_AFTER, changed).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Attributes of a file that another session may be changing.
    pub async fn attr_under_token(self: &Arc<Core>, ino: InodeNo) -> Result<Attr, Errno> {
        let inode = self.inode(ino);
        let _hold = self.hold(&inode, Need::Attr).await?;
        {
            let state = inode.lock();
            if !state.links_unsure || state.gone {
                return Ok(state.visible());
            }
        }
        // Who holds the token hears of every change of its names: this answer is not behind.
        let asked = self.sharing.now();
        match self.calls.ask(MgrRequest::GetAttr { ino }).await? {
            MgrReply::Attr(attr) => Ok(self.seen_attr_of(&inode, *attr, asked)),
            other => Err(unexpected("GetAttr", &other)),
        }
    }
}
