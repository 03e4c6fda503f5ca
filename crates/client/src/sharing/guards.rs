//! What ends by itself: a use of an inode, and an attempt to get its token.

use std::sync::Arc;

use crate::files::inode::Inode;

/// The right to use an inode, until it is dropped.
pub(crate) struct TokenHold(pub Arc<Inode>);

impl Drop for TokenHold {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.token.leave();
        let idle = state.token.users() == 0;
        if idle {
            state.forget_long_record(self.0.record_runs_max);
        }
        drop(state);
        if idle {
            self.0.changed.notify_waiters();
        }
    }
}

/// Ends an attempt to get a token that was given up half way.
pub(crate) struct Asking<'a>(pub &'a Inode);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.lock().token.refused();
        self.0.changed.notify_waiters();
    }
}
