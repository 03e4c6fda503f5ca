//! `ropewalk analytics export`: what a query found, as a file for other programs.

use std::{fmt::Write as _, path::Path};

use anyhow::{Context, Result};

use super::{ask::Found, show};
use crate::{
    args::{AnalyticsExport, ExportFormat},
    output,
};

/// Writes what was found to where it is wanted.
pub fn write(args: &AnalyticsExport, found: &Found) -> Result<()> {
    let text = match args.format {
        ExportFormat::Json => serde_json::to_string_pretty(&show::json(found))? + "\n",
        ExportFormat::Csv => csv(found),
    };
    if args.out == Path::new("-") {
        output::line(text.trim_end());
        return Ok(());
    }
    std::fs::write(&args.out, text).with_context(|| format!("--out: write {}", args.out.display()))
}

/// A line for each row and step: the end of the step in seconds since 1970, the breakdowns, the figure. Where nothing was
/// recorded the figure is empty.
fn csv(found: &Found) -> String {
    let unit = found.query.statistic.unit;
    let mut text = "end_s".to_owned();
    for name in found.query.breakdowns.iter().copied().chain([unit]) {
        // Writing to a String cannot fail.
        let _ = write!(text, ",{}", quoted(name));
    }
    text.push('\n');
    let begun = found.now - found.span.from_ago;
    for (values, row) in &found.rows {
        for (step, figure) in show::steps(found, row).into_iter().enumerate() {
            let _ = write!(text, "{}", begun + (step as u64 + 1) * found.span.step);
            values.iter().for_each(|value| text.push_str(&format!(",{}", quoted(value))));
            let _ = match figure {
                Some(figure) => writeln!(text, ",{figure}"),
                None => writeln!(text, ","),
            };
        }
    }
    text
}

/// A field, in quotes where it must be (RFC 4180).
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use analytics::{Answer, AnswerRow, Query};

    use super::*;
    use crate::commands::analytics::Span;

    #[test]
    fn a_line_for_each_step_and_an_empty_figure_for_a_gap() {
        let row = AnswerRow { total: 7.0, points: vec![(0, 7.0)], ..AnswerRow::default() };
        let found = Found {
            query: Query::parse("file.ops[file][op]").unwrap(),
            span: Span { from_ago: 30, to_ago: 0, step: 10 },
            now: 1030,
            rows: vec![(vec!["/a,\"b\"".to_owned(), "read".to_owned()], row)],
            answer: Answer { recorded: vec![10, 9, 0], ..Answer::default() },
            processes: Vec::new(),
            total: 7.0,
            coverage: 1.0,
        };
        let name = "\"/a,\"\"b\"\"\"";
        let expected =
            format!("end_s,file,op,operations\n1010,{name},read,7\n1020,{name},read,0\n1030,{name},read,\n");
        assert_eq!(csv(&found), expected);
    }
}
