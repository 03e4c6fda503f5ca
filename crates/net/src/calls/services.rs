//! The services of this process, by number: who answers which requests.

use std::sync::{Arc, RwLock};

use wire::frame::Service;

use crate::calls::handler::Handler;

#[derive(Default)]
pub(crate) struct Services(RwLock<[Option<Arc<dyn Handler>>; 8]>);

impl Services {
    /// Gives a service its handler; replaces an earlier one.
    pub(crate) fn set(&self, service: Service, handler: Arc<dyn Handler>) {
        let mut services = self.0.write().unwrap_or_else(|e| e.into_inner());
        if let Some(place) = services.get_mut(service as usize) {
            *place = Some(handler);
        }
    }

    pub(crate) fn get(&self, service: Service) -> Option<Arc<dyn Handler>> {
        self.0.read().unwrap_or_else(|e| e.into_inner()).get(service as usize).cloned().flatten()
    }
}
