//! In the manager's process: who was shut out stays so, also when the manager's store is made anew from an older dump.
//!
//! What `keys/revoked` names and the store does not is revoked before anybody is served; what is revoked while it serves is added
//! to the file. A file that is damaged, or cannot be written, is told and holds nobody up: the store has the same but after a restore.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use base::{MemberId, SessionId};
use manager::Manager;
use wire::mgr::{MgrReply, MgrRequest};

use crate::cluster_dir::{ClusterDir, revoked};

/// How long the manager may take for one.
const PATIENCE: Duration = Duration::from_secs(10);

fn tell(error: &anyhow::Error) {
    let text = format!("machines that are shut out may not stay so after `manager restore`: {error:#}");
    base::events::raise(base::events::Severity::Warning, "revoked", "the manager", &text);
    tracing::warn!("{text}");
}

/// Revokes in the store who is in the file.
pub async fn merge(dir: &ClusterDir, manager: &Manager) -> Result<()> {
    let kept = revoked::read(&dir.path).unwrap_or_else(|error| {
        tell(&error);
        Vec::new()
    });
    let there = manager.map().borrow().revoked.clone();
    for member in kept.into_iter().filter(|member| !there.contains(member)) {
        let expires = (Instant::now() + PATIENCE).into();
        let caller = manager::Caller { session: SessionId(0), member: MemberId(0), expires, build: None };
        match manager.handle(caller, MgrRequest::Revoke { member }).await {
            MgrReply::Done => tracing::info!("member {:016x} stays shut out", member.0),
            other => bail!("member {:016x} was shut out, and cannot be again: {other:?}", member.0),
        }
    }
    Ok(())
}

/// Keeps the file as the map has it, until it is dropped.
pub async fn keep(path: PathBuf, manager: Manager) {
    let mut map = manager.map();
    let mut kept = None;
    loop {
        let now = map.borrow_and_update().revoked.clone();
        if kept.as_ref() != Some(&now) {
            if let Err(error) = revoked::write(&path, &now) {
                tell(&error);
            }
            kept = Some(now);
        }
        if map.changed().await.is_err() {
            return;
        }
    }
}
