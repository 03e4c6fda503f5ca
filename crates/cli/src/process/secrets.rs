//! Machines with managers have the same secrets: each tells those of its own to the others. After an exchange the machine where the
//! command was given has newer ones, and whoever comes back after it is told.
//!
//! They go only to who is a manager in the active one's map now, so that one that was removed hears of none, at its address there,
//! once it has shown a certificate as a manager; encrypted, whatever `cipherList` says. Nobody takes them from one that does not
//! know its present one (`ClusterDir::take_secrets`). One that does not hear is told again.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::{Epoch, beat};
use net::Endpoint;
use trust::{Fingerprint, Visitor};
use wire::{
    frame,
    mgr::{MgrReply, MgrRequest},
};

use crate::{
    cluster_dir::{ClusterDir, Secrets, SecretsReply},
    link::Link,
};

/// Between two looks whether there is something to tell.
const LOOK: Duration = Duration::from_secs(1);
/// Who has been told is told again after this: its file may have been restored from an older copy.
const AGAIN: Duration = Duration::from_secs(60);
/// How long another one may take to take them.
const PATIENCE: Duration = Duration::from_secs(3);

/// Tells the managers of other machines, as long as this process runs.
pub fn tell(dir: &ClusterDir, endpoint: &Endpoint) {
    let link = Link::over(endpoint, &dir.managers);
    let mut teller = Teller { path: dir.path.clone(), link, told: HashMap::new(), said: HashMap::new() };
    tokio::spawn(async move {
        loop {
            tokio::time::sleep_until(beat::by(Instant::now(), LOOK).into()).await;
            if let Err(error) = teller.look().await {
                tracing::debug!("the other managers are not told of the secrets: {error:#}");
            }
        }
    });
}

struct Teller {
    path: PathBuf,
    link: Link,
    /// By name: what it has, and since when that is known.
    told: HashMap<String, (u64, Instant)>,
    /// Why one was not told, so that it is logged once.
    said: HashMap<String, String>,
}

impl Teller {
    async fn look(&mut self) -> Result<()> {
        let file = ClusterDir::open(&self.path)?.file;
        if file.all_managers().len() < 2 {
            return Ok(()); // nobody to tell
        }
        let Some(secret) = file.secret.clone().filter(|_| file.secret_changes > 0) else { return Ok(()) };
        let MgrReply::Map(map) = self.link.manager(&MgrRequest::WaitMap { have: Epoch(0) }).await? else {
            bail!("unexpected answer from the manager to WaitMap");
        };
        let changes = file.secret_changes;
        let own: Vec<String> = file.own_managers().into_iter().map(|own| own.entry.name).collect();
        let knows = |name: &str| {
            self.told.get(name).is_some_and(|(has, since)| *has >= changes && since.elapsed() < AGAIN)
        };
        let others = map.managers.iter().filter(|one| !own.contains(&one.name) && !knows(&one.name));
        let others: Vec<_> = others.cloned().collect();
        if others.is_empty() {
            return Ok(());
        }
        let authorities = file.authorities()?.context("this machine has no secret of the cluster")?;
        let visitor = Visitor::new(authorities.believed().iter().map(Fingerprint::of).collect())?;
        let former = file.former_secret.clone();
        let said = Secrets { changes, secret, former }.write();
        for other in others {
            match tell_one(&visitor, &other.sockets(), &said).await {
                Ok(has) => {
                    self.said.remove(&other.name);
                    self.told.insert(other.name, (has, Instant::now()));
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    if self.said.insert(other.name.clone(), why.clone()).as_ref() != Some(&why) {
                        tracing::warn!("manager {} is not told of the secrets yet: {why}", other.name);
                    }
                }
            }
        }
        Ok(())
    }
}

/// How often those were changed that it has then.
async fn tell_one(visitor: &Visitor, addrs: &[SocketAddr], said: &[u8]) -> Result<u64> {
    let mut failed = None;
    for addr in addrs {
        match net::visit(visitor, *addr, said, PATIENCE).await {
            Ok(answer) => match frame::decode(&answer).context("decode its answer")? {
                SecretsReply::Has { changes } => return Ok(changes),
                SecretsReply::Refused { reason } => bail!("it refuses: {reason}"),
            },
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None => bail!("it has no address"),
    }
}
