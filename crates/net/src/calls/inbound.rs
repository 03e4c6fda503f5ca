//! The requests received on a connection and not answered yet: admitted within the window, and cancelled. What carries
//! them out: `dispatch.rs`.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use base::{InodeNo, OpClass};
use tokio::sync::Notify;
use wire::{
    frame::{Header, Service},
    hello::Window,
};

use crate::calls::idmap::IdMap;

/// Says that a request's caller has gone.
#[derive(Default, Debug)]
pub(crate) struct Cancel {
    set: AtomicBool,
    told: Notify,
}

impl Cancel {
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }
    /// Ends when the caller has gone.
    pub(crate) async fn told(&self) {
        loop {
            let told = self.told.notified();
            if self.is_set() {
                return;
            }
            told.await;
        }
    }
    pub(crate) fn cancel(&self) {
        self.set.store(true, Ordering::Release);
        self.told.notify_waiters();
    }
}

/// A request that is being handled.
pub(crate) struct Active {
    pub service: Service,
    pub class: OpClass,
    pub op: u8,
    pub inode: InodeNo,
    pub since: Instant,
    pub expires: Instant,
    bytes: u64,
    /// It may come again on another connection.
    once: bool,
    cancel: Arc<Cancel>,
}

/// A request within the window, whose body is still coming.
pub(crate) struct Admitted {
    pub since: Instant,
    pub expires: Instant,
    pub cancel: Arc<Cancel>,
}

#[derive(Default)]
struct State {
    active: IdMap<Active>,
    bytes: u64,
    /// Answers that are on their way to the outbox.
    answers: usize,
}

/// The requests of one connection that are not answered yet.
#[derive(Default)]
pub(crate) struct Inbound {
    state: Mutex<State>,
}

impl Inbound {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts a request whose header has come. `None`: the peer goes beyond its window, or uses an id
    /// twice.
    pub(crate) fn admit(&self, header: &Header, window: Window) -> Option<Admitted> {
        let mut state = self.lock();
        let bytes = u64::from(header.body_len) + u64::from(header.payload_len);
        let fits = state.active.is_empty()
            || (state.active.len() < window.requests as usize && state.bytes + bytes <= window.bytes);
        if !fits || state.active.contains_key(&header.request_id) {
            return None;
        }
        let now = Instant::now();
        let expires = now + Duration::from_micros(header.deadline_us.into());
        let cancel = Arc::<Cancel>::default();
        let admitted = Admitted { since: now, expires, cancel: Arc::clone(&cancel) };
        state.bytes += bytes;
        state.active.insert(
            header.request_id,
            Active {
                service: header.service,
                class: header.class,
                op: header.op,
                inode: header.inode,
                since: now,
                expires,
                bytes,
                once: header.once,
                cancel,
            },
        );
        Some(admitted)
    }

    /// There is an answer; [`Inbound::queued`] says that the outbox has it.
    pub(crate) fn answered(&self, id: u64) {
        let mut state = self.lock();
        state.answers += 1;
        if let Some(active) = state.active.remove(&id) {
            state.bytes -= active.bytes;
        }
    }

    /// An answer is in the outbox, or will never be.
    pub(crate) fn queued(&self) {
        self.lock().answers -= 1;
    }

    /// The caller of `id` no longer waits.
    pub(crate) fn cancel(&self, id: u64) {
        let cancel = self.lock().active.get(&id).map(|a| Arc::clone(&a.cancel));
        if let Some(cancel) = cancel {
            cancel.cancel();
        }
    }

    /// The connection is gone: nobody waits any more, but for what may come again on another.
    pub(crate) fn cancel_all(&self) {
        let waited_for = |a: &&Active| !a.once;
        let all: Vec<_> =
            self.lock().active.values().filter(waited_for).map(|a| Arc::clone(&a.cancel)).collect();
        all.iter().for_each(|cancel| cancel.cancel());
    }

    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.active.is_empty() && state.answers == 0
    }

    /// Looks at every request not answered yet.
    pub(crate) fn for_each(&self, mut f: impl FnMut(u64, &Active)) {
        self.lock().active.iter().for_each(|(&id, active)| f(id, active));
    }
}
