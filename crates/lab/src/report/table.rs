//! The table of a series: a row for each point. Columns in which nothing stands are left out.

use std::fmt::Write;

use super::{
    build::{PlanReport, SeriesReport},
    numbers::{percent, show, time},
    words::escape,
};
use crate::{cell::Record, engine, expect::Point};

/// Rows that are shown at most; the chart has all points.
const ROWS: usize = 16;
/// The columns after the step; numbers stand to the right.
const COLUMNS: [(&str, bool); 10] = [
    ("measured", true),
    ("sum of parts", true),
    ("lowest bound", false),
    ("efficiency", true),
    ("of this step", true),
    ("p50", true),
    ("p99", true),
    ("CPUs busy", true),
    ("by the load", true),
    ("best cell", false),
];

/// The table as HTML.
pub fn table(plan: &PlanReport, report: &SeriesReport) -> String {
    let points = &report.analysis.points;
    let every = points.len().div_ceil(ROWS).max(1);
    let shown = points.iter().enumerate().filter(|(i, _)| i % every == 0 || i + 1 == points.len());
    let rows: Vec<(&Point, [String; 10])> = shown.map(|(_, point)| (point, cells(report, point))).collect();
    let used: Vec<usize> =
        (0..COLUMNS.len()).filter(|&i| rows.iter().any(|(_, cells)| !cells[i].is_empty())).collect();
    let class = |i: usize| if COLUMNS[i].1 { " class=\"n\"" } else { "" };
    let mut html = format!(
        "<div class=\"wide\"><table>\n<thead><tr><th class=\"n\">{}</th>",
        plan.planned.plan.step.unit()
    );
    for &i in &used {
        let _ = write!(html, "<th{}>{}</th>", class(i), COLUMNS[i].0);
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (point, cells) in &rows {
        let knee = if report.analysis.knee == Some(point.step) { " class=\"at-knee\"" } else { "" };
        let step = match report.seen_at(point) {
            Some(address) => format!("<a href=\"{}\">{}</a>", escape(address), point.step),
            None => point.step.to_string(),
        };
        let _ = write!(html, "<tr{knee}><td class=\"n\">{step}</td>");
        for &i in &used {
            let _ = write!(html, "<td{}>{}</td>", class(i), escape(&cells[i]));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn cells(report: &SeriesReport, point: &Point) -> [String; 10] {
    let figure = report.series.figure;
    let record = report.records.iter().find(|record| record.id == point.record);
    let (p50, p99) = record.and_then(|record| latency(record, point.step)).unzip();
    // What was busy while a load grew is not a step's.
    let usage =
        record.filter(|r| r.figures.as_ref().is_some_and(|f| f.timeline.is_empty())).map(|r| &r.usage);
    let params = point.params.iter().filter(|(key, _)| !report.series.set.contains_key(*key));
    let params: Vec<String> = params.map(|(key, value)| format!("{key} {value}")).collect();
    [
        show(figure, point.measured),
        show(figure, point.parts_sum),
        format!("{} {}", point.expected.layer, show(figure, point.expected.value)),
        percent(point.efficiency),
        point.incremental.map_or(String::new(), percent),
        p50.map_or(String::new(), time),
        p99.map_or(String::new(), time),
        usage.map_or(String::new(), |usage| format!("{:.2}", usage.busy_cpus())),
        usage.map_or(String::new(), |usage| format!("{:.2}", usage.load_cpus)),
        params.join(", "),
    ]
}

/// Median and 99th percentile in microseconds: of the cell, or of the period in which so many parts were at work.
fn latency(record: &Record, step: u32) -> Option<(f64, f64)> {
    let figures = record.figures.as_ref()?;
    if figures.timeline.is_empty() {
        return figures.latency.map(|latency| (latency.p50, latency.p99));
    }
    let period = figures.timeline.iter().find(|second| second.parts == step)?;
    Some((engine::quantile(&period.buckets, 0.5), engine::quantile(&period.buckets, 0.99)))
}
