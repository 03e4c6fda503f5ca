//! A query over the history of a process: of this one, in memory and on disk, or of one that has ended.

use std::collections::BTreeMap;

use base::{
    PdiskId,
    stats::{self, Amount, Gain, Key, Measure, Second, Set},
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    answer::{Answer, AnswerRow},
    known,
    legend::Legend,
    query::{Comparison, Filter, Query, QueryError, is_ordered},
    source::{Source, SourceError},
    value::{Value, is_wanted},
};

/// Steps of one answer, at most.
pub const BINS_MAX: u64 = 3600;
/// Rows of one answer, at most.
const ROWS_MAX: usize = 1000;
/// Figures of one answer, about.
const POINTS_MAX: usize = 200_000;

/// What a process is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The query. Sessions stand in it as numbers, files as `FS:INODE`.
    pub query: String,
    /// What the asked process is called.
    pub you: String,
    /// The file system that it has mounted; 0: none.
    pub fs: u32,
    /// What ends after this, by the clock of the asked process, seconds since 1970 ...
    pub after: u64,
    /// ... and not after this.
    pub to: u64,
    /// Seconds of one step; 0: all is one.
    pub step: u64,
    /// The time begins at a multiple of so many seconds of the asked process's clock: the nearest.
    #[serde(default)]
    pub resolution: u64,
    /// Not of the asked process, but of one that has ended and left its history beside it: its directory's name.
    #[serde(default)]
    pub ended: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum EvaluateError {
    /// The question is none.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The history on disk cannot be read.
    #[error(transparent)]
    Files(#[from] SourceError),
}

/// What a history says.
pub fn evaluate(question: &Question, source: &Source<'_>) -> Result<Answer, EvaluateError> {
    let query = Query::parse(&question.query)?;
    let span = question.to.saturating_sub(question.after).max(1);
    let mut after = question.after;
    if question.resolution > 1 {
        after = after.saturating_add(question.resolution / 2) / question.resolution * question.resolution;
    }
    let step = if question.step == 0 { span } else { question.step };
    let steps = span.div_ceil(step);
    if steps > BINS_MAX {
        let what = format!("{steps} steps are more than {BINS_MAX}: ask for longer ones");
        return Err(QueryError { at: 1, what }.into());
    }
    let mut found =
        Found { query: &query, question, rows: BTreeMap::new(), answer: Answer::default(), step: 0 };
    found.answer.recorded = vec![0; steps as usize];
    let own = matches!(source, Source::Own(_)).then(Legend::own).unwrap_or_default();
    found.answer.known = known::by_legend(&query, &own);
    let mut resolution = 1;
    source.each(after, after.saturating_add(span), &mut |second, legend| {
        found.step = ((second.at - after - 1) / step) as usize;
        found.answer.recorded[found.step] += second.recorded;
        found.second(second, legend);
        resolution = resolution.max(second.span);
    })?;
    found.answer.resolution = resolution;
    Ok(found.finish())
}

/// A row that grows: its figures by step, and the latencies.
#[derive(Default)]
struct Growing {
    points: BTreeMap<u32, f64>,
    /// By bucket, up to the highest that was met.
    latency: Vec<u64>,
}

impl Growing {
    fn in_bucket(&mut self, bucket: u8, n: u64) {
        let at = usize::from(bucket);
        if self.latency.len() <= at {
            self.latency.resize(at + 1, 0);
        }
        self.latency[at] += n;
    }

    fn latency(&self) -> BTreeMap<u8, u64> {
        (0..=u8::MAX).zip(self.latency.iter().copied()).filter(|(_, n)| *n > 0).collect()
    }
}

struct Found<'a> {
    query: &'a Query,
    question: &'a Question,
    rows: BTreeMap<Vec<Value>, Growing>,
    answer: Answer,
    /// The step that the second at hand belongs to.
    step: usize,
}

/// Whether a filter holds: not known of what was not kept apart.
fn passes(filter: &Filter, value: &Value) -> Option<bool> {
    let bucketed = is_ordered(filter.dimension);
    let is = match value {
        Value::Other => None,
        value => Some(filter.wanted.iter().any(|want| is_wanted(want, value, bucketed))),
    };
    let bound = filter.wanted.first().map_or(0, |want| want.bucket);
    match (filter.comparison, value) {
        (Comparison::Is, _) => is,
        (Comparison::IsNot, _) => is.map(|is| !is),
        (_, Value::Other) => None,
        (Comparison::AtLeast, value) => Some(matches!(value, Value::Number(n) if *n >= bound)),
        (Comparison::Below, value) => Some(matches!(value, Value::Number(n) if *n < bound)),
    }
}

/// The value of a dimension of an operation, latency aside. Of what was not kept apart only the operation is known, and
/// what the whole process is.
fn dimension_of(
    (question, legend): (&Question, &Legend),
    set: Set,
    key: &Key,
    known: bool,
    dimension: &str,
) -> Value {
    let text = |name: &str| Value::Text(name.to_owned());
    match dimension {
        "process" => Value::Text(question.you.clone()),
        "client" if set == Set::File => Value::Text(question.you.clone()),
        "fs" if set == Set::File => Value::Number(question.fs.into()),
        "op" => text(legend.op(set, key.op)),
        _ if !known => Value::Other,
        "client" => Value::Number(key.session),
        "file" if set == Set::File => Value::File(question.fs, key.inode),
        "file" => Value::File(key.fs, key.inode),
        "fs" => Value::Number(key.fs.into()),
        "user" => Value::Number(key.user.into()),
        "offset" => Value::Number(key.place.into()),
        "pdisk" => Value::Text(PdiskId(key.place).to_string()),
        "class" => text(legend.class(set, key.class)),
        "size" => Value::Number(key.size.into()),
        _ => Value::Other,
    }
}

impl Found<'_> {
    fn second(&mut self, second: &Second, legend: &Legend) {
        match self.query.statistic.source {
            stats::Source::Operations(set, measure) => {
                for operations in second.operations.iter().filter(|operations| operations.set == set) {
                    let of = (self.question, legend);
                    for row in &operations.rows {
                        let value = |dimension: &str| dimension_of(of, set, &row.key, true, dimension);
                        self.note(&value);
                        self.operations(measure, &row.amount, &value);
                    }
                    for (op, amount) in &operations.other {
                        let key = Key { op: *op, ..Key::default() };
                        let value = |dimension: &str| dimension_of(of, set, &key, false, dimension);
                        self.operations(measure, amount, &value);
                    }
                }
            }
            stats::Source::Family => {
                let family = self.query.statistic.family;
                for (number, gain) in &second.series {
                    let found = legend.series.get(number).filter(|(name, _)| *name == family);
                    let Some((_, labels)) = found else {
                        continue;
                    };
                    let you = &self.question.you;
                    let value = |dimension: &str| match dimension {
                        "process" => Value::Text(you.clone()),
                        label => Value::Text(labels.get(label).cloned().unwrap_or_default()),
                    };
                    self.note(&value);
                    match gain {
                        Gain::Counter(n) => self.plain(*n as f64, &value),
                        Gain::Gauge(level) => self.plain(*level as f64, &value),
                        Gain::Histogram(amount) => self.operations(Measure::Operations, amount, &value),
                    }
                }
            }
        }
    }

    /// Which of the values that filters name are met at all.
    fn note(&mut self, value: &dyn Fn(&str) -> Value) {
        for (filter, known) in self.query.filters.iter().zip(&mut self.answer.known) {
            if !known.is_settled(filter) {
                known.see(filter, value(filter.dimension));
            }
        }
    }

    /// The row that it counts in, if the filters let it pass. What may pass or not goes to `unfiltered`.
    fn row(&mut self, amount: f64, value: &dyn Fn(&str) -> Value) -> Option<Vec<Value>> {
        let mut unknown = false;
        for filter in &self.query.filters {
            match passes(filter, &value(filter.dimension)) {
                Some(true) => {}
                Some(false) => return None,
                None => unknown = true,
            }
        }
        if unknown {
            self.answer.unfiltered += amount;
            return None;
        }
        let key: Vec<Value> = self.query.breakdowns.iter().map(|dimension| value(dimension)).collect();
        if key.contains(&Value::Other) {
            self.answer.others += amount;
        }
        Some(key)
    }

    fn plain(&mut self, amount: f64, value: &dyn Fn(&str) -> Value) {
        if let Some(key) = self.row(amount, value) {
            *self.rows.entry(key).or_default().points.entry(self.step as u32).or_default() += amount;
        }
    }

    fn operations(&mut self, measure: Measure, amount: &Amount, value: &dyn Fn(&str) -> Value) {
        if measure == Measure::Bytes {
            return if amount.bytes > 0 {
                self.plain(amount.bytes as f64, value)
            };
        }
        let query = self.query;
        let axis = query.statistic.distribution().unwrap_or_default();
        let by_bucket =
            query.breakdowns.contains(&axis) || query.filters.iter().any(|filter| filter.dimension == axis);
        let step = self.step as u32;
        if !by_bucket {
            let Some(key) = self.row(amount.ops as f64, value) else { return };
            let row = self.rows.entry(key).or_default();
            *row.points.entry(step).or_default() += amount.ops as f64;
            amount.latency.iter().for_each(|(bucket, n)| row.in_bucket(*bucket, *n));
            return;
        }
        for (bucket, n) in &amount.latency {
            let of = |dimension: &str| match dimension {
                dimension if dimension == axis => Value::Number((*bucket).into()),
                other => value(other),
            };
            if let Some(key) = self.row(*n as f64, &of) {
                let row = self.rows.entry(key).or_default();
                *row.points.entry(step).or_default() += *n as f64;
                row.in_bucket(*bucket, *n);
            }
        }
    }

    fn finish(mut self) -> Answer {
        // A level is not summed over time: its mean over the seconds that were recorded.
        let level = self.query.statistic.is_level();
        let recorded = &self.answer.recorded;
        let all: u32 = recorded.iter().sum();
        let row = |(key, growing): (Vec<Value>, Growing)| {
            let sum: f64 = growing.points.values().sum();
            let mean = |(step, sum): (u32, f64)| {
                let seconds = recorded.get(step as usize).copied().unwrap_or(0).max(1);
                (step, if level { sum / f64::from(seconds) } else { sum })
            };
            let total = if level { sum / f64::from(all.max(1)) } else { sum };
            let latency = growing.latency();
            let points = growing.points.into_iter().map(mean).collect();
            (key, AnswerRow { total, points, latency })
        };
        self.answer.rows = self.rows.into_iter().map(row).collect();
        if level {
            (self.answer.others, self.answer.unfiltered) = (0.0, 0.0);
        }
        let rows_max = (POINTS_MAX / self.answer.recorded.len().max(1)).min(ROWS_MAX);
        self.answer.shorten(rows_max);
        self.answer
    }
}

#[cfg(test)]
mod tests {
    use base::stats::{Operations, Row, latency_bucket};

    use super::*;

    fn amount(ops: u64, bytes: u64, ms: u64) -> Amount {
        let latency = vec![(latency_bucket(ms * 1_000_000) as u8, ops)];
        Amount { ops, bytes, ns: 0, latency }
    }

    fn question(text: &str) -> Question {
        let (query, you) = (text.to_owned(), "n1".to_owned());
        Question { query, you, fs: 0, after: 99, to: 100, step: 0, resolution: 0, ended: None }
    }

    /// What a query finds in a second with 10 small fast operations and 2 large slow ones on two files, and 3 that were not
    /// kept apart.
    fn found(text: &str) -> Answer {
        let row = |inode, size, amount| Row {
            key: Key { session: 9, inode, fs: 1, size, op: 5, class: 1, place: 2, user: 0 },
            amount,
            missed: 0,
        };
        let rows = vec![row(7, 13, amount(10, 40_960, 1)), row(8, 21, amount(2, 2 << 20, 50))];
        let other = vec![(5, amount(3, 3, 1))];
        let operations = vec![Operations { set: Set::Strip, rows, other }];
        let second =
            Second { at: 100, span: 1, recorded: 1, elapsed_us: 1_000_000, operations, series: Vec::new() };
        let query = Query::parse(text).unwrap();
        let question = question(text);
        let answer = Answer { recorded: vec![1], ..Answer::default() };
        let mut found = Found { query: &query, question: &question, rows: BTreeMap::new(), answer, step: 0 };
        found.second(&second, &Legend::default());
        found.finish()
    }

    fn totals(answer: &Answer) -> Vec<(Vec<Value>, f64)> {
        answer.rows.iter().map(|(key, row)| (key.clone(), row.total)).collect()
    }

    #[test]
    fn drilled_down_by_file_then_latency() {
        use Value::{File, Number, Other};
        let all = found("strip.ops");
        assert_eq!((totals(&all), all.coverage()), (vec![(vec![], 15.0)], 1.0));

        let files = found("strip.ops[file]");
        let expected = [(vec![File(1, 7)], 10.0), (vec![File(1, 8)], 2.0), (vec![Other], 3.0)];
        assert_eq!(totals(&files), expected);
        assert_eq!((files.others, files.unfiltered), (3.0, 0.0));

        let slow = found("strip.ops[latency>=10ms][file]");
        assert_eq!(totals(&slow), [(vec![File(1, 8)], 2.0)]);

        let of_one = found("strip.ops[file=1:7][client][latency]");
        let bucket = Number(latency_bucket(1_000_000) as u64);
        assert_eq!(totals(&of_one), [(vec![Number(9), bucket], 10.0)]);
        assert_eq!(of_one.unfiltered, 3.0);

        let bytes = found("strip.bytes[size>=1m][pdisk][process]");
        let pdisk = Value::Text(PdiskId(2).to_string());
        assert_eq!(totals(&bytes), [(vec![pdisk, Value::Text("n1".into())], f64::from(2 << 20))]);
        assert_eq!(totals(&found("strip.ops[file=1:8|2:7][fs]")), [(vec![Number(1)], 2.0)]);
        assert!(totals(&found("strip.ops[client!=9]")).is_empty());
        assert!(totals(&found("file.ops")).is_empty());
    }
}
