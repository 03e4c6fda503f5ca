//! The token of a file that somebody only looks at.
//!
//! The kernel asks for attributes several times where a program asks once, and programs that look do it again (`ls -l`, `du`,
//! `git status`): with the token all of that is answered here, whether there is any extended attribute as well.
//!
//! Invariant: nothing is waited for but the manager's answer. What an unclean end left of the file is not resolved for a look:
//! the token goes back then.
//!
//! On failure the attributes are asked for without it; not where somebody who is changing them does not give way.

use std::sync::Arc;

use wire::{
    mgr::{Attr, MgrReply, MgrRequest},
    token::Need,
};

use super::inode::Inode;
use crate::{core::Core, error::Errno, sharing::guards::Asking};

impl Core {
    /// Attributes of a file with its token, if that is worth asking for and is to be had at once.
    pub(super) async fn file_attr_with_token(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
    ) -> Option<Result<Attr, Errno>> {
        // A guest would wait until others have resolved what is left.
        let may = self.asks_tokens() && !self.session.is_guest();
        if !(may && inode.lock().wants_file_token()) {
            return None;
        }
        let asking = Asking { inode, late: false };
        let asked = self.sharing.now();
        let question = MgrRequest::Acquire { ino: inode.ino, need: Need::Attr };
        let (token, resolve, attr) = match self.calls.ask(question).await {
            Ok(MgrReply::Token { token, resolve, attr, .. }) => (token, resolve, attr),
            // Whoever is changing it does not give way: to ask once more would wait as long again.
            Err(Errno(libc::ETIMEDOUT)) => return Some(Err(Errno::EIO)),
            _ => return None,
        };
        if let Some(attr) = &attr {
            self.set_geometry(inode, attr);
        }
        let (answer, left) = {
            let mut state = inode.lock();
            // A claim that went out meanwhile does not name this grant; attributes that were given up meanwhile are newer.
            let late = self.sharing.claimed_since(asked) || state.token.is_outdated();
            let before = state.token.known(inode.ino);
            match attr {
                // As it was when it was asked for.
                Some(attr) if resolve && !late => (Some(*attr), Some(state.token.unused(&token))),
                Some(attr) if !late => {
                    let taken = state.token.granted(&token, false, false).then(|| {
                        state.token.leave(Need::Attr);
                        if state.token.has_more_than(&before) {
                            // Others may have allocated there.
                            state.recorded.doubt_all_but(&before.usable());
                        }
                        state.attr_known = false;
                        state.merge(*attr);
                        state.visible()
                    });
                    (taken, None)
                }
                _ => (None, Some(state.token.unused(&token))),
            }
        };
        asking.answered();
        self.release_soon(left.into_iter().collect());
        answer.map(Ok)
    }
}
