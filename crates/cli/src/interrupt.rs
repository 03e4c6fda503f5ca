//! Ctrl-C (or SIGTERM) in a command that would leave something half made: the command asks here at each step, undoes what
//! it began, says what is left, and ends with exit status 130. A second Ctrl-C ends it at once.

use std::sync::{
    atomic::{AtomicBool, Ordering::SeqCst},
    mpsc,
};

use anyhow::{Context, Result, bail};
use thiserror::Error;

use crate::{link, process::stop::Stop};

/// The exit status of a command that was stopped by a signal, as shells have it.
pub const EXIT: u8 = 130;

/// The command was told to stop before it had done what was asked; says what is left.
#[derive(Debug, Error)]
#[error("interrupted{}", if .0.is_empty() { String::new() } else { format!("; {}", .0) })]
pub struct Interrupted(pub String);

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on the signals are only seen by [`asked`].
pub fn catch() -> Result<()> {
    let (ready, caught) = mpsc::channel();
    let watch = move || {
        let watched = link::run(async {
            let mut stop = Stop::listen()?;
            let _ = ready.send(()); // who waits for it is gone only with the process
            loop {
                stop.wait().await;
                if ASKED.swap(true, SeqCst) {
                    return Ok(());
                }
            }
        });
        if watched.is_ok() {
            std::process::exit(EXIT.into());
        }
    };
    std::thread::Builder::new().name("interrupt".into()).spawn(watch).context("start a thread")?;
    if caught.recv().is_err() {
        bail!("signals cannot be listened for");
    }
    Ok(())
}

/// Whether the command was told to stop.
pub fn asked() -> bool {
    ASKED.load(SeqCst)
}

/// What was asked is being done: from now on it would be asked anew.
pub fn taken() {
    ASKED.store(false, SeqCst);
}

/// Fails once the command was told to stop.
pub fn check() -> Result<()> {
    if asked() { Err(Interrupted(String::new()).into()) } else { Ok(()) }
}
