//! Machines that are invited to join, and join.
//!
//! Invariants: who has not shown the secret of a token that holds gets nothing and changes nothing; a token lets one machine in;
//! its use and the node that comes of it are one commit.

use base::{FsId, MemberId, NodeId};
use wire::{
    hello::Role,
    map::{Limits, ManagerEntry},
    mgr::{Admission, INVITED_FOR_MAX, MgrError},
};

use super::{
    Cluster, Step, StoreOp,
    nodes::{check_rack, check_word},
};
use crate::keys::{self, InvitationRecord, JoinedRecord, MemberRecord};

/// Most file systems that one member is limited to.
const LIMITED_TO_MAX: usize = 256;
/// Most invitations at a time.
const INVITED_MAX: usize = 4096;

fn no<T>(text: impl Into<String>) -> Result<T, MgrError> {
    Err(MgrError::Config(text.into()))
}

impl Cluster {
    /// A machine may join.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn invite(
        &mut self,
        token: u64,
        hash: [u8; 32],
        role: Role,
        expires: u64,
        now: u64,
        limits: &Limits,
        step: &mut Step,
    ) -> Result<(), MgrError> {
        if role == Role::Lab {
            return no(format!("nobody joins as {role:?}: server, client, admin or manager"));
        }
        if expires <= now || expires - now > INVITED_FOR_MAX {
            return no(format!("a token holds for 1 second to {} hours", INVITED_FOR_MAX / 3600));
        }
        if token == 0 || self.members.contains_key(&MemberId(token)) {
            return no("that number of a token is taken; make another one");
        }
        if *limits != Limits::default() && role != Role::Client {
            return no(format!("only clients are limited, not {role:?}"));
        }
        if limits.filesystems.len() > LIMITED_TO_MAX || !limits.filesystems.is_sorted_by(|a, b| a < b) {
            return no(format!(
                "a token is limited to at most {LIMITED_TO_MAX} file systems, by rising number"
            ));
        }
        if limits.squash.anonymous().is_some_and(|(uid, gid)| uid == 0 || gid == 0) {
            return no("squashed ones cannot act as user or group 0");
        }
        if limits.subtree.is_some() && limits.filesystems.len() != 1 {
            return no("a directory is of one file system: name it");
        }
        let known = |fs: &FsId| self.map.filesystems.iter().any(|there| there.id == *fs);
        if let Some(fs) = limits.filesystems.iter().find(|fs| !known(fs)) {
            return no(format!("there is no {fs}"));
        }
        let invitation = InvitationRecord { hash, role, expires, used: None };
        if let Some(there) = self.invited.get(&token) {
            let as_limited = self.map.limits_of(MemberId(token)).cloned().unwrap_or_default() == *limits;
            return if *there == invitation && as_limited {
                Ok(())
            } else {
                no("there is another token of that number")
            };
        }
        let gone: Vec<u64> =
            self.invited.iter().filter(|(_, i)| i.expires < now).map(|(id, _)| *id).collect();
        for token in gone {
            self.invited.remove(&token);
            step.store.push(StoreOp::Delete(keys::invitation_key(token)));
            if !self.members.contains_key(&MemberId(token)) {
                self.limit(MemberId(token), &Limits::default(), step);
            }
        }
        if self.invited.len() >= INVITED_MAX {
            return no(format!("{INVITED_MAX} tokens hold already; wait until some have expired"));
        }
        step.put(keys::invitation_key(token), &invitation);
        self.invited.insert(token, invitation);
        self.limit(MemberId(token), limits, step);
        Ok(())
    }

    /// The node of this name whose machine was shut out: it joins again as the same node, and its pdisks stay.
    fn node_left(&self, name: &str) -> Option<NodeId> {
        let there = self.map.nodes.iter().find(|node| node.name == name)?;
        self.is_left(there.id).then_some(there.id)
    }

    /// A machine joins; what it is, and its node. All that is wrong with a token sounds the same, but for who has its secret.
    pub(super) fn admit(
        &mut self,
        asked: &Admission,
        step: &mut Step,
    ) -> Result<(Role, Option<NodeId>), MgrError> {
        const AGAIN: &str = "make another one: ropewalk node token";
        let invitation = self.invited.get(&asked.token).filter(|there| there.hash == asked.hash);
        let Some(invitation) = invitation.cloned() else {
            return no(format!("there is no such token; {AGAIN}"));
        };
        if let Some(used) = &invitation.used {
            return match used.request == asked.request {
                true => Ok((invitation.role, used.node)),
                false => no(format!("the token has let another machine in already; {AGAIN}")),
            };
        }
        if invitation.expires <= asked.now {
            return no(format!("the token has expired; {AGAIN}"));
        }
        if !asked.rack.is_empty() {
            check_rack(&asked.rack)?;
        }
        check_word("machine", &asked.name)?;
        let node = match invitation.role {
            Role::Server => Some(match self.node_left(&asked.name) {
                Some(node) => {
                    self.set_node(node, None, Some(&asked.addrs), None, step)?;
                    node
                }
                None => {
                    let node = self.add_node(asked.name.clone(), &asked.addrs, step)?;
                    // Whose answer was lost has joined twice; the certificate that it does not have is nobody's.
                    self.revoke_node(node, step);
                    node
                }
            }),
            Role::Manager => {
                self.set_manager(
                    &ManagerEntry { name: asked.name.clone(), addrs: asked.addrs.clone() },
                    step,
                )?;
                None
            }
            _ => None,
        };
        // One that comes back stays in its rack unless it names another.
        if let Some(node) = node.filter(|_| !asked.rack.is_empty()) {
            self.put_rack(node, &asked.rack, step);
        }
        step.notes.push(format!(
            "machine {} has joined as {} (member {:016x})",
            asked.name.escape_debug(),
            format!("{:?}", invitation.role).to_lowercase(),
            asked.token
        ));
        let member = MemberRecord {
            name: asked.name.clone(),
            role: invitation.role,
            node,
            joined: asked.now,
            certified: asked.now,
            until: asked.until,
            authority: asked.authority,
            key: asked.key,
        };
        // A manager proves itself by the cluster's secret, as where the cluster was made.
        if invitation.role != Role::Manager {
            self.new_member(MemberId(asked.token), member, step);
        }
        let used = InvitationRecord {
            used: Some(JoinedRecord { request: asked.request, node }),
            ..invitation.clone()
        };
        step.put(keys::invitation_key(asked.token), &used);
        self.invited.insert(asked.token, used);
        Ok((invitation.role, node))
    }
}

#[cfg(test)]
mod tests {
    use wire::mgr::{MgrReply, MgrRequest};

    use super::*;
    use crate::cluster::stage::{NOBODY, Stage};

    const NOW: u64 = 1_900_000_000;

    fn invitation(token: u64, role: Role, expires: u64, limits: Limits) -> MgrRequest {
        MgrRequest::Invite { token, hash: [token as u8; 32], role, expires, now: NOW, limits }
    }

    fn invite(stage: &mut Stage, token: u64, role: Role, expires: u64) -> Result<(), String> {
        let request = invitation(token, role, expires, Limits::default());
        match stage.ask(NOBODY, request) {
            MgrReply::Done => Ok(()),
            MgrReply::Error(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn admission(token: u64, name: &str) -> Admission {
        let addrs = vec![format!("192.0.2.{token}:10")];
        Admission {
            token,
            hash: [token as u8; 32],
            request: [9; 32],
            name: name.into(),
            addrs,
            rack: String::new(),
            now: NOW + 1,
            until: NOW + 9,
            ..Admission::default()
        }
    }

    fn admit(stage: &mut Stage, asked: Admission) -> Result<(Role, Option<NodeId>), String> {
        match stage.ask(NOBODY, MgrRequest::Admit(Box::new(asked))) {
            MgrReply::Admitted { role, node } => Ok((role, node)),
            MgrReply::Error(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_lets_one_machine_in_also_after_a_restart() {
        let mut stage = Stage::running(4, "2+2p");
        invite(&mut stage, 1, Role::Server, NOW + 60).unwrap();
        invite(&mut stage, 2, Role::Client, NOW + 60).unwrap();
        stage.restart();
        let before = stage.cluster.map().clone();
        let wrong = [
            Admission { hash: [7; 32], ..admission(1, "n5") },
            Admission { token: 3, ..admission(1, "n5") },
            Admission { now: NOW + 60, ..admission(1, "n5") },
            Admission { name: "n1".into(), ..admission(1, "n5") },
            Admission { addrs: vec![], ..admission(1, "n5") },
        ];
        for wrong in wrong {
            admit(&mut stage, wrong.clone()).unwrap_err();
            assert_eq!(*stage.cluster.map(), before, "{wrong:?}");
        }
        assert_eq!(admit(&mut stage, admission(1, "n5")), Ok((Role::Server, Some(NodeId(5)))));
        assert_eq!(admit(&mut stage, admission(2, "laptop")), Ok((Role::Client, None)));
        stage.restart();
        // The answer was lost: the same machine hears it again, also later; another one hears nothing.
        let late = Admission { now: NOW + 600, ..admission(1, "n5") };
        assert_eq!(admit(&mut stage, late), Ok((Role::Server, Some(NodeId(5)))));
        let another = Admission { request: [8; 32], ..admission(1, "n6") };
        assert!(admit(&mut stage, another).unwrap_err().contains("another machine"));
        assert_eq!(stage.cluster.map().nodes.len(), 5);
    }

    #[test]
    fn a_machine_that_was_shut_out_joins_again_as_the_same_node() {
        let mut stage = Stage::running(4, "2+2p");
        (1..=3).for_each(|token| invite(&mut stage, token, Role::Server, NOW + 60).unwrap());
        assert_eq!(admit(&mut stage, admission(1, "n5")), Ok((Role::Server, Some(NodeId(5)))));
        let pdisk = MgrRequest::PdiskAdd {
            pdisk: base::PdiskId(9),
            name: "n5p1".into(),
            node: NodeId(5),
            capacity: 1 << 30,
            pools: vec![],
        };
        assert_eq!(stage.ask(NOBODY, pdisk), MgrReply::Done);
        assert!(admit(&mut stage, admission(2, "n5")).unwrap_err().contains("a node n5 already"));
        assert_eq!(stage.ask(NOBODY, MgrRequest::Revoke { member: MemberId(1) }), MgrReply::Done);
        // One from the beginning, which no machine has joined as, is nobody's to take.
        assert!(admit(&mut stage, admission(2, "n1")).unwrap_err().contains("a node n1 already"));
        assert_eq!(admit(&mut stage, admission(2, "n5")), Ok((Role::Server, Some(NodeId(5)))));
        let map = stage.cluster.map();
        assert_eq!(map.pdisk(base::PdiskId(9)).unwrap().nodes, [NodeId(5)]);
        assert_eq!(map.node(NodeId(5)).unwrap().addrs, ["192.0.2.2:10"]);
        assert!(admit(&mut stage, admission(3, "n5")).unwrap_err().contains("a node n5 already"));
    }

    #[test]
    fn tokens_have_an_end_and_are_forgotten_after_it() {
        let mut stage = Stage::running(4, "2+2p");
        for (role, expires) in [(Role::Lab, NOW + 60), (Role::Server, NOW)] {
            invite(&mut stage, 1, role, expires).unwrap_err();
        }
        invite(&mut stage, 1, Role::Server, NOW + INVITED_FOR_MAX + 1).unwrap_err();
        invite(&mut stage, 1, Role::Server, NOW + 1).unwrap();
        invite(&mut stage, 1, Role::Server, NOW + 1).unwrap();
        assert!(invite(&mut stage, 1, Role::Client, NOW + 1).unwrap_err().contains("another token"));
        let later = MgrRequest::Invite {
            token: 2,
            hash: [2; 32],
            role: Role::Admin,
            expires: NOW + 60,
            now: NOW + 2,
            limits: Limits::default(),
        };
        stage.ask(NOBODY, later);
        stage.restart();
        assert_eq!(stage.cluster.invited.keys().copied().collect::<Vec<_>>(), [2]);
    }
}
