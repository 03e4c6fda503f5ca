//! The points as comma-separated values, one a line, in base units.

use std::fmt::Write;

use super::{build::Report, numbers::unit, words::limit_name};

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// All points.
pub fn csv(report: &Report) -> String {
    let mut text =
        "plan,series,step,unit,measured,parts_sum,bound_layer,bound,efficiency,incremental,knee,limit\n"
            .to_owned();
    for plan in &report.plans {
        for series in &plan.series {
            let limit = series.verdict.as_ref().map_or("", |v| limit_name(v.limit));
            for point in &series.analysis.points {
                let _ = writeln!(
                    text,
                    "{},{},{},{},{},{},{},{},{:.4},{},{},{limit}",
                    plan.planned.plan.name,
                    quoted(&series.series.name),
                    point.step,
                    unit(series.series.figure),
                    point.measured,
                    point.parts_sum,
                    quoted(&point.expected.layer),
                    point.expected.value,
                    point.efficiency,
                    point.incremental.map_or(String::new(), |i| format!("{i:.4}")),
                    series.analysis.knee == Some(point.step)
                );
            }
        }
    }
    text
}
