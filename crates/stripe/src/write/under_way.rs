//! What a write has asked for and waits for.
//!
//! Small requests are futures of the write's own task: they are sent from where the write is begun, and nobody has to be woken for
//! them. Large ones are tasks, so that several processors copy their bytes into sockets. Dropped, all of it is given up.

use std::pin::Pin;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::{JoinError, JoinSet};

type Asked<E> = Pin<Box<dyn Future<Output = E> + Send>>;

/// Bytes of a payload up to which a request is no task of its own.
const SMALL: usize = 64 << 10;

/// Each ends with an event.
pub struct UnderWay<E> {
    small: FuturesUnordered<Asked<E>>,
    large: JoinSet<E>,
}

impl<E: Send + 'static> UnderWay<E> {
    pub fn new() -> UnderWay<E> {
        UnderWay { small: FuturesUnordered::new(), large: JoinSet::new() }
    }

    /// Begins `request`, whose payload has `bytes`; a small one when this is next waited for.
    pub fn ask(&mut self, bytes: usize, request: impl Future<Output = E> + Send + 'static) {
        if bytes <= SMALL {
            self.small.push(Box::pin(request));
        } else {
            self.large.spawn(request);
        }
    }

    /// What ends next; `None` where nothing is under way. Safe to cancel.
    pub async fn next(&mut self) -> Option<Result<E, JoinError>> {
        match (self.small.is_empty(), self.large.is_empty()) {
            (_, true) => self.small.next().await.map(Ok),
            (true, false) => self.large.join_next().await,
            (false, false) => tokio::select! {
                biased;
                Some(event) = self.small.next() => Some(Ok(event)),
                done = self.large.join_next() => done,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_requests_are_no_tasks_of_their_own() {
        for (bytes, alone) in [(0, false), (SMALL, false), (SMALL + 1, true)] {
            let mut asked = UnderWay::new();
            asked.ask(bytes, async { tokio::task::try_id().is_some() });
            assert_eq!(asked.next().await.map(Result::unwrap), Some(alone), "{bytes} bytes");
        }
    }
}
