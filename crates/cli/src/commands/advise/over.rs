//! `advise --over`: what machines count in some seconds, as rates. Nothing is changed, so a signal just ends it.

use std::time::Duration;

use advisor::{Facts, Tree, counted, host_facts};
use anyhow::{Context as _, Result};

use crate::{link, output};

/// The facts of this machine, with rates of that time in the place of what it has counted since boot.
///
/// # Errors
/// It is a copy of a machine, which counts no further.
pub(super) fn rates(tree: &Tree, span: Duration) -> Result<Facts> {
    let before = host_facts(tree);
    link::run(async {
        watch(span).await;
        Ok(())
    })?;
    counted::rates(&before, &host_facts(tree))
        .context("--over needs a machine that runs: in this copy of one no time passes (proc/uptime)")
}

/// Waits, and shows that on a terminal.
pub(super) async fn watch(span: Duration) {
    let progress = output::progress("counting, s", span.as_secs());
    let end = tokio::time::Instant::now() + span;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    loop {
        // Safe to cancel: both only wait.
        tokio::select! {
            () = tokio::time::sleep_until(end) => break,
            _ = second.tick() => progress.inc(1),
        }
    }
    progress.finish_and_clear();
}
