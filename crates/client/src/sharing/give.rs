//! Giving tokens back. What is given back is clean: written, adopted, known to the manager, and no longer in the kernel's
//! or our own pages unless reading stays allowed.
//! On failure (pdisks away) giving back goes on; a session that takes too long is ended by the manager.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use wire::{
    mgr::MgrRequest,
    token::{Blocks, Span, Token, TokenMode},
};

use super::{
    hold::LATE_AFTER,
    statistics::GIVEN_UP,
    tokens::{Cell, Losing, Recalled},
};
use crate::{core::Core, error::Errno, files::inode::Inode, pages::gone::Why};

/// Pause before cleaning is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(300);
/// Pause before it is looked again whether a token is still written under.
const LINGER_LOOK: Duration = Duration::from_millis(1);
/// A block that was not written for so long is left behind by who writes.
const LEFT: Duration = Duration::from_millis(4);

/// The dirty blocks of a file when they were last looked at, each with the number of its last write.
#[derive(Default)]
struct Behind {
    looked: Option<Instant>,
    dirty: HashMap<u64, u64>,
}

impl Behind {
    /// Whether it is time to look again.
    fn is_due(&self, now: Instant) -> bool {
        self.looked.is_none_or(|last| now >= last + LEFT)
    }

    /// What is dirty now; returns what was so at the last look and has not been written since.
    fn look(&mut self, now: Instant, dirty: HashMap<u64, u64>) -> Vec<u64> {
        let left = dirty.iter().filter(|(block, written)| self.dirty.get(block) == Some(written));
        let mut left: Vec<u64> = left.map(|(&block, _)| block).collect();
        left.sort_unstable();
        *self = Behind { looked: Some(now), dirty };
        left
    }
}

impl Core {
    pub async fn release(&self, tokens: Vec<Token>) {
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

    /// Gives a token up as far as it is wanted, once it has stayed as long as it may.
    pub async fn give_back(self: Arc<Core>, wanted: Token) {
        let begun = Instant::now();
        let Some(wanted) = self.linger(wanted).await else { return };
        // Before it is looked whether the inode is known: see `take_made`.
        self.sharing.note_recall();
        let Some(inode) = self.inode_known(wanted.ino) else {
            return self.release(vec![Token::new(wanted.ino, TokenMode::None, wanted.serial)]).await;
        };
        let step = {
            let mut state = inode.lock();
            // What can be mapped for writing is never kept for reading alone: the kernel would not ask
            // before it changes a page.
            let keep = if state.opens.any_wide() { TokenMode::Open } else { TokenMode::Read };
            let open = state.opens.any();
            state.token.recalled(&wanted, keep, open)
        };
        match step {
            Recalled::UnderWay => {}
            Recalled::Answer(token) => {
                GIVEN_UP.at_once.record(begun.elapsed());
                self.release(vec![token]).await;
            }
            Recalled::Begin => {
                let cleaning = Instant::now();
                let Some(token) = self.clean(&inode).await else { return };
                GIVEN_UP.cleaned.record(begun.elapsed());
                inode.changed.notify_waiters();
                self.release(vec![token]).await;
                inode.lock().linger.gave(cleaning.elapsed());
            }
        }
    }

    /// Waits while the token stays ([`super::linger`]); none if another recall of it waits already, which is this one from
    /// now on.
    async fn linger(self: &Arc<Core>, wanted: Token) -> Option<Token> {
        let Some(inode) = self.inode_known(wanted.ino) else { return Some(wanted) };
        if !inode.lock().linger.recalled(wanted, Instant::now()) {
            return None;
        }
        let mut behind = Behind::default();
        while self.calls.lease_valid() && inode.lock().linger.stays(Instant::now()) {
            tokio::time::sleep(LINGER_LOOK).await;
            self.store_behind(&inode, &mut behind);
        }
        inode.lock().linger.obey()
    }

    /// Begins to store the blocks that the writers under a token that is wanted have left behind: what is stored meanwhile need not
    /// be waited for when it is given up.
    fn store_behind(self: &Arc<Core>, inode: &Arc<Inode>, behind: &mut Behind) {
        let now = Instant::now();
        if !behind.is_due(now) {
            return;
        }
        let dirty = {
            let state = inode.lock();
            if state.failures.pause() {
                return;
            }
            let written = |&block: &u64| state.block(block).map(|b| (block, b.dirty_seq));
            state.dirty.iter().filter_map(written).collect()
        };
        // No more than who waits begins at a time: others' blocks wait for their turn as well.
        let window = 2 * self.live().flushes_max as usize;
        for block in behind.look(now, dirty).into_iter().take(window) {
            self.kick_block(inode, block);
        }
    }

    /// Makes what goes of the inode clean, so that its token may go; none if the session has ended.
    async fn clean(self: &Arc<Core>, inode: &Arc<Inode>) -> Option<Token> {
        while self.wait_ended(inode, Cell::users).await.is_err() {
            if self.calls.dead() {
                return None;
            }
        }
        self.drop_kernel_pages(inode).await;
        let (special, keeps) = {
            let state = inode.lock();
            (state.special, state.token.losing().to >= TokenMode::Read)
        };
        if !keeps {
            self.drop_kernel_attrs(vec![inode.clone()]).await;
        }
        self.make_clean(inode, special, Cell::users).await?;
        let (token, room) = {
            let mut state = inode.lock();
            state.names.kept.recalled();
            let Losing { to, gone, .. } = state.token.losing();
            if special && state.token.mode() == TokenMode::Write {
                state.names.lose_all();
            } else {
                state.names.worth.disturbed();
            }
            for run in gone.runs() {
                let note = |block| self.pool.gone().note(inode.ino, block, Why::GivenUp);
                state.blocks_here(run.span).for_each(note);
            }
            let room = match to {
                TokenMode::Part => gone.runs().iter().map(|run| state.forget_blocks(run.span)).sum(),
                to if to > TokenMode::Part => 0,
                _ => state.forget_content(),
            };
            let open = state.opens.any();
            (state.token.gave(inode.ino, open), room)
        };
        self.return_room(inode, room);
        if !special {
            self.sharing.note_given_back();
        }
        Some(token)
    }

    /// Stores what may not be written any more, once none of these uses of the inode is left, and tells what others are to know; none if
    /// the session has ended.
    async fn make_clean(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        special: bool,
        uses: fn(&Cell) -> u32,
    ) -> Option<()> {
        loop {
            let cleaned = async {
                self.wait_ended(inode, uses).await?;
                if special && inode.lock().token.mode() == TokenMode::Write {
                    // What was done under it ahead of the manager: nothing more is since it is being given up.
                    return self.calls.told().await;
                }
                let (losing, was, block_size, unsettled) = {
                    let state = inode.lock();
                    (state.token.losing(), state.token.mode(), state.block_size(), state.unsettled())
                };
                // Where a part stays only blocks go; otherwise size and times are told.
                let blocks_only = was == TokenMode::Part && losing.to == TokenMode::Part;
                if losing.written.is_empty() && (blocks_only || !unsettled) {
                    return Ok(());
                }
                let span = if blocks_only { covering(&losing.written) } else { Span::ALL };
                let (from, to) = (span.first * block_size, span.end.saturating_mul(block_size));
                self.settle(inode, from, to, blocks_only).await
            };
            match cleaned.await {
                Ok(()) => return Some(()),
                Err(_) if self.calls.dead() => return None,
                Err(error) => {
                    tracing::warn!(inode = %inode.ino, %error, "a token cannot be given up yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Makes bytes `from..to` so durable that whoever comes next reads them: stored, known to the manager, and adopted.
    pub async fn settle(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        from: u64,
        to: u64,
        data_only: bool,
    ) -> Result<(), Errno> {
        self.make_durable(inode, from, to, data_only).await?;
        let _hold = self.hold_flushes(inode).await?;
        let commit = self.patient("an inode's commit", Some(inode.ino), inode.commit.lock());
        let _commit = commit.await?;
        let settled = self.blocks.settle_inode(self.session.fs.id, inode.ino).await;
        settled.map_err(|error| self.block_error("adopt", inode, 0, &error))
    }

    async fn wait_ended(&self, inode: &Arc<Inode>, uses: fn(&Cell) -> u32) -> Result<(), Errno> {
        self.wait_inode(inode, "users of a token", || (uses(&inode.lock().token) == 0).then_some(())).await
    }

    /// Takes the inode's pages from the kernel. It waits there for pages that are being read or written;
    /// requests for these that wait for a token are let in under the one that is going, and their pages are
    /// dropped once more.
    async fn drop_kernel_pages(self: &Arc<Core>, inode: &Arc<Inode>) {
        let Some(kernel) = self.kernel.get() else { return };
        let mut ranges = {
            let mut state = inode.lock();
            if state.special || state.opens.any_wide() && state.token.mode() < TokenMode::Write {
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
            state.page_drop.begin();
            ranges
        };
        inode.changed.notify_waiters();
        while !ranges.is_empty() {
            let (kernel, ino) = (kernel.clone(), inode.ino);
            let pass = std::mem::take(&mut ranges);
            let mut dropped = tokio::task::spawn_blocking(move || {
                pass.into_iter().for_each(|(offset, len)| kernel.drop_pages(ino, offset, len));
            });
            let dropped = loop {
                if let Ok(dropped) = tokio::time::timeout(LATE_AFTER, &mut dropped).await {
                    break dropped;
                }
                self.let_read(inode).await;
            };
            if let Err(error) = dropped {
                tracing::error!(%error, "dropping cached pages did not end");
            }
            ranges = inode.lock().page_drop.next_pass();
        }
        inode.changed.notify_waiters();
    }

    /// The dropping of pages waits for a reader who waits for another mount. That one may wait for just what goes here, with a reader like
    /// this one. So what goes is made clean first, and may be read there while pages are dropped here; said again after each grant
    /// that was made before the manager had heard of it. Readers are let in all the time and exclude nobody: they are not waited for.
    async fn let_read(self: &Arc<Core>, inode: &Arc<Inode>) {
        let written = {
            let mut state = inode.lock();
            if !state.token.stop_writing() {
                return;
            }
            state.writes.last()
        };
        if self.make_clean(inode, false, Cell::writers).await.is_none() {
            return;
        }
        let lowered = {
            let mut state = inode.lock();
            // No mapping writes under a part. But whoever had asked before may have been given more: then it is tried once more.
            if state.token.writers() > 0 || state.writes.last() != written {
                return;
            }
            state.token.lower();
            state.token.take_lowered(inode.ino)
        };
        if let Some(lowered) = lowered {
            self.release(vec![lowered]).await;
        }
    }
}

fn covering(blocks: &Blocks) -> Span {
    let (first, last) = (blocks.runs().first(), blocks.runs().last());
    Span { first: first.map_or(0, |run| run.span.first), end: last.map_or(0, |run| run.span.end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_left_behind_that_nobody_wrote_since_the_last_look() {
        let now = Instant::now();
        let mut behind = Behind::default();
        assert!(behind.is_due(now));
        assert_eq!(behind.look(now, [(1, 10), (2, 11), (7, 12)].into()), []);
        assert!(!behind.is_due(now + LEFT / 2) && behind.is_due(now + LEFT));
        // The second was written again, the last is new, the first is being stored already.
        assert_eq!(behind.look(now + LEFT, [(2, 13), (7, 12), (8, 14)].into()), [7]);
        assert_eq!(behind.look(now + 2 * LEFT, [(2, 13), (8, 14)].into()), [2, 8]);
    }
}
