//! The table for people: `config show`, `config explain`, the documentation, and names that are nearly right.

use std::fmt::Write;

use serde::Serialize;

use super::{
    attributes::{Change, Scope},
    error::TunableError,
    scale::elsewhere,
    table::{ROWS, Row, Tunables},
};

/// What stands before a value in `config show`, as in Storage Scale's listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// The default.
    Default,
    /// Moved from its default by another tunable that was set.
    Derived,
    /// Set.
    Changed,
}

impl Mark {
    /// Blank, `.` or `!`.
    pub fn symbol(self) -> char {
        match self {
            Mark::Default => ' ',
            Mark::Derived => '.',
            Mark::Changed => '!',
        }
    }
}

/// One line of `config show`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of Row")]
pub struct ShowRow {
    pub mark: Mark,
    pub name: &'static str,
    pub value: String,
    pub default: String,
    pub allowed: String,
    pub unit: &'static str,
    pub scope: Scope,
    pub change: Change,
    pub derived: Option<&'static str>,
}

impl Tunables {
    /// Every row with its value, in the order of the table.
    pub fn show(&self) -> Vec<ShowRow> {
        ROWS.iter().map(|row| self.show_row(row)).collect()
    }

    fn show_row(&self, row: &Row) -> ShowRow {
        let (value, default) = ((row.get_text)(&self.values), row.default_text());
        let mark = match self.is_set(row) {
            true => Mark::Changed,
            false if value != default => Mark::Derived,
            false => Mark::Default,
        };
        ShowRow {
            mark,
            name: row.name,
            value,
            default,
            allowed: row.allowed_text(),
            unit: row.unit,
            scope: row.scope,
            change: row.change,
            derived: row.derived,
        }
    }
}

/// The row of this name, or what to write instead.
pub(super) fn find(name: &str) -> Result<&'static Row, TunableError> {
    Row::find(name).ok_or_else(|| TunableError::Unknown { name: name.to_owned(), remedy: remedy(name) })
}

fn remedy(name: &str) -> String {
    if let Some(answer) = elsewhere(name) {
        return answer.to_owned();
    }
    let wanted = &name.to_ascii_lowercase();
    let near = ROWS
        .iter()
        .flat_map(|row| row.spellings().map(move |s| (distance(wanted, &s.to_ascii_lowercase()), row.name)))
        .filter(|(d, s)| *d <= 2.max(s.len() / 3))
        .min_by_key(|(d, _)| *d);
    match near {
        Some((_, name)) => format!("did you mean {name}? `ropewalk config show` lists all"),
        None => "`ropewalk config show` lists all".to_owned(),
    }
}

/// Letters to add, remove or change to make `a` into `b`. Long names are not compared: they are no typing
/// mistake, and outside text must not cost time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    if a.len() > 64 {
        return usize::MAX;
    }
    let mut line: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = line[0];
        line[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = line[j + 1];
            line[j + 1] = change.min(line[j] + 1).min(diagonal + 1);
        }
    }
    line[b.len()]
}

fn scope_text(scope: Scope) -> &'static str {
    match scope {
        Scope::Cluster => "cluster",
        Scope::Node => "node",
        Scope::Mount => "mount",
    }
}

fn change_text(change: Change) -> &'static str {
    match change {
        Change::Live => "live",
        Change::Reopen => "reopen",
        Change::Restart => "restart",
    }
}

/// What `config explain NAME` prints.
pub fn explain(name: &str) -> Result<String, TunableError> {
    let row = find(name)?;
    let mut text = format!("{}\n\n{}\n\n", row.name, paragraph(row.meaning));
    let mut line = |what: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {what:<9} {value}");
    };
    line("default", &row.default_text());
    line("allowed", &row.allowed_text());
    line("unit", row.unit);
    if let Some(rule) = row.derived {
        line("derived", &format!("{rule}, unless set"));
    }
    line(
        "scope",
        match row.scope {
            Scope::Cluster => "one value for the cluster",
            Scope::Node => "each node may have its own",
            Scope::Mount => "each mount may have its own",
        },
    );
    line(
        "change",
        match row.change {
            Change::Live => "takes effect at once",
            Change::Reopen => "takes effect when the pdisk, connection group or mount is opened again",
            Change::Restart => "takes effect when the process starts again",
        },
    );
    if !row.aliases.is_empty() {
        line("also", &row.aliases.join(", "));
    }
    Ok(text)
}

const INTRODUCTION: &str = "\
# Tunables

Made from the table in `crates/base/src/tunables/table.rs`; a test compares the two.

Names are compared without case. Sizes are binary (`1m` = 1048576), durations are written `500us`, `20ms`,
`10s`, `2min`. *Change* says when a new value takes effect: *live* at once, *reopen* when the pdisk,
connection group or mount is opened again, *restart* when the process starts again.
";

const TABLE_HEAD: &str = "\
| name | meaning | unit | default | allowed | scope | change |
|---|---|---|---|---|---|---|
";

/// `docs/tunables.md`.
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut section = "";
    for row in ROWS {
        if row.section != section {
            section = row.section;
            let _ = write!(text, "\n## {section}\n\n{TABLE_HEAD}");
        }
        let derived = row.derived.map(|rule| format!(" *Derived: {rule}, unless set.*")).unwrap_or_default();
        let also = if row.aliases.is_empty() {
            String::new()
        } else {
            format!(" *Also: {}.*", row.aliases.join(", "))
        };
        let _ = writeln!(
            text,
            "| `{}` | {}{derived}{also} | {} | {} | {} | {} | {} |",
            row.name,
            paragraph(row.meaning).replace('|', "\\|"),
            row.unit,
            row.default_text(),
            row.allowed_text(),
            scope_text(row.scope),
            change_text(row.change),
        );
    }
    text
}

/// Doc-comment lines as one line.
fn paragraph(meaning: &str) -> String {
    meaning.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_one_each() {
        let mut seen = BTreeSet::new();
        for spelling in ROWS.iter().flat_map(|r| r.spellings()) {
            assert!(seen.insert(spelling.to_ascii_lowercase()), "{spelling} twice");
        }
        assert!(ROWS.iter().enumerate().all(|(at, row)| row.index == at));
    }

    #[test]
    fn nearest_name() {
        for (wrong, right) in [
            ("pagepol", "pagepool"),
            ("MAXMBPS1", "maxMBpS"),
            ("worker_threads", "workerThreads"),
            ("seqDiscardTreshhold", "seqDiscardThreshold"),
        ] {
            assert!(remedy(wrong).contains(&format!("did you mean {right}?")), "{}", remedy(wrong));
        }
        for far in ["x", "", "completelydifferentname", &"pagepool".repeat(5000)] {
            assert!(!remedy(far).contains("did you mean"), "{far}");
        }
    }

    #[test]
    fn marks_are_those_of_scale() {
        let mut tunables = Tunables::default();
        assert!(tunables.show().iter().all(|row| row.mark == Mark::Default && row.value == row.default));
        tunables.apply([("workerThreads", "1024"), ("maxMBpS", "2048")]).unwrap();
        let symbol = |name| tunables.show().iter().find(|r| r.name == name).unwrap().mark.symbol();
        assert_eq!((symbol("workerThreads"), symbol("prefetchThreads"), symbol("pagepool")), ('!', '.', ' '));
        assert_eq!(symbol("maxMBpS"), '!', "set to its default is still set");
    }

    #[test]
    fn explained() {
        let text = explain("PREFETCHTHREADS").unwrap();
        for part in ["prefetchThreads\n", "16", "2 to 8192", "workerThreads / 3, at least 2", "at once"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(explain("nothing").is_err());
        assert!(ROWS.iter().all(|row| explain(row.name).is_ok()));
    }
}
