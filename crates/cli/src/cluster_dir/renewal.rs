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
use trust::{Authorities, Fingerprint, Member, Request, Visitor};
use wire::{
    frame,
    join::{VisitReply, VisitRequest},
};

use super::keys;

/// How long the manager may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// A machine of a cluster.
pub struct Machine {
    /// Its directory.
    pub path: PathBuf,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// The cluster's authorities, where the cluster was made.
    pub authorities: Option<Authorities>,
    /// Where managers are.
    pub managers: Vec<SocketAddr>,
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

/// The same, whether the certificate holds or not.
pub fn kept(machine: &Machine) -> Result<Identity> {
    keys::identity(&machine.path, machine.cluster, machine.authorities.as_ref())
}

/// The first answer of a manager that is active; that none is, if none of those that answer is.
async fn ask(visitor: &Visitor, managers: &[SocketAddr], asked: &[u8]) -> Result<VisitReply> {
    let mut outcome = Err(anyhow::anyhow!("no manager is known"));
    for &manager in managers {
        match net::visit(visitor, manager, asked, PATIENCE).await {
            Ok(answer) => match frame::decode(&answer).context("decode the manager's answer")? {
                VisitReply::NotActive => outcome = Ok(VisitReply::NotActive),
                answer => return Ok(answer),
            },
            Err(error) if outcome.is_err() => outcome = Err(error.into()),
            Err(_) => {}
        }
    }
    outcome
}

/// Has the manager sign this machine's key anew, and keeps what it gives.
pub async fn renew(machine: &Machine) -> Result<Identity> {
    let keys::Own { key, signed: former } = keys::Own::read(&machine.path)?;
    let asked = Request::of(&key).context("ask for a certificate")?;
    let member = Member::of(&former.certificate.as_slice().into())?;
    let asked =
        frame::encode(&VisitRequest::Renew { certificate: former.certificate, request: asked.request });
    let known = former.authorities.iter().map(|one| Fingerprint::of(&one.as_slice().into()));
    let visitor = Visitor::new(known.collect())?;
    let signed = match ask(&visitor, &machine.managers, &asked).await? {
        VisitReply::Renewed(signed) => *signed,
        VisitReply::Refused { reason } => bail!("the manager refuses: {reason}"),
        VisitReply::NotActive => bail!("no manager that answers is active"),
        VisitReply::Joined(_) => bail!("unexpected answer from the manager to Renew"),
    };
    // What would not be believed must not take the place of what is.
    let own = keys::Own { key, signed };
    let identity = own.identity().context("the certificate that the manager gave")?;
    if *identity.member() != member || !identity.term().holds(now()) {
        bail!(
            "the certificate that the manager gave is not for this machine and time; are the clocks of both right?"
        );
    }
    keys::replace(&machine.path, &own.signed)?;
    Ok(identity)
}
