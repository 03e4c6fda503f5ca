//! In the manager's process: machines that show a token are let in. Who has not shown the secret of one that holds hears why
//! not, and nothing of the cluster.

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result};
use net::{Role, Secret};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use trust::{Authority, Member, Nodes, Roles, Token};
use wire::{
    frame,
    join::{JoinReply, JoinRequest, Joined},
    mgr::{Admission, MgrReply, MgrRequest},
};

use crate::{
    args::CipherList,
    cluster_dir::{ClusterDir, ClusterFile},
};

/// How long the manager may take to let a machine in.
const PATIENCE: Duration = Duration::from_secs(10);
/// Visitors that are answered at a time.
const AT_A_TIME: usize = 4;
/// A certificate holds for ten years: nothing renews one yet.
const LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What signs.
pub struct Door {
    authority: Authority,
    file: ClusterFile,
    manager: manager::Manager,
    /// Few at a time: each costs a signature before it is known whether it may.
    places: Semaphore,
}

impl Door {
    /// Of this cluster, whose secret is here.
    pub fn new(dir: &ClusterDir, manager: &manager::Manager) -> Result<Door> {
        let secret = dir.file.secret.as_deref().and_then(Secret::from_hex);
        let secret = secret.context("the manager's machine needs the secret in cluster.toml")?;
        let authority = Authority::from_secret(dir.file.cluster_id()?, &secret)?;
        Ok(Door {
            authority,
            file: dir.file.clone(),
            manager: manager.clone(),
            places: Semaphore::new(AT_A_TIME),
        })
    }

    /// Answers a visitor.
    pub async fn answer(&self, from: SocketAddr, said: &[u8]) -> Vec<u8> {
        let _place = self.places.acquire().await;
        let (name, reply) = match frame::decode::<JoinRequest>(said) {
            Ok(request) => (request.name.clone(), self.join(request).await),
            Err(_) => (String::new(), Err("that is no request to join".to_owned())),
        };
        let reply = match reply {
            Ok(joined) => {
                tracing::info!("{name:?} at {from} has joined as {:?}", joined.role);
                JoinReply::Joined(Box::new(joined))
            }
            Err(reason) => {
                tracing::warn!("a machine at {from} is not let in: {reason}");
                JoinReply::Refused { reason }
            }
        };
        frame::encode(&reply)
    }

    async fn join(&self, asked: JoinRequest) -> Result<Joined, String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let admission = Admission {
            token: asked.token,
            hash: Token::hash(&asked.secret),
            request: Sha256::digest(&asked.request).into(),
            name: asked.name,
            addrs: asked.addrs,
            now,
        };
        // A request that cannot be signed must not use up the token.
        let cluster = self.file.cluster_id().map_err(|e| e.to_string())?;
        let nobody = Member { cluster, id: 0, roles: Roles::default(), nodes: Nodes::These(Vec::new()) };
        let sign = |member: &Member| {
            self.authority.sign_request(member, &asked.request, LIFE).map_err(|e| e.to_string())
        };
        sign(&nobody)?;
        let caller = manager::Caller {
            session: base::SessionId(0),
            expires: (Instant::now() + PATIENCE).into(),
            build: None,
        };
        let (role, node) = match self.manager.handle(caller, MgrRequest::Admit(Box::new(admission))).await {
            MgrReply::Admitted { role, node } => (role, node),
            MgrReply::Error(error) => return Err(error.to_string()),
            other => return Err(format!("unexpected answer to Admit: {other:?}")),
        };
        let roles = match role {
            Role::Server => Roles::of(&[Role::Server, Role::Client]),
            Role::Admin => Roles::of(&[Role::Admin, Role::Client]),
            role => Roles::of(&[role]),
        };
        let nodes = Nodes::These(node.into_iter().collect());
        let certificate = sign(&Member { cluster, id: asked.token, roles, nodes })?.to_vec();
        Ok(Joined {
            cluster,
            name: self.file.name.clone(),
            role,
            node,
            certificate,
            authority: self.authority.certificate().to_vec(),
            clear: self.file.cipher_list == CipherList::Empty,
        })
    }
}
