//! Machines that have joined: until when their certificates hold, and which are worth nothing any more.
//!
//! Invariant: who is revoked stays so, and has no session. The map tells every process who that is: who has that version asks
//! a revoked server nothing. The server itself has a lease until that runs out, and who has an older version may still be answered
//! by it: until then its pdisks count, and no other server registers in its place.

use base::{MemberId, NodeId};
use wire::{
    map::{LimitedMember, Limits},
    mgr::{MemberInfo, MgrError, Recertified},
};

use super::{Cluster, Step, StoreOp};
use crate::keys::{self, MemberRecord};

fn no<T>(text: String) -> Result<T, MgrError> {
    Err(MgrError::Config(text))
}

impl Cluster {
    /// A machine has joined.
    pub(super) fn new_member(&mut self, id: MemberId, record: MemberRecord, step: &mut Step) {
        step.put(keys::member_key(id), &record);
        self.members.insert(id, record);
    }

    /// Who has joined, by rising number.
    pub(super) fn member_list(&self) -> Vec<MemberInfo> {
        let info = |(&id, record): (&MemberId, &MemberRecord)| {
            let MemberRecord { name, role, node, joined, certified, until, authority, key: _ } =
                record.clone();
            let limits = self.map.limits_of(id).cloned().unwrap_or_default();
            let revoked = self.is_revoked(id);
            MemberInfo { id, name, role, node, joined, certified, until, revoked, limits, authority }
        };
        self.members.iter().map(info).collect()
    }

    /// What a member may do from now on: told before anybody is one, and never changed while it is.
    pub(super) fn limit(&mut self, member: MemberId, limits: &Limits, step: &mut Step) {
        let at = self.map.limited.binary_search_by_key(&member, |limited| limited.member);
        match at {
            Ok(at) if *limits == Limits::default() => {
                self.map.limited.remove(at);
                step.store.push(StoreOp::Delete(keys::limits_key(member)));
            }
            Err(at) if *limits != Limits::default() => {
                self.map.limited.insert(at, LimitedMember { member, limits: limits.clone() });
                step.put(keys::limits_key(member), limits);
            }
            _ => return,
        }
        self.bump();
    }

    pub(super) fn is_revoked(&self, id: MemberId) -> bool {
        self.map.revoked.binary_search(&id).is_ok()
    }

    /// A member's certificate, which says what it is, is renewed. One that joined after the dump that the store was restored
    /// from is on record again by that. While the authority is exchanged others may have its key, and sign what they like: what it
    /// has signed is renewed only as the record has it.
    pub(super) fn renew_member(
        &mut self,
        id: MemberId,
        what: Recertified,
        step: &mut Step,
    ) -> Result<(), MgrError> {
        if self.is_revoked(id) {
            return no("the machine's certificate has been revoked; it joins with a new token (`ropewalk node token`, \
                       `ropewalk join`)"
                .to_owned());
        }
        let Recertified { role, node, now, until, authority, key, of_former } = what;
        if let Some(node) = node.filter(|node| self.map.node(*node).is_none()) {
            return no(format!("{node} has been removed from the cluster"));
        }
        let name = || node.map_or_else(|| format!("{:016x}", id.0), |node| self.node_name(node));
        let record = self.members.get(&id).cloned();
        let is_its = |there: &MemberRecord| {
            (there.role, there.node) == (role, node)
                && (there.key == key || !of_former && there.key == [0; 32])
        };
        if !record.as_ref().map_or(!of_former, is_its) {
            return no("that is not the certificate which the machine joined with; it joins with a new token (`ropewalk node \
                       token`, `ropewalk join`)"
                .to_owned());
        }
        let record = record.unwrap_or_else(|| MemberRecord {
            name: name(),
            role,
            node,
            joined: now,
            certified: 0,
            until: 0,
            authority,
            key,
        });
        self.new_member(id, MemberRecord { certified: now, until, authority, key, ..record }, step);
        Ok(())
    }

    /// A member's certificate is worth nothing any more.
    pub(super) fn revoke(&mut self, id: MemberId, step: &mut Step) -> Result<(), MgrError> {
        if id == MemberId(0) {
            return no("who has the cluster's secret cannot be shut out".to_owned());
        }
        let Err(at) = self.map.revoked.binary_search(&id) else { return Ok(()) };
        let name = self.members.get(&id).map_or("unknown", |record| &record.name);
        step.notes.push(format!("the certificate of machine {name} (member {:016x}) is revoked", id.0));
        self.map.revoked.insert(at, id);
        self.bump();
        let its = self.map.clients.iter().filter(|client| client.member == id);
        for session in its.map(|client| client.session).collect::<Vec<_>>() {
            self.end_uncleanly(session, step);
        }
        for open in self.opens.extract_if(.., |open| open.member == id) {
            step.refuse(open.ticket, MgrError::NoSession);
        }
        if let Some(node) = self.members.get(&id).and_then(|record| record.node).filter(|&n| self.is_left(n))
        {
            let until = self.end_server(node, "is shut out", step);
            self.leases_left.extend(until.map(|until| (node, until)));
        }
        Ok(())
    }

    /// Whether a node's machine has joined and was shut out, and no other has come in its place.
    pub(super) fn is_left(&self, node: NodeId) -> bool {
        let mut its = self.members.iter().filter(|(_, record)| record.node == Some(node)).peekable();
        its.peek().is_some() && its.all(|(&id, _)| self.is_revoked(id))
    }

    /// The machine of a node is a member no longer.
    pub(super) fn revoke_node(&mut self, node: NodeId, step: &mut Step) {
        let its = self.members.iter().filter(|(_, record)| record.node == Some(node));
        for id in its.map(|(&id, _)| id).collect::<Vec<_>>() {
            // It is known.
            let _ = self.revoke(id, step);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::{
        hello::Role,
        mgr::{Admission, MgrReply, MgrRequest},
    };

    use base::FsId;

    use super::*;
    use crate::cluster::stage::{NOBODY, Stage};

    const NOW: u64 = 1_900_000_000;

    fn joined(stage: &mut Stage, token: u64, role: Role) -> MemberId {
        let hash = [token as u8; 32];
        let limits = Limits::default();
        stage.ask(NOBODY, MgrRequest::Invite { token, hash, role, expires: NOW + 60, now: NOW, limits });
        let (name, addrs) = (format!("m{token}"), vec![format!("192.0.2.{token}:10")]);
        let (authority, key) = ([1; 32], [token as u8; 32]);
        let (now, until) = (NOW, NOW + 900);
        let request = [9; 32];
        let asked = Admission {
            token,
            hash,
            request,
            name,
            addrs,
            now,
            until,
            authority,
            key,
            ..Admission::default()
        };
        let reply = stage.ask(NOBODY, MgrRequest::Admit(Box::new(asked)));
        assert!(matches!(reply, MgrReply::Admitted { .. }), "{reply:?}");
        MemberId(token)
    }

    fn renewed(member: MemberId, role: Role) -> Recertified {
        let (authority, key) = ([2; 32], [member.0 as u8; 32]);
        Recertified { role, node: None, now: NOW, until: NOW + 5000, authority, key, of_former: false }
    }

    fn revoked(stage: &mut Stage) -> Vec<bool> {
        match stage.ask(NOBODY, MgrRequest::Members) {
            MgrReply::Members(members) => members.iter().map(|member| member.revoked).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_is_revoked_is_fenced_and_does_not_come_back() {
        let mut stage = Stage::running(4, "2+2p");
        let (laptop, other) = (joined(&mut stage, 5, Role::Client), joined(&mut stage, 6, Role::Client));
        stage.asker = laptop;
        let ticket = stage.open(1, None);
        let (its, ..) = stage.opened(ticket);
        stage.asker = MemberId(0);
        let map = stage.cluster.map();
        assert!(map.is_session_of(its, laptop, None) && !map.is_session_of(its, other, None));
        assert_eq!(stage.ask(NOBODY, MgrRequest::Revoke { member: laptop }), MgrReply::Done);
        let map = stage.cluster.map();
        assert_eq!((map.clients.len(), map.revoked.clone()), (0, vec![laptop]));
        assert!(!map.has_session(its) && !map.is_session_of(its, laptop, None));
        // It stays so: asked again, renewed, after a restart.
        assert_eq!(stage.ask(NOBODY, MgrRequest::Revoke { member: laptop }), MgrReply::Done);
        let renew = |member: MemberId| MgrRequest::Recertify { member, what: renewed(member, Role::Client) };
        let again = stage.ask(NOBODY, renew(laptop));
        assert!(matches!(&again, MgrReply::Error(MgrError::Config(text)) if text.contains("revoked")));
        assert_eq!(stage.ask(NOBODY, renew(other)), MgrReply::Done);
        stage.restart();
        assert_eq!(revoked(&mut stage), [true, false]);
        assert_eq!(stage.cluster.members[&other].until, NOW + 5000);
        // As after a restore: one that is not on record is renewed, and can be shut out.
        assert_eq!(stage.ask(NOBODY, renew(MemberId(77))), MgrReply::Done);
        assert_eq!(revoked(&mut stage), [true, false, false]);
        assert_eq!(stage.ask(NOBODY, MgrRequest::Revoke { member: MemberId(78) }), MgrReply::Done);
        for wrong in [MgrRequest::Revoke { member: MemberId(0) }, renew(MemberId(78))] {
            assert!(matches!(stage.ask(NOBODY, wrong.clone()), MgrReply::Error(_)), "{wrong:?}");
        }
        // It opens no session, though its connection may still stand.
        stage.asker = MemberId(78);
        stage.open(2, None);
        assert!(stage.cluster.map().clients.is_empty());
    }

    /// Who has the key of an authority that is exchanged can sign whatever it likes: nothing of that is renewed.
    #[test]
    fn what_a_former_authority_has_signed_is_renewed_only_as_it_is_on_record() {
        let mut stage = Stage::running(4, "2+2p");
        let (server, laptop) = (joined(&mut stage, 5, Role::Server), joined(&mut stage, 6, Role::Client));
        let mut ask = |member, what| stage.ask(NOBODY, MgrRequest::Recertify { member, what });
        let good = Recertified { of_former: true, ..renewed(laptop, Role::Client) };
        for (member, wrong) in [
            (laptop, Recertified { role: Role::Admin, ..good }),
            (laptop, Recertified { key: [7; 32], ..good }),
            (laptop, Recertified { key: [7; 32], of_former: false, ..good }),
            (laptop, Recertified { role: Role::Server, node: Some(NodeId(5)), ..good }),
            (server, Recertified { of_former: true, ..renewed(server, Role::Client) }),
            (MemberId(77), Recertified { of_former: true, ..renewed(MemberId(77), Role::Client) }),
        ] {
            let reply = ask(member, wrong);
            assert!(matches!(&reply, MgrReply::Error(MgrError::Config(text)) if text.contains("new token")));
        }
        assert_eq!(ask(laptop, good), MgrReply::Done);
        stage.restart();
        let own = |stage: &mut Stage, member| {
            stage.asker = member;
            match stage.ask(NOBODY, MgrRequest::Authorities) {
                MgrReply::Authorities(report) => report.own,
                other => panic!("{other:?}"),
            }
        };
        let all = [server, laptop, MemberId(0)].map(|member| own(&mut stage, member));
        assert_eq!(all, [Some([1; 32]), Some([2; 32]), None]);
    }

    /// A server that is shut out is there no more at once; its pdisks are gone when its lease is over, and not before is another there.
    #[test]
    fn a_server_that_is_shut_out_is_gone_at_once() {
        let mut stage = Stage::running(4, "2+2p");
        let machine = joined(&mut stage, 5, Role::Server);
        let begin = MgrRequest::RegisterServer {
            node: NodeId(5),
            process: Default::default(),
            addrs: vec!["192.0.2.5:10".into()],
            pdisks: vec![],
        };
        let reply = stage.ask(NOBODY, begin.clone());
        let MgrReply::Registered { session, .. } = reply else { panic!("{reply:?}") };
        let add = MgrRequest::PdiskAdd {
            pdisk: base::PdiskId(9),
            name: "m5p1".into(),
            node: NodeId(5),
            capacity: 1 << 30,
            pools: vec![],
        };
        assert_eq!(stage.ask(NOBODY, add), MgrReply::Done);
        assert_eq!(stage.ask(NOBODY, MgrRequest::Revoke { member: machine }), MgrReply::Done);
        let map = stage.cluster.map();
        assert_eq!(map.node(NodeId(5)).map(|node| node.session), Some(None));
        let renew = MgrRequest::Renew { epoch: map.epoch, pdisks: vec![] };
        assert_eq!(stage.ask(session, renew), MgrReply::Error(MgrError::NoSession));
        stage.asker = machine;
        assert_eq!(stage.ask(NOBODY, begin), MgrReply::Error(MgrError::NoSession));
        stage.asker = MemberId(0);
        // Another machine in its place, by its name: the same node.
        let hash = [6; 32];
        let (limits, role) = (Limits::default(), Role::Server);
        let invite = MgrRequest::Invite { token: 6, hash, role, expires: NOW + 60, now: NOW, limits };
        assert_eq!(stage.ask(NOBODY, invite), MgrReply::Done);
        let (name, addrs) = ("m5".into(), vec!["192.0.2.6:10".into()]);
        let asked =
            Admission { token: 6, hash, name, addrs, now: NOW, until: NOW + 900, ..Admission::default() };
        let reply = stage.ask(NOBODY, MgrRequest::Admit(Box::new(asked)));
        assert!(matches!(reply, MgrReply::Admitted { node: Some(NodeId(5)), .. }), "{reply:?}");
        let begin = MgrRequest::RegisterServer {
            node: NodeId(5),
            process: Default::default(),
            addrs: vec!["192.0.2.6:10".into()],
            pdisks: vec![],
        };
        assert_eq!(stage.ask(NOBODY, begin.clone()), MgrReply::Error(MgrError::NoSession));
        stage.pass(60);
        let reply = stage.ask(NOBODY, begin);
        assert!(matches!(reply, MgrReply::Registered { .. }), "{reply:?}");
        // Whoever of the former ones is shut out once more takes nothing from it.
        assert!(!stage.cluster.is_left(NodeId(5)));
    }

    /// The answer was lost: the machine joins with another token, and the certificate that it has not got is worth nothing.
    #[test]
    fn who_joins_twice_is_one_member() {
        let mut stage = Stage::running(4, "2+2p");
        joined(&mut stage, 5, Role::Server);
        let hash = [6; 32];
        let (limits, role) = (Limits::default(), Role::Server);
        let invite = MgrRequest::Invite { token: 6, hash, role, expires: NOW + 60, now: NOW, limits };
        assert_eq!(stage.ask(NOBODY, invite), MgrReply::Done);
        let (name, addrs) = ("m5".into(), vec!["192.0.2.5:10".into()]);
        let asked =
            Admission { token: 6, hash, name, addrs, now: NOW, until: NOW + 900, ..Admission::default() };
        let reply = stage.ask(NOBODY, MgrRequest::Admit(Box::new(asked)));
        assert!(matches!(reply, MgrReply::Admitted { node: Some(NodeId(5)), .. }), "{reply:?}");
        assert_eq!(revoked(&mut stage), [true, false]);
    }

    #[test]
    fn a_node_that_is_removed_takes_its_machine_along() {
        let mut stage = Stage::running(4, "2+2p");
        joined(&mut stage, 5, Role::Server);
        assert_eq!(stage.ask(NOBODY, MgrRequest::NodeRemove { node: NodeId(5) }), MgrReply::Done);
        assert_eq!(revoked(&mut stage), [true]);
    }

    #[test]
    fn a_client_may_do_what_its_token_says_and_waits_for_those_who_resolve() {
        let mut stage = Stage::running(4, "2+2p");
        let limits = |filesystems: &[u32], read_only| Limits {
            filesystems: filesystems.iter().copied().map(FsId).collect(),
            read_only,
            ..Limits::default()
        };
        let invite = |stage: &mut Stage, token: u64, role, limits: Limits| {
            let hash = [token as u8; 32];
            stage.ask(NOBODY, MgrRequest::Invite { token, hash, role, expires: NOW + 60, now: NOW, limits })
        };
        for (role, wrong) in [
            (Role::Server, limits(&[1], false)),
            (Role::Admin, limits(&[], true)),
            (Role::Client, limits(&[9], false)),
            (Role::Client, limits(&[1, 1], false)),
        ] {
            let reply = invite(&mut stage, 4, role, wrong.clone());
            assert!(matches!(reply, MgrReply::Error(MgrError::Config(_))), "{wrong:?}: {reply:?}");
        }
        assert!(stage.cluster.map().limited.is_empty());
        let made = stage.ask(
            NOBODY,
            crate::cluster::Ask::MakeFs {
                name: "fs2".into(),
                pool: base::PoolId(1),
                now: Default::default(),
            },
        );
        assert_eq!(made, MgrReply::Done);
        for (token, its) in [(5, limits(&[1], true)), (6, limits(&[2], false)), (7, limits(&[1, 2], true))] {
            assert_eq!(invite(&mut stage, token, Role::Client, its.clone()), MgrReply::Done);
            assert_eq!(invite(&mut stage, token, Role::Client, its), MgrReply::Done);
            let other = invite(&mut stage, token, Role::Client, limits(&[], false));
            assert!(matches!(other, MgrReply::Error(_)), "a token is not widened: {other:?}");
        }
        let admit = |stage: &mut Stage, token: u64| {
            let (hash, name) = ([token as u8; 32], format!("m{token}"));
            let asked = Admission { token, hash, name, now: NOW, until: NOW + 900, ..Admission::default() };
            stage.ask(NOBODY, MgrRequest::Admit(Box::new(asked)))
        };
        (5..7).for_each(|token| assert!(matches!(admit(&mut stage, token), MgrReply::Admitted { .. })));
        // A token that nobody used is forgotten with its limits.
        let hash = [8; 32];
        let late = NOW + 61;
        let request = MgrRequest::Invite {
            token: 8,
            hash,
            role: Role::Client,
            expires: late + 60,
            now: late,
            limits: limits(&[], false),
        };
        assert_eq!(stage.ask(NOBODY, request), MgrReply::Done);
        stage.restart();
        stage.renew_all();
        let limited: Vec<u64> = stage.cluster.map().limited.iter().map(|limited| limited.member.0).collect();
        assert_eq!(limited, [5, 6]);
        let MgrReply::Members(members) = stage.ask(NOBODY, MgrRequest::Members) else { panic!() };
        assert_eq!(members[0].limits, limits(&[1], true));

        // One for another file system does not come in.
        stage.asker = MemberId(6);
        let ticket = stage.open(60, None);
        assert!(matches!(stage.replies.remove(&ticket), Some(MgrReply::Error(MgrError::Config(_)))));
        // One that only reads waits until what a writer left is resolved by somebody else.
        stage.asker = MemberId(0);
        let ticket = stage.open(1, None);
        let (writer, ..) = stage.opened(ticket);
        assert_eq!(stage.ask(NOBODY, MgrRequest::Detach { session: writer }), MgrReply::Done);
        stage.renew_all();
        stage.asker = MemberId(5);
        let waiting = stage.open(50, None);
        stage.pass_without(&[], 2);
        assert!(!stage.replies.contains_key(&waiting), "it waits for who resolves");
        stage.asker = MemberId(0);
        let ticket = stage.open(2, None);
        let (resolver, _, resolve) = stage.opened(ticket);
        assert!(resolve);
        assert_eq!(stage.ask(resolver, MgrRequest::ResolveDone), MgrReply::Done);
        assert_eq!(stage.ask(resolver, MgrRequest::CloseSession), MgrReply::Done);
        stage.pass_without(&[], 2);
        let (_, _, resolve) = stage.opened(waiting);
        assert!(!resolve);
    }
}
