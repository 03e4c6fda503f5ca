//! Whether it pays to hold a directory beside others, to make names in it ahead of the manager.
//!
//! Getting it costs a message or two, and whoever wants to see or change the directory meanwhile waits until it is given up. So it is asked for
//! where only this client has worked of late, after some changes; after twice as many each time that it was lost before it paid. Of two
//! that work in one directory each costs the other a wait for one change in a thousand in the end.

/// Changes at the manager after which it is asked for.
const CHANGES: u32 = 8;
/// How often that number is doubled.
const LOSSES_MAX: u32 = 7;
/// Names made ahead by which it has paid.
const PAYS: u32 = 64;

/// Of one directory.
#[derive(Default)]
pub(crate) struct Worth {
    /// Names changed at the manager since it was asked for or lost last.
    changes: u32,
    losses: u32,
    /// Names changed ahead since it was got.
    made: u32,
}

impl Worth {
    /// A name is changed at the manager.
    pub fn changed(&mut self) {
        self.changes = self.changes.saturating_add(1);
    }

    /// A name was changed ahead.
    pub fn made(&mut self) {
        self.made = self.made.saturating_add(1);
    }

    /// Others change names there.
    pub fn disturbed(&mut self) {
        self.changes = 0;
    }

    /// Whether it is worth asking for.
    pub fn is_due(&self) -> bool {
        self.changes >= CHANGES << self.losses
    }

    /// It was asked for.
    pub fn asked(&mut self, got: bool) {
        (self.changes, self.made) = (0, 0);
        if !got {
            self.losses = (self.losses + 1).min(LOSSES_MAX);
        }
    }

    /// It was given up, since others want to see or change the directory.
    pub fn lost(&mut self) {
        self.losses = if self.made >= PAYS { 0 } else { (self.losses + 1).min(LOSSES_MAX) };
        (self.changes, self.made) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes after which it is asked for.
    fn due(worth: &mut Worth) -> u32 {
        let mut count = 0;
        while !worth.is_due() {
            worth.changed();
            count += 1;
        }
        count
    }

    #[test]
    fn what_is_lost_before_it_pays_is_asked_for_ever_more_rarely() {
        let mut worth = Worth::default();
        let mut after = Vec::new();
        for round in 0..9 {
            after.push(due(&mut worth));
            // Another one works there too, and has it or takes it.
            worth.asked(round % 2 == 0);
            if round % 2 == 0 {
                worth.made();
                worth.lost();
            }
        }
        assert_eq!(after, [8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
        // It pays at last.
        due(&mut worth);
        worth.asked(true);
        (0..PAYS).for_each(|_| worth.made());
        worth.lost();
        assert_eq!(due(&mut worth), CHANGES);
    }
}
