//! The report as Markdown.

use std::fmt::Write;

use super::{
    build::Report,
    numbers::{percent, short, show},
    seen,
    sentence::sentence,
    words::{date, fit, limit_name},
};

/// The report.
pub fn markdown(report: &Report) -> String {
    let e = &report.run.environment;
    let mut text = format!(
        "# Ropewalk lab: {}, {}\n\n{} x {}, {}, kernel {}\n",
        e.host,
        date(report.run.started_ms),
        e.cpus,
        e.cpu,
        base::units::human_size(e.memory),
        e.kernel
    );
    if let Some(seen) = &report.run.seen {
        let _ = writeln!(text, "\n{} [The whole run]({})", seen::how(seen), seen::all(seen));
    }
    for plan in &report.plans {
        let of = plan.planned.plan.step;
        let _ = writeln!(text, "\n## {}\n\n{}", plan.planned.plan.name, plan.planned.plan.title);
        let _ = writeln!(text, "\n{}.", sentence(plan));
        for series in &plan.series {
            let figure = series.series.figure;
            let _ = writeln!(text, "\n### {}\n", series.series.name);
            if let Some(verdict) = &series.verdict {
                let confidence = format!("{:?}", verdict.confidence).to_lowercase();
                let _ = writeln!(
                    text,
                    "**{}** ({confidence} confidence): {}\n",
                    limit_name(verdict.limit),
                    verdict.text
                );
                verdict.evidence.iter().for_each(|line| {
                    let _ = writeln!(text, "- {line}");
                });
                if let Some(address) = series.judged().and_then(|point| series.seen_at(point)) {
                    let _ = writeln!(text, "- [what the cluster did then]({address})");
                }
            }
            series.cross_check.iter().for_each(|line| {
                let _ = writeln!(text, "- cross-check: {line}");
            });
            fit(of, series).into_iter().for_each(|line| {
                let _ = writeln!(text, "- {line}");
            });
            let _ = writeln!(
                text,
                "\n| {} | measured | sum of parts | lowest bound | efficiency | of the step |\n|---:|---:|---:|---|---:|---:|",
                of.unit()
            );
            for point in &series.analysis.points {
                let step = match series.seen_at(point) {
                    Some(address) => format!("[{}]({address})", point.step),
                    None => point.step.to_string(),
                };
                let _ = writeln!(
                    text,
                    "| {}{} | {} | {} | {} {} | {} | {} |",
                    step,
                    if series.analysis.knee == Some(point.step) { " (knee)" } else { "" },
                    show(figure, point.measured),
                    show(figure, point.parts_sum),
                    point.expected.layer,
                    show(figure, point.expected.value),
                    percent(point.efficiency),
                    point.incremental.map_or(String::new(), percent)
                );
            }
            text.push_str(&super::jobs::markdown(series));
        }
        for line in &plan.choices {
            let _ = writeln!(text, "\n- {line}");
        }
        for one in &plan.planned.plan.reference {
            let value = one.value.map_or(String::new(), |value| format!("{}, ", short(value).trim_end()));
            let _ = writeln!(
                text,
                "\nThe source's own figure, for shape; not measured here: {}, {} {}: {value}{}",
                one.of,
                one.at,
                of.unit(),
                one.what
            );
        }
        for line in &plan.missing {
            let then = line.seen.as_ref().map(|address| format!(" [What the cluster did then]({address})"));
            let _ = writeln!(text, "\nNot measured, or not right: {line}{}", then.unwrap_or_default());
        }
    }
    text
}
