//! `advise --cluster`: every process of a cluster is asked what its machine shows; each machine is told its findings, and
//! the odd one out of several is named. A process that does not answer is named, and makes the command end with 3.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use advisor::{
    Catalogue, Evidence, Facts, Finding, Role, Severity,
    compare::{Difference, odd_ones},
    counted,
    ends::{self, End},
};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::json;
use wire::admin::AdminRequest;

use super::{
    html::{self, Item, Section},
    machine, over,
    text::{self, grouped, severity},
};
use crate::{
    args::Advise,
    commands::ask::Census,
    link::{self, Link},
    output,
    process::tunables,
};

/// Programs that a machine runs to tell of itself take a while.
const PATIENCE: Duration = Duration::from_secs(60);
/// Differences shown without `--all`.
const DIFFERENCES_SHOWN: usize = 10;

/// What a process answers.
#[derive(Deserialize)]
struct Told {
    machine: String,
    facts: Facts,
}

impl Told {
    /// What was answered, its facts bounded as those read here.
    fn of(answer: Option<serde_json::Value>) -> Option<Told> {
        let told: Told = serde_json::from_value(answer?).ok()?;
        let mut facts = Facts::new();
        facts.extend(told.facts);
        Some(Told { facts, ..told })
    }
}

/// A machine, with the processes on it.
struct Machine {
    id: String,
    processes: Vec<String>,
    /// Of each process.
    roles: Vec<Role>,
    /// Where the others reach them.
    addresses: Vec<IpAddr>,
    facts: Facts,
}

impl Machine {
    /// What people call it: its own name, or where another has the same one its node's.
    fn name(&self, all: &[Machine]) -> String {
        let own = |machine: &Machine| machine.facts.text("host.name").map(str::to_owned);
        let alike = all.iter().filter(|other| own(other) == own(self)).count();
        let node = self.roles.iter().position(|role| *role == Role::Server).unwrap_or(0);
        let process = || self.processes.get(node).cloned().unwrap_or_default();
        own(self).filter(|_| alike == 1).unwrap_or_else(process)
    }
}

/// Asks, judges and prints. Gives the severity of the worst finding.
pub(super) fn advise(args: &Advise) -> Result<Option<Severity>> {
    let catalogue = Catalogue::load()?;
    let dir = args.dir.open()?;
    let (machines, (silent, uncounted), settings, all) = link::run(async {
        let link = Link::new(&dir)?;
        let census = Census::take(&dir, &link).await;
        let ask = async || -> Vec<Option<Told>> {
            let answers = census.ask_within(&link, &AdminRequest::Host, PATIENCE).await;
            answers.into_iter().map(Told::of).collect()
        };
        let mut before = Vec::new();
        if let Some(span) = args.over {
            before = ask().await;
            over::watch(span).await;
        }
        let answers = ask().await;
        let mut machines: Vec<Machine> = Vec::new();
        let mut silent = Vec::new();
        let mut uncounted = Vec::new();
        before.resize_with(answers.len(), || None);
        for ((process, answer), before) in census.processes.iter().zip(answers).zip(before) {
            let Some(mut told) = answer else {
                silent.push(format!("{} at {}", process.name, process.address()));
                continue;
            };
            if args.over.is_some() {
                let before = before.filter(|before| before.machine == told.machine);
                match before.and_then(|before| counted::rates(&before.facts, &told.facts)) {
                    Some(rates) => told.facts = rates,
                    None => uncounted.push(process.name.clone()),
                }
            }
            let role = match process.role {
                "manager" => Role::Manager,
                "client" => Role::Client,
                _ => Role::Server,
            };
            let reached = process.addresses.iter().filter_map(|a| Some(a.parse::<SocketAddr>().ok()?.ip()));
            let reached = reached.collect::<Vec<_>>();
            match machines.iter_mut().find(|machine| machine.id == told.machine) {
                Some(machine) => {
                    machine.processes.push(process.name.clone());
                    machine.roles.push(role);
                    machine.addresses.extend(reached);
                }
                None => machines.push(Machine {
                    id: told.machine,
                    processes: vec![process.name.clone()],
                    roles: vec![role],
                    addresses: reached,
                    facts: told.facts,
                }),
            }
        }
        let settings = tunables::read(&link).await.ok();
        Ok((machines, (silent, uncounted), settings, census.report.map(drop)))
    })?;
    let named: Vec<(String, Facts)> = machines.iter().map(|m| (m.name(&machines), m.facts.clone())).collect();
    let differences = odd_ones(&named);
    let ends = machines.iter().zip(&named);
    let ends = ends.map(|(m, (name, facts))| End { machine: name, facts, addresses: &m.addresses });
    let between = advisor::advise(&catalogue, &ends::between(&ends.collect::<Vec<_>>()), &[]);
    let mut judged: Vec<Vec<Finding>> = Vec::new();
    for machine in &machines {
        let mut facts = advisor::assumed(&catalogue);
        if let Some(settings) = &settings {
            advisor::tunables(&mut facts, settings, "the cluster's configuration");
        }
        facts.extend(machine.facts.clone());
        machine::assume(&catalogue, &mut facts, &args.machine.context)?;
        let asked = args.machine.context.role.as_slice();
        let roles = if asked.is_empty() { machine.roles.as_slice() } else { asked };
        judged.push(advisor::advise(&catalogue, &facts, roles));
    }
    let found: Vec<(&Machine, &str, &[Finding])> = (machines.iter().zip(&named).zip(&judged))
        .map(|((machine, (name, _)), findings)| (machine, name.as_str(), findings.as_slice()))
        .collect();
    if let Some(file) = &args.html {
        let sections = found.iter().map(|(_, name, findings)| Section::of_findings(name, findings));
        let both = [section(&differences), Section::of_findings("Links between machines", &between)];
        let sections: Vec<Section> = both.into_iter().chain(sections).collect();
        html::write(file, "a cluster", &sections)?;
    } else if args.json {
        let rows: Vec<_> = found
            .iter()
            .map(|(machine, name, findings)| json!({ "name": name, "processes": machine.processes, "facts": machine.facts, "findings": findings }))
            .collect();
        output::json(
            &json!({ "machines": rows, "between": between, "differences": differences, "silent": silent }),
        )?;
    } else {
        print(&found, &between, &differences, args.all);
    }
    all.context("ask the manager who belongs to the cluster")?;
    if !silent.is_empty() {
        bail!(
            "no answer from {}: not there, of an older release, or this machine is not an administrator's",
            silent.join(", ")
        );
    }
    if !uncounted.is_empty() {
        bail!(
            "no rates of {}: of an older release, or begun again meanwhile; what is told of them is since boot",
            uncounted.join(", ")
        );
    }
    Ok(judged.iter().chain([&between]).filter_map(|findings| advisor::worst(findings)).max())
}

/// A difference in a line.
fn line(difference: &Difference) -> String {
    let odd = difference.odd.iter().map(|(name, value)| {
        format!("{name} has {}", output::begin_of(value.as_deref().unwrap_or("none"), 40))
    });
    let odd = odd.collect::<Vec<_>>().join(", ");
    match &difference.usual {
        Some(usual) => format!("{}: {odd}; the others have {}", difference.path, output::begin_of(usual, 40)),
        None => format!("{}: {odd}", difference.path),
    }
}

/// `h2: 1400`, of `subnet.NAME.mtu.h2`.
fn seen(evidence: &Evidence) -> Option<String> {
    let [_, _, what, machine] = evidence.fact.split('.').collect::<Vec<_>>()[..] else { return None };
    Some(format!("{} {} {}", machine.replace('/', "."), what.replace('_', " "), evidence.value))
}

fn section(differences: &[Difference]) -> Section {
    let item = Item {
        severity: Severity::Note,
        title: format!("{} facts are not the same on all machines", differences.len()),
        rule: "differences".to_owned(),
        seen: differences.iter().map(line).collect(),
        says: Vec::new(),
    };
    let items = if differences.is_empty() { Vec::new() } else { vec![item] };
    Section { name: "Differences between machines".to_owned(), items, ..Section::default() }
}

fn print(found: &[(&Machine, &str, &[Finding])], between: &[Finding], differences: &[Difference], all: bool) {
    for (machine, name, findings) in found {
        output::line(format!("{name}: {}", machine.processes.join(", ")));
        if all {
            text::print(findings, true, machine.facts.len());
            continue;
        }
        let groups = grouped(findings);
        if groups.is_empty() {
            output::line("   nothing to change");
        }
        for first in groups.iter().take(text::FIRST_SCREEN).filter_map(|group| group.first()) {
            let said = format!("{}: {} [{}]", severity(first.severity), first.title, first.rule);
            text::labelled("", &said);
        }
        let rest = groups.len().saturating_sub(text::FIRST_SCREEN);
        if rest > 0 {
            text::labelled("", &format!("{rest} more: --all"));
        }
    }
    if found.len() < 2 {
        return;
    }
    if !between.is_empty() {
        output::line("\nbetween the machines:");
    }
    for finding in between {
        let told = format!("{}: {} [{}]", severity(finding.severity), finding.title, finding.rule);
        text::labelled("", &told);
        finding.evidence.iter().filter_map(seen).for_each(|seen| text::labelled("is", &seen));
        text::labelled("do", &finding.advice);
    }
    output::line(match differences.len() {
        0 => "\nno difference between the machines".to_owned(),
        count => format!("\nnot the same on all machines: {count}"),
    });
    let shown = if all { differences.len() } else { DIFFERENCES_SHOWN };
    differences.iter().take(shown).for_each(|difference| text::labelled("", &line(difference)));
    if differences.len() > shown {
        text::labelled("", &format!("{} more: --all", differences.len() - shown));
    }
}
