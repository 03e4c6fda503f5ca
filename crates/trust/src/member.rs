//! What a certificate says of its holder.
//!
//! As text, in the certificate's only alternative name (a URI): `ropewalk:CLUSTER/ID/ROLES/NODES`, for instance
//! `ropewalk:00000000000000000000000000000007/5f1c.../server,client/3`. `*` for the nodes: any.

use std::fmt;

use base::{ClusterId, MemberId, NodeId};
use rustls::pki_types::CertificateDer;
use wire::hello::Role;

use crate::TrustError;

const SCHEME: &str = "ropewalk:";
/// Longest text that is read, bytes.
const LEN_MAX: usize = 4096;

/// All roles, with their names in certificates.
const NAMES: [(Role, &str); 5] = [
    (Role::Manager, "manager"),
    (Role::Server, "server"),
    (Role::Client, "client"),
    (Role::Admin, "admin"),
    (Role::Lab, "lab"),
];

/// A set of roles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roles(u8);

impl Roles {
    /// Every role there is.
    pub const ALL: Roles = Roles((1 << NAMES.len()) - 1);

    /// These.
    pub fn of(roles: &[Role]) -> Roles {
        Roles(roles.iter().fold(0, |set, role| set | 1 << *role as u8))
    }

    /// Whether it is one of them.
    pub fn contains(self, role: Role) -> bool {
        self.0 & 1 << role as u8 != 0
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            NAMES.iter().filter(|(role, _)| self.contains(*role)).map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// The nodes as which a member may speak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nodes {
    /// Whichever: a machine that has the secret.
    Any,
    /// These. A member that is no node, a client, speaks as node 0, which nobody is refused.
    These(Vec<NodeId>),
}

/// Who the holder of a certificate is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Its number, which stays the same when its certificate is renewed.
    pub id: MemberId,
    /// What it may be.
    pub roles: Roles,
    /// As which nodes it may speak.
    pub nodes: Nodes,
}

impl Member {
    /// Of a certificate that was verified already.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Member, TrustError> {
        let parsed = webpki::EndEntityCert::try_from(certificate).map_err(|_| TrustError::NoMember)?;
        let mut names = parsed.valid_uri_names();
        let member = names.next().and_then(Member::parse);
        member.filter(|_| names.next().is_none()).ok_or(TrustError::NoMember)
    }

    /// Whether it may say of itself that it is this.
    pub fn speaks_as(&self, cluster: ClusterId, role: Role, node: NodeId) -> bool {
        let node_is_its = match &self.nodes {
            Nodes::Any => true,
            Nodes::These(nodes) => node == NodeId(0) || nodes.contains(&node),
        };
        self.cluster == cluster && self.roles.contains(role) && node_is_its
    }

    /// From the text in a certificate; `None` for anything but what [`Member`]'s `Display` writes.
    pub fn parse(text: &str) -> Option<Member> {
        let mut parts = text.strip_prefix(SCHEME).filter(|_| text.len() <= LEN_MAX)?.split('/');
        let [cluster, id, roles, nodes] = std::array::from_fn(|_| parts.next());
        let role = |name: &str| NAMES.iter().find(|known| known.1 == name).map(|known| known.0);
        let roles: Option<Vec<Role>> = roles?.split(',').map(role).collect();
        let nodes = match nodes? {
            "*" => Nodes::Any,
            "" => Nodes::These(Vec::new()),
            list => {
                let nodes: Option<Vec<NodeId>> =
                    list.split(',').map(|n| n.parse().ok().map(NodeId)).collect();
                Nodes::These(nodes?)
            }
        };
        let member = Member {
            cluster: ClusterId(u128::from_str_radix(cluster?, 16).ok()?),
            id: u64::from_str_radix(id?, 16).ok().map(MemberId)?,
            roles: Roles::of(&roles?),
            nodes,
        };
        // One text for one member: what could be read otherwise as well is nobody.
        (parts.next().is_none() && member.to_string() == text).then_some(member)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{:032x}/{:016x}/{}/", self.cluster.0, self.id.0, self.roles)?;
        match &self.nodes {
            Nodes::Any => f.write_str("*"),
            Nodes::These(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
                f.write_str(&nodes.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(nodes: Nodes) -> Member {
        let roles = Roles::of(&[Role::Server, Role::Client]);
        Member { cluster: ClusterId(7), id: MemberId(0x5f), roles, nodes }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for nodes in [Nodes::Any, Nodes::These(vec![]), Nodes::These(vec![NodeId(3), NodeId(12)])] {
            let member = server(nodes);
            assert_eq!(Member::parse(&member.to_string()), Some(member));
        }
        let text = server(Nodes::These(vec![NodeId(3)])).to_string();
        assert_eq!(text, "ropewalk:00000000000000000000000000000007/000000000000005f/server,client/3");
        let wrong = [
            text.replace("ropewalk:", "https:"),
            text.replace("server,client", "client,server"),
            text.replace("server,client", "root"),
            text.replace("server,client", ""),
            text.replace("/3", "/03"),
            text.replace("/3", "/-3"),
            text.replace("/3", "/3,"),
            text.replace("/3", "/3/4"),
            text.replace("/3", ""),
            text.to_uppercase(),
            format!("{text},{}", "1,".repeat(LEN_MAX)),
            String::new(),
        ];
        for wrong in wrong {
            assert_eq!(Member::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_member_is_no_more_than_its_certificate_says() {
        let member = server(Nodes::These(vec![NodeId(3)]));
        let as_ = |role, node| member.speaks_as(ClusterId(7), role, NodeId(node));
        assert!(as_(Role::Server, 3) && as_(Role::Client, 0));
        assert!(!as_(Role::Server, 4) && !as_(Role::Manager, 3) && !as_(Role::Admin, 0));
        assert!(!member.speaks_as(ClusterId(8), Role::Server, NodeId(3)));
        assert!(server(Nodes::Any).speaks_as(ClusterId(7), Role::Server, NodeId(4)));
    }
}
