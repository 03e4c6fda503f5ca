//! How checks look at a document, and where they say what they saw.
//! A check names values by patterns of paths, where `*` is one word, and gives each verdict with its evidence.

use std::collections::HashMap;

use serde::Serialize;

use super::{listing::Entry, split::Document, text};

/// A document's entries, for checks.
pub(crate) struct View<'a> {
    pub doc: &'a Document,
    entries: Vec<&'a Entry>,
    /// The places of each path, in lower case.
    places: HashMap<String, Vec<usize>>,
}

/// Entries of a document that checks look at.
const ENTRIES_MAX: usize = 131_072;
/// Entries that fit one pattern.
const HITS_MAX: usize = 1024;
/// Verdicts of one rule on one document.
const VERDICTS_MAX: usize = 256;

/// An entry that fits a pattern.
#[derive(Clone, Copy)]
pub(crate) struct Hit<'a> {
    pub entry: &'a Entry,
}

impl<'a> Hit<'a> {
    pub fn value(&self) -> &'a str {
        &self.entry.value
    }
    /// The value as a number, with its unit's factor.
    pub fn number(&self) -> Option<f64> {
        text::number(&self.entry.value)
    }
    /// The n-th word of the path, from 0.
    pub fn word(&self, n: usize) -> &'a str {
        self.entry.path.split('/').nth(n).unwrap_or("")
    }
    /// The value with the end of its name.
    pub fn shown(&self) -> String {
        written(self.entry)
    }
    pub fn line(&self) -> u32 {
        self.entry.line
    }
}

impl<'a> View<'a> {
    pub fn new(doc: &'a Document) -> View<'a> {
        let entries: Vec<&Entry> = doc.entries().take(ENTRIES_MAX).collect();
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, entry) in entries.iter().enumerate() {
            places.entry(entry.path.to_ascii_lowercase()).or_default().push(at);
        }
        View { doc, entries, places }
    }
    /// Every entry that fits, in the order of the document.
    pub fn all(&self, pattern: &str) -> Vec<Hit<'a>> {
        let wanted: Vec<&str> = pattern.split('/').collect();
        let hit = |entry: &&'a Entry| fits(&entry.path, &wanted).then_some(Hit { entry });
        // Without a star the path itself says where to look.
        if pattern.contains('*') {
            return self.entries.iter().filter_map(hit).take(HITS_MAX).collect();
        }
        let at = self.places.get(&pattern.to_ascii_lowercase()).map_or(&[][..], Vec::as_slice);
        at.iter().filter_map(|at| self.entries.get(*at)).filter_map(hit).take(HITS_MAX).collect()
    }
    pub fn first(&self, pattern: &str) -> Option<Hit<'a>> {
        self.all(pattern).first().copied()
    }
    pub fn number(&self, pattern: &str) -> Option<(Hit<'a>, f64)> {
        let hit = self.first(pattern)?;
        Some((hit, hit.number()?))
    }
}

fn fits(path: &str, wanted: &[&str]) -> bool {
    // Scale's names are compared without case; flags of `mmlsfs` are not.
    let any_case = matches!(wanted, ["scale", "config" | "mark" | "section" | "mmchconfig", ..]);
    let same =
        |word: &str, want: &str| word == want || want == "*" || any_case && word.eq_ignore_ascii_case(want);
    let mut words = path.split('/');
    wanted.iter().all(|want| words.next().is_some_and(|word| same(word, want))) && words.next().is_none()
}

/// What a rule says of a document.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judgement {
    /// The rule, by its id.
    pub rule: &'static str,
    /// Whether what was looked at is in order.
    pub good: bool,
    /// What is, with its figures, in a sentence.
    pub what: String,
    /// Where it stands: line and what is written there.
    pub evidence: Vec<(u32, String)>,
}

/// Where checks put their verdicts.
#[derive(Default)]
pub(crate) struct Report {
    pub judgements: Vec<Judgement>,
    /// How many each rule gave.
    counts: HashMap<&'static str, usize>,
}

impl Report {
    pub fn bad(&mut self, rule: &'static str, hits: &[Hit<'_>], what: impl Into<String>) {
        self.put(rule, false, hits, what.into());
    }
    pub fn good(&mut self, rule: &'static str, hits: &[Hit<'_>], what: impl Into<String>) {
        self.put(rule, true, hits, what.into());
    }
    /// Bad unless `order`.
    pub fn verdict(&mut self, rule: &'static str, order: bool, hits: &[Hit<'_>], what: impl Into<String>) {
        self.put(rule, order, hits, what.into());
    }
    fn put(&mut self, rule: &'static str, good: bool, hits: &[Hit<'_>], what: String) {
        let count = self.counts.entry(rule).or_default();
        if *count >= VERDICTS_MAX {
            return;
        }
        *count += 1;
        let mut evidence: Vec<(u32, String)> =
            hits.iter().map(|hit| (hit.line(), written(hit.entry))).collect();
        evidence.sort();
        evidence.dedup();
        let judgement = Judgement { rule, good, what, evidence };
        // Listings that come twice say the same twice.
        if !self.judgements.iter().any(|j| j.rule == rule && j.what == judgement.what) {
            self.judgements.push(judgement);
        }
    }
}

/// An entry as evidence: its path without the words that only sort it, and its value.
fn written(entry: &Entry) -> String {
    let words: Vec<&str> = entry.path.split('/').collect();
    let skip = match words.as_slice() {
        ["aix" | "linux" | "scale" | "switch", _, _, ..] => 2,
        ["says" | "text" | "command" | "aix" | "linux" | "scale" | "switch", _, ..] => 1,
        _ => 0,
    };
    format!("{} = {}", words[skip..].join(" "), entry.value)
}
