//! In whose name requests are made, and who is told of pdisks that do not answer.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use base::{PdiskId, SessionId};

/// The session in whose name requests are made; the owner of the session sets it.
#[derive(Clone, Default, Debug)]
pub struct SessionCell(Arc<AtomicU64>);

impl SessionCell {
    /// With this session.
    pub fn new(session: SessionId) -> SessionCell {
        SessionCell(Arc::new(AtomicU64::new(session.0)))
    }
    /// The session now.
    pub fn get(&self) -> SessionId {
        SessionId(self.0.load(Ordering::Acquire))
    }
    /// A new session.
    pub fn set(&self, session: SessionId) {
        self.0.store(session.0, Ordering::Release);
    }
}

/// Told about pdisks that do not answer. Called often; it limits its own rate.
pub trait SilenceReporter: Send + Sync + 'static {
    /// `pdisk` has not answered a write in time.
    fn silent(&self, pdisk: PdiskId);
}

impl SilenceReporter for () {
    fn silent(&self, _: PdiskId) {}
}
