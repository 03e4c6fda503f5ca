//! The jobs of the mixed analytics workload: what they say together, the table of tests, what was not right.

use std::fmt::Write;

use super::{
    build::{JobsReport, SeriesReport},
    numbers::{percent, short},
    words::escape,
};
use crate::{plan::Step, workload::TestSummary};

/// Jobs of a kind that are named at most.
const NAMED: usize = 30;
/// The columns of the table of tests; numbers stand to the right.
const COLUMNS: [(&str, bool); 13] = [
    ("test", false),
    ("class", false),
    ("engine", false),
    ("jobs", true),
    ("right", true),
    ("real s", true),
    ("shortest to longest", true),
    ("user s", true),
    ("system s", true),
    ("memory", true),
    ("switches", true),
    ("read", true),
    ("written", true),
];

/// What all jobs of one step say together, a sentence each.
pub fn sentences(jobs: &JobsReport) -> Vec<String> {
    let sum = &jobs.summary;
    let per = |rates: &std::collections::BTreeMap<u32, f64>| {
        let all: f64 = rates.values().sum();
        let nodes = rates.len().max(1) as f64;
        (all / nodes / 1e9, all / f64::from(jobs.cpus.max(1)) / 1e6)
    };
    let (mean, core) = per(&sum.bytes_per_second);
    let (peak, peak_core) = per(&sum.peak_bytes_per_second);
    let factor = match sum.factor {
        1.0 => String::new(),
        factor => format!(" (CPU time as counted times {factor})"),
    };
    vec![
        format!(
            "{} jobs, {} of them right; cumulative real time {:.2} min, user and system {:.2} min{factor}, ratio {:.2}",
            sum.jobs,
            sum.jobs - sum.bad.len(),
            sum.real_minutes,
            sum.cpu_minutes,
            sum.ratio
        ),
        format!(
            "{:.1} s from the first job's start to the last one's end; {:.1} jobs at a time on average, {} at most",
            sum.elapsed_s, sum.concurrency, sum.concurrency_most
        ),
        format!(
            "each node moved {mean:.3} GB/s on average ({core:.0} MB/s a core of this machine), {peak:.3} GB/s in its busiest second \
             ({peak_core:.0} MB/s a core); a job's bytes count as spread evenly over its time"
        ),
        format!("{} of this machine's CPUs were busy meanwhile", percent(jobs.busy)),
    ]
}

/// The rows of the table of tests.
fn cells(test: &TestSummary) -> [String; 13] {
    let size = |bytes: i64| short(bytes.max(0) as f64).trim_end().to_owned() + "B";
    let [low, middle, high] = test.real_s;
    [
        test.test.clone(),
        test.class.word().into(),
        test.engine.clone(),
        test.jobs.to_string(),
        test.right.to_string(),
        format!("{middle:.2}"),
        format!("{low:.2} to {high:.2}"),
        format!("{:.2}", test.user_s),
        format!("{:.2}", test.system_s),
        base::units::human_size(test.memory_bytes),
        test.switches.to_string(),
        size(test.read_bytes),
        size(test.written_bytes),
    ]
}

/// Lists of jobs with their headings.
fn lists(jobs: &JobsReport) -> Vec<(&'static str, Vec<String>)> {
    let cut = |list: &[String]| {
        let mut shown = list[..list.len().min(NAMED)].to_vec();
        if list.len() > NAMED {
            shown.push(format!("{} more", list.len() - NAMED));
        }
        shown
    };
    [("Jobs that were not right", &jobs.summary.bad), ("Jobs that were starved", &jobs.summary.starved)]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(heading, list)| (heading, cut(list)))
        .collect()
}

/// The jobs of a series as HTML, one table for each step; nothing for a series without jobs.
pub fn html(report: &SeriesReport) -> String {
    let mut html = String::new();
    for jobs in &report.jobs {
        let _ = writeln!(html, "<h4>Jobs on {}</h4><ul>", Step::Nodes.count(jobs.step));
        for line in sentences(jobs) {
            let _ = writeln!(html, "<li>{}</li>", escape(&line));
        }
        html.push_str("</ul>\n");
        for (heading, list) in lists(jobs) {
            let _ = writeln!(html, "<div class=\"missing\"><h4>{heading}</h4><ul>");
            for line in list {
                let _ = writeln!(html, "<li>{}</li>", escape(&line));
            }
            html.push_str("</ul></div>\n");
        }
        html.push_str("<div class=\"wide\"><table class=\"jobs\">\n<thead><tr>");
        let class = |right: bool| if right { " class=\"n\"" } else { "" };
        for (name, right) in COLUMNS {
            let _ = write!(html, "<th{}>{name}</th>", class(right));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for test in &jobs.summary.tests {
            html.push_str("<tr>");
            for (text, (_, right)) in cells(test).iter().zip(COLUMNS) {
                let _ = write!(html, "<td{}>{}</td>", class(right), escape(text));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
    }
    html
}

/// The same as Markdown.
pub fn markdown(report: &SeriesReport) -> String {
    let mut text = String::new();
    for jobs in &report.jobs {
        let _ = writeln!(text, "\n#### Jobs on {}\n", Step::Nodes.count(jobs.step));
        sentences(jobs).iter().for_each(|line| {
            let _ = writeln!(text, "- {line}");
        });
        for (heading, list) in lists(jobs) {
            let _ = writeln!(text, "\n{heading}:\n");
            list.iter().for_each(|line| {
                let _ = writeln!(text, "- {line}");
            });
        }
        let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        let rules: Vec<&str> = COLUMNS.iter().map(|(_, right)| if *right { "---:" } else { "---" }).collect();
        let _ = writeln!(text, "\n| {} |\n|{}|", names.join(" | "), rules.join("|"));
        for test in &jobs.summary.tests {
            let _ = writeln!(text, "| {} |", cells(test).join(" | "));
        }
    }
    text
}
