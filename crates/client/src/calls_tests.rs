//! Calls to a manager that answers some of them.

use super::*;
use crate::parts::BoxFuture;

/// Changes one by one are never answered, several at once are; the newest of these it may not know.
#[derive(Default)]
struct Stub {
    waiting: AtomicUsize,
    old: AtomicBool,
    asked: Notify,
}

impl Manager for Stub {
    fn call(&self, request: MgrRequest, _: Instant) -> BoxFuture<'_, Result<MgrReply, CallError>> {
        Box::pin(async move {
            match request {
                MgrRequest::Tell { .. } if self.old.load(SeqCst) => {
                    Err(CallError::TooOld("it is older".into()))
                }
                MgrRequest::Tell { changes } | MgrRequest::MutateMany { changes } => {
                    Ok(MgrReply::Many(changes.iter().map(|_| Ok(MgrReply::Done)).collect()))
                }
                _ => {
                    self.waiting.fetch_add(1, SeqCst);
                    self.asked.notify_one();
                    std::future::pending().await
                }
            }
        })
    }
}

/// Changes may wait for other sessions, which wait for what is told.
#[tokio::test]
async fn what_is_told_does_not_wait_for_changes_that_are_not_answered() {
    let stub = Arc::new(Stub::default());
    let calls = Arc::new(Calls::new(stub.clone(), Duration::from_secs(60), true));
    for _ in 0..SLOTS {
        let calls = calls.clone();
        tokio::spawn(async move { calls.mutate(Change::Numbers { count: 1 }).await });
    }
    while stub.waiting.load(SeqCst) < usize::from(SLOTS) - MANY_MAX {
        stub.asked.notified().await;
    }
    for old in [false, true] {
        stub.old.store(old, SeqCst);
        let told = calls.tell_ahead(vec![Change::Numbers { count: 1 }; MANY_MAX], true).await;
        assert_eq!(told.map(|replies| replies.len()), Some(MANY_MAX), "to an older manager: {old}");
    }
}
