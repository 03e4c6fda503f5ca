//! All that was written on the mount before becomes durable, as by sync(2) elsewhere ([`SYNC_ATTRIBUTE`](crate::SYNC_ATTRIBUTE)).
//!
//! First the kernel writes what programs have changed in mappings: only a file that is open to be read and written has such pages. Told
//! to drop the pages of an inode it writes each that is dirty, and waits; what fails is seen at the WRITEs themselves.
//!
//! Invariant: who syncs holds a request, and waits for others to be answered. So few may wait at a time; the rest come again.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use base::InodeNo;
use tokio::{sync::oneshot, time::timeout};

use crate::{
    calls::{Calls, Errno},
    session::Session,
    write_out::{LOOK, Pace, TIMEOUT},
};

impl<C: Calls> Session<C> {
    /// All that was written before is durable when this returns. `EAGAIN`: too many do this now; `EIO`: not all is; `EROFS`: what others
    /// write is made durable where they do. If who asks is killed he is answered, and this goes on to its end.
    pub async fn sync(&self) -> Result<(), Errno> {
        if self.rights.read_only {
            return Err(Errno(libc::EROFS));
        }
        let (places, turn) = &self.syncs;
        let _place = places.try_acquire().map_err(|_| Errno(libc::EAGAIN))?;
        let turn = timeout(TIMEOUT, turn.acquire()).await.map_err(|_| Errno(libc::EAGAIN))?;
        let _turn = turn.map_err(|_| Errno(libc::EIO))?;
        self.write_mapped().await?;
        // Others would be taken for what the kernel says of the call itself.
        self.calls.sync_all().await.map_err(|Errno(error)| {
            let of_the_call = [libc::EROFS, libc::EOPNOTSUPP, libc::EAGAIN];
            Errno(if of_the_call.contains(&error) { libc::EIO } else { error })
        })
    }

    /// Has the kernel write pages of mappings; as long as something is written, and no longer than at the end of a mount.
    async fn write_mapped(&self) -> Result<(), Errno> {
        let files: BTreeSet<InodeNo> = {
            let files = self.files();
            files.values().filter(|file| file.maps).map(|file| file.ino).collect()
        };
        let (pages, passed) = (&self.page_writes, Arc::new(AtomicU64::new(0)));
        let failures = pages.failures();
        let (told, mut end) = oneshot::channel();
        let walk = {
            let (notifier, passed) = (self.notifier.clone(), passed.clone());
            move || {
                let mut all = Ok(());
                for ino in files {
                    all = all.and(notifier.inval_inode(ino, 0, 0));
                    passed.fetch_add(1, SeqCst);
                }
                let _ = told.send(all);
            }
        };
        // Not one of the runtime's, of which recalls need theirs.
        thread::Builder::new().name("sync".into()).spawn(walk).map_err(|_| Errno(libc::EAGAIN))?;
        let mut pace = Pace::new(Instant::now(), pages.written());
        loop {
            match timeout(LOOK, &mut end).await {
                Ok(Ok(Ok(()))) if pages.failures() == failures => return Ok(()),
                Ok(written) => {
                    tracing::warn!(
                        ?written,
                        "sync: not all that programs have changed in mappings was written"
                    );
                    return Err(Errno(libc::EIO));
                }
                Err(_) if pace.goes_on(Instant::now(), pages.written(), passed.load(SeqCst), 0) => {}
                Err(_) => {
                    tracing::warn!(
                        "sync: the kernel writes nothing any more of what programs have changed in mappings"
                    );
                    return Err(Errno(libc::EIO));
                }
            }
        }
    }
}
