//! Who runs which build, and the level of the cluster: in which ways it may store things.
//!
//! A level is raised once, by an administrator (`finalize`), when every node and every client runs a build that knows it. From
//! then on who does not is refused when it begins a session, so nothing meets what it cannot read. Sessions are known by the
//! builds of those who renewed them last; what a manager has not heard yet counts against raising the level.

use base::{NodeId, SessionId};
use wire::{
    hello::Role,
    mgr::{MemberVersion, MgrError, VersionReport},
    version::{Build, LEVEL_BUILDS_KEPT},
};

use super::{Cluster, Question, Step, StoreOp};
use crate::keys::{self, BuildRecord};

impl Cluster {
    /// Whether a build may have a session. One that does not know the cluster's level is refused, and events tell. Who is
    /// revoked may not, though its connection may stand for another moment.
    pub(super) fn admits(&self, question: &Question, who: impl FnOnce() -> String, step: &mut Step) -> bool {
        if self.map.revoked.binary_search(&question.member).is_ok() {
            step.refuse(question.ticket, MgrError::NoSession);
            return false;
        }
        let level = self.map.level;
        let Some(Err(reason)) = question.build.map(|build| build.check_level(level)) else { return true };
        let text = format!("{} cannot be part of the cluster: {reason}", who());
        step.notes.push(text.clone());
        step.refuse(question.ticket, MgrError::Config(text));
        false
    }

    /// How people call a node.
    pub(super) fn node_name(&self, id: NodeId) -> String {
        self.map.node(id).map_or_else(|| id.to_string(), |node| node.name.clone())
    }

    /// Somebody with a session has spoken.
    pub(super) fn hear(&mut self, session: SessionId, build: Option<Build>, step: &mut Step) {
        let Some(build) = build else { return };
        if self.builds.sessions.insert(session, build) == Some(build) {
            return;
        }
        let Cluster { builds, servers, clients, .. } = self;
        builds.sessions.retain(|session, _| {
            clients.contains_key(session) || servers.values().any(|server| server.session == *session)
        });
        if let Some((&node, _)) = self.servers.iter().find(|(_, server)| server.session == session) {
            self.keep_build(node, build, step);
        }
    }

    fn keep_build(&mut self, node: NodeId, build: Build, step: &mut Step) {
        if self.map.level >= LEVEL_BUILDS_KEPT && self.builds.nodes.insert(node, build) != Some(build) {
            step.put(keys::build_key(node), &BuildRecord { build });
        }
    }

    /// A node is removed.
    pub(super) fn forget_build(&mut self, node: NodeId, step: &mut Step) {
        if self.builds.nodes.remove(&node).is_some() {
            step.store.push(StoreOp::Delete(keys::build_key(node)));
        }
    }

    /// Who runs what.
    pub(super) fn version_report(&self) -> VersionReport {
        let of = |session: Option<SessionId>| session.and_then(|s| self.builds.sessions.get(&s)).copied();
        let nodes = self.map.nodes.iter().map(|node| MemberVersion {
            role: Role::Server,
            name: node.name.clone(),
            session: node.session,
            build: of(node.session).or_else(|| self.builds.nodes.get(&node.id).copied()),
        });
        let clients = self.clients.iter().map(|(&session, client)| MemberVersion {
            role: Role::Client,
            name: format!("{} on {}", client.record.mount, client.record.process.host),
            session: Some(session),
            build: of(Some(session)),
        });
        let members = nodes.chain(clients).collect();
        VersionReport { level: self.map.level, manager: Build::own(), members }
    }

    /// The newest level that the manager knows is the cluster's from now on.
    pub(super) fn finalize(&mut self, step: &mut Step) -> Result<(), MgrError> {
        let level = Build::own().levels.greatest;
        if level <= self.map.level {
            return Ok(());
        }
        if !self.opens.is_empty() {
            return Err(MgrError::Config("a mount is just beginning; try again".to_owned()));
        }
        let against: Vec<String> =
            self.version_report().members.iter().filter_map(|member| against(member, level)).collect();
        if !against.is_empty() {
            return Err(MgrError::Config(format!("level {level} is not for all: {}", against.join("; "))));
        }
        let Some(format) = &mut self.builds.format else {
            return Err(MgrError::Config("the store does not say what it is".to_owned()));
        };
        format.version = level.into();
        step.put(keys::format_key(), format);
        step.notes.push(format!("the cluster is at level {level} now, no more at {}", self.map.level));
        self.bump();
        self.map.level = level;
        let sessions = self.servers.iter().map(|(&node, server)| (node, server.session));
        let builds: Vec<(NodeId, Build)> = sessions
            .filter_map(|(node, session)| Some((node, *self.builds.sessions.get(&session)?)))
            .collect();
        builds.into_iter().for_each(|(node, build)| self.keep_build(node, build, step));
        Ok(())
    }
}

/// Why a member stands against a level, with the remedy.
fn against(member: &MemberVersion, level: u16) -> Option<String> {
    let name = &member.name;
    match (member.session, member.build) {
        (None, _) => Some(format!(
            "{name} is not there; start it with this version, or take it out (`ropewalk node remove {name}`)"
        )),
        (Some(_), None) => Some(format!("{name} has not said yet what it runs; try again in some seconds")),
        (Some(_), Some(build)) if build.levels.contains(level) => None,
        (Some(_), Some(build)) => {
            let known = build.levels;
            Some(format!("{name} runs {build}, which knows levels {known}; upgrade it"))
        }
    }
}
