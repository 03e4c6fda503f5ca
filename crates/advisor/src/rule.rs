//! What a rule is: when it applies, what it says, how much that matters. [`crate::catalogue`] reads them from their files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    code::CodeRule,
    expr::{Expr, Template},
    facts::Value,
};

/// How much it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something has no effect or could be better.
    Note,
    /// Throughput is lost, or something does not do what was wanted.
    Warning,
    /// It fails, or it will.
    Critical,
}

/// What following the advice is expected to bring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gain {
    /// Tidier, or only seen in special cases.
    Small,
    /// Some of the throughput or the latency of what is concerned.
    Medium,
    /// A large part of it, such as one of two links.
    Large,
    /// That it works at all, or goes on working.
    Outage,
}

/// How sure the rule's source is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Common practice, or an own choice.
    Practice,
    /// The maker's or the kernel's documentation says it.
    Documented,
    /// Measured in the source, or follows from what the machine itself reports.
    Measured,
}

/// What following an advice is expected to bring, weighed by how sure that is; larger is better. The weights are our own
/// choice: each class of gain stands for about three times the one below it.
pub fn score(gain: Gain, confidence: Confidence) -> u32 {
    let gain = match gain {
        Gain::Small => 3,
        Gain::Medium => 10,
        Gain::Large => 30,
        Gain::Outage => 100,
    };
    let confidence = match confidence {
        Confidence::Practice => 5,
        Confidence::Documented => 8,
        Confidence::Measured => 10,
    };
    gain * confidence
}

/// Whom a rule concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the glossary says it")]
pub enum Role {
    Client,
    Server,
    Manager,
    Switch,
}

impl std::str::FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Role, String> {
        match text {
            "client" => Ok(Role::Client),
            "server" => Ok(Role::Server),
            "manager" => Ok(Role::Manager),
            "switch" => Ok(Role::Switch),
            _ => Err(format!("{text} is no role: client, server, manager or switch")),
        }
    }
}

/// Facts, and what the rule finds on them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// The devices it is to find; `host` where the rule is not about devices.
    pub finds: Vec<String>,
    /// The facts.
    pub facts: BTreeMap<String, Value>,
}

/// How a rule decides.
pub enum Condition {
    /// By an expression.
    Expr(Expr),
    /// By code.
    Code(CodeRule),
}

/// A setting the rule would make: which fact shall have which value.
pub struct Setting {
    /// The fact's name.
    pub fact: Template,
    /// The value.
    pub value: Template,
}

/// One rule.
pub struct Rule {
    /// Its name, such as `bond-hash-without-ports`.
    pub id: String,
    /// What is found, in one line.
    pub title: Template,
    /// The file it stands in: its subject.
    pub subject: &'static str,
    /// The devices it is applied to, one after the other; none if it is about the machine.
    pub each: Option<String>,
    /// When it applies.
    pub condition: Condition,
    /// Condition and `let`s as written, for people.
    pub condition_text: String,
    /// Values with names, computed in this order.
    pub lets: Vec<(String, Expr)>,
    /// How much it matters.
    pub severity: Severity,
    /// What following it brings.
    pub gain: Gain,
    /// How sure the source is.
    pub confidence: Confidence,
    /// What should be.
    pub advice: Template,
    /// Why, in one sentence.
    pub why: Template,
    /// What it costs if ignored.
    pub cost: Template,
    /// The setting that does it, where one does: command, undo and the permanent form follow from it.
    pub set: Option<Setting>,
    /// The command that does it, where no setting does.
    pub command: Option<Template>,
    /// The command that takes it back.
    pub undo: Option<Template>,
    /// What makes it last over a reboot.
    pub permanent: Option<Template>,
    /// Whether doing it interrupts something.
    pub disruptive: bool,
    /// Facts to show, beside those the condition looked at.
    pub evidence: Vec<Expr>,
    /// The document it comes from, and where in it.
    pub source: String,
    /// The release of Ropewalk that has it first.
    pub since: String,
    /// Whom it concerns; all if there are none.
    pub roles: Vec<Role>,
    /// The plan of the lab that measures it.
    pub measure: Option<String>,
    /// Facts with what it finds.
    pub examples: Vec<Example>,
}

impl Rule {
    /// The facts it looks at; those of its device with the pattern of `each` before them.
    pub fn looks_at(&self) -> Vec<String> {
        let mut seen = Vec::new();
        match &self.condition {
            Condition::Expr(expr) => expr.looks_at(&mut seen),
            Condition::Code(code) => seen.extend(code.looks_at.iter().map(|path| (*path).to_owned())),
        }
        self.lets.iter().for_each(|(_, expr)| expr.looks_at(&mut seen));
        let device = self.each.as_deref().unwrap_or_default();
        seen.into_iter()
            .map(|path| if path.starts_with('.') { format!("{device}{path}") } else { path })
            .collect()
    }
}
