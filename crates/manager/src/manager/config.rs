//! The tunables of the cluster: stored, checked and told.

use base::tunables::Tunables;
use tokio::sync::oneshot;
use wire::mgr::{MgrError, MgrReply};

use super::{
    Manager, read_refusal, stopping,
    tunables::{read_config, tunables_of},
};
use crate::{
    cluster::Event,
    keys::{self, ConfigRecord},
};

impl Manager {
    pub(super) fn config(&self) -> Result<Vec<(String, String)>, MgrError> {
        read_config(&*self.snapshot()).map_err(read_refusal)
    }

    /// The tunables in force.
    pub fn tunables(&self) -> Result<Tunables, MgrError> {
        Ok(tunables_of(&self.config()?))
    }

    /// Tells the tunables with the answers that begin a session.
    pub(super) fn with_config(&self, mut reply: MgrReply) -> Result<MgrReply, MgrError> {
        if let MgrReply::Registered { config, .. } | MgrReply::SessionOpen { config, .. } = &mut reply {
            *config = self.config()?;
        }
        Ok(reply)
    }

    pub(super) async fn config_set(&self, pairs: Vec<(String, String)>) -> Result<MgrReply, MgrError> {
        // Checked and stored in one transaction, so that two callers cannot store what does not fit.
        let (told, heard) = oneshot::channel();
        let stored = self.inner.writer.run(move |txn| {
            let mut tunables = tunables_of(&read_config(&*txn)?);
            let new = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let outcome = tunables.apply(new);
            if outcome.is_ok() {
                for (name, value) in tunables.changed() {
                    keys::write(txn, keys::config_key(name), &ConfigRecord { value });
                }
            }
            let _ = told.send(outcome.map(|()| tunables)); // who asked may have gone
            Ok(())
        });
        stored.await?;
        match heard.await {
            Ok(Ok(tunables)) => {
                for event in [
                    Event::SetLease(tunables.lease_duration()),
                    Event::SetRebuildDelay(tunables.missing_rebuild_delay()),
                    Event::SetOperationDeadline(tunables.operation_deadline()),
                ] {
                    self.inner.tell(event, None).await?;
                }
                Ok(MgrReply::Done)
            }
            Ok(Err(error)) => Err(MgrError::Config(error.to_string())),
            Err(_) => Err(stopping()),
        }
    }
}
