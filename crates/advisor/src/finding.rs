//! What a rule found: what is wrong, what should be, and what that is expected to bring.

use serde::Serialize;

use crate::{
    facts::Path,
    rule::{Confidence, Gain, Severity, score},
};

/// A fact that made a rule apply.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Evidence {
    /// Its name.
    pub fact: String,
    /// As it was written.
    pub value: String,
    /// Where it stood.
    pub origin: String,
}

/// A setting to be made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    /// The fact that is to change.
    pub fact: Path,
    /// What it is to be, as it is written to the system.
    pub value: String,
}

/// What a rule found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// The rule.
    pub rule: String,
    /// How much it matters.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub title: String,
    /// The device it is about; none for the machine.
    pub device: Option<String>,
    /// The facts that made it apply here.
    pub evidence: Vec<Evidence>,
    /// What should be.
    pub advice: String,
    /// Why.
    pub why: String,
    /// What it costs if ignored.
    pub cost: String,
    /// What following it brings.
    pub gain: Gain,
    /// How sure that is.
    pub confidence: Confidence,
    /// The setting, where `advise apply` can make it.
    pub change: Option<Change>,
    /// The command that does it.
    pub command: Option<String>,
    /// The command that takes it back.
    pub undo: Option<String>,
    /// What makes it last.
    pub permanent: Option<String>,
    /// Whether doing it interrupts something.
    pub disruptive: bool,
    /// The document it comes from.
    pub source: String,
    /// The plan of the lab that measures it.
    pub measure: Option<String>,
    /// What sets the value here by a profile that somebody chose: it is changed only by name.
    pub set_by: Option<String>,
    /// What other findings or programs have to do with it.
    pub remarks: Vec<String>,
}

impl Finding {
    /// What following it is expected to bring, weighed by how sure that is.
    pub fn score(&self) -> u32 {
        score(self.gain, self.confidence)
    }
    /// All its texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let always = [&self.title, &self.advice, &self.why, &self.cost].into_iter();
        let perhaps = [&self.command, &self.undo, &self.permanent].into_iter().flatten();
        always.chain(perhaps).map(String::as_str)
    }
}
