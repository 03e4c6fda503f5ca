//! Reading a plan's text: every mistake is reported with its line and key. Both forms are checked, whichever is chosen.

use std::{collections::BTreeMap, fmt, ops::Range};

use base::ByteSize;
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use super::{
    CeilingFrom, Figure, Params, Pick, Plan, PlanTargets, Reference, Series, Step, Steps, product, words,
};
use crate::engine::EngineKind;

/// Cells of one series that a plan may ask for; more is a mistake in a matrix.
const CELLS_MAX: usize = 10_000;
/// Bytes of a series' name.
const SERIES_NAME_MAX: usize = 200;
/// Seconds of one cell.
pub(super) const SECONDS_MAX: f64 = 86_400.0;

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
    pick: Option<Spanned<Pick>>,
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
        let file: PlanFile = toml::from_str(text).map_err(|e| {
            let at = error(origin, text, e.span().unwrap_or(0..0), String::new());
            let why = words::plain(e.message(), &at.key);
            // What is missing stands at no key.
            let key = if e.message().starts_with("missing field") { String::new() } else { at.key };
            PlanError { origin: at.origin, line: at.line, key, why }
        })?;
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
        // Within a list of several lines it is that of the line where the list begins.
        None if !whole.contains(['=', '[']) => {
            let above = text[..begin].lines().rev().find_map(|line| line.split_once('='));
            above.map(|(key, _)| of(key)).unwrap_or_default()
        }
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
        if name.is_empty() || name.len() > 64 || name.starts_with('-') || !name.chars().all(good) {
            return self.fail(file.name.span(), "a name has 1 to 64 of a-z, 0-9 and -, the first no -");
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
        if let Some(pick) = &file.pick {
            let one = pick.get_ref();
            let keys = [Some(&one.key), one.rule.as_ref().map(|rule| &rule.of), one.cross.as_ref()];
            let mut keys = keys.into_iter().flatten().chain(&one.also);
            let missing = keys.find(|key| !all.iter().any(|s| s.each.contains_key(*key)));
            if let Some(key) = missing {
                return self.fail(pick.span(), format!("no series has {key} in `each`"));
            }
            let mut along =
                all.iter().filter_map(|s| s.each.get(one.cross.as_ref()?)).flat_map(Spanned::get_ref);
            if along.any(|size| size.to_string().parse::<ByteSize>().is_err()) {
                return self.fail(pick.span(), "what values cross along must be sizes");
            }
        }
        let pick = file.pick.map(Spanned::into_inner);
        let at = file.series.span();
        let mut series = Vec::new();
        let mut ceilings = Vec::new();
        for one in file.series.into_inner() {
            ceilings.extend(
                one.ceiling.iter().map(|c| (c.span(), c.get_ref().series.clone(), c.get_ref().times)),
            );
            self.series(one, &file.short, &mut series)?;
        }
        if series.is_empty() {
            return self.fail(at, "a plan has at least one series");
        }
        for (span, wanted, times) in ceilings {
            if !(times > 0.0 && times.is_finite()) {
                return self.fail(span, "times is a number above 0");
            }
            if !series.iter().any(|s| s.name.starts_with(&wanted)) {
                return self.fail(span, format!("there is no series {wanted:?}"));
            }
        }
        let mut reference = Vec::new();
        for one in file.reference {
            let span = one.span();
            let one = one.into_inner();
            if !one.at.is_finite() || one.value.is_some_and(|value| !value.is_finite()) {
                return self.fail(span, "at and value are numbers");
            }
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
            pick,
            targets: file.targets,
            series,
            reference,
        })
    }

    fn series(&self, file: SeriesFile, short: &Short, into: &mut Vec<Series>) -> Result<(), PlanError> {
        let name = file.name.get_ref();
        if !(1..=SERIES_NAME_MAX).contains(&name.len()) || name.contains(|c: char| c == '/' || c.is_control())
        {
            let rule = format!(
                "a series has a name of 1 to {SERIES_NAME_MAX} bytes without / and control characters"
            );
            return self.fail(file.name.span(), rule);
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
