//! `ropewalk manager list|add|remove|promote`: several managers, of which one is active. Which one that is, and how far the others
//! have come, each says itself.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wire::{admin::AdminRequest, mgr::MgrRequest, version::Build};

use super::{ask::Census, mirror, up};
use crate::{
    args::{Listing, ManagerAdd, ManagerName, Promote},
    cluster_dir::{Addrs, ClusterDir, ManagerFile, make},
    interrupt,
    link::{self, Link},
    output,
    process::{control, pid_file, tcp_ports::Beside},
};

/// How long one that was asked to may take to lead, or to end.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);
/// One that is further behind is told of; where it is asked to lead it would have that much to read first.
const BEHIND_MAX: u64 = 2000;
/// A port for one more is looked for so often.
const PORTS_TRIED: u16 = 64;

#[derive(Serialize)]
pub struct ManagerRow {
    /// What the cluster calls it.
    pub name: String,
    addresses: Vec<String>,
    /// None: it does not answer; so with the following.
    pid: Option<u64>,
    /// It leads.
    pub active: Option<bool>,
    /// Records of the journal that it does not have yet.
    behind: Option<u64>,
    /// For how long etcd has not answered it, seconds.
    etcd_silent_s: Option<f64>,
    /// Why not.
    etcd_says: Option<String>,
    /// What its files in this machine's directory are named by, if it runs here.
    local: Option<String>,
    /// What it runs; none also if it does not say so.
    #[serde(skip)]
    pub build: Option<Build>,
}

impl ManagerRow {
    /// Active, and of this machine's directory.
    pub fn leads_here(&self) -> bool {
        self.active == Some(true) && self.local.is_some()
    }
}

/// All of the cluster, as they say now.
pub fn look(census: &Census, answers: &[Option<Value>]) -> Vec<ManagerRow> {
    let managers: Vec<_> =
        census.processes.iter().zip(answers).filter(|(process, _)| process.role == "manager").collect();
    let records = |answer: &Option<Value>| answer.as_ref()?["manager"]["records"].as_u64();
    let most = managers.iter().filter_map(|(_, answer)| records(answer)).max().unwrap_or(0);
    let row = |(process, answer): (&super::ask::Process, &Option<Value>)| {
        let said = answer.as_ref();
        let standing = said.map(|said| &said["manager"]);
        // One with its journal in a file has nobody beside it.
        let alone = standing.is_some_and(Value::is_null);
        ManagerRow {
            name: process.name.clone(),
            addresses: process.addresses.clone(),
            pid: said.and_then(|said| said["pid"].as_u64()),
            active: if alone { Some(true) } else { standing.and_then(|s| s["active"].as_bool()) },
            behind: if alone { Some(0) } else { records(answer).map(|records| most - records) },
            etcd_silent_s: standing.and_then(|s| s["etcd_silent_s"].as_f64()),
            etcd_says: standing.and_then(|s| s["etcd_says"].as_str()).map(str::to_owned),
            local: process.local.clone(),
            build: said.and_then(|said| Build::deserialize(&said["build"]).ok()),
        }
    };
    managers.into_iter().map(row).collect()
}

/// The same, asked now.
pub async fn ask(dir: &ClusterDir, link: &Link) -> Vec<ManagerRow> {
    let census = Census::take(dir, link).await;
    let answers = census.ask(link, &AdminRequest::Status).await;
    look(&census, &answers)
}

/// Those that do not answer.
pub fn silent(rows: &[ManagerRow]) -> Vec<String> {
    let silent = rows.iter().filter(|row| row.active.is_none());
    silent
        .map(|row| {
            format!(
                "manager {} does not answer at {}: it cannot take over",
                row.name,
                row.addresses.join(", ")
            )
        })
        .collect()
}

/// What is wrong with those that answer.
pub fn remarks(rows: &[ManagerRow]) -> Vec<String> {
    let mut remarks = Vec::new();
    for row in rows {
        if let Some(since) = row.etcd_silent_s {
            let why = row.etcd_says.as_deref().unwrap_or_default();
            remarks.push(format!(
                "manager {} has had no answer of etcd for {since:.0} s ({why}); names and new tokens wait for it, data goes on \
                 as long as leases allow",
                row.name
            ));
        }
        if let Some(behind) = row.behind.filter(|behind| *behind > BEHIND_MAX) {
            remarks.push(format!("manager {} is {behind} records behind the active one", row.name));
        }
    }
    if !rows.is_empty()
        && rows.iter().all(|row| row.active == Some(false))
        && rows.iter().all(|row| row.etcd_silent_s.is_none())
    {
        remarks.push(
            "no manager is active: one takes over within seconds, or says in its log why not".to_owned(),
        );
    }
    remarks
}

/// Why no manager answers for the cluster, as far as they say.
pub async fn why_none(dir: &ClusterDir, link: &Link) -> Option<String> {
    let census = Census::take(dir, link).await;
    let answers = census.ask(link, &AdminRequest::Status).await;
    let store = || answers.iter().flatten().find_map(|said| said["store_remarks"][0].as_str());
    let first = remarks(&look(&census, &answers)).into_iter().next();
    first.or_else(|| store().map(str::to_owned))
}

/// `ropewalk manager list`.
pub fn list(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let rows = link::run(async { Ok(ask(&dir, &Link::new(&dir)?).await) })?;
    if listing.json {
        return output::json(&rows);
    }
    let cells = |row: &ManagerRow| {
        let state = match row.active {
            None => "does not answer",
            Some(true) => "active",
            Some(false) => "follows",
        };
        vec![
            row.name.clone(),
            row.addresses.join(", "),
            row.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            state.to_owned(),
            row.behind.map_or("-".to_owned(), |behind| behind.to_string()),
        ]
    };
    output::table(&["MANAGER", "ADDRESS", "PID", "STATE", "BEHIND"], rows.iter().map(cells).collect());
    Ok(())
}

fn found<'a>(rows: &'a [ManagerRow], name: &str) -> Result<&'a ManagerRow> {
    let unknown = || {
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        format!("there is no manager {name}; there are {}", names.join(", "))
    };
    rows.iter().find(|row| row.name == name).with_context(unknown)
}

/// `ropewalk manager add`: one more on this machine. On another one it comes with a token of that role.
pub fn add(args: &ManagerAdd) -> Result<()> {
    let dir = args.dir.open()?;
    if dir.file.etcd.is_none() {
        bail!(
            "the manager's journal is a file, which nobody else can follow; take it into etcd first: ropewalk manager migrate"
        );
    }
    let own = dir.file.own_managers();
    let Some(first) = own.first().filter(|_| dir.file.secret.is_some()) else {
        bail!(
            "no manager is on this machine; for the first one here make a token where one is (`ropewalk node token --role manager`), \
             and join with it: ropewalk join --dir DIR TOKEN --address ADDRESS"
        );
    };
    let name = &args.name;
    if dir.file.all_managers().iter().any(|one| one.name == *name) {
        bail!("there is a manager {name} already");
    }
    interrupt::catch()?;
    let ips: Vec<_> = match args.address.is_empty() {
        true => first.entry.addr.iter().map(|addr| addr.ip()).collect(),
        false => args.address.clone(),
    };
    // Its own metrics, and those behind, are one port further then.
    let kept = Beside::of(&dir, 1);
    let (addr, held) = match args.port {
        Some(port) => make::listen_at(&ips, port, &kept)?,
        None => {
            // Beside the others of this machine, if that is free.
            let after = own.iter().map(|own| own.entry.addr.main().port()).max().unwrap_or_default();
            let ports = (1..=PORTS_TRIED).filter_map(|n| after.checked_add(n));
            let mut tried = ports.map(|port| make::listen_at(&ips, port, &kept));
            let found = tried.find_map(Result::ok);
            found.with_context(|| format!("no port behind {after} is free; name one with --port"))?
        }
    };
    begin(&dir, name, addr, held)?;
    output::line(format!("manager {name} follows"));
    Ok(())
}

fn begin(dir: &ClusterDir, name: &str, addr: Addrs, held: Vec<TcpListener>) -> Result<()> {
    let entry = ManagerFile { name: name.to_owned(), addr, local: Some(dir.file.local_name(name)) };
    link::run(async { Link::new(dir)?.manager(&MgrRequest::ManagerSet(entry.entry())).await })?;
    ClusterDir::change_managers(&dir.path, |there| {
        let others = there.iter().filter(|other| other.name != entry.name).cloned();
        others.chain([entry.clone()]).collect()
    })?;
    drop(held);
    up::start(&ClusterDir::open(&dir.path)?, false)
}

/// `ropewalk manager remove`.
pub fn remove(args: &ManagerName) -> Result<()> {
    let dir = args.dir.open()?;
    let name = &args.name;
    let local = link::run(async {
        let link = Link::new(&dir)?;
        let rows = ask(&dir, &link).await;
        // One that was removed and is here still: that was interrupted, or its process had not ended.
        let own = dir.file.own_managers().into_iter().find(|own| own.entry.name == *name);
        if let Some(own) = own.filter(|_| rows.iter().all(|row| row.name != *name)) {
            return Ok(Some(own.local));
        }
        let row = found(&rows, name)?;
        if rows.len() < 2 {
            bail!("{name} is the only manager");
        }
        if row.active == Some(true) {
            bail!(
                "{name} is the active manager; let another one be that first: ropewalk manager promote NAME"
            );
        }
        link.manager(&MgrRequest::ManagerRemove { name: name.clone() }).await?;
        Ok(row.local.clone())
    })?;
    let Some(local) = local else {
        output::line(format!(
            "{name} is no manager any more; its process ends, and its directory can go. It had the cluster's secret: if its machine is \
             not trusted any more, exchange the authority (`ropewalk cluster authority renew`)"
        ));
        return Ok(());
    };
    // It hears of it, and ends; one that hangs is ended.
    if let Some(process) = pid_file::live(&dir.pid_file(&local))
        && !process.wait_gone(PATIENCE)
    {
        interrupt::check()?;
        control::kill_and_wait(&local, process)
            .with_context(|| format!("{name} is no manager any more, and stands in cluster.toml yet"))?;
    }
    ClusterDir::change_managers(&dir.path, |there| {
        there.iter().filter(|one| one.name != *name).cloned().collect()
    })?;
    output::line(format!(
        "{name} is no manager any more; its data can go: {}",
        dir.path.join(local).display()
    ));
    Ok(())
}

/// `ropewalk manager promote`: of a manager that runs, or of a copy of its store.
pub fn promote(args: &Promote) -> Result<()> {
    let dir = args.dir.open()?;
    match (&args.name, &args.from_mirror) {
        (Some(name), None) => lead(&dir, name),
        (None, Some(copy)) => mirror::promote(&dir, copy.as_deref()),
        _ => bail!("name a manager, or a copy of its store with --from-mirror: one of the two"),
    }
}

/// Has one lead.
fn lead(dir: &ClusterDir, name: &str) -> Result<()> {
    let pause = link::run(async {
        let link = Link::new(dir)?;
        let rows = ask(dir, &link).await;
        let row = found(&rows, name)?;
        match (row.active, row.behind) {
            (Some(true), _) => return Ok(None),
            (None, _) => bail!("{name} does not answer at {}", row.addresses.join(", ")),
            (_, Some(behind)) if behind > BEHIND_MAX => {
                bail!(
                    "{name} is {behind} records behind, which it would have to read first; try again when it is not"
                )
            }
            _ => {}
        }
        link.manager(&MgrRequest::Resign { to: name.to_owned() }).await?;
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            let rows = ask(dir, &link).await;
            if found(&rows, name)?.active == Some(true) {
                return Ok(Some(begun.elapsed()));
            }
            if let Some(other) =
                rows.iter().find(|row| row.active == Some(true) && begun.elapsed() > PATIENCE / 2)
            {
                bail!("{} is active: {name} did not take over in time, and its log says why not", other.name);
            }
            if begun.elapsed() > PATIENCE {
                bail!("{name} is not active yet; `ropewalk manager list` shows how they stand");
            }
            tokio::time::sleep(PAUSE).await;
        }
    })?;
    output::line(match pause {
        None => format!("{name} is the active manager already"),
        Some(pause) => format!("{name} is the active manager, after {:.2} s", pause.as_secs_f64()),
    });
    Ok(())
}
