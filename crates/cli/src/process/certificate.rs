//! Keeps what a process proves itself by fresh until it ends.
//!
//! Of a machine that has joined: its certificate is renewed by its own key in time, and at once when the manager has another
//! authority, or believes another one no more, than this machine knows of. Of the machine where the cluster was made: its
//! processes sign for themselves, and follow the secrets in `cluster.toml`. What another process or a command of the machine has
//! changed is taken over. A failure is told, tried again, and changes nothing: the certificate that is there goes on.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use base::beat;
use net::{Endpoint, Identity};
use wire::mgr::{AuthorityReport, MgrReply, MgrRequest};

use crate::{
    cluster_dir::{
        ClusterDir,
        renewal::{self, now},
    },
    link::Link,
};

/// How often it is looked. A revocation, and an exchange of the authority, are in effect everywhere within seconds.
const LOOK: Duration = Duration::from_secs(1);
/// Every so many looks the manager is asked.
const ASK_EVERY: u32 = 3;
/// Longest pause after the renewal has failed.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Which authorities the manager believes.
pub async fn authorities(link: &Link) -> Result<AuthorityReport> {
    match link.manager(&MgrRequest::Authorities).await? {
        MgrReply::Authorities(report) => Ok(*report),
        other => bail!("unexpected answer from the manager to Authorities: {other:?}"),
    }
}

/// Keeps `endpoint`'s in a task of its own.
pub fn follow(dir: &ClusterDir, endpoint: &Endpoint) {
    let follower = Follower {
        path: dir.path.clone(),
        link: Link::over(endpoint, &dir.managers),
        endpoint: endpoint.clone(),
        seen: Vec::new(),
        has_secret: dir.file.secret.is_some(),
        looks: 0,
        not_before: Instant::now(),
        pause: LOOK,
    };
    tokio::spawn(follower.run());
}

struct Follower {
    path: PathBuf,
    link: Link,
    endpoint: Endpoint,
    /// The files as they were read last.
    seen: Vec<Option<(u64, i64, i64)>>,
    has_secret: bool,
    looks: u32,
    /// The next renewal, after one that failed.
    not_before: Instant,
    pause: Duration,
}

/// What changes when a file is replaced.
fn stamps(dir: &Path) -> Vec<Option<(u64, i64, i64)>> {
    let of = |name: &str| fs::metadata(dir.join(name)).ok().map(|m| (m.ino(), m.mtime(), m.mtime_nsec()));
    ["cluster.toml", "keys/machine.crt", "keys/authority.crt"].map(of).to_vec()
}

impl Follower {
    async fn run(mut self) {
        loop {
            tokio::time::sleep_until(beat::by(Instant::now(), LOOK).into()).await;
            match self.look().await {
                Ok(()) => {}
                Err(error) => {
                    self.not_before = Instant::now() + self.pause;
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                    let text = format!("the certificate is not renewed: {error:#}");
                    base::events::raise(
                        base::events::Severity::Warning,
                        "certificate",
                        "this machine",
                        &text,
                    );
                    tracing::warn!("{text}");
                }
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        if Instant::now() < self.not_before {
            return Ok(());
        }
        let stamps = stamps(&self.path);
        if stamps != self.seen {
            let dir = ClusterDir::open(&self.path)?;
            self.has_secret = dir.file.secret.is_some();
            self.adopt(renewal::kept(&dir.machine()?)?)?;
            self.seen = stamps;
        }
        if !self.has_secret && (self.is_due() || self.is_behind().await) {
            let machine = ClusterDir::open(&self.path)?.machine()?;
            self.adopt(renewal::renew(&machine).await?)?;
        }
        self.pause = LOOK;
        Ok(())
    }

    fn is_due(&self) -> bool {
        let term = self.endpoint.identity().term();
        term.renew_at() <= now() || !term.holds(now())
    }

    /// Whether the manager believes other authorities, or has another certificate on record. One that does not answer says nothing.
    async fn is_behind(&mut self) -> bool {
        self.looks += 1;
        if !self.looks.is_multiple_of(ASK_EVERY) {
            return false;
        }
        let Ok(report) = authorities(&self.link).await else { return false };
        let own = self.endpoint.identity();
        let Some(newest) = report.believed.first() else { return false };
        let same = own.believed().iter().map(|one| &one.0).eq(&report.believed);
        !same || report.own.as_ref() != Some(newest)
    }

    fn adopt(&self, identity: Identity) -> Result<()> {
        let own = self.endpoint.identity();
        let what = |of: &Identity| (of.term(), of.signer(), of.believed().to_vec());
        if what(&own) == what(&identity) {
            return Ok(());
        }
        self.endpoint.set_identity(identity)?;
        tracing::info!("this process has another certificate now");
        Ok(())
    }
}
