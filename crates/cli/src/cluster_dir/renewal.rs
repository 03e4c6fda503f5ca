//! The certificate of a machine that has joined, renewed by its own key: in time while something of it runs, and at the next
//! command after it has ended.

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail};
use base::ClusterId;
use net::Identity;
use trust::{Fingerprint, Request, Visitor};
use wire::{
    frame,
    join::{VisitReply, VisitRequest},
};

use super::keys;

/// How long the manager may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often a process looks, at least: another one of this machine may have renewed it.
const LOOK: Duration = Duration::from_secs(3600);

/// A machine of a cluster.
#[derive(Clone)]
pub struct Machine {
    /// Its directory.
    pub path: PathBuf,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// The cluster's secret, where the cluster was made.
    pub secret: Option<String>,
    /// Where the manager is.
    pub manager: SocketAddr,
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What this machine proves itself by; renewed first if the certificate has ended.
pub fn identity(machine: &Machine) -> Result<Identity> {
    let identity = kept(machine)?;
    if identity.term().end > now() {
        return Ok(identity);
    }
    // Whoever asks may be in a runtime already, which must not be waited in.
    let renewed = std::thread::scope(|scope| {
        let renewing = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.context("start the runtime")?.block_on(renew(machine))
        });
        renewing.join().unwrap_or_else(|_| bail!("the renewal panicked"))
    });
    renewed.context("this machine's certificate has ended and must be renewed")
}

fn kept(machine: &Machine) -> Result<Identity> {
    keys::identity(&machine.path, machine.cluster, machine.secret.as_deref())
}

/// Has the manager sign this machine's key anew, and keeps what it gives.
async fn renew(machine: &Machine) -> Result<Identity> {
    let own = keys::Own::read(&machine.path)?;
    let asked = Request::of(&own.key).context("ask for a certificate")?;
    let asked = frame::encode(&VisitRequest::Renew { certificate: own.certificate, request: asked.request });
    let visitor = Visitor::new(Fingerprint::of(&own.authority.into()))?;
    let answer = net::visit(&visitor, machine.manager, &asked, PATIENCE).await?;
    match frame::decode(&answer).context("decode the manager's answer")? {
        VisitReply::Renewed { certificate } => keys::replace_certificate(&machine.path, &certificate)?,
        VisitReply::Refused { reason } => bail!("the manager refuses: {reason}"),
        VisitReply::Joined(_) => bail!("unexpected answer from the manager to Renew"),
    }
    kept(machine)
}

/// Keeps the certificate of a process fresh until it ends.
pub async fn keep(machine: Machine, endpoint: net::Endpoint) {
    // Who has the secret signs for itself, without end.
    let mut pause = Duration::ZERO;
    loop {
        let term = endpoint.identity().term();
        let due = Duration::from_secs(term.renew_at().saturating_sub(now()));
        tokio::time::sleep(due.min(LOOK).max(pause)).await;
        pause = Duration::ZERO;
        match look(&machine, &endpoint).await {
            Ok(()) => {}
            Err(error) => {
                let text = format!("{error:#}");
                base::events::raise(base::events::Severity::Warning, "certificate", "this machine", &text);
                tracing::warn!("the certificate is not renewed: {text}");
                pause = Duration::from_secs((term.life() / 30).clamp(1, LOOK.as_secs()));
            }
        }
    }
}

async fn look(machine: &Machine, endpoint: &net::Endpoint) -> Result<()> {
    let mut identity = kept(machine)?;
    if identity.term().renew_at() <= now() {
        identity = renew(machine).await?;
    }
    if identity.term() != endpoint.identity().term() {
        tracing::info!("the machine's certificate was renewed");
        endpoint.set_identity(identity)?;
    }
    Ok(())
}
