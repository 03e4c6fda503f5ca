//! What a staging came to.

use serde::Serialize;

use crate::verdict::Confidence;

/// How the lab's answer compares with what was staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It named the bottleneck and its place, or did not name one that was not there.
    Right,
    /// It said that it does not know.
    NotKnown,
    /// It named something else.
    Wrong,
    /// It named something else while others used the machine, each time.
    NotJudged,
    /// It cannot be staged here, or its run failed.
    NotStaged,
}

/// One staging and its answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Trial {
    /// What was staged.
    pub staging: String,
    /// Whether the bottleneck was there.
    pub bottleneck: bool,
    /// How the answer compares.
    pub answer: Answer,
    /// What was expected, and where.
    pub wanted: String,
    /// What the lab said, or why it was not staged.
    pub said: String,
    /// How sure it was.
    pub confidence: Option<Confidence>,
    /// The figures that the lab rests its answer on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// How often it was staged: again where others used the machine and the answer was not right.
    pub stagings: u32,
}

impl Trial {
    /// A wrong name with high confidence: a defect.
    pub fn defect(&self) -> bool {
        self.answer == Answer::Wrong && self.confidence == Some(Confidence::High)
    }
}
