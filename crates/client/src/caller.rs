//! On whose behalf something is done: what a mount of a squashed machine knows of the program that asks. It goes with the task, like
//! the span of a log, and from there into each change of names and attributes that is told to the manager at once. What is told later
//! (sizes, blocks, times) is told on nobody's behalf: by then others may have written the same file.

use std::future::Future;

use wire::{credentials::Credentials, mgr::Change};

tokio::task_local! {
    static CALLER: Credentials;
}

/// Does something on a program's behalf.
pub fn on_behalf<F: Future>(by: Credentials, work: F) -> impl Future<Output = F::Output> {
    CALLER.scope(by, work)
}

/// The same for whom this task does what it does, if for anybody: for work that goes on in another task.
pub(crate) async fn as_here<F: Future>(by: Option<Credentials>, work: F) -> F::Output {
    match by {
        Some(by) => CALLER.scope(by, work).await,
        None => work.await,
    }
}

/// On whose behalf this task works.
pub(crate) fn current() -> Option<Credentials> {
    CALLER.try_with(Clone::clone).ok()
}

/// On whose behalf a change is made.
pub(crate) fn of(change: &Change) -> Option<Credentials> {
    match change {
        Change::CommitWrite { .. } | Change::Deallocate { .. } | Change::Forget { .. } => None,
        Change::SetAttr { size: Some(_), .. } => None,
        _ => current(),
    }
}
