//! In the manager's process: machines that show a token are let in, and those that have joined get their certificates renewed.
//! Who has not shown the secret of a token that holds, or the key of a certificate, hears why not, and nothing of the cluster.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use base::{MemberId, SessionId};
use net::Role;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use trust::{Authorities, CertificateDer, Member, Nodes, Renewed, Roles, Token};
use wire::{
    frame,
    join::{JoinRequest, Joined, ManagerKeys, Signed, VisitReply, VisitRequest},
    mgr::{Admission, MgrReply, MgrRequest, Recertified},
};

use crate::cluster_dir::{ClusterDir, ClusterFile, EtcdFile, Secrets, SecretsReply, renewal::now};

/// How long the manager may take to let a machine in.
const PATIENCE: Duration = Duration::from_secs(10);
/// Visitors that are answered at a time.
const AT_A_TIME: usize = 4;

/// What signs.
pub struct Door {
    /// The secrets are read for each visitor: they may be exchanged.
    path: PathBuf,
    /// None as long as another one is active.
    manager: OnceLock<manager::Manager>,
    /// It has made way for another one.
    closed: AtomicBool,
    /// Few at a time: each costs a signature before it is known whether it may.
    places: Semaphore,
}

impl Door {
    /// Of this cluster, whose secret is here.
    pub fn new(dir: &ClusterDir) -> Door {
        Door {
            path: dir.path.clone(),
            manager: OnceLock::new(),
            closed: AtomicBool::new(false),
            places: Semaphore::new(AT_A_TIME),
        }
    }

    /// This manager is active from now on.
    pub fn open_for(&self, manager: &manager::Manager) {
        let _ = self.manager.set(manager.clone()); // once in the life of a process
    }

    /// This manager has made way: visitors ask another one.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    fn open(&self) -> Result<(ClusterFile, Authorities)> {
        let file = ClusterDir::open(&self.path)?.file;
        let authorities =
            file.authorities()?.context("the manager's machine needs the secret in cluster.toml")?;
        Ok((file, authorities))
    }

    /// Answers a visitor.
    pub async fn answer(&self, from: SocketAddr, said: &[u8]) -> Vec<u8> {
        let place = tokio::time::timeout(PATIENCE, self.places.acquire()).await;
        if let (Ok(_place), Some(told)) = (&place, Secrets::read(said)) {
            let reply = self.secrets(told).await.unwrap_or_else(|reason| {
                tracing::warn!("secrets from {from} are not taken: {reason}");
                SecretsReply::Refused { reason }
            });
            return frame::encode(&reply);
        }
        let reply = match (place, frame::decode::<VisitRequest>(said)) {
            (Err(_), _) => Err("the manager is busy with others; try again".to_owned()),
            (Ok(_), Ok(_)) if self.manager.get().is_none() || self.closed.load(SeqCst) => {
                Ok(VisitReply::NotActive)
            }
            (Ok(_place), Ok(VisitRequest::Join(request))) => self.join(from, request).await,
            (Ok(_place), Ok(VisitRequest::Renew { certificate, request })) => {
                self.renew(from, certificate, &request).await
            }
            (Ok(_place), Err(_)) => Err("that is no request to join".to_owned()),
        };
        let reply = reply.unwrap_or_else(|reason| {
            tracing::warn!("a machine at {from} is refused: {reason}");
            VisitReply::Refused { reason }
        });
        frame::encode(&reply)
    }

    /// Another manager's machine tells of an exchange.
    async fn secrets(&self, told: Secrets) -> Result<SecretsReply, String> {
        let path = self.path.clone();
        let taking = tokio::task::spawn_blocking(move || ClusterDir::take_secrets(&path, &told));
        let changes = taking.await.map_err(|e| e.to_string())?.map_err(|e| format!("{e:#}"))?;
        Ok(SecretsReply::Has { changes })
    }

    fn active(&self) -> Result<&manager::Manager, String> {
        self.manager.get().ok_or_else(|| "this manager is not active".to_owned())
    }

    /// For how long the next certificate holds.
    fn life(&self) -> Result<Duration, String> {
        Ok(self.active()?.tunables().map_err(|e| e.to_string())?.certificate_life())
    }

    /// Asks the manager, in nobody's session.
    async fn ask(&self, request: MgrRequest) -> Result<MgrReply, String> {
        let expires = (Instant::now() + PATIENCE).into();
        let caller = manager::Caller { session: SessionId(0), member: MemberId(0), expires, build: None };
        match self.active()?.handle(caller, request).await {
            MgrReply::Error(error) => Err(error.to_string()),
            reply => Ok(reply),
        }
    }

    /// A machine that has joined wants another certificate.
    async fn renew(
        &self,
        from: SocketAddr,
        certificate: Vec<u8>,
        request: &[u8],
    ) -> Result<VisitReply, String> {
        let (now, life) = (now(), self.life()?);
        let (_, authorities) = self.open().map_err(|e| format!("{e:#}"))?;
        let renewed = authorities.renew(&certificate.into(), request, life).map_err(|e| e.to_string())?;
        let Renewed { member, certificate, key, of_former } = renewed;
        let known = [Role::Server, Role::Admin, Role::Client];
        let role = known.into_iter().find(|role| member.roles == roles_of(*role));
        let role = role.ok_or("a certificate of no role that joins")?;
        let node = match &member.nodes {
            Nodes::These(nodes) if nodes.len() <= 1 => nodes.first().copied(),
            // No machine that joined has such a one.
            _ => return Err("a certificate for several nodes, or for any, is not renewed".to_owned()),
        };
        let authority = authorities.newest().fingerprint().0;
        let what = Recertified { role, node, now, until: now + life.as_secs(), authority, key, of_former };
        self.ask(MgrRequest::Recertify { member: member.id, what }).await?;
        tracing::info!("the certificate of {member} at {from} is renewed");
        Ok(VisitReply::Renewed(Box::new(with(&authorities, certificate.to_vec()))))
    }

    async fn join(&self, from: SocketAddr, asked: JoinRequest) -> Result<VisitReply, String> {
        let (now, life) = (now(), self.life()?);
        let (file, authorities) = self.open().map_err(|e| format!("{e:#}"))?;
        // A request that cannot be signed must not use up the token.
        let cluster = file.cluster_id().map_err(|e| e.to_string())?;
        let nobody =
            Member { cluster, id: MemberId(0), roles: Roles::default(), nodes: Nodes::These(Vec::new()) };
        let sign = |member: &Member| {
            let signed = authorities.newest().sign_request(member, &asked.request, life);
            signed.map_err(|e| e.to_string())
        };
        let key = trust::key_of(&sign(&nobody)?).map_err(|e| e.to_string())?;
        let name = asked.name.clone();
        let keys = manager_keys(&file)?;
        let admission = Admission {
            token: asked.token,
            hash: Token::hash(&asked.secret),
            request: Sha256::digest(&asked.request).into(),
            name: asked.name.clone(),
            addrs: asked.addrs.clone(),
            rack: asked.rack.clone(),
            now,
            until: now + life.as_secs(),
            authority: authorities.newest().fingerprint().0,
            key,
        };
        let (role, node) = match self.ask(MgrRequest::Admit(Box::new(admission))).await? {
            MgrReply::Admitted { role, node } => (role, node),
            other => return Err(format!("unexpected answer to Admit: {other:?}")),
        };
        let nodes = Nodes::These(node.into_iter().collect());
        let member = Member { cluster, id: MemberId(asked.token), roles: roles_of(role), nodes };
        let certificate = sign(&member)?.to_vec();
        tracing::info!("{name:?} at {from} has joined as {role:?}");
        Ok(VisitReply::Joined(Box::new(Joined {
            cluster,
            name: file.name.clone(),
            role,
            node,
            signed: with(&authorities, certificate),
            cipher_list: file.cipher_list,
            managers: self.active()?.map().borrow().managers.clone(),
            manager: keys.filter(|_| role == Role::Manager),
        })))
    }
}

/// What one more manager needs. Where the journal is a file it keeps a copy, and needs no way to etcd.
fn manager_keys(file: &ClusterFile) -> Result<Option<ManagerKeys>, String> {
    let Some(secret) = &file.secret else { return Ok(None) };
    // Members of its own this machine runs alone.
    let etcd = file.etcd.clone().map(|etcd| EtcdFile { members: Vec::new(), ..etcd });
    let etcd = etcd.map_or(Ok(String::new()), |etcd| toml::to_string(&etcd)).map_err(|e| e.to_string())?;
    Ok(Some(ManagerKeys { secret: secret.clone(), former_secret: file.former_secret.clone(), etcd }))
}

/// What the certificate of a machine says that has joined as `role`.
fn roles_of(role: Role) -> Roles {
    match role {
        Role::Server => Roles::of(&[Role::Server, Role::Client]),
        Role::Admin => Roles::of(&[Role::Admin, Role::Client]),
        role => Roles::of(&[role]),
    }
}

/// A certificate with what its holder needs beside it.
fn with(authorities: &Authorities, certificate: Vec<u8>) -> Signed {
    let bytes = |all: &[CertificateDer<'_>]| all.iter().map(|one| one.to_vec()).collect();
    Signed { certificate, behind: bytes(authorities.behind()), authorities: bytes(&authorities.believed()) }
}
