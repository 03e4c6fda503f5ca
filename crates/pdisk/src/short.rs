//! The file system that the pdisk lies on has no room for something that must be written. Nothing is lost by that, so
//! the pdisk is not latched failed: whoever must write tries again, whoever needs room is refused meanwhile.

use base::events::{self, Severity};

use crate::{
    state::{Short, State, wake_room_waiters},
    store::Store,
};

impl Store {
    /// The host's file system has no room for `what`: nothing is lost, it is tried again. Told once.
    pub fn is_short(&self, state: &mut State, what: Short, error: &std::io::Error) {
        if state.short.is_some() {
            return;
        }
        let reason = match what {
            Short::Log => format!("write log: {error}"),
            Short::Place => format!("bring small versions to their place: {error}"),
            Short::Checkpoint => format!("write a checkpoint: {error}"),
        };
        state.short = Some((what, reason.clone()));
        self.stats.short.set(1);
        let subject = self.files.label.pdisk.to_string();
        let text = format!(
            "{subject} in {}: {reason}; it goes on when there is room, and refuses what needs room until then: \
             free some on that file system",
            self.files.dir.display()
        );
        tracing::warn!("{text}");
        events::raise(Severity::Warning, "pdisk_short", &subject, &text);
        // They are refused now, where there is no room left.
        wake_room_waiters(state);
    }

    /// There is room for `what`.
    pub fn is_short_no_more(&self, state: &mut State, what: Short) {
        if state.short.take_if(|short| short.0 == what).is_some() {
            self.stats.short.set(0);
            let subject = self.files.label.pdisk.to_string();
            let text = format!("{subject} in {} has room again", self.files.dir.display());
            tracing::info!("{text}");
            events::raise(Severity::Info, "pdisk_short_no_more", &subject, &text);
            wake_room_waiters(state);
        }
    }
}

/// Whether a write failed for lack of room in the host's file system. A flush that fails is latched whatever it says.
pub(crate) fn lacks_room(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
