//! `ropewalk lab testbed`: hosts and links on one machine.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use lab::testbed::{self, Join, LinkBytes, Spec, Testbed};
use serde::Serialize;

use crate::{
    args::{JoinBy, Testbed as TestbedCommand, TestbedUp},
    cluster_dir::DEFAULT_DIR,
    output,
};

/// `ropewalk lab testbed ...`.
pub fn run(command: &TestbedCommand) -> Result<()> {
    match command {
        TestbedCommand::Up(args) => up(args),
        TestbedCommand::Down { names, all } => down(names, *all),
        TestbedCommand::Status { json } => status(*json),
        TestbedCommand::Link { name, host, link, state } => {
            Ok(Testbed::find(name.as_deref())?.set_link(host, *link, *state)?)
        }
        TestbedCommand::Exec { name, host, command } => exec(name.as_deref(), host, command),
    }
}

fn up(args: &TestbedUp) -> Result<()> {
    let drawn = Spec::default();
    let spec = Spec {
        name: args.name.clone().unwrap_or(drawn.name),
        hosts: args.hosts,
        links: args.links,
        rate: args.rate,
        join: match args.join {
            JoinBy::Ecmp => Join::Ecmp { policy: args.policy },
            JoinBy::Subnets => Join::Subnets,
        },
        routed: args.routed,
        trees: args.trees,
        seed: args.seed.unwrap_or(drawn.seed),
    };
    let testbed = Testbed::up(spec)?;
    if args.json {
        return output::json(&shown(testbed)?);
    }
    let (spec, name) = (&testbed.spec, &testbed.spec.name);
    output::line(format!(
        "testbed {name}: {} hosts with {} links of {}, {}",
        spec.hosts,
        spec.links,
        spec.rate,
        join_text(spec)
    ));
    for host in &testbed.hosts {
        let enter = format!("ropewalk lab testbed exec --name {name} {} -- bash", host.name);
        output::line(format!("  {}: {}; enter it: {enter}", host.name, addr_text(&testbed, &host.name)));
    }
    output::line(format!("remove it with: ropewalk lab testbed down {name}"));
    Ok(())
}

fn join_text(spec: &Spec) -> String {
    match spec.join {
        Join::Ecmp { policy: 0 } => "ECMP hashing addresses (policy 0)".to_owned(),
        Join::Ecmp { policy } => format!("ECMP hashing addresses and ports (policy {policy})"),
        Join::Subnets => "each link a subnet".to_owned(),
    }
}

fn addr_text(testbed: &Testbed, host: &str) -> String {
    let host = testbed.hosts.iter().find(|h| h.name == host);
    host.map(|h| h.addrs.iter().map(|a| a.to_string()).collect::<Vec<_>>().join(" ")).unwrap_or_default()
}

fn down(names: &[String], all: bool) -> Result<()> {
    let names = match (names, all) {
        (_, true) => {
            let free = testbed::list()?.into_iter().filter(|t| t.owner.is_none_or(|o| !o.lives()));
            free.map(|t| t.spec.name).collect()
        }
        ([], false) => vec![Testbed::find(None)?.spec.name],
        // By name it works also where the file cannot be read.
        (names, false) => names.to_vec(),
    };
    for name in names {
        testbed::down(&name)?;
        output::line(format!("testbed {name} is removed"));
    }
    Ok(())
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    testbed: Testbed,
    stands: bool,
    processes: Vec<u32>,
    link_bytes: Vec<HostBytes>,
}

#[derive(Serialize)]
struct HostBytes {
    host: String,
    links: Vec<LinkBytes>,
}

fn shown(testbed: Testbed) -> Result<Shown> {
    let mut stands = testbed.stands();
    let mut link_bytes = Vec::new();
    for host in testbed.hosts.iter().filter(|_| stands) {
        match testbed.link_bytes(host) {
            Ok(links) => link_bytes.push(HostBytes { host: host.name.clone(), links }),
            // It is being removed.
            Err(_) if !testbed.stands() => {
                (stands, link_bytes) = (false, Vec::new());
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let processes = match testbed.pids() {
        Err(_) if !testbed.stands() => Vec::new(),
        found => found?,
    };
    Ok(Shown { stands, processes, link_bytes, testbed })
}

fn status(json: bool) -> Result<()> {
    let all = testbed::list()?.into_iter().map(shown).collect::<Result<Vec<_>>>()?;
    if json {
        return output::json(&all);
    }
    if all.is_empty() {
        output::line("no testbed; make one with `ropewalk lab testbed up`");
        return Ok(());
    }
    let mut rows = Vec::new();
    for shown in &all {
        let spec = &shown.testbed.spec;
        let owner = match shown.testbed.owner {
            Some(o) if o.lives() => format!("process {}", o.pid),
            Some(o) => format!("process {}, ended: the next one removes it", o.pid),
            None if shown.stands => "until down".to_owned(),
            None => "not whole: remove it with down".to_owned(),
        };
        for host in &shown.link_bytes {
            let bytes = |of: fn(&LinkBytes) -> u64| {
                host.links.iter().map(|l| of(l).to_string()).collect::<Vec<_>>().join(" ")
            };
            rows.push(vec![
                spec.name.clone(),
                host.host.clone(),
                addr_text(&shown.testbed, &host.host),
                format!("{} x {}", spec.links, spec.rate),
                join_text(spec),
                bytes(|l| l.sent),
                bytes(|l| l.received),
                owner.clone(),
            ]);
        }
        if shown.link_bytes.is_empty() {
            let mut row = vec![spec.name.clone()];
            row.extend(std::iter::repeat_n("-".to_owned(), 6));
            row.push(owner);
            rows.push(row);
        }
    }
    output::table(
        &["TESTBED", "HOST", "ADDRESSES", "LINKS", "JOINED BY", "BYTES SENT", "BYTES RECEIVED", "STAYS"],
        rows,
    );
    Ok(())
}

/// Becomes the command.
fn exec(name: Option<&str>, host: &str, command: &[String]) -> Result<()> {
    let testbed = Testbed::find(name)?;
    let (program, args) = command.split_first().context("no command given")?;
    let mut command = testbed.command(host, program)?;
    if testbed.spec.trees {
        // Processes are the machine's: without this a cluster of another host would be taken for the one that runs here.
        command.env("ROPEWALK_DIR", DEFAULT_DIR);
    }
    let error = command.args(args).exec();
    Err(error).with_context(|| {
        format!("run {program} on {host} (`ip` comes with iproute2, `nsenter` with util-linux)")
    })
}
