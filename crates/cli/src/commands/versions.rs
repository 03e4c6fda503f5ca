//! `ropewalk cluster version|finalize`: who runs which version, and the level of what is stored.

use anyhow::{Result, bail};
use serde::Serialize;
use wire::{
    hello::Role,
    mgr::{MgrReply, MgrRequest, VersionReport},
    version::Build,
};

use super::managers::{self, ManagerRow};
use crate::{
    args::{Dir, Listing},
    cluster_dir::ClusterDir,
    link::{self, Link},
    output::{self, begin_of},
};

/// Columns of a name.
const NAME_MAX: usize = 24;

#[derive(Serialize)]
struct Member {
    name: String,
    /// `manager`, `server` or `client`.
    role: &'static str,
    /// It has a session, or is a manager that answers.
    present: bool,
    /// Of the program; null: not known.
    version: Option<String>,
    /// The oldest and the newest version of the protocol that it speaks.
    protocols: Option<[u16; 2]>,
    /// What it speaks with the manager.
    spoken: Option<u16>,
    /// The oldest and the newest level that it knows.
    levels: Option<[u16; 2]>,
    /// It knows the level that `cluster finalize` would make the cluster's.
    ready: bool,
}

#[derive(Serialize)]
struct Versions {
    /// The cluster's.
    level: u16,
    /// What `cluster finalize` would make it.
    level_next: u16,
    members: Vec<Member>,
}

async fn report(dir: &ClusterDir) -> Result<Versions> {
    let link = Link::new(dir)?;
    match link.manager(&MgrRequest::Versions).await? {
        MgrReply::Versions(report) => Ok(versions(*report, managers::ask(dir, &link).await)),
        other => bail!("unexpected answer from the manager: {other:?}"),
    }
}

/// What the active manager says of nodes and clients, and each manager of itself.
fn versions(report: VersionReport, managers: Vec<ManagerRow>) -> Versions {
    let VersionReport { level, manager, members } = report;
    let level_next = level.max(manager.levels.greatest);
    let member = |name: String, role: Role, present: bool, build: Option<Build>| Member {
        name,
        role: match role {
            Role::Manager => "manager",
            Role::Server => "server",
            _ => "client",
        },
        present,
        version: build.map(|build| build.version()),
        protocols: build.map(|build| [build.protocols.least, build.protocols.greatest]),
        spoken: build.and_then(|build| build.protocols.common(manager.protocols)).filter(|_| present),
        levels: build.map(|build| [build.levels.least, build.levels.greatest]),
        ready: present && build.is_some_and(|build| build.levels.contains(level_next)),
    };
    // Who leads has answered as `manager`. The only one does, also if it does not answer a second time; of several that are just changing
    // over it may be any, so all of them count as others.
    let mut leading = managers.iter().filter(|row| managers.len() == 1 || row.active == Some(true));
    let leader = leading
        .next()
        .filter(|row| leading.next().is_none() && row.build.is_none_or(|build| build == manager));
    let first = leader.map_or("manager", |row| &row.name);
    let first = member(first.to_owned(), Role::Manager, true, Some(manager));
    let standbys =
        managers.iter().filter(|row| leader.is_none_or(|leader| leader.name != row.name)).map(|row| {
            let standby = member(row.name.clone(), Role::Manager, row.active.is_some(), row.build);
            // It follows the journal, and asks the active one for nothing.
            Member { spoken: None, ..standby }
        });
    let others = members.into_iter().map(|m| member(m.name, m.role, m.session.is_some(), m.build));
    Versions { level, level_next, members: [first].into_iter().chain(standbys).chain(others).collect() }
}

impl Versions {
    /// What stands against the next level: managers that follow, of which the active one does not know. One that has an older program
    /// could not read what is written then.
    fn standbys_against(&self) -> Vec<String> {
        let standbys = self.members.iter().filter(|member| member.role == "manager").skip(1);
        standbys
            .filter(|standby| !standby.ready)
            .map(|Member { name, version, present, .. }| match version {
                _ if !present => format!(
                    "manager {name} does not answer; start it with this version, or take it out (`ropewalk manager remove {name}`)"
                ),
                None => format!("manager {name} does not say what it runs; upgrade it"),
                Some(version) => {
                    format!("manager {name} runs ropewalk {version}, which does not know that level; upgrade it")
                }
            })
            .collect()
    }
}

/// `ropewalk cluster version`.
pub fn version(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let versions = link::run(report(&dir))?;
    if listing.json {
        return output::json(&versions);
    }
    let span = |span: Option<[u16; 2]>| match span {
        Some([least, greatest]) if least == greatest => least.to_string(),
        Some([least, greatest]) => format!("{least} to {greatest}"),
        None => "-".to_owned(),
    };
    let row = |member: &Member| {
        vec![
            begin_of(&member.name, NAME_MAX),
            member.role.to_owned(),
            member.version.clone().unwrap_or("-".to_owned()),
            span(member.protocols),
            member.spoken.map_or("-".to_owned(), |spoken| spoken.to_string()),
            span(member.levels),
            if member.present { "present" } else { "down" }.to_owned(),
        ]
    };
    let head = ["NAME", "ROLE", "VERSION", "PROTOCOLS", "SPOKEN", "LEVELS", "STATE"];
    output::table(&head, versions.members.iter().map(row).collect());
    let Versions { level, level_next, members } = &versions;
    let waiting = members.iter().filter(|member| !member.ready).count();
    output::line(match (level_next > level, waiting) {
        (false, _) => format!("\nthe cluster is at level {level}"),
        (true, 0) => {
            format!("\nthe cluster is at level {level}; `ropewalk cluster finalize` makes it {level_next}")
        }
        (true, n) => {
            format!("\nthe cluster is at level {level}; {n} of these are not ready for {level_next}")
        }
    });
    Ok(())
}

/// `ropewalk cluster finalize`.
pub fn finalize(dir: &Dir) -> Result<()> {
    let dir = dir.open()?;
    let (before, level) = link::run(async {
        let before = report(&dir).await?;
        if before.level_next == before.level {
            return Ok((before.level, before.level));
        }
        let against = before.standbys_against();
        if !against.is_empty() {
            bail!("level {} is not for all: {}", before.level_next, against.join("; "));
        }
        Link::new(&dir)?.manager(&MgrRequest::Finalize).await?;
        Ok((before.level, report(&dir).await?.level))
    })?;
    output::line(if before == level {
        format!("the cluster is at level {level} already, the newest that its manager knows")
    } else {
        format!(
            "the cluster is at level {level}; versions of ropewalk that do not know it are refused from now on"
        )
    });
    Ok(())
}
