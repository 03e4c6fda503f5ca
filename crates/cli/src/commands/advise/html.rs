//! The report as one HTML file in the look of the lab's: no script, nothing loaded from anywhere, light and dark by the
//! reader's preference, readable in print. All that comes from a machine or a dump is escaped.

use std::{fmt::Write, fs, path::Path};

use advisor::{Finding, Severity};
use anyhow::{Context as _, Result};
use lab::report::{STYLE, escape};

use super::text::{grouped, severity, sure};
use crate::output;

/// Paths and commands are long: they are broken where the page ends.
const WRAP: &str = "h1,h2,h3,p,td,li{overflow-wrap:anywhere}.wide td{white-space:normal}.facts th{vertical-align:top}\n@media (max-width:40rem){.facts th{width:4.5rem}}\n";

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
    /// Run books: a name, and its steps.
    pub books: Vec<(String, Vec<String>)>,
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
    fs::write(file, page(of, sections)).with_context(|| format!("write {}", file.display()))?;
    output::line(format!("the report is in {}", file.display()));
    Ok(())
}

fn page(of: &str, sections: &[Section]) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let when = lab::report::date(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Ropewalk advise: {0}</title>\n<style>\n{STYLE}{WRAP}</style>\n</head>\n<body>\n\
         <header><h1>Ropewalk advise</h1>\n<p>{0}, {1}</p></header>\n<main>\n",
        escape(of),
        escape(&when),
    );
    for (number, section) in sections.iter().enumerate() {
        self::section(&mut page, number, section);
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn section(page: &mut String, number: usize, section: &Section) {
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(&section.name));
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
                "<tr><td>{}</td><td><a href=\"#{number}-{}\">{}</a></td></tr>",
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
            "<article class=\"series\" id=\"{number}-{0}\">\n<h3>{1}</h3>\n<p class=\"verdict\">{2}, {0}</p>\n<ul>",
            escape(&item.rule),
            escape(&item.title),
            severity(item.severity)
        );
        for seen in &item.seen {
            let _ = writeln!(page, "<li>{}</li>", escape(seen));
        }
        page.push_str("</ul>\n<table class=\"facts\"><tbody>\n");
        for (label, text) in &item.says {
            let _ = writeln!(page, "<tr><th>{label}</th><td>{}</td></tr>", escape(text));
        }
        page.push_str("</tbody></table>\n</article>\n");
    }
    list(page, "In order", &section.good);
    for (name, steps) in &section.books {
        list(page, &format!("Run book {name}"), steps);
    }
    page.push_str("</section>\n");
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
    use super::*;

    #[test]
    fn a_page_needs_nothing_else_and_runs_nothing() {
        let item = Item {
            severity: Severity::Warning,
            title: "<script>alert(1)</script>".into(),
            rule: "a-rule".into(),
            seen: vec!["x & y".into()],
            says: vec![("why", "\"so\"".into())],
        };
        let books = vec![("book".to_owned(), vec!["step: lsattr <x>".to_owned()])];
        let systems = vec!["switch: <s>".to_owned()];
        let section = Section { name: "n".into(), systems, items: vec![item], good: vec!["g".into()], books };
        let page = page("h<1>", &[section]);
        for text in [
            "&lt;script&gt;",
            "x &amp; y",
            "&quot;so&quot;",
            "h&lt;1&gt;",
            "lsattr &lt;x&gt;",
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
