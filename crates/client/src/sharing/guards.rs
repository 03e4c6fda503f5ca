//! What ends by itself: a use of an inode, and an attempt to get its token.

use std::{sync::Arc, time::Instant};

use wire::token::Need;

use super::tokens::Cell;
use crate::files::{inode::Inode, state::FileState};

/// The right to use an inode, until it is dropped.
pub(crate) struct TokenHold {
    inode: Arc<Inode>,
    need: Need,
    /// It keeps the token here for a while when others want it.
    lingers: bool,
}

impl TokenHold {
    /// For somebody who was let in for `need`.
    pub fn new(inode: &Arc<Inode>, state: &mut FileState, need: Need) -> TokenHold {
        TokenHold { inode: inode.clone(), need, lingers: state.linger.begin_use(need, Instant::now) }
    }

    /// For a change that may outlast who has the inode in use for it now.
    pub fn another(inode: &Arc<Inode>) -> TokenHold {
        inode.lock().token.enter_beside();
        TokenHold { inode: inode.clone(), need: Need::Write, lingers: false }
    }
}

impl Drop for TokenHold {
    fn drop(&mut self) {
        let mut state = self.inode.lock();
        let writers = state.token.writers();
        state.token.leave(self.need);
        if self.lingers {
            state.linger.end_use(Instant::now());
        }
        let idle = state.token.users() == 0;
        if idle {
            state.forget_long_record(self.inode.record_runs_max);
        }
        // Whoever gives it up may wait for those who write alone.
        let quiet = state.token.is_giving() && writers > 0 && state.token.writers() == 0;
        drop(state);
        if idle || quiet {
            self.inode.changed.notify_waiters();
        }
    }
}

/// Ends an attempt to get a token that was given up half way.
pub(crate) struct Asking<'a> {
    pub inode: &'a Inode,
    /// It is on behalf of somebody whom a giving up waits for ([`Cell::ask_late`]).
    pub late: bool,
}

impl Asking<'_> {
    /// Takes the answer into the inode's cell.
    pub fn take<R>(&self, cell: &mut Cell, answer: impl FnOnce(&mut Cell) -> R) -> R {
        if self.late { cell.end_late(answer) } else { answer(cell) }
    }

    /// It was answered, and the cell has the answer: somebody else may be asking already.
    pub fn answered(self) {
        self.inode.changed.notify_waiters();
        std::mem::forget(self);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.take(&mut self.inode.lock().token, Cell::refused);
        self.inode.changed.notify_waiters();
    }
}
