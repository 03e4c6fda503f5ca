//! What happens without being asked for: dirty data goes out by age and under memory pressure, what is
//! stored becomes known to the manager, inodes without names are given up. One loop that only decides;
//! the work runs in tasks of its own, bounded by the permits of cleaners and flushes and one batch of commits.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::{sync::OwnedSemaphorePermit, task::JoinHandle};
use wire::mgr::Change;

use crate::{calls::MANY_MAX, core::Core, error::Errno, files::inode::Inode};

/// Files that may be unsettled at once, however few are kept.
const UNSETTLED_MIN: u32 = 1024;
/// How often age is looked at, while anything may become due.
const TICK: Duration = Duration::from_millis(200);
/// What is due gathers for so long before it is told.
const GATHER: Duration = Duration::from_millis(20);

/// Runs until the client is gone.
pub(crate) async fn run(core: Weak<Core>) {
    // What the manager is told. While it does not answer, data goes out all the same.
    let mut sending: Option<JoinHandle<usize>> = None;
    loop {
        let Some(core) = core.upgrade() else { return };
        if core.calls.dead() {
            return;
        }
        let commits = core.round();
        let (sender, runtime) = (core.clone(), core.runtime.clone());
        let sent = sending.get_or_insert_with(|| {
            runtime.spawn(async move { sender.commit_many(commits).await.max(sender.send_forgets().await) })
        });
        let sent = match tokio::time::timeout(TICK, sent).await {
            Ok(sent) => {
                sending = None;
                sent.unwrap_or(0)
            }
            Err(_) => continue,
        };
        if sent < MANY_MAX && !core.pool.pressure() {
            // What is closed or removed meanwhile goes in one message.
            tokio::time::sleep(GATHER).await;
        }
        if sent == 0 && core.unsettled.is_empty() && core.orphans.is_empty() {
            core.keep_few_inodes();
            // Nothing grows old: whoever brings the first, or ends the client, wakes this.
            let wake = core.unsettled.wake.clone();
            drop(core);
            wake.notified().await;
        } else if sent == 0 {
            // Either end of the pause leads to the next look.
            let _ = tokio::time::timeout(TICK, core.unsettled.wake.notified()).await;
        }
    }
}

impl Core {
    /// Starts what is due; returns what should be committed now.
    fn round(self: &Arc<Core>) -> Vec<Arc<Inode>> {
        let mut commits = Vec::new();
        let mut stores = Vec::new();
        let pressure = self.pool.pressure();
        self.unsettled.look(|count, inode| {
            let crowded = count >= self.unsettled_max();
            self.look(inode, pressure || crowded, crowded, &mut commits, &mut stores)
        });
        for (inode, filling, cleaner) in stores {
            let core = self.clone();
            self.runtime.spawn(async move {
                // A failure is kept in the inode for its handles, and its data stays dirty.
                let _ = core.store_but(&inode, 0, u64::MAX, filling).await;
                drop(cleaner);
                let mut state = inode.lock();
                let dirty = !state.dirty.is_empty();
                state.due.stored(dirty);
                drop(state);
                core.unsettled.wake.notify_one();
            });
        }
        commits
    }

    /// Files that may have something to write out or to tell at once.
    fn unsettled_max(&self) -> usize {
        self.tunables.files_to_cache_max.max(UNSETTLED_MIN) as usize
    }

    /// Waits until one more file may have something to write out or to tell: what is kept of such files is bounded by
    /// nothing else.
    pub async fn throttle_files(&self, inode: &Inode) -> Result<(), Errno> {
        let few = || self.unsettled.has_room(inode.ino, self.unsettled_max());
        let less = async {
            loop {
                let settled = self.unsettled.looked.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if few() {
                    return;
                }
                self.unsettled.wake.notify_one();
                settled.await;
            }
        };
        self.patient("fewer files with something to write or to tell", Some(inode.ino), less).await
    }

    /// One inode: false if nothing of it is left to do.
    fn look(
        &self,
        inode: &Arc<Inode>,
        pressure: bool,
        crowded: bool,
        commits: &mut Vec<Arc<Inode>>,
        stores: &mut Vec<(Arc<Inode>, Option<u64>, OwnedSemaphorePermit)>,
    ) -> bool {
        let mut state = inode.lock();
        if state.is_forsaken() || !state.unsettled() {
            state.due.soon = false;
            return false;
        }
        let aged = |since: Option<Instant>, age: Duration| since.is_some_and(|since| since.elapsed() >= age);
        if state.failures.pause() {
            return true;
        }
        let fits = state.fits_inode(self.tunables.inline_data_max);
        let whole_due = aged(state.due.data_since, self.tunables.writeback_age) || state.due.soon;
        let data_due = whole_due || pressure;
        // Without a cleaner it stays due: one that ends wakes the loop.
        if !state.dirty.is_empty()
            && !fits
            && data_due
            && !state.due.storing
            && !state.flushes.are_held()
            && let Ok(cleaner) = self.permits.cleaner.clone().try_acquire_owned()
        {
            state.due.storing = true;
            // A block that is being filled goes out when it is full: alone it would cost a second version.
            let filling = (!whole_due).then(|| state.writes.run_end() / state.block_size());
            stores.push((inode.clone(), filling, cleaner));
        }
        let content_due = fits && !state.dirty.is_empty() && data_due;
        // Data first where it is on its way: one commit instead of two.
        let meta_due = !state.due.storing
            && (crowded
                || aged(state.due.commit_since, self.tunables.commit_age)
                || state.due.soon && !state.flushes.in_flight());
        if (content_due || meta_due) && commits.len() < MANY_MAX {
            commits.push(inode.clone());
        }
        true
    }

    /// Tells the manager which orphans may be reclaimed; returns how many were told.
    pub async fn send_forgets(self: &Arc<Core>) -> usize {
        self.release_soon(self.orphans.take_tokens());
        let inos = self.orphans.take(MANY_MAX);
        if inos.is_empty() {
            return 0;
        }
        let highest = self.any_version();
        let changes = inos.iter().map(|&ino| Change::Forget { ino, highest }).collect();
        if self.calls.mutate_many(changes).await.is_err() && !self.calls.dead() {
            // Not lost, only later; the manager forgets orphans of ended sessions by itself.
            self.orphans.add(inos);
            return 0;
        }
        inos.len()
    }
}
