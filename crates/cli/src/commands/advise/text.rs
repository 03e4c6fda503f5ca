//! Findings as text that fits a terminal.

use advisor::{Confidence, Finding, Gain, Severity};
use serde::Serialize;

use crate::output;

/// On the first screen; the others are counted.
pub(super) const FIRST_SCREEN: usize = 5;
/// Text is broken at this column.
const COLUMNS: usize = 100;

/// Findings of one rule stand together, under the first of them.
pub(super) fn grouped(findings: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|g| g.first().is_some_and(|f| f.rule == finding.rule)) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

pub(super) fn print(findings: &[Finding], all: bool, seen: usize) {
    let groups = grouped(findings);
    if groups.is_empty() {
        output::line(format!(
            "nothing to change: no rule applies to the {seen} facts that this machine shows"
        ));
        return;
    }
    let shown = if all { groups.len() } else { groups.len().min(FIRST_SCREEN) };
    for (i, group) in groups.iter().take(shown).enumerate() {
        let Some(first) = group.first() else { continue };
        let severity = severity(first.severity);
        output::line(format!("{}. {severity}: {}  [{}]", i + 1, first.title, first.rule));
        if group.len() > 1 {
            let others: Vec<String> = group.iter().skip(1).filter_map(|f| f.device.clone()).collect();
            labelled("and", &output::begin_of(&others.join(", "), 300));
        }
        for evidence in first.evidence.iter().take(4) {
            let value = output::begin_of(&evidence.value, 60);
            labelled("is", &format!("{} = {value}  ({})", evidence.fact, evidence.origin));
        }
        labelled("should", &first.advice);
        labelled("why", &first.why);
        labelled("cost", &first.cost);
        for (label, text) in [("do", &first.command), ("undo", &first.undo), ("keep", &first.permanent)] {
            if let Some(text) = text {
                labelled(label, text);
            }
        }
        labelled("sure", &sure(first.confidence, first.gain));
        if first.disruptive {
            labelled("note", "Doing it interrupts what runs.");
        }
        first.remarks.iter().for_each(|remark| labelled("note", remark));
        output::line("");
    }
    let rest = groups.len() - shown;
    let counted = if rest > 0 { format!("{rest} more: --all. ") } else { String::new() };
    output::line(format!(
        "{counted}Why and whence: ropewalk advise explain RULE. Settings: ropewalk advise apply."
    ));
}

/// A text behind its label, broken into lines of a terminal.
pub(super) fn labelled(label: &str, text: &str) {
    let mut line = format!("   {label:<7}");
    let empty = line.chars().count();
    for word in text.split_whitespace() {
        let long = line.chars().count();
        if long > empty && long + 1 + word.chars().count() > COLUMNS {
            output::line(line.trim_end());
            line = " ".repeat(empty);
        }
        if line.chars().count() > empty {
            line.push(' ');
        }
        line.push_str(word);
    }
    output::line(line.trim_end());
}

/// A severity in a word.
pub(super) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

/// How sure an advice is, and what it is expected to bring.
pub(super) fn sure(confidence: Confidence, gain: Gain) -> String {
    let whence = match confidence {
        Confidence::Practice => "common practice, or our own choice",
        Confidence::Documented => "documented",
        Confidence::Measured => "measured, or follows from what the machine itself reports",
    };
    let gain = match gain {
        Gain::Outage => "that it works, or goes on working".to_owned(),
        gain => word(&gain),
    };
    format!("{whence}; expected gain: {gain}")
}

/// Whether a word of a text begins so: `mtu` is none of `ksmtuned`.
pub(super) fn speaks_of(text: &str, name: &str) -> bool {
    let begins = |at: usize| !text[..at].chars().next_back().is_some_and(char::is_alphanumeric);
    text.match_indices(name).any(|(at, _)| begins(at))
}

/// How an enumeration is written in the catalogue.
pub(super) fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}
