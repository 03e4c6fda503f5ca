//! The way to what the kernel caches of this mount.

use std::sync::Arc;

use base::InodeNo;
use parking_lot::RwLock;

/// What the kernel keeps of a mount, as the client takes it away.
pub trait KernelCache: Send + Sync {
    /// Drops pages of `len` bytes at `offset` (0: to the end) and the attributes. Blocks while pages are
    /// being filled or written by requests that are not answered.
    fn drop_pages(&self, ino: InodeNo, offset: u64, len: u64);
    /// Drops the attributes alone, also those of answers that were given before. False: the kernel may be taking in the first answer about
    /// the inode just now, and would keep what that says; to be tried again. Does not block.
    fn drop_attr(&self, ino: InodeNo) -> bool;
    /// Others come (`true`): names and attributes are believed no more, now and in future answers. Or
    /// nobody else is there.
    fn set_shared(&self, shared: bool);
    /// Names and attributes that are cached may be untrue.
    fn drop_names(&self) {}
    /// Nothing that is cached counts any more.
    fn drop_all(&self);
}

/// The kernel's cache, where there is one.
#[derive(Default)]
pub(crate) struct Kernel(RwLock<Option<Arc<dyn KernelCache>>>);

impl Kernel {
    pub fn set(&self, kernel: Arc<dyn KernelCache>) {
        *self.0.write() = Some(kernel);
    }

    pub fn get(&self) -> Option<Arc<dyn KernelCache>> {
        self.0.read().clone()
    }

    /// Tells what caches pages and names, if anything does; returns when it has heard.
    pub async fn tell(&self, tell: impl FnOnce(&dyn KernelCache) + Send + 'static) {
        let Some(kernel) = self.get() else { return };
        if let Err(error) = tokio::task::spawn_blocking(move || tell(&*kernel)).await {
            tracing::error!(%error, "the kernel could not be told what it may keep");
        }
    }
}
