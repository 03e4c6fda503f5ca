//! `ropewalk cluster authority show|renew|finish`: the authority of a cluster is exchanged while everything runs.
//!
//! The state of an exchange is `former_secret` in `cluster.toml` of the active manager's machine, written whole or not at all: renew
//! puts it there, finish takes it away, each in one step. All processes follow that by themselves (`process/certificate.rs`), also
//! after a restart, and managers on other machines are told (`process/secrets.rs`). So a command that is interrupted has done it or
//! has not, and may be given again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base::{MemberId, NodeId};
use net::Role;
use serde::Serialize;
use trust::Fingerprint;
use wire::{
    admin::AdminRequest,
    map::ClusterMap,
    mgr::{AuthorityReport, MemberInfo, MgrRequest},
};

use super::{ask::Census, managers, members};
use crate::{
    args::{AuthorityFinish, Dir, Listing},
    cluster_dir::{ClusterDir, make},
    interrupt,
    link::{self, Link},
    output,
    process::certificate,
};

/// How long those that are there may take to follow.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(300);

#[derive(Serialize)]
struct Behind {
    name: String,
    /// 16 hexadecimal digits; null: a process of the machine where the cluster was made.
    member: Option<String>,
    role: String,
}

#[derive(Serialize)]
struct Shown {
    /// SHA-256 of the certificate of the authority that signs.
    authority: String,
    /// Of the one before, while it is exchanged.
    former: Option<String>,
    /// Who still has a certificate of that.
    behind: Vec<Behind>,
}

impl Behind {
    fn manager(one: &Signer) -> Behind {
        Behind { name: format!("manager {}", one.name), member: None, role: "manager".to_owned() }
    }
}

/// How an exchange stands, as the manager knows it.
pub struct Stand {
    report: AuthorityReport,
    members: Vec<MemberInfo>,
    map: ClusterMap,
    managers: Vec<Signer>,
}

/// A manager, where there are several.
struct Signer {
    name: String,
    /// By which authority it signs; none: it does not answer.
    authority: Option<String>,
    /// Active, and of this directory.
    leads_here: bool,
}

impl Stand {
    /// Asks.
    pub async fn ask(dir: &ClusterDir, link: &Link) -> Result<Stand> {
        let (report, members) = (certificate::authorities(link).await?, members::members(link).await?);
        let mut census = Census::take(dir, link).await;
        let map = std::mem::replace(&mut census.report, Err(anyhow::anyhow!("taken")))?.map;
        census.processes.retain(|process| process.role == "manager" && map.managers.len() > 1);
        let answers = census.ask(link, &AdminRequest::Status).await;
        let signer = |(row, answer): (managers::ManagerRow, &Option<serde_json::Value>)| Signer {
            leads_here: row.leads_here(),
            name: row.name,
            authority: answer.as_ref().and_then(|said| said["authority"].as_str()).map(str::to_owned),
        };
        let managers = managers::look(&census, &answers).into_iter().zip(&answers).map(signer).collect();
        Ok(Stand { report, members, map, managers })
    }

    /// Managers that do not sign by the newest authority, as far as they say.
    fn managers_behind(&self) -> Vec<&Signer> {
        let newest = self.report.believed.first().map(|one| Fingerprint(*one).to_string());
        self.managers.iter().filter(|one| one.authority != newest).collect()
    }

    /// Refuses where a manager signs by an authority that is none of this exchange: another one was begun on its machine before that
    /// heard of this one. Neither machine takes the other's secrets, since neither knows what the other has.
    fn must_be_one_exchange(&self) -> Result<()> {
        let ours: Vec<String> =
            self.report.believed.iter().map(|one| Fingerprint(*one).to_string()).collect();
        let apart = |one: &&Signer| one.authority.as_ref().is_some_and(|other| !ours.contains(other));
        match self.managers.iter().find(apart) {
            None => Ok(()),
            Some(Signer { name, .. }) => bail!(
                "manager {name} signs by an authority that is none of this exchange: another one was begun on its machine at the same \
                 time. Remove it and have it join again, in a new directory: ropewalk manager remove {name}; ropewalk node token --role \
                 manager; there ropewalk join; then finish this one"
            ),
        }
    }

    /// Refuses where the active manager is on another machine: what is changed here would not be there at once.
    fn must_lead_here(&self) -> Result<()> {
        if self.managers.is_empty() || self.managers.iter().any(|one| one.leads_here) {
            return Ok(());
        }
        bail!(
            "the active manager is on another machine (`ropewalk manager list`): give this command there, or have one of this machine \
             lead (`ropewalk manager promote NAME`)"
        )
    }

    /// Machines that would be out at the end.
    fn late(&self) -> Vec<&MemberInfo> {
        let [newest, ..] = self.report.believed[..] else { return Vec::new() };
        let late = |member: &&MemberInfo| !member.revoked && member.authority != newest;
        self.members.iter().filter(late).filter(|_| self.report.believed.len() > 1).collect()
    }

    /// Processes that are connected by a certificate of the one before, though their machine has a new one: for a moment.
    fn switching(&self) -> Vec<Behind> {
        let late = self.late();
        let others = self.report.others.iter();
        let others = others.filter(|(member, ..)| late.iter().all(|late| late.id != *member));
        let others = others.map(|&(member, role, node)| self.process(member, role, node));
        let managers =
            self.managers_behind().into_iter().filter(|one| one.authority.is_some()).map(Behind::manager);
        others.chain(managers).collect()
    }

    fn process(&self, member: MemberId, role: Role, node: NodeId) -> Behind {
        let role = format!("{role:?}").to_lowercase();
        let machine = self.members.iter().find(|known| known.id == member);
        let name = match (self.map.node(node), machine) {
            (Some(node), _) => node.name.clone(),
            (None, Some(machine)) => machine.name.clone(),
            (None, None) => format!("a {role} on the machine where the cluster was made"),
        };
        Behind { name, member: (member != MemberId(0)).then(|| format!("{:016x}", member.0)), role }
    }

    fn behind(&self) -> Vec<Behind> {
        let late = self.late().into_iter().map(|member| Behind {
            name: member.name.clone(),
            member: Some(format!("{:016x}", member.id.0)),
            role: format!("{:?}", member.role).to_lowercase(),
        });
        let silent =
            self.managers_behind().into_iter().filter(|one| one.authority.is_none()).map(Behind::manager);
        late.chain(silent.filter(|_| self.report.believed.len() > 1)).chain(self.switching()).collect()
    }

    /// What `health` says of an exchange that is not finished.
    pub fn remark(&self) -> Option<String> {
        if self.report.believed.len() < 2 {
            return None;
        }
        let names = names(&self.behind());
        Some(match names.is_empty() {
            true => "the cluster's authority is being exchanged, and everybody has a new certificate; finish it: ropewalk cluster \
                     authority finish"
                .to_owned(),
            false => format!(
                "the cluster's authority is being exchanged; these still have a certificate of the one before, and get a new one by \
                 themselves when they are there: {names}"
            ),
        })
    }
}

fn names(behind: &[Behind]) -> String {
    let mut names: Vec<&str> = behind.iter().map(|one| one.name.as_str()).collect();
    names.dedup();
    names.join(", ")
}

/// `ropewalk cluster authority show`.
pub fn show(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let stand = link::run(async { Stand::ask(&dir, &Link::new(&dir)?).await })?;
    let print = |at: usize| stand.report.believed.get(at).map(|one| Fingerprint(*one).to_string());
    let authority = print(0).context("the manager is still starting; try again")?;
    let shown = Shown { authority, former: print(1), behind: stand.behind() };
    if listing.json {
        return output::json(&shown);
    }
    output::line(format!("authority {}", shown.authority));
    let Some(former) = shown.former else { return Ok(()) };
    output::line(format!("it is being exchanged; before: {former}"));
    if shown.behind.is_empty() {
        output::line("everybody has a new certificate; `ropewalk cluster authority finish` ends it");
        return Ok(());
    }
    output::line("these still have a certificate of the one before:\n");
    let row = |one: Behind| vec![one.name, one.member.unwrap_or("-".to_owned()), one.role];
    output::table(&["NAME", "MEMBER", "ROLE"], shown.behind.into_iter().map(row).collect());
    Ok(())
}

fn open_here(dir: &Dir) -> Result<ClusterDir> {
    let dir = dir.open()?;
    if dir.file.secret.is_none() || !dir.file.manager_here {
        bail!(
            "the authority is exchanged on the manager's machine: here is no secret of the cluster, or no manager"
        );
    }
    Ok(dir)
}

/// Asks until `done` says so, for as long as those that are there may take. The last stand.
async fn until(dir: &ClusterDir, link: &Link, done: impl Fn(&Stand) -> bool) -> Result<Stand> {
    let end = Instant::now() + PATIENCE;
    loop {
        interrupt::check()?;
        // It is busy with all of them.
        match Stand::ask(dir, link).await {
            Ok(stand) if done(&stand) || Instant::now() >= end => return Ok(stand),
            Err(error) if Instant::now() >= end => return Err(error),
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// `ropewalk cluster authority renew`.
pub fn renew(dir: &Dir) -> Result<()> {
    let dir = open_here(dir)?;
    interrupt::catch()?;
    // Who would see to it must be there.
    let stand = link::run(async { Stand::ask(&dir, &Link::new(&dir)?).await })?;
    stand.must_lead_here()?;
    if let Some(other) = stand.managers_behind().into_iter().find(|one| one.authority.is_some()) {
        bail!(
            "manager {} signs by another authority than this machine knows of: an exchange has begun or ended there, and is heard of here \
             within seconds",
            other.name
        );
    }
    let fresh = make::new_secret()?;
    ClusterDir::exchange_secrets(&dir.path, |secret, former| match former {
        None => Ok((fresh, Some(secret))),
        Some(_) => bail!(
            "an exchange has begun already; `ropewalk cluster authority show` says how it stands, `finish` ends it"
        ),
    })?;
    output::line(
        "a new authority signs; the one before is believed until `ropewalk cluster authority finish`",
    );
    let dir = ClusterDir::open(&dir.path)?;
    let newest = newest(&dir)?;
    let stand = link::run(async {
        // Managers that do not answer are told when they do.
        let done = |stand: &Stand| {
            let first = stand.report.believed.first() == Some(&newest);
            first && stand.late().is_empty() && stand.switching().is_empty()
        };
        until(&dir, &Link::new(&dir)?, done).await
    });
    let stand = stand.context(
        "it has begun, and goes on by itself; `ropewalk cluster authority show` says how it stands once the manager answers",
    )?;
    let behind = stand.behind();
    output::line(match behind.is_empty() {
        true => "everybody has a new certificate".to_owned(),
        false => format!("these get theirs by themselves when they are there: {}", names(&behind)),
    });
    Ok(())
}

/// The authority that signs, as this machine's file has it.
fn newest(dir: &ClusterDir) -> Result<[u8; 32]> {
    let authorities = dir.file.authorities()?.context("this machine has no secret of the cluster")?;
    Ok(authorities.newest().fingerprint().0)
}

/// `ropewalk cluster authority finish`.
pub fn finish(args: &AuthorityFinish) -> Result<()> {
    let dir = open_here(&args.dir)?;
    interrupt::catch()?;
    let begun = dir.file.former_secret.clone();
    if begun.is_none() {
        bail!("no exchange has begun; `ropewalk cluster authority renew` begins one");
    }
    let newest = newest(&dir)?;
    let out = link::run(async {
        let link = Link::new(&dir)?;
        let taken = |stand: &Stand| stand.report.believed.first() == Some(&newest);
        // Who is late may be off for long: only those that are switching are waited for.
        let stand = until(&dir, &link, |stand| taken(stand) && stand.switching().is_empty()).await?;
        stand.must_lead_here()?;
        if !taken(&stand) {
            bail!("the manager does not sign by the new authority yet; try again, or look at its log");
        }
        if !args.force {
            stand.must_be_one_exchange()?;
        }
        let behind = stand.behind();
        if !behind.is_empty() && !args.force {
            bail!(
                "these still have a certificate of the authority before: {}. They get a new one by themselves as soon as something \
                 of the cluster runs there. If one is gone for good: ropewalk node revoke, of a manager ropewalk manager remove. With --force \
                 they are shut out, and join again with a token",
                names(&behind)
            );
        }
        let managers = stand.managers_behind().into_iter().map(|one| format!("manager {}", one.name));
        let managers: Vec<String> = managers.collect();
        let late: Vec<_> = stand.late().into_iter().map(|member| (member.id, member.name.clone())).collect();
        for (member, _) in &late {
            link.manager(&MgrRequest::Revoke { member: *member }).await?;
        }
        Ok(late.into_iter().map(|(_, name)| name).chain(managers).collect::<Vec<_>>())
    })?;
    ClusterDir::exchange_secrets(&dir.path, |secret, former| match former {
        None => bail!("this exchange was finished meanwhile, by another command"),
        other if other != begun => {
            bail!("this exchange was finished meanwhile, and another one begun; nothing has changed")
        }
        _ => Ok((secret, None)),
    })?;
    // It is so when the manager has looked.
    let dir = ClusterDir::open(&dir.path)?;
    let heard =
        link::run(async { until(&dir, &Link::new(&dir)?, |stand| stand.report.believed.len() == 1).await });
    let stand =
        heard.context("the exchange is finished, and the manager hears of that by itself once it answers")?;
    if stand.report.believed.len() > 1 {
        bail!("the exchange is finished, and the manager has not heard of that yet; look at its log");
    }
    output::line("the former authority is believed no more: what it has signed is worth nothing");
    if !out.is_empty() {
        output::line(format!(
            "shut out: {}; to come back they join again with a token (`ropewalk node token`, `ropewalk join`), their data stays",
            out.join(", ")
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_exchanges_at_a_time_are_told_from_a_manager_that_is_late() {
        let signer = |name: &str, authority: Option<u8>| Signer {
            name: name.to_owned(),
            authority: authority.map(|byte| Fingerprint([byte; 32]).to_string()),
            leads_here: name == "m1",
        };
        let mut stand = Stand {
            report: AuthorityReport { believed: vec![[2; 32], [1; 32]], ..AuthorityReport::default() },
            members: Vec::new(),
            map: ClusterMap::default(),
            managers: vec![signer("m1", Some(2)), signer("m2", Some(1)), signer("m3", None)],
        };
        stand.must_be_one_exchange().unwrap();
        stand.managers.push(signer("m4", Some(3)));
        let error = stand.must_be_one_exchange().unwrap_err().to_string();
        assert!(error.contains("manager remove m4") && error.contains("join"), "{error}");
    }
}
