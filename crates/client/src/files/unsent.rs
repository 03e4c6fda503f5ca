//! Times and attributes that are newer here than at the manager.

use super::set_attrs::SetAttrs;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Unsent {
    /// Mode, owner, group and access time as set here.
    attrs: SetAttrs,
    /// These or the times are newer here.
    any: bool,
    /// Counts changes, of the content as well, so that a commit knows whether it carried the newest.
    changes: u64,
    /// The manager has what there was after so many.
    told: u64,
}

impl Unsent {
    /// Whether anything is newer here.
    pub fn is_any(&self) -> bool {
        self.any
    }
    /// What was set.
    pub fn attrs(&self) -> SetAttrs {
        self.attrs
    }
    /// To be handed to [`Unsent::sent`] when the manager has what is unsent now.
    pub fn changes(&self) -> u64 {
        self.changes
    }
    /// Whether the manager has what there was after so many changes.
    pub fn is_told(&self, changes: u64) -> bool {
        !self.any || self.told >= changes
    }

    /// Times have changed.
    pub fn note(&mut self) {
        self.any = true;
        self.changes += 1;
    }

    /// These have been set; what was set before and not now stays.
    pub fn add(&mut self, new: &SetAttrs) {
        self.attrs = SetAttrs {
            mode: new.mode.or(self.attrs.mode),
            uid: new.uid.or(self.attrs.uid),
            gid: new.gid.or(self.attrs.gid),
            atime: new.atime.or(self.attrs.atime),
            ..SetAttrs::default()
        };
        self.note();
    }

    /// The manager has what there was after so many changes.
    pub fn sent(&mut self, changes: u64) {
        debug_assert!(changes <= self.changes);
        self.told = self.told.max(changes);
        if changes == self.changes {
            self.forget();
        }
    }

    /// Nobody is to be told any more.
    pub fn forget(&mut self) {
        (self.attrs, self.any) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_since_a_commit_was_made_is_not_sent_by_it() {
        let mut unsent = Unsent::default();
        unsent.add(&SetAttrs { mode: Some(0o600), ..SetAttrs::default() });
        let first = unsent.changes();
        unsent.add(&SetAttrs { uid: Some(7), ..SetAttrs::default() });
        unsent.sent(first);
        let attrs = unsent.attrs();
        assert_eq!((unsent.is_any(), attrs.mode, attrs.uid), (true, Some(0o600), Some(7)));
        assert!(unsent.is_told(first) && !unsent.is_told(unsent.changes()));
        unsent.sent(unsent.changes());
        assert!(!unsent.is_any() && unsent.attrs() == SetAttrs::default());
        unsent.note();
        assert!(unsent.is_any());
    }
}
