//! The rules: data in `rules/*.toml`, one file a subject, compiled in. [`Catalogue::load`] checks all of it: no unknown
//! key, no id twice, each expression and template parses and uses known words only. What is wrong names file, rule and
//! key. A test in this crate runs each rule's own examples, so that no rule stands without one that triggers it and one
//! that does not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    code,
    expr::{Expr, Template, parse},
    facts::Value,
    rule::{Condition, Confidence, Example, Gain, Role, Rule, Setting, Severity},
};

/// The files, compiled in.
const FILES: &[(&str, &str)] = &[
    ("block", include_str!("../rules/block.toml")),
    ("bonding", include_str!("../rules/bonding.toml")),
    ("clock", include_str!("../rules/clock.toml")),
    ("cpu", include_str!("../rules/cpu.toml")),
    ("filesystem", include_str!("../rules/filesystem.toml")),
    ("fuse", include_str!("../rules/fuse.toml")),
    ("health", include_str!("../rules/health.toml")),
    ("kernel", include_str!("../rules/kernel.toml")),
    ("limits", include_str!("../rules/limits.toml")),
    ("links", include_str!("../rules/links.toml")),
    ("memory", include_str!("../rules/memory.toml")),
    ("network", include_str!("../rules/network.toml")),
    ("nic", include_str!("../rules/nic.toml")),
    ("now", include_str!("../rules/now.toml")),
    ("pcie", include_str!("../rules/pcie.toml")),
    ("ropewalk", include_str!("../rules/ropewalk.toml")),
    ("tcp", include_str!("../rules/tcp.toml")),
    ("virtual", include_str!("../rules/virtual.toml")),
];

/// What is wrong with the catalogue.
#[derive(Debug, thiserror::Error)]
#[error("rules/{file}.toml: {rule}{what}")]
pub struct CatalogueError {
    file: String,
    rule: String,
    what: String,
}

/// A rule as it stands in its file. `docs/advisor.md` says how to write one. What most rules have in common is left out there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    title: String,
    each: Option<String>,
    when: Option<String>,
    code: Option<String>,
    #[serde(default, rename = "let")]
    lets: Vec<String>,
    #[serde(default = "note")]
    severity: Severity,
    #[serde(default = "small")]
    gain: Gain,
    #[serde(default = "documented")]
    confidence: Confidence,
    /// Without it the setting is the advice.
    advice: Option<String>,
    why: String,
    cost: String,
    set: Option<WrittenSetting>,
    command: Option<String>,
    undo: Option<String>,
    permanent: Option<String>,
    #[serde(default)]
    disruptive: bool,
    #[serde(default)]
    evidence: Vec<String>,
    source: String,
    #[serde(default = "first_release")]
    since: String,
    #[serde(default)]
    roles: Vec<Role>,
    measure: Option<String>,
    test: Tests,
}

fn note() -> Severity {
    Severity::Note
}
fn small() -> Gain {
    Gain::Small
}
fn documented() -> Confidence {
    Confidence::Documented
}
fn first_release() -> String {
    "0.1".to_owned()
}

/// The examples of a rule: in full, or for rules about one device its facts that trigger it and those that do not.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Tests {
    Full(Vec<Example>),
    OneDevice { yes: BTreeMap<String, Value>, no: BTreeMap<String, Value> },
}

impl Tests {
    fn examples(self, each: Option<&str>) -> Result<Vec<Example>, String> {
        let (yes, no) = match self {
            Tests::Full(examples) => return Ok(examples),
            Tests::OneDevice { yes, no } => (yes, no),
        };
        let each = each.ok_or("test: `yes` and `no` are facts of a device, so it needs `each`")?;
        let device = each.replace('*', "x");
        let below = |facts: BTreeMap<String, Value>| {
            facts.into_iter().map(|(name, value)| (format!("{device}.{name}"), value)).collect()
        };
        Ok(vec![
            Example { finds: vec![device.clone()], facts: below(yes) },
            Example { finds: Vec::new(), facts: below(no) },
        ])
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSetting {
    fact: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    assume: Vec<WrittenAssumption>,
    rule: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAssumption {
    name: String,
    value: Value,
    what: String,
}

/// What rules take for granted unless told otherwise: a threshold of our own choice, or what no host shows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Assumption {
    /// The fact that carries it: `assume.NAME`.
    pub name: String,
    /// Its value unless told otherwise.
    pub value: Value,
    /// What it is, with its unit.
    pub what: String,
}

/// All rules.
pub struct Catalogue {
    /// In the order of files and in them.
    pub rules: Vec<Rule>,
    /// What they take for granted.
    pub assumptions: Vec<Assumption>,
}

impl Catalogue {
    /// The rules compiled in.
    ///
    /// # Errors
    /// The first thing that is wrong in a file: this build's fault, found by its tests.
    pub fn load() -> Result<Catalogue, CatalogueError> {
        Catalogue::of(FILES)
    }
    /// The rule of this name.
    pub fn rule(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    fn of(files: &[(&'static str, &str)]) -> Result<Catalogue, CatalogueError> {
        let mut catalogue = Catalogue { rules: Vec::new(), assumptions: Vec::new() };
        for (file, text) in files {
            let wrong = |rule: &str, what: String| CatalogueError {
                file: (*file).to_owned(),
                rule: if rule.is_empty() { String::new() } else { format!("rule {rule}: ") },
                what,
            };
            let parsed: RuleFile = toml::from_str(text).map_err(|e| wrong("", e.to_string()))?;
            for assumption in parsed.assume {
                let WrittenAssumption { name, value, what } = assumption;
                if catalogue.assumptions.iter().any(|a| a.name == name) {
                    return Err(wrong("", format!("assumption {name} stands twice")));
                }
                catalogue.assumptions.push(Assumption { name, value, what });
            }
            for written in parsed.rule {
                let id = written.id.clone();
                if catalogue.rule(&id).is_some() {
                    return Err(wrong(&id, "its id stands twice".to_owned()));
                }
                catalogue.rules.push(compile(file, written).map_err(|what| wrong(&id, what))?);
            }
        }
        Ok(catalogue)
    }
}

fn compile(subject: &'static str, written: Written) -> Result<Rule, String> {
    let key = |key: &str, e: &dyn std::fmt::Display| format!("{key}: {e}");
    let template = |name: &str, text: &str| Template::parse(text).map_err(|e| key(name, &e));
    let optional = |name: &str, text: &Option<String>| text.as_deref().map(|t| template(name, t)).transpose();
    let condition = match (&written.when, &written.code) {
        (Some(when), None) => Condition::Expr(parse(when).map_err(|e| key("when", &e))?),
        (None, Some(code)) => {
            Condition::Code(code::find(code).ok_or_else(|| format!("there is no code {code}"))?)
        }
        _ => return Err("it needs either `when` or `code`".to_owned()),
    };
    let mut lets = Vec::new();
    for text in &written.lets {
        let (name, value) =
            text.split_once('=').ok_or_else(|| format!("let `{text}` is not NAME = VALUE"))?;
        lets.push((name.trim().to_owned(), parse(value).map_err(|e| key("let", &e))?));
    }
    let set = match &written.set {
        None => None,
        Some(set) => Some(Setting {
            fact: template("set.fact", &set.fact)?,
            value: template("set.value", &set.value)?,
        }),
    };
    if set.is_some() && written.command.is_some() {
        return Err("it has `set` and `command`: the command follows from the setting".to_owned());
    }
    let advice = match (&written.advice, &written.set) {
        (Some(advice), _) => advice.clone(),
        (None, Some(set)) => format!("Set {} to {}.", set.fact, set.value),
        (None, None) => return Err("it needs `advice`, or `set` that says it".to_owned()),
    };
    let examples = written.test.examples(written.each.as_deref())?;
    let evidence = written.evidence.iter().map(|text| parse(text).map_err(|e| key("evidence", &e)));
    let condition_text = match (&written.when, &written.code) {
        (Some(when), _) if written.lets.is_empty() => when.clone(),
        (Some(when), _) => format!("{when}, where {}", written.lets.join(", ")),
        (None, code) => format!("code {}", code.as_deref().unwrap_or_default()),
    };
    let rule = Rule {
        title: template("title", &written.title)?,
        advice: template("advice", &advice)?,
        why: template("why", &written.why)?,
        cost: template("cost", &written.cost)?,
        command: optional("command", &written.command)?,
        undo: optional("undo", &written.undo)?,
        permanent: optional("permanent", &written.permanent)?,
        evidence: evidence.collect::<Result<_, _>>()?,
        id: written.id,
        subject,
        each: written.each,
        condition,
        condition_text,
        lets,
        severity: written.severity,
        gain: written.gain,
        confidence: written.confidence,
        set,
        disruptive: written.disruptive,
        source: written.source,
        since: written.since,
        roles: written.roles,
        measure: written.measure,
        examples,
    };
    check(&rule)?;
    Ok(rule)
}

/// What no type holds: names, words, and that texts say something.
fn check(rule: &Rule) -> Result<(), String> {
    if rule.id.is_empty()
        || !rule.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    {
        return Err("an id has small letters, digits and `-`".to_owned());
    }
    if rule.source.trim().is_empty() || rule.since.trim().is_empty() {
        return Err("source and since are never empty".to_owned());
    }
    let templates = [&rule.title, &rule.advice, &rule.why, &rule.cost].into_iter();
    let templates = templates.chain([&rule.command, &rule.undo, &rule.permanent].into_iter().flatten());
    let templates = templates.chain(rule.set.iter().flat_map(|set| [&set.fact, &set.value]));
    let mut exprs: Vec<&Expr> = templates.flat_map(Template::exprs).collect();
    let mut known: Vec<&str> = vec!["name"];
    let mut words = Vec::new();
    match &rule.condition {
        Condition::Expr(expr) => exprs.push(expr),
        Condition::Code(code) => known.extend(code.gives),
    }
    known.extend(rule.lets.iter().map(|(name, _)| name.as_str()));
    exprs.extend(rule.lets.iter().map(|(_, expr)| expr).chain(&rule.evidence));
    exprs.into_iter().for_each(|expr| expr.locals(&mut words));
    match words.iter().find(|word| !known.contains(&word.as_str())) {
        Some(word) => {
            Err(format!("`{word}` is neither a `let` nor a fact (facts have a point in their name)"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{Origin, rank};

    #[test]
    fn each_rule_finds_what_its_examples_say() {
        let catalogue = Catalogue::load().unwrap_or_else(|e| panic!("{e}"));
        let mut wrong = Vec::new();
        for rule in &catalogue.rules {
            let (with, without): (Vec<_>, Vec<_>) = rule.examples.iter().partition(|e| !e.finds.is_empty());
            if with.is_empty() || without.is_empty() {
                wrong.push(format!("{}: one example that triggers it, one that does not", rule.id));
            }
            for example in &rule.examples {
                let mut facts = rank::assumed(&catalogue);
                for (path, value) in &example.facts {
                    facts.insert(path.as_str(), value.clone(), Origin::of("example"));
                }
                let found = rank::apply_rule(rule, &facts);
                let names = |f: &crate::Finding| f.device.clone().unwrap_or_else(|| "host".to_owned());
                let found_names: Vec<String> = found.iter().map(names).collect();
                if found_names != example.finds {
                    wrong.push(format!("{}: finds {found_names:?}, not {:?}", rule.id, example.finds));
                }
                for finding in found {
                    if let Some(text) = finding.texts().find(|text| text.contains('?')) {
                        wrong.push(format!("{}: a value is not known: {text}", rule.id));
                    }
                    if finding.evidence.is_empty() {
                        wrong.push(format!("{}: no evidence", rule.id));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The rule by which the documentation says how to add one is a rule of ours, as it stands, in ten lines with its tests;
    /// [`each_rule_finds_what_its_examples_say`] runs them.
    #[test]
    fn a_rule_takes_the_ten_lines_that_the_documentation_shows() {
        let page = include_str!("../../../docs/advisor.md");
        let (_, text) = page.split_once("```toml\n").unwrap();
        let (text, _) = text.split_once("```").unwrap();
        assert!(text.lines().count() <= 10 && text.lines().all(|line| line.len() <= 120), "{text}");
        assert!(include_str!("../rules/block.toml").contains(text), "{text}");
        let catalogue = Catalogue::of(&[("new", text)]).unwrap_or_else(|e| panic!("{e}"));
        let [rule] = &catalogue.rules[..] else { panic!("one rule") };
        assert_eq!(rule.examples.iter().filter(|e| e.finds.is_empty()).count(), 1);
        assert_eq!(rule.examples.len(), 2);
    }

    #[test]
    fn every_file_of_rules_is_compiled_in() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
        let mut there: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        let mut compiled: Vec<String> = FILES.iter().map(|(file, _)| format!("{file}.toml")).collect();
        compiled.sort();
        assert_eq!(there, compiled);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = r#"
            [[rule]]
            id = "a-rule"
            title = "t"
            when = "x.y > need"
            let = ["need = 3"]
            severity = "note"
            gain = "small"
            confidence = "practice"
            advice = "raise it to {need}"
            why = "w"
            cost = "c"
            source = "s"
            since = "0.1"
            test = []
        "#;
        assert_eq!(Catalogue::of(&[("f", good)]).unwrap().rules[0].looks_at(), ["x.y"]);
        for (from, to, what) in [
            ("id = ", "colour = \"red\"\nid = ", "colour"),
            ("a-rule", "A Rule", "small letters"),
            ("x.y > need", "x.y > need and", "when: `x.y > need and`"),
            ("x.y > need", "x.y > ned", "`ned` is neither"),
            ("{need}", "{nee}", "`nee` is neither"),
            ("let = [\"need = 3\"]", "let = [\"need\"]", "not NAME = VALUE"),
            ("when = \"x.y > need\"", "code = \"nothing\"", "no code nothing"),
            ("when = \"x.y > need\"", "", "either `when` or `code`"),
            ("advice = \"raise it to {need}\"", "", "needs `advice`"),
            ("test = []", "test = { yes = {}, no = {} }", "needs `each`"),
            ("source = \"s\"", "source = \" \"", "source"),
            ("severity = \"note\"", "severity = \"loud\"", "loud"),
        ] {
            let error = Catalogue::of(&[("f", &good.replace(from, to))]).err().unwrap().to_string();
            assert!(error.contains(what) && error.starts_with("rules/f.toml"), "{to}: {error}");
        }
        let twice = Catalogue::of(&[("f", good), ("g", good)]).err().unwrap().to_string();
        assert!(twice.contains("rules/g.toml: rule a-rule: its id stands twice"), "{twice}");
    }
}
