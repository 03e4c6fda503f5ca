//! What `top` looks at: a set of operations, what it has drilled into, what it breaks down by; and what keys change of it.

use std::collections::HashMap;

use analytics::{Comparison, Filter, Query, Want, quantile_ns};
use base::stats::Statistic;
use serde_json::{Value, json};

use crate::{args::TopView, commands::analytics::Found, output::end_of, terminal::Key};

/// Longest text that lines are filtered by.
const SEARCH_MAX: usize = 64;
/// Columns of a value in the title.
const TITLE_VALUE_MAX: usize = 20;

/// One line.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// What it is about.
    pub name: String,
    /// Operations.
    pub operations: f64,
    /// Their share of all.
    pub share: f64,
    /// A second.
    pub operations_per_second: f64,
    /// A second; none where bytes are not known apart.
    pub bytes_per_second: Option<f64>,
    /// Latencies that half, 99 % and all of the operations did not exceed, nanoseconds.
    pub latency: [Option<u64>; 3],
}

/// What lines are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// Operations.
    Operations,
    /// Bytes.
    Bytes,
    /// The latency that 99 % did not exceed.
    Latency,
    /// The name.
    Name,
}

impl Sort {
    const ALL: [Sort; 4] = [Sort::Operations, Sort::Bytes, Sort::Latency, Sort::Name];

    fn moved(self, by: usize) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + by) % Sort::ALL.len()]
    }
}

/// What is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// `file`: as mounts see it; `strip`: as servers do.
    set: &'static str,
    /// What has been drilled into.
    filters: Vec<(&'static str, String)>,
    /// What there is a line for each of.
    pub dimension: &'static str,
    /// How lines are sorted.
    pub sort: Sort,
    /// The line that keys are about.
    pub selected: usize,
    /// Only lines that hold this are shown.
    pub search: String,
    /// Keys are letters of it.
    pub searching: bool,
}

const VIEWS: [(TopView, char, &str, &str); 5] = [
    (TopView::Clients, '1', "file", "client"),
    (TopView::Files, '2', "file", "file"),
    (TopView::Operations, '3', "file", "op"),
    (TopView::Nodes, '4', "strip", "process"),
    (TopView::Pdisks, '5', "strip", "pdisk"),
];

const BREAKDOWNS: [(char, &str); 8] = [
    ('c', "client"),
    ('f', "file"),
    ('u', "user"),
    ('o', "op"),
    ('s', "size"),
    ('l', "latency"),
    ('p', "pdisk"),
    ('n', "process"),
];

impl View {
    /// One of the five, nothing drilled into.
    pub fn new(of: TopView) -> View {
        let (_, _, set, dimension) = VIEWS.into_iter().find(|view| view.0 == of).unwrap_or(VIEWS[0]);
        View::at(set, dimension)
    }

    fn at(set: &'static str, dimension: &'static str) -> View {
        View {
            set,
            filters: Vec::new(),
            dimension,
            sort: Sort::Operations,
            selected: 0,
            search: String::new(),
            searching: false,
        }
    }

    fn statistic(&self, measure: &str) -> &'static Statistic {
        let name = format!("{}.{measure}", self.set);
        Statistic::find(&name).unwrap_or(&base::stats::STATISTICS[0])
    }

    /// What to ask for its operations (`ops`) or `bytes`.
    pub fn query(&self, measure: &str) -> String {
        let filter = |(dimension, value): &(&'static str, String)| Filter {
            dimension,
            comparison: Comparison::Is,
            wanted: vec![Want { text: value.clone(), bucket: 0 }],
        };
        let filters = self.filters.iter().map(filter).collect();
        let statistic = self.statistic(measure);
        Query { statistic, filters, breakdowns: vec![self.dimension] }.to_string()
    }

    /// Whether bytes are known so.
    pub fn has_bytes(&self) -> bool {
        let known = |dimension: &str| self.statistic("bytes").all_dimensions().any(|d| d == dimension);
        known(self.dimension) && self.filters.iter().all(|(dimension, _)| known(dimension))
    }

    /// Whether another question is asked for it.
    pub fn asks_otherwise(&self, other: &View) -> bool {
        self.query("ops") != other.query("ops")
    }

    /// Takes a key; false: it ends here.
    pub fn press(&mut self, key: Key, lines: &[Line]) -> bool {
        if self.searching {
            match key {
                Key::Char(c) if self.search.chars().count() < SEARCH_MAX => self.search.push(c),
                Key::Char(_) => {}
                Key::Back if self.search.pop().is_none() => self.searching = false,
                Key::Back => {}
                _ => self.searching = false,
            }
            self.selected = 0;
            return true;
        }
        let shown = self.shown(lines);
        match key {
            Key::Char('q') => return false,
            Key::Char('/') => self.searching = true,
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::Down => self.selected = (self.selected + 1).min(shown.len().saturating_sub(1)),
            Key::Right => self.sort = self.sort.moved(1),
            Key::Left => self.sort = self.sort.moved(Sort::ALL.len() - 1),
            Key::Enter => {
                if let Some(line) = shown.get(self.selected) {
                    self.drill(&line.name.clone());
                }
            }
            Key::Back => self.back(),
            Key::Tab => {
                let at = VIEWS.iter().position(|view| (view.2, view.3) == (self.set, self.dimension));
                let (_, _, set, dimension) = VIEWS[at.map_or(0, |at| (at + 1) % VIEWS.len())];
                *self = View { sort: self.sort, ..View::at(set, dimension) };
            }
            Key::Char(c) => {
                if let Some((_, _, set, dimension)) = VIEWS.into_iter().find(|view| view.1 == c) {
                    *self = View { sort: self.sort, ..View::at(set, dimension) };
                } else if let Some((_, dimension)) = BREAKDOWNS.into_iter().find(|b| b.0 == c)
                    && self.statistic("ops").all_dimensions().any(|d| d == dimension)
                {
                    self.turn_to(dimension);
                }
            }
        }
        true
    }

    fn turn_to(&mut self, dimension: &'static str) {
        self.dimension = dimension;
        self.selected = 0;
        self.search.clear();
    }

    /// Into one line, by what is asked next of such.
    fn drill(&mut self, value: &str) {
        // What was not kept apart has nothing within.
        if value == "(others)" || value == "(no file)" {
            return;
        }
        self.filters.retain(|(dimension, _)| *dimension != self.dimension);
        self.filters.push((self.dimension, value.to_owned()));
        let taken = |next: &str| self.filters.iter().any(|(dimension, _)| *dimension == next);
        let order: [&'static str; 5] = match self.set {
            "file" => ["client", "file", "op", "latency", "size"],
            _ => ["process", "pdisk", "file", "op", "latency"],
        };
        let next = order.into_iter().find(|next| !taken(next)).unwrap_or("latency");
        self.turn_to(next);
    }

    /// Out of what was drilled into last.
    fn back(&mut self) {
        if !self.search.is_empty() {
            self.search.clear();
        } else if let Some((dimension, _)) = self.filters.pop() {
            self.turn_to(dimension);
        }
    }

    /// The lines to be shown, in their order.
    pub fn shown<'a>(&self, lines: &'a [Line]) -> Vec<&'a Line> {
        let mut shown: Vec<&Line> = lines.iter().filter(|line| line.name.contains(&self.search)).collect();
        if self.is_axis() {
            return shown;
        }
        let by = |line: &Line| match self.sort {
            Sort::Operations => line.operations,
            Sort::Bytes => line.bytes_per_second.unwrap_or(0.0),
            Sort::Latency => line.latency[1].unwrap_or(0) as f64,
            Sort::Name => 0.0,
        };
        shown.sort_by(|a, b| by(b).total_cmp(&by(a)).then_with(|| a.name.cmp(&b.name)));
        shown
    }

    /// Whether its lines have an order of their own.
    pub fn is_axis(&self) -> bool {
        analytics::is_ordered(self.dimension)
    }

    /// Where it is, for people.
    pub fn title(&self) -> String {
        let of = if self.set == "file" { "mounts" } else { "servers" };
        let into: Vec<String> =
            self.filters.iter().map(|(d, value)| format!("{d} {}", end_of(value, TITLE_VALUE_MAX))).collect();
        match into.is_empty() {
            true => format!("{of} by {}", self.dimension),
            false => format!("{of} by {}: {}", self.dimension, into.join(", ")),
        }
    }

    /// The lines for scripts.
    pub fn json(&self, lines: &[Line], over: u64, silent: &[String]) -> Value {
        let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
        let row = |line: &&Line| {
            json!({
                "name": line.name,
                "operations": line.operations,
                "operations_per_second": line.operations_per_second,
                "bytes_per_second": line.bytes_per_second,
                "p50_us": us(line.latency[0]),
                "p99_us": us(line.latency[1]),
                "most_us": us(line.latency[2]),
            })
        };
        let lines: Vec<Value> = self.shown(lines).iter().map(row).collect();
        json!({ "query": self.query("ops"), "by": self.dimension, "over_s": over, "lines": lines, "silent": silent })
    }
}

/// The lines of what was found.
pub fn lines(operations: &Found, bytes: Option<&Found>) -> Vec<Line> {
    let seconds = |found: &Found| f64::from(found.answer.recorded.iter().sum::<u32>().max(1));
    let by_name: HashMap<&str, f64> = bytes
        .iter()
        .flat_map(|found| found.rows.iter().map(|(key, row)| (key[0].as_str(), row.total / seconds(found))))
        .collect();
    let all: f64 = operations.rows.iter().map(|(_, row)| row.total).sum();
    let line = |(key, row): &(Vec<String>, analytics::AnswerRow)| Line {
        name: key[0].clone(),
        operations: row.total,
        share: if all > 0.0 { row.total / all } else { 0.0 },
        operations_per_second: row.total / seconds(operations),
        bytes_per_second: bytes.map(|_| by_name.get(key[0].as_str()).copied().unwrap_or(0.0)),
        latency: [0.5, 0.99, 1.0].map(|q| quantile_ns(&row.latency, q)),
    };
    operations.in_order().into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, operations: f64, bytes: f64) -> Line {
        Line {
            name: name.to_owned(),
            operations,
            share: 0.0,
            operations_per_second: operations,
            bytes_per_second: Some(bytes),
            latency: [None; 3],
        }
    }

    #[test]
    fn from_client_to_file_to_latency_and_back() {
        let mut view = View::new(TopView::Clients);
        let lines = [line("/mnt/a", 5.0, 1.0), line("/mnt/b]", 9.0, 0.0)];
        assert_eq!(view.query("ops"), "file.ops[client]");
        assert!(view.press(Key::Enter, &lines));
        assert_eq!(view.query("bytes"), "file.bytes[client=\"/mnt/b]\"][file]");
        view.press(Key::Enter, &[line("/d/x", 1.0, 1.0)]);
        view.press(Key::Char('l'), &[]);
        assert_eq!(view.query("ops"), "file.ops[client=\"/mnt/b]\"][file=/d/x][latency]");
        assert!(!view.has_bytes());
        view.press(Key::Back, &[]);
        assert_eq!(view.query("ops"), "file.ops[client=\"/mnt/b]\"][file]");
        view.press(Key::Char('5'), &[]);
        assert_eq!(view.query("ops"), "strip.ops[pdisk]");
        // Servers know no users.
        view.press(Key::Char('u'), &[]);
        assert_eq!(view.dimension, "pdisk");
        assert!(!view.press(Key::Char('q'), &[]));
    }

    #[test]
    fn lines_are_sorted_and_filtered() {
        let mut view = View::new(TopView::Files);
        let lines = [line("/a", 5.0, 1.0), line("/bq", 9.0, 0.0), line("(others)", 1.0, 9.0)];
        let names = |view: &View| view.shown(&lines).iter().map(|l| l.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&view), ["/bq", "/a", "(others)"]);
        view.press(Key::Right, &lines);
        assert_eq!(names(&view), ["(others)", "/a", "/bq"]);
        for key in [Key::Char('/'), Key::Char('q'), Key::Enter] {
            assert!(view.press(key, &lines));
        }
        assert_eq!(names(&view), ["/bq"]);
        view.press(Key::Back, &lines);
        assert_eq!(names(&view).len(), 3);
        // Nothing is within what was not kept apart.
        view.selected = 0;
        view.press(Key::Enter, &lines);
        assert_eq!(view.query("ops"), "file.ops[file]");
    }
}
