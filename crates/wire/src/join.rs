//! How a machine joins a cluster, and has its certificate renewed: what it says to the manager without one, and what it hears.

use base::{CipherList, ClusterId, NodeId};
use serde::{Deserialize, Serialize};

use crate::{hello::Role, map::ManagerEntry};

/// A machine that has a token asks to be let in. It has seen by then that it speaks to the manager of the token's cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token's number.
    pub token: u64,
    /// The token's secret.
    pub secret: [u8; 32],
    /// What the node is to be called; for clients a name for people.
    pub name: String,
    /// "ip:port" of its server; none for clients.
    pub addrs: Vec<String>,
    /// The rack that its server is in; empty: none that is known.
    pub rack: String,
    /// Its key to be signed: a request as PKCS #10 has it.
    pub request: Vec<u8>,
}

/// What a visitor asks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum VisitRequest {
    /// To be let in.
    Join(JoinRequest),
    /// Another certificate for a machine that has joined, also if its own has ended.
    Renew {
        /// Its own.
        certificate: Vec<u8>,
        /// The same key to be signed: a request as PKCS #10 has it.
        request: Vec<u8>,
    },
}

/// The manager's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VisitReply {
    /// It is a member.
    Joined(Box<Joined>),
    /// It is not; for a person.
    Refused {
        /// Why, and what helps.
        reason: String,
    },
    /// The new certificate.
    Renewed(Box<Signed>),
    /// This manager is not the active one: another one is to be asked.
    NotActive,
}

/// A certificate, and what goes with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Signed {
    /// It.
    pub certificate: Vec<u8>,
    /// What is shown behind it: while the cluster's authority is exchanged, that of the newest by the one before.
    pub behind: Vec<Vec<u8>>,
    /// The authorities to believe, the newest first; two while one is exchanged.
    pub authorities: Vec<Vec<u8>>,
}

/// What a new member needs to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its name.
    pub name: String,
    /// What the machine is.
    pub role: Role,
    /// Its node, if it is a server.
    pub node: Option<NodeId>,
    /// The certificate of its key.
    pub signed: Signed,
    /// How connections are protected, where the cluster's tunable says nothing.
    pub cipher_list: CipherList,
    /// Those that there are by now, where there can be several.
    pub managers: Vec<ManagerEntry>,
    /// What one more manager needs; none for others.
    pub manager: Option<ManagerKeys>,
}

/// What makes a machine a manager of its cluster: as such it signs certificates, and has the journal. Whoever has it owns the data.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerKeys {
    /// What the authority's key is made from, as `cluster.toml` has it.
    pub secret: String,
    /// The one before, while it is exchanged.
    pub former_secret: Option<String>,
    /// Where the journal is, as the text of `cluster.toml`.
    pub etcd: String,
}

/// Not shown, whatever it is.
impl std::fmt::Debug for ManagerKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ManagerKeys")
    }
}
