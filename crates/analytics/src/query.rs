//! A query: `name[dimension=value][dimension]`. A group with a comparison filters, one without breaks down; what is
//! broken down by several dimensions is so by all of them at once.
//!
//! ```text
//! file.ops[client=/mnt/a][op=read|write][latency>=10ms][file]
//! ```
//! Values that hold `]`, `|` or `"` stand in double quotes, with `\` before `"` and `\`. Every mistake is told with its
//! place and the words that could stand there.

use std::fmt;

use base::{
    ByteSize,
    stats::{self, STATISTICS, Statistic},
};
use thiserror::Error;

/// Longest query, bytes.
const QUERY_LEN_MAX: usize = 32 << 10;
/// Groups of one query, at most.
const GROUPS_MAX: usize = 16;

/// What a group compares with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// `=`: one of the values.
    Is,
    /// `!=`: none of them.
    IsNot,
    /// `>=`; sizes, offsets, latencies and utilisation only.
    AtLeast,
    /// `<`; the same.
    Below,
}

impl Comparison {
    const ALL: [(Comparison, &str); 4] = [
        (Comparison::IsNot, "!="),
        (Comparison::AtLeast, ">="),
        (Comparison::Is, "="),
        (Comparison::Below, "<"),
    ];

    fn sign(self) -> &'static str {
        Comparison::ALL.iter().find(|c| c.0 == self).map_or("=", |c| c.1)
    }
}

/// A value that is looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// As it was written.
    pub text: String,
    /// Of what has an order the number of their bucket, of files as they are recorded the inode.
    pub bucket: u64,
}

/// A group that filters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// By what.
    pub dimension: &'static str,
    /// How.
    pub comparison: Comparison,
    /// With what: at least one.
    pub wanted: Vec<Want>,
}

/// A query that is understood.
#[derive(Clone, Debug)]
pub struct Query {
    /// Of what.
    pub statistic: &'static Statistic,
    /// All must hold.
    pub filters: Vec<Filter>,
    /// What the answer has a row for each value of.
    pub breakdowns: Vec<&'static str>,
}

/// Why a query is not understood.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("query, at character {at}: {what}")]
pub struct QueryError {
    /// Counted from 1.
    pub at: usize,
    /// What is wrong, and what could stand there.
    pub what: String,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong<T>(&self, from: usize, what: String) -> Result<T, QueryError> {
        Err(QueryError { at: self.text[..from].chars().count() + 1, what })
    }

    fn takes(&mut self, sign: &str) -> bool {
        let there = self.rest().starts_with(sign);
        self.at += if there { sign.len() } else { 0 };
        there
    }

    /// Letters of a name.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// A value, up to `|` or `]`.
    fn value(&mut self) -> Result<String, QueryError> {
        let begun = self.at;
        if !self.takes("\"") {
            let rest = self.rest();
            let end = rest.find(['|', ']', '"']).unwrap_or(rest.len());
            self.at += end;
            return match &rest[..end] {
                "" => self.wrong(begun, "a value is missing".to_owned()),
                value => Ok(value.trim().to_owned()),
            };
        }
        let (mut value, mut escaped) = (String::new(), false);
        for (at, c) in self.rest().char_indices() {
            match c {
                '"' if !escaped => {
                    self.at += at + 1;
                    return Ok(value);
                }
                '\\' if !escaped => escaped = true,
                c => {
                    value.push(c);
                    escaped = false;
                }
            }
        }
        self.wrong(begun, "the quote does not end".to_owned())
    }
}

fn listed(words: impl Iterator<Item = &'static str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

/// A time as it is written: `1.5ms`, `200us`, `2s`; nanoseconds.
fn latency_ns(text: &str) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let scale = match &text[at..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let number: f64 = text[..at].trim().parse().ok()?;
    (number >= 0.0 && number * scale < 1e18).then_some((number * scale) as u64)
}

/// A share as it is written: `95%`, `95`.
fn percent(text: &str) -> Option<f64> {
    let percent: f64 = text.trim_end_matches('%').trim().parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent)
}

/// Whether values of a dimension are numbers of buckets, which have an order.
pub fn is_ordered(dimension: &str) -> bool {
    matches!(dimension, "size" | "offset" | "latency" | "utilisation")
}

/// The bucket of a size, an offset, a latency or a utilisation that is written so.
pub fn bucket(dimension: &str, text: &str) -> Option<u64> {
    match dimension {
        "size" | "offset" if text == "none" => Some(0),
        "offset" => text.parse().ok().map(|at: ByteSize| u64::from(stats::offset_octave(Some(at.0)))),
        "size" => text.parse().ok().map(|size: ByteSize| u64::from(stats::size_octave(size.0))),
        "latency" => latency_ns(text).map(|ns| stats::latency_bucket(ns) as u64),
        "utilisation" => percent(text).map(stats::utilisation_bucket),
        _ => None,
    }
}

/// The inode of `FS:INODE`; 0 of anything else.
fn inode(text: &str) -> u64 {
    text.split_once(':').and_then(|(_, inode)| inode.parse().ok()).unwrap_or(0)
}

impl Query {
    /// Understands a query.
    pub fn parse(text: &str) -> Result<Query, QueryError> {
        let mut reader = Reader { text, at: 0 };
        if text.len() > QUERY_LEN_MAX {
            return reader.wrong(0, format!("it is longer than {QUERY_LEN_MAX} bytes"));
        }
        let name = reader.word();
        let Some(statistic) = Statistic::find(name) else {
            let group = name.split('.').next().unwrap_or_default();
            let near = STATISTICS.iter().map(|s| s.name).filter(|n| n.split('.').next() == Some(group));
            let near = listed(near);
            let words = if near.is_empty() { listed(STATISTICS.iter().map(|s| s.name)) } else { near };
            return reader.wrong(0, format!("there is no statistic {name:?}; possible: {words}"));
        };
        let mut query = Query { statistic, filters: Vec::new(), breakdowns: Vec::new() };
        while !reader.rest().is_empty() {
            if query.filters.len() + query.breakdowns.len() == GROUPS_MAX {
                return reader.wrong(reader.at, format!("more than {GROUPS_MAX} groups"));
            }
            query.group(&mut reader)?;
        }
        Ok(query)
    }

    fn group(&mut self, reader: &mut Reader<'_>) -> Result<(), QueryError> {
        if !reader.takes("[") {
            let found: String = reader.rest().chars().take(10).collect();
            return reader.wrong(reader.at, format!("[ is expected, not {found:?}"));
        }
        let begun = reader.at;
        let word = reader.word();
        let Some(dimension) = self.statistic.all_dimensions().find(|d| *d == word) else {
            let words = listed(self.statistic.all_dimensions());
            let name = self.statistic.name;
            return reader.wrong(begun, format!("{name} has no dimension {word:?}; possible: {words}"));
        };
        if reader.takes("]") {
            if self.breakdowns.contains(&dimension) {
                return reader.wrong(begun, format!("broken down by {dimension} twice"));
            }
            self.breakdowns.push(dimension);
            return Ok(());
        }
        let sign_at = reader.at;
        let Some((comparison, _)) = Comparison::ALL.into_iter().find(|(_, sign)| reader.takes(sign)) else {
            return reader.wrong(sign_at, "possible: ] = != >= <".to_owned());
        };
        let ordered = is_ordered(dimension);
        if !ordered && matches!(comparison, Comparison::AtLeast | Comparison::Below) {
            return reader.wrong(sign_at, format!("{dimension} has no order; possible: = !="));
        }
        let mut wanted = Vec::new();
        loop {
            let begun = reader.at;
            let text = reader.value()?;
            let found = if ordered { bucket(dimension, &text) } else { Some(inode(&text)) };
            let Some(bucket) = found else {
                let example = match dimension {
                    "latency" => "200us, 1.5ms or 2s",
                    "utilisation" => "95%",
                    _ => "4k or 1m",
                };
                return reader.wrong(begun, format!("{text:?} is no {dimension}; write it as {example}"));
            };
            wanted.push(Want { text, bucket });
            if reader.takes("]") {
                break;
            }
            if !reader.takes("|") {
                return reader.wrong(reader.at, "possible: ] or | and a further value".to_owned());
            }
        }
        self.filters.push(Filter { dimension, comparison, wanted });
        Ok(())
    }
}

/// A value as a query takes it: in quotes where it must be.
pub fn quoted(text: &str) -> String {
    let plain = !text.is_empty() && text.trim() == text && !text.contains(['|', ']', '"']);
    let escaped = || text.replace('\\', "\\\\").replace('"', "\\\"");
    if plain { text.to_owned() } else { format!("\"{}\"", escaped()) }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.wanted.iter().map(|want| quoted(&want.text)).collect();
        write!(f, "[{}{}{}]", self.dimension, self.comparison.sign(), values.join("|"))
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.statistic.name)?;
        self.filters.iter().try_for_each(|filter| write!(f, "{filter}"))?;
        self.breakdowns.iter().try_for_each(|dimension| write!(f, "[{dimension}]"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn groups_filter_and_break_down() {
        let query =
            Query::parse("file.ops[client=/mnt/a][op=read|write][latency>=10ms][size<64k][file][user]")
                .unwrap();
        assert_eq!(query.statistic.name, "file.ops");
        assert_eq!(query.breakdowns, ["file", "user"]);
        let op = &query.filters[1];
        assert_eq!((op.dimension, op.comparison, op.wanted.len()), ("op", Comparison::Is, 2));
        assert_eq!(query.filters[2].wanted[0].bucket, stats::latency_bucket(10_000_000) as u64);
        let high = Query::parse("pdisk.utilisation[utilisation>=95%|100][pdisk]").unwrap();
        assert_eq!(high.filters[0].wanted.iter().map(|want| want.bucket).collect::<Vec<_>>(), [19, 19]);
        assert_eq!(query.filters[3].wanted[0].bucket, 17);
    }

    #[test]
    fn mistakes_name_their_place_and_what_could_stand_there() {
        for (text, at, says) in [
            ("", 1, "file.ops"),
            ("file.opz", 1, "file.bytes"),
            ("nope", 1, "pdisk.ops"),
            ("file.ops[filé]", 10, "client, fs, file, user"),
            ("file.bytes[latency]", 12, "no dimension \"latency\""),
            ("file.ops[file", 14, "] = != >= <"),
            ("file.ops[file>=3]", 14, "no order"),
            ("file.ops[size=x]", 15, "4k or 1m"),
            ("file.ops[offset>=x]", 18, "4k or 1m"),
            ("file.ops[latency<5]", 18, "1.5ms"),
            ("pdisk.utilisation[utilisation>=120%]", 32, "95%"),
            ("pdisk.utilisation[latency]", 19, "pdisk, pool, node, process, utilisation"),
            ("file.ops[file=]", 15, "missing"),
            ("file.ops[file=\"a]", 15, "does not end"),
            ("file.ops[file=a\"b]", 16, "] or |"),
            ("file.ops[file]x", 15, "[ is expected"),
            ("file.ops[file][file]", 16, "twice"),
        ] {
            let error = Query::parse(text).unwrap_err();
            assert_eq!(error.at, at, "{text}: {error}");
            assert!(error.what.contains(says), "{text}: {error}");
        }
        assert!(Query::parse(&"[".repeat(QUERY_LEN_MAX + 1)).is_err());
        assert!(Query::parse(&format!("file.ops{}", "[op=read]".repeat(17))).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(file\\.ops|net\\.calls)?[\\[\\]=!<>|\"\\\\a-zé0-9./ ]{0,40}") {
            let _ = Query::parse(&text);
        }

        #[test]
        fn what_is_written_is_read_again(values in prop::collection::vec("[ -~é]{1,12}", 1..4)) {
            let wanted: Vec<Want> =
                values.iter().map(|text| Want { text: text.clone(), bucket: inode(text) }).collect();
            let filter = Filter { dimension: "file", comparison: Comparison::IsNot, wanted };
            let statistic = Statistic::find("file.bytes").unwrap();
            let query = Query { statistic, filters: vec![filter], breakdowns: vec!["client"] };
            let again = Query::parse(&query.to_string()).unwrap();
            prop_assert_eq!(again.filters, query.filters);
            prop_assert_eq!(again.breakdowns, query.breakdowns);
        }
    }
}
