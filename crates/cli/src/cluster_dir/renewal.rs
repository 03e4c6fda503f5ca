//! The certificate of a machine that has joined, renewed by its own key: in time while something of it runs, and at the next
//! command after it has ended.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail};
use base::ClusterId;
use net::Identity;
use trust::{Fingerprint, Member, Request, Visitor};
use wire::{
    frame,
    join::{VisitReply, VisitRequest},
};

use super::{addrs::Addrs, keys};

/// How long the manager may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often a process looks: another one of this machine may have renewed it, and the machine may have slept.
const LOOK: Duration = Duration::from_secs(60);

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
    pub manager: Addrs,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What this machine proves itself by; renewed first if the certificate does not hold.
pub fn identity(machine: &Machine) -> Result<Identity> {
    let identity = kept(machine)?;
    if identity.term().holds(now()) {
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
    renewed.context(
        "this machine's certificate does not hold (it has ended, or a clock is wrong) and must be renewed",
    )
}

fn kept(machine: &Machine) -> Result<Identity> {
    keys::identity(&machine.path, machine.cluster, machine.secret.as_deref())
}

/// Has the manager sign this machine's key anew, and keeps what it gives.
async fn renew(machine: &Machine) -> Result<Identity> {
    let keys::Own { key, certificate, authority } = keys::Own::read(&machine.path)?;
    let asked = Request::of(&key).context("ask for a certificate")?;
    let former = Member::of(&certificate.as_slice().into())?;
    let asked = frame::encode(&VisitRequest::Renew { certificate, request: asked.request });
    let visitor = Visitor::new(Fingerprint::of(&authority.as_slice().into()))?;
    let mut answer = net::visit(&visitor, machine.manager.main(), &asked, PATIENCE).await;
    for &other in &machine.manager[1..] {
        if answer.is_err() {
            answer = net::visit(&visitor, other, &asked, PATIENCE).await;
        }
    }
    let answer = answer?;
    let new = match frame::decode(&answer).context("decode the manager's answer")? {
        VisitReply::Renewed { certificate } => certificate,
        VisitReply::Refused { reason } => bail!("the manager refuses: {reason}"),
        VisitReply::Joined(_) => bail!("unexpected answer from the manager to Renew"),
    };
    // What would not be believed must not take the place of what is.
    let identity = Identity::new(key, new.clone().into(), vec![authority.into()])
        .context("the certificate that the manager gave")?;
    if *identity.member() != former || !identity.term().holds(now()) {
        bail!(
            "the certificate that the manager gave is not for this machine and time; are the clocks of both right?"
        );
    }
    keys::replace_certificate(&machine.path, &new)?;
    Ok(identity)
}

/// Keeps the certificate of a process fresh until it ends.
pub async fn keep(machine: Machine, endpoint: net::Endpoint) {
    if machine.secret.is_some() {
        return; // it signs for itself, without end
    }
    loop {
        let term = endpoint.identity().term();
        // Whatever the clocks say, not again at once.
        let least = Duration::from_secs((term.life() / 30).clamp(1, LOOK.as_secs()));
        let due = Duration::from_secs(term.renew_at().saturating_sub(now()));
        tokio::time::sleep(due.clamp(least, LOOK)).await;
        if let Err(error) = look(&machine, &endpoint).await {
            let text = format!("the certificate is not renewed: {error:#}");
            base::events::raise(base::events::Severity::Warning, "certificate", "this machine", &text);
            tracing::warn!("{text}");
        }
    }
}

async fn look(machine: &Machine, endpoint: &net::Endpoint) -> Result<()> {
    let mut identity = kept(machine)?;
    if identity.term().renew_at() <= now() || !identity.term().holds(now()) {
        identity = renew(machine).await?;
    }
    if identity.term() != endpoint.identity().term() {
        endpoint.set_identity(identity)?;
        tracing::info!("the machine's certificate was renewed");
    }
    Ok(())
}
