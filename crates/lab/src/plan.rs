//! Plans: what to step up, with which engine and parameters, and what a source reached. A plan is a TOML text;
//! reading one touches nothing else. Every error names the line and the key.
//!
//! ```toml
//! name = "device-scaling"          # a-z, 0-9, -
//! title = "..."                    # one line for listings
//! source = "..."                   # where the experiment comes from
//! about = "..."                    # what it answers
//! step = "devices"                 # what is stepped: see `Step`
//! steps = [1, 2, "n"]              # "n" = all that were named; "1..n" = each
//! seconds = 120                    # of each cell
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

use std::{collections::BTreeMap, fmt, ops::Range};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::Spanned;

use crate::engine::EngineKind;

/// Parameters of a cell, by name. Values are as an engine's command line has them.
pub type Params = BTreeMap<String, String>;

/// Cells of one series that a plan may ask for; more is a mistake in a matrix.
const CELLS_MAX: usize = 10_000;
/// Seconds of one cell.
const SECONDS_MAX: f64 = 86_400.0;

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
        }
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
        }
    }
    /// Whether the parts make the load, so that reaching their sum means that there are too few of them.
    pub fn is_load(self) -> bool {
        matches!(self, Step::Connections | Step::Nodes | Step::Writers)
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
    /// Devices and directories named in the plan.
    pub targets: PlanTargets,
    /// The lines of the chart.
    pub series: Vec<Series>,
    /// The source's own figures.
    pub reference: Vec<Reference>,
}

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
    /// Pairs of addresses, client first, as `10.0.0.1=10.0.0.2`; a side may begin with `NAMESPACE@`.
    pub pairs: Vec<String>,
    /// Links that connections should spread over, `NAMESPACE/NAME` or `NAME`.
    pub links: Vec<String>,
}

/// Which steps: numbers, and "n" for all parts there are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Steps {
    /// `"1..n"`.
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
            Steps::Range(_) => (1..=n).collect(),
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
    /// The highest number that is written; `None` for a range.
    pub fn most(&self) -> Option<u32> {
        let Steps::List(list) = self else { return None };
        list.iter().filter_map(|v| if let StepValue::Number(n) = v { Some(*n) } else { None }).max()
    }
    fn problem(&self) -> Option<&'static str> {
        let fits = match self {
            Steps::Range(text) => text == "1..n",
            Steps::List(list) => {
                !list.is_empty()
                    && list.iter().all(|value| match value {
                        StepValue::Number(number) => (1..=4096).contains(number),
                        StepValue::All(text) => text == "n",
                    })
            }
        };
        (!fits).then_some("write \"1..n\", or a list of numbers from 1 to 4096 and \"n\"")
    }
}

/// Why a plan cannot be used.
#[derive(Debug, Error)]
pub struct PlanError {
    /// File, or name of a built-in plan.
    pub origin: String,
    /// Line, from 1.
    pub line: usize,
    /// The key on that line, if there is one.
    pub key: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.origin, self.line)?;
        if !self.key.is_empty() {
            write!(f, ", key {:?}", self.key)?;
        }
        write!(f, ": {}", self.why)
    }
}

fn one() -> f64 {
    1.0
}

/// A value of a parameter.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(v) => v.fmt(f),
            Value::Integer(v) => v.fmt(f),
            Value::Float(v) => v.fmt(f),
            Value::Text(v) => v.fmt(f),
        }
    }
}

type Set = BTreeMap<String, Spanned<Value>>;
type Lists = BTreeMap<String, Spanned<Vec<Value>>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    name: Spanned<String>,
    title: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    about: String,
    step: Step,
    steps: Spanned<Steps>,
    seconds: Spanned<f64>,
    repeats: Option<Spanned<u32>>,
    #[serde(default)]
    targets: PlanTargets,
    series: Spanned<Vec<SeriesFile>>,
    #[serde(default)]
    short: Short,
    #[serde(default)]
    reference: Vec<Spanned<Reference>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesFile {
    name: Spanned<String>,
    engine: EngineKind,
    figure: Figure,
    #[serde(default)]
    set: Set,
    #[serde(default)]
    matrix: Lists,
    #[serde(default)]
    each: Lists,
    #[serde(default)]
    ceiling: Vec<Spanned<CeilingFrom>>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Short {
    steps: Option<Spanned<Steps>>,
    seconds: Option<Spanned<f64>>,
    repeats: Option<Spanned<u32>>,
    set: Set,
    matrix: Lists,
    each: Lists,
}

impl Plan {
    /// Reads a plan and chooses its full or short form. `origin` names it in errors.
    pub fn parse(origin: &str, text: &str, short: bool) -> Result<Plan, PlanError> {
        let file: PlanFile = toml::from_str(text)
            .map_err(|e| error(origin, text, e.span().unwrap_or(0..0), e.message().replace('\n', "; ")))?;
        Reader { origin, text, short }.plan(file)
    }
}

/// An error at a place of the text.
fn error(origin: &str, text: &str, span: Range<usize>, why: String) -> PlanError {
    let start = span.start.min(text.len());
    let line = text[..start].matches('\n').count() + 1;
    let begin = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let whole = text[begin..].lines().next().unwrap_or_default();
    // On a line with several keys the one that stands last before the place.
    let before = &whole[..(start - begin).min(whole.len())];
    let of = |part: &str| {
        let part = part.trim_end().trim_end_matches('=').trim_end();
        part.rsplit([' ', '{', ',', '\t']).next().unwrap_or_default().to_owned()
    };
    let key = match before.rfind('=') {
        Some(at) => of(&before[..at]),
        None => whole.split('=').next().map(|key| key.trim().to_owned()).unwrap_or_default(),
    };
    PlanError { origin: origin.to_owned(), line, key: key.trim_matches(['[', ']', '"']).to_owned(), why }
}

struct Reader<'a> {
    origin: &'a str,
    text: &'a str,
    short: bool,
}

impl Reader<'_> {
    fn fail<T>(&self, span: Range<usize>, why: impl Into<String>) -> Result<T, PlanError> {
        Err(error(self.origin, self.text, span, why.into()))
    }

    fn plan(&self, file: PlanFile) -> Result<Plan, PlanError> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let name = file.name.get_ref();
        if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
            return self.fail(file.name.span(), "a name has 1 to 64 of a-z, 0-9 and -");
        }
        // Both forms are checked, whichever is chosen.
        for seconds in [Some(&file.seconds), file.short.seconds.as_ref()].into_iter().flatten() {
            if !(0.1..=SECONDS_MAX).contains(seconds.get_ref()) {
                return self.fail(seconds.span(), format!("from 0.1 to {SECONDS_MAX} seconds"));
            }
        }
        for steps in [Some(&file.steps), file.short.steps.as_ref()].into_iter().flatten() {
            if let Some(why) = steps.get_ref().problem() {
                return self.fail(steps.span(), why);
            }
        }
        for repeats in [file.repeats.as_ref(), file.short.repeats.as_ref()].into_iter().flatten() {
            if !(1..=100).contains(repeats.get_ref()) {
                return self.fail(repeats.span(), "from 1 to 100");
            }
        }
        // The short form measures once unless it says otherwise.
        let form = if self.short { &file.short.repeats } else { &file.repeats };
        let repeats = form.as_ref().map_or(1, |repeats| *repeats.get_ref());
        let short = &file.short;
        let all = file.series.get_ref();
        let unknown = short.set.iter().find(|(key, _)| !all.iter().any(|s| s.set.contains_key(*key)));
        if let Some((_, value)) = unknown {
            return self.fail(value.span(), "the short form changes what no series sets");
        }
        let no_list =
            |lists: fn(&SeriesFile) -> &Lists, key: &String| !all.iter().any(|s| lists(s).contains_key(key));
        let matrix = short.matrix.iter().find(|(key, _)| no_list(|s| &s.matrix, key));
        let each = short.each.iter().find(|(key, _)| no_list(|s| &s.each, key));
        if let Some((key, values)) = matrix.or(each) {
            return self.fail(values.span(), format!("the short form changes {key}, which no series has"));
        }
        let at = file.series.span();
        let mut series = Vec::new();
        let mut ceilings = Vec::new();
        for one in file.series.into_inner() {
            ceilings.extend(one.ceiling.iter().map(|c| (c.span(), c.get_ref().series.clone())));
            self.series(one, &file.short, &mut series)?;
        }
        if series.is_empty() {
            return self.fail(at, "a plan has at least one series");
        }
        for (span, wanted) in ceilings {
            if !series.iter().any(|s| s.name.starts_with(&wanted)) {
                return self.fail(span, format!("there is no series {wanted:?}"));
            }
        }
        let mut reference = Vec::new();
        for one in file.reference {
            let span = one.span();
            let one = one.into_inner();
            if !series.iter().any(|s| s.name.starts_with(&one.of)) {
                return self.fail(span, format!("there is no series {:?}", one.of));
            }
            reference.push(one);
        }
        let short = |full: Spanned<f64>, short: Option<Spanned<f64>>| match short {
            Some(short) if self.short => short.into_inner(),
            _ => full.into_inner(),
        };
        let steps = match file.short.steps {
            Some(steps) if self.short => steps,
            _ => file.steps,
        };
        Ok(Plan {
            name: file.name.into_inner(),
            title: file.title,
            source: file.source,
            about: file.about,
            short: self.short,
            step: file.step,
            steps: steps.into_inner(),
            seconds: short(file.seconds, file.short.seconds),
            repeats,
            targets: file.targets,
            series,
            reference,
        })
    }

    fn series(&self, file: SeriesFile, short: &Short, into: &mut Vec<Series>) -> Result<(), PlanError> {
        if file.name.get_ref().is_empty() || file.name.get_ref().contains('/') {
            return self.fail(file.name.span(), "a series has a name without /");
        }
        let mut set = self.set(file.engine, &file.set)?;
        let mut matrix = self.lists(file.engine, &file.matrix)?;
        let mut each = self.lists(file.engine, &file.each)?;
        // The short form changes what is there; both forms are checked, whichever is chosen.
        for (key, value) in short.set.iter().filter(|(key, _)| file.set.contains_key(*key)) {
            self.check(file.engine, key, value.get_ref(), value.span())?;
            if self.short {
                set.insert(key.clone(), value.get_ref().to_string());
            }
        }
        for (given, full, have) in
            [(&short.matrix, &file.matrix, &mut matrix), (&short.each, &file.each, &mut each)]
        {
            let given: Lists = given
                .iter()
                .filter(|(key, _)| full.contains_key(*key))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let values = self.lists(file.engine, &given)?;
            if self.short {
                have.extend(values);
            }
        }
        if matrix.values().map(Vec::len).product::<usize>() > CELLS_MAX {
            return self.fail(file.name.span(), format!("more than {CELLS_MAX} cells a step"));
        }
        for params in product(&each) {
            let mut name = file.name.get_ref().clone();
            let mut set = set.clone();
            for (key, value) in params {
                name += &format!(" {key} {value}");
                set.insert(key, value);
            }
            if into.iter().any(|s| s.name == name) {
                return self.fail(file.name.span(), format!("there are two series {name:?}"));
            }
            into.push(Series {
                name,
                engine: file.engine,
                figure: file.figure,
                set,
                matrix: matrix.clone(),
                ceiling: file.ceiling.iter().map(|c| c.get_ref().clone()).collect(),
            });
        }
        Ok(())
    }

    fn set(&self, engine: EngineKind, set: &Set) -> Result<Params, PlanError> {
        set.iter()
            .map(|(key, value)| {
                self.check(engine, key, value.get_ref(), value.span())?;
                Ok((key.clone(), value.get_ref().to_string()))
            })
            .collect()
    }

    fn lists(&self, engine: EngineKind, lists: &Lists) -> Result<BTreeMap<String, Vec<String>>, PlanError> {
        for (key, values) in lists {
            if values.get_ref().is_empty() {
                return self.fail(values.span(), "a list has at least one value");
            }
            for value in values.get_ref() {
                self.check(engine, key, value, values.span())?;
            }
        }
        let texts = |values: &Spanned<Vec<Value>>| values.get_ref().iter().map(Value::to_string).collect();
        Ok(lists.iter().map(|(key, values)| (key.clone(), texts(values))).collect())
    }

    fn check(
        &self,
        engine: EngineKind,
        key: &str,
        value: &Value,
        span: Range<usize>,
    ) -> Result<(), PlanError> {
        match engine.check(key, &value.to_string()) {
            Ok(()) => Ok(()),
            Err(why) => {
                let mut error = error(self.origin, self.text, span, why);
                error.key = key.to_owned();
                Err(error)
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
name = 'mine'
title = 'a test'
step = 'devices'
steps = [1, 2, 'n']
seconds = 2
[[series]]
name = 'r'
engine = 'fio'
figure = 'operations'
set = { rw = 'randread', bs = '4k' }
matrix = { iodepth = [1, 8], numjobs = [1, 2, 4] }
each = { ioengine = ['libaio', 'io_uring'] }
[short]
seconds = 0.5
steps = [1]
matrix = { iodepth = [4] }
";

    #[test]
    fn both_forms_and_every_combination() {
        let full = Plan::parse("t", GOOD, false).unwrap();
        assert_eq!(full.series.len(), 2);
        assert_eq!(full.series[1].name, "r ioengine libaio".replace("libaio", "io_uring"));
        assert_eq!(full.series[0].combinations().len(), 6);
        assert_eq!((full.seconds, full.steps.resolve(5)), (2.0, vec![1, 2, 5]));
        let short = Plan::parse("t", GOOD, true).unwrap();
        assert_eq!(short.series[0].combinations().len(), 3);
        assert!(short.series[0].combinations().iter().all(|p| p["iodepth"] == "4" && p["rw"] == "randread"));
        assert_eq!((short.seconds, short.steps.resolve(5)), (0.5, vec![1]));
    }

    #[test]
    fn errors_have_line_and_key() {
        let bad = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            let error = Plan::parse("t.toml", &GOOD.replacen(from, to, 1), false).unwrap_err();
            (error.line, error.key.clone(), error.to_string())
        };
        for (from, to, line, key, part) in [
            ("name = 'mine'", "name = 'My Plan'", 1, "name", "a-z"),
            ("step = 'devices'", "step = 'disks'", 3, "step", "unknown variant"),
            ("steps = [1, 2, 'n']", "steps = [0]", 4, "steps", "1 to 4096"),
            ("steps = [1, 2, 'n']", "steps = 'all'", 4, "steps", "1..n"),
            ("seconds = 2", "seconds = -1", 5, "seconds", "from 0.1"),
            ("seconds = 2", "seconds = 'long'", 5, "seconds", "expected"),
            ("seconds = 2", "second = 2", 5, "second", "unknown field"),
            ("engine = 'fio'", "engine = 'fia'", 8, "engine", "unknown variant"),
            ("rw = 'randread'", "rw = 'sideways'", 10, "rw", "none of"),
            ("bs = '4k'", "bs = '4x'", 10, "bs", "bad size"),
            ("bs = '4k'", "bz = '4k'", 10, "bz", "no parameter"),
            ("iodepth = [1, 8]", "iodepth = [1, 99999]", 11, "iodepth", "1 to 4096"),
            ("iodepth = [1, 8]", "iodepth = []", 11, "iodepth", "at least one"),
            ("iodepth = [4]", "iodepth = [0]", 16, "iodepth", "1 to 4096"),
            ("iodepth = [4]", "depth = [4]", 16, "depth", "no series has"),
            ("seconds = 0.5", "seconds = 0", 14, "seconds", "from 0.1"),
        ] {
            let (at, named, text) = bad(from, to);
            assert_eq!((at, named.as_str()), (line, key), "{to}: {text}");
            assert!(text.contains(part) && text.contains("t.toml, line"), "{to}: {text}");
        }
        let error = Plan::parse("t.toml", "name = ", false).unwrap_err();
        assert_eq!(error.line, 1);
        let missing = Plan::parse("t.toml", &GOOD.replace("step = 'devices'\n", ""), false).unwrap_err();
        assert!(missing.why.contains("step"), "{missing}");
    }

    #[test]
    fn any_bytes_are_a_plan_or_an_error() {
        for cut in 0..GOOD.len() {
            let _ = Plan::parse("t", &GOOD[..cut], true);
        }
        let many = GOOD.replace("[1, 8]", &format!("{:?}", vec![1; 5000]));
        assert!(Plan::parse("t", &many, false).unwrap_err().why.contains("more than"));
    }
}
