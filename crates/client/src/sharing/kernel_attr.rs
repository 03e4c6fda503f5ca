//! Attributes of directories that the kernel keeps while others have the file system mounted too. Without them it would ask for those of each
//! directory on a path before it goes through it.
//!
//! Invariant: the kernel keeps them only while `Read` or more of the directory is held here, and no longer than the lease. It gets them with
//! the answer to a question about them, for a second at most; that it does is noted under the lock under which the token is
//! looked at. Whoever gives that up finds the note, and has them dropped before the manager hears of it. The kernel then ignores
//! answers to questions from before, and those of which it does not know the inode yet are waited for.
//!
//! What is changed here is dropped too, before the change is answered: the kernel does so itself, but would believe an
//! answer from before the change that it takes in after it.
//!
//! Not kept out: that an answer is taken in late, by a thread that does not run, or that the machine sleeps: the second begins, or goes on, then.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use wire::mgr::{Attr, FileKind};

use crate::{core::Core, files::inode::Inode};

/// So long the kernel may believe them.
const TTL_MAX: Duration = Duration::from_secs(1);
/// So long it is tried, with this pause, to drop what the kernel is just taking in: by then it believes it no more. What it took an answer
/// for and does not have (its mount goes, or was aborted) must not hold up whom others wait for.
const TRIED: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

impl Core {
    /// See [`crate::Client::attr_ttl`].
    pub fn attr_ttl(&self, attr: &Attr) -> Duration {
        if attr.kind != FileKind::Directory || !self.asks_tokens() || self.sharing.is_claiming() {
            return Duration::ZERO;
        }
        let Some(inode) = self.inode_known(attr.ino) else { return Duration::ZERO };
        let left = self.calls.lease_left();
        let mut state = inode.lock();
        // The token may have been away since they were looked at.
        if !self.has_attr(&state) || state.gone || state.attr != *attr {
            return Duration::ZERO;
        }
        state.kernel_attr = true;
        left.min(TTL_MAX)
    }

    /// Has the kernel drop the attributes of these, if it may have any: their tokens go, and no answer brings it more.
    pub async fn drop_kernel_attrs(&self, mut inodes: Vec<Arc<Inode>>) {
        let end = Instant::now() + TRIED;
        loop {
            inodes.retain(|inode| {
                let kept = inode.lock().kernel_attr;
                let dropped = !kept || self.kernel.get().is_none_or(|kernel| kernel.drop_attr(inode.ino));
                if dropped {
                    inode.lock().kernel_attr = false;
                }
                !dropped
            });
            if inodes.is_empty() || Instant::now() >= end || self.calls.dead() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The same for attributes that were changed here. The kernel knows the inode.
    pub fn kernel_attr_changed(&self, inode: &Inode) {
        let kept = inode.lock().kernel_attr;
        if let Some(kernel) = self.kernel.get().filter(|_| kept) {
            kernel.drop_attr(inode.ino);
        }
    }
}
