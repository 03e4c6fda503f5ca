//! The rules for dumps: rows of `dump_rules/*.toml`, each decided by one value and a condition, or by a check that computes.
//! A row says what a finding means; who decides gives the evidence. Every row holds an input that triggers it and one that
//! does not, and a test tries both.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde::{Deserialize, Serialize};

use super::{
    bridge,
    checks::CHECKS,
    split::Document,
    text::number,
    view::{Hit, Judgement, Report, View},
};
use crate::{
    catalogue::Catalogue,
    rank,
    rule::{Confidence, Gain, Role, Severity, score},
};

/// One rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub id: String,
    /// What is wrong where it applies, in a few words.
    pub title: String,
    /// How much it matters.
    pub severity: Severity,
    /// What following the advice is expected to bring; without it what rules of its severity mostly bring.
    #[serde(default)]
    gain: Option<Gain>,
    /// How sure that is.
    #[serde(default = "documented")]
    confidence: Confidence,
    /// Why, in a sentence.
    pub why: String,
    /// What to do.
    pub advice: String,
    /// Document and item it comes from.
    pub source: String,
    /// The steps that change it, by the name of a run book, where it cannot be changed from here.
    #[serde(default)]
    pub run_book: Option<String>,
    /// The value it looks at; none where a check computes.
    #[serde(default)]
    pub look: Option<String>,
    /// The condition on that value: `= no`, `!= yes`, `< 2048`, `in a b`.
    #[serde(default)]
    pub bad_if: Option<String>,
    /// Whether it is about a switch: then it concerns no other role, and a switch nothing else.
    #[serde(skip)]
    pub of_switch: bool,
    /// Whether the inputs below are pieces of an article.
    #[serde(default)]
    pub article: bool,
    /// An input that triggers it.
    pub bad: String,
    /// One that does not.
    pub good: String,
}

fn documented() -> Confidence {
    Confidence::Documented
}

impl Row {
    /// What following the advice is expected to bring.
    pub fn gain(&self) -> Gain {
        self.gain.unwrap_or(match self.severity {
            Severity::Note => Gain::Small,
            Severity::Warning => Gain::Medium,
            Severity::Critical => Gain::Outage,
        })
    }
}

#[derive(Deserialize)]
struct File {
    rule: Vec<Row>,
}

const FILES: [(&str, &str); 5] = [
    ("aix.toml", include_str!("../../dump_rules/aix.toml")),
    ("scale.toml", include_str!("../../dump_rules/scale.toml")),
    ("switch.toml", include_str!("../../dump_rules/switch.toml")),
    ("power.toml", include_str!("../../dump_rules/power.toml")),
    ("sources.toml", include_str!("../../dump_rules/sources.toml")),
];

/// All rows. A file that does not parse is a mistake of this build, which a test finds; it has no rows then.
pub static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let files = FILES.iter().filter_map(|(name, text)| Some((name, toml::from_str::<File>(text).ok()?)));
    files
        .flat_map(|(name, file)| {
            let of_switch = |row: Row| Row { of_switch: *name == "switch.toml", ..row };
            file.rule.into_iter().map(of_switch)
        })
        .collect()
});

/// A judgement with what its rule says.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// What was seen, and where.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// How much it matters; only where it is not in order.
    pub severity: Severity,
    /// What following the advice is expected to bring.
    pub gain: Gain,
    /// How sure that is.
    pub confidence: Confidence,
    /// What is wrong, in a few words.
    pub title: Cow<'static, str>,
    /// Why it matters.
    pub why: Cow<'static, str>,
    /// What to do.
    pub advice: Cow<'static, str>,
    /// Document and item.
    pub source: &'static str,
    /// The run book of the change.
    pub run_book: Option<&'static str>,
}

/// Every verdict on a document: what is not in order first, by what it is expected to bring, then what is in order.
pub fn judge(doc: &Document) -> Vec<Verdict> {
    judge_for(doc, None)
}

/// The verdicts that concern a role.
pub fn judge_for(doc: &Document, role: Option<Role>) -> Vec<Verdict> {
    let view = View::new(doc);
    let mut report = Report::default();
    for row in ROWS.iter() {
        by_value(row, &view, &mut report);
    }
    CHECKS.iter().for_each(|check| check(&view, &mut report));
    let mut verdicts: Vec<Verdict> = report.judgements.into_iter().filter_map(|j| of_row(j, role)).collect();
    if role != Some(Role::Switch) {
        of_linux(doc, role, &mut verdicts);
    }
    let first_line = |v: &Verdict| v.judgement.evidence.first().map_or(0, |e| e.0);
    verdicts.sort_by_key(|v| {
        let expected = if v.judgement.good { 0 } else { score(v.gain, v.confidence) };
        (v.judgement.good, Reverse((expected, v.severity)), first_line(v))
    });
    one_each(&mut verdicts);
    verdicts
}

/// What is in order by one rule in several places is said once, with all of them.
fn one_each(verdicts: &mut Vec<Verdict>) {
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kept: Vec<Verdict> = Vec::new();
    for verdict in verdicts.drain(..) {
        match at.get(verdict.judgement.rule).filter(|_| verdict.judgement.good) {
            Some(&of_rule) => {
                let Judgement { what, evidence, .. } = &mut kept[of_rule].judgement;
                *what = format!("{what}; {}", verdict.judgement.what);
                evidence.extend(verdict.judgement.evidence);
                evidence.sort();
                evidence.dedup();
            }
            None => {
                if verdict.judgement.good {
                    at.insert(verdict.judgement.rule, kept.len());
                }
                kept.push(verdict);
            }
        }
    }
    *verdicts = kept;
}

fn of_row(judgement: Judgement, role: Option<Role>) -> Option<Verdict> {
    let row = ROWS.iter().find(|row| row.id == judgement.rule)?;
    if role.is_some_and(|role| row.of_switch != (role == Role::Switch)) {
        return None;
    }
    Some(Verdict {
        judgement,
        severity: row.severity,
        gain: row.gain(),
        confidence: row.confidence,
        title: Cow::Borrowed(&row.title),
        why: Cow::Borrowed(&row.why),
        advice: Cow::Borrowed(&row.advice),
        source: &row.source,
        run_book: row.run_book.as_deref(),
    })
}

/// The rules for hosts; a file that does not load is a mistake of this build, which a test finds.
static HOST_RULES: LazyLock<Option<Catalogue>> = LazyLock::new(|| Catalogue::load().ok());

/// Rules for hosts that say what a rule for dumps says as well: this one saw more of the dump.
const SAID: [(&str, &str); 14] = [
    ("bond-hash-inert", "bond-policy-inert"),
    ("bond-hash-without-ports", "bond-policy-without-ports"),
    ("bond-round-robin", "dump-bond-round-robin"),
    ("bond-no-monitor", "dump-bond-no-monitor"),
    ("bond-members-speed", "bond-members-differ"),
    ("bond-aggregators-differ", "dump-bond-aggregators-differ"),
    ("bond-member-down", "dump-bond-member-down"),
    ("pcie-link-narrow", "pcie-narrow"),
    ("pcie-link-slow", "pcie-slow"),
    ("cpu-numa-scattered", "numa-fragmented"),
    ("cpu-numa-scattered", "numa-two-topologies"),
    ("memory-swappiness", "sysctl-swappiness"),
    ("nic-ring-half", "ring-small"),
    ("cpu-numa-many-nodes", "numa-fragmented"),
];

/// What the rules for hosts say of what Linux printed. Those about Ropewalk's own settings do not: a dump shows none.
fn of_linux(doc: &Document, role: Option<Role>, verdicts: &mut Vec<Verdict>) {
    let Some(catalogue) = HOST_RULES.as_ref() else { return };
    let seen = bridge::facts(doc);
    if seen.is_empty() {
        return;
    }
    let said: BTreeSet<&str> = verdicts.iter().map(|verdict| verdict.judgement.rule).collect();
    let mut facts = rank::assumed(catalogue);
    facts.extend(seen);
    for finding in rank::advise(catalogue, &facts, role.as_slice()) {
        let Some(rule) = catalogue.rule(&finding.rule) else { continue };
        let repeats = SAID.iter().any(|(host, dump)| *host == rule.id && said.contains(dump));
        if repeats || ["ropewalk", "fuse"].contains(&rule.subject) {
            continue;
        }
        let of_dump = finding.evidence.iter().filter_map(|evidence| {
            let line = facts.get(&evidence.fact)?.origin.line?;
            Some((line, format!("{} = {}", evidence.fact, evidence.value)))
        });
        let mut evidence: Vec<(u32, String)> = of_dump.collect();
        evidence.sort();
        let mut what = finding.title.clone();
        if let Some(command) = &finding.command {
            what = format!("{what}: {command}");
        }
        verdicts.push(Verdict {
            judgement: Judgement { rule: &rule.id, good: false, what, evidence },
            severity: finding.severity,
            gain: finding.gain,
            confidence: finding.confidence,
            title: Cow::Owned(finding.title),
            why: Cow::Owned(finding.why),
            advice: Cow::Owned(finding.advice),
            source: &rule.source,
            run_book: None,
        });
    }
}

/// A row that one value decides.
fn by_value(row: &'static Row, view: &View<'_>, report: &mut Report) {
    let (Some(look), Some(condition)) = (&row.look, &row.bad_if) else { return };
    let hits = view.all(look);
    let (bad, good): (Vec<Hit<'_>>, Vec<Hit<'_>>) =
        hits.into_iter().partition(|hit| holds(condition, hit.value()));
    for hit in &bad {
        report.bad(&row.id, &[*hit], hit.shown());
    }
    if bad.is_empty() && !good.is_empty() {
        let mut shown: Vec<String> = good.iter().map(Hit::shown).collect();
        shown.dedup();
        let more = if shown.len() > 3 { format!(" and {} more", shown.len() - 3) } else { String::new() };
        let shown = shown.into_iter().take(3).collect::<Vec<_>>().join(", ");
        report.good(&row.id, &good, format!("{shown}{more}"));
    }
}

/// Whether a value has what a condition says; a number that is none has not.
fn holds(condition: &str, value: &str) -> bool {
    let (operator, wanted) = condition.split_once(' ').unwrap_or((condition, ""));
    let numbers = || number(value).zip(number(wanted));
    match operator {
        "=" => value.eq_ignore_ascii_case(wanted) || numbers().is_some_and(|(a, b)| a == b),
        "!=" => !holds(&format!("= {wanted}"), value),
        "<" => numbers().is_some_and(|(a, b)| a < b),
        ">" => numbers().is_some_and(|(a, b)| a > b),
        "in" => wanted.split(' ').any(|word| word.eq_ignore_ascii_case(value)),
        "has" => value.to_lowercase().contains(&wanted.to_lowercase()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::split::document, *};

    #[test]
    fn every_file_parses_and_every_rule_has_one_row() {
        for (name, text) in FILES {
            if let Err(error) = toml::from_str::<File>(text) {
                panic!("{name}: {error}");
            }
        }
        let mut ids: Vec<&str> = ROWS.iter().map(|row| row.id.as_str()).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all, "a rule twice");
        assert!(ROWS.iter().all(|row| row.look.is_some() == row.bad_if.is_some()));
    }

    /// Sentences that state nothing, and make an article of what follows them.
    const SENTENCES: &str = "This page tells of a test that was done in a room with some machines and people.\n\
        It tells of what they saw there and of what they would do the next time they came.\n\
        Nothing of that can be judged here as there is no number in any of these sentences.\n\n\n\n";

    #[test]
    fn every_rule_applies_where_it_should_and_nowhere_else() {
        let mut wrong = Vec::new();
        for row in ROWS.iter() {
            let input = |text: &str| if row.article { format!("{SENTENCES}{text}") } else { text.to_owned() };
            let (bad, good) = (input(&row.bad), input(&row.good));
            let found = |text: &str| {
                judge(&document("x", text.as_bytes()))
                    .into_iter()
                    .filter(|v| v.judgement.rule == row.id && !v.judgement.good)
                    .count()
            };
            if found(&bad) == 0 {
                let read = document("x", bad.as_bytes());
                wrong.push(format!(
                    "{} is not found in:\n{bad}\n{:?}",
                    row.id,
                    read.entries().collect::<Vec<_>>()
                ));
            }
            if found(&good) > 0 {
                wrong.push(format!("{} is found in:\n{good}", row.id));
            }
            // The input that is in order is read as well: an empty one would prove nothing.
            if document("x", good.as_bytes()).entries().next().is_none() {
                wrong.push(format!("{}: nothing is read of:\n{good}", row.id));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    #[test]
    fn conditions() {
        for (condition, value, want) in [
            ("= no", "No", true),
            ("!= yes", "no", true),
            ("< 2K", "1024", true),
            ("> 60", "40", false),
            ("in a b", "b", true),
            ("has half", "Duplex: Half", true),
            ("< 5", "many", false),
            ("", "", false),
        ] {
            assert_eq!(holds(condition, value), want, "{condition} of {value}");
        }
    }
}
