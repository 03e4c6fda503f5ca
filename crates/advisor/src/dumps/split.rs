//! Finds the listings inside an input: a single command's output, a whole configuration, or an article with listings between
//! its sentences. What belongs to no listing is read for what it states, or counted as not understood.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    listing::{self, Entry, Fate, Listing, Parser, Title, Window},
    parsers::PARSERS,
    prose, shell,
    text::{Text, is_prose},
};

/// A command heads the output that begins within so many lines below it.
const HEADING_REACH: usize = 3;
/// From so many sentences on an input is an article: its other lines are headings and captions.
const SENTENCES_OF_AN_ARTICLE: usize = 3;
/// Further listings of an input are not looked for.
const LISTINGS_MAX: usize = 4096;
/// What lines without a command's output are called.
const COMMANDS: Parser =
    Parser { kind: "commands", title: Title::No, system: "any", starts: |_| false, line: shell::line };

/// One input, read.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Its file's name, or `-`.
    pub name: String,
    /// The listings in it, in their order.
    pub listings: Vec<Listing>,
    /// What its sentences state.
    pub statements: Vec<Entry>,
    /// The lines that were not understood: number and text.
    pub unknown: Vec<(u32, String)>,
    /// Lines read into values.
    pub read: usize,
    /// Lines passed over, by reason.
    pub ignored: BTreeMap<&'static str, usize>,
    /// All its lines.
    pub lines: usize,
    /// The files that it was put together from, and the line at which each begins; none for an input of one file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// A file of an input that was put together from several.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its first line among those of all.
    pub first: u32,
}

impl Document {
    /// Every entry: listings first, statements behind them.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.listings.iter().flat_map(|listing| &listing.entries).chain(&self.statements)
    }
    /// Where a line stands: its file, where there are several, and the line there.
    pub fn place(&self, line: u32) -> (Option<&str>, u32) {
        match self.parts.iter().rev().find(|part| part.first <= line) {
            Some(part) => (Some(&part.name), line - part.first + 1),
            None => (None, line),
        }
    }
    /// A line's number, behind its file's name where there are several.
    pub fn at(&self, line: u32) -> String {
        let (file, line) = self.place(line);
        let name = file.map(|file| file.rsplit('/').next().unwrap_or(file));
        name.map_or_else(|| line.to_string(), |name| format!("{name}:{line}"))
    }
    /// Files of one machine as one input: what stands in one of them is held against what stands in another.
    #[must_use]
    pub fn together(name: &str, files: Vec<Document>) -> Document {
        let mut all = Document {
            name: name.to_owned(),
            listings: Vec::new(),
            statements: Vec::new(),
            unknown: Vec::new(),
            read: 0,
            ignored: BTreeMap::new(),
            lines: 0,
            parts: Vec::new(),
        };
        for mut file in files {
            let before = u32::try_from(all.lines).unwrap_or(u32::MAX);
            let moved = |line: &mut u32| *line = line.saturating_add(before);
            for listing in &mut file.listings {
                moved(&mut listing.first);
                moved(&mut listing.last);
                listing.entries.iter_mut().for_each(|entry| moved(&mut entry.line));
            }
            if file.listings.is_empty() {
                // A trace or an image is no text that was spoilt.
                file.statements.retain(|entry| !entry.path.starts_with("text/"));
            }
            file.statements.iter_mut().for_each(|entry| moved(&mut entry.line));
            file.unknown.iter_mut().for_each(|(line, _)| moved(line));
            all.parts.push(Part { name: file.name, first: before.saturating_add(1) });
            all.listings.extend(file.listings);
            all.statements.extend(file.statements);
            all.unknown.extend(file.unknown);
            all.read += file.read;
            all.lines += file.lines;
            file.ignored.into_iter().for_each(|(reason, n)| *all.ignored.entry(reason).or_insert(0) += n);
        }
        all
    }
    /// Whether these files are what `gpfs.snap` gathers of one node: outputs of several of Storage Scale's commands, each in a
    /// file of its own, and each once.
    pub fn are_of_one_snap(files: &[&Document]) -> bool {
        let of = |file: &&Document| {
            let scale = file.listings.iter().filter(|listing| listing.system == "Scale");
            scale.map(|listing| listing.kind).collect::<BTreeSet<_>>()
        };
        let kinds: Vec<_> = files.iter().map(of).filter(|kinds| !kinds.is_empty()).collect();
        let all: BTreeSet<&str> = kinds.iter().flatten().copied().collect();
        kinds.len() > 1 && all.len() == kinds.iter().map(BTreeSet::len).sum::<usize>()
    }
}

/// The command or device above the line where a listing may begin.
#[derive(Default)]
struct Heading {
    at: usize,
    command: Vec<String>,
    subject: Option<String>,
}

/// Reads an input of any kind. `name` is for findings, and tells nothing about the kind.
pub fn document(name: &str, bytes: &[u8]) -> Document {
    read(name, bytes, Heading::default())
}

/// What a command printed, of which no line says what command it was.
pub(crate) fn output(words: &[&str], bytes: &[u8]) -> Document {
    let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let subject = shell::subject(&command);
    read(&words.join(" "), bytes, Heading { at: 0, command, subject })
}

fn read(name: &str, bytes: &[u8], mut heading: Heading) -> Document {
    let text = Text::new(bytes);
    let lines = &text.lines;
    let mut fates: Vec<Fate> = Vec::with_capacity(lines.len());
    let mut listings: Vec<Listing> = Vec::new();
    // Lines that belong to no listing.
    let mut outside: Vec<usize> = Vec::new();
    while fates.len() < lines.len() {
        let at = fates.len();
        let line = &lines[at];
        if let Some(command) = shell::command(line) {
            heading = Heading { at, subject: shell::subject(&command), command };
            let found = listing::read(&COMMANDS, &lines[..=at], at, &[], None, |_| false);
            found.into_iter().for_each(|(listing, _)| push_commands(&mut listings, listing));
            fates.push(Fate::Read);
        } else if let Some(device) = shell::device_heading(line) {
            heading = Heading { at, command: Vec::new(), subject: Some(device) };
            fates.push(Fate::Ignored("heading"));
        } else if shell::is_switch_prompt(line) && line.contains(" show ") {
            heading = Heading { at, command: Vec::new(), subject: None };
            fates.push(Fate::Ignored("command"));
        } else if let Some((listing, more)) = listing_at(lines, at, &heading, listings.len()) {
            listings.push(listing);
            fates.extend(more);
        } else {
            outside.push(at);
            let bare = line.trim_start_matches(['-', '=', '#', ' ']);
            fates.push(match (line.trim(), bare) {
                ("", _) => Fate::Ignored("empty"),
                (_, "") => Fate::Ignored("ruler"),
                _ => Fate::Unknown,
            });
        }
    }
    finish(name, &text, listings, fates, &outside)
}

/// Commands on consecutive lines are one listing.
fn push_commands(listings: &mut Vec<Listing>, listing: Listing) {
    let full = listings.len() >= LISTINGS_MAX;
    match listings.last_mut() {
        Some(last) if last.kind == COMMANDS.kind && last.last + 1 == listing.first => {
            last.last = listing.last;
            last.entries.extend(listing.entries);
        }
        _ if full => {}
        _ => listings.push(listing),
    }
}

fn listing_at(lines: &[String], at: usize, heading: &Heading, found: usize) -> Option<(Listing, Vec<Fate>)> {
    if lines[at].trim().is_empty() || found >= LISTINGS_MAX {
        return None;
    }
    let headed = at - heading.at <= HEADING_REACH;
    let command: &[String] = if headed { &heading.command } else { &[] };
    let subject = heading.subject.as_deref().filter(|_| headed);
    let window = Window { lines: &lines[at..], command };
    let ends = |kind: &str, at: usize| {
        let window = Window { lines: &lines[at..], command: &[] };
        shell::command(&lines[at]).is_some()
            || shell::device_heading(&lines[at]).is_some()
            || PARSERS.iter().any(|p| {
                (p.title == Title::Once || p.title == Title::Often && p.kind != kind) && (p.starts)(&window)
            })
    };
    PARSERS
        .iter()
        .filter(|parser| (parser.starts)(&window))
        .find_map(|parser| listing::read(parser, lines, at, command, subject, |at| ends(parser.kind, at)))
}

fn finish(
    name: &str,
    text: &Text,
    listings: Vec<Listing>,
    mut fates: Vec<Fate>,
    outside: &[usize],
) -> Document {
    let rest: Vec<usize> = outside.iter().copied().filter(|at| fates[*at] == Fate::Unknown).collect();
    let sentences = rest.iter().filter(|at| is_prose(&text.lines[**at])).count();
    let mut statements = Vec::new();
    if sentences >= SENTENCES_OF_AN_ARTICLE {
        statements = prose::statements(&text.lines, &rest);
        rest.iter().for_each(|at| fates[*at] = Fate::Ignored("text"));
    }
    let odd =
        |what: &str, value: &str| Entry { path: format!("text/{what}"), value: value.to_owned(), line: 1 };
    if text.dos {
        statements.push(odd("line-ends", "DOS"));
    }
    if text.encoding != "UTF-8" {
        statements.push(odd("encoding", text.encoding));
    }
    if text.cut {
        statements.push(odd("cut", "16 MiB"));
    }
    let mut ignored = BTreeMap::new();
    let mut unknown = Vec::new();
    for (at, fate) in fates.iter().enumerate() {
        match fate {
            Fate::Read => {}
            Fate::Ignored(reason) => *ignored.entry(*reason).or_insert(0) += 1,
            Fate::Unknown => {
                unknown.push((u32::try_from(at + 1).unwrap_or(u32::MAX), text.lines[at].clone()))
            }
        }
    }
    let read = fates.iter().filter(|fate| **fate == Fate::Read).count();
    Document {
        name: name.to_owned(),
        listings,
        statements,
        unknown,
        read,
        ignored,
        lines: fates.len(),
        parts: Vec::new(),
    }
}
