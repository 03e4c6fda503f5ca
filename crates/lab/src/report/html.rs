//! The report as one HTML file: no script, nothing loaded from anywhere, light and dark by the reader's
//! preference, readable in print.

use std::{collections::BTreeSet, fmt::Write};

use super::{
    build::{PlanReport, Report, SeriesReport},
    chart::line_chart,
    heat::heat_map,
    jobs,
    numbers::{percent, show},
    seen,
    sentence::sentence,
    table::table,
    words::{date, escape, fit, limit_name, prose},
};
use crate::{
    engine::EngineKind,
    plan::{Plan, Step},
    verdict::{Confidence, Limit, Verdict},
};

/// The look of every page of ours: light, dark, print.
pub const STYLE: &str = include_str!("style.css");

/// The page.
pub fn html(report: &Report) -> String {
    let environment = &report.run.environment;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Ropewalk lab: {0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>Ropewalk lab</h1>\n<p>{0}, {1}, {2} CPUs, {3}</p></header>\n<main>\n",
        escape(&environment.host),
        escape(&date(report.run.started_ms)),
        environment.cpus,
        base::units::human_size(environment.memory),
    );
    summary(&mut page, report);
    if let Some(seen) = &report.run.seen {
        let (how, all) = (prose(&seen::how(seen)), escape(&seen::all(seen)));
        let _ = writeln!(page, "<p class=\"muted\">{how} <a href=\"{all}\">The whole run</a></p>");
    }
    for plan in &report.plans {
        self::plan(&mut page, plan);
    }
    environment_table(&mut page, report);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn confidence_name(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Low => "low confidence",
        Confidence::Medium => "medium confidence",
        Confidence::High => "high confidence",
    }
}

fn summary(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>What was found</h2>\n<ul class=\"found\">\n");
    for plan in &report.plans {
        let name = escape(&plan.planned.plan.name);
        let _ = writeln!(page, "<li><a href=\"#{name}\">{name}</a>: {}.</li>", prose(&sentence(plan)));
    }
    page.push_str(
        "</ul>\n<div class=\"wide\"><table class=\"limits\">\n<thead><tr><th>plan</th><th>series</th>\
         <th class=\"n\">best</th><th class=\"n\">efficiency at the end</th><th>limit</th></tr></thead>\n<tbody>\n",
    );
    for plan in &report.plans {
        for series in &plan.series {
            let best = series.analysis.points.iter().map(|p| p.measured).fold(0.0, f64::max);
            let last = series.analysis.points.last().map_or(0.0, |p| p.efficiency);
            let limit = series.verdict.as_ref().map_or("", |v| limit_name(v.limit));
            let sure = series.verdict.as_ref().map_or("", |v| confidence_name(v.confidence));
            let _ = writeln!(
                page,
                "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td class=\"n\">{2}</td><td class=\"n\">{3}</td><td>{4} <span class=\"muted\">{sure}</span></td></tr>",
                escape(&plan.planned.plan.name),
                escape(&series.series.name),
                show(series.series.figure, best),
                percent(last),
                limit
            );
        }
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn plan(page: &mut String, report: &PlanReport) {
    let plan = &report.planned.plan;
    let form = if plan.short { "short form" } else { "full form" };
    let _ = writeln!(
        page,
        "<section class=\"plan\" id=\"{0}\">\n<h2>{0}</h2>\n<p class=\"lead\">{1}</p>\n\
         <p class=\"muted\">{2} {3}; {form}. After: {4}.</p>",
        escape(&plan.name),
        escape(&plan.title),
        prose(&plan.about),
        lasts(plan),
        escape(&plan.source)
    );
    if !report.choices.is_empty() {
        page.push_str("<ul class=\"choices\">\n");
        for line in &report.choices {
            let _ = writeln!(page, "<li>{}</li>", escape(line));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("<div class=\"series\">\n");
    for series in &report.series {
        self::series(page, report, series);
    }
    page.push_str("</div>\n");
    if !report.missing.is_empty() {
        page.push_str("<div class=\"missing\"><h3>Not measured, or not right</h3><ul>\n");
        for line in report.missing.iter().take(50) {
            let _ = writeln!(page, "<li>{}{}</li>", escape(&line.to_string()), then(line.seen.as_deref()));
        }
        page.push_str("</ul></div>\n");
    }
    if !plan.reference.is_empty() {
        page.push_str(
            "<div class=\"reference\"><h3>The source's own figures, for shape; not measured here</h3><ul>\n",
        );
        for one in &plan.reference {
            let value =
                one.value.map_or(String::new(), |v| format!("{}, ", super::numbers::short(v).trim_end()));
            let _ = writeln!(
                page,
                "<li>{}, {} {}: {value}{}</li>",
                escape(&one.of),
                one.at,
                plan.step.unit(),
                escape(&one.what)
            );
        }
        page.push_str("</ul></div>\n");
    }
    page.push_str("</section>\n");
}

/// How long the cells of a plan last.
fn lasts(plan: &Plan) -> String {
    if plan.step == Step::Writers {
        return format!("One more writer each {} s", plan.seconds);
    }
    let all = |engine| plan.series.iter().all(|series| series.engine == engine);
    if all(EngineKind::Analytics) {
        return format!("Each cell lasts until all jobs have ended; a job may take {} s", plan.seconds);
    }
    if all(EngineKind::Metadata) {
        return format!("Each cell lasts {} s at most, or until all names are made or removed", plan.seconds);
    }
    match all(EngineKind::Perf) {
        true => "Each cell lasts until all clients have moved their amount".into(),
        false => format!("Each cell lasts {} s", plan.seconds),
    }
}

fn series(page: &mut String, plan: &PlanReport, report: &SeriesReport) {
    let step = plan.planned.plan.step;
    let _ = writeln!(page, "<article>\n<h3>{}</h3>\n<div class=\"two\"><div>", escape(&report.series.name));
    if let Some(verdict) = &report.verdict {
        let seen = report.judged().and_then(|point| report.seen_at(point));
        self::verdict(page, verdict, seen);
    }
    page.push_str("</div><div>\n");
    // One point is no line.
    if report.analysis.points.len() > 1 {
        page.push_str(&line_chart(step, report));
    }
    // What several steps say alike is said once.
    let mut said = BTreeSet::new();
    for record in &report.records {
        if let Some(figures) = record.figures.as_ref().filter(|f| !f.timeline.is_empty()) {
            page.push_str("<h4>Latency, darker where more operations ended</h4>\n");
            page.push_str(&heat_map(&figures.timeline, plan.planned.plan.seconds, step.unit()));
        }
        for note in record.figures.iter().flat_map(|f| &f.notes).take(4).filter(|n| said.insert(*n)) {
            let _ = writeln!(page, "<p class=\"muted\">{}</p>", escape(note));
        }
    }
    page.push_str("</div></div>\n");
    page.push_str(&table(plan, report));
    page.push_str(&jobs::html(report));
    if let Some(line) = fit(step, report) {
        let _ = writeln!(page, "<p class=\"muted\">Steps: {}.</p>", escape(&line));
    }
    bounds(page, report);
    if !report.cross_check.is_empty() {
        let _ =
            writeln!(page, "<p class=\"muted\">Cross-check: {}.</p>", escape(&report.cross_check.join("; ")));
    }
    parts(page, report);
    page.push_str("</article>\n");
}

fn verdict(page: &mut String, verdict: &Verdict, seen: Option<&str>) {
    let class = match verdict.limit {
        Limit::None => "good",
        Limit::NotKnown => "open",
        _ => "found",
    };
    let _ = writeln!(
        page,
        "<div class=\"verdict {class}\"><p><b>{}</b> <span class=\"muted\">{}</span></p><p>{}</p>\n<details open><summary>evidence</summary><ul>",
        limit_name(verdict.limit),
        confidence_name(verdict.confidence),
        prose(&verdict.text)
    );
    for line in &verdict.evidence {
        let _ = writeln!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul></details>");
    if seen.is_some() {
        let _ = write!(page, "<p>{}</p>", then(seen));
    }
    page.push_str("</div>\n");
}

/// A link to what the cluster did during a cell.
fn then(seen: Option<&str>) -> String {
    let link = |address| format!(" <a href=\"{}\">What the cluster did then</a>", escape(address));
    seen.map(link).unwrap_or_default()
}

/// What the chart's lines rest on.
fn bounds(page: &mut String, report: &SeriesReport) {
    let figure = report.series.figure;
    let analysis = &report.analysis;
    let noise = if analysis.noise_measured {
        "measured between equal things"
    } else {
        "assumed: nothing was measured twice"
    };
    let bounds: Vec<String> =
        analysis.bounds.iter().map(|b| format!("{} {}", b.layer, show(figure, b.value))).collect();
    let bounds = if bounds.is_empty() { "none known".to_owned() } else { bounds.join(", ") };
    let _ = writeln!(
        page,
        "<p class=\"muted\">Bounds that do not grow with the steps: {}. Noise {} ({noise}).</p>",
        escape(&bounds),
        percent(analysis.noise)
    );
}

fn parts(page: &mut String, report: &SeriesReport) {
    if report.analysis.parts.is_empty() {
        return;
    }
    page.push_str("<details><summary>each part alone</summary><div class=\"wide\"><table><thead><tr><th>part</th><th>kind</th><th class=\"n\">alone</th><th class=\"n\">of the best of its kind</th></tr></thead><tbody>\n");
    for part in &report.analysis.parts {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escape(&part.name),
            escape(&part.kind),
            part.alone.map_or("not measured".into(), |v| show(report.series.figure, v)),
            part.alone.map_or(String::new(), |v| percent(v / part.best_of_kind.max(f64::MIN_POSITIVE)))
        );
    }
    page.push_str("</tbody></table></div></details>\n");
}

fn environment_table(page: &mut String, report: &Report) {
    let e = &report.run.environment;
    let machine = &report.run.machine;
    page.push_str("<section><h2>Environment</h2>\n<div class=\"wide\"><table class=\"facts\"><tbody>\n");
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    };
    row("Ropewalk", &e.version);
    row("command", &e.command.join(" "));
    row("kernel", &e.kernel);
    row("CPU", &format!("{} x {}", e.cpus, e.cpu));
    row("CPUs allowed", &e.cpus_allowed.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
    row("a thread that never waits gets", &format!("{} of a CPU", percent(machine.cpu_full)));
    row("NUMA nodes", &e.numa_nodes.to_string());
    let iommu: Vec<String> = e.iommu.iter().map(|(kind, groups)| format!("{groups} x {kind}")).collect();
    row("IOMMU groups", &if iommu.is_empty() { "none".to_owned() } else { iommu.join(", ") });
    row("memory", &base::units::human_size(e.memory));
    row("memory copied by all CPUs", &show(crate::plan::Figure::Bytes, machine.memory_copy));
    row("load before the run", &e.load.to_string());
    let groups = [
        ("link", &e.links),
        ("disk", &e.disks),
        ("setting", &e.settings),
        ("tunable", &e.tunables),
        ("program", &e.programs),
    ];
    for (what, list) in groups {
        for (name, value) in list {
            row(&format!("{what} {name}"), value);
        }
    }
    if e.tunables.is_empty() {
        row("tunables", "all at their defaults");
    }
    for (agent, e) in &report.run.agents {
        row(&format!("agent {agent}"), &format!("{}: {} x {}, kernel {}", e.host, e.cpus, e.cpu, e.kernel));
    }
    page.push_str("</tbody></table></div></section>\n");
}
