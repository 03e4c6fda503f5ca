//! Plans: what to step up, with which engine and parameters, and what a source reached. A plan is a TOML text;
//! reading one touches nothing else. Every error names the line and the key.
//!
//! ```toml
//! name = "device-scaling"          # a-z, 0-9, -
//! title = "..."                    # one line for listings
//! source = "..."                   # where the experiment comes from
//! about = "..."                    # what it answers
//! step = "devices"                 # what is stepped: see `Step`
//! steps = [1, 2, "n"]              # "n" = all that were named; "1..n", "1..8" = each
//! seconds = 120                    # of each cell
//! pick = { key = "mtu" }           # optional: the report says what each value of this key of `each` gave; with cross = "size"
//!                                  # also at which of the sizes one begins to give more than another; with also = ["KEY"]
//!                                  # the same of other keys, each by itself
//! [targets]                        # optional; the command line adds to it
//! devices = ["/dev/nvme0n1"]       # only read
//! writable = ["/dev/nvme1n1"]      # read and written
//! [[series]]                       # one line of the chart
//! name = "randread"
//! engine = "fio"
//! figure = "operations"            # or "bytes"
//! set = { rw = "randread" }        # the same in all cells
//! matrix = { iodepth = [1, 8] }    # every combination is a cell; the best of a step is its point
//! each = { mtu = [1500, 9000] }    # every combination is a series of its own
//! ceiling = [{ layer = "link", series = "one-link", times = 2 }]   # a bound that another series measured
//! [short]                          # what the short form has in place of the above
//! seconds = 1
//! steps = [1, 2]
//! repeats = 1
//! matrix = { iodepth = [1] }
//! [[reference]]                    # the source's own figures, shown for shape
//! at = 28
//! value = 28.9e6
//! of = "randread"
//! what = "97 % of expected"
//! ```

mod fio_job;
mod read;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;
pub use read::PlanError;

/// Parameters of a cell, by name. Values are as an engine's command line has them.
pub type Params = BTreeMap<String, String>;

/// What is stepped up. The parts of a step are what the expected maximum is summed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Disks, block devices or files.
    Devices,
    /// Pairs of ports: a client address and a server address each.
    Pairs,
    /// TCP connections between two nodes.
    Connections,
    /// Submission queues.
    Queues,
    /// Client nodes.
    Nodes,
    /// Writers, one more each second.
    Writers,
    /// Worker threads of the load, on as many client nodes as the parameter `clients` says.
    Workers,
    /// Periods of a steady load, one after the other: each is expected to give what the first ones gave.
    Periods,
}

impl Step {
    /// Its word for `n` parts.
    pub fn unit(self) -> &'static str {
        match self {
            Step::Devices => "devices",
            Step::Pairs => "pairs",
            Step::Connections => "connections",
            Step::Queues => "queues",
            Step::Nodes => "client nodes",
            Step::Writers => "writers",
            Step::Workers => "workers",
            Step::Periods => "periods",
        }
    }
    /// So many of them in words: `1 device`, `2 devices`.
    pub fn count(self, n: u32) -> String {
        let unit = self.unit();
        format!("{n} {}", if n == 1 { unit.trim_end_matches('s') } else { unit })
    }
    /// The layer that one part stands for.
    pub fn layer(self) -> &'static str {
        match self {
            Step::Devices => "device",
            Step::Pairs => "link",
            Step::Connections => "connection",
            Step::Queues => "queue",
            Step::Nodes => "client",
            Step::Writers => "writer",
            Step::Workers => "worker",
            Step::Periods => "period",
        }
    }
    /// Whether the parts make the load, so that reaching their sum means that there are too few of them.
    pub fn is_load(self) -> bool {
        matches!(self, Step::Connections | Step::Nodes | Step::Writers | Step::Workers)
    }
    /// How many times one part alone `n` of them promise.
    pub fn promises(self, n: u32) -> f64 {
        if self == Step::Periods { 1.0 } else { f64::from(n) }
    }
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Operations a second.
    Operations,
    /// Bytes of payload a second.
    Bytes,
    /// How long a job of a workload took. Of each test, in comparisons; no series is drawn by it.
    #[serde(skip_deserializing)]
    Seconds,
}

impl Figure {
    /// The speed that a value stands for: more is faster.
    pub fn speed(self, value: f64) -> f64 {
        if self == Figure::Seconds { 1.0 / value } else { value }
    }
    /// By what part of itself the speed changed.
    pub fn faster_by(self, before: f64, after: f64) -> f64 {
        self.speed(after) / self.speed(before) - 1.0
    }
}

/// A plan with either its full or its short form chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// What it answers.
    pub about: String,
    /// Whether this is the short form.
    pub short: bool,
    /// What is stepped.
    pub step: Step,
    /// The steps as written.
    pub steps: Steps,
    /// Seconds of each cell.
    pub seconds: f64,
    /// How often each point is measured; the median counts.
    pub repeats: u32,
    /// The parameter of which the report says what each value gave.
    #[serde(default)]
    pub pick: Option<Pick>,
    /// Devices and directories named in the plan.
    pub targets: PlanTargets,
    /// The lines of the chart.
    pub series: Vec<Series>,
    /// The source's own figures.
    pub reference: Vec<Reference>,
}

/// A parameter of which the report says what each of its values gave, other things equal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pick {
    /// A key of a series' `each`.
    pub key: String,
    /// Other such keys, of which the report says the same, each by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// A rule of thumb to be held against it.
    #[serde(default)]
    pub rule: Option<Rule>,
    /// Another key of `each`, whose values are sizes: the report says at which of them one picked value begins to give more than
    /// another.
    #[serde(default)]
    pub cross: Option<String>,
}

/// A rule of thumb: the picked value is another key's, so many times.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The other key of `each`; its values are sizes.
    pub of: String,
    /// How many times.
    pub times: u64,
}

/// What a machine without near and far memory cannot show.
const ONE_NODE: &str =
    "this machine has one NUMA node: no CPU and no memory is near or far, so there is nothing to see";

/// One line of the chart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Its name, unique in the plan.
    pub name: String,
    /// What makes the load.
    pub engine: EngineKind,
    /// What is counted.
    pub figure: Figure,
    /// Parameters of all cells.
    pub set: Params,
    /// Every combination is a cell.
    pub matrix: BTreeMap<String, Vec<String>>,
    /// Bounds that other series measure.
    pub ceiling: Vec<CeilingFrom>,
}

impl Series {
    /// Why it cannot be measured on a machine with so many NUMA nodes.
    pub fn absent(&self, numa_nodes: u32) -> Option<&'static str> {
        let near_and_far = ["numa_cpu_nodes", "far"].iter().any(|key| self.set.contains_key(*key));
        (near_and_far && numa_nodes < 2).then_some(ONE_NODE)
    }
    /// Every combination of the matrix, joined to the fixed parameters.
    pub fn combinations(&self) -> Vec<Params> {
        product(&self.matrix)
            .into_iter()
            .map(|mut params| {
                params.extend(self.set.iter().map(|(k, v)| (k.clone(), v.clone())));
                params
            })
            .collect()
    }
}

/// A bound that another series measures: its best point, so many times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeilingFrom {
    /// The layer's name, such as `link`.
    pub layer: String,
    /// The series; the beginning of a name is enough, the best of those counts.
    pub series: String,
    /// How often it is there.
    #[serde(default = "one")]
    pub times: f64,
}

/// A figure of the source, for shape only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Step.
    pub at: f64,
    /// Value in the figure's unit; absent where the source gives a ratio only.
    pub value: Option<f64>,
    /// Which series.
    pub of: String,
    /// What the source says of it.
    pub what: String,
}

/// Devices and directories named in a plan.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanTargets {
    /// Block devices or files that are only read.
    pub devices: Vec<String>,
    /// Block devices, files or directories that may be written.
    pub writable: Vec<String>,
    /// NVMe devices whose interrupt coalescing may be set; it is set back.
    pub changeable: Vec<String>,
    /// Pairs of addresses, client first, as `10.0.0.1=10.0.0.2`; a side may begin with `NAMESPACE@`.
    pub pairs: Vec<String>,
    /// Links that connections should spread over, `NAMESPACE/NAME` or `NAME`.
    pub links: Vec<String>,
}

/// Which steps: numbers, and "n" for all parts there are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Steps {
    /// `"1..n"`, or with a number in place of n.
    Range(String),
    /// Numbers and `"n"`.
    List(Vec<StepValue>),
}

/// A number of parts, or `"n"`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StepValue {
    /// So many.
    Number(u32),
    /// `"n"`.
    All(String),
}

impl Steps {
    /// The steps for `n` parts, ascending, each at most `n`.
    pub fn resolve(&self, n: u32) -> Vec<u32> {
        let mut steps: Vec<u32> = match self {
            Steps::Range(_) => (1..=self.most().unwrap_or(n).min(n)).collect(),
            Steps::List(list) => list
                .iter()
                .map(|value| match value {
                    StepValue::Number(number) => *number,
                    StepValue::All(_) => n,
                })
                .filter(|&number| (1..=n).contains(&number))
                .collect(),
        };
        steps.sort_unstable();
        steps.dedup();
        steps
    }
    /// The highest number that is written.
    pub fn most(&self) -> Option<u32> {
        let list = match self {
            Steps::Range(text) => return text.strip_prefix("1..")?.parse().ok(),
            Steps::List(list) => list,
        };
        list.iter().filter_map(|v| if let StepValue::Number(n) = v { Some(*n) } else { None }).max()
    }
    fn problem(&self) -> Option<&'static str> {
        let fits = match self {
            Steps::Range(text) => text == "1..n" || self.most().is_some_and(|n| (1..=4096).contains(&n)),
            Steps::List(list) => {
                !list.is_empty()
                    && list.iter().all(|value| match value {
                        StepValue::Number(number) => (1..=4096).contains(number),
                        StepValue::All(text) => text == "n",
                    })
            }
        };
        (!fits).then_some(words::STEPS)
    }
}
fn one() -> f64 {
    1.0
}

/// Every combination of the lists.
fn product(lists: &BTreeMap<String, Vec<String>>) -> Vec<Params> {
    lists.iter().fold(vec![Params::new()], |combinations, (key, values)| {
        combinations
            .iter()
            .flat_map(|params| {
                values.iter().map(|value| {
                    let mut params = params.clone();
                    params.insert(key.clone(), value.clone());
                    params
                })
            })
            .collect()
    })
}
