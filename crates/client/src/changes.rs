//! What becomes of a change at the manager whose answer does not come (a timeout, a lost connection, a manager that
//! begins anew).
//!
//! Invariant: nobody believes anything of what an unanswered change may have changed. The change is under way until
//! it is answered: a task carries it, sends it again by its number ([`crate::calls`]) and, when the answer is there,
//! takes it in as if it had come at once. Who waits for it has `EIO` after the client's deadline; the task goes on and
//! keeps what it holds: the file's locks, tokens, the names that are being changed. So whatever depends on the outcome
//! waits for the same, and ends by its own deadline. When the answer is there, the kernel, which was told of an error,
//! is told to forget what it knew. While a change is unanswered that somebody has given up waiting for,
//! no other change of names begins: what a program does after its `EIO` comes after what it did before.
//!
//! | request | until it is answered | why that is safe |
//! |---|---|---|
//! | truncate (`SetAttr` with a size), punch (`Deallocate`) | the file's token, its `io` and `commit` locks are held and no block of it is written; after the deadline reads and fsync wait too ([`FileState::changing`]) | blocks are forgotten with the manager's answer, never kept beside it; writes come after it |
//! | `CommitWrite` of one file, or of many | the `commit` lock is held; blocks stay `pending`, sizes and times uncommitted | a later commit cannot be overtaken by a late copy; fsync waits for the lock |
//! | create, link, unlink, rename, extended attributes, attributes of directories | the names and attributes are `Changing` ([`crate::names::directory`]), tokens of the files are held | what is changing is asked for; a file whose name went away is given up when the answer comes |
//! | create without a name | an orphan of this session | when the answer is here it is given up if nobody waits; it goes with the session in any case |
//! | `Forget` of an unlinked file | sent again; what is forgotten twice is gone | nothing is known of the inode here; the manager forgets orphans of ended sessions by itself |
//! | `Reserve` | room may be granted that is not known here | the next question says what is held, and the manager counts that |
//! | `Acquire` of a token | the token is not used; the manager may think it is held | a recall of it is answered with what is held; the next grant has a higher number |
//! | `Release` | the token is not used any more | the manager asks again for what it wants; what is about an older grant means nothing |
//! | `Claim`, `Published`, `Resolved`, `ResolvePassDone`, `ResolveDone` | the manager does not count it as said | it asks again; all may be said twice |
//! | locks | what is held is as it was before | asked for again under a new number: [`crate::locks`] |
//! | `OpenSession` | there is no mount; the manager may have a session | it is asked for again as another; the lost one lapses with its lease, and is fenced |
//! | `CloseSession` | sent again: a session that is not there any more has ended well | all was durable before; one that was not closed is fenced and resolved |
//! | questions (`GetAttr`, `Lookup`, `Extents`, `ReadInline`, ...) | nothing is kept | they change nothing |

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
};

use tokio::sync::oneshot;

use crate::{caller, core::Core, error::Errno, files::inode::Inode};

const UNDER_WAY: u8 = 0;
const GIVEN_UP: u8 = 1;
const DONE: u8 = 2;

/// One change, between its task and who waits for it.
struct ChangeState {
    core: Arc<Core>,
    state: AtomicU8,
}

/// The task's end of it; counts as done however the task ends.
struct Carrier(Arc<ChangeState>);

impl Drop for Carrier {
    fn drop(&mut self) {
        if self.0.state.swap(DONE, SeqCst) == GIVEN_UP {
            let core = &self.0.core;
            core.calls.given_up.ended();
            // After an error the kernel goes on with what it knew before.
            let teller = core.clone();
            core.runtime.spawn(async move { teller.kernel.tell(|kernel| kernel.drop_names()).await });
        }
    }
}

/// The waiter's end of it; given up when it goes before the task has ended.
struct Waiter(Arc<ChangeState>);

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.0.state.load(SeqCst) == DONE {
            return;
        }
        // Counted first: the task may end at once.
        let given_up = &self.0.core.calls.given_up;
        given_up.began();
        if self.0.state.compare_exchange(UNDER_WAY, GIVEN_UP, SeqCst, SeqCst).is_err() {
            given_up.ended();
        }
    }
}

impl Core {
    /// Carries out a change of names or attributes: to its end, also when nobody waits for it any more. `EIO` after the
    /// deadline.
    pub async fn carry_out<T: Send + 'static>(
        self: &Arc<Core>,
        work: impl Future<Output = Result<T, Errno>> + Send + 'static,
    ) -> Result<T, Errno> {
        let none = self.calls.given_up.none();
        self.patient("an earlier change that the manager has not answered", None, none).await?;
        let change = Arc::new(ChangeState { core: self.clone(), state: AtomicU8::new(UNDER_WAY) });
        let (carrier, waiter) = (Carrier(change.clone()), Waiter(change));
        let work = caller::as_here(caller::current(), work);
        let task = self.runtime.spawn(async move {
            let done = work.await;
            drop(carrier);
            done
        });
        let done = self.patient("a change at the manager", None, task).await;
        drop(waiter);
        done?.unwrap_or(Err(Errno::EIO))
    }

    /// Carries out a change of one file's record; `work` holds the locks that it needs. `EIO` after the deadline without
    /// any change of the inode, while `work` goes on.
    pub async fn see_through(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        what: &'static str,
        work: impl Future<Output = Result<(), Errno>> + Send + 'static,
    ) -> Result<(), Errno> {
        let (answer, mut answered) = oneshot::channel();
        let file = inode.clone();
        self.runtime.spawn(async move {
            // Who waited may be gone.
            let _ = answer.send(work.await);
            file.changed.notify_waiters();
        });
        let done = || match answered.try_recv() {
            Ok(done) => Some(done),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(Errno::EIO)),
        };
        self.wait_inode(inode, what, done).await?
    }

    /// Waits until what is known of a file's record can be believed: see [`crate::files::state::FileState::changing`].
    pub async fn wait_settled(&self, inode: &Inode) -> Result<(), Errno> {
        if inode.lock().changing.is_none() {
            return Ok(());
        }
        let settled = || inode.lock().changing.is_none().then_some(());
        self.wait_inode(inode, "a change of the file that the manager has not answered", settled).await
    }
}
