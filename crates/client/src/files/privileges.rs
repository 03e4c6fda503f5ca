//! Set-user-id and set-group-id bits go with a change of content by whoever may not leave them.
//!
//! Invariant: between the look at the mode and the change nobody else sets the bits. Both are under one token; where
//! there are bits, that is the token under which the mode is changed.

use std::sync::Arc;

use wire::{mgr::without_privileges, token::Need};

use crate::{
    core::{Core, now},
    error::Errno,
    files::{inode::Inode, set_attrs::SetAttrs, state::FileState},
    sharing::guards::TokenHold,
};

/// What becomes of set-user-id and set-group-id bits with a change of content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Privileges {
    /// They stay: who makes the change has CAP_FSETID.
    #[default]
    Kept,
    /// They go.
    Dropped,
}

fn has_privileges(state: &FileState) -> bool {
    without_privileges(state.attr.mode) != state.attr.mode
}

impl Core {
    /// [`Core::hold_for`] for a change of content; with it the bits are gone that are to go.
    pub async fn hold_to_change(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        range: Option<(u64, u64)>,
        privileges: Privileges,
        need: impl Fn(&FileState) -> Need + Send,
    ) -> Result<TokenHold, Errno> {
        if privileges == Privileges::Kept {
            return self.hold_for(inode, range, need).await;
        }
        let all = move |state: &FileState| if has_privileges(state) { Need::Write } else { need(state) };
        let hold = self.hold_for(inode, range, all).await?;
        self.drop_privileges(inode);
        Ok(hold)
    }

    /// Takes the bits away; the inode's token is held.
    pub fn drop_privileges(&self, inode: &Arc<Inode>) {
        let mut state = inode.lock();
        debug_assert!(state.token.users() > 0, "the inode's token is held");
        if !has_privileges(&state) {
            return;
        }
        let mode = Some(without_privileges(state.attr.mode));
        state.set(&SetAttrs { mode, ..SetAttrs::default() }, now());
        drop(state);
        self.note_unsettled(inode);
    }
}
