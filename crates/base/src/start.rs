//! Work that begins on the thread that has it, and goes on elsewhere only if it must wait.
//!
//! Invariant: a future is polled by one thread at a time, and is given on at most once, when it has been woken. One that nobody
//! wakes any more stays with its waker, as it would stay with a runtime.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use parking_lot::Mutex;

/// A future without a result.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls `work` here, once. If that does not end it, `go_on` gets it when it is first woken: a runtime's spawn. To spawn it at
/// once instead costs a wake-up and a poll that finds nothing.
pub fn start(work: Work, go_on: impl FnOnce(Work) + Send + 'static) {
    let begun = Arc::new(Begun { state: Mutex::new(State::Polled { woken: false }) });
    begun.poll(work, go_on);
}

#[derive(Clone, Copy, PartialEq)]
enum Lent {
    No,
    Offered,
    Taken,
}

thread_local! {
    static LENT: Cell<Lent> = const { Cell::new(Lent::No) };
}

/// Does `wake` with this thread lent to what it wakes first, which may go on here if it asks ([`take_thread`]): for a thread that has
/// nothing better to do for a moment, and holds no lock. Another thread need not be woken then.
pub fn lend_thread(wake: impl FnOnce()) {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            LENT.set(Lent::No);
        }
    }
    LENT.set(Lent::Offered);
    let _over = Over;
    wake();
}

/// Whether who asks, who was just woken, is to go on here. Once for each loan.
pub fn take_thread() -> bool {
    let offered = LENT.get() == Lent::Offered;
    if offered {
        LENT.set(Lent::Taken);
    }
    offered
}

/// Whether this thread is another's, who must not be waited for.
pub fn is_thread_lent() -> bool {
    LENT.get() != Lent::No
}

enum State<G> {
    /// Somebody polls it, or it has ended, or was given on.
    Polled {
        woken: bool,
    },
    Waits(Work, G),
}

struct Begun<G> {
    state: Mutex<State<G>>,
}

impl<G: FnOnce(Work) + Send + 'static> Begun<G> {
    fn poll(self: &Arc<Self>, mut work: Work, go_on: G) {
        let waker = Waker::from(Arc::clone(self));
        if let Poll::Ready(()) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return;
        }
        let mut state = self.state.lock();
        if matches!(*state, State::Polled { woken: false }) {
            *state = State::Waits(work, go_on);
            return;
        }
        drop(state);
        go_on(work);
    }
}

impl<G: FnOnce(Work) + Send + 'static> Wake for Begun<G> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Polled { woken: true });
        if let State::Waits(work, go_on) = before {
            go_on(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    };

    use super::*;

    /// Ready at poll `at`; wakes itself at polls below `wakes`; keeps its waker.
    struct Steps {
        polls: Arc<AtomicU32>,
        at: u32,
        wakes: u32,
        waker: Arc<Mutex<Option<Waker>>>,
    }

    impl Future for Steps {
        type Output = ();
        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            let n = self.polls.fetch_add(1, Ordering::SeqCst) + 1;
            *self.waker.lock() = Some(cx.waker().clone());
            if n <= self.wakes {
                cx.waker().wake_by_ref();
            }
            if n >= self.at { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    fn begin(at: u32, wakes: u32) -> (Arc<AtomicU32>, Arc<Mutex<Option<Waker>>>, mpsc::Receiver<Work>) {
        let (polls, waker) = (Arc::new(AtomicU32::new(0)), Arc::default());
        let (given, gets) = mpsc::channel();
        let steps = Steps { polls: polls.clone(), at, wakes, waker: Arc::clone(&waker) };
        start(Box::pin(steps), move |work| given.send(work).expect("somebody listens"));
        (polls, waker, gets)
    }

    #[test]
    fn what_is_ready_is_given_to_nobody() {
        let (polls, _, gets) = begin(1, 1);
        assert_eq!(polls.load(Ordering::SeqCst), 1);
        assert!(gets.try_recv().is_err());
    }

    #[test]
    fn what_waits_is_given_on_once_when_it_is_woken() {
        let (polls, waker, gets) = begin(2, 0);
        assert!(gets.try_recv().is_err(), "nobody has woken it");
        let waker = waker.lock().take().expect("it was polled");
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert!(gets.try_recv().is_ok());
        assert!(gets.try_recv().is_err(), "given on twice");
        assert_eq!(polls.load(Ordering::SeqCst), 1, "a wake-up polls nothing itself");
    }

    #[test]
    fn a_thread_that_is_lent_is_taken_once_and_given_back() {
        let (_, waker, gets) = begin(2, 0);
        let (_, other, _gets) = begin(2, 0);
        assert!(!take_thread() && !is_thread_lent());
        lend_thread(|| {
            waker.lock().take().expect("it was polled").wake();
            assert!(is_thread_lent());
            assert!(take_thread() && !take_thread(), "one goes on here");
            other.lock().take().expect("it was polled").wake();
            assert!(is_thread_lent() && !take_thread());
        });
        assert!(gets.try_recv().is_ok() && !is_thread_lent());
        let panicking = || lend_thread(|| panic!("what goes on here"));
        assert!(std::panic::catch_unwind(panicking).is_err() && !is_thread_lent());
    }

    #[test]
    fn what_is_woken_while_it_is_polled_is_given_on_at_once() {
        let (_, _, gets) = begin(2, 1);
        assert!(gets.try_recv().is_ok());
    }
}
