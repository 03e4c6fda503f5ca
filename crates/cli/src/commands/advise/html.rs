//! The report as one HTML file in the look of the lab's: no script, nothing loaded from anywhere, light and dark by the
//! reader's preference, readable in print. All that comes from a machine or a dump is escaped.

use std::{fmt::Write, fs, path::Path};

use advisor::{Finding, Severity, dumps::RunBook};
use anyhow::{Context as _, Result};
use lab::report::{STYLE, escape};

use super::text::{grouped, severity, sure};
use crate::output;

/// Beside the lab's look. Paths and commands are long: they are broken where the page ends; a finding stays on its page of paper.
const LOOK: &str = "h1,h2,h3,p,td,li{overflow-wrap:anywhere}.wide td{white-space:normal}.facts th{vertical-align:top;width:5rem}\n\
    .wide td:first-child{width:6rem}.critical{color:#b3261e;font-weight:600}.verdict.critical{border-color:#b3261e}ol{padding-left:1.6rem}section>h3{margin-top:1rem}\n\
    @media (prefers-color-scheme:dark){.critical{color:#ff8a80}.verdict.critical{border-color:#ff8a80}}\n\
    @media print{article{break-inside:avoid;padding:.5rem .8rem}.critical{color:#b3261e}.facts th{width:4rem}}\n";
/// What is said in commands, or in lines of a file.
const COMMANDS: [&str; 3] = ["do", "undo", "keep"];

/// Findings of one rule.
pub(super) struct Item {
    pub severity: Severity,
    pub title: String,
    pub rule: String,
    /// What was seen, each in a line.
    pub seen: Vec<String>,
    /// Label and text: what should be, why, ...
    pub says: Vec<(&'static str, String)>,
}

/// All that is said of one machine or dump.
#[derive(Default)]
pub(super) struct Section {
    pub name: String,
    /// What it is of.
    pub systems: Vec<String>,
    /// Best first.
    pub items: Vec<Item>,
    /// What is in order.
    pub good: Vec<String>,
    /// What cannot be changed from here.
    pub books: Vec<RunBook>,
}

impl Section {
    /// What was found on a machine.
    pub fn of_findings(name: &str, findings: &[Finding]) -> Section {
        let items = grouped(findings).iter().filter_map(|group| item(group)).collect();
        Section { name: name.to_owned(), items, ..Section::default() }
    }
}

fn item(group: &[&Finding]) -> Option<Item> {
    let first = group.first()?;
    let evidence = first.evidence.iter().map(|e| format!("{} = {} ({})", e.fact, e.value, e.origin));
    let others =
        group.iter().skip(1).filter_map(|f| f.device.as_ref()).map(|device| format!("also {device}"));
    let mut says =
        vec![("should", first.advice.clone()), ("why", first.why.clone()), ("cost", first.cost.clone())];
    for (label, text) in [("do", &first.command), ("undo", &first.undo), ("keep", &first.permanent)] {
        says.extend(text.clone().map(|text| (label, text)));
    }
    if first.disruptive {
        says.push(("note", "Doing it interrupts what runs.".to_owned()));
    }
    says.extend(first.remarks.iter().map(|remark| ("note", remark.clone())));
    says.push(("sure", sure(first.confidence, first.gain)));
    says.push(("source", first.source.clone()));
    Some(Item {
        severity: first.severity,
        title: first.title.clone(),
        rule: first.rule.clone(),
        seen: evidence.chain(others).collect(),
        says,
    })
}

/// Writes the page, and says so.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(file: &Path, of: &str, sections: &[Section]) -> Result<()> {
    output::file(&fs::OpenOptions::new(), file, page(of, sections).as_bytes())
        .with_context(|| format!("write {}", file.display()))?;
    output::line(format!("the report is in {}", file.display()));
    Ok(())
}

fn page(of: &str, sections: &[Section]) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let when = lab::report::date(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Ropewalk advise: {0}</title>\n<style>\n{STYLE}{LOOK}</style>\n</head>\n<body>\n\
         <header><h1>Ropewalk advise</h1>\n<p>{0}, {1}</p></header>\n<main>\n",
        escape(of),
        escape(&when),
    );
    if sections.len() > 1 {
        contents(&mut page, sections);
    }
    for (number, section) in sections.iter().enumerate() {
        self::section(&mut page, number, section);
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Of many: what each has, and the way there.
fn contents(page: &mut String, sections: &[Section]) {
    page.push_str("<ul>\n");
    for (number, section) in sections.iter().enumerate() {
        let named = [
            (Severity::Critical, "critical", "critical"),
            (Severity::Warning, "warning", "warnings"),
            (Severity::Note, "note", "notes"),
        ];
        let counts = named.into_iter().filter_map(|(of, one, more)| {
            let count = section.items.iter().filter(|item| item.severity == of).count();
            let word = if count == 1 { one } else { more };
            (count > 0).then(|| format!("<span class=\"{one}\">{count} {word}</span>"))
        });
        let counts = counts.collect::<Vec<_>>().join(", ");
        let counts = if counts.is_empty() { "nothing to change" } else { &counts };
        let _ = writeln!(page, "<li><a href=\"#{number}\">{}</a>: {counts}</li>", escape(&section.name));
    }
    page.push_str("</ul>\n");
}

fn section(page: &mut String, number: usize, section: &Section) {
    let _ = writeln!(page, "<section id=\"{number}\">\n<h2>{}</h2>", escape(&section.name));
    list(page, "Systems", &section.systems);
    if section.items.is_empty() {
        page.push_str("<p class=\"lead\">Nothing to change: no rule applies.</p>\n");
    } else {
        page.push_str(
            "<div class=\"wide\"><table>\n<thead><tr><th>severity</th><th>finding</th></tr></thead>\n<tbody>\n",
        );
        for item in &section.items {
            let _ = writeln!(
                page,
                "<tr><td class=\"{0}\">{0}</td><td><a href=\"#{number}-{1}\">{2}</a></td></tr>",
                severity(item.severity),
                escape(&item.rule),
                escape(&item.title)
            );
        }
        page.push_str("</tbody></table></div>\n");
    }
    for item in &section.items {
        let _ = writeln!(
            page,
            "<article class=\"series\" id=\"{number}-{0}\">\n<h3>{1}</h3>\n<p class=\"verdict {2}\">{3}, {0}</p>\n<ul>",
            escape(&item.rule),
            escape(&item.title),
            // What needs no haste is marked as the lab marks what is open.
            if item.severity == Severity::Note { "open" } else { severity(item.severity) },
            severity(item.severity)
        );
        for seen in &item.seen {
            let _ = writeln!(page, "<li>{}</li>", escape(seen));
        }
        page.push_str("</ul>\n<table class=\"facts\"><tbody>\n");
        for (label, text) in &item.says {
            let text = escape(text);
            let text = if COMMANDS.contains(label) { format!("<code>{text}</code>") } else { text };
            let _ = writeln!(page, "<tr><th>{label}</th><td>{text}</td></tr>");
        }
        page.push_str("</tbody></table>\n</article>\n");
    }
    list(page, "In order", &section.good);
    section.books.iter().for_each(|book| run_book(page, book));
    page.push_str("</section>\n");
}

/// Steps in order, each with its command.
fn run_book(page: &mut String, book: &RunBook) {
    let (name, disrupts) = (escape(book.name), escape(&book.disrupts));
    let _ = writeln!(page, "<h3>Run book {name}</h3>\n<p>Disrupts: {disrupts}</p>\n<ol>");
    for step in &book.steps {
        let _ = writeln!(page, "<li>{}: <code>{}</code></li>", escape(step.what), escape(&step.command));
    }
    page.push_str("</ol>\n");
}

fn list(page: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(page, "<h3>{}</h3>\n<ul>", escape(title));
    for line in lines {
        let _ = writeln!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use advisor::dumps::Step;

    use super::*;

    #[test]
    fn a_page_needs_nothing_else_and_runs_nothing() {
        let item = Item {
            severity: Severity::Warning,
            title: "<script>alert(1)</script>".into(),
            rule: "a-rule".into(),
            seen: vec!["x & y".into()],
            says: vec![("why", "\"so\"".into()), ("do", "echo <y>".into())],
        };
        let step = Step { what: "look", command: "lsattr <x>".to_owned() };
        let books = vec![RunBook { name: "book", disrupts: "<d>".to_owned(), steps: vec![step] }];
        let systems = vec!["switch: <s>".to_owned()];
        let section = Section { name: "n".into(), systems, items: vec![item], good: vec!["g".into()], books };
        let page = page("h<1>", &[section, Section { name: "<other>".into(), ..Section::default() }]);
        for text in [
            "&lt;script&gt;",
            "x &amp; y",
            "&quot;so&quot;",
            "h&lt;1&gt;",
            "<li>look: <code>lsattr &lt;x&gt;</code></li>",
            "Disrupts: &lt;d&gt;",
            "<code>echo &lt;y&gt;</code>",
            "<li><a href=\"#0\">n</a>: <span class=\"warning\">1 warning</span></li>",
            "<li><a href=\"#1\">&lt;other&gt;</a>: nothing to change</li>",
            "switch: &lt;s&gt;",
            "href=\"#0-a-rule\"",
        ] {
            assert!(page.contains(text), "{text}");
        }
        for text in ["<script", "http:", "https:", "url(", "@import", "src="] {
            assert!(!page.contains(text), "{text}");
        }
    }
}
