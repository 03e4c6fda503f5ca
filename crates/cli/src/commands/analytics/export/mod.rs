//! `ropewalk analytics export` and `worksheet export`: charts of one time as a file, for other programs or to be looked at.

mod html;
mod parquet;
mod table;

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use self::table::Table;
use super::{
    ask::{Found, Watch},
    chart, show,
    worksheets::Mark,
};
use crate::{
    args::{ExportFormat, ExportTo},
    output,
};

/// Steps of a chart that is looked at, about; up to [`BY_SECOND_MAX`] seconds are shown one by one, as by the page.
const STEPS: u64 = 360;
const BY_SECOND_MAX: u64 = 900;

/// What is exported.
pub struct Sheet {
    /// The name of a worksheet; none: the answer to one query.
    pub name: Option<String>,
    /// Charts of one time.
    pub charts: Vec<Found>,
    /// What happened then.
    pub marks: Vec<Mark>,
}

/// The step of so long a time, in seconds, as far as it is to be looked at.
pub fn step(seconds: u64) -> u64 {
    if seconds <= BY_SECOND_MAX { 1 } else { seconds.div_ceil(STEPS) }
}

/// The form that is asked for; else the one of the file's name.
pub fn form(to: &ExportTo) -> ExportFormat {
    let end = to.out.extension().and_then(|end| end.to_str()).unwrap_or_default();
    to.format.or_else(|| clap::ValueEnum::from_str(end, true).ok()).unwrap_or(ExportFormat::Csv)
}

impl Sheet {
    /// Adds the cluster's events. A sheet is not the worse without, and a recording has none.
    pub async fn with_events(mut self, watch: &Watch) -> Sheet {
        let Some(link) = watch.link() else { return self };
        match chart::events(&link).await {
            Ok(events) => self.marks.extend(events),
            Err(error) => tracing::warn!("events are missing: {error:#}"),
        }
        let span =
            self.charts.first().map(|found| (found.now - found.span.from_ago, found.now - found.span.to_ago));
        let (begin, end) = span.unwrap_or_default();
        let us = |seconds: u64| i64::try_from(seconds).unwrap_or_default().saturating_mul(1_000_000);
        self.marks.retain(|mark| mark.to_at_us >= us(begin) && mark.from_at_us <= us(end));
        self
    }

    /// Writes it to where it is wanted.
    pub fn write(&self, to: &ExportTo) -> Result<()> {
        let bytes = match form(to) {
            ExportFormat::Html => self.html()?.into_bytes(),
            ExportFormat::Json => self.json()?.into_bytes(),
            ExportFormat::Csv => self.table().csv().into_bytes(),
            ExportFormat::Parquet => parquet::file(&self.table()),
        };
        if to.out == Path::new("-") {
            output::bytes(&bytes);
            return Ok(());
        }
        output::file(&std::fs::OpenOptions::new(), &to.out, &bytes)
            .with_context(|| format!("--out: write {}", to.out.display()))
    }

    /// Fails if somebody did not answer.
    pub fn all_answered(&self) -> Result<()> {
        self.charts.iter().try_for_each(Found::all_answered)
    }

    fn html(&self) -> Result<String> {
        let charts: Vec<serde_json::Value> = self.charts.iter().map(chart::json).collect();
        html::file(&json!({ "name": self.name, "charts": charts, "marks": self.marks }))
    }

    fn table(&self) -> Table {
        Table::of(&self.charts, self.name.is_some())
    }

    fn json(&self) -> Result<String> {
        let charts: Vec<serde_json::Value> = self.charts.iter().map(show::json).collect();
        let value = match &self.name {
            Some(name) => json!({ "name": name, "charts": charts, "marks": self.marks }),
            None => charts.into_iter().next().unwrap_or_default(),
        };
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::PathBuf};

    use analytics::{Answer, AnswerRow, Query};

    use super::*;
    use crate::commands::analytics::Span;

    /// Three steps of one file with an awkward name; nobody recorded the last.
    pub fn found() -> Found {
        let row = AnswerRow { total: 7.0, points: vec![(0, 7.0)], ..AnswerRow::default() };
        Found {
            recorded: BTreeMap::new(),
            query: Query::parse("file.ops[file][op]").unwrap(),
            span: Span { from_ago: 30, to_ago: 0, step: 10, idle: false },
            now: 1030,
            rows: vec![(vec!["/a,\"b\"".to_owned(), "read".to_owned()], row)],
            answer: Answer { recorded: vec![10, 9, 0], ..Answer::default() },
            processes: Vec::new(),
            total: 7.0,
            coverage: 1.0,
        }
    }

    #[test]
    fn the_form_is_what_was_asked_for_or_the_file_is_called() {
        let of = |out: &str, format| form(&ExportTo { format, out: PathBuf::from(out) });
        assert_eq!(of("a.html", None), ExportFormat::Html);
        assert_eq!(of("a.Parquet", None), ExportFormat::Parquet);
        assert_eq!(of("a.html", Some(ExportFormat::Json)), ExportFormat::Json);
        assert_eq!((of("a.b", None), of("-", None)), (ExportFormat::Csv, ExportFormat::Csv));
    }

    #[test]
    fn no_name_ends_the_page_it_stands_in() {
        let mut found = found();
        found.rows[0].0[0] = "</script><script>alert(1)</script>".to_owned();
        let sheet = Sheet { name: Some("</title>".to_owned()), charts: vec![found], marks: Vec::new() };
        let text = sheet.html().unwrap();
        assert!(!text.contains("<script>alert") && !text.contains("</title></"), "escaped");
        // Nothing of it is loaded, and no part of the bundle asks for another.
        assert!(!text.contains("src=") && !text.contains("<link") && !text.contains("\nimport "));
    }
}
