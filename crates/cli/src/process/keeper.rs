//! The process of a manager that keeps the copy of another one's store: it answers that one, and says to all others that it is not
//! active. `promote --from-mirror` makes it an ordinary manager.

use std::sync::Arc;

use anyhow::{Context, Result};
use manager::store::{Following, Keeper};

use super::{callback, joining::Door, manager as process, presence::Presence, stop::Stop};
use crate::cluster_dir::{ClusterDir, OwnManager, access};

/// Until it is told to stop.
pub async fn run(dir: &ClusterDir, own: &OwnManager, presence: Presence, mut stop: Stop) -> Result<()> {
    let copy = dir.kept_copy();
    access::make_dir(&copy).with_context(|| format!("create {}", copy.display()))?;
    let (endpoint, told) = process::listen(dir, own, &Arc::new(Door::new(dir)))?;
    let keeper = Arc::new(Keeper::new(&copy));
    let _ = told.keeper.set(Arc::clone(&keeper)); // once
    manager::serve_standby(&endpoint, Following::default());
    callback::serve(&endpoint, move |body| keeper.answer(body));
    presence.ready()?;
    tracing::info!("manager {} keeps a copy of the active one's store in {}", own.entry.name, copy.display());
    tokio::select! {
        () = stop.wait() => Ok(()),
        () = process::removed(dir, own, Some(&endpoint)) => presence.end_process(process::forget(dir, own)),
    }
}
