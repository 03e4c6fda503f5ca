//! From rules and facts to findings, best first. Plain functions: they read nothing and change nothing.
//! A fact that is not there never triggers a rule: containers hide many.

use base::tunables::Tunables;

use crate::{
    catalogue::Catalogue,
    expr::{Scope, Template},
    facts::{Facts, Origin, Path, Value},
    finding::{Change, Evidence, Finding},
    host::Manager,
    rule::{Condition, Role, Rule, Severity},
    settable::Settable,
    together,
};

/// Findings of one rule; further devices are not looked at.
const DEVICES_MAX: usize = 4096;

/// What rules look at beside what a host shows: assumptions as `assume.NAME`, tunables as `ropewalk.NAME` with their
/// defaults. Facts of the host or of a cluster replace them.
pub fn assumed(catalogue: &Catalogue) -> Facts {
    let mut facts = Facts::new();
    for assumption in &catalogue.assumptions {
        facts.insert(["assume", &assumption.name], assumption.value.clone(), Origin::of("assumed"));
    }
    tunables(&mut facts, &Tunables::default(), "default");
    facts
}

/// The tunables of a node as facts.
pub fn tunables(facts: &mut Facts, tunables: &Tunables, source: &str) {
    for row in base::tunables::ROWS {
        let name = row.name;
        let Ok(written) = tunables.get(name) else { continue };
        let number = written.parse::<base::ByteSize>().ok().map(|size| Value::from(size.0));
        let value = number.unwrap_or_else(|| Value::from(written.as_str()));
        facts.insert_written(["ropewalk", name], value, &written, Origin::of(source));
    }
}

/// Applies the rules that concern any of these roles (all, without one); the best findings first.
pub fn advise(catalogue: &Catalogue, facts: &Facts, roles: &[Role]) -> Vec<Finding> {
    let concerns = |rule: &&Rule| {
        roles.is_empty() || rule.roles.is_empty() || rule.roles.iter().any(|role| roles.contains(role))
    };
    let rules = catalogue.rules.iter().filter(concerns);
    let mut findings: Vec<Finding> = rules.flat_map(|rule| apply_rule(rule, facts)).collect();
    findings.sort_by_key(|f| std::cmp::Reverse((f.score(), f.severity)));
    together::consider(&mut findings, facts);
    findings
}

/// What one rule finds.
pub fn apply_rule(rule: &Rule, facts: &Facts) -> Vec<Finding> {
    match &rule.condition {
        Condition::Code(code) => (code.check)(facts)
            .into_iter()
            .take(DEVICES_MAX)
            .map(|hit| {
                let mut scope = Scope::new(facts, hit.device.as_ref());
                hit.values.into_iter().for_each(|(name, value)| scope.set(name, Some(value)));
                finding(rule, facts, scope, hit.device.as_ref(), hit.evidence)
            })
            .collect(),
        Condition::Expr(condition) => {
            let devices = match &rule.each {
                None => vec![None],
                Some(pattern) => facts.nodes(pattern).into_iter().take(DEVICES_MAX).map(Some).collect(),
            };
            let apply = |device: &Option<Path>| {
                let mut scope = Scope::new(facts, device.as_ref());
                for (name, expr) in &rule.lets {
                    let value = scope.eval(expr);
                    scope.set(name, value);
                }
                if !scope.holds(condition) {
                    return None;
                }
                let reads = scope.reads();
                Some(finding(rule, facts, scope, device.as_ref(), reads))
            };
            devices.iter().filter_map(apply).collect()
        }
    }
}

fn finding(rule: &Rule, facts: &Facts, scope: Scope<'_>, device: Option<&Path>, reads: Vec<Path>) -> Finding {
    let fill = |template: &Template| template.fill(&scope).0;
    let fill_command = |template: &Template| template.fill_command(&scope);
    let mut seen = reads;
    for expr in &rule.evidence {
        scope.eval(expr);
    }
    seen.extend(scope.reads());
    let mut evidence: Vec<Evidence> = Vec::new();
    for path in seen {
        if let Some(fact) = facts.get(path.as_str())
            && !evidence.iter().any(|e| e.fact == path.as_str())
        {
            let value = fact.written.clone().unwrap_or_else(|| fact.value.to_string());
            evidence.push(Evidence { fact: path.to_string(), value, origin: fact.origin.to_string() });
        }
    }
    // A value that is not known gives no change: nothing is ever set to a guess.
    let change = rule.set.as_ref().and_then(|set| match (set.fact.fill(&scope), set.value.fill(&scope)) {
        ((fact, true), (value, true)) => Some(Change { fact: Path::from(fact), value }),
        _ => None,
    });
    let settable = change.as_ref().and_then(|change| Some((Settable::of(&change.fact)?, change)));
    let old = |change: &Change| facts.get(change.fact.as_str()).map(|f| f.value.clone());
    Finding {
        rule: rule.id.clone(),
        severity: rule.severity,
        title: fill(&rule.title),
        device: device.map(Path::to_string),
        evidence,
        advice: fill(&rule.advice),
        why: fill(&rule.why),
        cost: fill(&rule.cost),
        gain: rule.gain,
        confidence: rule.confidence,
        command: match &settable {
            Some((settable, change)) => Some(settable.command(&change.value)),
            None => rule.command.as_ref().map(fill_command),
        },
        undo: match &settable {
            Some((settable, change)) => old(change).map(|old| settable.command(&settable.text_of(&old))),
            None => rule.undo.as_ref().map(fill_command),
        },
        permanent: match &settable {
            Some((settable, change)) => {
                let manager =
                    settable.interface().map_or(Manager::Nobody, |name| Manager::of_facts(facts, name));
                let tuned = facts.text("tuned.place").filter(|_| facts.bool("daemon.tuned") == Some(true));
                Some(settable.permanent(&change.value, &manager, tuned))
            }
            None => rule.permanent.as_ref().map(fill),
        },
        change,
        disruptive: rule.disruptive,
        source: rule.source.clone(),
        measure: rule.measure.clone(),
        set_by: None,
        remarks: Vec::new(),
    }
}

/// The worst of them.
pub fn worst(findings: &[Finding]) -> Option<Severity> {
    findings.iter().map(|f| f.severity).max()
}
