//! Sharing a file system with other sessions: tokens are got before an inode is used, and given back when
//! the manager recalls them (docs/tokens.md has the protocol, [`crate::sharing::tokens`] the states of one token).
//!
//! While nobody else has the file system mounted the session is whole: every token is held and nothing is
//! asked. What is given back is clean: written, adopted, known to the manager, and no longer in the kernel's
//! or our own pages unless reading stays allowed.
//! On failure (pdisks away) giving back goes on; a session that takes too long is ended by the manager.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use base::{Grant, InodeNo};
use wire::{
    mgr::{Attr, FileKind, MgrReply, MgrRequest},
    token::{Blocks, Need, Recall, Span, TOKENS_MAX, Token, TokenMode},
};

use crate::{
    calls::unexpected,
    core::Core,
    error::Errno,
    files::inode::{FileState, Inode},
    sharing::tokens::{Cell, Enter, Losing, Recalled},
};

/// What the kernel keeps of a mount, as the client takes it away.
pub trait KernelCache: Send + Sync {
    /// Drops pages of `len` bytes at `offset` (0: to the end) and the attributes. Blocks while pages are
    /// being filled or written by requests that are not answered.
    fn drop_pages(&self, ino: InodeNo, offset: u64, len: u64);
    /// Others come (`true`): names and attributes are believed no more, now and in future answers. Or
    /// nobody else is there.
    fn set_shared(&self, shared: bool);
    /// Names and attributes that are cached may be untrue.
    fn drop_names(&self) {}
    /// Nothing that is cached counts any more.
    fn drop_all(&self);
}

/// Somebody who holds locked kernel pages is let in after this, if the pages are waited for.
const LATE_AFTER: Duration = Duration::from_millis(5);
/// Pause before cleaning is tried again.
const RETRY: Duration = Duration::from_millis(300);
/// Pause before what ended sessions left is tried again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(2);
/// One wait for recalls.
const RECALL_POLL: Duration = Duration::from_secs(20);

/// The right to use an inode, until it is dropped.
pub(crate) struct TokenHold(Arc<Inode>);

impl Drop for TokenHold {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.token.leave();
        let idle = state.token.users() == 0;
        drop(state);
        if idle {
            self.0.changed.notify_waiters();
        }
    }
}

/// What was so before a file was made whose token comes with the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BeforeMade {
    claims: u64,
    recalls: u64,
}

/// Ends an attempt to get a token that was given up half way.
pub(crate) struct Asking<'a>(pub &'a Inode);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.lock().token.refused();
        self.0.changed.notify_waiters();
    }
}

impl Core {
    /// The grant under which everything is held, while nobody else is there.
    pub fn whole(&self) -> Option<Grant> {
        Some(Grant(self.whole.load(SeqCst))).filter(|grant| grant.0 > 0)
    }

    /// How many tokens were given back so far.
    pub fn gives(&self) -> u64 {
        self.gives.load(SeqCst)
    }

    /// The token of an inode whose entry is made now.
    pub fn first_token(&self) -> Cell {
        self.whole().map(Cell::whole).unwrap_or_default()
    }

    /// The session holds only what it asks for.
    pub fn set_split(&self) {
        self.whole.store(0, SeqCst);
    }

    /// What has the kernel's part of the cache.
    pub fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        kernel.set_shared(self.whole().is_none());
        *self.kernel.write().unwrap_or_else(|e| e.into_inner()) = Some(kernel);
    }

    fn kernel(&self) -> Option<Arc<dyn KernelCache>> {
        self.kernel.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Whether an answer with attributes of a file may be older than what was known here: tokens were given back
    /// since `gives` was read, or others change the times.
    pub fn is_behind(&self, ino: InodeNo, gives: u64) -> bool {
        let part = |inode: Arc<Inode>| inode.lock().token.mode() == TokenMode::Part;
        gives != self.gives() || self.inode_known(ino).is_some_and(part)
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
                return Ok(TokenHold(inode.clone()));
            }
        }
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
                (wanted, state.token.enter(wanted), state.dropping.is_some())
            };
            if step == Enter::Wait && dropping && range.is_some() {
                if tokio::time::timeout(LATE_AFTER, changed.as_mut()).await.is_ok() {
                    continue;
                }
                let mut state = inode.lock();
                wanted = need(&state);
                if state.dropping.is_some() && state.token.enter_late(wanted) {
                    let late = range.unwrap_or_default();
                    state.dropping.get_or_insert_default().push(late);
                    return Ok(TokenHold(inode.clone()));
                }
                if state.dropping.is_none() || !state.token.ask_late(wanted) {
                    continue;
                }
                step = Enter::Ask;
            }
            match step {
                Enter::In => {
                    let hold = TokenHold(inode.clone());
                    crate::waits::moved();
                    self.know_attr(inode).await?;
                    let state = inode.lock();
                    if state.token.allows(need(&state)) {
                        return Ok(hold);
                    }
                }
                Enter::Ask => {
                    let Some(hold) = self.ask_token(inode, wanted, range).await? else { continue };
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
        let since = self.moves.load(SeqCst);
        match self.calls.ask(MgrRequest::GetAttr { ino: inode.ino }).await? {
            MgrReply::Attr(attr) => drop(self.seen_attr(*attr, since)),
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
    ) -> Result<Option<TokenHold>, Errno> {
        let asking = Asking(inode);
        let claims = self.claims.load(SeqCst);
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
            let late = claims != self.claims.load(SeqCst) || state.token.is_outdated();
            let before = state.token.known(inode.ino);
            let pages = state.dropping.is_some() && range.is_some();
            if late {
                Some(Some(state.token.unused(&token)))
            } else if !state.token.granted(&token, resolve, pages) {
                Some(None)
            } else {
                state.dropping.iter_mut().for_each(|late| late.extend(range));
                if state.token.has_more_than(&before) {
                    // Others may have allocated there.
                    state.alloc_known = false;
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
        if let Some(left) = unused {
            drop(asking);
            if let Some(left) = left {
                self.release(vec![left]).await;
            }
            return Ok(None);
        }
        std::mem::forget(asking);
        inode.changed.notify_waiters();
        let hold = TokenHold(inode.clone());
        if resolve {
            self.resolve_inode(inode, &token).await?;
        }
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

    /// Takes the token that came with a new file. It is used only if nothing was recalled or claimed meanwhile: a recall
    /// of an inode that is not known here leaves no trace.
    pub fn take_made(self: &Arc<Core>, attr: Attr, token: &Token, resolve: bool, before: BeforeMade) {
        let inode = self.inode(attr.ino);
        self.set_geometry(&inode, &attr);
        let left = {
            let mut state = inode.lock();
            if !state.token.begin_asking() {
                return; // it is asked for already, and what comes then counts
            }
            if resolve || before != self.before_made() {
                Some(state.token.unused(token))
            } else {
                if state.token.granted(token, false, false) {
                    state.token.leave();
                    state.attr_known = false;
                    state.merge(attr);
                }
                None
            }
        };
        inode.changed.notify_waiters();
        self.release_soon(left.into_iter().collect());
    }

    /// To be taken before a file is made.
    pub fn before_made(&self) -> BeforeMade {
        BeforeMade { claims: self.claims.load(SeqCst), recalls: self.recalls.load(SeqCst) }
    }

    /// What is being given up may not be mixed with what comes; but who holds pages locked that this waits for
    /// goes in between. Others give their grant up then: one question is put at a time, and that may be one of those.
    async fn wait_given(&self, inode: &Inode, range: Option<(u64, u64)>) -> Result<(), Errno> {
        loop {
            let changed = inode.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (giving, dropping) = {
                let state = inode.lock();
                (state.token.is_giving(), state.dropping.is_some())
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

    /// Brings an inode that an ended session was writing to its old or new content, block by block.
    async fn resolve_inode(self: &Arc<Core>, inode: &Arc<Inode>, token: &Token) -> Result<(), Errno> {
        let resolved = self.blocks.resolve_inode(self.session.fs.id, inode.ino, token.serial);
        let outcome = match self.calls.alive(resolved).await? {
            Ok(()) => self.calls.ask(MgrRequest::Resolved { ino: inode.ino }).await.map(drop),
            Err(error) => Err(self.block_error("resolve", inode, 0, &error)),
        };
        let left = {
            let mut state = inode.lock();
            state.token.resolved();
            // Not resolved: the next who wants it tries again.
            outcome.is_err().then(|| {
                state.attr_known = false;
                state.token.forget(inode.ino)
            })
        };
        inode.changed.notify_waiters();
        if let Some(left) = left {
            self.release(vec![left]).await;
        }
        outcome
    }

    async fn release(&self, tokens: Vec<Token>) {
        if let Err(error) = self.calls.ask(MgrRequest::Release { tokens }).await
            && !self.calls.dead()
        {
            // The manager asks again for what it wants.
            tracing::warn!(%error, "tokens given up could not be told");
        }
    }

    /// Tells the manager in the background what is given up.
    pub fn release_soon(self: &Arc<Core>, tokens: Vec<Token>) {
        if !tokens.is_empty() && self.whole().is_none() {
            let core = self.clone();
            self.runtime.spawn(async move { core.release(tokens).await });
        }
    }

    /// Attributes of a file that another session may be changing.
    pub async fn attr_under_token(self: &Arc<Core>, ino: InodeNo) -> Result<Attr, Errno> {
        let inode = self.inode(ino);
        let _hold = self.hold(&inode, Need::Attr).await?;
        let attr = inode.lock().visible();
        Ok(attr)
    }

    // What the manager wants.

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
                    if self.resolving.swap(pass + 1, SeqCst) != pass + 1 {
                        let core = self.clone();
                        self.runtime.spawn(async move { core.resolve_pass(pass).await });
                    }
                }
            }
        }
    }

    /// Tells what caches pages and names, if anything does; returns when it has heard.
    pub async fn tell_kernel(&self, tell: impl FnOnce(&dyn KernelCache) + Send + 'static) {
        let Some(kernel) = self.kernel() else { return };
        if let Err(error) = tokio::task::spawn_blocking(move || tell(&*kernel)).await {
            tracing::error!(%error, "the kernel could not be told what it may keep");
        }
    }

    /// The session has ended: what is cached is worthless.
    pub async fn drop_caches(&self) {
        self.tell_kernel(|kernel| kernel.drop_all()).await;
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
            Err(error) => return Err(error),
        };
        let mut state = inode.lock();
        state.merge_shared(*attr);
        state.alloc_known = false;
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
        self.whole.store(grant.0, SeqCst);
        self.tell_kernel(|kernel| kernel.set_shared(false)).await;
        tracing::info!("the file system is ours alone");
    }

    /// Others come, or the manager begins anew: says what is held. What is only cached and cannot be said
    /// goes.
    pub(crate) async fn share(self: &Arc<Core>) {
        self.set_split();
        self.claims.fetch_add(1, SeqCst);
        self.tell_kernel(|kernel| kernel.set_shared(true)).await;
        let mut tokens = Vec::new();
        for inode in self.all_inodes() {
            let mut state = inode.lock();
            let is_file = state.attr_known && state.attr.kind == FileKind::File;
            let in_use = state.opens > 0 || state.token.users() > 0 || state.unsettled();
            if is_file || in_use {
                tokens.extend(state.token.token(inode.ino));
            } else {
                state.token.forget(inode.ino);
                state.outdate_attr();
                state.names_kept.forget();
            }
        }
        self.gives.fetch_add(1, SeqCst);
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
                return;
            }
        }
    }

    /// Gives a token up as far as it is wanted.
    pub async fn give_back(self: Arc<Core>, wanted: Token) {
        // Before it is looked whether the inode is known: see `take_made`.
        self.recalls.fetch_add(1, SeqCst);
        let Some(inode) = self.inode_known(wanted.ino) else {
            return self.release(vec![Token::new(wanted.ino, TokenMode::None, wanted.serial)]).await;
        };
        let step = {
            let mut state = inode.lock();
            // What can be mapped for writing is never kept for reading alone: the kernel would not ask
            // before it changes a page.
            let keep = if state.wide_opens > 0 { TokenMode::Open } else { TokenMode::Read };
            let open = state.opens > 0;
            state.token.recalled(&wanted, keep, open)
        };
        match step {
            Recalled::UnderWay => {}
            Recalled::Answer(token) => self.release(vec![token]).await,
            Recalled::Begin => {
                let Some(token) = self.clean(&inode).await else { return };
                inode.changed.notify_waiters();
                self.release(vec![token]).await;
            }
        }
    }

    /// Makes what goes of the inode clean, so that its token may go; none if the session has ended.
    async fn clean(self: &Arc<Core>, inode: &Arc<Inode>) -> Option<Token> {
        while self.wait_unused(inode).await.is_err() {
            if self.calls.dead() {
                return None;
            }
        }
        self.drop_kernel_pages(inode).await;
        loop {
            let cleaned = async {
                self.wait_unused(inode).await?;
                let (losing, was, block_size, unsettled) = {
                    let state = inode.lock();
                    (state.token.losing(), state.token.mode(), state.block_size(), state.unsettled())
                };
                // Where a part stays only blocks go; otherwise size and times are told.
                let blocks_only = was == TokenMode::Part && losing.to == TokenMode::Part;
                if losing.written.is_empty() && (blocks_only || !unsettled) {
                    return Ok(());
                }
                let span = if blocks_only { hull(&losing.written) } else { Span::ALL };
                let (from, to) = (span.first * block_size, span.end.saturating_mul(block_size));
                self.make_durable(inode, from, to, blocks_only).await?;
                let hold = self.hold_flushes(inode).await?;
                let commit = self.patient("an inode's commit", Some(inode.ino), inode.commit.lock());
                let commit = commit.await?;
                let settled = self.blocks.settle_inode(self.session.fs.id, inode.ino).await;
                drop((commit, hold));
                settled.map_err(|error| self.block_error("adopt", inode, 0, &error))
            };
            match cleaned.await {
                Ok(()) => break,
                Err(_) if self.calls.dead() => return None,
                Err(error) => {
                    tracing::warn!(inode = %inode.ino, %error, "a token cannot be given up yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        let special = inode.lock().special;
        let (token, room) = {
            let mut state = inode.lock();
            if special {
                state.names_kept.recalled();
            }
            let Losing { to, gone, .. } = state.token.losing();
            let room = match to {
                TokenMode::Part => gone.runs().iter().map(|run| state.forget_blocks(run.span)).sum(),
                to if to > TokenMode::Part => 0,
                _ => state.forget_content(),
            };
            let open = state.opens > 0;
            (state.token.gave(inode.ino, open), room)
        };
        self.return_room(inode, room);
        if !special {
            self.gives.fetch_add(1, SeqCst);
        }
        Some(token)
    }

    async fn wait_unused(&self, inode: &Arc<Inode>) -> Result<(), Errno> {
        self.wait_inode(inode, "users of a token", || (inode.lock().token.users() == 0).then_some(())).await
    }

    /// Takes the inode's pages from the kernel. It waits there for pages that are being read or written;
    /// requests for these that wait for a token are let in under the one that is going, and their pages are
    /// dropped once more.
    async fn drop_kernel_pages(self: &Arc<Core>, inode: &Arc<Inode>) {
        let Some(kernel) = self.kernel() else { return };
        let mut ranges = {
            let mut state = inode.lock();
            if state.special || state.wide_opens > 0 && state.token.mode() < TokenMode::Write {
                // Pages are filled under the right to write only: there are none. Requests for them wait for that right,
                // with their pages locked, and cannot be let in under a lesser one.
                return;
            }
            let Losing { to, gone, .. } = state.token.losing();
            let size = state.block_size();
            let bytes = |span: Span| match span.end {
                u64::MAX => (span.first.saturating_mul(size), 0),
                end => (span.first * size, (end - span.first) * size),
            };
            let ranges: Vec<(u64, u64)> = match to {
                TokenMode::Part => gone.runs().iter().map(|run| bytes(run.span)).collect(),
                // Nothing can have been changed in the kernel's pages: these stay true.
                TokenMode::Read => Vec::new(),
                _ => vec![(0, 0)],
            };
            if ranges.is_empty() {
                return;
            }
            state.dropping = Some(Vec::new());
            ranges
        };
        inode.changed.notify_waiters();
        while !ranges.is_empty() {
            let (kernel, ino) = (kernel.clone(), inode.ino);
            let pass = std::mem::take(&mut ranges);
            let dropped = tokio::task::spawn_blocking(move || {
                pass.into_iter().for_each(|(offset, len)| kernel.drop_pages(ino, offset, len));
            });
            if let Err(error) = dropped.await {
                tracing::error!(%error, "dropping cached pages did not end");
            }
            let mut state = inode.lock();
            match &mut state.dropping {
                Some(late) if !late.is_empty() => ranges = std::mem::take(late),
                dropping => *dropping = None,
            }
        }
        inode.changed.notify_waiters();
    }

    /// Resolves what is left of ended sessions: whoever takes the tokens one by one resolves.
    async fn resolve_pass(self: Arc<Core>, pass: u64) {
        let outcome = async {
            let left = self.blocks.unresolved_inodes(self.session.fs.id).await;
            let left = left.map_err(|error| {
                tracing::warn!(%error, "what ended sessions left cannot be listed");
                Errno::EIO
            })?;
            // One whose pdisks are away holds up no other.
            let mut failed = None;
            for ino in left {
                match self.hold(&self.inode(ino), Need::Attr).await {
                    // Removed since.
                    Ok(_) | Err(Errno::ENOENT) => {}
                    Err(error) if self.calls.dead() => return Err(error),
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) => Err(error),
                None => self.calls.ask(MgrRequest::ResolvePassDone { pass }).await.map(drop),
            }
        };
        if let Err(error) = outcome.await {
            tracing::warn!(%error, "not all that ended sessions left is resolved; tried again");
            tokio::time::sleep(RESOLVE_AGAIN).await;
            self.resolving.store(0, SeqCst);
        }
    }
}

fn hull(blocks: &Blocks) -> Span {
    let (first, last) = (blocks.runs().first(), blocks.runs().last());
    Span { first: first.map_or(0, |run| run.span.first), end: last.map_or(0, |run| run.span.end) }
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
