//! Handles on one inode, counted.

/// How often an inode is open.
#[derive(Default)]
pub(crate) struct Opens {
    all: u32,
    /// Of these, those by which the kernel may change pages before it asks: mappings, buffered writes.
    wide: u32,
}

impl Opens {
    pub fn add(&mut self, wide: bool) {
        self.all += 1;
        self.wide += u32::from(wide);
    }

    pub fn remove(&mut self, wide: bool) {
        debug_assert!(self.all > 0 && self.wide >= u32::from(wide), "closed and never opened");
        self.all = self.all.saturating_sub(1);
        self.wide = self.wide.saturating_sub(u32::from(wide));
    }

    pub fn any(&self) -> bool {
        self.all > 0
    }

    pub fn any_wide(&self) -> bool {
        self.wide > 0
    }
}
