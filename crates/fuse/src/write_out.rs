//! Pages that programs have changed through mappings and the kernel has not yet written, at the end of a mount: written while
//! requests are still answered. syncfs(2) begins that for all files at once, and waits for none of it; told to drop the pages of an
//! inode, the kernel writes each that is dirty first, and waits. What a mapping changes later is not waited for: programs go
//! on until they are cut off.
//!
//! Invariant: the process does not end while a thread of it waits in the kernel for an answer to one of these requests: that
//! would keep the connection open, and with it the process. So the thread that has pages dropped is waited for; when nothing
//! is written any more, requests for pages are refused, which brings it to its end.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, time::timeout};
use wire::mgr::FileKind;

use crate::{calls::Calls, session::Session, sys};

/// How long nothing of it may be written before the rest is given up: longer than a call to a server waits.
const STALL_TIMEOUT: Duration = Duration::from_secs(90);

/// And all in all: a program may make a file longer for as long as its pages are written.
pub const TIMEOUT: Duration = Duration::from_secs(900);

/// How long the kernel may take to come to its end when requests are refused: those under way have deadlines of their own.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(120);

/// How often it is looked at.
pub const LOOK: Duration = Duration::from_millis(200);

/// Whether it goes on.
pub struct Pace {
    begun: Instant,
    moved: Instant,
    written: u64,
    passed: u64,
    failed: u64,
}

impl Pace {
    /// It begins.
    pub fn new(now: Instant, written: u64) -> Pace {
        Pace { begun: now, moved: now, written, passed: 0, failed: 0 }
    }

    /// Bytes written, inodes done with and bytes that failed, as they are now. False: the rest is to be given up.
    pub fn goes_on(&mut self, now: Instant, written: u64, passed: u64, failed: u64) -> bool {
        // An inode that was done with by failing is none.
        if written > self.written || passed > self.passed && failed == self.failed {
            self.moved = now;
        }
        (self.written, self.passed, self.failed) = (written, passed, failed);
        now.duration_since(self.moved) < STALL_TIMEOUT && now.duration_since(self.begun) < TIMEOUT
    }
}

/// Has the kernel write all pages that are dirty now, of all files it knows. `place`: where it is mounted, if it still is. What
/// could not be written is in [`PageWrites::lost`](crate::page_writes::PageWrites::lost). `is_gone`: whether the kernel's side is.
pub async fn write_out<C: Calls>(
    session: &Arc<Session<C>>,
    place: Option<PathBuf>,
    is_gone: impl Fn() -> bool,
) {
    let pages = &session.page_writes;
    pages.end_begins();
    let before = pages.written();
    let passed = Arc::new(AtomicU64::new(0));
    let (told, mut end) = oneshot::channel::<()>();
    let walk = {
        let (session, passed) = (session.clone(), passed.clone());
        move || {
            drop_all_pages(&session, place.as_deref(), &passed);
            drop(told);
        }
    };
    // Not one of the runtime, whose end would wait for it.
    if let Err(error) = thread::Builder::new().name("write-out".into()).spawn(walk) {
        return tracing::error!(%error, "what programs have changed in mappings is not written");
    }
    let mut pace = Pace::new(Instant::now(), before);
    while timeout(LOOK, &mut end).await.is_err() {
        if is_gone() && pages.cut_off() {
            tracing::error!(
                "cut off from the kernel before it has written what programs had changed in mappings"
            );
        }
        let failed = pages.failed();
        if !pace.goes_on(Instant::now(), pages.written(), passed.load(SeqCst), failed) {
            return give_up(session, end).await;
        }
    }
    let bytes = pages.written() - before;
    if bytes > 0 {
        tracing::info!(bytes, "told to end: wrote what programs had changed in mappings");
    }
}

async fn give_up<C: Calls>(session: &Session<C>, mut end: oneshot::Receiver<()>) {
    let under_way = session.waiting().list().len();
    tracing::error!(
        under_way,
        "told to end, and nothing is written any more: the rest of what programs have changed in mappings is given up"
    );
    session.page_writes.refuse();
    let limit = Instant::now() + REFUSED_TIMEOUT;
    // One that was let in just before is cut the next time.
    session.waiting().cut_pages(libc::EIO);
    while timeout(LOOK, &mut end).await.is_err() {
        if Instant::now() > limit {
            return tracing::error!("the kernel does not give its pages up");
        }
        session.waiting().cut_pages(libc::EIO);
    }
}

/// Comes back when every page that was dirty is written, or has failed.
fn drop_all_pages<C: Calls>(session: &Session<C>, place: Option<&Path>, passed: &AtomicU64) {
    // One page after the other would be written without this.
    if let Some(Err(error)) = place.map(|place| File::open(place).and_then(|root| sys::syncfs(&root))) {
        tracing::warn!(%error, "pages are written one by one");
    }
    let files = session.inodes.all().into_iter().filter(|(_, kind)| *kind == FileKind::File);
    for (ino, _) in files {
        if let Err(error) = session.notifier.inval_inode(ino, 0, 0) {
            tracing::warn!(%ino, %error, "pages of the kernel could not be written");
        }
        passed.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_time_as_long_as_it_writes() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut pace = Pace::new(begun, 10);
        assert!(pace.goes_on(at(89), 10, 0, 0));
        assert!(pace.goes_on(at(89), 11, 0, 0));
        assert!(pace.goes_on(at(178), 11, 1, 0), "an inode without dirty pages");
        assert!(pace.goes_on(at(267), 11, 2, 5));
        assert!(!pace.goes_on(at(268), 11, 3, 6), "what fails is no progress");
        let mut pace = Pace::new(begun, 0);
        assert!((1..30).all(|n| pace.goes_on(at(n * 30), n, 0, 0)));
        assert!(!pace.goes_on(at(900), 31, 0, 0), "not for ever");
    }
}
