//! What the copy is asked by its thread, or by one of its own, and how long is waited for it.

use std::{sync::mpsc, thread};

use super::{
    super::{Changes, StoreError},
    place::DEADLINE,
};

/// A commit for the copy, and where its end is told.
pub(super) struct Job {
    pub(super) changes: Changes,
    pub(super) done: mpsc::SyncSender<Result<(), StoreError>>,
}

pub(super) fn late() -> String {
    format!("it did not answer within {} s", DEADLINE.as_secs())
}

/// Has the copy asked by a thread of its own; why not, if it does not answer in time.
pub(super) fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (tell, told) = mpsc::channel();
    let work = move || {
        let _ = tell.send(work()); // who waited may have gone on without
    };
    let started = thread::Builder::new().name("manager-mirror".into()).spawn(work);
    started.map_err(|error| error.to_string())?;
    told.recv_timeout(DEADLINE).map_err(|_| late())
}

/// Gives the copy a commit; where its end is told.
pub(super) fn send(to: &mpsc::Sender<Job>, changes: &Changes) -> mpsc::Receiver<Result<(), StoreError>> {
    let (done, outcome) = mpsc::sync_channel(1);
    let _ = to.send(Job { changes: changes.clone(), done }); // a thread that has ended tells nothing, which is heard
    outcome
}

/// Waits until the copy has a commit; why it has not.
pub(super) fn wait(outcome: &mpsc::Receiver<Result<(), StoreError>>) -> Result<(), String> {
    match outcome.recv_timeout(DEADLINE) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(late()),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err("its thread has ended".into()),
    }
}
