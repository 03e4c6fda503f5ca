//! One cell of a run: what is measured, and the record of what came out. A record is one JSON line of the
//! results directory; everything the report, the verdict and the comparison say comes from these lines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    observe::{Usage, median},
    plan::{Figure, Params, Step},
    workload::{Job, Outcome},
};

/// Why a cell is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A combination of a step; the best of them is the step's point.
    Point,
    /// One part alone, with the parameters that were best at the first step.
    Part,
}

/// What one cell measures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Its plan.
    pub plan: String,
    /// Its series.
    pub series: String,
    /// Why.
    pub role: Role,
    /// What is stepped.
    pub of: Step,
    /// How many parts take part.
    pub step: u32,
    /// Which of the parts is the first.
    pub first: u32,
    /// Parameters of the engine.
    pub params: Params,
    /// Which repetition, from 0.
    pub repeat: u32,
}

impl Cell {
    /// Its name in a run: the same cell of a resumed run has the same.
    pub fn id(&self) -> String {
        let params: Vec<String> = self.params.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let role = match self.role {
            Role::Point => String::new(),
            Role::Part => format!("part={}/", self.first),
        };
        let params = params.join(",");
        format!("{}/{}/{role}step={}/{params}/{}", self.plan, self.series, self.step, self.repeat)
    }
}

/// Latency in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// One second of a load that changes while it runs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Second {
    /// Parts at work in it.
    pub parts: u32,
    /// Operations that ended in it.
    pub operations: u64,
    /// Counts by latency: bucket `i` has those from 2^i to 2^(i+1) microseconds, bucket 0 also those below.
    pub buckets: Vec<u64>,
}

/// What a cell reached.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Operations a second.
    pub operations: f64,
    /// Bytes of payload a second.
    pub bytes: f64,
    /// Latency of an operation, where the engine tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// What each part reached, in the series' figure, where the engine tells it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, f64>,
    /// Second by second, where the load changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Second>,
    /// The jobs of a workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<Job>,
    /// Why the store had one submission queue only, whatever was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_queue: Option<String>,
    /// What the engine says beside: placement, fallbacks, remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Figures {
    /// Why the cell failed although there are figures: jobs of a workload that did not give what was expected.
    pub fn wrong(&self) -> Option<String> {
        let bad = || self.jobs.iter().filter(|job| job.outcome != Outcome::Right);
        let first = bad().next()?;
        let why = match &first.outcome {
            Outcome::Wrong(why) => format!("wrong: {why}"),
            Outcome::Failed(why) => format!("failed: {why}"),
            Outcome::Right => String::new(),
        };
        Some(format!("{} of {} jobs are not right; {}: {why}", bad().count(), self.jobs.len(), first.name()))
    }

    /// The counted figure.
    pub fn value(&self, figure: Figure) -> f64 {
        match figure {
            Figure::Operations => self.operations,
            Figure::Bytes => self.bytes,
            Figure::Seconds => median(&self.jobs.iter().map(|job| job.used.real_s).collect::<Vec<_>>()),
        }
    }
}

/// A cell that was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The cell's name.
    pub id: String,
    /// The cell.
    pub cell: Cell,
    /// Milliseconds since 1970 at its start.
    pub started_ms: u64,
    /// Wall time with preparation, in seconds.
    pub wall_seconds: f64,
    /// What it reached; absent if it failed.
    pub figures: Option<Figures>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What was busy meanwhile.
    pub usage: Usage,
    /// The command lines that made the load.
    pub commands: Vec<String>,
    /// Links that the load was meant to spread over, where the run made them itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundle: Vec<String>,
}

impl Record {
    /// The counted figure; `None` if it failed.
    pub fn value(&self, figure: Figure) -> Option<f64> {
        self.figures.as_ref().map(|figures| figures.value(figure))
    }

    /// Its beginning and its end, microseconds since 1970.
    pub fn span_us(&self) -> (i64, i64) {
        let from = i64::try_from(self.started_ms).unwrap_or(i64::MAX).saturating_mul(1000);
        (from, from.saturating_add((self.wall_seconds * 1e6) as i64))
    }
}
