//! What computes for long: parity, decoding and CRCs of large blocks. It runs beside the runtime's threads, on which
//! messages and other blocks wait meanwhile; a short one costs less than the way there.
//!
//! On threads of its own, which wait for nothing else: the runtime's threads for what blocks can all be held by calls into
//! the kernel that wait for bytes to be decoded.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, LazyLock, mpsc},
    thread,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// From so many bytes on; less is done at once, since the way to another thread costs something too. Chosen, not measured.
const BESIDE_MIN: u64 = 1 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// Its threads, as many as there are CPUs; none if none could be made.
static THREADS: LazyLock<Option<mpsc::Sender<Job>>> = LazyLock::new(|| {
    let (jobs, taken) = mpsc::channel::<Job>();
    let taken = Arc::new(Mutex::new(taken));
    let count = thread::available_parallelism().map_or(1, usize::from);
    let made = (0..count).filter(|_| {
        let taken = Arc::clone(&taken);
        let work = move || {
            loop {
                let next = taken.lock().recv();
                let Ok(job) = next else { return };
                job();
            }
        };
        thread::Builder::new().name("compute".to_owned()).spawn(work).is_ok()
    });
    (made.count() > 0).then_some(jobs)
});

/// Does `work`, which goes through about `bytes` bytes.
pub(crate) async fn compute<T: Send + 'static>(bytes: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes < BESIDE_MIN {
        return work();
    }
    let Some(threads) = THREADS.as_ref() else { return work() };
    let (answer, answered) = oneshot::channel();
    let job = move || {
        // Who asked may have gone.
        let _ = answer.send(catch_unwind(AssertUnwindSafe(work)));
    };
    if let Err(mpsc::SendError(job)) = threads.send(Box::new(job)) {
        job();
    }
    match answered.await {
        Ok(Ok(done)) => done,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => unreachable!("a job answers"),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn much_is_computed_beside_the_runtime_and_a_panic_is_the_callers() {
        let here = thread::current().id();
        assert_eq!(compute(BESIDE_MIN - 1, move || thread::current().id()).await, here);
        for _ in 0..100 {
            assert_ne!(compute(BESIDE_MIN, move || thread::current().id()).await, here);
        }
        let lost = tokio::spawn(compute(BESIDE_MIN, || panic!("on purpose"))).await;
        assert!(lost.is_err_and(|error| error.is_panic()));
        assert_eq!(compute(BESIDE_MIN, || 7).await, 7);
    }
}
