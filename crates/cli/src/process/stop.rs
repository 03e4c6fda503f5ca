//! The signals that tell a process to stop.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::service;

/// SIGTERM and Ctrl-C, which then do not end the process by themselves.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// From now on.
    pub fn listen() -> Result<Stop> {
        let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        Ok(Stop { terminate, interrupt })
    }

    /// Waits for the next one.
    pub async fn wait(&mut self) {
        tokio::select! {
            // Both only wait for the same thing: to stop.
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        service::stopping();
    }

    /// What a step comes to; none if a signal comes before. The step is dropped then.
    pub async fn before<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.wait() => None,
            done = step => Some(done),
        }
    }
}

/// Waits for SIGTERM or Ctrl-C.
pub async fn stop_signal() -> Result<()> {
    Stop::listen()?.wait().await;
    Ok(())
}
