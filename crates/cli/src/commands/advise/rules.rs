//! `advise explain` and `advise rules`: what the catalogue says.

use advisor::{Catalogue, dumps::ROWS};
use anyhow::{Result, ensure};
use serde_json::json;

use super::{
    dumps,
    text::{labelled, speaks_of, word},
};
use crate::output;

/// The subject of rules that only dumps can trigger.
const DUMPS: &str = "dump";

pub(super) fn explain(name: &str) -> Result<()> {
    let catalogue = Catalogue::load()?;
    let Some(rule) = catalogue.rule(name) else {
        if dumps::explain(name) {
            return Ok(());
        }
        let looks = |rule: &&advisor::Rule| {
            speaks_of(&rule.id, name) || rule.looks_at().iter().any(|path| speaks_of(path, name))
        };
        let of_hosts = catalogue.rules.iter().filter(looks);
        let mut rows: Vec<Vec<String>> = of_hosts
            .map(|rule| vec![rule.id.clone(), output::begin_of(rule.title.as_written(), 66)])
            .collect();
        rows.extend(dumps::about(name).iter().map(|(id, title)| vec![(*id).to_owned(), (*title).to_owned()]));
        ensure!(
            !rows.is_empty(),
            "there is no rule {name}, and none looks at such a fact: ropewalk advise rules"
        );
        output::line(format!("rules about {name}:"));
        output::table(&["rule", "finds"], rows);
        return Ok(());
    };
    output::line(format!("{} ({}, since {})", rule.id, rule.subject, rule.since));
    labelled(
        "is",
        &format!(
            "{}, gain {}, confidence {}",
            word(&rule.severity),
            word(&rule.gain),
            word(&rule.confidence)
        ),
    );
    if let Some(each) = &rule.each {
        labelled("each", each);
    }
    labelled("when", &rule.condition_text);
    labelled("reads", &rule.looks_at().join(", "));
    for (label, template) in [("should", &rule.advice), ("why", &rule.why), ("cost", &rule.cost)] {
        labelled(label, template.as_written());
    }
    if let Some(set) = &rule.set {
        labelled("sets", &format!("{} = {}", set.fact.as_written(), set.value.as_written()));
    }
    for (label, template) in [("do", &rule.command), ("undo", &rule.undo), ("keep", &rule.permanent)] {
        if let Some(template) = template {
            labelled(label, template.as_written());
        }
    }
    if let Some(plan) = &rule.measure {
        labelled("try", &format!("ropewalk advise measure {} (the lab's plan {plan})", rule.id));
    }
    labelled("source", &rule.source);
    Ok(())
}

pub(super) fn rules(assumptions: bool, json: bool) -> Result<()> {
    let catalogue = Catalogue::load()?;
    if assumptions {
        if json {
            return output::json(&catalogue.assumptions);
        }
        let row =
            |a: &advisor::catalogue::Assumption| vec![a.name.clone(), a.value.to_string(), a.what.clone()];
        output::table(&["assumption", "value", "what"], catalogue.assumptions.iter().map(row).collect());
        return Ok(());
    }
    let all = catalogue.rules.iter();
    if json {
        let row = |rule: &advisor::Rule| {
            json!({
                "id": rule.id, "subject": rule.subject, "severity": rule.severity, "title": rule.title.as_written(),
                "looks_at": rule.looks_at(), "source": rule.source,
            })
        };
        let of_dumps = ROWS.iter().map(|rule| {
            json!({
                "id": rule.id, "subject": DUMPS, "severity": rule.severity, "title": rule.title,
                "looks_at": rule.look.as_slice(), "source": rule.source,
            })
        });
        return output::json(&all.map(row).chain(of_dumps).collect::<Vec<_>>());
    }
    let row = |rule: &advisor::Rule| {
        vec![
            rule.id.clone(),
            rule.subject.to_owned(),
            word(&rule.severity),
            rule.title.as_written().to_owned(),
        ]
    };
    let of_dumps = ROWS
        .iter()
        .map(|rule| vec![rule.id.clone(), DUMPS.to_owned(), word(&rule.severity), rule.title.clone()]);
    output::table(&["rule", "subject", "severity", "finds"], all.map(row).chain(of_dumps).collect());
    output::line(format!("{} rules for hosts, {} for dumps", catalogue.rules.len(), ROWS.len()));
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn plans_that_measure_a_rule_exist() {
        for rule in advisor::Catalogue::load().unwrap().rules {
            if let Some(plan) = rule.measure {
                assert!(lab::builtin::text(&plan).is_some(), "{}: {plan}", rule.id);
            }
        }
    }
}
