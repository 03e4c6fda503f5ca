//! `ropewalk node members|revoke`: machines that have joined.

use anyhow::{Result, bail};
use base::{FsId, MemberId};
use serde::Serialize;
use wire::{
    credentials::Squash,
    map::ClusterMap,
    mgr::{MemberInfo, MgrReply, MgrRequest},
};

use crate::{
    args::{Listing, MemberName},
    cluster_dir::renewal::now,
    link::{self, Link},
    output,
};

const DAY: u64 = 24 * 3600;

#[derive(Serialize)]
struct MemberRow {
    name: String,
    /// 16 hexadecimal digits.
    member: String,
    role: String,
    /// Its node, if it is a server: what that is called now; null once it is removed.
    node: Option<String>,
    /// Seconds since 1970.
    joined_s: u64,
    /// When its certificate ends, seconds since 1970.
    certified_until_s: u64,
    /// `member`, `expired` or `revoked`.
    state: &'static str,
    /// File systems that it may mount; empty: all.
    filesystems: Vec<String>,
    read_only: bool,
    /// The directory that it is bound to, as it was called when the token was made.
    subtree: Option<String>,
    #[serde(flatten)]
    squash: SquashRow,
}

/// Whom the programs of a machine act as.
#[derive(Serialize)]
pub struct SquashRow {
    /// `none`, `root` or `all`.
    squash: &'static str,
    /// User that squashed ones act as.
    anon_uid: Option<u32>,
    /// Their group.
    anon_gid: Option<u32>,
}

impl From<Squash> for SquashRow {
    fn from(squash: Squash) -> SquashRow {
        let (anon_uid, anon_gid) = squash.anonymous().unzip();
        let squash = match squash {
            Squash::None => "none",
            Squash::Root { .. } => "root",
            Squash::All { .. } => "all",
        };
        SquashRow { squash, anon_uid, anon_gid }
    }
}

fn number(member: &MemberInfo) -> String {
    format!("{:016x}", member.id.0)
}

fn row(member: &MemberInfo, map: &ClusterMap, now: u64) -> MemberRow {
    let named = |id: &FsId| {
        let fs = map.filesystems.iter().find(|fs| fs.id == *id);
        fs.map_or_else(|| format!("{id} (removed)"), |fs| fs.name.clone())
    };
    MemberRow {
        name: member.name.clone(),
        member: number(member),
        role: format!("{:?}", member.role).to_lowercase(),
        node: member.node.and_then(|node| Some(map.node(node)?.name.clone())),
        joined_s: member.joined,
        certified_until_s: member.until,
        state: match member.revoked {
            true => "revoked",
            false if member.until <= now => "expired",
            false => "member",
        },
        filesystems: member.limits.filesystems.iter().map(named).collect(),
        read_only: member.limits.read_only,
        subtree: member.limits.subtree.as_ref().map(|subtree| subtree.path.clone()),
        squash: member.limits.squash.into(),
    }
}

/// What is to be said of a member whose certificate should have been renewed: it ends within three weeks, and a sixth of its
/// life, where its machine asks for another one when a third is left.
pub fn overdue(member: &MemberInfo, now: u64) -> Option<String> {
    let (left, life) = (member.until.saturating_sub(now), member.until.saturating_sub(member.certified));
    if member.revoked || left > (21 * DAY).min(life / 6) {
        return None;
    }
    let name = &member.name;
    Some(match left {
        0 => format!(
            "the certificate of machine {name} has ended; it is renewed when a process or command of the cluster starts there. \
             If the machine is gone for good: ropewalk node revoke {}",
            number(member)
        ),
        _ => format!(
            "the certificate of machine {name} ends in {} h and was not renewed; start what it runs (`ropewalk up --detach`), \
             or look at its events",
            left / 3600
        ),
    })
}

/// Who has joined.
pub async fn members(link: &Link) -> Result<Vec<MemberInfo>> {
    match link.manager(&MgrRequest::Members).await? {
        MgrReply::Members(members) => Ok(members),
        other => bail!("unexpected answer from the manager to Members: {other:?}"),
    }
}

/// What its role lets it do, and its token.
fn may(row: &MemberRow) -> String {
    let what = if row.read_only { "read" } else { "all" };
    let of = match row.filesystems.is_empty() {
        true => what.to_owned(),
        false => {
            let subtree = row.subtree.as_deref().unwrap_or_default();
            let slash = if subtree.is_empty() || subtree.starts_with('/') { "" } else { "/" };
            output::begin_of(&format!("{what} of {}{slash}{subtree}", row.filesystems.join(",")), 24)
        }
    };
    match row.squash {
        SquashRow { squash, anon_uid: Some(uid), anon_gid: Some(gid) } => {
            let whom = if squash == "all" { "everybody" } else { squash };
            format!("{of}; {whom} as {uid}:{gid}")
        }
        _ => of,
    }
}

/// `ropewalk node members`.
pub fn list(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let (members, map) = link::run(async {
        let link = Link::new(&dir)?;
        Ok((members(&link).await?, link.cluster().await?.map))
    })?;
    let now = now();
    let rows: Vec<MemberRow> = members.iter().map(|member| row(member, &map, now)).collect();
    if listing.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::line("no machine has joined; `ropewalk node token` makes a token for one");
        return Ok(());
    }
    let span = |from: u64, to: u64| match to.saturating_sub(from) {
        seconds @ 0..7200 => format!("{} min", seconds / 60),
        seconds if seconds < 2 * DAY => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / DAY),
    };
    let cells = |row: &MemberRow| {
        vec![
            output::begin_of(&row.name, 24),
            row.member.clone(),
            row.role.clone(),
            row.node.as_deref().map_or_else(|| "-".to_owned(), |node| output::begin_of(node, 24)),
            row.state.to_owned(),
            format!("{} ago", span(row.joined_s, now)),
            format!("for {}", span(now, row.certified_until_s)),
            may(row),
        ]
    };
    let head = ["MACHINE", "MEMBER", "ROLE", "NODE", "STATE", "JOINED", "CERTIFIED", "MAY"];
    output::table(&head, rows.iter().map(cells).collect());
    Ok(())
}

/// `ropewalk node revoke`.
pub fn revoke(args: &MemberName) -> Result<()> {
    let dir = args.dir.open()?;
    let (name, node) = link::run(async {
        let link = Link::new(&dir)?;
        let members = members(&link).await?;
        let mut node = None;
        let (id, name) = match find(&members, &args.member) {
            Ok(member) => {
                node = member.node;
                (member.id, format!("{} ({})", member.name, number(member)))
            }
            // One that joined after the dump that the manager's store was restored from is not in the list.
            Err(error) => {
                let digits = Some(&args.member).filter(|text| text.len() == 16);
                let id = digits.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or(error)?;
                (MemberId(id), args.member.clone())
            }
        };
        link.manager(&MgrRequest::Revoke { member: id }).await?;
        let map = link.cluster().await?.map;
        Ok((name, node.and_then(|node| Some(map.node(node)?.name.clone()))))
    })?;
    output::line(format!("{name} is shut out; to come back it joins with a new token"));
    if let Some(node) = node {
        output::line(format!(
            "what node {node} holds counts as lost until then: `ropewalk health`. If it does not come back: `ropewalk pdisk fail` \
             each of its pdisks, then `ropewalk node remove {node}`"
        ));
    }
    Ok(())
}

/// The one of this name or number.
fn find<'a>(members: &'a [MemberInfo], name: &str) -> Result<&'a MemberInfo> {
    if let Some(member) = members.iter().find(|member| number(member) == name) {
        return Ok(member);
    }
    // A machine that was shut out may have joined again.
    let named = || members.iter().filter(|member| member.name == name);
    let mut live = named().filter(|member| !member.revoked);
    match (live.next().or_else(|| named().next()), live.next()) {
        (Some(member), None) => Ok(member),
        (Some(_), Some(_)) => {
            let numbers: Vec<String> = named().map(number).collect();
            bail!("several machines are called {name}; name one by its number: {}", numbers.join(", "))
        }
        (None, _) => bail!("no machine {name} has joined; `ropewalk node members` shows which have"),
    }
}

#[cfg(test)]
mod tests {
    use net::Role;

    use super::*;

    #[test]
    fn who_lets_its_certificate_run_out_is_named() {
        let of = |revoked| MemberInfo {
            id: MemberId(7),
            name: "laptop".into(),
            role: Role::Client,
            node: None,
            joined: 0,
            certified: 1000 * DAY,
            until: 1365 * DAY,
            revoked,
            limits: Default::default(),
            authority: [1; 32],
        };
        let said = |day: u64| overdue(&of(false), day * DAY);
        assert_eq!((said(1000), said(1300)), (None, None));
        assert!(said(1345).unwrap().contains("ends in 480 h"));
        assert!(said(1365).unwrap().contains("0000000000000007") && said(9999).is_some());
        assert_eq!(overdue(&of(true), 1365 * DAY), None);
    }

    #[test]
    fn a_machine_is_found_by_name_or_number_and_never_guessed() {
        let member = |id, name: &str, revoked| MemberInfo {
            id: MemberId(id),
            name: name.into(),
            role: Role::Client,
            node: None,
            joined: 1,
            certified: 1,
            until: 2,
            revoked,
            limits: Default::default(),
            authority: [1; 32],
        };
        let all = [member(1, "a", true), member(2, "a", false), member(3, "b", true), member(4, "c", false)];
        let both = [&all[..], &[member(5, "c", false)]].concat();
        assert_eq!(find(&all, "a").unwrap().id, MemberId(2));
        assert_eq!(find(&all, "b").unwrap().id, MemberId(3));
        assert_eq!(find(&all, "0000000000000001").unwrap().id, MemberId(1));
        assert!(find(&all, "d").unwrap_err().to_string().contains("node members"));
        assert!(find(&both, "c").unwrap_err().to_string().contains("0000000000000005"));
    }
}
